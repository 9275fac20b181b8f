"""After which changes the edits of an exercise are tried again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.days()

OURS = (
    "shard-indices",
    "average-gradients",
    "assign-buckets",
    "overlapped-data-parallel",
    "token-weighted-loss",
)
TELL = (
    "import json, sys; from autograder.selftest.record import digest_of; "
    "print(json.dumps({name: digest_of(f'03.{name}') for name in sys.argv[1:]}))"
)


def digests(root: Path) -> dict[str, str]:
    """As a fresh process reads them in the repository at `root`."""
    command = [sys.executable, "-c", TELL, *OURS]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def before(copied: Path) -> dict[str, str]:
    return digests(copied)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("name", "was", "becomes", "moved"),
    [
        pytest.param(
            "labkit/checks/lesson_03/tokens.py",
            "NUMBER_BYTES = 8",
            "NUMBER_BYTES = 9",
            {"token-weighted-loss"},
            id="the check of one",
        ),
        pytest.param(
            "labkit/checks/lesson_03/buckets.py",
            "def _",
            "LONGEST = 3\n\n\ndef _",
            set(),
            id="a name that no check uses",
        ),
        pytest.param(
            "labkit/checks/lesson_03/net.py",
            "PAIRS = [[0, 3], [1, 2]]",
            "PAIRS = [[0, 2], [1, 3]]",
            {"average-gradients", "overlapped-data-parallel", "token-weighted-loss"},
            id="what the checks of some share",
        ),
        pytest.param(
            "labkit/checks/judge.py",
            "def judge_exercise(",
            "ONCE = 1\n\n\ndef judge_exercise(",
            {*OURS},
            id="the judge",
        ),
        pytest.param(
            "labkit/checks/lesson_03/net.py",
            "MICRO_BATCHES = 3",
            "MICRO_BATCHES = 3  # some",
            set(),
            id="a comment",
        ),
        pytest.param(
            "labkit/checks/lesson_03/tokens.py",
            '"One number is sent, once"',
            '"Each rank sends one number"',
            set(),
            id="sentences that a student reads",
        ),
        pytest.param(
            "autograder/lessons/lesson_03/unseen.py",
            'Random(f"03/tokens/',
            'Random(f"03/other/',
            {"token-weighted-loss"},
            id="the unseen cases of one",
        ),
        pytest.param(
            "solutions/03_data_parallel.py",
            "used, dtype = 0, None",
            "used, dtype = 1, None",
            {"assign-buckets", "overlapped-data-parallel"},
            id="a reference that another builds on",
        ),
        pytest.param(
            "autograder/selftest/edits.py", "LARGE = 100", "LARGE = 10", {*OURS}, id="what an edit is"
        ),
    ],
)
def test_what_a_change_has_tried_again(
    copied: Path, before: dict[str, str], name: str, was: str, becomes: str, moved: set[str]
) -> None:
    path = copied / name
    text = path.read_text(encoding="utf-8")
    assert was in text
    path.write_text(text.replace(was, becomes, 1), encoding="utf-8")
    try:
        now = digests(copied)
    finally:
        path.write_text(text, encoding="utf-8")
    assert {each for each in OURS if now[each] != before[each]} == moved
