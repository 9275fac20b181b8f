"""HTML comes from templates: what is filled in is escaped, and ranks do not pay for it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import labkit
import labkit.show
from labkit.checks.report import PropertyResult, Report
from labkit.launch.render import cell_html, line_html, progress_html
from labkit.show.html import render
from labkit.slurm.choices import Choice, form

TEMPLATES = Path(labkit.show.__file__).with_name("templates")
HOSTILE = "<script>alert('1')</script> & \"q\""


def escaped(page: str) -> bool:
    return "<script" not in page and "&lt;script&gt;" in page


def test_what_is_filled_in_is_escaped() -> None:
    row = PropertyResult(HOSTILE, HOSTILE, 0, 1, False, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE)
    report = Report(HOSTILE, "t", [row], "failed", [HOSTILE])
    assert escaped(report.html(HOSTILE))
    assert escaped(Report("06.x", "t", [row], "not_attempted")._repr_html_())
    choice = Choice(HOSTILE, HOSTILE, "cpus", (HOSTILE, "2"), "2", HOSTILE)
    assert escaped(form([choice], {}))
    assert escaped(cell_html({0: HOSTILE}, {0: HOSTILE}, {}, [HOSTILE]))
    assert escaped(progress_html([(1, 2, HOSTILE)]))
    assert escaped(line_html(HOSTILE))
    assert escaped(labkit.show.Table([HOSTILE], [[HOSTILE]], HOSTILE)._repr_html_())


def test_names_in_a_sentence_are_code_and_nothing_else_is() -> None:
    row = PropertyResult("n", "numbers", 1, 1, True, "`forward` of <x> and `a<b`")
    page = Report("06.x", "t", [row], "passed")._repr_html_()
    assert "<code>forward</code> of &lt;x&gt; and <code>a&lt;b</code>" in page


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    from jinja2 import UndefinedError  # not above: the ranks of a test import its file

    with pytest.raises(UndefinedError, match="'rows' is undefined"):
        render("scoreboard")


def test_only_what_other_templates_made_is_taken_as_it_is() -> None:
    safe = {
        path.stem: re.findall(r"(\w+)\s*\|\s*safe", path.read_text()) for path in TEMPLATES.glob("*.html")
    }
    assert {name: values for name, values in safe.items() if values} == {
        "choice": ["plans", "bars", "terms"],
        "plan": ["bars"],
        "tabs": ["content"],
        "target": ["shown"],
    }


def has_jinja() -> bool:
    import labkit.checks.rank
    import labkit.show.table  # noqa: F401

    return "jinja2" in sys.modules


def test_ranks_do_not_import_jinja() -> None:
    assert labkit.launch(has_jinja, ranks=2).results == [False, False]
