"""The check of `checkpoint_sequential(layers, x, segments)`: what a chain of layers runs and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.lesson_05.chain_bytes import measure_chain
from labkit.checks.lesson_05.layers import in_a_row, inputs_of, layers_of
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import PlainSeat, Seat, State, observe, refused, same

SEQUENCES: Mapping[str, Callable[[list[nn.Module]], Sequence[nn.Module]]] = {
    "tuple": tuple,
    "nn.ModuleList": nn.ModuleList,  # type: ignore[dict-item]
}


def _use_chain(rank: Rank) -> None:
    """Forward and backward. Answers: those of `observe`, and buffer.NAME. Facts: the layers run, forward and
    backward; left, how many layers are in the list afterwards.
    """
    log: list[int] = []
    layers = layers_of(rank.case, rank.inputs, log)
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
    layers, x = layers_of(rank.case, rank.inputs, []), rank.inputs["x"].clone().requires_grad_()
    handed = SEQUENCES[rank.params["handed"]](in_a_row(rank.case, layers))

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
    layers, data = layers_of(rank.case, rank.inputs, log).eval(), rank.inputs["x"].clone()
    output = rank.student.checkpoint_sequential(tuple(layers), data, rank.params["segments"])
    rank.answer("evaluated", output)
    rank.answer("asked", torch.tensor(data.requires_grad))
    log.clear()
    with rank.attempt("forward-counts"):
        output.backward(rank.inputs["grad_output"])
    rank.fact("backward for data", list(log))
    others = list(_halved(layers_of(rank.case, rank.inputs, log)))
    rank.answer("others", rank.student.checkpoint_sequential(others, data, rank.params["segments"]))


@torch.no_grad()
def _halved(layers: nn.ModuleList) -> nn.ModuleList:
    for parameter in layers.parameters():
        parameter.div_(2)
    return layers


def _tell_buffers(seat: Seat, layers: nn.Module) -> None:
    for name, buffer in layers.named_buffers():
        seat.answer(f"buffer.{name}", buffer)


def _offer_wrong_segments(rank: Rank) -> None:
    log: list[int] = []
    layers = list(layers_of(rank.case, rank.inputs, log))
    for count, segments in _wrong_segments(rank.case):
        with rank.expect_error(f"{segments} of {count}"):
            rank.student.checkpoint_sequential(layers[:count], rank.inputs["x"], segments)
    rank.fact("forward", log)


def _wrong_segments(case: Case) -> tuple[tuple[int, int], ...]:
    """So many layers, and how many segments they cannot be cut into."""
    layers: int = case.params["layers"]
    return (layers, 0), (layers, layers + 1), (layers, -2), (0, 1)


def _one_after_the_other(case: Case, layers: nn.ModuleList, arguments: Sequence[Tensor]) -> Tensor:
    return nn.Sequential(*in_a_row(case, layers))(*arguments)


class BesidePlainChain(Evidence):
    """A case's answers, and what the layers give one after the other."""

    @cached_property
    def plain(self) -> State:
        """output, input_grad, grad.NAME, buffer.NAME, evaluated, others and asked."""
        seat, layers = PlainSeat(), layers_of(self.case, self.inputs, [])
        x = self.inputs["x"].clone().requires_grad_()
        plainly = partial(_one_after_the_other, self.case)
        observe(seat, layers, [x], self.inputs["grad_output"], use=lambda _, given: plainly(layers, given))
        _tell_buffers(seat, layers)
        seat.answer("evaluated", plainly(layers.eval(), [x]))
        seat.answer("others", plainly(_halved(layers_of(self.case, self.inputs, [])), [x]))
        seat.answer("asked", torch.tensor(False))
        return seat.tensors


RUNS: Mapping[str, Run] = {
    "values": Run(_use_twice, inputs_of, evidence=BesidePlainChain),
    "own-parts": Run(_use_chain, inputs_of, evidence=BesidePlainChain),
    "any-sequence": Run(_use_sequence, inputs_of, evidence=BesidePlainChain),
    "bytes": Run(measure_chain, inputs_of, evidence=BesidePlainChain),
    "refused": Run(_offer_wrong_segments, inputs_of),
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


def refuses_wrong_segments(evidence: Evidence) -> Iterator[Finding]:
    """A ValueError that says both numbers, before any layer runs."""
    answer = evidence.answers[0]
    for count, segments in _wrong_segments(evidence.case):
        yield refused(f"{segments} of {count}", ["ValueError"], answer, [segments, count])
    ran = answer.facts["forward"]
    yield Finding(ran == [], "no layer runs before the refusal", f"ran {ran}")
