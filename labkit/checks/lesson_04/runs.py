"""Runs the student's executor on a rank, and watches the stages meanwhile: rank side of 04.run-schedule."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON
from labkit.checks.lesson_04.memory import memory_beyond
from labkit.checks.lesson_04.model import (
    Stage,
    build_stages,
    came_back,
    dtype_of,
    entered,
    input_width,
    last_stage,
    leading_shape,
    loss_fn,
    micro_batches,
    named_parameters,
    stages_of,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import LEARNING_RATE, STEPS
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.worked import Worked
from labkit.pipeline import PipelinePart, TiedWeight
from labkit.theory.schedule import Action

WITH_BACKWARD = 3  # times the products of a forward: those for the input's and the weight's gradient too


class Saved:
    """A tensor that autograd keeps for a backward; how long this object lives is how long it is kept."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Alive:
    """How many of some things are there at once, whoever holds them."""

    def __init__(self) -> None:
        self.most = 0
        self._now: set[int] = set()

    def add(self, thing: object) -> None:
        """A thing that is there from now on, until it is given up."""
        self._now.add(id(thing))
        self.most = max(self.most, len(self._now))
        weakref.finalize(thing, self._now.discard, id(thing))


class Watch:
    """What happens in this rank's stages, in order, and how many forwards are kept for their backward."""

    def __init__(self) -> None:
        self.log: list[list[JSON]] = []  # [kind, stage, which of the stage's forwards]
        self.peak = 0
        self.inputs, self.gradients = Alive(), Alive()  # what came into the stages by mail
        self.values: dict[str, Tensor] = {}  # what each action was done with
        self._alive: dict[tuple[int, int], int] = {}

    def keep(self, key: tuple[int, int], tensor: Tensor) -> Saved:
        """Called by autograd for each tensor it saves."""
        saved = Saved(tensor.detach())
        self._alive[key] = self._alive.get(key, 0) + 1
        self.peak = max(self.peak, len(self._alive))
        weakref.finalize(saved, self._gone, key)
        return saved

    def _gone(self, key: tuple[int, int]) -> None:
        self._alive[key] -= 1
        if not self._alive[key]:
            del self._alive[key]


class WatchedStage(nn.Module):
    """A stage of which a watch hears.

    run: runs the stage and tells it; what it knows is out of the student's reach.
    """

    def __init__(self, stage: Stage, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stage, self.run = stage, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def watched(
    stage: Stage, number: int, watch: Watch, from_before: bool = False, from_behind: bool = False
) -> WatchedStage:
    """A stage that tells a Watch about its forwards, its backwards, and what they keep. from_before,
    from_behind: whether activations, and gradients, come from another rank, in memory of their own, which is
    what is watched then.
    """
    forwards = itertools.count()

    def run(x: Tensor) -> Tensor:
        which = next(forwards)
        watch.log.append(["forward", number, which])
        watch.values[entered(number, which)] = x.detach().clone()
        if number:
            watch.inputs.add(x.untyped_storage() if from_before else x)
        keep = partial(watch.keep, (number, which))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor):
            out = stage(x)
        if out.requires_grad:
            out.register_hook(partial(back, which))
        return out

    def back(which: int, grad: Tensor) -> None:
        watch.log.append(["backward", number, which])
        watch.values[came_back(number, which)] = grad.detach().clone()
        if from_behind:
            watch.gradients.add(grad.untyped_storage())

    return WatchedStage(stage, run)


def nobody(stage: int) -> None:
    """Nobody waits for single stages' gradients."""


def actions_of(rank: Rank) -> list[Action]:
    """This rank's list of the case's schedule."""
    position = place_of(rank.case, rank.rank).position
    return [Action(*action) for action in rank.params["lists"][position]]


def hash_as_elsewhere(rank: Rank) -> None:
    """Give the student's code a `hash` that is another one on each rank for what has text in it, as it is in
    processes that are started one by one: these ranks are forked from one process and would hash alike.
    """

    def salted(value: object, /) -> int:
        return hash((f"rank {rank.rank}", value)) if _has_text(value) else hash(value)

    vars(rank.student).setdefault("hash", salted)


def _has_text(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes)


def _run_counted(rank: Rank, stages: dict[int, Stage], run: Callable[[], object]) -> object:
    """What a run gives. Facts: products, its operations of matrix products; share, those of one forward and
    one backward of each micro-batch on these stages.
    """
    with Worked() as worked:
        returned = run()
    _report_products(rank, stages, worked)
    return returned


def _report_products(rank: Rank, stages: dict[int, Stage], worked: Worked) -> None:
    rank.fact("products", worked.products)
    rank.fact("share", WITH_BACKWARD * _products_of_forwards(rank, stages))


def _products_of_forwards(rank: Rank, stages: dict[int, Stage]) -> int:
    handed = micro_batches(rank.case, rank.inputs, 0)
    with torch.no_grad(), Worked() as worked:
        for number, stage in stages.items():
            for i, (x, _) in enumerate(handed):
                shape = (*leading_shape(rank.case, 0, i), input_width(rank.case, number))
                stage(x if number == 0 else torch.zeros(shape, dtype=dtype_of(rank.case)))
    return worked.products


def use_executor(rank: Rank, before: float = 0.0) -> None:
    """Run one batch and report everything. before: what is in the gradients of all that is trained when it
    begins, if anything, and is taken off again.

    Answers: output (the loss), grad.NAME, and what `entered` and `came_back` name. Facts: log, peak, inputs,
    gradients, graph, products, share. Recording: messages.
    """
    group, stages, watch = enter_group(rank), own_stages(rank), Watch()
    parameters = [p for p in _parameters(stages) if before and p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, before)
    part = make_part(rank, stages, 0, watch)
    with rank.recording("messages"):
        loss = _run_counted(rank, stages, lambda: rank.student.run_schedule(part, actions_of(rank), group))
    _report_run(rank, loss, watch)
    for parameter in parameters:
        parameter.grad = None if parameter.grad is None else parameter.grad - before
    _report_gradients(rank, stages)


def use_one_step(rank: Rank) -> None:
    """As `use_executor`, by one call of `train_step`: the gradients are those that the optimizer meets. Where
    the case says `apart`, texts hash as in processes of their own. Fact: changed, what is wrong with the
    micro-batches afterwards.
    """
    if rank.params.get("apart"):
        hash_as_elsewhere(rank)
    group, stages, watch = enter_group(rank), own_stages(rank), Watch()
    part = make_part(rank, stages, 0, watch)
    optimizer = _optimizer(stages)
    optimizer.register_step_pre_hook(lambda *_: _report_gradients(rank, stages))
    with rank.recording("messages"):
        loss = _run_counted(
            rank, stages, lambda: rank.student.train_step(part, actions_of(rank), optimizer, group)
        )
    _report_run(rank, loss, watch)
    rank.fact("changed", _changed(part.micro_batches, micro_batches(rank.case, rank.inputs, 0)))


def use_one_step_in_memory(rank: Rank) -> None:
    """As `use_one_step`. Facts, of longer runs: beyond, bytes beyond what their lists have the rank
    keep; left, those that are there when a run is over.
    """
    use_one_step(rank)
    beyond = memory_beyond(rank)
    rank.fact("beyond", beyond.during)
    rank.fact("left", beyond.after)


def _changed(now: Sequence[tuple[Tensor, Tensor]], handed: Sequence[tuple[Tensor, Tensor]]) -> list[JSON]:
    """What is wrong with micro-batches, beside those that were handed over."""
    if len(now) != len(handed):
        return [f"{len(now)} micro-batches instead of {len(handed)}"]
    wrong: list[JSON] = []
    for i, (pair, as_it_was) in enumerate(zip(now, handed, strict=True)):
        tensors = list(zip(pair, as_it_was, strict=True))
        if any(a.requires_grad for a, _ in tensors):
            wrong.append(f"micro-batch {i} requires a gradient")
        if not all(torch.equal(a.detach().nan_to_num(), b.nan_to_num()) for a, b in tensors):
            wrong.append(f"micro-batch {i} has other numbers")
    return wrong


def _report_run(rank: Rank, loss: object, watch: Watch) -> None:
    rank.answer("output", as_answer(loss))
    rank.fact("graph", isinstance(loss, Tensor) and loss.requires_grad)
    rank.fact("returned", f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__)
    _report_watched(rank, watch)


def _report_watched(rank: Rank, watch: Watch) -> None:
    rank.fact("log", watch.log)
    rank.fact("peak", watch.peak)
    rank.fact("inputs", watch.inputs.most)
    rank.fact("gradients", watch.gradients.most)
    for name, tensor in watch.values.items():
        rank.answer(name, tensor)


def _report_gradients(rank: Rank, stages: dict[int, Stage]) -> None:
    for name, parameter in named_parameters(stages):
        rank.answer(f"grad.{name}", parameter.grad)


def _optimizer(stages: dict[int, Stage]) -> torch.optim.Optimizer:
    """Plain SGD. On a rank without a stage it has something else: torch refuses an optimizer of nothing."""
    return torch.optim.SGD(_parameters(stages) or [nn.Parameter(torch.zeros(()))], lr=LEARNING_RATE)


def _parameters(stages: dict[int, Stage]) -> list[nn.Parameter]:
    """Each parameter once."""
    return list(dict.fromkeys(p for _, p in named_parameters(stages)))


def take_steps(rank: Rank) -> None:
    """Two steps of the student's `train_step` on two batches, by one list; some other batch's gradients are
    there when they begin. Answers: trained.NAME, and the first step's as of `use_executor`, but for its
    gradients. Facts: as there, of the first step; again, the second's log. Recordings: messages, of each.
    """
    stages, actions = own_stages(rank), actions_of(rank)
    optimizer = _optimizer(stages)
    for parameter in _parameters(stages):
        parameter.grad = torch.ones_like(parameter)
    for step in range(STEPS):
        watch = Watch()
        part = make_part(rank, stages, step, watch)
        with rank.recording("messages"), Worked() as worked:
            loss = rank.student.train_step(part, actions, optimizer, rank.group)
        if step == 0:
            _report_run(rank, loss, watch)
            _report_products(rank, stages, worked)
        else:
            rank.fact("again", watch.log)
    for name, parameter in named_parameters(stages):
        rank.answer(f"trained.{name}", parameter)


def use_ready_hook(rank: Rank) -> None:
    """Note when each stage's gradients are said to be ready, and what they are then. Answer: shared, the tied
    weight's gradient in the end, and what `entered` and `came_back` name. Facts: log, peak, products, share;
    early, the stages at whose moment it was that already. Recording: messages.
    """
    stages, watch = own_stages(rank), Watch()
    halves: dict[int, Tensor] = {}

    def ready(stage: int) -> None:
        watch.log.append(["ready", stage, 0])
        if part.tied is not None and part.tied.parameter.grad is not None:
            halves[stage] = part.tied.parameter.grad.clone()
        for name, parameter in named_parameters({n: own for n, own in stages.items() if n == stage}):
            rank.answer(f"grad.{name}", parameter.grad)

    part = make_part(rank, stages, 0, watch, ready)
    with rank.recording("messages"):
        _run_counted(rank, stages, lambda: rank.student.run_schedule(part, actions_of(rank), rank.group))
    _report_watched(rank, watch)
    shared = None if part.tied is None else part.tied.parameter.grad
    rank.answer("shared", shared)
    rank.fact("early", [s for s, half in halves.items() if shared is not None and torch.equal(half, shared)])


def meet_bad_lists(rank: Rank) -> None:
    """Lists that cannot be run, after one that can. Facts: for each, what was raised, by train_step too, and
    how many actions and steps of the optimizer were done.
    """
    stages, watch, steps = own_stages(rank), Watch(), Counter[str]()
    optimizer = _optimizer(stages)
    part = make_part(rank, stages, 0, watch)
    with rank.expect_error("a list that can be run"):  # other cases ask for it: here nobody looks
        rank.student.run_schedule(part, actions_of(rank), rank.group)
    for name, lists in rank.params["bad"].items():
        actions = [Action(*a) for a in lists[rank.rank]]
        handle = optimizer.register_step_pre_hook(lambda *_, name=name: steps.update([name]))
        watch.log.clear()
        with rank.expect_error(name):
            rank.student.run_schedule(part, actions, rank.group)
        with rank.expect_error(f"{name}, in train_step"):
            rank.student.train_step(part, actions, optimizer, rank.group)
        handle.remove()
        rank.fact(f"{name}, done", len(watch.log))
        rank.fact(f"{name}, steps", steps[name])


def own_stages(rank: Rank) -> dict[int, Stage]:
    """Fresh stages of this rank."""
    return build_stages(rank.case, rank.inputs, stages_of(rank.case, rank.rank))


def make_part(
    rank: Rank, stages: dict[int, Stage], step: int, watch: Watch, ready: Callable[[int], None] = nobody
) -> PipelinePart:
    """What the student's executor is handed."""
    by_mail, last = place_of(rank.case, rank.rank).size > 1, last_stage(rank.case)
    return PipelinePart(
        stages={
            number: watched(stage, number, watch, by_mail and number > 0, by_mail and number < last)
            for number, stage in stages.items()
        },
        num_stages=last + 1,
        micro_batches=micro_batches(rank.case, rank.inputs, step),
        loss_fn=partial(loss_fn, rank.case),
        empty_input=lambda stage, i: torch.empty(
            *leading_shape(rank.case, step, i), input_width(rank.case, stage), dtype=dtype_of(rank.case)
        ),
        tied=_tied(rank, stages),
        gradients_ready=ready,
    )


def _tied(rank: Rank, stages: dict[int, Stage]) -> TiedWeight | None:
    """The shared embedding's copy on this rank. Every rank makes the group, as torch asks."""
    ends = sorted({0, last_stage(rank.case) % rank.world_size})
    if "vocabulary" not in rank.params or len(ends) == 1:
        return None
    group = dist.new_group([dist.get_global_rank(rank.group, end) for end in ends])
    copies = [p for s in stages.values() for p in (s.embedding, s.head) if p is not None]
    return TiedWeight(copies[0], group) if copies else None


def as_answer(loss: object) -> Tensor | None:
    """A loss as a float32 of no dimensions, whatever it came as: that is judged once, and by itself."""
    if loss is None:
        return None
    return loss.squeeze().float() if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float32)
