"""What `10.slow-program-3` must show: documents shared out so that no rank has much more to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from time import monotonic

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_10.again import leave_gradients
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, calls_of, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, groups_of
from labkit.checks.shared.twins import each_once
from labkit.checks.shared.worked import Worked

VOCABULARY, WIDTH = 11, 5
TOKEN_PRODUCTS = 6 * VOCABULARY * WIDTH  # of the head: forward, and backward to its weight and to its input
MOST_AGAIN = 1.5  # times what the documents ask for: somebody may count something with the model beforehand
MOST_OVER_MEAN = 1.15
TELLING = {"broadcast", "scatter", "send", "recv"}  # calls that bring what one rank has to others
FEW_BYTES = 16  # a number or two, of which no shares can be read


class TinyModel(nn.Module):
    """Token ids [s] -> logits [s, V], which depend on all tokens so far: a part of a document, or several in
    a row, are not what they are one by one.

    note: called with all that the model, or a copy of it, is given.
    """

    def __init__(self, seed: int, note: Callable[[Tensor], None] = lambda ids: None) -> None:
        super().__init__()
        torch.manual_seed(seed + 5)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.head = nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)
        self.note = note

    def forward(self, ids: Tensor) -> Tensor:
        """[..., s] -> [..., s, V]."""
        self.note(ids)
        number = torch.ones_like(ids).cumsum(-1).unsqueeze(-1)
        return self.head(torch.tanh(self.tokens(ids).cumsum(-2) / number))


def documents_case(
    name: str, kind: str, ranks: int, seed: int, lengths: list[list[int]], **more: object
) -> Case:
    """lengths[step]: tokens of each document of a step, not counting the one that is only predicted. more,
    twice=True: documents of one length are the same in a step.
    """
    return Case(name, ranks, {"lengths": lengths, "learning_rate": USUAL_RATE, **more}, seed, kind=kind)


def drawn_lengths(draw: Random, steps: int, documents: int, in_order: bool = True) -> list[list[int]]:
    """Most documents are short and some are long, as they are."""
    found = [[int(draw.lognormvariate(3.0, 0.8)) + 2 for _ in range(documents)] for _ in range(steps)]
    return [sorted(step) for step in found] if in_order else found


def _cases(seed: int) -> list[Case]:
    draw = Random(f"10/documents/{seed}")
    return [
        documents_case("four ranks", "balanced", 4, seed, drawn_lengths(draw, 3, 32)),
        documents_case(
            "two ranks, any order",
            "balanced",
            2,
            seed,
            drawn_lengths(draw, 2, 15, False),
            learning_rate=OTHER_RATE,
        ),
        documents_case("fewer documents than ranks", "few", 4, seed, [[9, 4, 7], [3]]),
        documents_case(
            "two groups of two", "subgroup", 4, seed, drawn_lengths(draw, 2, 9), groups=[[1, 2], [0, 3]]
        ),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """'STEP NUMBER': the ids of one document, one more than its length."""
    found: Inputs = {}
    for step, lengths in enumerate(case.params["lengths"]):
        for number, length in enumerate(lengths):
            ids = torch.randint(VOCABULARY, (length + 1,), generator=generator)
            again = case.params.get("twice", False) and length in lengths[:number]
            found[f"{step} {number}"] = found[f"{step} {lengths.index(length)}"].clone() if again else ids
    return found


def _documents(case: Case, inputs: Inputs) -> list[list[Tensor]]:
    return [
        [inputs[f"{step} {number}"] for number in range(len(lengths))]
        for step, lengths in enumerate(case.params["lengths"])
    ]


def _train(rank: Rank) -> None:
    """Answers: trained.NAME. Facts: given, for each step what this rank's model was given, row by row;
    unchanged, whether the lists of documents are what they were; until_given, for each step the second in
    which it begins and that in which the model is first given something, if it is; products, operations of
    matrix products in each step. Recording: training.
    """
    group, given = enter_group(rank), list[list[list[int]]]()
    until_given: list[list[float]] = []
    products: list[int] = []

    def note(ids: Tensor) -> None:
        if len(until_given[-1]) == 1:
            until_given[-1].append(monotonic() - begin)
        given[-1].extend(_rows(ids))

    model = TinyModel(rank.case.seed, note)
    if rank.case.kind == "balanced":
        leave_gradients(model)
    steps, before = (_documents(rank.case, rank.inputs) for _ in range(2))
    with rank.recording("training") as begin:
        for documents in steps:
            given.append([])
            until_given.append([monotonic() - begin])
            with Worked() as worked:
                rank.student.program_3(model, documents, group, rank.params["learning_rate"])
            products.append(worked.products)
    rank.fact("products", products)
    rank.fact("unchanged", list(map(_ids, steps)) == list(map(_ids, before)))
    rank.fact("given", given)
    rank.fact("until_given", until_given)
    for name, parameter in model.named_parameters():
        rank.answer(f"trained.{name}", parameter)


def _ids(documents: list[Tensor]) -> list[list[int]]:
    return [ids.tolist() for ids in documents]


def _rows(ids: Tensor) -> list[list[int]]:
    """Those that are not empty."""
    return [row for row in ids.unsqueeze(0).flatten(0, -2).tolist() if row]


@dataclass(frozen=True)
class OneProcess(Evidence):
    """What one process makes of all documents."""

    @cached_property
    def trained(self) -> dict[str, Tensor]:
        """Weights by name."""
        model = TinyModel(self.case.seed)
        for documents in _documents(self.case, self.inputs):
            total = sum(len(ids) - 1 for ids in documents)
            losses = [F.cross_entropy(model(ids[:-1]), ids[1:], reduction="sum") for ids in documents]
            sgd_step(model, torch.stack(losses).sum() / total, self.case.params["learning_rate"])
        return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _trained(evidence: OneProcess) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name, expected in evidence.trained.items():
            yield same(f"{name} after training", expected, answer, f"trained.{name}")


Rows = list[list[int]]


def _given(evidence: Evidence) -> Iterator[tuple[int, Rows, list[Rows]]]:
    """Of each step and group: the step, the rows that its documents make, and those each rank's model saw."""
    for members in groups_of(evidence.case):
        for step, documents in enumerate(_documents(evidence.case, evidence.inputs)):
            rows = [ids[:-1].tolist() for ids in documents]
            yield step, rows, [evidence.answers[rank].facts["given"][step] for rank in members]


def _tokens(rows: Rows) -> int:
    return sum(map(len, rows))


def _balanced(evidence: Evidence) -> Iterator[Finding]:
    for step, documents, given in _given(evidence):
        most = MOST_OVER_MEAN * max(_tokens(documents) / len(given), max(map(len, documents)))
        seen = [_tokens(rows) for rows in given]
        told = f"at most {most:.0f} tokens on a rank in step {step} ({_tokens(documents)} in all)"
        yield Finding(max(seen) <= most, told, f"{seen}")


def _each_once(evidence: Evidence) -> Iterator[Finding]:
    for step, documents, given in _given(evidence):
        wanted = Counter(map(tuple, documents))
        seen = Counter(tuple(row) for rows in given for row in rows)
        missing, more = (wanted - seen).total(), (seen - wanted).total()
        told = f"each of the {len(documents)} documents of step {step} whole, on one rank, once"
        yield Finding(seen == wanted, told, f"{missing} not so, and {more} others or once more")


def _no_others_work(evidence: Evidence) -> Iterator[Finding]:
    """Whatever is called to do it: a rank's products are those of what its model was given."""
    for answer in evidence.answers:
        for step, (rows, done) in enumerate(
            zip(answer.facts["given"], answer.facts["products"], strict=True)
        ):
            most = int(MOST_AGAIN * TOKEN_PRODUCTS * _tokens(rows))
            told = f"products of at most {most:,} operations in step {step}, for the rank's own documents"
            yield Finding(done <= most, told, f"{done:,}", answer.rank)


def _left_alone(evidence: Evidence, answer: RankAnswer) -> Finding:
    unchanged = answer.facts["unchanged"]
    return Finding(unchanged is True, "the documents as they were, in their order", "changed", answer.rank)


def _without_talking(evidence: Evidence, answer: RankAnswer) -> Finding:
    """What adds up gradients comes from all; what one rank tells others is who works on what."""
    told = sorted({op for op, _ in calls_of(answer, "training")} & TELLING)
    seen = f"also {' and '.join(told)}"
    return Finding(not told, "gradients added up, and shares that nobody has to be told", seen, answer.rank)


def _shares_from_nobody(evidence: Evidence) -> Iterator[Finding]:
    """What goes from rank to rank before a step's work begins is who works on what, by whatever call."""
    for answer in evidence.answers:
        for step, moments in enumerate(answer.facts["until_given"]):
            before = _calls_between(answer, *moments) if len(moments) == 2 else []
            right = sum(num_bytes for _, num_bytes in before) <= FEW_BYTES
            wanted = f"at most {FEW_BYTES} bytes sent before the first document of step {step}"
            yield Finding(right, wanted, calls_text(before), answer.rank)


def _calls_between(answer: RankAnswer, begin: float, end: float) -> list[Call]:
    """The calls made from one second to another."""
    calls = each_once(answer.collectives["training"])
    return [(call["op"], call["num_bytes"]) for call in calls if begin <= call["start"] < end]


TRAIN = Run(_train, _inputs, evidence=OneProcess)

EXERCISE = Exercise(
    "10.slow-program-3",
    "Slow program 3",
    ("program_3",),
    {"balanced": TRAIN, "few": TRAIN, "subgroup": TRAIN},
    _cases,
    (
        Property(
            "numbers-kept",
            "numbers",
            2,
            "The weights are those of one process with all documents.",
            "each rank divided by its own tokens, or the mean over ranks was taken",
            {"balanced": _trained},
        ),
        Property(
            "balance",
            "mechanism",
            3,
            "No rank has more than 15% more tokens than the mean, in any step.",
            "documents were counted, not their tokens",
            {"balanced": _balanced},
        ),
        Property(
            "each-once",
            "mechanism",
            1,
            "Every document is worked on by one rank alone, which nobody has to tell it; the list stays as it"
            " was.",
            "every rank works on everything, which is balanced too; list.sort was called on the argument; or"
            " one rank tells the others their shares",
            {
                "balanced": every(
                    _each_once,
                    _no_others_work,
                    on_each(_left_alone),
                    on_each(_without_talking),
                    _shares_from_nobody,
                ),
                "few": _each_once,
            },
        ),
        Property(
            "few-documents",
            "robustness",
            1,
            "A rank without documents takes part in the rest.",
            "no gradients where there is no backward; the collectives must be called all the same",
            {"few": _trained},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job.",
            "the default group was used",
            {"subgroup": every(_trained, stays_in_group)},
        ),
    ),
)
