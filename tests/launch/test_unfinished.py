"""What a notebook says of cells that ran before their exercise was written."""

from __future__ import annotations

from labkit.launch.failure.errors import Diagnosis, Frame, RankReport, failure_text
from labkit.unfinished import explain

STUB = "00.ring-all-reduce: not written yet"


def missing(name: str) -> NameError:
    """The error of a cell that reads a name nobody made."""
    try:
        eval(name, {})
    except NameError as error:
        return error
    raise AssertionError(name)


def test_a_stub_says_which_exercise_to_write() -> None:
    assert explain(NotImplementedError(STUB), []).startswith(
        f"NotImplementedError: {STUB}. Write this exercise"
    )


def test_other_errors_keep_their_traceback() -> None:
    assert explain(NotImplementedError("no such backend"), []) == ""
    assert explain(ValueError(STUB), []) == ""


def test_a_missing_name_points_at_the_latest_cell_that_should_have_made_it() -> None:
    cells = ["", "ring = 0", "del ring", "star, ring = run()", "draw(ring)"]
    assert "Cell In[3]" in explain(missing("ring"), cells)


def test_a_name_no_cell_makes_keeps_its_traceback() -> None:
    assert explain(missing("rinng"), ["", "ring = 0", "draw(rinng)"]) == ""
    assert explain(missing("ring"), ["", "string = 0", "print(ring == 1)", "ring = ring + 1"]) == ""


def test_a_job_that_stops_at_a_stub_fails_in_one_line() -> None:
    frame = Frame("In[11]", 7, "ring_all_reduce", "raise NotImplementedError(...)")
    report = RankReport(0, "failed", "", "In[11]:7", f"NotImplementedError: {STUB}", (frame,))
    text = failure_text(Diagnosis("error", f"rank 0 failed: {report.error}", 0, (report,)), [""])
    assert text.splitlines() == [text]
    assert STUB in text
    assert "In[11]:7" in text
