"""What `10.slow-program-3` must show: documents shared out so that no rank has much more to do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from time import monotonic

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_10.again import leave_gradients
from labkit.checks.lesson_10.lookups import LookedUp
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.lesson_10.talking import sends_gradients, shares_from_nobody, without_talking
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, groups_of

VOCABULARY, WIDTH = 11, 5
TOKEN_PRODUCTS = 6 * VOCABULARY * WIDTH  # of the head: forward, and backward to its weight and to its input
MOST_AGAIN = 1.5  # times what the documents ask for: somebody may count something with the model beforehand
MADE = (100, 300, 600)  # elements of tensors that are made for a token, for a document, and for a step
MOST_MADE = 4.0  # times that: losses and gradients can be had in many ways
MOST_OVER_MEAN = 1.15
DIVIDES = 1.06  # the longest first, each to who has least, is that far from even at most


class TinyModel(nn.Module):
    """Token ids [s] -> logits [s, V], which depend on all tokens so far: a part of a document, or several in
    a row, are not what they are one by one.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        dtype = {"float64": torch.float64, "float32": torch.float32}[case.params["dtype"]]
        torch.manual_seed(case.seed + 5)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype)
        self.head = nn.Linear(WIDTH, VOCABULARY, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """[..., s] -> [..., s, V]."""
        number = torch.ones_like(ids).cumsum(-1).unsqueeze(-1)
        return self.head(torch.tanh(self.tokens(ids).cumsum(-2) / number))


def documents_case(
    name: str, kind: str, ranks: int, seed: int, lengths: list[list[int]], **more: object
) -> Case:
    """lengths[step]: tokens of each document of a step, not counting the one that is only predicted. more,
    twice=True: documents of one length are the same in a step; gradients: whether the model comes with some,
    drawn where balance is what the case is about. The dtype is drawn too.
    """
    draw = Random(f"10/documents/{name}/{seed}")
    drawn = {
        "dtype": draw.choice(["float64", "float32"]),
        "gradients": kind == "balanced" and draw.random() < 0.5,
    }
    about = {"lengths": lengths, "learning_rate": USUAL_RATE, **drawn, **more}
    return Case(name, ranks, about, seed, kind=kind)


def alike_case(name: str, ranks: int, seed: int) -> Case:
    """Documents of a length or two, on ranks whose random numbers differ: nothing but chance, or their order,
    says which is whose.
    """
    draw = Random(f"10/documents/{name}/{seed}")
    lengths = [[draw.randint(3, 20)] * (2 * ranks) + [draw.randint(3, 20)] * (2 * ranks) for _ in range(3)]
    return documents_case(name, "apart", ranks, seed, lengths)


def drawn_lengths(
    draw: Random, steps: int, documents: int, ranks: int, in_order: bool = True
) -> list[list[int]]:
    """Most documents are short and some are long, as they are; so many ranks can divide them about evenly."""
    found = [_that_divide(draw, documents, ranks) for _ in range(steps)]
    return [sorted(step) for step in found] if in_order else found


def _that_divide(draw: Random, documents: int, ranks: int) -> list[int]:
    while True:
        lengths = [int(draw.lognormvariate(3.0, 0.8)) + 2 for _ in range(documents)]
        loads = [0] * ranks
        for length in sorted(lengths, reverse=True):
            loads[loads.index(min(loads))] += length
        if max(loads) <= DIVIDES * max(sum(lengths) / ranks, *lengths):
            return lengths


def _cases(seed: int) -> list[Case]:
    draw = Random(f"10/documents/{seed}")
    return [
        documents_case("four ranks", "balanced", 4, seed, drawn_lengths(draw, 3, 32, 4), gradients=True),
        documents_case(
            "two ranks, any order",
            "balanced",
            2,
            seed,
            drawn_lengths(draw, 2, 15, 2, False),
            learning_rate=OTHER_RATE,
            gradients=False,
        ),
        alike_case("random numbers of their own", 2, seed),
        documents_case("fewer documents than ranks", "few", 4, seed, [[9, 4, 7], [3]]),
        documents_case(
            "two groups of two", "subgroup", 4, seed, drawn_lengths(draw, 2, 12, 2), groups=[[1, 2], [0, 3]]
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


def _seed_apart(rank: Rank) -> None:
    """The generators that everybody uses are in another state on each rank, as after dropout: what comes of
    them is nothing that all ranks come to.
    """
    seed = (rank.case.seed * rank.world_size + rank.rank) % 2**32  # NumPy takes no larger one
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _train(rank: Rank) -> None:
    """Answers: trained.NAME. Facts: unchanged, whether the lists of documents are what they were; for each
    step given, what this rank's model was given, row by row; together, the most rows at once; moments, the
    seconds in which it begins and in which the model is first and last given something, if it is; products,
    operations of matrix products; made, elements of all tensors that were made. Recording: training.
    """
    group, model = enter_group(rank), TinyModel(rank.case)
    if rank.params["gradients"]:
        leave_gradients(model)
    if rank.case.kind == "apart":
        _seed_apart(rank)
    steps, before = (_documents(rank.case, rank.inputs) for _ in range(2))
    seen: list[tuple[float, LookedUp]] = []
    with rank.recording("training") as begin:
        for documents in steps:
            seen.append((monotonic(), LookedUp((VOCABULARY, WIDTH))))
            with seen[-1][1]:
                rank.student.program_3(model, documents, group, rank.params["learning_rate"])
    rank.fact("unchanged", list(map(_ids, steps)) == list(map(_ids, before)))
    rank.fact("given", [looked_up.rows for _, looked_up in seen])
    rank.fact("together", [looked_up.together for _, looked_up in seen])
    rank.fact("moments", [[at - begin for at in (start, *one.moments)] for start, one in seen])
    rank.fact("products", [looked_up.products for _, looked_up in seen])
    rank.fact("made", [looked_up.made for _, looked_up in seen])
    for name, parameter in model.named_parameters():
        rank.answer(f"trained.{name}", parameter)


def _ids(documents: list[Tensor]) -> list[list[int]]:
    return [ids.tolist() for ids in documents]


@dataclass(frozen=True)
class OneProcess(Evidence):
    """What one process makes of all documents."""

    @cached_property
    def trained(self) -> dict[str, Tensor]:
        """Weights by name."""
        model = TinyModel(self.case)
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


def _by_itself(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step, together in enumerate(answer.facts["together"]):
            told = f"one document at a time in step {step}, by itself"
            yield Finding(together <= 1, told, f"{together} at once", answer.rank)


def _no_others_work(evidence: Evidence) -> Iterator[Finding]:
    """Whatever is called to do it: a rank's products, and its tensors, are those of what its model was
    given.
    """
    for answer in evidence.answers:
        facts = (answer.facts[name] for name in ("given", "products", "made"))
        for step, (rows, done, made) in enumerate(zip(*facts, strict=True)):
            most = int(MOST_AGAIN * TOKEN_PRODUCTS * _tokens(rows))
            told = f"products of at most {most:,} operations in step {step}, for the rank's own documents"
            yield Finding(done <= most, told, f"{done:,}", answer.rank)
            work = (_tokens(rows), len(rows), 1)
            most = int(MOST_MADE * sum(n * each for n, each in zip(work, MADE, strict=True)))
            told = f"tensors of at most {most:,} elements made in step {step}, for the rank's own documents"
            yield Finding(made <= most, told, f"{made:,}", answer.rank)


def _left_alone(evidence: Evidence, answer: RankAnswer) -> Finding:
    unchanged = answer.facts["unchanged"]
    return Finding(unchanged is True, "the documents as they were, in their order", "changed", answer.rank)


def _gradient_bytes(evidence: Evidence) -> list[int]:
    return [nbytes(parameter) for parameter in TinyModel(evidence.case).parameters()]


OWN_WORK = every(
    _each_once,
    _by_itself,
    _no_others_work,
    on_each(_left_alone),
    on_each(without_talking),
    shares_from_nobody(_gradient_bytes),
)
SHARED_WORK = every(OWN_WORK, sends_gradients(_gradient_bytes))

TRAIN = Run(_train, _inputs, evidence=OneProcess)

EXERCISE = Exercise(
    "10.slow-program-3",
    "Slow program 3",
    ("program_3",),
    dict.fromkeys(("balanced", "apart", "few", "subgroup"), TRAIN),
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
            also=dict.fromkeys(("apart", "few", "subgroup"), _balanced),
        ),
        Property(
            "each-once",
            "mechanism",
            1,
            "Every document is worked on by one rank alone, which nobody has to tell it; the list stays as it"
            " was.",
            "every rank works on everything, which is balanced too; list.sort was called on the argument; one"
            " rank tells the others their shares; or chance deals them, differently on each rank",
            {"balanced": SHARED_WORK, "apart": SHARED_WORK, "few": OWN_WORK},
            also={"subgroup": SHARED_WORK},
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
