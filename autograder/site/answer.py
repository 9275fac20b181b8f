"""What fills a GPU's memory, as HTML: run when the site is built, and by Brython when a control is moved.

It may import what Brython has, and `labkit.theory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.theory.choices import plan_of
from labkit.theory.hardware import GPUS
from labkit.theory.memory import worst_stage
from labkit.theory.parameters import count_parameters
from labkit.theory.units import bytes_text


def answer_html(settings: Mapping[str, Any]) -> str:
    """A bar, its parts in words, and a sentence; the reason where there is no such plan."""
    try:
        plan = plan_of(settings)
    except ValueError as problem:
        return f"<p><b>No such plan:</b> {problem}</p>"
    gpu = GPUS[settings["gpu"]]
    stage, held = worst_stage(plan)
    where = f"Stage {stage + 1} of {plan.pipeline_parallel}" if plan.pipeline_parallel > 1 else "Each GPU"
    count = count_parameters(plan.model)
    active = f", {count.active / 1e9:.4g} billion active" if count.active != count.total else ""
    gpus = f"{plan.num_gpus} GPU{'s' if plan.num_gpus > 1 else ''}"
    share = held.total / gpu.memory
    verdict = (
        "<b>does not fit</b>" if share > 1 else "fits, with too little to spare" if share > 0.9 else "fits"
    )
    return (
        f"<p><b>{plan.model.name}</b>: {count.total / 1e9:.4g} billion parameters{active}, on {gpus}. "
        f"{where} needs <b>{bytes_text(held.total)}</b> of {bytes_text(gpu.memory)}: "
        f"{verdict} ({share:.0%}).</p>" + _bar(held.as_dict(), gpu.memory)
    )


def _bar(parts: Mapping[str, float], memory: float) -> str:
    """A bar of the parts, a line where the GPU ends, and a legend."""
    longest = max(sum(parts.values()), memory)
    shown = {part: size for part, size in parts.items() if size}
    pieces = "".join(
        f'<i class="part-{part}" style="width:{100 * size / longest:.3f}%"></i>'
        for part, size in shown.items()
    )
    legend = "".join(
        f'<li><i class="part-{part}"></i>{part}: {bytes_text(size)}</li>' for part, size in shown.items()
    )
    told = "; ".join(f"{part} {bytes_text(size)}" for part, size in shown.items())
    return (
        f'<div class="memory-bar" role="img" aria-label="{told}">{pieces}'
        f'<b style="left:{100 * memory / longest:.3f}%"></b></div><ul class="memory-parts">{legend}</ul>'
    )
