"""The memory calculator: its numbers are the theory's, it is quick, and its picture is sound."""

from __future__ import annotations

import statistics
import time
import xml.etree.ElementTree as xml
from itertools import product

import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook

from labkit.show.calculator import POWERS, SEQUENCES, START, MemoryCalculator, answer_html
from labkit.show.memory import PARTS, draw_memory
from labkit.theory import GPUS, PRESETS, TrainingPlan, bytes_text, preset, training_memory, worst_stage
from labkit.theory.choices import plan_of

SVG = "{http://www.w3.org/2000/svg}"


def parsed(page: str) -> xml.Element:
    return xml.fromstring(page[page.index("<svg") :])


def test_it_says_what_the_theory_says() -> None:
    shown = MemoryCalculator(model="Llama 3 70B", pipeline_parallel=8, tensor_parallel=4, zero_stage=1)
    stage, memory = worst_stage(plan_of(shown.settings))
    assert bytes_text(memory.total) in shown.html
    assert f"Stage {stage + 1} of 8 needs" in shown.html
    assert f"on {8 * 4 * 8} GPUs" in shown.html
    assert str(memory) == repr(shown)


def test_the_bar_is_as_long_as_the_bytes() -> None:
    """Widths are in proportion to the parts, and the line stands at the GPU's memory."""
    gpu = GPUS["H100 80 GB"]
    memory = training_memory(TrainingPlan(preset("Llama 3 8B"), sequence=4096))
    root = parsed(draw_memory({"each GPU": memory}, gpu).svg())
    told = {r[0].text: float(r.get("width", 0)) for r in root.iter(f"{SVG}rect") if len(r)}
    widths = {name: told[f"{name}: {bytes_text(size)}"] for name, size in memory.as_dict().items()}
    scale = widths["optimizer"] / memory.optimizer
    for name, size in memory.as_dict().items():
        assert widths[name] == pytest.approx(scale * size, abs=0.06)
    line = next(x for x in root.iter(f"{SVG}line") if x.get("stroke-dasharray"))
    left = min(
        float(r.get("x", 0)) for r in root.iter(f"{SVG}rect") if len(r) and "weights:" in str(r[0].text)
    )
    assert float(line.get("x1", 0)) - left == pytest.approx(scale * gpu.memory, abs=0.2)


def test_every_part_has_its_own_colour() -> None:
    assert len(set(PARTS.values())) == len(PARTS)


@pytest.mark.parametrize("model", PRESETS)
def test_every_setting_gives_a_picture_or_a_reason(model: str) -> None:
    ends = {"pipeline_parallel": (1, 64), "tensor_parallel": (1, 16), "attention": ("fused", "explicit")}
    more = {"sequence": (SEQUENCES[0], SEQUENCES[-1]), "zero_stage": (0, 3), "recompute": ("none", "full")}
    start = {**START, "model": model, "data_parallel": POWERS[-1]}
    for values in product(*ends.values(), *more.values()):
        settings = start | dict(zip([*ends, *more], values, strict=True))
        page = answer_html(settings)
        assert "No such plan: " in page.replace("</b>", "") or parsed(page).tag == f"{SVG}svg"


def test_an_update_takes_under_50_ms_of_a_core() -> None:
    """The largest model in the most stages; every change draws. Whoever else has the cores does not count."""
    shown = MemoryCalculator(model="Llama 3 405B", pipeline_parallel=64, num_micro_batches=64)
    seconds = []
    for value in [*SEQUENCES, *reversed(SEQUENCES)] * 2:
        begin = time.process_time()
        shown.controls["sequence"].value = value
        assert parsed(shown.html) is not None
        seconds.append(time.process_time() - begin)
    assert statistics.median(seconds) < 0.050


def test_the_picture_stays_where_widgets_do_not_run() -> None:
    """Run in a kernel, exported as nbviewer and print do: the sliders are gone, the picture is there."""
    source = "from labkit.show.calculator import MemoryCalculator\nMemoryCalculator(model='GPT-2 124M')"
    notebook = new_notebook(cells=[new_code_cell(source)])
    ran = NotebookClient(notebook, timeout=60, store_widget_state=False).execute()
    page, _ = HTMLExporter(template_name="basic").from_notebook_node(ran)
    assert "GPT-2 124M</b>: 0.1244 billion parameters" in page
    assert page.count("<svg") == 1


def test_a_wrong_start_is_told() -> None:
    with pytest.raises(TypeError, match="no setting sequence_length; there are model, gpu"):
        MemoryCalculator(sequence_length=5)
    with pytest.raises(ValueError, match=r"expected sequence to be one of 512, 1024, .* found 5000"):
        MemoryCalculator(sequence=5000)
    with pytest.raises(ValueError, match=r"expected model to be one of .*Llama 3 8B.* found 'Llama 3'"):
        MemoryCalculator(model="Llama 3")
    assert set(MemoryCalculator().settings) == set(START)
