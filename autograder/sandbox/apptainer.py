"""The sandbox where user namespaces are off and Apptainer is installed with its setuid helper.

Same promises as bubblewrap's: namespaces of its own for processes, network (a loopback and nothing else),
mounts, host name and IPC; the same read-only contents; no home, no environment of the grader's, no
capabilities, no way to gain privileges; it ends with whoever started it. Mounts, namespaces and the kernel's
keys are closed to it by a seccomp filter.

What Apptainer cannot give, and what stands in its place:

- A uid of its own. Inside it is who grades, so the kernel's count of processes goes over everything this user
  runs: it only stops a flood (`FLOOD`), and the limit itself is kept by looking. Between two looks, 0.03 to
  0.1 s, a bomb of threads got to 450 instead of 200; it can disturb what else this user runs on the host.
- Three sized file systems. /out, /tmp and /dev share one in memory of the size the site has set (`sessiondir
  max size` in apptainer.conf, 64 MiB unless changed; for root it has none), and that is the limit where it is
  below ours. /dev/shm has none and is looked at: 285 MiB were there instead of 256 when the end came.
- A bare file system. Apptainer adds /etc/resolv.conf, /etc/hosts and /etc/hostname, /dev/mqueue, and
  variables with the names of the mounted folders.
- No user namespaces inside where the host allows them: one call that makes them (clone3) cannot be told from
  the one that makes a thread. Mounts stay closed in them.
- Trust in less: a setuid program of root's sets all this up.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import ClassVar

from autograder.sandbox.contents import Emptied, Link, Piece, Shown, contents, program
from autograder.sandbox.sandbox import OUT, CouldNotStart, Limits, NoSandbox, Sandbox, Started, spawn
from autograder.sandbox.usage import Traffic, Usage, descendants, in_use, sockets_of
from autograder.sandbox.within.calls import KEYS, MOUNTING, OTHER_NAMESPACES, UNCOUNTED_MEMORY
from labkit.cgroups import Group

FLOOD = 10  # times the limit of processes, above what the user runs already: where the kernel stops a flood
SECONDS = 10.0  # the most that Apptainer takes to clean up, and its keeper to end what is left
CLONE_NEWUSER = 0x10000000
REFUSED_CALLS = (*MOUNTING, *OTHER_NAMESPACES, *KEYS, *UNCOUNTED_MEMORY)  # lessons do without


def find(limits: Limits) -> Apptainer:
    """This machine's, tried out. NoSandbox says what is missing."""
    found = shutil.which("apptainer")
    if found is None:
        raise NoSandbox("it is not here. A site installs it for all (package apptainer-suid, or apptainer).")
    if problem := _try_out(found):
        raise NoSandbox(
            f"it is installed but cannot confine a program here: {problem}\n"
            "  Without user namespaces its setuid helper must be installed (apptainer-suid), and "
            "apptainer.conf must have `user bind control = yes` and `allow container dir = yes`."
        )
    return Apptainer(apptainer=found, limits=limits)


@dataclass(frozen=True, kw_only=True)
class Apptainer(Sandbox):
    """apptainer: where the program is."""

    name: ClassVar[str] = "apptainer"
    apptainer: str

    def start(self, requests: Path, hide: Sequence[str]) -> Started:
        """See `Sandbox.start`. A keeper stands between, as a setuid program does not end with its parent."""
        inside = self.limits.inside()
        inside["RLIMIT_NPROC"] = threads_of_this_user() + FLOOD * self.limits.processes
        with contextlib.ExitStack() as undone:
            image = _Image()
            undone.callback(image.cleanup)
            if group := self.new_group():
                undone.callback(group.end)
            reading, lifeline = os.pipe()
            undone.callback(os.close, lifeline)
            with open(reading, "rb", buffering=0):
                keeper = [sys.executable, "-I", "-S", str(Path(__file__).parent / "keeper.py"), str(reading)]
                words = self.command(image, contents(requests, hide), program(json.dumps(inside), self.ranks))
                process = spawn([*keeper, *words], (reading,), image.environment, group)
            undone.pop_all()
        return _Started(process, image, lifeline, self.limits, group)

    def command(self, image: _Image, pieces: Iterator[Piece], words: Sequence[str]) -> list[str]:
        """Run `words` where these pieces are all there is."""
        return [
            *(self.apptainer, "--silent", "exec", "--containall", "--no-eval", "--no-privs"),
            *("--net", "--network", "none", "--uts", "--hostname", "lab"),
            *("--no-mount", "sys,devpts,home,tmp,cwd,hostfs,bind-paths"),
            *("--scratch", OUT, "--scratch", "/tmp", "--pwd", "/tmp"),
            *("--security", f"seccomp:{image.seccomp}"),
            *(word for piece in pieces for word in image.mount(piece)),
            *(str(image.root), *words),
        ]


class _Image:
    """The folder that becomes / inside: nothing but places to mount at, and links."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="labkit-sandbox-")
        folder = Path(self._folder.name)
        self.root, self.seccomp, self._nothing = folder / "root", folder / "seccomp.json", folder / "nothing"
        for path in (self._nothing, *(self.root / name for name in ("proc", "dev", "tmp", "out", "etc"))):
            path.mkdir(parents=True)
        self.seccomp.write_text(json.dumps(_seccomp_profile()))
        self.environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "APPTAINER_CONFIGDIR": str(folder / "settings"),
            "APPTAINER_CACHEDIR": str(folder / "cache"),
        }

    def mount(self, piece: Piece) -> list[str]:
        """Apptainer's options for it, and the place it is mounted at."""
        match piece:
            case Link(to, at):
                (self.root / at.lstrip("/")).symlink_to(to)
                return []
            case Shown(source, at):
                return self._bind(source, at)
            case Emptied(at):
                return self._bind(str(self._nothing), at)

    def _bind(self, source: str, at: str) -> list[str]:
        place = self.root / at.lstrip("/")
        if at.startswith("/tmp/"):
            pass  # Apptainer's to make: what is here would be below its own /tmp
        elif Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        line = io.StringIO()  # quoted as Apptainer reads it: a path may have a comma
        csv.writer(line, lineterminator="").writerow(["type=bind", f"src={source}", f"dst={at}", "ro"])
        return ["--mount", line.getvalue()]

    def cleanup(self) -> None:
        """Remove it, once nothing runs in it."""
        self._folder.cleanup()


class _Started(Started):
    """Seen through what was opened when the program was ready: later the kernel shows its folders to nobody,
    because it has made itself impossible to trace before any student code runs.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        image: _Image,
        lifeline: int,
        limits: Limits,
        group: Group | None,
    ) -> None:
        self.process, self._image, self._limits, self.group = process, image, limits, group
        self._first = self._before = 0
        self._open = {"lifeline": lifeline}

    @property
    def pid(self) -> int:
        return self._first

    @property
    def out(self) -> Path:
        return Path(f"/proc/{os.getpid()}/fd/{self._open['out']}")

    def look_in(self) -> None:
        self._first, program = _first_and_program(self.process.pid)
        root = f"/proc/{program}/root"
        try:
            for name, path in (("out", f"{root}{OUT}"), ("shared", f"{root}/dev/shm")):
                self._open[name] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in ("dev", "snmp"):
                self._open[name] = os.open(f"/proc/{program}/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CouldNotStart(f"the sandbox cannot be looked into: {error}") from None
        self._before = self._disk("out")[0]

    def usage(self) -> Usage:
        if "snmp" not in self._open:
            return Usage()
        pids = islice(descendants(self._first), FLOOD * self._limits.processes)
        processes = [Path(f"/proc/{pid}") for pid in pids]
        memory, threads = in_use(processes)
        (files, written), (more, shared) = self._disk("out"), self._disk("shared")
        return Usage(
            memory + shared, threads, sockets_of(processes), files + more - self._before, written, shared
        )

    def traffic(self) -> Traffic | None:
        return Traffic.of(*(os.pread(self._open[name], 8192, 0).decode() for name in ("dev", "snmp")))

    def end(self) -> None:
        """The first process inside takes all others with it; then Apptainer's own, which cleans up, ends."""
        if self._first and self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self._first, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=SECONDS)
        for descriptor in (self._open.pop(name) for name in list(self._open)):
            os.close(descriptor)  # the lifeline too: whatever is left is ended by the keeper
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=SECONDS)
        try:
            super().end()
        finally:
            self._image.cleanup()

    def _disk(self, name: str) -> tuple[int, int]:
        """Files and bytes, as counted by the kernel: those that have no name any more count too."""
        found = os.fstatvfs(self._open[name])
        return found.f_files - found.f_ffree, (found.f_blocks - found.f_bfree) * found.f_frsize


def threads_of_this_user() -> int:
    """What the kernel counts against this user's limit of processes already."""
    count, user = 0, os.getuid()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def _first_and_program(keeper: int) -> tuple[int, int]:
    """Numbers, as seen here, of process 1 inside and of the program it runs."""
    for pid in descendants(keeper):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            numbers = [line.split() for line in status.splitlines() if line.startswith("NSpid:")]
            if numbers and len(numbers[0]) > 2 and numbers[0][-1] == "1":
                return pid, next(descendants(pid), pid)
    raise CouldNotStart("no process of the sandbox can be found in /proc")


def _seccomp_profile() -> dict[str, object]:
    """Calls of another architecture (32 bits) are refused altogether, as none is named."""
    flag = {"index": 0, "value": CLONE_NEWUSER, "valueTwo": CLONE_NEWUSER, "op": "SCMP_CMP_MASKED_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": REFUSED_CALLS, "action": "SCMP_ACT_ERRNO"},
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "args": [flag]},
        ],
    }


# Process 1 is "starter" until it has taken the name of an init, which may be after the program has begun.
_TRIAL = """
import time
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
seen = [status[name].strip() for name in ("Seccomp", "NoNewPrivs", "CapEff", "CapBnd")]
until = time.monotonic() + 10
while (first := open("/proc/1/comm").read().strip()).startswith("starter") and time.monotonic() < until:
    time.sleep(0.01)
print(interfaces, *seen, first)
"""
_PROMISED = "['lo'] 2 1 0000000000000000 0000000000000000 appinit"


@cache
def _try_out(apptainer: str) -> str:
    """Why a confined program cannot be started here; empty when it can, and it is as confined as promised."""
    image = _Image()
    try:
        pieces = contents(image.root / "out", [])
        command = Apptainer(apptainer=apptainer).command(
            image, pieces, [sys.executable, "-I", "-S", "-c", _TRIAL]
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=image.environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        image.cleanup()
    if done.returncode != 0:
        return done.stderr.strip() or f"exit status {done.returncode}"
    seen = done.stdout.strip()
    about = "interfaces, seccomp, privileges, first process"
    return "" if seen == _PROMISED else f"{about}: found {seen}, expected {_PROMISED}"
