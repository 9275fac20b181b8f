"""Lesson 02's weights that stream in, where copies really run beside kernels: on a GPU.

A stand-in's streams know the order of what is asked of them,
and a real one gives wrong numbers to who does not wait.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import collect

LAYERS, WIDTH, ROWS = 10, 2048, 512  # copies of 16 MiB take longer than their products
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def plain_and_offloaded() -> tuple[nn.Sequential, Any]:
    """The same layers whole on the GPU, and with two of them there and the others on the host."""
    names = ("OffloadedModel",)
    offloaded = collect(reference_cells("02"), "02.offloaded-model", names).load().OffloadedModel
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*copy.deepcopy(layers)).to("cuda:0"), offloaded(layers, torch.device("cuda:0"), 2)


def test_passes_one_behind_the_other_give_the_plain_models_numbers() -> None:
    """A copy may not take the place of weights that a kernel still reads: nobody waits between passes."""
    plain, offloaded = plain_and_offloaded()
    inputs = [torch.randn(ROWS, WIDTH, device="cuda:0") for _ in range(8)]
    with torch.no_grad():
        outputs = [offloaded(x) for x in inputs]
        for x, out in zip(inputs, outputs, strict=True):
            torch.testing.assert_close(out, plain(x))


def test_a_training_step_gives_the_plain_models_gradients() -> None:
    plain, offloaded = plain_and_offloaded()
    x = torch.randn(ROWS, WIDTH, device="cuda:0")
    for model in (plain, offloaded):
        model(x).square().mean().backward()
    torch.cuda.synchronize()
    for one, two in zip(plain.parameters(), offloaded.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), two.grad.cpu())


def test_what_waits_on_the_host_is_pinned_and_leaves_the_gpu() -> None:
    plain, offloaded = plain_and_offloaded()
    on_host = [p for p in offloaded.parameters() if not p.is_cuda]
    assert len(on_host) == 2 * (LAYERS - 2)
    assert all(p.is_pinned() for p in on_host)
    del plain
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        offloaded(torch.randn(ROWS, WIDTH, device="cuda:0"))
    layer, activation = 4 * WIDTH * (WIDTH + 1), 4 * ROWS * WIDTH
    assert torch.cuda.max_memory_allocated() - before <= 2 * layer + 6 * activation + 64 * 2**20
