"""The check of `checkpoint_sequential(layers, x, segments)`: counts, segments and bytes of a chain of
layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.lesson_05.recomputing import SLACK_BYTES
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.record.live import LiveBytes


class _Layer(nn.Module):
    """x + down(tanh(up(x))); notes in `log` each time it runs."""

    def __init__(self, index: int, width: int, inner: int, log: list[int]):
        super().__init__()
        self.index, self.log = index, log
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(self.index)
        return x + self.down(torch.tanh(self.up(x)))


def _layers(case: Case, inputs: Inputs, log: list[int]) -> nn.ModuleList:
    sizes = case.params["width"], case.params["inner"]
    layers = nn.ModuleList(_Layer(i, *sizes, log) for i in range(case.params["layers"])).double()
    layers.load_state_dict({n.removeprefix("full."): t for n, t in inputs.items() if n.startswith("full.")})
    return layers


def chain_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters "full.NAME" of all layers, x and grad_output [rows, width]."""
    width, inner, rows = (case.params[name] for name in ("width", "inner", "rows"))
    found = {}
    for i in range(case.params["layers"]):
        for name, shape in (
            ("up.weight", (inner, width)),
            ("up.bias", (inner,)),
            ("down.weight", (width, inner)),
            ("down.bias", (width,)),
        ):
            found[f"full.{i}.{name}"] = (
                torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
            )
    return found | {
        n: torch.randn(rows, width, generator=generator, dtype=torch.float64) for n in ("x", "grad_output")
    }


def chain_on_rank(rank: Rank) -> None:
    """Run the student's chain forward and backward, or offer it segments it must refuse."""
    if rank.params["kind"] == "refused":
        return _offer_wrong_segments(rank)
    log: list[int] = []
    layers = _layers(rank.case, rank.inputs, log)
    x = rank.inputs["x"].clone().requires_grad_()
    with LiveBytes(leave_out=[*layers.parameters(), x, *rank.inputs.values()]) as live:
        output = rank.student.checkpoint_sequential(list(layers), x, rank.params["segments"])
        rank.fact("kept_bytes", live.now)
        rank.fact("forward", list(log))
        log.clear()
        output.backward(rank.inputs["grad_output"])
    rank.fact("backward", log)
    rank.answer("output", output)
    rank.answer("input_grad", x.grad)
    for name, parameter in layers.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)


def _offer_wrong_segments(rank: Rank) -> None:
    log: list[int] = []
    layers = list(_layers(rank.case, rank.inputs, log))
    for segments in (0, len(layers) + 1, -2):
        with rank.expect_error(str(segments)):
            rank.student.checkpoint_sequential(layers, rank.inputs["x"], segments)
    rank.fact("forward", log)


def judge_chain(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for the properties the case is about."""
    match case.params["kind"]:
        case "refused":
            yield from _refusals(case, answers[0])
        case "bytes":
            yield from _kept(case, inputs, answers[0])
        case "own-parts":
            found = [*_values(case, inputs, answers[0]), *_counts(case, answers[0])]
            worst = next((f for f in found if not f.passed), found[0])
            yield Finding("own-parts", worst.passed, worst.expected, worst.seen)
        case _:
            yield from _values(case, inputs, answers[0])
            yield from _counts(case, answers[0])
            yield from _segments(case, answers[0])


def _values(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    layers = _layers(case, inputs, [])
    x = inputs["x"].clone().requires_grad_()
    output = nn.Sequential(*layers)(x)
    output.backward(inputs["grad_output"])
    expected = {"output": output.detach(), "input_grad": x.grad}
    expected |= {f"grad.{name}": p.grad for name, p in layers.named_parameters()}
    owner = {"output": "forward-values", "input_grad": "input-gradients"}
    for name, tensor in expected.items():
        assert tensor is not None
        wrong = difference(tensor, answer.tensors.get(name))
        yield Finding(
            owner.get(name, "parameter-gradients"),
            wrong is None,
            f"{name} as plain autograd has it",
            wrong or "",
        )


def _counts(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    each_once = list(range(case.params["layers"]))
    forward, backward = answer.facts["forward"], answer.facts["backward"]
    told = "every layer runs once in forward, in order, and once in backward"
    fine = forward == each_once and sorted(backward) == each_once
    yield Finding("forward-counts", fine, told, f"forward ran layers {forward}, backward {backward}")


def _segments(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    """Layers run again in one go are a segment: their numbers go up by one within it."""
    lengths = _runs(answer.facts["backward"])
    layers, segments = case.params["layers"], case.params["segments"]
    fine = len(lengths) == segments and max(lengths) - min(lengths) <= 1 and sum(lengths) == layers
    told = f"{layers} layers in {segments} segments whose lengths differ by at most 1"
    yield Finding("even-segments", fine, told, f"segments of {lengths} layers")


def _runs(indices: Sequence[int]) -> list[int]:
    lengths = [0]
    for before, after in zip([None, *indices], indices, strict=False):
        if before is not None and after != before + 1:
            lengths.append(0)
        lengths[-1] += 1
    return lengths[::-1]


def _kept(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    boundary = inputs["x"].nbytes
    most = case.params["segments"] * boundary + case.params["segments"] * SLACK_BYTES // 2
    kept = answer.facts["kept_bytes"]
    told = (
        f"{case.params['segments']} boundaries of {boundary} bytes, at most {most} bytes with random states"
    )
    yield Finding("saved-bytes", kept <= most, told, f"{kept} bytes")


def _refusals(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    layers = case.params["layers"]
    for segments in (0, layers + 1, -2):
        fact = answer.facts[str(segments)]
        named = str(segments) in fact["message"] and str(layers) in fact["message"]
        fine = fact["raised"] == "ValueError" and named
        told = f"a ValueError that names {segments} and {layers}"
        yield Finding("wrong-segments", fine, told, f"{fact['raised']}: {fact['message']}")
    early = answer.facts["forward"] == []
    yield Finding(
        "wrong-segments", early, "no layer runs before the refusal", f"ran {answer.facts['forward']}"
    )
