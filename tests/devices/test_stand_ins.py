"""What a program sees of stand-in devices: placing, mixing, memory, transfers, models."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit import devices
from labkit.devices import rounded
from labkit.model import Recomputed, Transformer, explicit_attention, fused_attention, gpt, llama

MIB = 2**20


@pytest.fixture
def gpus():
    with devices.stand_in(4, bytes_each=8 * MIB) as opened:
        yield opened


def test_a_build_for_cuda_does_not_ask_its_driver(monkeypatch):
    """There is none; Adam would, in every step."""
    of_cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: of_cuda)
    with devices.stand_in(1, bytes_each=MIB):
        assert torch.accelerator.current_accelerator(check_available=True) is None
    assert torch.accelerator.current_accelerator() is of_cuda


class Net(nn.Module):
    """Embedding, attention, normalisation, dropout, a buffer and a head tied to the embedding."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)
        self.batch_norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.drop(self.batch_norm(self.norm(x) * self.scale)))


def step(model, ids, targets, **optimizer):
    kind = optimizer.pop("kind", torch.optim.SGD)
    optimizer = kind(model.parameters(), lr=0.1, **optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return optimizer


IDS = torch.arange(10).reshape(2, 5)
TARGETS = (IDS * 3) % 11


# ---- placing


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


# ---- memory


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


# ---- transfers and gradients


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


# ---- models


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "foreach": False},
        {"kind": torch.optim.AdamW},
        {"kind": torch.optim.AdamW, "foreach": False},
        {"kind": torch.optim.AdamW, "foreach": True, "amsgrad": True},
        {"kind": torch.optim.AdamW, "fused": True},
        {"kind": torch.optim.Adagrad},
        {"kind": torch.optim.RMSprop},
    ],
)
def test_training_on_a_stand_in_equals_training_on_the_cpu(gpus, how):
    torch.manual_seed(0)
    plain = Net()
    model = copy.deepcopy(plain).to("cuda:1")
    plain.drop.p = model.drop.p = 0.0
    step(plain, IDS, TARGETS, **how)
    step(model, IDS.to("cuda:1"), TARGETS.to("cuda:1"), **how)
    for (name, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert ours.device.index == 1
        torch.testing.assert_close(ours.cpu(), theirs, msg=name)
    assert gpus.allocated(0) == gpus.allocated(2) == 0


@pytest.mark.parametrize("attend", [fused_attention, explicit_attention], ids=["fused", "explicit"])
@pytest.mark.parametrize("wrap", [lambda block: block, Recomputed], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", [gpt, llama])
def test_the_courses_transformer_trains_on_a_stand_in(gpus, family, attend, wrap):
    sizes = {"num_layers": 2, "hidden": 16, "num_heads": 4, "vocabulary": 11, "max_sequence": 8}
    config = family(**sizes, **({"num_kv_heads": 2, "ffn": 24} if family is llama else {}))
    torch.manual_seed(0)
    plain = Transformer(config, attend, wrap)
    model = copy.deepcopy(plain).to("cuda:2")
    for module, ids, targets in [(plain, IDS, TARGETS), (model, IDS.cuda(2), TARGETS.cuda(2))]:
        torch.manual_seed(1)  # dropout: stand-ins draw from the CPU's generator
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module.loss(ids, targets).backward()
            optimizer.step()
    for ours, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert ours.device.index == 2
        torch.testing.assert_close(ours.cpu(), theirs)


def test_moving_a_module_keeps_its_parameters_and_their_ties(gpus):
    model = Net()
    before = list(model.parameters())
    optimizer = torch.optim.SGD(before, lr=0.1)
    model.to("cuda:1")
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert model.head.weight is model.table.weight
    assert model.scale.device.index == 1
    assert model.batch_norm.running_mean.device.index == 1
    F.cross_entropy(model(IDS.cuda(1)).flatten(0, 1), TARGETS.cuda(1).flatten()).backward()
    untouched = model.table.weight.detach().cpu()
    optimizer.step()
    assert not torch.equal(untouched, model.table.weight.detach().cpu())
    size = sum(rounded(t.numel() * t.element_size()) for t in [*model.parameters(), *model.buffers()])
    model.cpu()
    optimizer.zero_grad()
    assert gpus.allocated(1) == 0
    assert size > 0


def test_state_dicts_travel_between_devices(gpus):
    one, other = Net().to("cuda:0"), Net().to("cuda:1")
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.head.weight.cpu(), one.head.weight.cpu())
    assert other.head.weight.device.index == 1
    optimizer = step(one, IDS.cuda(0), TARGETS.cuda(0), kind=torch.optim.AdamW)
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert again.state[other.head.weight]["exp_avg"].device.index == 1


def test_one_optimizer_and_clipping_over_several_devices(gpus):
    layers = [nn.Linear(4, 4).to(f"cuda:{k}") for k in range(3)]
    x = torch.ones(2, 4)
    for k, layer in enumerate(layers):
        x = layer(x.to(f"cuda:{k}"))
    parameters = [p for layer in layers for p in layer.parameters()]
    x.sum().backward()
    expected = torch.stack([p.grad.cpu().norm() for p in parameters]).norm()
    total = torch.nn.utils.clip_grad_norm_(parameters, 0.1)
    torch.testing.assert_close(total.cpu(), expected)
    torch.optim.AdamW(parameters, lr=0.1).step()
    assert [p.device.index for p in parameters] == [0, 0, 1, 1, 2, 2]


def test_no_grad_inference_mode_and_in_place_operations(gpus):
    model = Net().to("cuda:0").eval()
    with torch.no_grad():
        a = model(IDS.cuda())
        model.scale.mul_(2).clamp_(max=0.8)
    with torch.inference_mode():
        b = model(IDS.cuda())
    assert a.device == b.device == torch.device("cuda:0")
    assert not a.requires_grad


def test_autocast_and_grad_scaler(gpus):
    model = Net().to("cuda:0")
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(IDS.cuda())
        loss = F.cross_entropy(out.flatten(0, 1).float(), TARGETS.cuda().flatten())
    assert out.dtype == torch.bfloat16
    assert out.device.index == 0
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_checkpointing_recomputes_on_the_device(gpus):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("cuda:1")
    x = torch.ones(2, 8, device="cuda:1", requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad.device.index == 1


def test_hooks_in_backward_may_name_devices(gpus):
    seen = []
    layer = nn.Linear(3, 3).to("cuda:0")
    layer.register_full_backward_hook(lambda *_: seen.append(torch.ones(1).to("cuda:1").device.index))
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.cpu().device.type))
    layer(torch.ones(1, 3, device="cuda:0", requires_grad=True)).sum().backward()
    assert seen == ["cpu", 1] or seen == [1, "cpu"]


def test_a_deep_copy_is_on_the_same_device(gpus):
    layer = nn.Linear(10, 10).to("cuda:2")
    twin = copy.deepcopy(layer)
    assert twin.weight.device.index == 2
    assert gpus.allocated(2) == 2 * (rounded(400) + rounded(40))


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
