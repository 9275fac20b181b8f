"""The launcher against its peers: torchrun, accelerate, torchrunx, ipyparallel, nbdistributed, a bare fork.

    python benchmarks/launch.py [--json] [--rounds 20] [--launches 500]

Every contender is a process of its own that is warm (everything imported, everything started) and does its
thing once for each line it reads; rounds go through the contenders in turn, so that all see the same noise.
The job is the same everywhere: four ranks, one all-reduce over gloo, exit. Peers come with
`pip install -e .[bench]`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import Row, add_rounds, arguments, median, report, spread
from _live_ranks import CLIENTS, MAGICS, MODULES, RANKS
from _race import Start, against, race, serve
from _recording import flight_recorder, recording

PAUSE = 10  # seconds: with nothing to do for one, an engine imports what only some jobs need
LIVE = (*MAGICS, *CLIENTS, *MODULES)
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
    time.sleep(PAUSE)
    yield lambda: labkit.launch(all_reduce, ranks=RANKS) and None


def torchrun() -> Iterator[Callable[[], None]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.py")
        script.write_text(SCRIPT)
        command.append(str(script))
        yield lambda: subprocess.run(command, check=True, capture_output=True, env=environment) and None


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


CONTENDERS: dict[str, Start] = {
    start.__name__: start for start in (labkit_launch, torchrun, bare_fork, accelerate, torchrunx, *LIVE)
}


def launches(rounds: int) -> list[Row]:
    """A launch of four ranks, by each tool."""
    what = f"launch of a {RANKS}-rank all-reduce, "
    targets = {"torchrun": 15, "bare_fork": None, "accelerate": None, "torchrunx": None}
    found = race(["labkit_launch", *targets], rounds)
    rows = [
        against(what + "after 12 s of others", found["labkit_launch"], found[peer], target)
        for peer, target in targets.items()
    ]
    return [*rows, floor(what + "warm", 5 * rounds)]


def floor(what: str, rounds: int) -> Row:
    """The two alone, in turns: nothing else has run between two launches, as when a cell is run again."""
    found = race(["labkit_launch", "bare_fork"], rounds)
    return against(what, found["labkit_launch"], found["bare_fork"], 0.5)


def slowest(launches: int) -> Row:
    """Whether a launch now and then takes far longer than most."""
    import labkit

    times = []
    labkit.launch(all_reduce, ranks=RANKS)
    for _ in range(launches):
        began = time.perf_counter()
        labkit.launch(all_reduce, ranks=RANKS)
        times.append(time.perf_counter() - began)
    p99 = sorted(times)[int(0.99 * (launches - 1))]
    what, note = f"99% of {launches} launches within, against the median", f"longest {max(times):.3g}"
    return Row(what, p99, median(times), "s", median(times) / p99, 0.5, "the median", note)


def round_trips(rounds: int) -> list[Row]:
    """A cell on live ranks: by each tool's magic, as a person runs it, and by its Python interface."""
    rows = []
    for (ours, *peers), what in ((MAGICS, "%%ranks"), (CLIENTS, "session.run")):
        found = race([start.__name__ for start in (ours, *peers)], 5 * rounds)
        what += f" round trip on {RANKS} live ranks"
        rows += [against(what, found[ours.__name__], found[peer.__name__], 1.0, "ms", 1000) for peer in peers]
    return rows


def modules(rounds: int) -> list[Row]:
    """A new module of a million parameters for live ranks, pushed and used by a cell, against a push."""
    *ours, peer = (start.__name__ for start in MODULES)
    found = race([*ours, peer], 2 * rounds)
    what = f"a module of a million parameters for {RANKS} live ranks, "
    names = dict(zip(ours, ("pushed", "used by a %%ranks cell"), strict=True))
    return [against(what + names[mine], found[mine], found[peer], 1.0, "ms", 1000) for mine in ours]


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
    before = _ticks(proc)
    time.sleep(5)
    ticks = _ticks(proc) - before
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
    parser = arguments(__doc__)
    add_rounds(parser, 20)
    parser.add_argument("--launches", type=int, default=500, help="how many the slowest are taken of")
    parser.add_argument("--contender", choices=[*CONTENDERS], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = _options()
    if options.contender:
        serve(CONTENDERS[options.contender])
        return
    rows = [
        *launches(options.rounds),
        slowest(options.launches),
        *round_trips(options.rounds),
        *modules(options.rounds),
        replacing(options.rounds),
    ]
    rows += [fresh(options.rounds), recording(4 * options.rounds, 1_000_000, 20, 0.95)]
    rows += [recording(options.rounds, 1000, 300, None), flight_recorder(options.rounds), *idle()]
    report("launch", rows, options.json)


if __name__ == "__main__":
    main()
