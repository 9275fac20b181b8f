"""The launcher against its peers: torchrun, accelerate, torchrunx, ipyparallel, nbdistributed, a bare fork.

    python benchmarks/launch.py [--json] [--rounds 20]

Every contender is a process of its own that is warm (everything imported, everything started) and does its
thing once for each line it reads; rounds go through the contenders in turn, so that all see the same noise.
The job is the same everywhere: four ranks, one all-reduce over gloo, exit. Peers come with
`pip install -e .[bench]`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import Row, median, report, spread
from _recording import flight_recorder, recording

RANKS = 4
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(10))
dist.destroy_process_group()
"""


def all_reduce() -> None:
    """The job, in a process group that the launcher made."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(10))


# ---- contenders: each yields a function that does the thing once


def labkit_launch() -> Iterator[Callable[[], None]]:
    import labkit

    labkit.launch(all_reduce, ranks=RANKS)
    yield lambda: labkit.launch(all_reduce, ranks=RANKS) and None


def torchrun() -> Iterator[Callable[[], None]]:
    script = Path(tempfile.mkdtemp()) / "job.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    yield (
        lambda: (
            subprocess.run([*command, str(script)], check=True, capture_output=True, env=environment) and None
        )
    )
    script.unlink()


def bare_fork() -> Iterator[Callable[[], None]]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)

    def once() -> None:
        with tempfile.TemporaryDirectory() as directory:
            ranks = []
            for rank in range(RANKS):
                pid = os.fork()
                if pid == 0:
                    store = dist.FileStore(directory + "/store", RANKS)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
                    dist.all_reduce(torch.ones(10))
                    os._exit(0)
                ranks.append(pid)
            for pid in ranks:
                os.waitpid(pid, 0)

    yield once


def _accelerate_job() -> None:
    from accelerate import PartialState

    PartialState(cpu=True)
    all_reduce()


def accelerate() -> Iterator[Callable[[], None]]:
    """`debug_launcher` is notebook_launcher's way of starting several processes without GPUs."""
    import torch
    from accelerate import debug_launcher

    torch.set_num_threads(1)
    yield lambda: debug_launcher(_accelerate_job, num_processes=RANKS)


def torchrunx() -> Iterator[Callable[[], None]]:
    import torchrunx as peer

    launcher = peer.Launcher(hostnames=["localhost"], workers_per_host=RANKS, backend="gloo")
    launcher.set_logging_handlers(None)
    yield lambda: launcher.run(all_reduce) and None


CELL = "counter = counter + 1\ncounter"


def labkit_session() -> Iterator[Callable[[], None]]:
    """The magic itself, with the notebook's names looked at and the result drawn."""
    from IPython.core.interactiveshell import InteractiveShell

    import labkit  # noqa: F401

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "labkit")
    shell.run_cell_magic("ranks", str(RANKS), "counter = 0")

    def once() -> None:
        shell.run_cell_magic("ranks", "", CELL)

    yield once
    shell.run_line_magic("ranks", "stop")


def ipyparallel() -> Iterator[Callable[[], None]]:
    import ipyparallel as peer

    with peer.Cluster(n=RANKS, log_level=40) as client:
        view = client[:]
        view.execute("counter = 0", block=True)
        yield lambda: view.execute(CELL, block=True) and None


def nbdistributed() -> Iterator[Callable[[], None]]:
    from nbdistributed.communication import CommunicationManager
    from nbdistributed.process_manager import ProcessManager

    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    manager = ProcessManager()
    port = manager.start_workers(RANKS)
    atexit.register(manager.shutdown)  # it leaves its workers behind otherwise
    peer = CommunicationManager(RANKS, port)
    while True:  # it does not say when its workers are ready
        with contextlib.suppress(TimeoutError):
            peer.send_to_all("execute", "counter = 0", timeout=5)
            break
    yield lambda: peer.send_to_all("execute", CELL) and None
    manager.shutdown()


CONTENDERS: dict[str, Callable[[], Iterator[Callable[[], None]]]] = {
    contender.__name__: contender
    for contender in (labkit_launch, torchrun, bare_fork, accelerate, torchrunx, labkit_session, ipyparallel,
                      nbdistributed)
}  # fmt: skip

PACKAGES = ("accelerate", "torchrunx", "ipyparallel", "nbdistributed")


def serve(name: str) -> None:
    """In a contender's process: do it once for each line on stdin, and answer with the seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with contextlib.redirect_stdout(io.StringIO()):
        contender = CONTENDERS[name]()
        once = next(contender)
        once()
        answers.write("ready\n")
        answers.flush()
        for _ in sys.stdin:
            began = time.perf_counter()
            once()
            answers.write(f"{time.perf_counter() - began}\n")
            answers.flush()
        next(contender, None)


# ---- the judge


class Contender:
    """A contender's process. One that is not installed, or fails, has no times and a reason instead."""

    def __init__(self, name: str) -> None:
        self.name, self.times, self.missing = name, list[float](), ""
        if name in (
            "accelerate",
            "torchrunx",
            "ipyparallel",
            "nbdistributed",
        ) and not importlib.util.find_spec(name):
            self.missing = "not installed"
            return
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--contender", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self._expect("ready")

    def round(self) -> None:
        if not self.missing:
            assert self._process.stdin is not None
            self._process.stdin.write("once\n")
            self._process.stdin.flush()
            self._expect("")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self._log.seek(0)
            self.missing = "failed: " + (self._log.read().strip().splitlines() or ["?"])[-1][:80]
        elif line != word:
            self.times.append(float(line))

    def close(self) -> None:
        if hasattr(self, "_process"):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(60)


def race(names: Sequence[str], rounds: int) -> dict[str, Contender]:
    """Run the contenders in turn, `rounds` times each."""
    contenders = {name: Contender(name) for name in names}
    for _ in range(rounds):
        for contender in contenders.values():
            contender.round()
    for contender in contenders.values():
        contender.close()
    return contenders


def against(
    what: str, ours: Contender, peer: Contender, target: float | None, unit: str = "s", scale: float = 1.0
) -> Row:
    """One row of a race."""
    mine = median(ours.times) * scale
    if peer.missing:
        return Row(what, mine, None, unit, None, target, peer.name, peer.missing)
    theirs = median(peer.times) * scale
    noise = f"{spread([t * scale for t in ours.times])} against {spread([t * scale for t in peer.times])}"
    return Row(what, mine, theirs, unit, theirs / mine, target, peer.name, noise)


def launches(rounds: int) -> list[Row]:
    """A warm launch of four ranks."""
    found = race(["labkit_launch", "torchrun", "bare_fork", "accelerate", "torchrunx"], rounds)
    ours, what = found["labkit_launch"], f"launch of a {RANKS}-rank all-reduce, warm"
    return [
        against(what, ours, found["torchrun"], 15),
        against(what + ", against the floor", ours, found["bare_fork"], 0.25),
        against(what, ours, found["accelerate"], None),
        against(what, ours, found["torchrunx"], None),
    ]


def round_trips(rounds: int) -> list[Row]:
    """A cell on live ranks."""
    found = race(["labkit_session", "ipyparallel", "nbdistributed"], 5 * rounds)
    what = f"%%ranks round trip on {RANKS} live ranks"
    return [
        against(what, found["labkit_session"], found[peer], 1.0, "ms", 1000)
        for peer in ("ipyparallel", "nbdistributed")
    ]


def replacing(rounds: int) -> Row:
    """From the verdict on a hung session to the first cell on its replacement."""
    import labkit

    times = []
    with labkit.session(ranks=RANKS) as session:
        session.run("1")
        for _ in range(rounds):
            with contextlib.suppress(labkit.LaunchError):
                session.run("while rank: pass", timeout=0.2)
            began = time.perf_counter()
            session.run("1")
            times.append(time.perf_counter() - began)
    mine = median(times)
    return Row(
        "replacing a hung session after the verdict", mine, None, "s", 1.0 / mine, 1.0, "1 s", spread(times)
    )


FRESH = """
import time
began = time.perf_counter()
{code}
print(time.perf_counter() - began)
"""
FRESH_LAUNCH = """
import labkit
def job():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(10))
labkit.launch(job, ranks=4)
"""


def fresh(rounds: int) -> Row:
    """The first launch of a process that has imported nothing, against importing torch."""
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(_fresh(FRESH_LAUNCH))
        peer.append(_fresh("import torch"))
    mine, theirs = median(ours), median(peer)
    noise = f"{spread(ours)} against {spread(peer)}"
    return Row(
        "first launch of a fresh kernel", mine, theirs, "s", theirs / mine, 1 / 1.5, "import torch", noise
    )


def _fresh(code: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", FRESH.format(code=code)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def idle() -> list[Row]:
    """What an engine costs that does nothing."""
    import labkit
    from labkit.launch import client

    labkit.launch(all_reduce, ranks=RANKS)
    proc = Path(f"/proc/{client.engine().pid}")
    memory = {
        line.split(":")[0]: int(line.split()[1]) / 1024
        for line in (proc / "smaps_rollup").read_text().splitlines()[1:]
    }
    before = sum(map(int, (proc / "stat").read_text().rpartition(")")[2].split()[11:13]))
    time.sleep(5)
    ticks = sum(map(int, (proc / "stat").read_text().rpartition(")")[2].split()[11:13])) - before
    own = memory["Private_Clean"] + memory["Private_Dirty"]
    note = f"of which {own:.0f} MiB are its own; the rest is shared with other processes that use torch"
    return [
        Row("idle engine: resident memory", memory["Rss"], None, "MiB", None, None, "", note),
        Row("idle engine: CPU", ticks / 5, None, "% of a core", None, None, "", "over 5 s"),
    ]


def _ticks(proc: Path) -> int:
    """Hundredths of a second of CPU that a process has used."""
    return sum(map(int, (proc / "stat").read_text().rpartition(")")[2].split()[11:13]))


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--contender", choices=[*CONTENDERS], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = _options()
    if options.contender:
        serve(options.contender)
        return
    rows = [*launches(options.rounds), *round_trips(options.rounds), replacing(options.rounds)]
    rows += [fresh(options.rounds), recording(options.rounds, 1_000_000, 20, 0.95)]
    rows += [recording(options.rounds, 1000, 300, None), flight_recorder(options.rounds), *idle()]
    report("launch", rows, __doc__ or "")


if __name__ == "__main__":
    main()
