"""Matrix products, copies on the device, and transfers between host and device."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from labkit.prove.result import Results

MIB = 2**20
_SIDE = 8192  # of a matrix product: large enough for the peak, 128 MiB each in bf16
_BYTES = 512 * MIB
_REPEATS = 10


def main(results: Results) -> None:
    """One row a question, of every GPU; the median of ten, timed by the device's own events."""
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            _products(results, f"cuda:{index}")
            _copies(results, f"cuda:{index}")


def _products(results: Results, device: str) -> None:
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        a, b = (torch.randn(_SIDE, _SIDE, device=device, dtype=dtype) for _ in range(2))
        rate = 2 * _SIDE**3 / _seconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
        says = f"{rate / 1e12:.0f} TFLOP/s, {_SIDE} a side"
        results.add(f"{device}, product in {name}", "measured", says, flops_per_second=rate)
        del a, b


def _copies(results: Results, device: str) -> None:
    there = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    pinned, pageable = (
        torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True),
        torch.zeros(_BYTES, dtype=torch.uint8),
    )
    again = torch.empty_like(there)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "copy on the device, read and written": (lambda: again.copy_(there), 2 * _BYTES),
        "pinned host to device": (lambda: there.copy_(pinned, non_blocking=True), _BYTES),
        "device to pinned host": (lambda: pinned.copy_(there, non_blocking=True), _BYTES),
        "pageable host to device": (lambda: there.copy_(pageable), _BYTES),
    }
    for name, (copy, num_bytes) in ways.items():
        rate = num_bytes / _seconds(copy)
        results.add(f"{device}, {name}", "measured", f"{rate / 1e9:.1f} GB/s", bytes_per_second=rate)


def _seconds(run: Callable[[], object]) -> float:
    """The median time of one run on the current device."""
    run()
    torch.cuda.synchronize()
    found = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return statistics.median(found)
