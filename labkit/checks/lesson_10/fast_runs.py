"""Trains with the student's program on a rank, and notes what it does: rank side of `10.make-it-fast`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.lesson_10.again import hooks_on, leave_gradients, train_again
from labkit.checks.lesson_10.between_steps import BetweenSteps, LoadedBatches
from labkit.checks.lesson_10.each_call import ACTS, TRAINING, written_down
from labkit.checks.lesson_10.elsewhere import watched_elsewhere
from labkit.checks.lesson_10.left_hooks import run_by_backward
from labkit.checks.lesson_10.losses import send_losses
from labkit.checks.lesson_10.small_gpt import dtype_of, model_of
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.held import allocated_now
from labkit.checks.shared.places import enter_group
from labkit.model import Transformer
from labkit.record.live import bytes_of_process

OTHER = "another model"  # a recording


def drawn_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """'STEP': ids [micro_batches, rows, sequence + 1]."""
    vocabulary, sequence = (case.params[name] for name in ("vocabulary", "sequence"))
    shapes = [(micro_batches, rows, sequence + 1) for micro_batches, rows in case.params["batches"]]
    return {
        str(step): torch.randint(vocabulary, shape, generator=generator) for step, shape in enumerate(shapes)
    }


def batches_of(case: Case, inputs: Inputs) -> list[Tensor]:
    """Of each step, in their order."""
    return [inputs[str(step)] for step in range(len(case.params["batches"]))]


def train(rank: Rank) -> None:
    """Answers: trained.NAME, losses. Recording, and acts: training, as any plan may send what it likes."""
    model, group = model_of(rank.case), enter_group(rank)
    with written_down(rank, TRAINING), watched_elsewhere():
        losses = rank.student.train(
            model, batches_of(rank.case, rank.inputs), group, rank.params["learning_rate"]
        )
    _send(rank, model, losses)


def train_one_by_one(rank: Rank) -> None:
    """The same in a call for each of the batches, which comes from an iterator, of a model that comes with
    gradients, the first in the whole job; then a deeper one, from an iterator of one batch and one of none.
    Recordings, and acts: training, again, another model. Answers: other.NAME. Facts: of_none, whether no
    batch gave an empty list; hooks, left on either of them.
    """
    model, own, rate = model_of(rank.case), enter_group(rank), rank.params["learning_rate"]
    leave_gradients(model)
    losses: list[float] = []
    batches = batches_of(rank.case, rank.inputs)

    def step(number: int, group: dist.ProcessGroup) -> None:
        losses.extend(rank.student.train(model, iter([batches[number]]), group, rate))

    other = model_of(rank.case, 1)
    with watched_elsewhere():
        train_again(rank, own, step)
        with written_down(rank, OTHER):
            rank.student.train(other, iter(batches[:1]), own, rate)
            of_none = rank.student.train(other, iter(()), own, rate)
    _send(rank, model, losses)
    _send_weights(rank, "other", other)
    rank.fact("of_none", isinstance(of_none, list) and not of_none)
    rows = batches[0][0]
    pairs = [(model, model_of(rank.case)), (other, model_of(rank.case, 1))]
    run = [run_by_backward(*(partial(_loss, m, rows) for m in pair)) for pair in pairs]
    rank.fact("hooks", hooks_on(model, other) + sum(run))


def _loss(model: Transformer, ids: Tensor) -> Tensor:
    return model.loss(ids[:, :-1], ids[:, 1:])


def _send(rank: Rank, model: nn.Module, losses: Sequence[float]) -> None:
    _send_weights(rank, "trained", model)
    send_losses(rank, losses, dtype_of(rank.case))


def _send_weights(rank: Rank, name: str, model: nn.Module) -> None:
    for parameter_name, parameter in model.named_parameters():
        rank.answer(f"{name}.{parameter_name}", parameter)


def measure(rank: Rank) -> None:
    """The same, written down. Facts: acts; held_bytes, weights and all, between two
    steps; allocated_bytes, the same of memory; early;
    elsewhere_bytes, which no journal sees.
    """
    given = batches_of(rank.case, rank.inputs)
    _loss(model_of(rank.case), given[0][0]).backward()  # a library keeps what it works in the first time
    model = model_of(rank.case)
    others = bytes_of_process() - weight_bytes(model)
    allocated = allocated_now() - weight_bytes(model)
    with rank.recording(TRAINING), rank.journal(ACTS) as acts, watched_elsewhere() as elsewhere:
        watch = BetweenSteps(len(given), lambda: sum(act.flops for act in acts))
        batches = LoadedBatches(
            given, lambda number: watch.look(number)
        )  # a bound method would lead to the watch
        handed = iter(batches) if rank.params["from_iterator"] else batches
        losses = rank.student.train(model, handed, rank.group, rank.params["learning_rate"])
    rank.fact("held_bytes", watch.most - others)
    rank.fact("allocated_bytes", watch.most_allocated - allocated)
    rank.fact("early", watch.early)
    rank.fact("elsewhere_bytes", elsewhere.num_bytes)
    _send(rank, model, losses)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the parameters, each once."""
    return sum(nbytes(parameter) for parameter in model.parameters())
