"""Lesson 05's checkpoint against torch.utils.checkpoint: time and peak bytes of a step.

    python benchmarks/recompute.py [--json] [--device cuda] [--rounds 15]

A stack of transformer blocks, without and with dropout, each in a checkpoint; ours and theirs take turns,
from an idle device to an idle device, and their gradients are compared first. ratio: how many times
faster ours is (the median over the rounds), or how many times fewer bytes are alive at the peak of a
step. Peak bytes are the allocator's on a GPU, and those of the tensors alive after each operation on a
CPU. Ours runs a block again with autograd on and so holds its output once more on the way back: one
boundary, and the target allows for it. Theirs also ends the second run as soon as it has what backward asks
for, which without dropout spares the block's last linear: a third of a second run's products. On a GPU the
time is that of the kernels: the target allows for that linear there, and for 2% where both run the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from _alive import most_alive
from _common import Row, add_rounds, median, report, spread
from _device import Device, asked_device, device_arguments, gpu_name
from _turns import take_turns
from torch import Tensor, nn

from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import collect
from labkit.model import Block, explicit_attention, gpt
from labkit.record.live import bytes_of_process

SHAPES = {"cpu": (4, 128, 4, 128, 2), "cuda": (12, 2048, 16, 1024, 4)}  # layers, hidden, heads, tokens, batch
WARM_UP = 2
Wrapped = Callable[..., Any]


def ours() -> Wrapped:
    """The function that the lesson's reference solution defines."""
    found: Wrapped = collect(reference_cells("05"), "05.checkpoint", ("checkpoint",)).load().checkpoint
    return found


def theirs(function: Callable[..., Any], *args: Any) -> Any:
    """PyTorch's, in the form it recommends."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)


def make_blocks(device: Device, dropout: float) -> nn.ModuleList:
    layers, hidden, heads, tokens, _ = SHAPES[device.kind]
    torch.manual_seed(0)
    config = gpt(layers, hidden, heads, vocabulary=64, max_sequence=tokens, dropout=dropout)
    return nn.ModuleList(Block(config, explicit_attention) for _ in range(layers)).to(device.kind)


def stepper(blocks: nn.ModuleList, x: Tensor, wrapped: Wrapped) -> Callable[[], None]:
    """One forward and backward, each block in a checkpoint."""

    def step() -> None:
        blocks.zero_grad()
        y = x
        for block in blocks:
            y = wrapped(block, y)
        y.square().mean().backward()

    return step


def gradients(blocks: nn.ModuleList, step: Callable[[], None]) -> list[Tensor]:
    """Of one step with known random numbers."""
    torch.manual_seed(1)
    step()
    return [parameter.grad.clone() for parameter in blocks.parameters() if parameter.grad is not None]


def peak(device: Device, step: Callable[[], None]) -> float:
    """Bytes alive at the peak of a step."""
    if device.kind == "cuda":
        device.free_peak()
        step()
        return float(torch.cuda.max_memory_allocated())
    before = bytes_of_process()
    return float(most_alive(step) - before)


def compare(device: Device, dropout: float, rounds: int) -> list[Row]:
    """A row of seconds and a row of bytes. RuntimeError when the two do not compute the same."""
    _, hidden, _, tokens, batch = SHAPES[device.kind]
    blocks = make_blocks(device, dropout)
    x = torch.randn(batch, tokens, hidden, device=device.kind, requires_grad=True)
    steps = {"ours": stepper(blocks, x, ours()), "theirs": stepper(blocks, x, theirs)}
    for one, two in zip(*(gradients(blocks, step) for step in steps.values()), strict=True):
        if not torch.allclose(one, two, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"gradients differ by {(one - two).abs().max().item():.2e}")
    times = take_turns(steps, rounds, WARM_UP, device.now)
    peaks = {}
    for who, step in steps.items():
        blocks.zero_grad()
        peaks[who] = peak(device, step)
    target = 1.0 if device.kind == "cpu" else 0.98 if dropout else 0.9
    return _rows(f"dropout {dropout:g}", times, peaks, target)


def _rows(about: str, times: dict[str, list[float]], peaks: dict[str, float], target: float) -> list[Row]:
    mine, other = (median(times[who]) for who in ("ours", "theirs"))
    ratio = median([b / a for a, b in zip(times["ours"], times["theirs"], strict=True)])
    peer, note = "torch.utils.checkpoint", f"{spread(times['ours'])} against {spread(times['theirs'])}"
    bytes_ratio = peaks["theirs"] / peaks["ours"]
    return [
        Row(f"step, {about}", mine, other, "s", ratio, target, peer, note),
        Row(f"peak, {about}", peaks["ours"] / 1e6, peaks["theirs"] / 1e6, "MB", bytes_ratio, 0.95, peer),
    ]


def main() -> None:
    parser = device_arguments(__doc__)
    add_rounds(parser, 15)
    options = parser.parse_args()
    device = asked_device(options.device)
    rows = [row for dropout in (0.0, 0.1) for row in compare(device, dropout, options.rounds)]
    report("recompute", rows, options.json, gpu_name() if device.kind == "cuda" else "")


if __name__ == "__main__":
    main()
