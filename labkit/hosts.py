"""What this machine has for ranks: cores, memory and GPUs, found without waking CUDA in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from labkit.cgroups import own_groups

CUDA_TORCH = "make clean env TORCH_INDEX=   (installs torch with CUDA)"
RANKS_WITHOUT_GPU = 4  # on one machine, where nobody says how many
_MOST_ON_A_CORE = 32  # they would only wait for one another, and each takes memory


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a job go. devices: GPU index of each rank, empty on CPU. notes: for the user.

    threads: those that a rank computes with on the CPU.
    """

    ranks: int
    backend: str
    devices: tuple[int, ...]
    threads: int
    notes: tuple[str, ...] = ()


def wrong_system() -> str:
    """Why ranks cannot be started on this system, and what to do; "" on Linux, where they can.

    What a job started is found and ended by Linux's own means: /proc, signals at a parent's end, its sockets.
    """
    if sys.platform.startswith("linux"):
        return ""
    remedy = "use WSL 2 on Windows, or a Linux container or machine"
    return f"labkit starts ranks on Linux, and this is {platform.system() or sys.platform}: {remedy}"


def choose_placement(
    ranks: int | None, backend: str | None, environment: Mapping[str, str] = os.environ
) -> Placement:
    """Ranks, backend, devices and threads for what was asked and what there is. environment: of the ranks.

    One rank a GPU with NCCL when the GPUs suffice; more ranks than GPUs share them and talk over gloo. A rank
    computes with one thread, as torchrun has it, unless OMP_NUM_THREADS says otherwise: OpenMP's threads spin
    while they wait for each other, and on a node of several notebooks, each with a thread a core, a training
    of a second took more than a minute.
    ValueError for a backend that cannot work here.
    """
    gpus, notes = usable(gpu_count(environment))
    if notes and backend == "nccl":
        raise ValueError(f"backend='nccl': {notes[0]}")
    ranks = ranks or gpus or RANKS_WITHOUT_GPU
    if ranks > _MOST_ON_A_CORE * cores():
        most = f"{_MOST_ON_A_CORE * cores()} on the {cores()} cores here ({_MOST_ON_A_CORE} a core)"
        raise ValueError(f"ranks={ranks}: expected at most {most}; take fewer, or more nodes")
    chosen = backend_for(backend, ranks, gpus)
    if backend is None and 0 < gpus < ranks:
        plural = "s" if gpus > 1 else ""
        notes += (f"{ranks} ranks share {gpus} GPU{plural}, so they communicate over gloo, not NCCL: slower",)
    devices = tuple(rank % gpus for rank in range(ranks)) if gpus else ()
    return Placement(ranks, chosen, devices, threads_said(environment) or 1, notes)


def usable(gpus: int) -> tuple[int, tuple[str, ...]]:
    """How many of a machine's GPUs ranks can take with this torch, and notes why not all."""
    if gpus == 0 or torch_has_cuda():
        return gpus, ()
    plural = "s" if gpus > 1 else ""
    return 0, (f"{gpus} GPU{plural} there, and a torch without CUDA: ranks run on the CPU; {CUDA_TORCH}",)


def usable_here() -> int:
    """How many of this machine's GPUs ranks can take."""
    return usable(gpu_count())[0]


def torch_has_cuda() -> bool:
    """Whether the torch that is installed was built with CUDA, as its own file says; without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    told = re.search(r"^cuda\b.*=\s*(.+)$", _text(Path(spec.origin).with_name("version.py")), re.MULTILINE)
    return told is not None and told[1].strip() != "None"


def threads_said(environment: Mapping[str, str]) -> int | None:
    """What OMP_NUM_THREADS says, of several numbers (one for each level of nesting) the first; else None.

    ValueError for what is no number.
    """
    said = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if not said:
        return None
    if not said.isdecimal():
        raise ValueError(f"OMP_NUM_THREADS must be a number of threads, found {said!r}: set or unset it")
    return max(1, int(said))


def backend_for(wanted: str | None, ranks: int, gpus: int) -> str:
    """What so many ranks on a machine of so many GPUs talk over: NCCL with a GPU for each, else gloo.

    ValueError for a wanted backend that cannot work there.
    """
    if wanted not in (None, "gloo", "nccl"):
        raise ValueError(f"backend must be 'gloo' or 'nccl', found {wanted!r}")
    if wanted == "nccl" and gpus < ranks:
        raise ValueError(
            f"backend='nccl' needs one GPU a rank: {ranks} ranks, {gpus} GPUs there; use backend='gloo'"
        )
    return wanted or ("nccl" if ranks <= gpus else "gloo")


def cores() -> int:
    """CPU cores that this process may use: those it may run on, cut to the quota of a container or job."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _quotas():
        if quota.isdigit() and period.isdigit():
            found = min(found, max(1, int(quota) // int(period)))
    return found


def _quotas() -> Iterator[tuple[str, str]]:
    """How long this process's groups may run, and in what time, as version 2 and version 1 tell it."""
    for group in _groups():
        quota, _, period = _first_line(group / "cpu.max").partition(" ")
        yield quota, period
    for group in _groups("cpu"):
        yield _first_line(group / "cpu.cfs_quota_us"), _first_line(group / "cpu.cfs_period_us")


def free_memory() -> int:
    """Bytes that can still be taken: what is available here, cut to the limit of a container or job."""
    import psutil

    found = int(psutil.virtual_memory().available)
    files = [(group, "memory.max", "memory.current", "inactive_file") for group in _groups()]
    files += [
        (group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for group in _groups("memory")
    ]
    for group, limit, used, cached in files:
        most, now = _first_line(group / limit), _first_line(group / used)
        if most.isdigit() and now.isdigit():
            found = min(found, max(0, int(most) - int(now) + _counted(group / "memory.stat", cached)))
    return found


def _counted(path: Path, name: str) -> int:
    """A number of a group's. Pages of files that were not used of late stand there: the kernel takes these
    back before it refuses anybody memory, so what is counted against a limit is more than is taken.
    """
    told = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(told[1]) if told else 0


def _groups(controller: str = "") -> list[Path]:
    """The control groups whose limits count for this process, as `own_groups` has them."""
    with contextlib.suppress(OSError, ValueError):
        return list(own_groups(controller=controller))
    return []


def _first_line(path: Path) -> str:
    return _text(path).partition("\n")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def gpu_count(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """GPUs that a process with this environment sees, respecting CUDA_VISIBLE_DEVICES.

    In a container the devices count, and in a job those that it may open: the driver's own list may have all
    of the machine, or be missing. Where nothing has made the devices yet, the first use of CUDA does, and the
    list counts.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len(list(takewhile(_names_gpu, visible.split(","))))
    devices = [path for path in root.glob("dev/nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    if devices:
        return sum(os.access(path, os.R_OK | os.W_OK) for path in devices)
    return len(list(root.glob("proc/driver/nvidia/gpus/*")))


def _names_gpu(part: str) -> bool:
    """Whether CUDA takes it for a GPU: the first that it does not ends the list ("-1", "NoDevFiles")."""
    return part.strip().isdecimal() or part.strip().startswith(("GPU-", "MIG-"))
