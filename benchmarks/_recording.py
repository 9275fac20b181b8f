"""What recording costs: the same calls of one process, recorded and not, in turns."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Row, median, spread


def _in_turns(numbers: int, calls: int, blocks: int) -> tuple[list[float], list[float]]:
    """On every rank: seconds per all-reduce of each block of `calls`, with the recorder's hooks and without.

    The blocks are of the same process and the same connections, so that what the machine does besides falls
    on both alike. The job itself does not record.
    """
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    from labkit.record.recorder import Recorder, install
    from labkit.record.state import StatePage

    def methods() -> tuple[Any, Any]:
        return vars(c10d.ProcessGroup)["allreduce"], vars(c10d.Work)["wait"]

    plain = methods()
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(dist.get_rank(), StatePage(Path(directory) / "page", create=True))
    install(recorder)
    hooked = methods()

    x = torch.ones(numbers)
    times: tuple[list[float], list[float]] = ([], [])
    for block in range(2 * blocks + 2):
        which = (block + block // 2) % 2  # each first in every second pair
        c10d.ProcessGroup.allreduce, c10d.Work.wait = (hooked, plain)[which]
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x)
        times[which].append((time.perf_counter() - began) / calls)
        recorder.restart()
    return times[0][1:], times[1][1:]


def recording(rounds: int, numbers: int, calls: int, target: float | None) -> Row:
    """Microseconds per all-reduce of two ranks; the median over neighbouring blocks of their ratio."""
    import labkit

    job = labkit.launch(_in_turns, numbers, calls, 6 * rounds, ranks=2, timeout=600, record=False)
    recorded, plain = ([t * 1e6 for t in times] for times in job.results[0])
    ratio = median([p / r for r, p in zip(recorded, plain, strict=True)])
    noise = f"{spread(recorded)} against {spread(plain)}"
    what = f"recording a loop of all-reduces of {numbers * 4 / 1000:g} kB"
    return Row(what, median(recorded), median(plain), "us/call", ratio, target, "no recording", noise)


def _cpu_per_call(calls: int) -> float:
    import torch
    import torch.distributed as dist

    x, best = torch.ones(1000), float("inf")
    for _ in range(6):
        began = time.process_time()
        for _ in range(calls):
            dist.all_reduce(x)
        best = min(best, (time.process_time() - began) / calls)
    return best


def flight_recorder(rounds: int) -> Row:
    """CPU time of a call that meets nobody, with torch's flight recorder and without."""
    import labkit
    from labkit.torch_private_distributed import ENABLE_FLIGHT_RECORDER

    on, off = [], []
    for _ in range(rounds):
        for times, env in ((on, ENABLE_FLIGHT_RECORDER), (off, dict.fromkeys(ENABLE_FLIGHT_RECORDER, "0"))):
            job = labkit.launch(_cpu_per_call, 300, ranks=1, record=False, env=env)
            times.append(job.results[0] * 1e6)
    what = "torch's flight recorder: CPU time of one all-reduce"
    ratio = median([b / a for a, b in zip(on, off, strict=True)])
    return Row(what, median(on), median(off), "us/call", ratio, None, "switched off", spread(on))


__all__ = ["flight_recorder", "recording"]
