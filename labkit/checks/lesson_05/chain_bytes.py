"""What a chain in segments holds: between forward and backward, in backward, and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_05.layers import layers_of
from labkit.checks.lesson_05.measuring import SLACK_BYTES
from labkit.checks.rank import Rank
from labkit.checks.shared.held import allocated, bytes_kept

FEWEST_WEIGHED = 4  # segments: of fewer, two are not told apart from all
PASSED = 2  # segments whose activations may be there at once: one may still be let go while another is built
TRIES = 2


class _Weighed(list[int]):
    """Layers that ran, and the bytes that were there when they began, from `weigh` on."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] | None = None

    def weigh(self) -> None:
        """From now on."""
        self.bytes = []

    def append(self, index: int) -> None:
        super().append(index)
        if self.bytes is not None:
            self.bytes.append(allocated())


class _Chain:
    """Fresh layers and a fresh x; `run` calls the student's on them. Where the case says `made`, x is no
    leaf, but the result of an operation.
    """

    def __init__(self, rank: Rank, log: list[int]):
        self.rank, self.layers = rank, layers_of(rank.case, rank.inputs, log)
        self.leaf = rank.inputs["x"].clone().requires_grad_()
        self.x = self.leaf * 1.0 if rank.params.get("made") else self.leaf

    def run(self) -> Tensor:
        """Forward."""
        output: Tensor = self.rank.student.checkpoint_sequential(
            list(self.layers), self.x, self.rank.params["segments"]
        )
        return output

    def backward(self, output: Tensor) -> None:
        """Backward from what `run` gave."""
        output.backward(self.rank.inputs["grad_output"])

    def forget_gradients(self) -> None:
        """Of the layers and of x."""
        self.layers.zero_grad()
        self.leaf.grad = None

    def make_room_for_gradients(self) -> None:
        """Zeros, which gradients are added to in place."""
        for tensor in (self.leaf, *self.layers.parameters()):
            tensor.grad = torch.zeros_like(tensor) if tensor.requires_grad else None


def measure_chain(rank: Rank) -> None:
    """Facts: kept_bytes, between forward and backward; left_bytes, when backward is over; peak_bytes, the
    most in backward when a layer begins to run, without gradients. Answers: output, input_grad, grad.NAME.
    """

    def forward() -> Callable[[], tuple[Tensor, _Chain]]:
        chain = _Chain(rank, [])
        return lambda: (chain.run(), chain)

    def go_back(kept: tuple[Tensor, _Chain]) -> None:
        output, chain = kept
        chain.backward(output)
        _tell(rank, output, chain)

    def back_and_forth(chain: _Chain) -> Tensor:
        output = chain.run()
        chain.backward(output)
        chain.forget_gradients()
        return output

    rank.fact("kept_bytes", bytes_kept(forward, go_back))
    rank.fact("left_bytes", bytes_kept(lambda: partial(back_and_forth, _Chain(rank, []))))
    if rank.params["segments"] >= FEWEST_WEIGHED:
        rank.fact("peak_bytes", min(_peak_in_backward(rank) for _ in range(TRIES)))


def _peak_in_backward(rank: Rank) -> int:
    log = _Weighed()
    chain = _Chain(rank, log)
    chain.make_room_for_gradients()
    before = allocated()
    output = chain.run()
    log.weigh()
    chain.backward(output)
    return max(log.bytes or [before]) - before


def _tell(rank: Rank, output: Tensor, chain: _Chain) -> None:
    for name, tensor in {"output": output, "input_grad": chain.leaf.grad}.items():
        rank.answer(name, tensor)
    for name, parameter in chain.layers.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)


# -- judges


def keeps_boundaries(evidence: Evidence) -> Iterator[Finding]:
    """Between forward and backward one input a segment is alive, and hardly more is when backward is over."""
    segments, boundary = evidence.case.params["segments"], evidence.inputs["x"].nbytes
    most, facts = segments * (boundary + SLACK_BYTES), evidence.answers[0].facts
    told = f"{segments} boundaries of {boundary} bytes, at most {most} bytes with random states"
    yield Finding(facts["kept_bytes"] <= most, told, f"{facts['kept_bytes']} bytes")
    afterwards = most + boundary  # the last gradient may still be there
    told = f"at most {afterwards} bytes when backward is over and gradients are gone"
    yield Finding(facts["left_bytes"] <= afterwards, told, f"{facts['left_bytes']} bytes")


def builds_one_at_a_time(evidence: Evidence) -> Iterator[Finding]:
    """In backward no more than `PASSED` segments' activations are there at once, beside the boundaries."""
    layers, segments = evidence.case.params["layers"], evidence.case.params["segments"]
    if segments < FEWEST_WEIGHED:
        return
    boundary, longest = evidence.inputs["x"].nbytes, -(-layers // segments)
    # Beside a segment's input each, the result, and gradients on their way.
    beside = (segments + 4) * (boundary + SLACK_BYTES)
    most = beside + PASSED * longest * _bytes_of_a_layer(evidence.case, boundary)
    seen = evidence.answers[0].facts["peak_bytes"]
    told = f"in backward at most {most} bytes, which is {PASSED} segments of {longest} layers and boundaries"
    yield Finding(seen <= most, told, f"{seen} bytes")


def _bytes_of_a_layer(case: Case, boundary: int) -> int:
    """What backward needs of one: its input, and that of its last linear."""
    return boundary + boundary // int(case.params["width"]) * int(case.params["inner"])
