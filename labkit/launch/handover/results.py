"""Results of ranks on their way to the notebook: pickled, tensors on the CPU, with a limit on size."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import torch

from labkit.launch.handover.pickling import innermost


class CannotSendBack(TypeError):
    """A rank returned something that cannot leave its process."""


class ResultTooLarge(ValueError):
    """A rank returned more than a job may send back."""


class _Limited(io.RawIOBase):
    """A file that takes `limit` bytes at most."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit, self._written = file, limit, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += memoryview(data).nbytes
        if self._written > self._limit:
            raise ResultTooLarge(
                f"the returned value is larger than the {self._limit / 2**20:.0f} MiB that a job sends back: "
                "return a summary of it, or write it to a file and return the path"
            )
        return self._file.write(data)


class _Pickler(cloudpickle.Pickler):
    """Moves tensors to the CPU, and sends the part of a storage that a tensor shows, not all of it."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (torch.Tensor, torch.nn.Parameter):
            light = _on_cpu(obj)
            if light is not obj:
                return light.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if it can travel as it is; else one of its own kind that can: a Parameter stays one."""
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.device.type != "cpu":
        light = tensor.detach().cpu()
    elif not tensor.is_leaf or tensor.untyped_storage().nbytes() > tensor.nbytes:
        light = tensor.detach().clone()
    else:
        return tensor
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(light, tensor.requires_grad)
    return light.requires_grad_(tensor.requires_grad)


def write(value: Any, path: Path, limit: int) -> None:
    """Pickle a rank's result. CannotSendBack names the part that cannot be; ResultTooLarge the limit."""
    try:
        with open(path, "wb", buffering=0) as file:
            _Pickler(_Limited(file, limit), pickle.HIGHEST_PROTOCOL).dump(value)
    except (ResultTooLarge, OSError, MemoryError):
        raise
    except Exception as error:
        where, part = innermost(value, "result", _dump)
        raise CannotSendBack(
            f"the function returned something that cannot be sent back: {where} is a "
            f"{type(part).__module__}.{type(part).__qualname__} ({error}); return tensors, numbers, texts, "
            "and lists or dicts of them"
        ) from None


def _dump(part: Any) -> None:
    _Pickler(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(part)
