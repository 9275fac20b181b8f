"""What a rank of a graded job can see and reach, told by the rank itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import F_ID, SEED, solution

from autograder.grade.harness import Harness
from autograder.grade.reference import REPOSITORY
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import MIB, Limits
from autograder.sandbox.within.printed import KEPT
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(200)]

# In place of the exercise's backward: an error whose text is what the rank has found, in few words.
LOOK = """
import glob, os, socket, ctypes
import torch

def places():
    libc = ctypes.CDLL(None, use_errno=True)
    status = [libc.unshare(0x10000000), libc.umount2(b"/out", 2), libc.ptrace(16, 2, 0, 0)]
    try:
        socket.socket(socket.AF_UNIX)
        status.append("unix")
    except OSError:
        pass
    rank = os.environ["RANK"]
    inputs = [os.path.basename(path) for path in glob.glob("/out/*/*.safetensors")]
    return {"pid": os.getpid(), "parent": os.getppid(),
            "inputs": inputs == [f"inputs.rank{rank}.safetensors"],
            "empty": [os.listdir(p) for p in ("/in", "/tmp", "/dev/shm")],
            "proc": os.listdir("/proc"),
            "refused": [s for s in status if s != -1]}

class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        raise ValueError("FOUND" + repr(places()) + "END")
"""


def test_a_rank_is_alone_with_its_own_inputs(
    harness: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    graded = harness.grade(f_exercise, [Cell("cell 1", LOOK)], SEED, two_ranks[:1])
    texts = [*(row.seen for row in graded.report.rows), *(stop.text for stop in graded.report.stops)]
    told = next(text for text in texts if "FOUND" in text)
    found = ast.literal_eval(told.partition("FOUND")[2].partition("END")[0])
    environment = [Path(sys.prefix).parts[2]] if sys.prefix.startswith("/tmp/") else []
    assert found == {
        "pid": 1,
        "parent": 0,
        "inputs": True,
        "empty": [[], environment, []],
        "proc": ["cpuinfo"],
        "refused": [],
    }


# The answer of 06's first exercise, which keeps x for backward, and tells otherwise when a group ends.
REWRITE = """
import json
import weakref
from pathlib import Path
import torch
import torch.distributed as dist

def rewrite():
    for path in Path("/out").rglob("case*.json"):
        told = json.loads(path.read_text())
        if "kept_bytes" in told["facts"]:
            told["facts"]["kept_bytes"] = 0
            path.write_text(json.dumps(told))

class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        ctx.save_for_backward(x)
        weakref.finalize(group, rewrite)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
"""


@pytest.mark.days
def test_what_runs_after_an_answer_changes_nothing_of_it(harness: Harness, f_exercise: Exercise) -> None:
    graded = harness.grade(f_exercise, [Cell("cell 1", REWRITE)], SEED)
    lost = {row.name: row.seen for row in graded.report.rows if not row.passed}
    assert len(lost) == 1
    assert "bytes" in next(iter(lost.values()))


PRINTS_MUCH = """
def _printing(cls):
    own = cls.forward
    def forward(ctx, x, group):
        print("A" * 20_000_000)
        return own(ctx, x, group)
    cls.forward = staticmethod(forward)
    return cls

"""


@pytest.mark.days
def test_what_is_printed_takes_no_room_from_the_answers(f_exercise: Exercise, two_ranks: list[Case]) -> None:
    """A right answer that prints more in a call than all answers together may have."""
    text = PRINTS_MUCH + solution(F_ID).replace("class CopyTo", "@_printing\nclass CopyTo", 1)
    with Harness(find_sandbox(Limits(answers=8 * MIB), kind="bubblewrap")) as harness:
        report = harness.grade(f_exercise, [Cell("cell 1", text)], SEED, two_ranks).report
        assert harness._confined is not None
        logs = [path.read_bytes() for path in harness._confined.out.glob("*/job/rank*.log")]
    assert not report.stops, report.stops
    assert all(report.row(name).passed for name in ("forward-values", "input-gradients")), report
    assert len(logs) == 2
    assert all(KEPT < len(log) < KEPT + 200 and log.endswith(b"the rest was dropped]\n") for log in logs)


PRINT_TOGETHER = """
import os, sys
from pathlib import Path
from autograder.sandbox.within.printed import kept_together
from labkit.launch.engine.streams import redirect_output
with kept_together(Path(sys.argv[1])):
    rank = os.fork()
    if rank == 0:
        redirect_output(Path("a log of its own"))
        print("begun", "x" * 20_000_000)
        os._exit(0)
    os.waitpid(rank, 0)
"""


def test_ranks_that_have_all_in_common_print_up_to_a_bound_too(tmp_path: Path) -> None:
    log, environment = tmp_path / "log", {"PYTHONPATH": str(REPOSITORY)}
    told = subprocess.run(
        [sys.executable, "-c", PRINT_TOGETHER, str(log)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (told.stdout, told.stderr) == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    text = log.read_text()
    assert text.startswith("begun xxx")
    assert text.endswith("KiB were printed: the rest was dropped]\n")
    assert len(text) < KEPT + 200


PRINT_LAST = """
import os, signal, sys
from pathlib import Path
from autograder.sandbox.within.printed import kept_together
from labkit import processes
from labkit.launch import standalone
from labkit.launch.engine.forkserver import warm_up

def crash(directory):
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    processes.adopt_orphans()
    warm_up()
    with kept_together(Path("log")) as reader:
        os.kill(*reader, signal.SIGSTOP)  # it has read nothing when the job is over
        standalone.run(Path("job"), "printing:crash", 1, 20.0, "gloo", outlive=reader)
        os.kill(*reader, signal.SIGCONT)
    print(processes.children())
"""


@pytest.mark.days
def test_what_was_printed_before_a_crash_is_kept(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "printing.py").write_text(PRINT_LAST)
    told = subprocess.run(
        [sys.executable, "printing.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout == "[]\n", told.stderr
    assert "last words" in (tmp_path / "log").read_text()


FORGET = """
import mmap, os, resource, sys
from autograder.sandbox.within.place import _forget_shared_memory
shared = mmap.mmap(-1, 4096)
child = os.fork()
if child == 0:
    if sys.argv[1] == "short":
        resource.setrlimit(resource.RLIMIT_DATA, (0, 0))
    try:
        _forget_shared_memory()
        shared[:5] = b"child"
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(shared[:5])
"""


@pytest.mark.parametrize(
    ("memory", "told"), [("enough", []), ("short", ["[Errno 12] mmap: Cannot allocate memory"])]
)
def test_memory_is_shared_no_more_or_that_is_told(memory: str, told: list[str]) -> None:
    """A rank that shared some with the others could write into theirs."""
    done = subprocess.run(
        [sys.executable, "-c", FORGET, memory],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [*told, repr(bytes(5))], done.stderr


REPLACE = """
import subprocess, sys
from pathlib import Path
from autograder.sandbox.within.place import replace_folder
folder, kept = Path(sys.argv[1]), Path(sys.argv[1], "an environment")
subprocess.run(["mount", "--bind", "--make-private", sys.argv[2], kept], check=True)
replace_folder(str(folder), 2**20, 100)
names = [path.name for path in folder.iterdir()]
print(names, (kept / "module.py").read_text(), (kept / "below" / "x").read_text())
"""


def test_what_stands_in_a_folder_that_is_replaced_stays(tmp_path: Path) -> None:
    """An environment in /tmp is still there when a rank has a /tmp of its own; other files are not."""
    folder, environment = tmp_path / "tmp", tmp_path / "elsewhere"
    (environment / "below").mkdir(parents=True)
    (folder / "an environment").mkdir(parents=True)
    (folder / "somebody").write_text("secret")
    (environment / "module.py").write_text("code")
    (environment / "below" / "x").write_text("more")
    told = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", REPLACE, str(folder), str(environment)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout.strip() == "['an environment'] code more", told.stderr


def test_the_bytes_between_two_ranks_are_counted(
    harness: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """Each rank sends the other its part of the all-reduce, which is more than its data."""
    graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks[:1])
    job = graded.jobs[0]
    assert job.wire == sum(map(sum, job.pairs))
    assert job.pairs[0][0] == job.pairs[1][1] == 0
    assert min(job.pairs[0][1], job.pairs[1][0]) > job.least / 2 > 0
    assert job.least < job.wire
    assert job.missing == ()
