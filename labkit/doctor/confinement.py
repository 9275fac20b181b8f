"""By what the code of students can be confined and limited here: each kind is tried."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from labkit.cgroups import NoGroup, divisible_group
from labkit.doctor.finding import Finding, output_of

SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
ALLOW_NAMESPACES = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; Ubuntu: an AppArmor profile)"
)
_GRADER_SECONDS = 90.0  # for the grader's own trial, which ends by itself after 60
OWN_GROUP = "with cgroup v2, start grading by systemd-run --user --scope -p Delegate=yes"


def probe_sandbox() -> list[Finding]:
    """By what student code can be confined here: each kind is actually entered, the better one first.
    LABKIT_SANDBOX names the one to use, as it does for the grader.
    """
    wanted = os.environ.get("LABKIT_SANDBOX", "")
    refusals = []
    if wanted in ("", "bubblewrap"):
        refusal = _bubblewrap_refuses() or _grader_refuses("bubblewrap")
        if not refusal:
            return [Finding("sandbox", "ok", f"bubblewrap works: {_what_that_means()}")]
        refusals.append(refusal)
    if wanted in ("", "apptainer"):
        refusal = apptainer_refuses() or _grader_refuses("apptainer")
        if not refusal:
            says = (
                f"Apptainer works: {_what_that_means()}. Inside, student code is still your user, "
                "and /dev/shm is limited by looking only (autograder/README.md has what it cannot give)"
            )
            return [Finding("sandbox", "note", "; ".join([*refusals, says]))]
        refusals.append(refusal)
    if not refusals:
        return [Finding("sandbox", "missing", f"LABKIT_SANDBOX={wanted}: bubblewrap or apptainer expected")]
    says = f"{'; '.join(refusals)}: submissions cannot be graded here; lessons are not affected"
    installed = shutil.which("bwrap") is not None
    return [
        Finding("sandbox", "missing", says, ALLOW_NAMESPACES if installed else "apt-get install bubblewrap")
    ]


def probe_limits() -> list[Finding]:
    """By what the sandbox of graded work is limited: whether a control group is made, by making one."""
    if not shutil.which("bwrap") and not shutil.which("apptainer"):
        return []
    try:
        return [
            Finding("limits", "ok", f"the kernel counts all that a sandbox uses, below {divisible_group()}")
        ]
    except NoGroup as reason:
        says = (
            "a sandbox's memory and processes are counted by looking, 30 times a second, and buffers of "
            f"sockets and pipes bounded but not counted: {reason}"
        )
        return [Finding("limits", "note", says, OWN_GROUP)]


def _has_grader() -> bool:
    return find_spec("autograder") is not None


def _what_that_means() -> str:
    """What can be said of a kind that was not refused."""
    if _has_grader():
        return "submissions can be graded here"
    return "a program is confined; what else grading needs was not tried, as the grader is not installed here"


def _grader_refuses(kind: str) -> str:
    """Why the grader, where it is installed, cannot use a kind that confines; empty when it can. It needs
    more than that: with bubblewrap, a network for each rank and cables between them.
    """
    if not _has_grader():
        return ""
    status, answer = output_of(sys.executable, "-m", "autograder.sandbox", kind, seconds=_GRADER_SECONDS)
    return "" if status == 0 else f"{kind} confines, but the grader cannot use it: {answer[-400:]}"


def _bubblewrap_refuses() -> str:
    """Why bubblewrap cannot confine a program here; empty when it can."""
    if not shutil.which("bwrap"):
        return "no bubblewrap"
    inside = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000))"  # a user and a network
    status, answer = output_of(
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc"),
        *(sys.executable, "-I", "-S", "-c", inside),
    )
    if status == 255:
        return "bubblewrap works, but ranks cannot be kept apart in it: no user namespaces inside"
    return "" if status == 0 else f"bubblewrap is installed but refused: {answer[-200:]}"


def apptainer_refuses() -> str:
    """Why Apptainer cannot confine a program here, with a network and calls of its own; empty when it can."""
    apptainer = shutil.which("apptainer")
    if not apptainer:
        return "no Apptainer"
    try:
        made = tempfile.TemporaryDirectory(prefix="labkit-doctor-")
    except OSError as error:
        return f"Apptainer cannot be tried: {error}"
    with made as folder:
        root, profile = Path(folder, "root"), Path(folder, "seccomp.json")
        for path in (*SYSTEM, "/proc", "/dev", "/tmp"):
            Path(f"{root}{path}").mkdir(parents=True)
        profile.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
        system = [part for path in SYSTEM if Path(path).exists() for part in ("--bind", f"{path}:{path}:ro")]
        alone = ["--silent", "exec", "--containall", "--net", "--network", "none", "--no-privs"]
        limited = ["--no-mount", "home,cwd", "--security", f"seccomp:{profile}", *system, str(root)]
        status, answer = output_of(apptainer, *alone, *limited, "/bin/cat", "/proc/self/status")
    if status == 0 and "Seccomp:\t2" in answer:
        return ""
    return f"Apptainer is installed but refused: {'no seccomp filter' if status == 0 else answer[-200:]}"
