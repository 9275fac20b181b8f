"""The widget of the planner: it says what the search says, follows its controls, and tells why not."""

from __future__ import annotations

import re

import ipywidgets as widgets
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook

from labkit.show.memory import PARTS, MemoryBars
from labkit.show.planner import START, Planner, answer_html, question_of
from labkit.theory import bytes_text
from labkit.theory.hardware import GPUS
from labkit.theory.models import PRESETS
from labkit.theory.planning import choose
from labkit.theory.units import binary_text


def test_it_says_what_the_search_says() -> None:
    shown = Planner(model="Llama 3 8B", nodes=4)
    question = question_of(shown.settings)
    choice = choose(question.job, question.cluster)
    for plan in choice.best:
        assert str(plan.plan) in shown.html
        assert f"{plan.utilization:.1%}" in shown.html
    total = bytes_text(choice.best[0].held[choice.best[0].fullest].total).split(" (")[0]
    assert total in shown.html
    assert repr(shown).startswith(str(choice.best[0].plan))


def test_it_follows_its_controls() -> None:
    shown = Planner(nodes=4)
    before = shown.html
    shown.controls["gpu"].value = "A100 40 GB"
    assert shown.html != before
    assert "A100 40 GB" in shown.html


def test_every_menu_says_what_is_chosen() -> None:
    menus = [control for control in Planner().controls.values() if isinstance(control, widgets.Dropdown)]
    assert [menu.label for menu in menus if menu.index is None] == []
    assert "any number of ranks" in [menu.label for menu in menus]


def test_a_total_is_not_written_across_the_line_of_the_memory() -> None:
    """It begins at the bar's end, or behind the line where it would cross it."""
    gpu = GPUS["H100 80 GB"]
    for share in (0.1, 0.8, 0.9, 0.99, 1.0, 1.2):
        figure = MemoryBars({"a": {"weights": share * gpu.memory}}, gpu).svg()
        total = binary_text(share * gpu.memory)
        (begins,) = (float(x) for x in re.findall(rf'<text x="([\d.]+)"[^>]*>{total}<', figure))
        (line,) = (float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*stroke-dasharray', figure))
        assert not begins < line < begins + 7 * len(total)


def test_every_part_drawn_has_a_colour() -> None:
    assert 'fill=""' not in answer_html(START)
    legend = [part for part in PARTS if f">{part}<" in answer_html(START)]
    assert {"weights", "gradients", "optimizer", "activations", "logits"} <= set(legend)
    assert 'fill=""' not in answer_html({**START, "model": "Mixtral 8x7B"})


@pytest.mark.parametrize("model", PRESETS)
def test_every_model_gives_plans_or_a_reason(model: str) -> None:
    page = answer_html({**START, "model": model, "nodes": 1, "batch": 8})
    assert "To be measured" in page or "No such plan" in page


def test_experts_are_shared_out_over_as_many_ranks_as_asked() -> None:
    """Mixtral's 8 experts on 4 nodes: over 4 ranks each has 2, and 16 are not possible."""
    shown = Planner(model="Mixtral 8x7B", nodes=4, sequence=4096, batch=256)
    assert "of 8 of each layer on a rank" in shown.html
    shown.controls["ep"].value = 4
    assert shown.html.count("2 of 8 of each layer on a rank") == 3
    assert shown.html.count(", ep 4,") >= 3
    shown.controls["ep"].value = 16
    assert "16 must divide the number of experts" in shown.html
    shown.controls["model"].value = "Llama 3 8B"
    assert "Llama 3 8B has no experts to share out over 16 ranks" in shown.html
    shown.controls["ep"].value = 0
    assert "experts" not in shown.html.split("measured runs")[0].lower()


def test_a_mixture_without_a_place_for_all_its_experts_is_told() -> None:
    shown = Planner(model="DeepSeek-V3 671B", nodes=16, sequence=4096, batch=512)
    assert "the smallest needs" in shown.html
    shown.controls["nodes"].value = 64
    assert "of 256 of each layer on a rank" in shown.html


def test_on_many_nodes_it_says_first_that_its_order_was_wrong() -> None:
    assert "Do not trust the order on 64 nodes" in answer_html({**START, "nodes": 64}).split("<table")[0]
    assert "Do not trust" not in answer_html(START)


def test_what_does_not_fit_is_told() -> None:
    page = answer_html({**START, "model": "Llama 3 405B", "nodes": 1})
    assert "the smallest needs" in page
    assert "no such plan: none of" in repr(Planner(model="Llama 3 405B", nodes=1))


def test_a_wrong_start_is_told() -> None:
    with pytest.raises(TypeError, match="no setting gpus; there are model, recipe"):
        Planner(gpus=5)
    with pytest.raises(ValueError, match=r"expected nodes to be one of 1, 2, 4, .* found 3"):
        Planner(nodes=3)
    with pytest.raises(ValueError, match=r"expected ep to be one of 0, 1, 2, 4, .* found 3"):
        Planner(ep=3)


def test_the_answer_stays_where_widgets_do_not_run() -> None:
    """Run in a kernel, exported as nbviewer and print do: the controls are gone, the plans are there."""
    source = "from labkit.show.planner import Planner\nPlanner(nodes=1, model='Llama 3.2 1B')"
    notebook = new_notebook(cells=[new_code_cell(source)])
    ran = NotebookClient(notebook, timeout=60, store_widget_state=False).execute()
    page, _ = HTMLExporter(template_name="basic").from_notebook_node(ran)
    assert "To be measured" in page
    assert page.count("<svg") == 1
