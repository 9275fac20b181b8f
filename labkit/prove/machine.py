"""Which devices, driver and versions are here."""

from __future__ import annotations

import importlib.metadata
import subprocess
from itertools import permutations

import torch

from labkit.prove.result import Results

GIB = 2**30
_PACKAGES = ("torch", "numpy", "ipython", "jupyterlab", "triton")
_QUERY = "driver_version,clocks.max.sm,power.limit,mig.mode.current"


def main(results: Results) -> None:
    """What the rest of the report was measured on."""
    results.add("packages", "measured", ", ".join(_versions()))
    cuda = torch.version.cuda
    results.add("CUDA of torch", "measured", cuda or "none: this torch was built without CUDA")
    if not torch.cuda.is_available():
        results.add("devices", "skipped", "torch sees no GPU: every part that needs one is skipped")
        return
    results.add("NCCL", "measured", ".".join(map(str, torch.cuda.nccl.version())))
    results.add("driver", "measured", _driver())
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        chip = f"{about.multi_processor_count} SMs, sm_{about.major}{about.minor}"
        says = f"{about.name}, {about.total_memory / GIB:.1f} GiB, {chip}"
        results.add(f"cuda:{index}", "measured", says, memory_bytes=about.total_memory)
    _peers(results)


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return found


def _driver() -> str:
    try:
        asked = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi says nothing: {error}"
    return f"{_QUERY}: {'; '.join(done.stdout.splitlines()) or done.stderr.strip()}"


def _peers(results: Results) -> None:
    """Which GPUs reach each other's memory without the host."""
    pairs = list(permutations(range(torch.cuda.device_count()), 2))
    if pairs:
        reach = [f"{a}->{b}" for a, b in pairs if torch.cuda.can_device_access_peer(a, b)]
        results.add(
            "peer access", "measured", f"{len(reach)} of {len(pairs)} pairs: {' '.join(reach) or 'none'}"
        )
