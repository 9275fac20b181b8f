"""Modules that are cut over the ranks of a group: what each rank is handed, and what it should then have.

In a case's inputs "full.NAME" is a parameter of the whole module, and "noise.NAME" holds for each rank what
stands in the places of other ranks' blocks in its copy of it. The others carry the index of the group they
are for as their first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, PlainSeat, State, Use, call, nbytes, observe, same, train
from labkit.checks.shared.holding import held_since, holding
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.places import Place, enter_group, groups_of, place_of
from labkit.checks.shared.worked import Worked


@dataclass(frozen=True)
class Drawn:
    """A tensor that is drawn for each group: its shape, the dimension along which it is divided among the
    ranks (None: each has it whole), for whole numbers, what they are below, and the shape it has in the last
    step of training, where that is another one.
    """

    shape: tuple[int, ...]
    cut: int | None = None
    below: int = 0
    later: tuple[int, ...] = ()

    def at(self, step: int) -> Drawn:
        """What is drawn for a step of training."""
        return replace(self, shape=self.later) if self.later and step == STEPS - 1 else self


@dataclass(frozen=True)
class Split:
    """How a module is made whole, cut by the student, fed and run.

    plain: (case) -> the whole module, in stock PyTorch, with the case's dtype.
    build: (rank, whole module, group) -> the student's part.
    cut: (whole state, position, size) -> the state of the part at that position of a group of that size.
    drawn: (case) -> the tensors of a case: the arguments, and grad_output where there is one.
    arguments: names of those that are handed over.
    use: (module, whole or cut; arguments) -> what it gives.
    """

    plain: Callable[[Case], nn.Module]
    build: Callable[[Rank, nn.Module, dist.ProcessGroup], nn.Module]
    cut: Callable[[Mapping[str, Tensor], int, int], State]
    drawn: Callable[[Case], Mapping[str, Drawn]]
    arguments: tuple[str, ...] = ("x",)
    use: Use = call

    def run(self, on_rank: Callable[[Rank, Split], None]) -> Run:
        """A run in which each rank is handed its tensors and its blocks, and `on_rank` uses them."""
        return Run(
            lambda rank: on_rank(rank, self), self.inputs, self.hand, partial(SplitEvidence, split=self)
        )

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """Parameters, noise, and for each group its own arguments of several steps, and gradient."""
        found: Inputs = {}
        for name, tensor in self.plain(case).named_parameters():
            found[f"full.{name}"] = drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
            found[f"noise.{name}"] = drawn(case, generator, case.ranks, *tensor.shape)
        for name, about in self.each_step(case).items():
            shape = (len(groups_of(case)), *about.shape)
            if about.below:
                found[name] = torch.randint(about.below, shape, generator=generator)
            else:
                found[name] = drawn(case, generator, *shape)
        return found

    def hand(self, case: Case, inputs: Inputs, rank: int) -> Inputs:
        """This rank's tensors, and parameters that hold the true numbers in its own blocks only."""
        place = place_of(case, rank)
        found = {n: place.block(inputs[n][place.index], d.cut) for n, d in self.each_step(case).items()}
        full = under("full.", inputs)
        for name, own in self.own_numbers(full, place).items():
            found[f"full.{name}"] = torch.where(own, full[name], inputs[f"noise.{name}"][rank])
        return found

    def each_step(self, case: Case) -> dict[str, Drawn]:
        """What is drawn, and the arguments of each step of training."""
        found = dict(self.drawn(case))
        return found | {f"{n}{i}": found[n].at(i) for i in range(STEPS) for n in self.arguments}

    def own_numbers(self, full: Mapping[str, Tensor], place: Place) -> dict[str, Tensor]:
        """Where in each parameter the numbers of a rank's part stand."""
        return numbers_taken(full, lambda state: self.cut(state, place.position, place.size))

    def handed(self, rank: Rank, view: Callable[[Tensor], Tensor] = torch.clone) -> nn.Module:
        """The whole module as this rank is handed it, on its device; view: copies its matrices."""
        full = loaded(self.plain(rank.case).to(rank.device), under("full.", rank.inputs))
        for matrix in (each for each in full.parameters() if each.dim() > 1):
            matrix.data = view(matrix.data)
        return full


# -- on a rank


def use_part(rank: Rank, split: Split) -> None:
    """Build the part, run it forward and backward, and without gradients, train it for some steps, and report
    everything. In the steps nothing that is handed over asks for a gradient.

    Answers: full.NAME (the whole module, as it was afterwards), what `observe` and `train` report; evaluated,
    the output in evaluation, and asked, whether what was handed over for it asks for a gradient afterwards;
    and, as "... later", what the first call was given and gave, once all is over.
    Facts: shapes, held_bytes, shared (parameters and buffers in the whole module's memory), replaced
    (attributes of the whole module that are others than before), products (operations of a forward's matrix
    products), made (elements that all its operations make), left_bytes (of tensors that calls left in
    attributes of the part).
    """
    build_and_use(rank, split)


def use_views(rank: Rank, split: Split) -> None:
    """As `use_part`, with tensors whose memory is in another order, on every second rank: where ranks add up
    in the order of memory, their numbers do not meet. There the whole module's matrices are laid out so too.
    """
    build_and_use(rank, split, torch.clone if rank.rank % 2 else in_another_order)


def in_another_order(tensor: Tensor) -> Tensor:
    """A copy whose memory has the first two dimensions exchanged."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def build_and_use(rank: Rank, split: Split, view: Callable[[Tensor], Tensor] = torch.clone) -> nn.Module:
    """What `use_part` does; returns the part. view: copies what is handed over, perhaps in another layout."""
    group = enter_group(rank)
    before = holding()
    full = split.handed(rank, view)
    attributes = _attributes(full)
    with numbers_given() as given:
        part = split.build(rank, full, group)
    rank.fact("replaced", _replaced(attributes, _attributes(full)))
    for name, weight in full.named_parameters():
        rank.answer(f"full.{name}", weight)
    rank.fact("shared", _in_memory_of(full, part))
    sent = sum(map(nbytes, under("full.", rank.inputs).values()))  # copies, alive until the job ends
    del full, weight, attributes
    rank.fact("held_bytes", held_since(before) + given.kept_bytes - sent)
    rank.fact("shapes", {name: list(p.shape) for name, p in part.named_parameters()})
    at_rest = _tensors_in(part).keys()
    worked = _through_its_paces(rank, split, part, rank.inputs, view)
    rank.fact("products", worked.products)
    rank.fact("made", worked.made)
    rank.fact("left_bytes", sum(n for key, n in _tensors_in(part).items() if key not in at_rest))
    return part


def _tensors_in(part: nn.Module) -> dict[int, int]:
    """Address -> bytes of the memory behind every tensor in an attribute of a module or its parts, or in a
    list, tuple, set or dict there; gradients apart.
    """
    tensors: list[object] = []
    for value in _attributes(part).values():
        tensors += value.values() if isinstance(value, dict) else [value]
        tensors += value if isinstance(value, (list, tuple, set)) else []
    behind = (t.untyped_storage() for t in tensors if isinstance(t, Tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in behind}


def _attributes(module: nn.Module) -> dict[str, object]:
    """Everything that a module and its parts hold, parameters, hooks and settings alike, by name."""
    found: dict[str, object] = {}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{name}.{key}.{inner}".strip("."): each for inner, each in entries}
    return found


def _replaced(before: Mapping[str, object], after: Mapping[str, object]) -> list[JSON]:
    """Names of attributes that are not the same objects, or are there only before or after."""
    there = before.keys() & after.keys()
    return sorted((before.keys() ^ after.keys()) | {n for n in there if before[n] is not after[n]})


def _in_memory_of(full: nn.Module, part: nn.Module) -> list[JSON]:
    """Names of the part's tensors that lie in the memory of the whole module's."""
    theirs = {t.untyped_storage().data_ptr() for t in (*full.parameters(), *full.buffers()) if t.numel()}
    mine = (*part.named_parameters(), *part.named_buffers())
    return [name for name, tensor in mine if tensor.untyped_storage().data_ptr() in theirs]


def _through_its_paces(
    seat: Rank | PlainSeat,
    split: Split,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    view: Callable[[Tensor], Tensor],
) -> Worked:
    """What `use_part` does with a module, whole or cut. Returns what a forward worked."""

    def arguments(step: object = "") -> list[Tensor]:
        return [view(inputs[f"{name}{step}"]) for name in split.arguments]

    worked = Worked()

    def use(module: nn.Module, handed: Sequence[Tensor]) -> Tensor:
        with worked:
            return split.use(module, handed)

    gradient = view(inputs["grad_output"]) if "grad_output" in inputs else None
    handed = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in arguments()]
    out = observe(seat, module, handed, gradient, use)
    _infer(seat, split, module, arguments())
    train(seat, module, [arguments(step) for step in range(STEPS)], split.use)
    for name, tensor in zip(split.arguments, handed, strict=True):
        seat.answer(f"{name} later", tensor)
    seat.answer("output later", out)
    return worked


def _infer(seat: Rank | PlainSeat, split: Split, module: nn.Module, data: Sequence[Tensor]) -> None:
    """A call in evaluation mode, without gradients."""
    module.eval()
    with torch.no_grad():
        seat.answer("evaluated", split.use(module, data))
    seat.answer("asked", torch.tensor(any(tensor.requires_grad for tensor in data)))
    module.train()


def change_blocks(rank: Rank, split: Split) -> None:
    """Run the part as it is, with the blocks of other ranks changed, and with its own blocks changed.

    Answers: output.plain, output.others, output.own.
    """
    plain = under("full.", rank.inputs)
    changed = {name: 1.0 - 0.5 * tensor for name, tensor in plain.items()}
    mine = split.own_numbers(plain, place_of(rank.case, rank.rank))
    for run, (outside, inside) in {
        "plain": (plain, plain),
        "others": (changed, plain),
        "own": (plain, changed),
    }.items():
        state = {n: torch.where(own, inside[n], outside[n]) for n, own in mine.items() if not own.all()}
        full = loaded(split.plain(rank.case).to(rank.device), plain | state)
        part = split.build(rank, full, rank.group)
        rank.answer(f"output.{run}", split.use(part, [rank.inputs[n].clone() for n in split.arguments]))


def ask_for_the_impossible(rank: Rank, split: Split) -> None:
    """Ask for a part of a module whose sizes do not divide. Fact: refusal."""
    full, group = split.plain(rank.case).to(rank.device), enter_group(rank)
    with rank.expect_error("refusal"):
        split.build(rank, full, group)


def impossible(split: Split) -> Run:
    """A run of cases whose sizes do not divide: nothing is drawn for them."""
    return Run(partial(ask_for_the_impossible, split=split))


# -- in the judge


@dataclass(frozen=True)
class SplitEvidence(Evidence):
    """One case's answers, to be held against the whole module."""

    split: Split

    @cached_property
    def references(self) -> list[State]:
        """For each group, every tensor its ranks report, as the whole module gives it."""
        return [tensors for tensors, _ in self._runs]

    @property
    def products(self) -> int:
        """Operations of matrix products in a forward of the whole module."""
        return self._runs[0][1].products

    @property
    def made(self) -> int:
        """Elements that all operations of a forward of the whole module make together."""
        return self._runs[0][1].made

    @cached_property
    def _runs(self) -> list[tuple[State, Worked]]:
        return [self._reference(index) for index in range(len(groups_of(self.case)))]

    def _reference(self, index: int) -> tuple[State, Worked]:
        seat, full = PlainSeat(), self.split.plain(self.case)
        loaded(full, under("full.", self.inputs))
        given = {name: self.inputs[name][index] for name in self.split.each_step(self.case)}
        worked = _through_its_paces(seat, self.split, full, given, torch.clone)
        return seat.tensors, worked

    def reference(self, answer: RankAnswer) -> State:
        """The tensors of the whole module that a rank's group was to compute."""
        return self.references[place_of(self.case, answer.rank).index]

    def blocks(self, state: Mapping[str, Tensor], answer: RankAnswer) -> State:
        """A rank's part of a state of the whole module."""
        place = place_of(self.case, answer.rank)
        return self.split.cut(state, place.position, place.size)

    def bytes_of(self, name: str) -> int:
        """Bytes of one of the case's tensors, whole."""
        return nbytes(self.inputs[name][0])

    def activation(self, name: str, answer: RankAnswer) -> Finding:
        """Whether a rank's "output", "evaluated" or "input_grad" is its part of the whole module's."""
        handed = self.split.arguments[0] if name == "input_grad" else "grad_output"
        about = self.split.drawn(self.case).get(handed, Drawn(()))
        what = {"output": "output", "evaluated": "output in evaluation, without gradients"}.get(
            name, f"gradient of {handed}"
        )
        place = place_of(self.case, answer.rank)
        part = (
            "" if about.cut is None else f"block {place.position} of {place.size} along dim {about.cut} of "
        )
        told = f"{part}the whole module's {what}"
        return same(told, place.block(self.reference(answer)[name], about.cut), answer, name)

    def untouched(self, answer: RankAnswer) -> Iterator[Finding]:
        """Whether what the first call was given and gave is still the same after later calls."""
        place, state = place_of(self.case, answer.rank), self.reference(answer)
        drawn_for_it = self.split.drawn(self.case)
        for name in self.split.arguments:
            given = place.block(self.inputs[name][place.index], drawn_for_it[name].cut)
            yield same(f"{name} as it was handed over", given, answer, f"{name} later")
        cut = drawn_for_it.get("grad_output", Drawn(())).cut
        told = "the output of a call as it was, after later calls"
        yield same(told, place.block(state["output"], cut), answer, "output later")
        told = "whether what was handed over asks for a gradient, as before"
        yield same(told, state["asked"], answer, "asked")

    def parameters(self, kind: str, answer: RankAnswer, only: str = "") -> Iterator[Finding]:
        """Whether a rank's gradients ("grad") or trained values ("trained") are its blocks of the whole
        module's; only: of one parameter.
        """
        what = "gradient of" if kind == "grad" else f"value after {STEPS} steps of SGD of"
        for name, expected in self.blocks(under(f"{kind}.", self.reference(answer)), answer).items():
            if only in ("", name):
                told = f"{what} {name}: this rank's block of the whole module's"
                yield same(told, expected, answer, f"{kind}.{name}")


# -- small helps


def numbers_taken(
    full: Mapping[str, Tensor], cut: Callable[[Mapping[str, Tensor]], State]
) -> dict[str, Tensor]:
    """Where in each parameter the numbers stand that `cut` takes for a rank's part: they are counted, and the
    counts are cut.
    """
    numbered, count = {}, 1
    for name, tensor in full.items():
        numbered[name] = torch.arange(count, count + tensor.numel(), device=tensor.device).view(tensor.shape)
        count += tensor.numel()
    taken = torch.cat([t.flatten() for t in cut(numbered).values()])
    return {name: torch.isin(counts, taken) for name, counts in numbered.items()}


def by_dims(**dims: int | None) -> Callable[[Mapping[str, Tensor], int, int], State]:
    """A `cut` by one dimension for each parameter; None where every rank has it whole."""

    def cut(full: Mapping[str, Tensor], position: int, size: int) -> State:
        return {n: Place(0, list(range(size)), position).block(t, dims[n]) for n, t in full.items()}

    return cut


def under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """The tensors whose names begin with a prefix, named without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def loaded(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """`module`, with copies of `state` as its parameters; a parameter with two names has one entry."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(state[name])
    return module


def dtype_of(case: Case) -> torch.dtype:
    """The dtype a case works in: its parameter `dtype`, or float64."""
    return getattr(torch, case.params.get("dtype", "float64"))


def drawn(case: Case, generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in the case's dtype."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype_of(case))
