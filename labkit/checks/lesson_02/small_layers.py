"""Small layers that a check hands to a student's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.shared.split import dtype_of

Specs = list[list[Any]]


SMALL: Specs = [["dense", 5, 7], ["dense", 7, 4], ["hooked", 4, 6], ["dense", 6, 6], ["dense", 6, 3]]
IDS: Specs = [["lookup", 7, 5], ["dense", 5, 4], ["dense", 4, 3]]
NARROW: Specs = [["dense", 5, 7], ["narrow", 7, 4], ["narrow", 4, 6], ["dense", 6, 3]]
STEPS = 2


class Log:
    """What layers note down as they run. A copy of a layer notes in the same log."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __deepcopy__(self, memo: object) -> Log:
        return self


class Dense(nn.Module):
    """tanh(x W' + b), half of it in evaluation mode; no buffers."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.weighted(x))
        return out if self.training else out / 2

    def weighted(self, x: Tensor) -> Tensor:
        """x W' + b"""
        return nn.functional.linear(x, self.weight, self.bias)


class Hooked(Dense):
    """Dense, with a hook that doubles what comes out, as `weight_norm` and others hang on a layer."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(inputs, outputs, dtype)
        self.register_forward_hook(lambda layer, given, out: 2 * out)


class Columns(Dense):
    """Dense, which works with columns: what comes out, and the gradient of what goes in, are transposed views
    that are not contiguous.
    """

    def weighted(self, x: Tensor) -> Tensor:
        return (self.weight @ x.mT.contiguous() + self.bias.unsqueeze(-1)).mT


class Scaled(Dense):
    """scale * tanh(x W' + b), with a constant buffer `scale` that no state_dict has."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(inputs, outputs, dtype)
        self.scale: Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1.5, outputs, dtype=dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Ordered(Dense):
    """Dense, whose outputs come in another order: a constant buffer of whole numbers has it."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(inputs, outputs, dtype)
        self.order: Tensor
        self.register_buffer("order", torch.arange(outputs).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).index_select(-1, self.order)


class Narrow(Dense):
    """Dense, whose weights are kept in single precision and work in the type of what comes in."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(inputs, outputs, torch.float32)

    def weighted(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Dropping(Dense):
    """Dense, with dropout that it calls as a function: no module in it tells that it draws."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.4, self.training)


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


class Shifted(nn.Module):
    """x plus a constant buffer: a layer without parameters that has something on its device all the same."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.shift: Tensor
        self.register_buffer("shift", torch.linspace(-1, 1, width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Transposed(nn.Module):
    """x W, with the very weight of an earlier layer: a head tied to its embedding."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Straight(Transposed):
    """x W', with the very weight of an earlier layer."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def drops(layer: nn.Module) -> bool:
    """Whether a layer has dropout."""
    return isinstance(layer, nn.Dropout | Dropping)


DENSE: dict[str, type[Dense]] = {
    "dense": Dense,
    "hooked": Hooked,
    "columns": Columns,
    "scaled": Scaled,
    "ordered": Ordered,
    "narrow": Narrow,
    "dropping": Dropping,
}


def build_layers(case: Case, inputs: Inputs, first: int = 0, last: int | None = None) -> list[nn.Module]:
    """Layers `first` to `last` of `case.params["layers"]`, on the CPU, with the case's drawn parameters.

    Each is [a key of DENSE, inputs, outputs], ["counting", width], ["shifted", width], ["dropout", how
    likely], ["tanh"], ["tied", whose weight it has], ["mirrored", whose weight it has, under two names, one
    of them deeper, and a key of DENSE for what stands beside it], ["again", which layer it is] or ["lookup",
    rows, width], whose input are whole numbers. The case's `frozen` names parameters ("2.weight") that are
    not trained, its `resting` the layers that are in evaluation mode.
    """
    layers = _empty_layers(case.params["layers"], dtype_of(case))
    own = range(len(layers))[first:last]
    for name, parameter in nn.Sequential(*layers).named_parameters():
        if layer_of(name) in own:
            parameter.data.copy_(inputs[f"weights.{name}"])
        parameter.requires_grad_(name not in case.params.get("frozen", ()))
    for number in case.params.get("resting", ()):
        layers[number].eval()
    return layers[first:last]


def build_others(case: Case, inputs: Inputs) -> list[nn.Module]:
    """The case's layers with other numbers, the first two of them frozen."""
    layers = build_layers(case, inputs)
    for number, layer in enumerate(layers):
        for parameter in layer.parameters():
            parameter.data.mul_(0.5)
            parameter.requires_grad_(number >= 2)
    return layers


def to_hand_over(case: Case, layers: list[nn.Module]) -> Sequence[nn.Module]:
    """Layers as a case hands them to a model: in a list, or in a tuple where it says `in_tuple`."""
    return tuple(layers) if case.params.get("in_tuple") else layers


def with_orders(layers: Specs) -> Specs:
    """The same layers, with a buffer of whole numbers in each that is dense."""
    return [["ordered", *sizes] if kind == "dense" else [kind, *sizes] for kind, *sizes in layers]


def layer_of(parameter: str) -> int:
    """The number of the layer that a parameter of the plain model ("2.weight") belongs to."""
    return int(parameter.partition(".")[0])


def _empty_layers(specs: Sequence[Sequence[Any]], dtype: torch.dtype) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for kind, *sizes in specs:
        if kind in DENSE:
            layers.append(DENSE[kind](sizes[0], sizes[1], dtype))
        elif kind == "counting":
            layers.append(Counting(sizes[0], dtype))
        elif kind == "shifted":
            layers.append(Shifted(sizes[0], dtype))
        elif kind == "dropout":
            layers.append(nn.Dropout(sizes[0]))
        elif kind == "tanh":
            layers.append(nn.Tanh())
        elif kind == "lookup":
            layers.append(nn.Embedding(sizes[0], sizes[1], dtype=dtype))
        elif kind == "again":
            layers.append(layers[sizes[0]])
        else:
            tied = layers[sizes[0]]
            assert isinstance(tied, Dense), f"{case_text(specs)}: only a dense layer's weight can be tied"
            head, width = Transposed(tied.weight), len(tied.weight)
            beside = [Straight(tied.weight), *(DENSE[own](width, width, dtype) for own in sizes[1:])]
            layers.append(nn.Sequential(nn.Sequential(head), *beside) if kind == "mirrored" else head)
    return layers


def case_text(specs: Sequence[Sequence[Any]]) -> str:
    """The layers of a case in a line."""
    return ", ".join(" ".join(map(str, spec)) for spec in specs)


def draw_layer_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """weights.NAME for every parameter; x and grad_output; xN and targetN for each training step. What goes
    into a "lookup" are whole numbers below its rows. The case's `alike` names parameters, and others whose
    numbers they have.
    """
    layers = _empty_layers(case.params["layers"], dtype_of(case))
    model, (first, size, *_) = nn.Sequential(*layers), case.params["layers"][0]
    shape = case.params["lead"] if first == "lookup" else (*case.params["lead"], size)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype_of(case))

    drawn = {
        f"weights.{name}": draw(*p.shape) / max(1, p.shape[-1]) ** 0.5 for name, p in model.named_parameters()
    }

    for name, other in case.params.get("alike", {}).items():
        drawn[f"weights.{name}"] = drawn[f"weights.{other}"].clone()

    def draw_x() -> Tensor:
        return torch.randint(size, shape, generator=generator) if first == "lookup" else draw(*shape)

    drawn |= {name: draw_x() for name in ("x", *(f"x{i}" for i in range(STEPS)))}
    with torch.no_grad():
        out = model(drawn["x"])
    return drawn | {name: draw(*out.shape) for name in ("grad_output", *(f"target{i}" for i in range(STEPS)))}


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


def named(case: Case) -> Sequence[str]:
    """What a refusal must name."""
    return case.params["names"]
