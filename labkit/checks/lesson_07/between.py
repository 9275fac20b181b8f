"""What a GPT keeps beside its blocks where tokens are divided: the last norm takes this rank's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from labkit.checks.exercise import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.places import enter_group
from labkit.checks.shared.split import Split, SplitEvidence, dtype_of

MOST_WHOLE = 1.85  # times the whole tokens: the head's, a norm's quarter three times at most, and nodes
SHAPE = {"batch": 4, "sequence": 64, "max_sequence": 64, "hidden": 512, "dtype": "float32"}


def keep_of_one_and_two(rank: Rank, split: Split) -> None:
    """Facts: kept 1, kept 2, the bytes that a loss leaves behind of a model with so many blocks."""
    group = enter_group(rank)
    for layers in (1, 2):
        case = replace(rank.case, params={**rank.case.params, "layers": layers})
        full = split.plain(case).to(rank.device)

        def prepare() -> Callable[[], Tensor]:
            part = split.build(rank, full, group)  # noqa: B023 (asked before the next round)
            return lambda: split.use(part, [rank.inputs["ids"], rank.inputs["targets"]])

        rank.fact(f"kept {layers}", bytes_kept(prepare))


def divided_between(evidence: SplitEvidence) -> Iterator[Finding]:
    """Beside the blocks a loss keeps the tokens that the head takes, whole at most, and this rank's own."""
    p = evidence.case.params
    whole = p["batch"] * p["sequence"] * p["hidden"] * dtype_of(evidence.case).itemsize
    most = int(MOST_WHOLE * whole)
    told = f"at most {most:,} bytes kept beside the blocks (all tokens at the head are {whole:,} of them)"
    for answer in evidence.answers:
        one, two = answer.facts["kept 1"], answer.facts["kept 2"]
        yield Finding(2 * one - two <= most, told, f"{2 * one - two:,} bytes", answer.rank)
