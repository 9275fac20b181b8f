"""What lessons 02, 05 and 10 show of a real GPU: their reference solutions, measured on one.

    python benchmarks/gpu_figures.py [--only streaming] [--out labkit/show/measurements]

Writes a file for each under --out, NAME_GPU.json, with the GPU's name, torch's version and the date;
lessons draw from it. Needs a GPU, and about 60 GB of its memory; takes about a minute.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import arguments, median, not_here
from _device import gpu_name
from _gpu_trace import watched
from torch import Tensor, nn

from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import collect
from labkit.model import (
    Attend,
    Block,
    Recomputed,
    Transformer,
    explicit_attention,
    fused_attention,
    gpt,
    recomputed_attention,
)
from labkit.theory.hardware import GPUS

MEASURED = Path(__file__).resolve().parents[1] / "labkit" / "show" / "measurements"
PEAK = GPUS["H100 80 GB"]
CUDA = torch.device("cuda", 0)
Figure = dict[str, Any]


def solution(lesson: str, exercise: str, *names: str) -> Any:
    """A module with the names that the lesson's reference defines."""
    return collect(reference_cells(lesson), f"{lesson}.{exercise}", names).load()


def seconds(step: Callable[[], object], times: int = 5) -> float:
    """The median of several runs, each from an idle device to an idle device."""
    found = []
    for number in range(times + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= 2:
            found.append(time.perf_counter() - start)
    return median(found)


# -- lesson 02: weights that stream in

HIDDEN, SEQUENCE, LAYERS = 2048, 512, 6
TOKENS, DRAWN_TOKENS = (1, 512, 2048, 8192, 16_384, 32_768), 16_384


def streaming() -> Figure:
    """Timelines of layers that wait on the host, and the time of a pass by tokens beside its two bounds."""
    offloaded = solution("02", "offloaded-model", "OffloadedModel").OffloadedModel
    simple, resident = host_layers(), nn.Sequential(*host_layers()).to(CUDA)

    def one_after_the_other(x: Tensor) -> Tensor:
        for layer in simple:
            x = layer.to(CUDA)(x)
            layer.to("cpu")
        return x

    passes = {
        "streamed": offloaded(host_layers(), CUDA, 0),
        "simple": one_after_the_other,
        "computing": resident,
    }
    with torch.no_grad():
        rows = [pass_seconds(passes, tokens) for tokens in TOKENS]
        x = batch_of(DRAWN_TOKENS)
        timelines = {
            "one after the other": watched(lambda: one_after_the_other(x)),
            "yours": watched(lambda: passes["streamed"](x)),
        }
    weights = sum(p.nbytes for p in resident.parameters())
    about = {"layers": LAYERS, "hidden": HIDDEN, "weight_bytes": weights, "drawn_tokens": DRAWN_TOKENS}
    return {**about, **bounds(), "rows": rows, "timelines": timelines}


def host_layers() -> list[nn.Module]:
    """Blocks of a transformer on the host, 16 bits a weight."""
    config = gpt(LAYERS, HIDDEN, 16, vocabulary=256, max_sequence=SEQUENCE, dropout=0.0)
    return [Block(config, fused_attention).to(torch.bfloat16).eval() for _ in range(LAYERS)]


def batch_of(tokens: int) -> Tensor:
    """What goes into the first layer, on the GPU."""
    shape = (max(1, tokens // SEQUENCE), min(tokens, SEQUENCE), HIDDEN)
    return torch.randn(shape, dtype=torch.bfloat16, device=CUDA)


def pass_seconds(passes: Mapping[str, Callable[[Tensor], object]], tokens: int) -> Figure:
    """Seconds of each kind of pass with so many tokens."""
    x = batch_of(tokens)
    return {"tokens": tokens, **{name: seconds(partial(run, x)) for name, run in passes.items()}}


def bounds() -> Figure:
    """The rates of a large copy from pinned memory and of a large 16-bit product."""
    pinned = torch.empty(2**29, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(pinned, device=CUDA)
    link = pinned.nbytes / seconds(lambda: there.copy_(pinned, non_blocking=True))
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device=CUDA)
    product = 2 * 8192**3 / seconds(lambda: a @ a)
    return {"link_bytes_per_second": link, "product_flops_per_second": product}


# -- lesson 05: what recomputation frees, and what it costs

SHAPE = {"layers": 16, "hidden": 2048, "heads": 16, "sequence": 2048, "batch": 4, "vocabulary": 32_000}
Plan = tuple[Attend, Callable[[nn.Module], nn.Module]]


def recomputation() -> Figure:
    """Bytes over a step, the peak and the seconds of a step, plan by plan."""
    rows, histories = [], {}
    for name, plan in recomputation_plans().items():
        row, history = tried_plan(plan)
        rows.append({"plan": name, **row})
        if "torch" not in name:
            histories[name] = history
        torch.cuda.empty_cache()
    return {**SHAPE, "rows": rows, "histories": histories}


def recomputation_plans() -> dict[str, Plan]:
    """What is kept for backward: how attention is computed, and what each block is put into."""
    checkpoint = solution("05", "checkpoint", "checkpoint").checkpoint

    class Ours(nn.Module):
        def __init__(self, block: nn.Module):
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x)

    def core(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return checkpoint(explicit_attention, q, k, v, dropout)

    def plain(block: nn.Module) -> nn.Module:
        return block

    return {
        "explicit scores, keep everything": (explicit_attention, plain),
        "explicit scores, selective": (core, plain),
        "explicit scores, selective, torch's": (recomputed_attention(explicit_attention), plain),
        "explicit scores, full": (explicit_attention, Ours),
        "explicit scores, full, torch's": (explicit_attention, Recomputed),
        "fused attention, keep everything": (fused_attention, plain),
        "fused attention, full": (fused_attention, Ours),
        "fused attention, full, torch's": (fused_attention, Recomputed),
    }


def tried_plan(plan: Plan) -> tuple[Figure, Figure]:
    """Seconds and bytes of a step of a GPT, and its bytes over the step."""
    layers, hidden, heads, sequence, batch, vocabulary = SHAPE.values()
    config = gpt(layers, hidden, heads, vocabulary=vocabulary, max_sequence=sequence, dropout=0.0)
    torch.manual_seed(0)
    with CUDA:
        model = Transformer(config, *plan).to(torch.bfloat16)
    ids = torch.randint(vocabulary, (batch, sequence), device=CUDA)

    def step() -> None:
        model.loss(ids, ids).backward()

    took = seconds(step)
    state = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated() - state
    return {"seconds": took, "state_bytes": state, "peak_bytes": peak}, held_over_a_step(model, ids, state)


def held_over_a_step(model: Transformer, ids: Tensor, state: int) -> Figure:
    """Milliseconds and bytes beyond the state, at each block's beginning and end, forward and back."""
    marks: list[tuple[torch.cuda.Event, int]] = []

    def mark(*_: object) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append((event, torch.cuda.memory_allocated() - state))

    hooks = []
    for block in model.blocks:
        hooks += [block.register_forward_pre_hook(mark), block.register_forward_hook(mark)]
        hooks.append(block.register_full_backward_hook(mark))
    mark()
    loss = model.loss(ids, ids)
    mark()
    turn = len(marks)
    loss.backward()
    mark()
    torch.cuda.synchronize()
    for hook in hooks:
        hook.remove()
    first = marks[0][0]
    return {
        "milliseconds": [round(first.elapsed_time(event), 3) for event, _ in marks],
        "bytes": [held for _, held in marks],
        "turn": turn,
    }


# -- lesson 10: a host that waits, and the share of the machine


def stepping() -> Figure:
    """Timelines of slow program 2 and its repair, and the MFU of a GPT by two clocks."""
    tools = solution("10", "measured-mfu", "seconds_per_step", "measured_mfu")
    programs = {
        "slow program 2": solution("10", "slow-program-2", "slow_program_2").slow_program_2,
        "yours": solution("10", "slow-program-2", "program_2").program_2,
    }
    width, rows_of_batch = 1024, 2048
    model = nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(width, width), nn.Tanh()))).to(
        CUDA
    )
    batches = [(torch.randn(rows_of_batch, width), torch.randn(rows_of_batch, width)) for _ in range(4)]
    timelines, took = {}, {}
    for name, program in programs.items():
        timelines[name] = watched(lambda program=program: program(model, batches, CUDA, 0.01))
        took[name] = seconds(lambda program=program: program(model, batches, CUDA, 0.01)) / len(batches)
    return {
        **{"layers": 12, "width": width, "rows": rows_of_batch, "steps": len(batches)},
        **{"timelines": timelines, "seconds_per_step": took, "mfu": shares_of_the_peak(tools)},
    }


def shares_of_the_peak(tools: Any) -> list[Figure]:
    """A row a batch size: seconds of a step of a GPT as it is, by a clock that does not wait, and the MFU."""
    config = gpt(12, 2048, 16, vocabulary=32_000, max_sequence=2048, dropout=0.0)
    with CUDA:
        model = Transformer(config, fused_attention).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    found = []
    for batch in (1, 4, 16):
        ids = torch.randint(config.vocabulary, (batch, 2048), device=CUDA)

        def step(ids: Tensor = ids) -> None:
            model.loss(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        real = tools.seconds_per_step(step, torch.cuda.synchronize, time.perf_counter, 3, 10)
        torch.cuda.synchronize()
        queued = tools.seconds_per_step(step, lambda: None, time.perf_counter, 0, 1)
        torch.cuda.synchronize()
        mfu = tools.measured_mfu(config, batch, 2048, real, 1, PEAK, "none")
        found.append({"batch": batch, "seconds": real, "queued_seconds": queued, "mfu": mfu})
    return found


FIGURES: dict[str, Callable[[], Figure]] = {
    "streaming": streaming,
    "recomputation": recomputation,
    "stepping": stepping,
}


def measured(name: str) -> Figure:
    """A figure, with what it was measured on."""
    about = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    return {**about, **FIGURES[name]()}


def written(figure: Figure) -> str:
    """As JSON, a line for each of its parts."""
    lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in figure.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=FIGURES, action="append")
    parser.add_argument("--out", type=Path, default=MEASURED)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        not_here("benchmarks/gpu_figures.py: this host has no GPU, nothing was measured")
    options.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in options.only or FIGURES:
        found[name] = measured(name)
        path = options.out / f"{name}_{gpu_name()}.json"
        path.write_text(written(found[name]))
        print(f"{path}: {path.stat().st_size >> 10} KiB", file=sys.stderr)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
