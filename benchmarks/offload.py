"""Inference with all weights on the host: lesson 02's OffloadedModel against accelerate's cpu_offload.

Needs a GPU and `pip install accelerate`, and says so without them. Both run the same layers in turn; a row is
one number of tokens in the batch.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable

import _common
import torch
from _device import gpu_name
from torch import Tensor, nn

from autograder.grade.reference import graded_submission, solved_cells
from labkit.checks import registry
from labkit.model import Block, fused_attention, gpt

LAYERS, HIDDEN, SEQUENCE, REPEATS = 16, 2048, 512, 7
BATCHES = (1, 4, 16, 64)  # sequences; the copy hides from about F/B tokens on
TARGET = 1.0


def offloaded_model() -> type[nn.Module]:
    """The class that the lesson's reference solution defines."""
    exercise = registry.exercise("02.offloaded-model")
    submission, _ = graded_submission(list(solved_cells("02")), exercise)
    found: type[nn.Module] = submission.load().OffloadedModel
    return found


def make_blocks() -> list[nn.Module]:
    config = gpt(num_layers=LAYERS, hidden=HIDDEN, num_heads=16, vocabulary=256, max_sequence=SEQUENCE)
    return [Block(config, fused_attention).to(torch.bfloat16).eval() for _ in range(LAYERS)]


def seconds(run: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """One pass, from an idle device to an idle device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.no_grad():
        run(x)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(batch: int, ours: nn.Module, theirs: nn.Module) -> _common.Row:
    """Tokens a second of both, taken in turn."""
    x = torch.randn(batch, SEQUENCE, HIDDEN, dtype=torch.bfloat16, device="cuda:0")
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(REPEATS):
        times["ours"].append(seconds(ours, x))
        times["theirs"].append(seconds(theirs, x))
    tokens = batch * SEQUENCE
    mine, peer = (tokens / _common.median(times[name]) for name in ("ours", "theirs"))
    noise = _common.spread([tokens / t for t in times["ours"]])
    name = f"{tokens:,} tokens"
    return _common.Row(name, mine, peer, "tokens/s", mine / peer, TARGET, "accelerate cpu_offload", noise)


def main() -> None:
    options = _common.arguments(__doc__).parse_args()
    if not torch.cuda.is_available():
        _common.not_here(
            "benchmarks/offload.py measures copies to a GPU: this host has none, nothing was measured"
        )
    if importlib.util.find_spec("accelerate") is None:
        _common.not_here(
            "benchmarks/offload.py compares with accelerate: install it first (pip install accelerate)"
        )
    from accelerate import cpu_offload

    blocks = make_blocks()
    theirs = nn.Sequential(*copy.deepcopy(blocks))
    cpu_offload(theirs, execution_device=torch.device("cuda:0"))
    ours = offloaded_model()(blocks, torch.device("cuda:0"), 0)
    rows = [compare(batch, ours, theirs) for batch in BATCHES]
    _common.report("offload", rows, options.json, gpu_name())


if __name__ == "__main__":
    main()
