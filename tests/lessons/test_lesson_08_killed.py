"""Lesson 08: ranks that are really killed while they save a checkpoint, and what is loaded afterwards."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lesson_grading import graded, solved_but

import labkit
from autograder.grade.reference import graded_submission, solved_cells
from autograder.selftest.alternatives import alternatives
from autograder.selftest.wrong_answers import wrong_answers
from labkit.checks import registry
from labkit.checks.source.submission import Cell, Submission

pytestmark = pytest.mark.days()

EXERCISE = registry.exercise("08.sharded-checkpoint")
TOTAL, RANKS = 300_001, 2
ROOM = 2**18  # bytes a file may have on the disk; a part has more
EARLIER, LATER = 3, 9
Death = Callable[[Path], None]  # prepares the death of this process in what it does next


def shard_of(step: int, rank: int) -> torch.Tensor:
    size = -(-TOTAL // RANKS)
    flat = torch.zeros(size * RANKS)
    flat[:TOTAL] = step + torch.arange(TOTAL) % 1000
    return flat.chunk(RANKS)[rank]


def save_and_die(
    submission: Submission, folder: Path, victim: int, death: Death, group: dist.ProcessGroup
) -> None:
    student, rank = submission.load(), dist.get_rank(group)
    for step in (EARLIER, LATER):
        if step == LATER and rank == victim:
            death(folder)
        student.save_shards(folder, step, {"w": shard_of(step, rank)}, {"w": TOTAL}, {"at": step}, group)
    sys.setprofile(None)


def load(submission: Submission, folder: Path, group: dist.ProcessGroup) -> tuple[int, bool]:
    step, shards, extra = submission.load().load_shards(folder, group)
    right = torch.equal(shards["w"], shard_of(step, dist.get_rank(group)))
    return step, right and extra == {"at": step}


def at_change(number: int, folder: Path) -> None:
    """SIGKILL when what is in the folder has changed that often, by whichever rank."""
    seen, changes = [entries(folder)], [0]

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        now = entries(folder)
        changes[0] += now != seen[0]
        seen[0] = now
        if changes[0] >= number:
            folder.with_name("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def entries(folder: Path) -> set[tuple[str, int]]:
    found = set()
    for root, folders, files in os.walk(folder):
        found |= {(os.path.join(root, name), -1) for name in folders}
        for name in files:
            with suppress(FileNotFoundError):  # the other rank may rename it between the two
                found.add((os.path.join(root, name), Path(root, name).stat().st_size))
    return found


def in_the_middle_of_the_part(folder: Path) -> None:
    """The kernel kills the process when it makes a file larger than ROOM, amid safetensors' code."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def submitted(cells: list[Cell]) -> Submission:
    return graded_submission(cells, EXERCISE)[0]


def killed_in(submission: Submission, folder: Path, victim: int, death: Death) -> None:
    """A job in which a rank is killed while it saves step LATER. The other one may be the first to say so."""
    with pytest.raises(labkit.LaunchError, match=r"was killed|SIGKILL|SIGXFSZ|Connection"):
        labkit.launch(
            save_and_die, submission, folder, victim, death, ranks=RANKS, backend="gloo", record=False
        )


def loaded_from(submission: Submission, folder: Path) -> list[tuple[int, bool]]:
    return labkit.launch(load, submission, folder, ranks=RANKS, backend="gloo", record=False).results


# What the reference does to the folder: the step's folder, two parts, the small file, its name.
@pytest.mark.parametrize(("victim", "change"), [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2)])
def test_wherever_a_rank_is_killed_what_is_loaded_was_saved(victim: int, change: int, tmp_path: Path) -> None:
    reference = submitted(list(solved_cells("08")))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    killed_in(reference, folder, victim, partial(at_change, change))
    assert (tmp_path / "killed").exists()
    found = loaded_from(reference, folder)
    assert found in ([(EARLIER, True)] * RANKS, [(LATER, True)] * RANKS)


RIGHT = {a.name: list(a.cells) for a in alternatives("08") if a.exercise.id == EXERCISE.id}


@pytest.mark.parametrize(
    ("name", "victim"), [("reference", 0), ("reference", 1), *((name, n % 2) for n, name in enumerate(RIGHT))]
)
def test_half_a_part_is_never_loaded(name: str, victim: int, tmp_path: Path) -> None:
    submission = submitted(RIGHT.get(name) or list(solved_cells("08")))
    killed_in(submission, tmp_path, victim, in_the_middle_of_the_part)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size <= ROOM]
    assert any(str(LATER) in str(path.relative_to(tmp_path)) for path in left), "the file it died in"
    assert loaded_from(submission, tmp_path) == [(EARLIER, True)] * RANKS


def test_a_wrong_order_takes_half_a_checkpoint_for_a_whole_one(tmp_path: Path) -> None:
    """So the deaths above are ones that a wrong answer does not survive."""
    answer = next(a for a in wrong_answers("08") if a.id == "whole-before-parts")
    submission = submitted(solved_but(EXERCISE, answer.apply))
    killed_in(submission, tmp_path, 0, in_the_middle_of_the_part)
    with pytest.raises(labkit.LaunchError, match="No such file"):
        loaded_from(submission, tmp_path)


def test_a_rank_that_ends_in_a_check_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = solved_but(EXERCISE, lambda source: f"{source}\n\n{LEAVES}")
    assert graded(EXERCISE, cells, EXERCISE.cases(1)[:1]).verdict == "error"
    where = Path((tmp_path / "where").read_text())
    assert where.is_relative_to(tmp_path)
    assert not where.exists()


LEAVES = """
def save_shards(*arguments):
    import os
    with open(os.getcwd() + "/../../where", "w") as file:
        file.write(os.getcwd())
    os._exit(3)
"""
