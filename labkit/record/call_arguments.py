"""What a call's arguments say: the peer, and how many bytes of what goes where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit.record.entry import Entry

PEER = {"send": "dstRank", "recv": "srcRank"}  # torch's names of the argument


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    """The argument in this position, or by this name; None where it is not given."""
    return args[position] if position < len(args) else kwargs.get(name)


def member(entry: Entry, peer: int) -> int:
    """The global rank of a group's rank. torch does not look whether it has that one: gloo waits for ever."""
    if not 0 <= peer < len(entry.members):
        towards = "to" if entry.op == "send" else "from"
        last = len(entry.members) - 1
        raise ValueError(f"{entry.op} {towards} rank {peer} of a group that has ranks 0 to {last}")
    return entry.members[peer]


def measure(entry: Entry, value: Any, dtypes: dict[torch.dtype, str]) -> None:
    """Fill in bytes, and the first tensor's shape and dtype. `value`: a tensor, or lists of them."""
    while type(value) is list and len(value) == 1:
        value = value[0]
    tensors = [value] if isinstance(value, torch.Tensor) else _flatten(value or ())
    if not tensors:
        entry.num_bytes, entry.shape, entry.dtype = 0, (), ""
        return
    first = tensors[0]
    entry.num_bytes = first.nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
    entry.shape = tuple(first.shape)
    dtype = first.dtype
    entry.dtype = dtypes.get(dtype) or dtypes.setdefault(dtype, str(dtype).removeprefix("torch."))


def exchanged(
    args: tuple[Any, ...], kwargs: dict[str, Any], ranks: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each part that an all-to-all sends and expects, in the order of the group's ranks."""
    into, given = argument(args, kwargs, 0, "output"), argument(args, kwargs, 1, "input")
    if not isinstance(given, torch.Tensor):
        return tuple(t.nbytes for t in _flatten(given)), tuple(t.nbytes for t in _flatten(into))
    sent = _part_bytes(given, argument(args, kwargs, 3, "input_split_sizes"), ranks)
    return sent, _part_bytes(into, argument(args, kwargs, 2, "output_split_sizes"), ranks)


def _part_bytes(tensor: torch.Tensor, splits: Sequence[int] | None, ranks: int) -> tuple[int, ...]:
    """Bytes of the parts of a tensor that is cut by rows; () where torch will say that it cannot be cut."""
    rows = tensor.shape[0] if tensor.dim() else 0
    even = splits is None or not len(splits)
    sizes = [rows // ranks] * ranks if even else [int(size) for size in splits or ()]
    if sum(sizes) != rows:
        return ()
    return tuple(size * (tensor.nbytes // max(1, rows)) for size in sizes)


def _flatten(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _flatten(part)]
