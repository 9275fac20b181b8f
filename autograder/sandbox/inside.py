"""The program that runs in the sandbox: takes a request a line, runs it on ranks, leaves answers under /out.

It is mounted as a single file and imports nothing of the grader. Student code runs in processes forked from
the launch engine, never in this one; after each request everything else in here is killed, so that nothing
a student started is there for the next. Nothing this program says is evidence: the grader believes files,
counters and its own clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autograder.sandbox.within.mesh import Mesh
from autograder.sandbox.within.place import KEEPER, Places, cases_are_over, hand_in_each_answer
from autograder.sandbox.within.printed import kept_together

PR_SET_DUMPABLE = 4
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PRINTED = "printed.log"  # of all ranks of a job that share what there is
EXPECTED, FAILURE, WIRE = "expected.json", "failure.json", "wire.json"
ALONE = "autograder.sandbox.within.place:run_rank"
WITH_OPTIMIZERS = ("02", "04", "08")  # lessons
AGENT_ENDED = "the process that looks after the ranks was ended"


def run_on_rank(directory: str) -> None:
    """What each rank of a job calls. The job's own files are in a folder of the request's."""
    from labkit.checks.execute import run_rank

    if KEEPER in os.environ:
        hand_in_each_answer()
    try:
        run_rank(str(Path(directory).parent))
    finally:
        if KEEPER in os.environ:
            cases_are_over()


def main(requests: Path, out: Path, course: str, limits: dict[str, int], apart: bool) -> None:
    """Serve requests until the grader closes the pipe. apart: each rank in a place of its own."""
    sys.path.insert(0, course)
    if apart:
        become_keeper()
    os.environ.update(HOME="/tmp", USER="student", LOGNAME="student", OMP_NUM_THREADS="1", TMPDIR="/tmp")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # /proc has a list of the host's, and each rank would take one
    _limit(limits)
    replies = _private_replies()
    _import_what_ranks_need()
    _say(replies, "ready")
    for line in sys.stdin:
        _refuse_to_be_traced()  # not sooner: until here the grader may look in, and nobody else is here
        name = json.loads(line)["request"]
        clear(out)  # the grader has taken what it wanted of the last request
        shutil.copytree(requests / name, out / name)
        failure = run_job_apart(out / name, limits) if apart else run_job(out / name)
        if alone():
            end_leftovers()
        if failure:
            with contextlib.suppress(OSError):
                (out / name / FAILURE).write_text(json.dumps(failure))
        _say(replies, name)


def clear(folder: Path) -> None:
    """Remove all that is in it, as far as that can be done: its size is limited."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError, RecursionError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def forbidden_in(directory: Path) -> tuple[str, ...]:
    """The dotted names that the exercise of a request forbids."""
    from labkit.checks import registry

    return registry.exercise(json.loads((directory / "request.json").read_text())["exercise"]).forbids


def become_keeper() -> None:
    """Take a user namespace in which this process may give each rank a place of its own. Ranks may not."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace can be had inside the sandbox")
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(line)


def run_job_apart(directory: Path, limits: dict[str, int]) -> dict[str, Any] | None:
    """`run_job` with each rank in a place of its own; what their cables carried is left there.

    Where the host gives no networks, nothing is run or left: that nothing was counted tells the grader.
    """
    from labkit.checks.disarm import sources_of

    about = json.loads((directory / "request.json").read_text())
    names = json.loads((directory / EXPECTED).read_text())
    hidden = list(sources_of(forbidden_in(directory)))
    try:
        made = Mesh(about["ranks"])
    except OSError as error:  # not the student's doing: none of their code is here yet
        print(f"the ranks have no networks: {error}", file=sys.stderr, flush=True)
        return None
    with made as mesh:
        listener = mesh.listener
        most = limits["RLIMIT_FSIZE"] // about["ranks"]
        places = Places(mesh.places, listener.fileno(), listener.getsockname()[1], most, names, hidden)
        failure = run_job(directory, places)
        (directory / WIRE).write_text(json.dumps(asdict(mesh.counted())))
    return failure


def run_job(directory: Path, places: Places | None = None) -> dict[str, Any] | None:
    """Run one request as a job of torch's elastic agent, in a forked process; how it failed, if it did."""
    from labkit.checks.registry import module_of
    from labkit.launch import standalone
    from labkit.launch.engine.facts import read_verdict
    from labkit.launch.engine.forkserver import import_for_ranks
    from labkit.launch.failure.errors import failure_text
    from labkit.launch.handover.request import RANK

    about = json.loads((directory / "request.json").read_text())
    import_for_ranks([module_of(about["exercise"]), *imported_late(about["exercise"])])
    job = directory / "job"
    job.mkdir()
    if places is not None:
        places.write(job)
    with contextlib.ExitStack() as meanwhile:
        reader = [] if places else meanwhile.enter_context(kept_together(job / PRINTED))
        answer = standalone.run(
            job,
            "inside:run_on_rank",
            about["ranks"],
            about["timeout"],
            "gloo",
            rank=ALONE if places else RANK,
            outlive=reader,
        )
    if answer["verdict"] == "finished":
        return None
    diagnosis = read_verdict(job)
    if diagnosis is None:
        return {"verdict": "error", "message": AGENT_ENDED}
    return {"verdict": diagnosis.verdict, "message": failure_text(diagnosis, [])[:20000]}


def imported_late(exercise: str) -> tuple[str, ...]:
    """What torch imports on every rank of these lessons when it first meets an optimizer, and so for half a
    second each.
    """
    from labkit.torch_private import IMPORTED_BY_OPTIMIZERS

    return (IMPORTED_BY_OPTIMIZERS,) if exercise[:2] in WITH_OPTIMIZERS else ()


def end_leftovers() -> None:
    """Kill every process that a request started and did not end."""
    for _ in range(1000):
        left = [
            int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())
        ]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.003)
    os._exit(3)  # something keeps coming back: the grader starts over with the next request


def alone() -> bool:
    """Whether this is a sandbox with processes of its own: only then may all others be killed."""
    firsts = ("bwrap", "appinit", "starter")  # the last is Apptainer's until it has taken the name before it
    try:
        return os.getppid() == 1 and Path("/proc/1/comm").read_text().startswith(firsts)
    except OSError:
        return False


def _import_what_ranks_need() -> None:
    """Import, and do nothing: a process that has computed with threads cannot be forked."""
    import labkit.checks.execute  # noqa: F401
    from labkit import processes
    from labkit.launch.engine.forkserver import import_for_backward, warm_up

    processes.adopt_orphans()
    import_for_backward()
    warm_up()


def _refuse_to_be_traced() -> None:
    """Neither this process nor its children can be traced, or have their memory written, by one another."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def _limit(limits: dict[str, int]) -> None:
    for name, most in limits.items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))


def _private_replies() -> int:
    """The pipe to the grader, moved to a number that no child inherits; stdout becomes stderr."""
    replies = os.dup(1)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=lambda: os.close(replies))
    return replies


def _say(replies: int, text: str) -> None:
    os.write(replies, json.dumps(text).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]), sys.argv[5] == "apart")
