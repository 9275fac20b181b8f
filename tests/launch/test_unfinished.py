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


def test_a_name_of_an_exercise_whose_cell_was_not_run_says_which() -> None:
    told = (
        "NameError: name 'ring_all_reduce' is not defined. Run the cell of exercise 00.ring-all-reduce first."
    )
    assert explain(missing("ring_all_reduce"), ["", "ring_all_reduce(x)"]) == told
    assert explain(missing("ring_all_reduce"), ["", 'check("00.ring-all-reduce", ring_all_reduce)']) == told
    failed = ["", "1/0\ndef ring_all_reduce(x, group): ...", "ring_all_reduce(x)"]
    assert "Cell In[1] should have made it" in explain(missing("ring_all_reduce"), failed)


def test_a_name_that_exercises_share_is_looked_for_in_the_lesson_at_hand() -> None:
    ids = "exercise 02.step-seconds or 10.measured-mfu first"
    assert ids in explain(missing("seconds_per_step"), ["", "seconds_per_step()"])
    cells = ["", 'labkit.check("10.straggler", find_stragglers)', "seconds_per_step()"]
    assert "exercise 10.measured-mfu first" in explain(missing("seconds_per_step"), cells)


def test_a_name_that_was_deleted_is_not_laid_to_the_cell_that_made_it() -> None:
    for cells in (
        ["", "ring = 0", "del ring", "draw(ring)"],
        ["", "def ring(): ...", "del star, ring\ndraw(ring)"],
    ):
        assert "Cell In[2] deletes it: run cell In[1]" in explain(missing("ring"), cells)
