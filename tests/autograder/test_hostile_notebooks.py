"""Notebook files made to harm whoever reads them: read, rebuilt and marked, or refused in a sentence."""

from __future__ import annotations

import base64
import json
from typing import Any

import nbformat
import pytest
from hostile import PIXEL

from autograder.grade.grading import read_submission
from autograder.gradebook import rebuild
from labkit.checks import registry
from labkit.checks.source.notebook import BadNotebook

EXERCISES = registry.exercises("06")
ANSWER = "class CopyToTensorParallel: pass"
SCORE = rebuild.graded_cell("06_copy-to-tensor-parallel__values", 3, 'labkit.score("06.f", "values")')
SVG = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
FORGED = {"grade": True, "grade_id": "06_copy-to-tensor-parallel__values", "points": 999, "locked": True}


def code(source: Any = "x = 1", **more: Any) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], **more}


def text(source: Any = "text", **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def file_of(*cells: Any, **more: Any) -> bytes:
    """A notebook file with these cells and an answer below them."""
    return json.dumps({"cells": [*cells, code(ANSWER)], "nbformat": 4, "nbformat_minor": 5, **more}).encode()


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


ACCEPTED = {
    "a kernel that runs something": file_of(
        metadata={"kernelspec": {"name": "x", "argv": ["rm", "-rf", "/"], "display_name": "<script>"}}
    ),
    "widgets and their state": file_of(metadata={"widgets": {"application/x": {"state": {"a": "<script>"}}}}),
    "ids that are twice there, long, and no ids": file_of(
        code(id="a"), code(id="a"), code(id="x" * 10_000), text(id="<img onerror=x>"), text(id=7)
    ),
    "marks of graded cells": file_of(
        code("y = 2", metadata={"nbgrader": FORGED}), text(metadata={"nbgrader": FORGED})
    ),
    "copies of graded cells": file_of(code('labkit.score("06.f", "values")'), code(SCORE.source)),
    "pictures that are none": file_of(
        text(
            "![x](attachment:a.png)",
            attachments={
                "a.png": {"image/png": "no base64!"},
                "b.svg": {"image/svg+xml": SVG},
                "../../c.png": {"text/html": "<script>"},
                "d.png": {"image/png": PIXEL},
                "e.png": 7,
            },
        )
    ),
    "a thousand pictures": file_of(
        text(attachments={f"{n}.png": {"image/png": PIXEL} for n in range(1000)}), text(attachments=[])
    ),
    "outputs of twenty megabytes": file_of(
        code(outputs=[{"output_type": "display_data", "data": {"text/html": "<script>" * 2_500_000}}])
    ),
    "text in half a million pieces": file_of(text(["x"] * 500_000), code(["#"] * 150_000)),
    "letters that are half a letter": file_of(
        code("s = '\ud800'"), text("\udfff"), code("\x00"), text("\x1b]0;x\x07")
    ),
    "letters that turn the line around": file_of(code("x = 1  # \u202e\u2066\u200b"), text("\u202etxt")),
    "cells of no kind": file_of(7, None, [], "x", {"cell_type": "raw"}, {"cell_type": []}, {"source": {}}),
    "numbers that are none": b'{"nbformat": NaN, "nbformat_minor": -Infinity,' + file_of()[1:],
    "two lists of cells": b'{"cells": [],' + file_of()[1:],
    "a huge cell": file_of(text("<b>" * 200_000), code("'" + "x" * 300_000 + "'"), code("(" * 100_000)),
    "names without end": file_of(code("\n".join(f"class a{n}: pass" for n in range(12_000)))),
    "a notebook within a notebook": file_of(text(file_of().decode()), code(repr(file_of()))),
    "metadata of the course's own": file_of(
        code("y = 1", metadata={"labkit": {"exercise": EXERCISES[0].id}, "tags": ["<script>"] * 1000})
    ),
}
REFUSED = {
    "nested too deep": b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "too many cells": file_of(*[text()] * 6000),
    "of another format": json.dumps({"worksheets": [{"cells": [code(ANSWER)]}], "nbformat": 3}).encode(),
    "a number of a million digits": b'{"nbformat": ' + b"9" * 1_000_000 + b"," + file_of()[1:],
    "another encoding": file_of().decode().encode("utf-16"),
    "packed": b"\x1f\x8b" + file_of(),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_nothing_of_it_is_kept_but_text_code_and_pictures(what: str) -> None:
    raw, cells, places = read_submission(ACCEPTED[what], "06.ipynb", EXERCISES)
    made = rebuild.rebuilt(raw, places, [SCORE])
    nbformat.validate(made)
    marked = {c.metadata.nbgrader.grade_id: c for c in made.cells if "nbgrader" in c.metadata}
    assert marked["06_copy-to-tensor-parallel"].source == ANSWER
    assert set(marked) == {"06_copy-to-tensor-parallel", SCORE.metadata.nbgrader.grade_id}
    assert [cell.source for cell in cells][-1] == ANSWER
    for cell in made.cells:
        assert set(cell.metadata) <= {"nbgrader"}
        assert not cell.get("outputs")
        pictures = [kind for kinds in cell.get("attachments", {}).values() for kind in kinds]
        assert set(pictures) <= {"image/png", "image/jpeg", "image/gif", "image/webp"}
    written = json.dumps(made.metadata)
    assert "argv" not in written
    assert "script" not in written
    assert len(nbformat.writes(made).encode("utf-8")) < 2 * rebuild.MOST_TEXT + rebuild.MOST_IMAGES


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_told_in_a_sentence(what: str) -> None:
    with pytest.raises(BadNotebook, match=r"06\.ipynb"):
        read_submission(REFUSED[what], "06.ipynb", EXERCISES)
