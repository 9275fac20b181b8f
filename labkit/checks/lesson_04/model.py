"""The model that lesson 04's executor is tried with: uneven stages, biases, two losses.

A case's params: "widths", one list of layer widths a stage; "sizes", the samples of each micro-batch;
"lengths" where samples are sequences, of those of each micro-batch; "vocabulary", where the first and the
last stage share an embedding; "groups" where several pipelines run at once, all alike; "transposed" where
stages give tensors whose memory is in another order; "frozen", names of parameters as `named_parameters` has
them; "dtype" where it is not float64.

Its inputs: every layer's weight and bias under "STAGE.LAYER.weight", the "embedding", and "x0", "y0", "x1",
"y1", one whole batch for each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence
from labkit.checks.shared.beside import STEPS, PlainSeat, State, observe, train
from labkit.checks.shared.places import groups_of, place_of

DTYPE = torch.float64


def dtype_of(case: Case) -> torch.dtype:
    """Of weights, activations and floating inputs."""
    found = getattr(torch, case.params["dtype"]) if "dtype" in case.params else DTYPE
    assert isinstance(found, torch.dtype)
    return found


class Stage(nn.Module):
    """Linear layers with tanh between them, or tanh alone; the first stage may look tokens up, the last may
    score them. Half of it in evaluation mode.
    """

    def __init__(self, layers: Sequence[nn.Linear], is_last: bool, transposed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.is_last, self.transposed = is_last, transposed
        self.embedding: nn.Parameter | None = None
        self.head: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = F.embedding(x, self.embedding)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if not (self.is_last and index == len(self.layers) - 1):
                x = torch.tanh(x)
        x = x if self.layers else torch.tanh(x)
        x = x if self.head is None else F.linear(x, self.head)
        x = x if self.training else x / 2
        return x.t().contiguous().t() if self.transposed else x


def build_stages(case: Case, inputs: Inputs, numbers: Sequence[int]) -> dict[int, Stage]:
    """Fresh stages of these numbers. A shared embedding is one parameter if both its stages are there."""
    widths: list[list[int]] = case.params["widths"]
    transposed = case.params.get("transposed", False)
    stages = {
        s: Stage(list(_linears(s, widths[s], inputs)), s == len(widths) - 1, transposed).to(dtype_of(case))
        for s in numbers
    }
    if "embedding" in inputs:
        embedding = nn.Parameter(inputs["embedding"].to(dtype_of(case), copy=True))
        if 0 in stages:
            stages[0].embedding = embedding
        if last_stage(case) in stages:
            stages[last_stage(case)].head = embedding
    for name, parameter in named_parameters(stages):
        parameter.requires_grad_(name not in case.params.get("frozen", ()))
    return stages


def last_stage(case: Case) -> int:
    """The number of the stage that has the loss."""
    return len(case.params["widths"]) - 1


def stages_of(case: Case, rank: int) -> range:
    """The stages of a rank: of a pipeline on n ranks, each has one of every n that follow one another."""
    place = place_of(case, rank)
    return range(place.position, last_stage(case) + 1, place.size)


def rank_with(stage: int, case: Case, index: int = 0) -> int:
    """The rank that has a stage, in the pipeline of that index."""
    members = groups_of(case)[index]
    return members[stage % len(members)]


def _linears(stage: int, widths: Sequence[int], inputs: Inputs) -> Iterator[nn.Linear]:
    for index, (wide, next_wide) in enumerate(pairwise(widths)):
        layer = nn.Linear(wide, next_wide, dtype=DTYPE)
        names = ("weight", "bias")
        layer.load_state_dict({name: inputs[f"{stage}.{index}.{name}"].clone() for name in names})
        yield layer


def loss_fn(case: Case, output: Tensor, target: Tensor) -> Tensor:
    """The mean over the samples. A sample's own is the sum over all that it has, tokens too."""
    if "vocabulary" in case.params:
        return F.cross_entropy(output, target)
    return (output - target).square().flatten(1).sum(-1).mean()


def sizes_of(case: Case, step: int) -> list[int]:
    """Samples of a step's micro-batches: of the case's first, then in the other order and one more each."""
    sizes: list[int] = case.params["sizes"]
    return [size + step for size in (reversed(sizes) if step else sizes)]


def leading_shape(case: Case, step: int, i: int) -> list[int]:
    """The shape of a step's micro-batch at any stage, without its features: samples, and perhaps tokens."""
    return [sizes_of(case, step)[i], *case.params.get("lengths", [])[i : i + 1]]


def rows_of(case: Case, step: int) -> list[int]:
    """Of each micro-batch of a step: its samples, or all of their tokens."""
    return [math.prod(leading_shape(case, step, i)) for i in range(len(case.params["sizes"]))]


def micro_batches(case: Case, inputs: Inputs, step: int) -> list[tuple[Tensor, Tensor]]:
    """The batch of a step in its sizes; NaN (or token 0) in place of what is not among the inputs."""
    x, y = (half.split(rows_of(case, step)) for half in whole_batch(case, inputs, step))
    shapes = [leading_shape(case, step, i) for i in range(len(x))]
    return [
        (a.unflatten(0, shape).clone(), b.unflatten(0, shape).clone())
        for a, b, shape in zip(x, y, shapes, strict=True)
    ]


def whole_batch(case: Case, inputs: Inputs, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, row by row; NaN (or token 0) in place of what is not among the inputs."""
    widths = case.params["widths"]
    x, y = (
        inputs[name] if name in inputs else _blank(case, width, step)
        for name, width in ((f"x{step}", widths[0][0]), (f"y{step}", widths[-1][-1]))
    )
    return _in_dtype(case, x), _in_dtype(case, y)


def _in_dtype(case: Case, tensor: Tensor) -> Tensor:
    return tensor.to(dtype_of(case)) if tensor.is_floating_point() else tensor


def _blank(case: Case, width: int, step: int) -> Tensor:
    rows = sum(rows_of(case, step))
    if "vocabulary" in case.params:
        return torch.zeros(rows, dtype=torch.long)
    return torch.full((rows, width), float("nan"), dtype=DTYPE)


def draw_model(case: Case, generator: torch.Generator) -> Inputs:
    """Random weights, biases and batches."""
    widths: list[list[int]] = case.params["widths"]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=DTYPE)

    drawn = {}
    for stage, own in enumerate(widths):
        for index, (wide, next_wide) in enumerate(pairwise(own)):
            drawn[f"{stage}.{index}.weight"] = normal(next_wide, wide) / wide**0.5
            drawn[f"{stage}.{index}.bias"] = normal(next_wide) / 2
    for step in range(STEPS):
        rows = sum(rows_of(case, step))
        if "vocabulary" in case.params:
            for name in (f"x{step}", f"y{step}"):
                drawn[name] = torch.randint(case.params["vocabulary"], (rows,), generator=generator)
        else:
            drawn[f"x{step}"], drawn[f"y{step}"] = (
                normal(rows, widths[0][0]),
                normal(rows, widths[-1][-1]),
            )
    if "vocabulary" in case.params:
        drawn["embedding"] = normal(case.params["vocabulary"], widths[0][0]) / 2
    return drawn


def hand_own_stages(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank's own layers; inputs to the first stage's rank, targets to the last's, the embedding to both."""
    stages = stages_of(case, rank)
    at = {"x": 0 in stages, "y": last_stage(case) in stages}
    at["e"] = at["x"] or at["y"]
    return {
        name: tensor
        for name, tensor in inputs.items()
        if (at[name[0]] if name[0] in at else int(name.partition(".")[0]) in stages)
    }


class WholeModel(nn.Module):
    """All stages in one process: inputs and targets [rows, ...], and how many samples these rows are -> the
    mean loss.
    """

    def __init__(self, case: Case, inputs: Inputs) -> None:
        super().__init__()
        self.case = case
        self.numbered = build_stages(case, inputs, range(len(case.params["widths"])))
        self.stages = nn.ModuleList(self.numbered.values())

    def forward(self, x: Tensor, target: Tensor, samples: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return loss_fn(self.case, x, target) * (len(target) / int(samples))


@dataclass(frozen=True)
class PipelineEvidence(Evidence):
    """One case's answers, to be held against one process that had the whole model and the whole batch."""

    @cached_property
    def expected(self) -> State:
        """Loss ("output") and gradients ("grad.NAME") of the first batch, and weights after two steps of SGD
        ("trained.NAME"), with NAME as in `named_parameters`.
        """
        whole, seat = WholeModel(self.case, self.inputs), PlainSeat()
        batches = [
            (*whole_batch(self.case, self.inputs, step), torch.tensor(sum(sizes_of(self.case, step))))
            for step in range(STEPS)
        ]
        observe(seat, whole, batches[0], named=lambda _: named_parameters(whole.numbered))
        train(seat, whole, batches, named=lambda _: named_parameters(whole.numbered))
        return seat.tensors

    @cached_property
    def crossing(self) -> list[list[tuple[Tensor, Tensor | None]]]:
        """Of each micro-batch of the first batch, by stage: what enters it, and the gradient of its output,
        None where it has none.
        """
        whole = WholeModel(self.case, self.inputs)
        return [
            _through(self.case, whole, x, target)
            for x, target in micro_batches(self.case, self.inputs, step=0)
        ]


def _through(case: Case, whole: WholeModel, x: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    given, outputs = list[Tensor](), list[Tensor]()
    for stage in whole.stages:
        given.append(x.detach())
        x = stage(x)
        if x.requires_grad:
            x.retain_grad()
        outputs.append(x)
    loss_fn(case, x, target).backward()
    return [(a, out.grad if out.requires_grad else None) for a, out in zip(given, outputs, strict=True)]


def entered(stage: int, which: int) -> str:
    """The name of the answer that is what a stage's forward was given. which: of its forwards, in order."""
    return f"entered.{stage}.{which}"


def came_back(stage: int, which: int) -> str:
    """The name of the answer that is the gradient of that forward's output."""
    return f"back.{stage}.{which}"


def named_parameters(stages: dict[int, Stage]) -> Iterator[tuple[str, nn.Parameter]]:
    """ "STAGE.NAME" and the parameter; a shared embedding once for each of its stages."""
    for number, stage in stages.items():
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            yield f"{number}.{name}", parameter


def input_width(case: Case, stage: int) -> int:
    """Elements per sample of what enters a stage."""
    return int(case.params["widths"][stage][0])
