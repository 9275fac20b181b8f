"""What the saves of a case are given: other numbers in each, and each rank its shards of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.shared.split import drawn, under


def part_of(flat: Tensor, position: int, size: int) -> Tensor:
    """A rank's shard of a flat tensor, padded with zeros."""
    padding = -flat.numel() % size
    return torch.cat([flat, flat.new_zeros(padding)]).chunk(size)[position] if flat.numel() else flat


def owned_by(flat: Tensor, position: int, size: int) -> Tensor:
    """What a rank's shard holds of a flat tensor, without padding."""
    share = -(-flat.numel() // size)
    return flat[position * share : (position + 1) * share]


@dataclass(frozen=True)
class Save:
    """One of the saves of a case: the how manieth, of which step, by how many ranks, from which on."""

    turn: int
    step: int
    first: int
    ranks: int

    @property
    def members(self) -> range:
        """The ranks that save."""
        return range(self.first, self.first + self.ranks)

    @property
    def extra(self) -> JSON:
        """What goes with it."""
        run = {"name": 'Zoë "1"\n', "seeds": [], "of": {"tokens": 1e12}}
        counts = {"step count": self.turn + 7, "learning rate": 0.125, "order": [3, 1, 2]}
        others_names = {"step": self.turn - 1, "ranks": "all", "totals": {"weights": 0.5}, "extra": True}
        return {**counts, **others_names, "best loss": None, "done": False, "run": run}

    def tensors(self, inputs: Inputs) -> Inputs:
        """What this save is given of all that was drawn, or of what a rank was handed."""
        return under(f"{self.turn}.", inputs)


def saves(case: Case) -> list[Save]:
    """In their order: all ranks save, but where the case says `saved_by`, [first rank, how many] of each."""
    steps = case.params["steps"]
    saved_by = case.params.get("saved_by", [[0, case.ranks]] * len(steps))
    both = enumerate(zip(steps, saved_by, strict=True))
    return [Save(turn, step, first, ranks) for turn, (step, (first, ranks)) in both]


def saved_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Flat tensors by save and name, in the dtypes the case says: other numbers in each save."""
    return {
        f"{save.turn}.{name}": _in_dtype(drawn(case, generator, total), getattr(torch, dtype))
        for save in saves(case)
        for name, (total, dtype) in case.params["tensors"].items()
    }


def _in_dtype(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers are as large as their dtype holds, complex ones have two parts; the negative ones are
    True.
    """
    if dtype == torch.bool:
        return numbers < 0
    if dtype.is_complex:
        return torch.complex(numbers, 1 - numbers).to(dtype)
    if dtype.is_floating_point:
        return numbers.to(dtype)
    whole = 0.1 * torch.iinfo(dtype).max * numbers
    return (whole if dtype.is_signed else whole.abs()).to(dtype)


def hand_shards(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """This rank's shards of the saves that it takes part in."""
    return {
        f"{save.turn}.{name}": part_of(flat, rank - save.first, save.ranks).clone()
        for save in saves(case)
        for name, flat in save.tensors(inputs).items()
        if rank in save.members
    }


def overlaps(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of those that lie where another one does, if only in part, or are of one storage, which is
    there as long as one of them.
    """
    filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    spans = sorted((*_span(tensor), name) for name, tensor in filled.items())
    both = [(before, after) for before, after in pairwise(spans) if after[0] < before[1]]
    storages = {name: tensor.untyped_storage().data_ptr() for name, tensor in filled.items()}
    times = Counter(storages.values())
    together = {name for name, storage in storages.items() if times[storage] > 1}
    return sorted(together | {name for pair in both for *_, name in pair})


def _span(tensor: Tensor) -> tuple[int, int]:
    """Where in memory a tensor begins, and where it ends."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def totals_of(case: Case) -> dict[str, int]:
    """Name -> elements of the flat tensor without padding."""
    return {name: total for name, (total, _) in case.params["tensors"].items()}
