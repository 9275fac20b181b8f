"""Where a benchmark runs: `--device cpu` (gloo, shared cores) or `--device cuda` (NCCL, a GPU a rank)."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from _common import arguments, not_here

from labkit.hosts import gpu_count


@dataclass(frozen=True)
class Device:
    """One kind of device, with what ranks on it communicate over."""

    kind: str

    @property
    def backend(self) -> str:
        return "nccl" if self.kind == "cuda" else "gloo"

    def sizes(self, least: int = 1) -> list[int]:
        """Numbers of ranks to measure: 2 and 4 on the CPU; on GPUs the powers of two there are GPUs for."""
        if self.kind == "cpu":
            return [2, 4]
        return [size for size in (1, 2, 4, 8) if least <= size <= gpu_count()]

    def now(self) -> float:
        """Seconds, when all that was asked of the device is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def free_peak(self) -> None:
        """Begin to watch for the most bytes allocated on the GPU."""
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()


def device_of(group: dist.ProcessGroup) -> Device:
    """Where this rank's tensors are."""
    return Device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def device_arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line that all share, with --device."""
    parser = arguments(description)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


def asked_device(kind: str) -> Device:
    """The device of that kind; ends the program where there is none."""
    if kind == "cuda" and not gpu_count():
        not_here("--device cuda: this host has no GPU, nothing was measured")
    return Device(kind)


def gpu_name() -> str:
    """The first GPU's name as a file's name may hold it: 'h100', 'a100'; empty where there is none."""
    if not (gpu_count() and torch.cuda.is_available()):
        return ""
    words = torch.cuda.get_device_name(0).lower().replace("nvidia", "").split()
    return words[0] if words else "gpu"
