"""What a program sees of stand-in devices: placing, mixing, opening and closing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit import devices
from labkit.devices import rounded

MIB = 2**20


def test_a_build_for_cuda_does_not_ask_its_driver(monkeypatch):
    """There is none; Adam would, in every step."""
    of_cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: of_cuda)
    with devices.stand_in(1, bytes_each=MIB):
        assert torch.accelerator.current_accelerator(check_available=True) is None
    assert torch.accelerator.current_accelerator() is of_cuda


# ---- placing


@pytest.mark.days
def test_devices_are_named_as_on_a_gpu_host(gpus):
    x = torch.zeros(3).to("cuda:1")
    assert x.device == torch.device("cuda:1")
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 1
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert x.cpu().device.type == "cpu"
    assert x.cuda(2).device.index == 2
    assert x.to("cuda").device.index == 0
    assert torch.zeros(1).cuda().device.index == 0
    assert "device='cuda:1'" in repr(x)
    assert "device" not in repr(x.cpu())


def test_a_tensor_already_there_is_handed_back_itself(gpus):
    x = torch.ones(3, device="cuda:1")
    assert x.to("cuda:1") is x
    assert x.cuda(1) is x
    assert x.to("cuda:1", torch.float32) is x
    assert x.to("cuda:1", copy=True) is not x
    assert x.to(x.cpu()).device.type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones((2, 3), device=d, dtype=torch.float64),
        lambda d: torch.empty(2, device=d),
        lambda d: torch.full((2,), 7, device=d),
        lambda d: torch.randn(4, device=d),
        lambda d: torch.rand(4, device=d, requires_grad=True),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.randint(0, 9, (3,), device=d),
        lambda d: torch.tensor([1.0, 2.0], device=d),
        lambda d: torch.as_tensor([1, 2], device=d),
        lambda d: torch.tensor(3.0, device=d),
        lambda d: torch.as_tensor(torch.ones(2), device=d),
        lambda d: torch.zeros_like(torch.ones(3), device=d),
        lambda d: torch.ones(3).new_zeros(4, device=d),
        lambda d: torch.ones(3, device=d).new_zeros(4),
        lambda d: torch.ones(3, device=d).new_tensor([4.0]),
        lambda d: torch.randn_like(torch.ones(3, device=d)),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.randperm(5, device=d),
        lambda d: nn.Linear(3, 4, device=d).weight,
        lambda d: torch.ones(3, device=d).double().half()[1:].clone(),
    ],
)
def test_every_way_to_make_a_tensor_takes_a_device(gpus, make):
    for name in ("cuda:2", torch.device("cuda", 2)):
        assert make(name).device == torch.device("cuda:2")
    assert make("cpu").device.type == "cpu"


def test_the_default_device_and_the_current_device_count(gpus):
    with torch.device("cuda:3"):
        assert torch.zeros(2).device.index == 3
        assert nn.Linear(2, 2).bias.device.index == 3
    assert torch.zeros(2).device.type == "cpu"
    with torch.cuda.device(1):
        assert torch.ones(1, device="cuda").device.index == 1
        assert torch.cuda.current_device() == 1
    torch.cuda.set_device(2)
    assert torch.ones(1).cuda().device.index == 2


def test_meta_stays_meta(gpus):
    assert torch.zeros(3, device="meta").is_meta
    assert torch.ones(2).to("meta").is_meta


def test_a_device_there_is_not_is_refused(gpus):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1).to("cuda:4")


# ---- mixing


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda a, b: a + b, "found at least two devices, cuda:0 and cuda:1!"),
        (lambda a, b: a @ b, r"(mat2 is on cuda:1|argument mat2 in method)"),
        (lambda a, b: F.linear(a, b), "wrapper_CUDA_mm"),
        (lambda a, b: torch.cat([a, b]), r"(tensors is on cuda:1|argument tensors in method)"),
        (lambda a, b: a.add_(b), "found at least two devices"),
        (lambda a, b: a + b.cpu(), "found at least two devices, cuda:0 and cpu!"),
        (lambda a, b: b.cpu() + a, "found at least two devices, cuda:0 and cpu!"),
        (lambda a, b: torch.where(a > 0, a, b), "found at least two devices"),
        (lambda a, b: F.mse_loss(a, b), "found at least two devices"),
    ],
)
def test_mixing_devices_raises_cudas_error(gpus, operation, message):
    a, b = torch.ones(3, 3, device="cuda:0"), torch.ones(3, 3, device="cuda:1")
    with pytest.raises(RuntimeError, match=f"Expected all tensors to be on the same device.*{message}"):
        operation(a, b)


@pytest.mark.parametrize(
    "name", ["memory_allocated", "synchronize", "current_stream", "Stream", "set_device", "device"]
)
def test_the_host_is_no_device_of_torch_cuda(gpus, name):
    """torch's own words: the current device would answer in its place."""
    with pytest.raises(ValueError, match=r"^Expected a cuda device, but got: cpu$"):
        getattr(torch.cuda, name)(torch.ones(1).device)
    with pytest.raises(ValueError, match=r"^Expected a cuda device, but got: cpu$"):
        devices.busy(0.0, "cpu")


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf")])
def test_work_takes_some_time(gpus, seconds):
    with pytest.raises(ValueError, match="expected seconds of work"):
        devices.busy(seconds, "cuda:0")


@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
@pytest.mark.parametrize(
    "to",
    [
        lambda x: x.to(x.device, x.dtype, False, True),
        lambda x: x.to(x.dtype, False, True),
        lambda x: x.to(x, False, True),
        lambda x: x.to(x.device, copy=True),
    ],
)
def test_a_copy_that_was_asked_for_is_one(gpus, where, to):
    """In each of the forms of Tensor.to, by name and by place."""
    x = torch.ones(2, device=where)
    copied = to(x)
    copied.zero_()
    assert (copied.device, x.tolist()) == (x.device, [1.0, 1.0])


@pytest.mark.parametrize(
    "write",
    [
        lambda total, loss: total.add_(loss),
        lambda total, loss: total.lerp_(loss, 0.5),
        lambda total, loss: torch.add(loss, loss, out=total),
        lambda total, loss: torch.sum(loss, 0, out=total),
    ],
    ids=["add_", "lerp_", "out of add", "out of sum"],
)
def test_a_number_on_the_host_is_not_written_to_from_a_device(gpus, write):
    """As in `total = torch.tensor(0.0)` and then `total += loss`: CUDA only reads numbers from the host."""
    total, loss = torch.tensor(0.0), torch.tensor(1.0, device="cuda:1")
    with pytest.raises(RuntimeError, match=r"^Expected all tensors to be on the same device.*cpu"):
        write(total, loss)
    assert str(total.device) == "cpu"
    assert (total + loss).device == loss.device


def test_layers_refuse_an_input_from_elsewhere(gpus):
    for layer, x in [
        (nn.Linear(3, 3), torch.ones(2, 3)),
        (nn.Embedding(3, 3), torch.tensor([1])),
        (nn.LayerNorm(3), torch.ones(2, 3)),
        (nn.BatchNorm1d(3), torch.ones(2, 3)),
        (nn.Conv1d(2, 3, 1), torch.ones(1, 2, 3)),
    ]:
        with pytest.raises(RuntimeError, match="same device"):
            layer.to("cuda:1")(x)


def test_what_cuda_allows_across_devices_is_allowed(gpus):
    a = torch.arange(4.0, device="cuda:0")
    assert (a * torch.tensor(2.0)).device.index == 0  # a CPU tensor of no dimensions
    assert a[torch.tensor([1, 2])].tolist() == [1.0, 2.0]  # indices on the CPU
    a[torch.tensor([0])] = torch.tensor(9.0)
    a[1:3] = torch.tensor([7.0, 8.0])  # an assignment is a copy
    assert a.tolist() == [9.0, 7.0, 8.0, 3.0]
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        torch.ones(3)[a.long()]


def test_a_gradient_must_be_where_its_tensor_is(gpus):
    weight = torch.ones(3, device="cuda:0", requires_grad=True)
    with pytest.raises(RuntimeError, match="assigned grad has data located on a different device"):
        weight.grad = torch.ones(3)
    weight.grad = torch.ones(3, device="cuda:0")


def test_numpy_is_refused_and_told_what_to_do(gpus):
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        torch.ones(2, device="cuda:0").numpy()
    assert torch.ones(2, device="cuda:0").cpu().numpy().sum() == 2


# ---- opening and closing


def test_closing_leaves_torch_as_it_was():
    names = [torch.Tensor.to, torch.zeros, torch.tensor, torch.cuda.is_available, torch.Tensor.device]
    with devices.stand_in(2, bytes_each=MIB):
        x = torch.ones(2, device="cuda:1")
    assert names == [torch.Tensor.to, torch.zeros, torch.tensor, torch.cuda.is_available, torch.Tensor.device]
    assert x.device.type == "cpu"
    assert "device" not in vars(torch.Tensor)


def test_an_error_inside_closes_too_and_two_at_once_are_refused():
    with pytest.raises(ZeroDivisionError), devices.stand_in(1, bytes_each=MIB):
        1 / 0  # noqa: B018
    with devices.stand_in(1, bytes_each=MIB), pytest.raises(RuntimeError, match="open already"):
        devices.stand_in(1, bytes_each=MIB).open()
    with pytest.raises(ValueError, match="at least one device"):
        devices.stand_in(0, bytes_each=MIB)


def test_use_stands_in_only_where_gpus_are_missing():
    chosen = devices.use(512, bytes_each=MIB)
    assert chosen.stand_in
    assert devices.use(0, bytes_each=MIB).stand_in is False


def test_opened_again_they_are_empty_and_idle():
    gpus = devices.stand_in(1, bytes_each=MIB)
    with gpus:
        left = torch.ones(1000, device="cuda:0")
        devices.busy(0.0, "cuda:0", "earlier")
        torch.cuda.synchronize()
    assert gpus.allocated(0) == rounded(4000)  # as it was at the end, for figures drawn then
    with gpus:
        assert (gpus.allocated(0), gpus.peak(0), gpus.timeline, gpus.host_waits) == (0, 0, [], 0)
        left.to("cuda:0")  # a plain tensor of the host by now
        assert gpus.peak(0) == rounded(4000)


@pytest.mark.parametrize("host_link", [0, -1.0, float("nan")])
def test_a_link_that_carries_nothing_is_refused(host_link):
    with pytest.raises(ValueError, match="expected host_link in bytes a second"):
        devices.stand_in(1, bytes_each=MIB, host_link=host_link)
