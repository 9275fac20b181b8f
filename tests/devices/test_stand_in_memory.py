"""What stand-in devices count: memory, and copies between them and the host."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch
from torch import nn

from labkit import devices
from labkit.devices import rounded

MIB = 2**20


def test_the_ledger_counts_what_is_alive(gpus):
    x = torch.zeros(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == rounded(4000) == gpus.allocated(1)
    view, other = x[10:].view(-1), x.detach()
    assert gpus.allocated(1) == rounded(4000)  # views share their base's bytes
    del x, view
    assert gpus.allocated(1) == rounded(4000)
    del other
    assert gpus.allocated(1) == 0
    assert gpus.peak(1) == rounded(4000)
    assert gpus.allocated(0) == 0


def test_what_resets_torchs_peak_leaves_that_of_who_watches(gpus):
    torch.zeros(1000, device="cuda:1")
    torch.cuda.reset_peak_memory_stats(1)
    assert (torch.cuda.max_memory_allocated(1), gpus.peak(1)) == (0, rounded(4000))
    gpus.reset_peaks()
    assert gpus.peak(1) == 0


def test_real_gpus_keep_a_peak_that_is_reset_meanwhile(monkeypatch):
    peaks = {0: 0, 1: 0}
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda index: peaks[index])

    def forget(device):
        peaks[torch.device(device).index] = 0

    for owner in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(owner, "reset_peak_memory_stats", forget)
    with devices.RealDevices(2) as gpus:
        peaks[1] = 4000
        torch.cuda.reset_peak_memory_stats("cuda:1")
        peaks[1] = 100
        assert (gpus.peak(0), gpus.peak(1)) == (0, 4000)
        gpus.reset_peaks()
        assert gpus.peak(1) == 0
    assert torch.cuda.reset_peak_memory_stats is forget


def test_temporaries_count_in_the_peak(gpus):
    x = torch.ones(1000, device="cuda:0")
    torch.cuda.reset_peak_memory_stats(0)
    y = (x * 2).sum()
    assert torch.cuda.max_memory_allocated(0) == 2 * rounded(4000) + rounded(4)
    assert y.item() == 2000


def test_a_full_device_refuses_in_cudas_words(gpus):
    kept = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda:2")
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 4.00 MiB. GPU 2 .* 8.00 MiB of which 2.00"
    ):
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:2")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2**40, device="cuda:2")  # refused before the host is asked for a terabyte
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(MIB).to("cuda:2")
    with pytest.raises(torch.OutOfMemoryError):
        kept.to(torch.float32)
    assert gpus.allocated(2) == 6 * MIB
    del kept
    gc.collect()
    torch.empty(7 * MIB, dtype=torch.uint8, device="cuda:2")
    assert gpus.allocated(2) == 0


def test_activations_are_kept_until_backward(gpus):
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to("cuda:0")
    x = torch.ones(100, 64, device="cuda:0")
    before = gpus.allocated(0)
    loss = model(x).sum()
    assert gpus.allocated(0) - before >= 3 * 100 * 64 * 4  # inputs of three of the layers, at least
    loss.backward()
    del loss
    weights = sum(rounded(p.numel() * 4) for p in model.parameters())
    assert gpus.allocated(0) - before == weights  # the gradients


def test_a_storage_emptied_by_hand_gives_its_bytes_back(gpus):
    x = torch.zeros(1000, device="cuda:0")
    x.untyped_storage().resize_(0)
    assert gpus.allocated(0) == 0
    x.untyped_storage().resize_(4000)
    assert gpus.allocated(0) == rounded(4000)


def test_copies_are_written_down(gpus):
    x = torch.ones(10, 10)
    with gpus.recording() as seen:
        y = x.to("cuda:0").to("cuda:3")
        y.cpu()
        y.to("cuda:3")
    assert [(t.source, t.destination, t.num_bytes) for t in seen] == [
        ("cpu", "cuda:0", 400),
        ("cuda:0", "cuda:3", 400),
        ("cuda:3", "cpu", 400),
    ]
    assert "cuda:0 -> cuda:3: 1 transfer, 400 bytes" in repr(gpus)


@pytest.mark.parametrize(
    ("read", "num_bytes"),
    [
        (lambda x: x.tolist(), 16),
        (lambda x: pickle.dumps(x), 16),
        (lambda x: x.untyped_storage().tolist(), 16),
        (lambda x: bytes(x.untyped_storage()), 16),
    ],
)
def test_numbers_that_the_host_reads_are_a_copy(gpus, read, num_bytes):
    x = torch.ones(4, device="cuda:1")
    for _ in range(100):  # of single numbers some are free
        float(x[0])
    with gpus.recording() as copies:
        read(x)
    assert sum(t.num_bytes for t in copies if (t.source, t.destination) == ("cuda:1", "cpu")) >= num_bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([1.0, 2.0], device="cuda:1"),
        lambda: torch.as_tensor([1.0, 2.0], device="cuda:1"),
        lambda: torch.asarray([1.0, 2.0], device="cuda:1"),
        lambda: torch.ones(1, device="cuda:1").new_tensor([1.0, 2.0]),
    ],
)
def test_a_tensor_of_the_hosts_numbers_is_a_copy(gpus, make):
    with gpus.recording() as copies:
        made = make()
    assert made.device == gpus.devices[1]
    assert [(t.source, t.destination, t.num_bytes, t.pinned) for t in copies] == [("cpu", "cuda:1", 8, False)]


def test_single_numbers_are_no_copies_while_there_are_few(gpus):
    with gpus.recording() as few:
        (torch.ones(1, device="cuda:0") * torch.tensor(0.5, device="cuda:0")).item()
    with gpus.recording() as many:
        parts = [torch.tensor(float(n), device="cuda:0") for n in range(100)]
    assert few == []
    assert len(parts) > len(many) > 30


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn])
def test_tensors_whose_memory_is_not_counted_are_refused(gpus, make):
    x = torch.ones(2, 2, device="cuda:0")
    with pytest.raises(NotImplementedError, match="stand-in devices hold plain"):
        make(x)


def test_gradients_go_back_the_way_the_values_came(gpus):
    x = torch.randn(3, requires_grad=True)
    a = (x.to("cuda:0") * 2).to("cuda:1", torch.float64)
    with gpus.recording() as seen:
        (a**2).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    assert x.grad.device.type == "cpu"
    assert [(t.source, t.destination) for t in seen] == [("cuda:1", "cuda:0"), ("cuda:0", "cpu")]


def test_a_copy_in_place_brings_the_gradient_back(gpus):
    x = torch.randn(3, device="cuda:0", requires_grad=True)
    y = torch.zeros(3, device="cuda:1")
    y.copy_(x)
    (y * 3).sum().backward()
    assert x.grad.device.index == 0
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_detaching_cuts_the_gradient(gpus):
    x = torch.randn(3, device="cuda:0", requires_grad=True)
    assert not x.detach().to("cuda:1").requires_grad
    assert not x.data.cpu().requires_grad
