"""Small layers that a check hands to a student's model, and the plain model they must equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs

Specs = list[list[Any]]

SMALL: Specs = [["dense", 5, 7], ["dense", 7, 4], ["dense", 4, 6], ["dense", 6, 6], ["dense", 6, 3]]
LEARNING_RATE = 0.05
STEPS = 2


class Log:
    """What layers note down as they run. A copy of a layer notes in the same log."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __deepcopy__(self, memo: object) -> Log:
        return self


class Dense(nn.Module):
    """tanh(x W' + b), no buffers. Calls `on_start`, where it is set, when it starts."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))
        self.on_start: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.on_start is not None:
            self.on_start()
        return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


class Scaled(Dense):
    """scale * tanh(x W' + b), with a constant buffer `scale`."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(inputs, outputs, dtype)
        self.scale: Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1.5, outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Counting(nn.Module):
    """x plus a buffer that changes with every call: a running sum of means, as batch norm keeps one."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.running: Tensor
        self.register_buffer("running", torch.zeros(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.running.mul_(0.5).add_(x.flatten(0, -2).mean(0))
        return x + 0.1 * self.running


class Transposed(nn.Module):
    """x W, with the very weight of an earlier layer: a head tied to its embedding."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def build_layers(case: Case, inputs: Inputs) -> list[nn.Module]:
    """The layers of `case.params["layers"]`, on the CPU, with the case's drawn parameters.

    Each is ["dense" or "scaled", inputs, outputs], ["counting", width] or ["tied", whose weight it has].
    """
    layers = _empty_layers(case.params["layers"], dtype_of(case))
    for name, parameter in nn.Sequential(*layers).named_parameters():
        parameter.data.copy_(inputs[f"weights.{name}"])
    return layers


def _empty_layers(specs: Sequence[Sequence[Any]], dtype: torch.dtype) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for kind, *sizes in specs:
        if kind == "dense":
            layers.append(Dense(sizes[0], sizes[1], dtype))
        elif kind == "scaled":
            layers.append(Scaled(sizes[0], sizes[1], dtype))
        elif kind == "counting":
            layers.append(Counting(sizes[0], dtype))
        else:
            tied = layers[sizes[0]]
            assert isinstance(tied, Dense), f"{case_text(specs)}: only a dense layer's weight can be tied"
            layers.append(Transposed(tied.weight))
    return layers


def case_text(specs: Sequence[Sequence[Any]]) -> str:
    """The layers of a case in a line."""
    return ", ".join(" ".join(map(str, spec)) for spec in specs)


def dtype_of(case: Case) -> torch.dtype:
    """The case's dtype: float64 unless it says otherwise."""
    dtype: torch.dtype = getattr(torch, case.params.get("dtype", "float64"))
    return dtype


def draw_layer_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """weights.NAME for every parameter; x and grad_output; xN and targetN for each training step."""
    layers = _empty_layers(case.params["layers"], dtype_of(case))
    model = nn.Sequential(*layers)
    shape = (*case.params["lead"], case.params["layers"][0][1])

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype_of(case))

    drawn = {
        f"weights.{name}": draw(*p.shape) / max(1, p.shape[-1]) ** 0.5 for name, p in model.named_parameters()
    }
    with torch.no_grad():
        out = model(torch.zeros(shape, dtype=dtype_of(case)))
    drawn |= {name: draw(*shape) for name in ("x", *(f"x{i}" for i in range(STEPS)))}
    return drawn | {name: draw(*out.shape) for name in ("grad_output", *(f"target{i}" for i in range(STEPS)))}


def train(model: nn.Module, inputs: Inputs, optimizer: torch.optim.Optimizer | None = None) -> None:
    """A few steps of plain SGD towards the case's targets."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(inputs[f"x{step}"].clone())
        (out - inputs[f"target{step}"].to(out.device)).square().sum().backward()
        optimizer.step()


def reference(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """The plain model's output, input_grad, grad.N, buffer.N and trained.N (N counts parameters in order)."""
    model = nn.Sequential(*build_layers(case, inputs))
    x = inputs["x"].clone().requires_grad_()
    out = model(x)
    out.backward(inputs["grad_output"])
    assert x.grad is not None
    tensors = {"output": out.detach(), "input_grad": x.grad.clone()}
    tensors |= {f"grad.{n}": p.grad.clone() for n, p in enumerate(model.parameters()) if p.grad is not None}
    tensors |= {f"buffer.{n}": b.clone() for n, b in enumerate(model.buffers())}
    train(model, inputs)
    return tensors | {f"trained.{n}": p.detach() for n, p in enumerate(model.parameters())}


def activation_bytes(case: Case, inputs: Inputs) -> list[int]:
    """Bytes of x and of every layer's output."""
    x = inputs["x"]
    sizes = [x.numel() * x.element_size()]
    with torch.no_grad():
        for layer in build_layers(case, inputs):
            x = layer(x)
            sizes.append(x.numel() * x.element_size())
    return sizes


def tensor_bytes(layer: nn.Module, parameters_only: bool = False) -> list[int]:
    """Bytes of each of a layer's tensors."""
    tensors = [*layer.parameters(), *([] if parameters_only else layer.buffers())]
    return [t.numel() * t.element_size() for t in tensors]
