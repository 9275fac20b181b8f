"""What `10.make-it-fast` must show: the plain program's numbers, faster on a machine of fixed speeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_10.acts import acts_of, all_from_python, all_waited_for
from labkit.checks.lesson_10.again import (
    CALLS,
    hooks_on,
    leave_gradients,
    leaves_no_hook,
    no_hook_is_left,
    train_again,
)
from labkit.checks.lesson_10.between_steps import SEEN, BetweenSteps, LoadedBatches
from labkit.checks.lesson_10.each_call import ACTS, TRAINING, of_each_call, written_down
from labkit.checks.lesson_10.elsewhere import watched_elsewhere
from labkit.checks.lesson_10.exposed import HIDES
from labkit.checks.lesson_10.left_hooks import run_by_backward
from labkit.checks.lesson_10.losses import are_floats, send_losses
from labkit.checks.lesson_10.plain_program import plain_seconds
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.lesson_10.small_gpt import SHAPE, dtype_of, model_of
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, on_each, same
from labkit.checks.shared.held import allocated_now
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.worked import Worked
from labkit.model import Transformer
from labkit.record.live import bytes_of_process
from labkit.record.matching import everybody_came
from labkit.record.replay import replay
from labkit.theory import breakdown  # as in `exposed`

OTHER = "another model"  # a recording
MOST_ELSEWHERE = 0.1  # of the weights' bytes, through NumPy, lists or other threads: losses are far less
ODD_SHAPE = {"layers": 1, "hidden": 18, "heads": 3, "vocabulary": 37, "sequence": 5}
ODD = {**ODD_SHAPE, "learning_rate": OTHER_RATE, "tied": False}
IN_FP32 = {"layers": 1, "batches": [[2, 6], [2, 2], [2, 2]], "dtype": "float32"}  # the first for all ranks
PLAIN_SECONDS = 0.0167030296  # of a step of the plain program on the fixed machine; a test replays it
FASTER, MUCH_FASTER = 0.6, 0.4  # of that
LESS = 0.75  # of what the plain program takes in a case of other sizes
MOST_EXPOSED = 0.12  # of a step
MORE_EXPOSED = 0.35  # of a step of a case of other sizes
MOST_IDLE = 0.05  # waiting and idle, of a step
MOST_COPIES = 4  # of the weights, held by a rank between two steps
ALLOCATED = 5  # times the weights, with half of that for what a check, a backend and the allocator need


def fast_case(name: str, kind: str, ranks: int, seed: int, **more: object) -> Case:
    """batches: of each step the number of micro-batches, and of rows in each, for all ranks together."""
    usual = {"batches": [[2, 16], [2, 16]], "dtype": "float64", "learning_rate": USUAL_RATE, "tied": True}
    params = {**usual, **SHAPE, **more}
    return Case(name, ranks, params, seed, kind=kind, timeout=60.0)


def _cases(seed: int) -> list[Case]:
    return [
        fast_case("four ranks", "measured", 4, seed),
        fast_case("two ranks, odd sizes", "values", 2, seed, batches=[[3, 4], [1, 8], [4, 2]], **ODD),
        fast_case("a pair and one, in fp32", "subgroup", 3, seed, **IN_FP32, groups=[[2, 0], [1]]),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """'STEP': ids [micro_batches, rows, sequence + 1]."""
    vocabulary, sequence = (case.params[name] for name in ("vocabulary", "sequence"))
    shapes = [(micro_batches, rows, sequence + 1) for micro_batches, rows in case.params["batches"]]
    return {
        str(step): torch.randint(vocabulary, shape, generator=generator) for step, shape in enumerate(shapes)
    }


def _batches(case: Case, inputs: Inputs) -> list[Tensor]:
    return [inputs[str(step)] for step in range(len(case.params["batches"]))]


def _train(rank: Rank) -> None:
    """Answers: trained.NAME, losses. Recording, and acts: training, as any plan may send what it likes."""
    model, group = model_of(rank.case), enter_group(rank)
    with written_down(rank, TRAINING), watched_elsewhere():
        losses = rank.student.train(
            model, _batches(rank.case, rank.inputs), group, rank.params["learning_rate"]
        )
    _send(rank, model, losses)


def _train_one_by_one(rank: Rank) -> None:
    """The same in a call for each of the batches, which comes from an iterator, of a model that comes with
    gradients, the first in the whole job; then another model, from an iterator of one batch and one of none.
    Recordings, and acts: training, again, another model. Answers: other.NAME. Facts: of_none, whether no
    batch gave an empty list; hooks, left on either of them.
    """
    model, own, rate = model_of(rank.case), enter_group(rank), rank.params["learning_rate"]
    leave_gradients(model)
    losses: list[float] = []
    batches = _batches(rank.case, rank.inputs)

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
    fresh, rows = model_of(rank.case), batches[0][0]
    run = [
        run_by_backward(*(partial(_loss, m, rows) for m in (trained, fresh))) for trained in (model, other)
    ]
    rank.fact("hooks", hooks_on(model, other) + sum(run))


def _loss(model: Transformer, ids: Tensor) -> Tensor:
    return model.loss(ids[:, :-1], ids[:, 1:])


def _send(rank: Rank, model: nn.Module, losses: Sequence[float]) -> None:
    _send_weights(rank, "trained", model)
    send_losses(rank, losses, dtype_of(rank.case))


def _send_weights(rank: Rank, name: str, model: nn.Module) -> None:
    for parameter_name, parameter in model.named_parameters():
        rank.answer(f"{name}.{parameter_name}", parameter)


def _measure(rank: Rank) -> None:
    """The same, written down. Facts: acts; held_bytes, weights and all, between two
    steps; allocated_bytes, the same of memory; early;
    elsewhere_bytes, which no journal sees.
    """
    given = _batches(rank.case, rank.inputs)
    _loss(model_of(rank.case), given[0][0]).backward()  # a library keeps what it works in the first time
    model = model_of(rank.case)
    others = bytes_of_process() - weight_bytes(model)
    allocated = allocated_now() - weight_bytes(model)
    with rank.recording(TRAINING), rank.journal(ACTS) as acts, watched_elsewhere() as elsewhere:
        watch = BetweenSteps(len(given), lambda: sum(act.flops for act in acts))
        batches = LoadedBatches(
            given, lambda number: watch.look(number)
        )  # a bound method would lead to the watch
        losses = rank.student.train(model, batches, rank.group, rank.params["learning_rate"])
    rank.fact("held_bytes", watch.most - others)
    rank.fact("allocated_bytes", watch.most_allocated - allocated)
    rank.fact("early", watch.early)
    rank.fact("elsewhere_bytes", elsewhere.num_bytes)
    _send(rank, model, losses)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the parameters, each once."""
    return sum(nbytes(parameter) for parameter in model.parameters())


@dataclass(frozen=True)
class FastEvidence(Evidence):
    """What one process trains on the same batches; and what the ranks' acts come to on the fixed machine."""

    @cached_property
    def trained(self) -> tuple[dict[str, Tensor], Tensor, int]:
        """Weights by name, the loss of each step, and the operations of all products."""
        with Worked() as worked:
            weights, losses = _train_alone(model_of(self.case), self.case, _batches(self.case, self.inputs))
        return weights, losses, worked.products

    @cached_property
    def other(self) -> dict[str, Tensor]:
        """Weights by name of another model after the first batch."""
        return _train_alone(model_of(self.case, 1), self.case, _batches(self.case, self.inputs)[:1])[0]

    @cached_property
    def shares(self) -> list[Any]:
        """Each rank's seconds of a step, in four parts (`labkit.theory.breakdown.StepShare`)."""
        acts = {answer.rank: acts_of(answer) for answer in self.answers}
        record = replay([acts.get(rank, []) for rank in range(self.case.ranks)])
        came = everybody_came(record.collectives)
        end = max(event.end or 0.0 for event in record.timeline)
        steps = len(self.case.params["batches"])
        shares = []
        for rank in acts:
            compute = [(s.start, s.end) for s in record.spans if s.rank == rank]
            mine = [c for c in record.collectives if c.rank == rank]
            calls = [(c.start, end if c.end is None else c.end, came[c]) for c in mine]
            whole = breakdown.step_share(0.0, end, compute, calls)
            shares.append(breakdown.StepShare(*(part / steps for part in whole.as_dict().values())))
        return shares

    @property
    def seconds(self) -> float:
        """Of a step, on the fixed machine."""
        return float(self.shares[0].total)

    def part(self, *names: str) -> float:
        """The mean over the ranks of these parts' share of a step."""
        parts = [sum(share.as_dict()[name] for name in names) / share.total for share in self.shares]
        return sum(parts) / len(parts)


def _train_alone(
    model: Transformer, case: Case, batches: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """In one process: weights by name, and the loss of each step."""
    losses = []
    for ids in batches:
        rows = ids.flatten(0, 1)
        loss = model.loss(rows[:, :-1], rows[:, 1:])
        sgd_step(model, loss, case.params["learning_rate"])
        losses.append(loss.item())
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return weights, torch.tensor(losses, dtype=dtype_of(case))


def _numbers(evidence: FastEvidence) -> Iterator[Finding]:
    weights, losses, _ = evidence.trained
    for answer in evidence.answers:
        yield same("the loss of each step, over the whole batch", losses, answer, "losses")
        yield are_floats(answer)
        for name, expected in weights.items():
            yield same(f"{name} after training", expected, answer, f"trained.{name}")


def _another_is_trained(evidence: FastEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name, expected in evidence.other.items():
            yield same(f"{name} of another model, trained next", expected, answer, f"other.{name}")


def _nothing_of_nothing(evidence: Evidence, answer: RankAnswer) -> Finding:
    seen = "something else"
    return Finding(answer.facts["of_none"] is True, "an empty list for no batches", seen, answer.rank)


def _takes_at_most(share: float) -> Judge:
    def judge(evidence: FastEvidence) -> Iterator[Finding]:
        told = f"at most {share:.0%} of the plain program's {PLAIN_SECONDS * 1e3:.2f} ms a step"
        seen = f"{evidence.seconds * 1e3:.2f} ms, {evidence.seconds / PLAIN_SECONDS:.0%}"
        yield Finding(evidence.seconds <= share * PLAIN_SECONDS, told, seen)

    return judge


def _takes_less_than_plain(evidence: FastEvidence) -> Iterator[Finding]:
    """In cases of other sizes, where less can be won."""
    if evidence.answers:
        answer = evidence.answers[0]
        plain = plain_seconds(evidence.case, place_of(evidence.case, answer.rank).size)
        told = f"at most {LESS:.0%} of the plain program's {plain * 1e3:.2f} ms a step"
        seen = f"{evidence.seconds * 1e3:.2f} ms, {evidence.seconds / plain:.0%}"
        yield Finding(evidence.seconds <= LESS * plain, told, seen)


def _also(judge: Judge) -> dict[str, Judge]:
    """The same of each call in cases that are about the numbers, or another group."""
    return {
        "values": of_each_call(judge, lambda case: {TRAINING: {}}),
        "subgroup": of_each_call(judge, _one_by_one),
    }


def _one_by_one(case: Case) -> dict[str, dict[str, Any]]:
    """The calls of `_train_one_by_one`, each with its batch."""
    first, *others = case.params["batches"]
    batches = {**dict(zip(CALLS, others, strict=True)), OTHER: first}
    return {recording: {"batches": [batch]} for recording, batch in batches.items()}


def _all_in_sight(evidence: FastEvidence) -> Iterator[Finding]:
    """What a journal does not see takes no time on the fixed machine: another thread's work, or NumPy's. A
    plan may save a product or two that autograd does.
    """
    whole = evidence.trained[2]
    done = sum(act.flops for answer in evidence.answers for act in acts_of(answer))
    told = f"about {whole:,} operations, forward's and backward's, in torch and in the program's own thread"
    yield Finding(done >= SEEN * whole, told, f"{done:,} on all ranks")
    most = int(MOST_ELSEWHERE * weight_bytes(model_of(evidence.case)))
    told = f"at most {most:,} bytes of weights, gradients and activations through NumPy, lists, other threads"
    for answer in evidence.answers:
        elsewhere = answer.facts["elsewhere_bytes"]
        yield Finding(elsewhere <= most, told, f"{elsewhere:,} bytes", answer.rank)
        yield all_from_python(evidence, answer)


def _part_is_small(most: float, told: str, *parts: str) -> Judge:
    def judge(evidence: FastEvidence) -> Iterator[Finding]:
        if not evidence.answers:
            return
        share = evidence.part(*parts)
        yield Finding(share <= most, f"at most {most:.0%} of a step: {told}", f"{share:.1%}")

    return judge


def _holds_little(evidence: FastEvidence) -> Iterator[Finding]:
    weights = weight_bytes(model_of(evidence.case))
    for answer in evidence.answers:
        early = "each batch taken when its step begins"
        yield Finding(answer.facts["early"] is False, early, "asked for earlier", answer.rank)
        held = answer.facts["held_bytes"]
        told = f"at most {MOST_COPIES} times the weights' {weights:,} bytes held between two steps"
        yield Finding(held <= MOST_COPIES * weights, told, f"{held:,} bytes", answer.rank)
        allocated = answer.facts["allocated_bytes"]
        told = (
            f"at most {ALLOCATED} times the weights' {weights:,} bytes in memory, in whatever they are held"
        )
        yield Finding(allocated <= ALLOCATED * weights, told, f"{allocated:,} bytes", answer.rank)
    # A rank may hold its shard alone. All of them together hold the weights, or nobody looked between steps.
    together = sum(answer.facts["held_bytes"] for answer in evidence.answers)
    told = f"the weights' {weights:,} bytes held by all ranks together, with batches taken one by one"
    yield Finding(together >= weights, told, f"{together:,} bytes")


def _measures(evidence: FastEvidence) -> Mapping[str, float]:
    """What a ranking goes by."""
    return {
        "ms a step, replayed": round(evidence.seconds * 1e3, 4),
        "% exposed": round(100 * evidence.part("exposed"), 2),
        "% waiting or idle": round(100 * evidence.part("waiting", "idle"), 2),
        "bytes held": max(float(answer.facts["held_bytes"]) for answer in evidence.answers),
    }


VALUES = Run(_train, _inputs, evidence=FastEvidence)
ONE_BY_ONE = Run(_train_one_by_one, _inputs, evidence=FastEvidence)
MEASURED = Run(_measure, _inputs, evidence=FastEvidence)

EXERCISE = Exercise(
    "10.make-it-fast",
    "Make it fast",
    ("train",),
    {"values": VALUES, "subgroup": ONE_BY_ONE, "measured": MEASURED},
    _cases,
    (
        Property(
            "numbers-kept",
            "numbers",
            4,
            "Losses and weights are those of one process, on every rank.",
            "gradients summed over micro-batches but not divided, a loss of this rank's rows only, or a head"
            " of its own that is not trained",
            {"values": _numbers, "measured": _numbers},
        ),
        Property(
            "faster",
            "mechanism",
            2,
            f"On the fixed machine a step takes at most {FASTER:.0%} of the plain program's time.",
            "gradients are sent with every micro-batch",
            {"measured": every(_takes_at_most(FASTER), _all_in_sight)},
            also=_also(_takes_less_than_plain),
        ),
        Property(
            "much-faster",
            "mechanism",
            3,
            f"It takes at most {MUCH_FASTER:.0%}.",
            "a call for each parameter pays a latency each time",
            {"measured": every(_takes_at_most(MUCH_FASTER), _all_in_sight)},
            also=_also(_takes_less_than_plain),
        ),
        Property(
            "hidden",
            "mechanism",
            3,
            f"At most {MOST_EXPOSED:.0%} of a step is communication that nothing hides.",
            "calls are waited for before backward goes on",
            {
                "measured": every(
                    _part_is_small(MOST_EXPOSED, "communication with nothing behind it", "exposed"),
                    on_each(all_waited_for),
                    on_each(all_from_python),
                )
            },
            also=_also(
                every(
                    _part_is_small(MORE_EXPOSED, "communication with nothing behind it", "exposed"),
                    on_each(all_waited_for),
                    on_each(all_from_python),
                )
            ),
        ),
        Property(
            "busy",
            "mechanism",
            1,
            f"Ranks wait for others, or do nothing, for at most {MOST_IDLE:.0%} of a step.",
            "one rank has more rows than the others",
            {"measured": _part_is_small(MOST_IDLE, "waiting and idle", "waiting", "idle")},
        ),
        Property(
            "memory",
            "mechanism",
            2,
            f"Between two steps a rank holds at most {MOST_COPIES} times the weights.",
            "gradients of every micro-batch are kept, or the next batch is asked for before this one's work"
            " is done",
            {"measured": _holds_little},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, and alone, in fp32, with batches that come one by"
            " one or not at all, on a model that comes with gradients, again on the same model, which was"
            " trained in another group before, and on another model.",
            "the default group was used, the batches were counted before the first step, gradients were added"
            " to those that were there, hooks or what was made for another group were left with the model, or"
            " buckets of one model were kept for the next",
            {
                "subgroup": every(
                    _numbers,
                    _another_is_trained,
                    on_each(_nothing_of_nothing),
                    on_each(leaves_no_hook),
                    on_each(no_hook_is_left),
                )
            },
        ),
    ),
    forbids=(
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp.fully_shard",
        "torch.distributed.fsdp.FullyShardedDataParallel",
    ),
    hides=HIDES,
    measures={"measured": _measures},
)
