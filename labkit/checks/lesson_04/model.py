"""The model that lesson 04's executor is tried with: uneven stages, biases, two losses.

A case's params: "widths", one list of layer widths a stage; "sizes", the samples of each micro-batch;
"vocabulary", where the first and the last stage share an embedding. Its inputs: every layer's weight and bias
under "STAGE.LAYER.weight", the "embedding", and "x0", "y0", "x1", "y1", one whole batch for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs

STEPS = 2
LEARNING_RATE = 0.1
DTYPE = torch.float64


class Stage(nn.Module):
    """Linear layers with tanh between them; the first stage may look tokens up, the last may score them."""

    def __init__(self, layers: Sequence[nn.Linear], is_last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.is_last = is_last
        self.embedding: nn.Parameter | None = None
        self.head: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = F.embedding(x, self.embedding)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if not (self.is_last and index == len(self.layers) - 1):
                x = torch.tanh(x)
        return x if self.head is None else F.linear(x, self.head)


def build_stages(case: Case, inputs: Inputs, numbers: Sequence[int]) -> dict[int, Stage]:
    """Fresh stages of these numbers. A shared embedding is one parameter if both its stages are there."""
    widths: list[list[int]] = case.params["widths"]
    stages = {s: Stage(list(_linears(s, widths[s], inputs)), s == len(widths) - 1) for s in numbers}
    if "vocabulary" in case.params:
        embedding = nn.Parameter(inputs["embedding"].clone())
        if 0 in stages:
            stages[0].embedding = embedding
        if len(widths) - 1 in stages:
            stages[len(widths) - 1].head = embedding
    return stages


def _linears(stage: int, widths: Sequence[int], inputs: Inputs) -> Iterator[nn.Linear]:
    for index, (wide, next_wide) in enumerate(pairwise(widths)):
        layer = nn.Linear(wide, next_wide, dtype=DTYPE)
        names = ("weight", "bias")
        layer.load_state_dict({name: inputs[f"{stage}.{index}.{name}"].clone() for name in names})
        yield layer


def loss_fn(case: Case, output: Tensor, target: Tensor) -> Tensor:
    """The mean over the samples."""
    if "vocabulary" in case.params:
        return F.cross_entropy(output, target)
    return (output - target).square().sum(-1).mean()


def micro_batches(case: Case, inputs: Inputs, step: int) -> list[tuple[Tensor, Tensor]]:
    """The batch of a step in the case's sizes."""
    sizes = case.params["sizes"]
    x, y = inputs[f"x{step}"].split(sizes), inputs[f"y{step}"].split(sizes)
    return [(a.clone(), b.clone()) for a, b in zip(x, y, strict=True)]


def draw_model(case: Case, generator: torch.Generator) -> Inputs:
    """Random weights, biases and batches."""
    widths: list[list[int]] = case.params["widths"]
    samples = sum(case.params["sizes"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=DTYPE)

    drawn = {}
    for stage, own in enumerate(widths):
        for index, (wide, next_wide) in enumerate(pairwise(own)):
            drawn[f"{stage}.{index}.weight"] = normal(next_wide, wide) / wide**0.5
            drawn[f"{stage}.{index}.bias"] = normal(next_wide) / 2
    for step in range(STEPS):
        if "vocabulary" in case.params:
            for name in (f"x{step}", f"y{step}"):
                drawn[name] = torch.randint(case.params["vocabulary"], (samples,), generator=generator)
        else:
            drawn[f"x{step}"], drawn[f"y{step}"] = (
                normal(samples, widths[0][0]),
                normal(samples, widths[-1][-1]),
            )
    if "vocabulary" in case.params:
        drawn["embedding"] = normal(case.params["vocabulary"], widths[0][0]) / 2
    return drawn


def reference(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Losses, gradients of the first batch, and weights after two steps of SGD: one process, whole batches.

    Keys: "loss0", "loss1", "grad.NAME", "trained.NAME", with NAME as in `named_parameters`.
    """
    stages = build_stages(case, inputs, range(len(case.params["widths"])))
    parameters = dict(named_parameters(stages))
    optimizer = torch.optim.SGD(list(dict.fromkeys(parameters.values())), lr=LEARNING_RATE)
    found: dict[str, Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        x = inputs[f"x{step}"]
        for stage in stages.values():
            x = stage(x)
        loss = loss_fn(case, x, inputs[f"y{step}"])
        loss.backward()
        found[f"loss{step}"] = loss.detach()
        if step == 0:
            found |= {f"grad.{name}": p.grad.clone() for name, p in parameters.items() if p.grad is not None}
        optimizer.step()
    return found | {f"trained.{name}": p.detach() for name, p in parameters.items()}


def named_parameters(stages: dict[int, Stage]) -> Iterator[tuple[str, nn.Parameter]]:
    """ "STAGE.NAME" and the parameter; a shared embedding once for each of its stages."""
    for number, stage in stages.items():
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            yield f"{number}.{name}", parameter


def input_width(case: Case, stage: int) -> int:
    """Elements per sample of what enters a stage."""
    return int(case.params["widths"][stage][0])
