"""All-reduces of growing size between all GPUs, or four ranks on the CPU, and the line through them."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

import labkit
from labkit.hosts import usable_here
from labkit.prove.result import Results
from labkit.theory.communication import all_reduce_seconds, bus_bandwidth, fit_alpha_beta

KIB = 2**10
_ON_GPUS = [2**power * KIB for power in range(2, 19, 2)]  # 4 KiB to 256 MiB
_ON_CPU = [2**power * KIB for power in range(2, 13, 2)]  # to 4 MiB
_REPEATS, _WARM_UP = 20, 5


def main(results: Results) -> None:
    """A row a size with its bus bandwidth, and how far the fitted line is from what was measured."""
    gpus = usable_here()
    if gpus == 1:
        results.add("NCCL", "skipped", "one GPU has nobody to talk to: expected 2 or more")
        return
    ranks, backend, device, sizes = (gpus, "nccl", "cuda", _ON_GPUS) if gpus else (4, "gloo", "cpu", _ON_CPU)
    job = labkit.launch(times, device, sizes, ranks=ranks, backend=backend, timeout=100, record=False)
    seconds = [max(of_ranks) for of_ranks in zip(*job.results, strict=True)]
    fit = fit_alpha_beta(sizes, seconds, ranks)
    for size, took in zip(sizes, seconds, strict=True):
        line = all_reduce_seconds(size, ranks, fit.alpha, fit.beta)
        bus = bus_bandwidth("all_reduce", size, took, ranks)
        says = f"{took * 1e6:.0f} us, {bus / 1e9:.2f} GB/s on the bus; the line says {line * 1e6:.0f} us"
        results.add(f"{backend}, {size // KIB} KiB", "measured", says, seconds=took, fitted_seconds=line)
    says = f"alpha {fit.alpha * 1e6:.1f} us a message, 1/beta {fit.bandwidth / 1e9:.2f} GB/s a link"
    numbers = {"alpha_seconds": fit.alpha, "beta_seconds_per_byte": fit.beta, "ranks": ranks}
    results.add(f"{backend}, fitted", "measured", says, **numbers)


def times(device: str, sizes: list[int], group: dist.ProcessGroup) -> list[float]:
    """On a rank: the median seconds of an all-reduce of each size in bytes."""
    return [_median(torch.zeros(size // 4, device=device), group) for size in sizes]


def _median(x: torch.Tensor, group: dist.ProcessGroup) -> float:
    found = []
    for number in range(_REPEATS + _WARM_UP):
        dist.barrier(group)
        _wait_for(x)
        start = time.perf_counter()
        dist.all_reduce(x, group=group)
        _wait_for(x)
        if number >= _WARM_UP:
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def _wait_for(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()
