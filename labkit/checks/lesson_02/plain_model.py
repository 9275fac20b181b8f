"""The plain model that a student's must equal: the same layers on one device, and what is done with both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from labkit.checks.case import Inputs
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.lesson_02.small_layers import STEPS, build_layers, build_others
from labkit.checks.shared.beside import PlainSeat, Seat, State, by_number, descend, observe, same, train

# What `compare` answers of a pass without gradients.
INFERENCE = ("evaluated", "graph", "sealed", "given", "asked", "moved")
# As passes are recorded, beside those of `observe` and `train`.
IN_INFERENCE = "forward in inference"
IN_EVALUATION = {"forward": "forward in evaluation", "backward": "backward in evaluation"}
GRAPH_OF = {"forward": "forward for the graph alone", "backward": "backward for the graph alone"}
DROPOUT_SEED = 11
SHARE = 0.5  # of the squared error: with the learning rate, 0.05 of it a step


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
    """A backward for one batch, one for two, with a pass without gradients before it, and two whose forward
    passes have come before, in their order and the other way round: gradients add up. Then a step of SGD, and
    what the model gives. Random numbers are those of every other call. Answers: grad.N (N counts in order),
    output.
    """
    with same_random_numbers():
        error_of(model, batches_of(inputs)[0]).backward()
        losses = [error_of(model, batch) for batch in batches_of(inputs)]
        with torch.no_grad():
            model(inputs["x"])
        torch.stack(losses).sum().backward()
        for order in (1, -1):
            for loss in [error_of(model, batch) for batch in batches_of(inputs)][::order]:
                loss.backward()
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
