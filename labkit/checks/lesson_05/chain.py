"""The check of `checkpoint_sequential(layers, x, segments)`: what a chain of layers runs and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.lesson_05.measuring import SLACK_BYTES
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import PlainSeat, Seat, State, observe, refused, same
from labkit.checks.shared.held import bytes_kept

SEQUENCES: Mapping[str, Callable[[list[nn.Module]], Sequence[nn.Module]]] = {
    "tuple": tuple,
    "nn.ModuleList": nn.ModuleList,  # type: ignore[dict-item]
}


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


def _layers(case: Case, inputs: Inputs, log: list[int]) -> nn.ModuleList:
    """The first has a hook, as libraries add them; every third one is in evaluation mode: where bytes are
    measured, only if the case says `mixed`. Frozen are those that the case says. Those of its `pairs` are an
    nn.Sequential of two, which has a length and can be indexed.
    """
    sizes, bare = (case.params["width"], case.params["inner"]), case.params.get("bare", ())
    layers = nn.ModuleList(
        _Bare(i, log) if i in bare else _Layer(i, *sizes, log) for i in range(case.params["layers"])
    ).double()
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


def _in_a_row(case: Case, layers: nn.ModuleList) -> list[nn.Module]:
    """The layers in the order in which they run; those that the case says stand at the end once more."""
    return [*layers, *(layers[index] for index in case.params.get("again_at_the_end", ()))]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters "full.NAME" of all layers that have some, x and grad_output [rows, width]."""

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

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


def _use_chain(rank: Rank) -> None:
    """Forward and backward. Answers: those of `observe`, and buffer.NAME. Facts: the layers run, forward and
    backward; left, how many layers are in the list afterwards.
    """
    log: list[int] = []
    layers = _layers(rank.case, rank.inputs, log)
    x = rank.inputs["x"].clone().requires_grad_()

    handed: list[nn.Module] = list(layers)

    def forward(_: nn.Module, arguments: Sequence[Tensor]) -> Tensor:
        output = rank.student.checkpoint_sequential(handed, arguments[0], rank.params["segments"])
        rank.fact("forward", list(log))
        log.clear()
        return output

    observe(rank, layers, [x], rank.inputs["grad_output"], use=forward)
    rank.fact("backward", list(log))
    rank.fact("left", len(handed))
    _tell_buffers(rank, layers)


def _use_sequence(rank: Rank) -> None:
    """Forward and backward, of a sequence of any kind. Answers: those of `observe`."""
    layers, x = _layers(rank.case, rank.inputs, []), rank.inputs["x"].clone().requires_grad_()
    handed = SEQUENCES[rank.params["handed"]](_in_a_row(rank.case, layers))

    def forward(_: nn.Module, arguments: Sequence[Tensor]) -> Tensor:
        return rank.student.checkpoint_sequential(handed, arguments[0], rank.params["segments"])

    observe(rank, layers, [x], rank.inputs["grad_output"], use=forward)


def _use_twice(rank: Rank) -> None:
    """As `_use_chain`, then in evaluation mode with x as data and a tuple of layers, and then with a list of
    other ones. Answers besides: evaluated, others, and asked, whether x asks for a gradient then. Fact
    besides: the layers run in that backward.
    """
    _use_chain(rank)
    log: list[int] = []
    layers, data = _layers(rank.case, rank.inputs, log).eval(), rank.inputs["x"].clone()
    output = rank.student.checkpoint_sequential(tuple(layers), data, rank.params["segments"])
    rank.answer("evaluated", output)
    rank.answer("asked", torch.tensor(data.requires_grad))
    log.clear()
    with rank.attempt("forward-counts"):
        output.backward(rank.inputs["grad_output"])
    rank.fact("backward for data", list(log))
    others = list(_halved(_layers(rank.case, rank.inputs, log)))
    rank.answer("others", rank.student.checkpoint_sequential(others, data, rank.params["segments"]))


@torch.no_grad()
def _halved(layers: nn.ModuleList) -> nn.ModuleList:
    for parameter in layers.parameters():
        parameter.div_(2)
    return layers


def _tell_buffers(seat: Seat, layers: nn.Module) -> None:
    for name, buffer in layers.named_buffers():
        seat.answer(f"buffer.{name}", buffer)


def _measure_chain(rank: Rank) -> None:
    """Fact: kept_bytes, between forward and backward. Answers: output, input_grad, grad.NAME."""
    x = rank.inputs["x"].clone().requires_grad_()

    def prepare() -> Callable[[], tuple[Tensor, nn.Module]]:
        layers, x.grad = _layers(rank.case, rank.inputs, []), None
        return lambda: (rank.student.checkpoint_sequential(list(layers), x, rank.params["segments"]), layers)

    def go_back(kept: tuple[Tensor, nn.Module]) -> None:
        output, layers = kept
        output.backward(rank.inputs["grad_output"])
        for name, tensor in {"output": output, "input_grad": x.grad}.items():
            rank.answer(name, tensor)
        for name, parameter in layers.named_parameters():
            rank.answer(f"grad.{name}", parameter.grad)

    rank.fact("kept_bytes", bytes_kept(prepare, go_back))


def _offer_wrong_segments(rank: Rank) -> None:
    log: list[int] = []
    layers = list(_layers(rank.case, rank.inputs, log))
    for count, segments in _wrong_segments(rank.case):
        with rank.expect_error(f"{segments} of {count}"):
            rank.student.checkpoint_sequential(layers[:count], rank.inputs["x"], segments)
    rank.fact("forward", log)


def _wrong_segments(case: Case) -> tuple[tuple[int, int], ...]:
    """So many layers, and how many segments they cannot be cut into."""
    layers: int = case.params["layers"]
    return (layers, 0), (layers, layers + 1), (layers, -2), (0, 1)


def _one_after_the_other(case: Case, layers: nn.ModuleList, arguments: Sequence[Tensor]) -> Tensor:
    return nn.Sequential(*_in_a_row(case, layers))(*arguments)


class BesidePlainChain(Evidence):
    """A case's answers, and what the layers give one after the other."""

    @cached_property
    def plain(self) -> State:
        """output, input_grad, grad.NAME, buffer.NAME, evaluated, others and asked."""
        seat, layers = PlainSeat(), _layers(self.case, self.inputs, [])
        x = self.inputs["x"].clone().requires_grad_()
        in_a_row = partial(_one_after_the_other, self.case)
        observe(seat, layers, [x], self.inputs["grad_output"], use=lambda _, given: in_a_row(layers, given))
        _tell_buffers(seat, layers)
        seat.answer("evaluated", in_a_row(layers.eval(), [x]))
        seat.answer("others", in_a_row(_halved(_layers(self.case, self.inputs, [])), [x]))
        seat.answer("asked", torch.tensor(False))
        return seat.tensors


RUNS: Mapping[str, Run] = {
    "values": Run(_use_twice, _inputs, evidence=BesidePlainChain),
    "own-parts": Run(_use_chain, _inputs, evidence=BesidePlainChain),
    "any-sequence": Run(_use_sequence, _inputs, evidence=BesidePlainChain),
    "bytes": Run(_measure_chain, _inputs, evidence=BesidePlainChain),
    "refused": Run(_offer_wrong_segments, _inputs),
}


# -- judges


def chain_gives(*kinds: str) -> Judge:
    """The plain chain's tensors of these kinds ("output", "input_grad", "grad", "buffer" and so on)."""

    def judge(evidence: BesidePlainChain) -> Iterator[Finding]:
        for name, tensor in evidence.plain.items():
            if name.partition(".")[0] in kinds:
                yield same(f"{name} as plain autograd has it", tensor, evidence.answers[0], name)

    return judge


def leaves_frozen_alone(evidence: BesidePlainChain) -> Iterator[Finding]:
    """No gradient where plain autograd has none."""
    found = [n for n in evidence.answers[0].tensors if n.startswith("grad.") and n not in evidence.plain]
    yield Finding(not found, "no gradient for a frozen layer", f"{', '.join(found)}")


def leaves_the_list(evidence: Evidence) -> Iterator[Finding]:
    """The list that was handed over has its layers."""
    left, layers = evidence.answers[0].facts["left"], evidence.case.params["layers"]
    yield Finding(left == layers, f"{layers} layers in the list that was handed over", f"{left}")


def runs_each_layer_twice(evidence: Evidence) -> Iterator[Finding]:
    """Once in forward, in order, and once in backward."""
    facts, each_once = evidence.answers[0].facts, list(range(evidence.case.params["layers"]))
    forward, backward = facts["forward"], facts["backward"]
    told = "every layer runs once in forward, in order, and once in backward"
    fine = forward == each_once and sorted(backward) == each_once
    yield Finding(fine, told, f"forward ran layers {forward}, backward {backward}")


def runs_first_as_others(evidence: Evidence) -> Iterator[Finding]:
    """Where x asks for no gradient, the first segment is checkpointed as well."""
    again = evidence.answers[0].facts["backward for data"]
    told = "every layer runs once more in backward where x asks for no gradient"
    fine = sorted(again) == list(range(evidence.case.params["layers"]))
    yield Finding(fine, told, f"backward ran layers {again}")


def segments_are_even(evidence: Evidence) -> Iterator[Finding]:
    """Layers run again in one go are a segment: their numbers go up by one within it."""
    lengths = _runs(evidence.answers[0].facts["backward"])
    layers, segments = evidence.case.params["layers"], evidence.case.params["segments"]
    fine = len(lengths) == segments and max(lengths) - min(lengths) <= 1 and sum(lengths) == layers
    told = f"{layers} layers in {segments} segments whose lengths differ by at most 1"
    yield Finding(fine, told, f"segments of {lengths} layers")


def _runs(indices: Sequence[int]) -> list[int]:
    lengths = [0]
    for before, after in zip([None, *indices], indices, strict=False):
        if before is not None and after != before + 1:
            lengths.append(0)
        lengths[-1] += 1
    return lengths[::-1]


def keeps_boundaries(evidence: Evidence) -> Iterator[Finding]:
    """Between forward and backward one input a segment is alive."""
    segments, boundary = evidence.case.params["segments"], evidence.inputs["x"].nbytes
    most = segments * (boundary + SLACK_BYTES)
    kept = evidence.answers[0].facts["kept_bytes"]
    told = f"{segments} boundaries of {boundary} bytes, at most {most} bytes with random states"
    yield Finding(kept <= most, told, f"{kept} bytes")


def refuses_wrong_segments(evidence: Evidence) -> Iterator[Finding]:
    """A ValueError that says both numbers, before any layer runs."""
    answer = evidence.answers[0]
    for count, segments in _wrong_segments(evidence.case):
        yield refused(f"{segments} of {count}", ["ValueError"], answer, [segments, count])
    ran = answer.facts["forward"]
    yield Finding(ran == [], "no layer runs before the refusal", f"ran {ran}")
