"""What this host can do for the course, found out by trying, and what would add the rest.

Nothing here touches CUDA, starts ranks or imports torch in this process: whatever could hang or hold a device
is asked of a short-lived child with a deadline.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

State = Literal["ok", "note", "missing", "failed"]

TESTED_TORCH = "2.13"  # what constraints.txt pins
OLDEST_TORCH = (2, 6)
GIB = 2**30
MIB = 2**20
RANK_BYTES = 200 * MIB  # a rank's own: 60 when forked from the warm engine, and a lesson's tensors
MOST_RANKS = 16  # what lessons ask for at most, with room
_SECONDS = 30.0  # for any one child
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    state: "ok"; "note", usable with a remark; "missing", something optional is not there; "failed", the
        course does not run without it.
    """

    topic: str
    state: State
    says: str
    install: str = ""  # the command that adds what is missing


def examine() -> list[Finding]:
    """Look at everything, side by side. Takes as long as importing torch once does."""
    with ThreadPoolExecutor(len(PROBES)) as pool:
        return [finding for findings in pool.map(lambda probe: probe(), PROBES) for finding in findings]


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """{"host", "python", "findings": [{"topic", "state", "says", "install"}]}"""
    return {
        "host": socket.gethostname(),
        "python": sys.executable,
        "findings": [asdict(finding) for finding in findings],
    }


def to_table(findings: Sequence[Finding]) -> str:
    """The same to read in a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{socket.gethostname()}: what the course can use", title_justify="left", box=None)
    for column in ("", "topic", "found"):
        table.add_column(column)
    colours = {"ok": "green", "note": "yellow", "missing": "yellow", "failed": "red"}
    for finding in findings:
        says = finding.says + (f"\n-> {finding.install}" if finding.install else "")
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", finding.topic, _plain(says))
    console = Console(width=shutil.get_terminal_size((110, 24)).columns, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _output(*command: str, seconds: float = _SECONDS) -> tuple[int, str]:
    """Exit status and output of a child: 124 when ended at its deadline, 127 when it does not exist."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {seconds:g} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def probe_python() -> list[Finding]:
    """Which Python runs."""
    return [Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")]


_ASK_TORCH = """
import json, torch, torch.distributed as dist
gpus = []
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        gpus.append([about.name, about.total_memory])
backends = [name for name in ("gloo", "nccl", "mpi", "ucc")
            if dist.is_available() and getattr(dist, f"is_{name}_available", lambda: False)()]
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus, "backends": backends}))
"""


def probe_torch() -> list[Finding]:
    """The torch that is installed, the devices it sees, and the backends it has."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [Finding("torch", "failed", "not installed", "make env")]
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST_TORCH:
        return [Finding("torch", "failed", f"{version}; the course needs 2.6 or newer", "make env")]
    tested = f"{release[0]}.{release[1]}" == TESTED_TORCH
    remark = "the tested release" if tested else f"not the tested release, which is {TESTED_TORCH}"
    about = ask_torch()
    if "problem" in about:
        return [Finding("torch", "failed", f"{version} does not import: {about['problem']}", "make env")]
    return [
        Finding(
            "torch",
            "ok" if tested else "note",
            f"{version}, {remark}; CUDA {about['cuda'] or 'not built in'}",
        ),
        _devices(about["gpus"]),
        _backends(about["backends"], bool(about["gpus"])),
    ]


def ask_torch() -> dict[str, Any]:
    """{"cuda", "gpus": [[name, bytes]], "backends"} as torch tells it in a child, or {"problem"}."""
    status, answer = _output(sys.executable, "-c", _ASK_TORCH, seconds=60)
    try:
        about: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        return {"problem": f"exit {status}: {answer[-300:]}"}
    return about


def _devices(gpus: list[tuple[str, int]]) -> Finding:
    if gpus:
        named = ", ".join(f"{name} ({memory / GIB:.0f} GiB)" for name, memory in gpus)
        return Finding("devices", "ok", f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}, one rank each: {named}")
    if shutil.which("nvidia-smi") and _output("nvidia-smi", "-L")[0] == 0:
        fix = "make clean env TORCH_INDEX=   (installs torch with CUDA)"
        return Finding("devices", "note", "there is an NVIDIA driver, but this torch sees no GPU", fix)
    return Finding("devices", "ok", "no GPU: ranks run on the CPU, which every lesson can")


def _backends(backends: list[str], gpus: bool) -> Finding:
    listed = ", ".join(backends) or "none"
    if "gloo" not in backends:
        return Finding("backends", "failed", f"{listed}; ranks on the CPU need gloo", "make env")
    if gpus and "nccl" not in backends:
        return Finding("backends", "note", f"{listed}; ranks on GPUs need NCCL, so they run on the CPU")
    return Finding("backends", "ok", listed)


def probe_ranks() -> list[Finding]:
    """Cores we may use, memory we may use, and how many ranks at once that holds."""
    cores = usable_cores()
    free = usable_memory()
    fit = min(MOST_RANKS, int(free * 0.8 / RANK_BYTES))
    at_once = f"{min(cores, fit)} compute at the same time, more take turns"
    state: State = "ok" if fit >= 8 else "note" if fit >= 4 else "failed"
    return [
        Finding("cores", "ok", f"{cores} of {os.cpu_count()} usable"),
        Finding("memory", "ok" if free >= 4 * GIB else "note", f"{free / GIB:.1f} GiB free to use"),
        Finding("ranks", state, f"{fit} fit ({RANK_BYTES // MIB} MiB each, lessons use up to 8); {at_once}"),
    ]


def usable_cores() -> int:
    """Cores this process may run on: the affinity mask, cut to a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _first_line("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def usable_memory() -> int:
    """Bytes that can still be taken: what is available on the host, cut to a container's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _first_line(f"/sys/fs/cgroup/{limit}"), _first_line(f"/sys/fs/cgroup/{used}")
        if most.isdigit() and now.isdigit():
            available = min(available, max(0, int(most) - int(now)))
    return available


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0]
    except OSError:
        return ""


def probe_shared_memory() -> list[Finding]:
    """Room in /dev/shm, for data loaders with workers."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return [Finding("shared memory", "note", "no /dev/shm; data loaders with workers will not run")]
    if free < 256 * MIB:
        fix = "docker run --shm-size=2g ... (or ask for it in the Hub's container settings)"
        return [
            Finding(
                "shared memory",
                "note",
                f"{free // MIB} MiB in /dev/shm; NCCL and data loaders want more",
                fix,
            )
        ]
    return [Finding("shared memory", "ok", f"{free / GIB:.1f} GiB in /dev/shm")]


def probe_temporary_folder() -> list[Finding]:
    """The folder for jobs: writable, with room, and short enough for a socket's path (108 bytes)."""
    folder = tempfile.gettempdir()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="labkit-doctor-") as made,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            Path(made, "file").write_bytes(b"x" * MIB)
            probe.bind(str(Path(made, "socket")))
    except OSError as error:
        return [
            Finding(
                "temporary folder", "failed", f"{folder}: {error}", "export TMPDIR=/path/to/a/short/folder"
            )
        ]
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free > GIB else "note"
    return [Finding("temporary folder", state, f"{folder}, {free / GIB:.1f} GiB free")]


def probe_packages() -> list[Finding]:
    """The parts of the course that not everyone installs."""
    parts = (
        ("JupyterLab", ("jupyterlab",), "make lab"),
        ("grading", ("nbgrader", "jupytext", "nbclient"), "make env"),
    )
    found = []
    for topic, modules, fix in parts:
        lacking = [name for name in modules if importlib.util.find_spec(name) is None]
        if lacking:
            found.append(Finding(topic, "missing", f"not installed: {', '.join(lacking)}", fix))
        else:
            versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in modules)
            found.append(Finding(topic, "ok", versions))
    return found


SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
ALLOW_NAMESPACES = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; Ubuntu: an AppArmor profile)"
)


def probe_sandbox() -> list[Finding]:
    """By what student code can be confined here: each kind is actually entered, the better one first.
    LABKIT_SANDBOX names the one to use, as it does for the grader.
    """
    wanted = os.environ.get("LABKIT_SANDBOX", "")
    refusals = []
    if wanted in ("", "bubblewrap"):
        refusal = _bubblewrap_refuses()
        if not refusal:
            return [Finding("sandbox", "ok", "bubblewrap works: submissions can be graded here")]
        refusals.append(refusal)
    if wanted in ("", "apptainer"):
        refusal = apptainer_refuses()
        if not refusal:
            says = (
                "Apptainer works: submissions can be graded here. Inside, student code is still your user, "
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


def _bubblewrap_refuses() -> str:
    """Why bubblewrap cannot confine a program here; empty when it can."""
    if not shutil.which("bwrap"):
        return "no bubblewrap"
    inside = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000))"  # a user and a network
    status, answer = _output(
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
    with tempfile.TemporaryDirectory(prefix="labkit-doctor-") as folder:
        root, profile = Path(folder, "root"), Path(folder, "seccomp.json")
        for path in (*SYSTEM, "/proc", "/dev", "/tmp"):
            Path(f"{root}{path}").mkdir(parents=True)
        profile.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
        system = [part for path in SYSTEM if Path(path).exists() for part in ("--bind", f"{path}:{path}:ro")]
        alone = ["--silent", "exec", "--containall", "--net", "--network", "none", "--no-privs"]
        limited = ["--no-mount", "home,cwd", "--security", f"seccomp:{profile}", *system, str(root)]
        status, answer = _output(apptainer, *alone, *limited, "/bin/cat", "/proc/self/status")
    if status == 0 and "Seccomp:\t2" in answer:
        return ""
    return f"Apptainer is installed but refused: {'no seccomp filter' if status == 0 else answer[-200:]}"


def probe_apptainer() -> list[Finding]:
    """Whether Apptainer is there."""
    for name in ("apptainer", "singularity"):
        if shutil.which(name):
            status, answer = _output(name, "--version")
            return [Finding("container", "ok" if status == 0 else "note", answer[-200:])]
    return [Finding("container", "missing", "no Apptainer; only needed to run the course from an image")]


def probe_slurm() -> list[Finding]:
    """Whether there is a cluster to send jobs to, and whether we are in one of its jobs."""
    if not shutil.which("sinfo"):
        says = "not here; only needed for jobs on several nodes and for grading large classes"
        return [Finding("Slurm", "missing", says, "apt-get install slurm-wlm (a cluster has it already)")]
    status, answer = _output("sinfo", "--noheader", "--format=%P %D %t", seconds=10)
    if status != 0:
        reason = answer.splitlines()[-1] if answer else f"exit {status}"
        return [Finding("Slurm", "note", f"installed, but no controller answers: {reason}")]
    inside = f"; this is job {job}" if (job := os.environ.get("SLURM_JOB_ID")) else ""
    partitions = "; ".join(" ".join(line.split()) for line in answer.splitlines()[:6])
    return [Finding("Slurm", "ok", f"partitions, nodes, state: {partitions}{inside}")]


def find_browser() -> str | None:
    """A Chromium the browser tests can drive, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def probe_browser() -> list[Finding]:
    """Whether Chromium is there, for the tests that look at lessons."""
    path = find_browser()
    if path is None:
        says = "no Chromium; only the tests that look at the lessons need one"
        return [Finding("browser", "missing", says, "apt-get install chromium")]
    status, answer = _output(path, "--version")
    version = answer.splitlines()[-1] if answer else f"exit {status}"
    return [Finding("browser", "ok" if status == 0 else "note", f"{path}: {version}")]


PROBES: tuple[Callable[[], list[Finding]], ...] = (
    probe_python,
    probe_torch,
    probe_ranks,
    probe_shared_memory,
    probe_temporary_folder,
    probe_packages,
    probe_sandbox,
    probe_apptainer,
    probe_slurm,
    probe_browser,
)
