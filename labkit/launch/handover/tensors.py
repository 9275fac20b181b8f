"""How plain tensors travel: each storage once, so that views and ties share it on the other side too.

Imported where torch is: a notebook that has not imported it has no tensors.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import torch


def is_plain(value: object) -> bool:
    """Whether it is a tensor of the CPU whose numbers are those of its storage. Others travel torch's way."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    assert isinstance(value, torch.Tensor)
    own = value.device.type == "cpu" and value.layout is torch.strided and not value.is_quantized
    return own and not value.is_neg() and not value.is_conj()


def is_result(value: object) -> bool:
    """Whether it is a tensor that remembers what it was computed from, for `backward`."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def is_storage(value: object) -> bool:
    """Whether it is the memory of tensors of the CPU."""
    return type(value) is torch.UntypedStorage and value.device.type == "cpu"


def digest(storage: torch.UntypedStorage) -> bytes:
    """A digest of a storage's bytes."""
    return hashlib.sha256(_memory(storage)).digest()


def same(storage: torch.UntypedStorage, data: memoryview) -> bool:
    """Whether a storage has these bytes: told several times as quickly as a digest."""
    if len(storage) != len(data):
        return False
    whole = len(data) // 8 * 8
    mine, other = (torch.frombuffer(part, dtype=torch.uint8) for part in (_memory(storage), data))
    words = torch.equal(mine[:whole].view(torch.int64), other[:whole].view(torch.int64))
    return words and torch.equal(mine[whole:], other[whole:])


def reduce_tensor(tensor: torch.Tensor, there: Any) -> tuple[Any, ...]:
    """As `__reduce__`: a new tensor, or, where the other side has it, the same one showing what this does.

    there: what stands for the other side's tensor in a pickle; None where it has none.
    """
    shown = (tensor.storage_offset(), tuple(tensor.size()), tensor.stride(), tensor.requires_grad)
    whole = (tensor.dtype, tensor.untyped_storage(), *shown, dict(vars(tensor)))
    return (_show, (there, *whole)) if there is not None else (_new, (type(tensor), *whole))


def reduce_storage(storage: torch.UntypedStorage, there: Any) -> tuple[Any, ...]:
    """The same for the memory itself."""
    data = pickle.PickleBuffer(_memory(storage))
    return (fill, (there, data)) if there is not None else (store, (data,))


def _memory(storage: torch.UntypedStorage) -> memoryview:
    """Its bytes, not copied."""
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data


def store(data: bytearray | memoryview) -> torch.UntypedStorage:
    """A new storage with these bytes."""
    return fill(torch.UntypedStorage(len(data)), data)


def fill(storage: torch.UntypedStorage, data: bytearray | memoryview) -> torch.UntypedStorage:
    """The storage, with these bytes."""
    if len(storage) != len(data):
        storage.resize_(len(data))
    if data:
        storage.copy_(torch.frombuffer(data, dtype=torch.uint8).untyped_storage(), False)
    return storage


def _new(
    kind: type[torch.Tensor],
    dtype: torch.dtype,
    storage: torch.UntypedStorage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    attributes: dict[str, Any],
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, offset, size, stride)
    if kind is torch.nn.Parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        tensor.requires_grad_(requires_grad)
    vars(tensor).update(attributes)
    return tensor


def _show(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    storage: torch.UntypedStorage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    attributes: dict[str, Any],
) -> torch.Tensor:
    if tensor.is_leaf:
        tensor.requires_grad_(False)  # it may become one of whole numbers, which have no gradients
    tensor.data = _new(torch.Tensor, dtype, storage, offset, size, stride, False, {})
    if tensor.is_leaf:
        tensor.requires_grad_(requires_grad)
    vars(tensor).clear()
    vars(tensor).update(attributes)
    return tensor
