"""Models trained on stand-in devices are what they are on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.devices import rounded
from labkit.model import Recomputed, Transformer, explicit_attention, fused_attention, gpt, llama

MIB = 2**20


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
