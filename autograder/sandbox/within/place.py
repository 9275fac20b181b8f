"""The place of one rank: what it can see, reach and use, and who takes its answers from there.

A rank is two processes. The first one stays outside and looks after the second, in which the student's code
will run: the only process of a process namespace, with an own network (`mesh`), own file systems in memory
in place of /tmp, /dev/shm and /out, where it finds its own request and inputs and nothing of any other rank,
no /proc, no memory shared with anybody, no capabilities, and a filter of system calls. All that is done
before anything of a student's is loaded, and none of it can be undone from within.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import shutil
import signal
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autograder.sandbox.within import calls, mesh
from autograder.sandbox.within.printed import Output
from autograder.sandbox.within.salvage import take

if TYPE_CHECKING:
    from labkit.checks.case import RankAnswer, StudentError

PLACES = "places.json"
KEEPER = "LABKIT_RANKS_KEEPER"  # in a rank's environment: the pipes to the process that looks after it
KEPT_OUTSIDE = ("state", "stack", "end.json", "records.json")  # read while a rank runs
MIB = 2**20
OVER = -1  # in place of a case's number: there are no more answers
BEGUN = ".begun"  # ends the names of the files that say a case was begun

_CASE = struct.Struct("=i")
_NEW_MOUNTS, _NEW_IPC, _NEW_PROCESSES = 0x00020000, 0x08000000, 0x20000000
_BIND, _MOVE, _READ_ONLY, _REMOUNT, _NO_EXTRAS, _PRIVATE = 4096, 8192, 1, 32, 14, 0x44000  # MS_*
_WITH_ALL_BELOW = 16384  # MS_REC

_DEATH_SIGNAL, _DUMPABLE, _DROP_BOUND = 1, 4, 24  # prctl
_LAST_CAPABILITY = 40
_FIXED = 0x10  # MAP_FIXED
_MAP_FAILED = ctypes.c_void_p(-1).value
_CAPABILITIES_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Places:
    """What all ranks of a job have in common. networks: open namespaces, by rank. listener: an open socket
    in the first one's, for the store through which ranks meet, and its port. answers, scratch: bytes a rank
    may write under /out, and elsewhere. files: how many it may make in each. answer_names: what all ranks
    together may hand in. hidden: files that no rank may see.
    """

    networks: list[int]
    listener: int
    port: int
    answers: int
    answer_names: list[str]
    hidden: list[str]
    scratch: int = 16 * MIB
    files: int = 4000

    def write(self, job: Path) -> None:
        """Leave it where the ranks of the job will look."""
        (job / PLACES).write_text(json.dumps(asdict(self)))


def run_rank(directory: str, agent: int, bell: int) -> int:
    """One rank of the job in `directory`, in a place of its own: in place of `labkit`'s `worker.run_rank`."""
    from labkit.processes import die_with_parent

    die_with_parent(agent)
    rank, job = int(os.environ["RANK"]), Path(directory)
    places = Places(**json.loads((job / PLACES).read_text()))
    os.chdir(job.parent)  # keeps the folder outside within reach when the rank has covered its path
    _system("unshare", _NEW_MOUNTS | _NEW_IPC | _NEW_PROCESSES)
    over, taken, output = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_rank(job, rank, places, bell, (over[1], taken[0]), output[1])
    for theirs in (over[1], taken[0], output[1]):
        os.close(theirs)
    log = Path(job.name, f"rank{rank}.log")  # from the folder it is in, as the rank covers the path to that
    names = [name for name in places.answer_names if is_for(name, rank)]
    _look_after(child, names, job.parent, places, (over[0], taken[1]), Output(output[0], log))


def hand_in_each_answer() -> None:
    """Called by a rank before its first case: from now on each answer is taken when it is written, and what
    runs after that (the end of a group, of an object) changes nothing of it.
    """
    from labkit.checks import execute

    write, pipes = execute.write_answer, _pipes()

    def write_and_hand_in(
        directory: Path, case_index: int, rank: int, answer: RankAnswer, error: StudentError | None
    ) -> None:
        write(directory, case_index, rank, answer, error)
        _hand_in(pipes, case_index)

    execute.write_answer = write_and_hand_in


def cases_are_over() -> None:
    """Called by a rank when it has answered all it will: what it began is taken now, and nothing later."""
    _hand_in(_pipes(), OVER)


def _pipes() -> tuple[int, int]:
    over, taken = map(int, os.environ[KEEPER].split(","))
    return over, taken


def _hand_in(pipes: tuple[int, int], case_index: int) -> None:
    over, taken = pipes
    os.write(over, _CASE.pack(case_index))
    os.read(taken, 1)


# -- the process outside


def _look_after(
    child: int, names: Sequence[str], within: Path, places: Places, pipes: tuple[int, int], output: Output
) -> NoReturn:
    """Take each of the rank's answers once, when it is written, and when its cases are over, or it is, what
    it began; then end as it did. Meanwhile take what it prints.
    """
    over, taken = pipes
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(child, signal.SIGUSR2))
    most, came = places.answers, set[int]()
    while told := _told(over, output):
        case_index = _CASE.unpack(told)[0] if len(told) == _CASE.size else OVER
        if case_index == OVER:
            break
        own = [name for name in names if _case_of(name) == case_index and not name.endswith(BEGUN)]
        if case_index not in came:
            take(within, own, Path(), most)
            most -= sum(Path(name).stat().st_size for name in own if Path(name).exists())
        came.add(case_index)
        os.write(taken, b".")
    take(within, [name for name in names if name.endswith(BEGUN)], Path(), most)
    if told:
        os.write(taken, b".")
    output.read_all()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


def _told(over: int, output: Output) -> bytes:
    output.read_until(over)
    return os.read(over, _CASE.size)


# -- the process in which the student's code will run


def _be_the_rank(
    job: Path, rank: int, places: Places, bell: int, pipes: tuple[int, int], output: int
) -> NoReturn:
    try:
        _system("prctl", _DEATH_SIGNAL, signal.SIGKILL)
        os.setsid()
        mesh.enter(places.networks[rank])
        listener = [places.listener] if rank == 0 else []
        _forget_shared_memory()
        _own_file_systems(job, rank, places)
        _close_all_but([bell, *pipes, output, *listener])
        _introduce(rank, places, pipes, output)
        _give_up_privileges()
        calls.install(calls.RANK_RULES)

        from labkit.launch.engine.worker import run_rank

        run_rank(str(job), 0, bell)
        while True:
            signal.pause()  # the job's agent ends it when all ranks are done
    except BaseException as error:
        print(f"rank {rank} could not be put in its place: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _introduce(rank: int, places: Places, pipes: tuple[int, int], output: int) -> None:
    """Tell labkit and gloo where the others are to be found, and where what it prints goes."""
    from labkit.launch.handover.request import OUTPUT, STORE

    ranks = len(places.networks)
    os.environ.update(
        MASTER_ADDR=mesh.address(0, ranks),
        MASTER_PORT=str(places.port),
        GLOO_SOCKET_IFNAME=mesh.own_device(rank, ranks),
    )
    os.environ[STORE] = str(places.listener)
    os.environ[OUTPUT] = str(output)
    os.environ[KEEPER] = ",".join(map(str, pipes))


def is_for(name: str, rank: int) -> bool:
    """Whether a file of a request or of its answers is this rank's, or nobody's in particular."""
    owner = re.search(r"\brank(\d+)\b", name)
    return owner is None or int(owner[1]) == rank


def _case_of(name: str) -> int:
    """The number of the case that a file of answers is about."""
    owner = re.match(r"case(\d+)\.", name)
    return int(owner[1]) if owner else OVER


def _own_file_systems(job: Path, rank: int, places: Places) -> None:
    """Memory of its own wherever it may write, with its own request and what labkit keeps of one rank."""
    _system("mount", None, b"/", None, _PRIVATE, None)
    replace_folder("/tmp", places.scratch, places.files)
    os.mkdir("/tmp/out")
    _memory("/tmp/out", places.answers, places.files)
    own = Path("/tmp/out", job.parent.name)
    shutil.copytree(job.parent, own, ignore=lambda _, names: [n for n in names if not is_for(n, rank)])
    for kind in KEPT_OUTSIDE:
        for folder in (job, own / job.name):
            (folder / f"rank{rank}.{kind}").touch()
        _bind(job / f"rank{rank}.{kind}", own / job.name / f"rank{rank}.{kind}")
    _system("mount", b"/tmp/out", b"/out", None, _MOVE, None)
    os.rmdir("/tmp/out")
    _memory("/dev/shm", places.scratch, places.files)
    for path in filter(os.path.isfile, places.hidden):
        _bind(Path("/dev/null"), Path(path))
    processor = Path("/proc/cpuinfo").read_bytes()
    covered = [hidden for hidden in ("/in", "/dev/pts", "/proc") if os.path.isdir(hidden)]
    for hidden in covered:
        _memory(hidden, MIB, 3)
    Path("/proc/cpuinfo").write_bytes(processor)  # torch asks it which instructions there are
    for hidden in covered:
        _memory(hidden, MIB, 3, _REMOUNT | _READ_ONLY)


def replace_folder(folder: str, size: int, files: int) -> None:
    """Put memory in a folder's place. What is mounted below it stays: an environment may stand in /tmp."""
    shown = {at: os.open(at, os.O_PATH) for at in _mounted_below(folder)}
    _memory(folder, size, files)
    for at, descriptor in shown.items():
        held = Path(f"/proc/self/fd/{descriptor}")
        if held.is_dir():
            os.makedirs(at)
        else:
            Path(at).parent.mkdir(parents=True, exist_ok=True)
            Path(at).touch()
        _bind(held, Path(at), _WITH_ALL_BELOW)
        os.close(descriptor)


def _mounted_below(folder: str) -> list[str]:
    """Where in a folder something is mounted; of two, one in the other, the outer one."""
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        at = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), line.split()[4])
        if at.startswith(f"{folder}/") and not any(f"{at}/".startswith(f"{outer}/") for outer in found):
            found.append(at)
    return found


def _memory(at: str, size: int, files: int, flags: int = 0) -> None:
    """An empty file system in memory that holds no more than this."""
    options = f"size={size},nr_inodes={files},mode=755".encode()
    _system("mount", b"tmpfs", at.encode(), b"tmpfs", flags | _NO_EXTRAS, options)


def _bind(source: Path, at: Path, flags: int = 0) -> None:
    _system("mount", bytes(source), bytes(at), None, _BIND | flags, None)


def _forget_shared_memory() -> None:
    """Put memory of this process alone in place of all that it shares with those it was forked from. OSError
    when the kernel refuses: it would stay shared.
    """
    _libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access = line.split()[:2]
        if access.endswith("s"):
            start, end = (int(text, 16) for text in where.split("-"))
            length, offset = ctypes.c_size_t(end - start), ctypes.c_size_t(0)
            if _libc.mmap(ctypes.c_void_p(start), length, 3, flags, -1, offset) == _MAP_FAILED:
                raise _refused("mmap")


def _close_all_but(kept: Iterable[int]) -> None:
    """Close what this process has open, beside these and its standard streams."""
    lowest = 3
    for descriptor in sorted({*kept} - {0, 1, 2}):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    os.closerange(lowest, 65536)


def _give_up_privileges() -> None:
    """No capability, now or later, and a process that cannot be looked into."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_DROP_BOUND, capability, 0, 0, 0)  # a number that this kernel does not know is refused
    header, nothing = struct.pack("=Ii", _CAPABILITIES_VERSION, 0), struct.pack("=6I", *[0] * 6)
    _system("capset", header, nothing)
    _system("prctl", _DUMPABLE, 0, 0, 0, 0)


def _system(name: str, *arguments: int | bytes | None) -> None:
    """A call of the C library; OSError when it is refused."""
    if getattr(_libc, name)(*arguments) < 0:
        raise _refused(name)


def _refused(name: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, f"{name}: {os.strerror(error)}")
