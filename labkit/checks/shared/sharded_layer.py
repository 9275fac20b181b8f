"""Puts a layer that is cut over ranks through its paces: the rank side of every tensor-parallel check.

A `Split` says how a layer is cut; from it follow what each rank is handed and what it should report. In a
case's inputs, "full.NAME" is a parameter of the unsharded layer, and x, grad_output and the targets carry the
index of the group they are for as their first dimension.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.rank import Rank
from labkit.checks.shared.places import Place, enter_group, place_of

LEARNING_RATE = 0.02
STEPS = 2


@dataclass(frozen=True)
class Split:
    """How a layer is cut: the dimension along which each tensor is divided; None where every rank has it all.

    plain: the unsharded layer of a case, in stock PyTorch.
    from_plain: (rank, unsharded layer, group) -> the student's layer.
    """

    parameters: Mapping[str, int | None]
    input_dim: int | None
    output_dim: int | None
    plain: Callable[[Case], nn.Module]
    from_plain: Callable[[Rank, nn.Module, dist.ProcessGroup], nn.Module]

    def dim_of(self, name: str) -> int | None:
        """How a reported tensor ("output", "input_grad", "grad.weight", "trained.bias") is cut."""
        kind, _, parameter = name.partition(".")
        whole = {"output": self.output_dim, "input_grad": self.input_dim}
        return whole[kind] if kind in whole else self.parameters[parameter]


def charged(case: Case, property_name: str) -> str:
    """The property an error is held against: this one, or what the case is about when it is about another."""
    return property_name if property_name in case.properties else case.properties[0]


def full_weights(inputs: Inputs) -> dict[str, Tensor]:
    """The unsharded layer's parameters."""
    return {name.removeprefix("full."): t for name, t in inputs.items() if name.startswith("full.")}


def loaded(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """`module`, with copies of `tensors` as its parameters."""
    module.load_state_dict({name: t.clone() for name, t in tensors.items()})
    return module


def use_layer(rank: Rank, split: Split) -> None:
    """Build the layer, run it forward and backward, train it for two steps, and report everything.

    Answers: full.NAME (the layer handed over, as it was afterwards), output, input_grad, grad.NAME,
    trained.NAME. Facts: shapes, held_bytes.
    Recordings: forward, backward.
    """
    group, place = enter_group(rank), place_of(rank.case, rank.rank)
    before = storages()
    full = loaded(split.plain(rank.case).to(rank.inputs["x"].device), full_weights(rank.inputs))
    layer = split.from_plain(rank, full, group)
    for name, parameter in full.named_parameters():
        rank.answer(f"full.{name}", parameter)
    sent = sum(t.nbytes for t in full_weights(rank.inputs).values())  # copies, alive until the job ends
    del full, parameter
    rank.fact("held_bytes", sum(n for key, n in storages().items() if key not in before) - sent)
    rank.fact("shapes", {name: list(p.shape) for name, p in layer.named_parameters()})
    x = _own(rank.inputs["x"], place, split.input_dim).requires_grad_()
    with rank.recording("forward"):
        out = layer(x)
    rank.answer("output", out)
    with rank.attempt(charged(rank.case, "input-gradients")), rank.recording("backward"):
        out.backward(_own(rank.inputs["grad_output"], place, split.output_dim))
    rank.answer("input_grad", x.grad)
    for name, parameter in layer.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)
    with rank.attempt(charged(rank.case, "trained-weights")):
        train(layer, [_batch(rank, split, place, step) for step in range(STEPS)])
    for name, parameter in layer.named_parameters():
        rank.answer(f"trained.{name}", parameter)


def train(layer: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """One step of plain SGD on the summed squared error for each (x, target).

    Written out, because creating a torch.optim optimizer imports torch's compiler: seconds on every rank.
    """
    for x, target in batches:
        layer.zero_grad()
        (layer(x) - target).square().sum().backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)


def _batch(rank: Rank, split: Split, place: Place, step: int) -> tuple[Tensor, Tensor]:
    x = _own(rank.inputs[f"x{step}"], place, split.input_dim)
    return x, _own(rank.inputs[f"target{step}"], place, split.output_dim)


def _own(of_all_groups: Tensor, place: Place, dim: int | None) -> Tensor:
    """A copy of what this rank is handed of its group's tensor."""
    return place.block(of_all_groups[place.index], dim).clone()


def storages() -> dict[int, int]:
    """Address -> bytes of the memory behind every tensor that Python can reach now."""
    tensors = (t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.layout is torch.strided)
    behind = (t.untyped_storage() for t in tensors if not t.is_meta)
    return {s.data_ptr(): s.nbytes() for s in behind if s.nbytes()}


def change_blocks(rank: Rank, split: Split) -> None:
    """Run the layer as it is, with the blocks of other ranks changed, and with its own blocks changed.

    Answers: output.plain, output.others, output.own.
    """
    place = place_of(rank.case, rank.rank)
    plain = full_weights(rank.inputs)
    noise = {name: rank.inputs[f"noise.{name}"][place.position] for name in plain}
    for run, (outside, inside) in {
        "plain": (plain, plain),
        "others": (noise, plain),
        "own": (plain, noise),
    }.items():
        tensors = {n: _with_block(outside[n], inside[n], place, split.parameters[n], plain[n]) for n in plain}
        full = loaded(split.plain(rank.case).to(rank.inputs["x"].device), tensors)
        layer = split.from_plain(rank, full, rank.group)
        rank.answer(f"output.{run}", layer(_own(rank.inputs["x"], place, split.input_dim)))


def _with_block(outside: Tensor, inside: Tensor, place: Place, dim: int | None, replicated: Tensor) -> Tensor:
    """`outside`, with this rank's block taken from `inside`; `replicated` for what is not cut."""
    if dim is None:
        return replicated
    result = outside.clone()
    place.block(result, dim).copy_(place.block(inside, dim))
    return result


def meet_uneven_sizes(rank: Rank, split: Split) -> None:
    """Ask for a layer whose sizes do not divide. Fact: refusal."""
    full = split.plain(rank.case)
    with rank.expect_error("refusal"):
        split.from_plain(rank, full, rank.group)


def dtype_of(case: Case) -> torch.dtype:
    """The dtype a case works in: its parameter `dtype`, or float64."""
    return getattr(torch, case.params.get("dtype", "float64"))


def drawn(case: Case, generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in the case's dtype."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype_of(case))
