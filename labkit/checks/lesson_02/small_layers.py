"""Small layers that a check hands to a student's model, and the plain model they must equal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.shared.beside import PlainSeat, Seat, State, by_number, descend, observe, same, train
from labkit.checks.shared.split import dtype_of

Specs = list[list[Any]]

SMALL: Specs = [["dense", 5, 7], ["dense", 7, 4], ["hooked", 4, 6], ["dense", 6, 6], ["dense", 6, 3]]
IDS: Specs = [["lookup", 7, 5], ["dense", 5, 4], ["dense", 4, 3]]
STEPS = 2
INFERENCE = (
    "evaluated",
    "graph",
    "sealed",
    "given",
    "asked",
    "moved",
)  # what `compare` answers of a pass without gradients
# As passes are recorded, beside those of `observe` and `train`.
IN_INFERENCE = "forward in inference"
IN_EVALUATION = {"forward": "forward in evaluation", "backward": "backward in evaluation"}
GRAPH_OF = {"forward": "forward for the graph alone", "backward": "backward for the graph alone"}
DROPOUT_SEED = 11
SHARE = 0.5  # of the squared error: with the learning rate, 0.05 of it a step


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


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Inside, random numbers are those of every other such place."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DROPOUT_SEED)
        yield


def compare(
    seat: Seat,
    model: nn.Module,
    inputs: Inputs,
    device: str = "cpu",
    thawed: Sequence[int] = (),
    asks: bool = True,
) -> None:
    """Run a model forward and backward, then train it, as the plain one is.

    Answers output, input_grad, grad.N, buffer.N, those of `infer`, evaluated_grad.N and trained.N (N counts
    in order). Random numbers are the same in every call of this, and go on from pass to pass.
    device: where the input is, but in training. thawed: `change_frozen`, after the first pass. asks: whether
    the input of the first pass asks for a gradient, where it is of floating point.
    """
    x = inputs["x"].clone().to(device)
    with same_random_numbers():
        x.requires_grad_(asks and x.is_floating_point())
        observe(seat, model, [x], inputs["grad_output"], charged="gradients", named=by_number)
        for number, buffer in enumerate(model.buffers()):
            seat.answer(f"buffer.{number}", buffer)
        change_frozen(model, thawed)
        given, batch = inputs["x"].clone().to(device), batches_of(inputs)[0]
        batch = [batch[0].to(device), *batch[1:]]
        before = given.device
        infer(seat, model, given)
        learn_in_evaluation(seat, model, batch)
        seat.answer("given", given)
        seat.answer("asked", torch.tensor(float(given.requires_grad or batch[0].requires_grad)))
        seat.answer("moved", torch.tensor(float(given.device != before)))
        train(seat, model, batches_of(inputs), error_of, named=by_number)


def infer(seat: Seat, model: nn.Module, x: Tensor) -> None:
    """A pass in evaluation mode, without gradients. Answers: evaluated; graph, whether it has one; sealed,
    whether it is an inference tensor. Recording: `IN_INFERENCE`.
    """
    model.eval()
    with torch.no_grad(), seat.recording(IN_INFERENCE):
        out = model(x)
    seat.answer("evaluated", out)
    seat.answer("graph", torch.tensor(float(out.requires_grad)))
    seat.answer("sealed", torch.tensor(float(out.is_inference())))
    model.train()


def learn_in_evaluation(seat: Seat, model: nn.Module, batch: Sequence[Tensor]) -> None:
    """Forward and back in evaluation mode. Answers: evaluated_grad.N (N counts in order). Recordings: those
    in `IN_EVALUATION`.
    """
    model.zero_grad()
    model.eval()
    with seat.attempt("gradients"):
        with seat.recording(IN_EVALUATION["forward"]):
            error = error_of(model, batch)
        with seat.recording(IN_EVALUATION["backward"]):
            error.backward()
    for number, parameter in enumerate(model.parameters()):
        seat.answer(f"evaluated_grad.{number}", parameter.grad)
    model.train()


def change_frozen(model: nn.Module, thawed: Sequence[int]) -> None:
    """Thaw these parameters, by number, and load other numbers into those that stay frozen; nothing where
    none is thawed.
    """
    if not thawed:
        return
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(parameter.requires_grad or number in thawed)
        if not parameter.requires_grad:
            parameter.mul_(0.5)


def batches_of(inputs: Inputs) -> list[list[Tensor]]:
    """The input and the target of each step of training."""
    return [[inputs[f"x{step}"].clone(), inputs[f"target{step}"]] for step in range(STEPS)]


def error_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The loss of training for an input and a target."""
    x, target = batch
    return squared_error(model(x), target)


def squared_error(out: Tensor, target: Tensor) -> Tensor:
    """A loss, on the device of the output."""
    return SHARE * (out - target.to(out.device)).square().sum()


class BesidePlain(Evidence):
    """A case's answers, and what the plain model gives on the same inputs."""

    @cached_property
    def plain(self) -> State:
        """Every tensor that `compare` answers, by name."""
        seat = PlainSeat()
        self._use(seat, nn.Sequential(*build_layers(self.case, self.inputs)))
        return seat.tensors

    def _use(self, seat: PlainSeat, model: nn.Module) -> None:
        params = self.case.params
        compare(seat, model, self.inputs, thawed=params.get("thawed", ()), asks=params.get("x_asks", True))


def follow_graph(seat: Seat, model: nn.Module, inputs: Inputs) -> None:
    """Gradients as the graph alone has them, not what was added to `.grad`. Answers: through.N (N counts
    those that are trained, in order). Recordings: those in `GRAPH_OF`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with seat.recording(GRAPH_OF["forward"]):
        error = error_of(model, batches_of(inputs)[0])
    with seat.recording(GRAPH_OF["backward"]):
        gradients = torch.autograd.grad(error, trained, allow_unused=True)
    for number, gradient in enumerate(gradients):
        seat.answer(f"through.{number}", gradient)


class BesideGraph(BesidePlain):
    """A case's answers, and what the plain model gives, the gradients of its graph too."""

    def _use(self, seat: PlainSeat, model: nn.Module) -> None:
        super()._use(seat, model)
        follow_graph(seat, model, self.inputs)


def add_two_batches(seat: Seat, model: nn.Module, inputs: Inputs) -> None:
    """A backward for one batch, and one for two, with a pass without gradients before it: gradients add up.
    Then a step of SGD, and what the model gives. Random numbers are those of every other call. Answers:
    grad.N (N counts in order), output.
    """
    with same_random_numbers():
        error_of(model, batches_of(inputs)[0]).backward()
        losses = [error_of(model, batch) for batch in batches_of(inputs)]
        with torch.no_grad():
            model(inputs["x"])
        torch.stack(losses).sum().backward()
        for number, parameter in enumerate(model.parameters()):
            seat.answer(f"grad.{number}", parameter.grad)
        descend(model)
        seat.answer("output", model(inputs["x"]))


class BesideTwoBatches(BesidePlain):
    """A case's answers, and what the plain model gives for two batches and one backward."""

    @cached_property
    def plain(self) -> State:
        seat = PlainSeat()
        add_two_batches(seat, nn.Sequential(*build_layers(self.case, self.inputs)), self.inputs)
        return seat.tensors


def build_others(case: Case, inputs: Inputs) -> list[nn.Module]:
    """The case's layers with other numbers, the first two of them frozen."""
    layers = build_layers(case, inputs)
    for number, layer in enumerate(layers):
        for parameter in layer.parameters():
            parameter.data.mul_(0.5)
            parameter.requires_grad_(number >= 2)
    return layers


def learn_side_by_side(seat: Seat, model: nn.Module, other: nn.Module, inputs: Inputs) -> None:
    """One batch for two models, and one backward. Answers: grad.N of the first (N counts in order)."""
    batch = batches_of(inputs)[0]
    (error_of(model, batch) + error_of(other, batch)).backward()
    for number, parameter in enumerate(model.parameters()):
        seat.answer(f"grad.{number}", parameter.grad)


class BesideTwoModels(BesidePlain):
    """A case's answers, and what the plain model gives beside another one."""

    @cached_property
    def plain(self) -> State:
        seat, other = PlainSeat(), nn.Sequential(*build_others(self.case, self.inputs))
        learn_side_by_side(seat, nn.Sequential(*build_layers(self.case, self.inputs)), other, self.inputs)
        return seat.tensors


def equals(*kinds: str) -> Judge:
    """Each of the plain model's tensors of these kinds ("output", "grad", ...) came back with its values."""

    def judge(evidence: BesidePlain) -> Iterator[Finding]:
        for name, expected in evidence.plain.items():
            kind, _, number = name.partition(".")
            if kind in kinds:
                told = f"{TOLD[kind].format(number=number)}, as the model on one device has it"
                yield same(told, expected, evidence.answers[0], name)

    return judge


TOLD = {
    "output": "the output",
    "input_grad": "the gradient of x",
    "grad": "the gradient of parameter {number}",
    "buffer": "buffer {number} after one forward pass",
    "trained": f"parameter {{number}} after {STEPS} steps of SGD",
    "evaluated": "the output after eval(), under no_grad",
    "evaluated_grad": "the gradient of parameter {number} after eval()",
    "graph": "whether that output has a graph",
    "sealed": "whether that output is an inference tensor, which nothing can be trained on",
    "given": "x after it was given to the model",
    "asked": "whether x asks for a gradient, which it did not",
    "moved": "whether x was moved to another device",
    "through": "the gradient of trained parameter {number} by torch.autograd.grad",
}


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
