"""On a machine with a GPU: NCCL at world size 1, and several gloo ranks that share one GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.hosts import gpu_count

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(gpu_count() == 0, reason="needs an NVIDIA GPU"),
]


def on_device(group: dist.ProcessGroup) -> tuple[str, torch.Tensor]:
    x = torch.full((4,), 1.0 + dist.get_rank(), device="cuda")
    dist.all_reduce(x, group=group)
    return dist.get_backend(), x


def test_one_rank_on_nccl() -> None:
    job = labkit.launch(on_device, ranks=1)
    backend, x = job.results[0]
    assert backend == "nccl"
    assert (x.device.type, x.tolist()) == ("cpu", [1.0] * 4)
    assert job.memory[0].device_bytes is not None
    assert job.memory[0].device_bytes > 0
    assert not torch.cuda.is_initialized()  # this process stays out of it


def test_more_ranks_than_gpus_share_one_over_gloo() -> None:
    ranks = gpu_count() + 1
    job = labkit.launch(on_device, ranks=ranks)
    assert {backend for backend, _ in job.results} == {"gloo"}
    assert "share" in job.notes[0]
    assert job.results[0][1].tolist() == [ranks * (ranks + 1) / 2] * 4


def test_a_session_on_the_gpu() -> None:
    with labkit.session(ranks=1) as session:
        session.run("import torch\nx = torch.ones(2, device='cuda')")
        assert "tensor([2., 2.]" in session.run("x * 2").values[0]
