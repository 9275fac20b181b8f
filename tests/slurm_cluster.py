"""A Slurm of the tests' own: munged, slurmctld and a slurmd for each of two nodes, all on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

NODES = ("n1", "n2")
GPUS = 8  # of each node; files stand for them, so that Slurm counts and binds them as it would real ones
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SlurmctldPort={ports[0]}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=6
KillWait=2
ReturnToService=2
JobRequeue=1
MailProg=/bin/true
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=4000 Gres=gpu:{gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=4000 Gres=gpu:{gpus}
PartitionName=all Nodes=n1,n2 Default=YES DefaultTime=10 MaxTime=120 State=UP
"""

_A_DAY_LONGER = ("unshare", "--time", "--monotonic=86400", "--fork", "--kill-child")


def has_clocks_of_nodes() -> bool:
    """Whether processes here can have a monotonic clock of their own (time_namespaces(7))."""
    return subprocess.run([*_A_DAY_LONGER, "true"], capture_output=True).returncode == 0


class LocalSlurm:
    """The cluster. `environment` is what Slurm's commands need to find it; `config` is its slurm.conf."""

    def __init__(self, root: Path) -> None:
        self.root, self.config = root, root / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._munge = Path(tempfile.mkdtemp(prefix="munge-", dir="/tmp"))  # which every user may enter
        self._munge.chmod(0o755)

    def start(self) -> None:
        """Start everything and wait until both nodes are idle; RuntimeError when they do not become so."""
        (self.root / "state").mkdir()
        for number in range(GPUS):
            (self.root / f"gpu{number}").touch()
        (self.root / "gres.conf").write_text(f"Name=gpu File={self.root}/gpu[0-{GPUS - 1}]\n")
        ports = _free_ports(1 + len(NODES))
        host = socket.gethostname()
        values = {"host": host, "root": self.root, "munge": self._munge, "ports": ports, "gpus": GPUS}
        self.config.write_text(CONFIG.format(**values))
        self._daemons["munged"] = _start_munge(self._munge)
        self._daemons["slurmctld"] = self._daemon("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self.wait_until_idle()

    def start_node(self, node: str, *within: str) -> None:
        """within: a command that runs the node's slurmd, and so all that runs on it."""
        self._daemons[node] = self._daemon(*within, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End a node as a power cut does: its slurmd, and all that it runs, at once."""
        self._signal_all(node, signal.SIGKILL)
        self._daemons.pop(node).wait(10)

    @contextmanager
    def node_up_for_longer(self, node: str) -> Iterator[None]:
        """A node that was started a day before: its monotonic clock counts from there."""
        self.kill_node(node)
        self.start_node(node, *_A_DAY_LONGER)
        try:
            yield
        finally:
            self.kill_node(node)
            self.start_node(node)

    @contextmanager
    def silent_node(self, node: str) -> Iterator[None]:
        """A node whose network is cut: nothing of it answers, and no connection is closed."""
        stopped = self._signal_all(node, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _signal_all(self, node: str, number: int) -> list[int]:
        """Send this to a node's slurmd and to all that it runs; their pids."""
        pids = [self._daemons[node].pid, *self._steps_of(node)]
        pids += [child.pid for pid in pids for child in _descendants(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def run(self, *command: str, seconds: float = 20) -> str:
        """What a command of Slurm's prints. CalledProcessError when it fails."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, check=True
        ).stdout.strip()

    def wait_until_idle(self, seconds: float = 40) -> None:
        """Until both nodes are idle."""
        deadline = time.monotonic() + seconds
        seen = ""
        while time.monotonic() < deadline:
            with suppress(subprocess.SubprocessError):
                seen = self.run("sinfo", "-h", "-N", "-o", "%N %T")
                if seen.split() == ["n1", "idle", "n2", "idle"]:
                    return
            time.sleep(0.1)
        log = self.root / "slurmctld.log"
        told = log.read_text()[-2000:] if log.exists() else "no log"
        raise RuntimeError(f"the nodes are {seen!r} after {seconds:g} s; {told}")

    def cancel(self, job: str, seconds: float = 40) -> None:
        """And wait until it is out of the queue: its nodes count as taken until they have said that it ended,
        and what they say while the controller reads its configuration is lost for a quarter of a minute.
        """
        self.run("scancel", job)
        deadline = time.monotonic() + seconds
        while job in self.run("squeue", "--noheader", "--format=%A").split():
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {job} is still in the queue {seconds:g} s after it was cancelled")
            time.sleep(0.1)

    def wait_for_state(self, job: str, *states: str, seconds: float = 20) -> str:
        """Until the job is in one of the states, as scontrol names them; the state."""
        deadline = time.monotonic() + seconds
        state = ""
        while time.monotonic() < deadline:
            told = self.run("scontrol", "-o", "show", "job", job)
            state = next(part[9:] for part in told.split() if part.startswith("JobState="))
            if state in states:
                return state
            time.sleep(0.1)
        raise RuntimeError(f"job {job} is {state} after {seconds:g} s, not {' or '.join(states)}")

    def stop(self) -> list[str]:
        """End all jobs and daemons; returns what still runs after that, which should be nothing."""
        with suppress(subprocess.SubprocessError):
            self.run("scancel", "--user", "root")
        self._until_no_steps(10)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in reversed(self._daemons.values()):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(5)
        self._daemons.clear()
        shutil.rmtree(self._munge)
        left = self.processes()
        for line in left:  # tell of them, but do not leave them
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        return left

    def processes(self) -> list[str]:
        """Every process of this cluster: daemons, steps, and what jobs run."""
        return [f"{p.pid} {' '.join(_command(p))[:200]}" for p in psutil.process_iter() if self._is_ours(p)]

    def job_processes(self) -> list[str]:
        """Those that jobs run. Slurm's own process of a step, which stays for two seconds more, is none."""
        daemons = ("slurmctld", "slurmd", "munged", ": slurmscriptd", "slurmstepd")
        return [line for line in self.processes() if not line.partition(" ")[2].startswith(daemons)]

    def wait_until_no_job_processes(self, seconds: float = 10) -> list[str]:
        """What jobs have left after at most that long: nothing, if all is well."""
        deadline = time.monotonic() + seconds
        while (left := self.job_processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _is_ours(self, process: psutil.Process) -> bool:
        """Slurm's daemons hide their environment, but hold their logs open; jobs inherit the environment."""
        if process.pid == os.getpid():
            return False
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(self.config):
                return True
        return any(path.startswith(f"{self.root}/") for path in _open_files(process.pid))

    def _steps_of(self, node: str) -> list[int]:
        """Slurm's own process of each step on a node."""
        log = f"{self.root}/slurmd-{node}.log"
        return [
            p.pid
            for p in psutil.process_iter()
            if " ".join(_command(p)).startswith("slurmstepd") and log in _open_files(p.pid)
        ]

    def _until_no_steps(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(self._steps_of(node) for node in NODES) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with ExitStack() as stack:
            log = stack.enter_context(open(self.root / f"{command[0]}.out", "ab"))
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(entry.path))
    return found


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _start_munge(folder: Path) -> subprocess.Popen[bytes]:
    """A munged of this cluster's own, with its own key; its socket is `folder`/socket."""
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{name}-file={folder}/{name}" for name in ("key", "log", "pid", "seed")]
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/socket", *files]
    return subprocess.Popen(munged, stderr=subprocess.DEVNULL)
