"""The errors CUDA raises, in its words, for the mistakes stand-in devices notice."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.torch_private import OpOverload

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

ELEMENTWISE_TOO = {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::lerp"}
"""Operations without the pointwise tag that TensorIterator checks (device_check: NoCheck in
native_functions.yaml)."""


def mixed_devices(func: OpOverload, named: Sequence[tuple[str, torch.device]]) -> RuntimeError:
    """The error of an operation whose tensors, (argument, device) in order, are on several devices.

    Elementwise operations are refused by TensorIterator, the others by the check every CUDA operation begins
    with; the second was put in other words in torch 2.9.
    """
    if torch.Tag.pointwise in func.tags or func._schema.name in ELEMENTWISE_TOO:
        first = next(device for _, device in named if device.type != "cpu")
        other = next(device for _, device in named if device != first)
        return RuntimeError(_found_two(first, other))
    first = named[0][1]
    argument, other = next(pair for pair in named if pair[1] != first)
    method = method_name(func)
    if _VERSION >= (2, 9):
        return RuntimeError(
            f"Expected all tensors to be on the same device, but got {argument} is on {other}, "
            f"different from other tensors on {first} (when checking argument in method {method})"
        )
    checking = f" (when checking argument for argument {argument} in method {method})"
    return RuntimeError(_found_two(first, other) + checking)


def _found_two(first: torch.device, other: torch.device) -> str:
    return (
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
    )


def method_name(func: OpOverload) -> str:
    """The name CUDA's messages give an operation: wrapper_CUDA_addmm."""
    name, overload = func._schema.name.split("::")[-1], func._schema.overload_name
    return f"wrapper_CUDA_{'_' if name.startswith('_') else ''}{name}" + (f"_{overload}" if overload else "")


def wrong_index_device(indexed: torch.device) -> RuntimeError:
    """The error of indexing a tensor with indices on another device."""
    return RuntimeError(
        f"indices should be either on cpu or on the same device as the indexed tensor ({indexed})"
    )


def no_such_device(index: int, count: int) -> RuntimeError:
    """The error of naming a device there is not."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    text = (
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        f"(There are {count} stand-in devices, cuda:0 to cuda:{count - 1}; found cuda:{index}.)"
    )
    try:
        return kind(text)
    except TypeError:
        return RuntimeError(text)


def not_cuda(device: torch.device) -> ValueError:
    """The error of asking torch.cuda about a device of another kind."""
    return ValueError(f"Expected a cuda device, but got: {device}")


def not_strided(made: torch.Tensor, device: torch.device) -> NotImplementedError:
    """The error of making what has no memory of its own to count. A GPU would have taken some of these."""
    return NotImplementedError(
        f"stand-in devices hold plain (strided) tensors: this operation on {device} gives a tensor of layout "
        f"{made.layout}"
    )


def not_for_numpy(device: torch.device) -> TypeError:
    """The error of handing a device's tensor to NumPy."""
    return TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
        "memory first."
    )
