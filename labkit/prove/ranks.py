"""Whether ranks start: one a GPU over NCCL, several on one GPU over gloo, and ranks that stay."""

from __future__ import annotations

import torch
import torch.distributed as dist

import labkit
from labkit.devices.watched import counted
from labkit.hosts import usable_here
from labkit.prove.result import Results

_TIMEOUT = 90.0


def main(results: Results) -> None:
    """Jobs of the kinds that lessons start."""
    gpus = usable_here()
    if gpus:
        _sum(results, f"{counted(gpus, 'rank')}, a GPU each", gpus, "nccl", "cuda")
        _sum(results, f"{gpus + 1} ranks share {counted(gpus, 'GPU')}", gpus + 1, "gloo", "cuda")
    _sum(results, "4 ranks on the CPU", 4, "gloo", "cpu")
    _session(results, gpus or 4)
    asleep = not torch.cuda.is_initialized()
    results.check(
        "this process stays out of CUDA", asleep, "ranks use the GPUs, the notebook's process does not"
    )


def _sum(results: Results, name: str, ranks: int, backend: str, device: str) -> None:
    job = labkit.launch(summed, device, ranks=ranks, backend=backend, timeout=_TIMEOUT)
    expected = [ranks * (ranks + 1) / 2] * 4
    found = [x.tolist() for _, x in job.results]
    on, took = {kind for kind, _ in job.results}, job.wall_seconds
    wrong = "" if found == [expected] * ranks else f"; expected {expected} on every rank, found {found}"
    says = f"{backend}, tensors on {', '.join(sorted(on))}, summed in {took:.2f} s{wrong}"
    results.check(name, not wrong and on == {device}, says, seconds=took)


def summed(device: str, group: dist.ProcessGroup) -> tuple[str, torch.Tensor]:
    """On a rank: the kind of device that an all-reduce worked on, and its result."""
    x = torch.full((4,), 1.0 + dist.get_rank(), device=device)
    dist.all_reduce(x, group=group)
    return x.device.type, x.cpu()


def _session(results: Results, ranks: int) -> None:
    with labkit.session(ranks=ranks) as session:
        device = "cuda" if usable_here() else "cpu"
        session.run(f"import torch\nx = torch.full((2,), float(rank), device={device!r})")
        values = session.run("(x + 1).tolist()").values
    right = values == {rank: str([rank + 1.0] * 2) for rank in range(ranks)}
    results.check("ranks that stay", right, f"{counted(ranks, 'rank')} kept variables from cell to cell")
