"""What `10.make-it-fast` must show: the plain program's numbers, faster on a machine of fixed speeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_10.acts import acts_of, all_from_python, all_waited_for
from labkit.checks.lesson_10.again import (
    CALLS,
    leaves_no_hook,
    no_hook_is_left,
)
from labkit.checks.lesson_10.between_steps import SEEN
from labkit.checks.lesson_10.each_call import TRAINING, of_each_call
from labkit.checks.lesson_10.exposed import HIDES
from labkit.checks.lesson_10.fast_runs import (
    OTHER,
    batches_of,
    drawn_inputs,
    measure,
    train,
    train_one_by_one,
    weight_bytes,
)
from labkit.checks.lesson_10.losses import are_floats
from labkit.checks.lesson_10.plain_program import plain_seconds
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.lesson_10.small_gpt import SHAPE, dtype_of, model_of
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.places import place_of
from labkit.checks.shared.worked import Worked
from labkit.model import Transformer
from labkit.record.matching import everybody_came
from labkit.record.replay import replay
from labkit.theory import breakdown  # as in `exposed`

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
    """batches: of each step the number of micro-batches, and of rows in each, for all ranks together.
    from_iterator: whether those that are measured come from one, which has no length.
    """
    usual = {"batches": [[2, 16], [2, 16]], "dtype": "float64", "learning_rate": USUAL_RATE, "tied": True}
    params = {**usual, **SHAPE, "from_iterator": False, **more}
    return Case(name, ranks, params, seed, kind=kind, timeout=60.0)


def _cases(seed: int) -> list[Case]:
    return [
        fast_case("four ranks", "measured", 4, seed),
        fast_case("two ranks, odd sizes", "values", 2, seed, batches=[[3, 4], [1, 8], [4, 2]], **ODD),
        fast_case("a pair and one, in fp32", "subgroup", 3, seed, **IN_FP32, groups=[[2, 0], [1]]),
    ]


@dataclass(frozen=True)
class FastEvidence(Evidence):
    """What one process trains on the same batches; and what the ranks' acts come to on the fixed machine."""

    @cached_property
    def trained(self) -> tuple[dict[str, Tensor], Tensor, int]:
        """Weights by name, the loss of each step, and the operations of all products."""
        with Worked() as worked:
            weights, losses = _train_alone(model_of(self.case), self.case, batches_of(self.case, self.inputs))
        return weights, losses, worked.products

    @cached_property
    def other(self) -> dict[str, Tensor]:
        """Weights by name of another model after the first batch."""
        return _train_alone(model_of(self.case, 1), self.case, batches_of(self.case, self.inputs)[:1])[0]

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
    calls = {recording: {"batches": [batch]} for recording, batch in zip(CALLS, others, strict=True)}
    other = {"batches": [first], "layers": case.params["layers"] + 1}  # as `model_of` makes it
    return {**calls, OTHER: other}


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


VALUES = Run(train, drawn_inputs, evidence=FastEvidence)
ONE_BY_ONE = Run(train_one_by_one, drawn_inputs, evidence=FastEvidence)
MEASURED = Run(measure, drawn_inputs, evidence=FastEvidence)

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
