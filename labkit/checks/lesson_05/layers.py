"""The layers that a chain is made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs


class _Layer(nn.Module):
    """x + down(tanh(up(x))), half of it in evaluation mode; notes in `log` each time it runs, and counts the
    rows it is trained on in a buffer.
    """

    def __init__(self, index: int, width: int, inner: int, log: list[int]):
        super().__init__()
        self.note = lambda: log.append(index)  # the list itself is out of the student's reach
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.note()
        if self.training:
            self.seen += len(x)
        out = x + self.down(torch.tanh(self.up(x)))
        return out if self.training else out / 2


class _Bare(nn.Module):
    """tanh(x), with neither parameters nor buffers."""

    def __init__(self, index: int, log: list[int]):
        super().__init__()
        self.note = lambda: log.append(index)

    def forward(self, x: Tensor) -> Tensor:
        self.note()
        return torch.tanh(x)


def dtype_of(case: Case) -> torch.dtype:
    """The case's, float64 where it names none."""
    found: torch.dtype = getattr(torch, case.params.get("dtype", "float64"))
    return found


def layers_of(case: Case, inputs: Inputs, log: list[int]) -> nn.ModuleList:
    """The first has a hook, as libraries add them; every third one is in evaluation mode: where bytes are
    measured, only if the case says `mixed`. Frozen are those that the case says. Those of its `pairs` are an
    nn.Sequential of two, which has a length and can be indexed.
    """
    sizes, bare = (case.params["width"], case.params["inner"]), case.params.get("bare", ())
    layers = nn.ModuleList(
        _Bare(i, log) if i in bare else _Layer(i, *sizes, log) for i in range(case.params["layers"])
    ).to(dtype_of(case))
    layers.load_state_dict({n.removeprefix("full."): t for n, t in inputs.items() if n.startswith("full.")})
    if case.kind == "bytes" and not case.params.get("mixed"):
        return layers
    layers[0].register_forward_hook(lambda layer, args, out: out * 1.5)
    for layer in layers[1::3]:
        layer.eval()
    for index in case.params.get("frozen", ()):
        layers[index].requires_grad_(False)
    for index in case.params.get("pairs", ()):
        layers[index] = nn.Sequential(layers[index], nn.Tanh())
    return layers


def in_a_row(case: Case, layers: nn.ModuleList) -> list[nn.Module]:
    """The layers in the order in which they run; those that the case says stand at the end once more."""
    return [*layers, *(layers[index] for index in case.params.get("again_at_the_end", ()))]


def inputs_of(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters "full.NAME" of all layers that have some, x and grad_output [rows, width]."""

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=dtype_of(case))

    width, inner, rows = (case.params[name] for name in ("width", "inner", "rows"))
    shapes = [(inner, width), (inner,), (width, inner), (width,)]
    names = ("up.weight", "up.bias", "down.weight", "down.bias")
    found = {
        f"full.{index}.{name}": draw(*shape) / shape[-1] ** 0.5
        for index in range(case.params["layers"])
        if index not in case.params.get("bare", ())
        for name, shape in zip(names, shapes, strict=True)
    }
    return found | {name: draw(rows, width) for name in ("x", "grad_output")}
