"""Runs of lessons for the web site: what is told, what becomes of a slow one, where they are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.site.building import MARK, SiteError, build_site, replace_site
from autograder.site.runs import RunError, run_cells

pytestmark = pytest.mark.timeout(60)


def test_each_cell_that_has_run_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    cells = [new_code_cell(f"print({number})") for number in range(2)]
    shown = run_cells("05_made", new_notebook(cells=cells), tmp_path, 50, lambda *ran: told.append(ran))
    assert told == [(1, 2), (2, 2)]
    assert [shown[cell.id][0]["text"] for cell in cells] == ["0\n", "1\n"]


@pytest.mark.days
@pytest.mark.parametrize(("folder", "work"), [("build", "build/work"), ("work/html", "work"), ("a", "a")])
def test_runs_are_not_kept_where_the_site_is_replaced(tmp_path: Path, folder: str, work: str) -> None:
    with pytest.raises(SiteError, match="must be apart"):
        build_site(tmp_path / folder, tmp_path / work)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.days
def test_a_file_where_the_site_would_be_stays(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("mine")
    with pytest.raises(SiteError, match="is no folder"):
        build_site(tmp_path / "site", tmp_path / "work")
    assert (tmp_path / "site").read_text() == "mine"


@pytest.mark.parametrize("linked", [False, True])
def test_a_site_takes_the_place_of_the_one_before_in_the_same_folder(tmp_path: Path, linked: bool) -> None:
    """Which may be a link to where a server looks."""
    served, built = tmp_path / "served", tmp_path / "built"
    for path in (served / MARK, served / "old" / "page.html", built / MARK, built / "new" / "page.html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.parts[-2])
    (served / "link").symlink_to(tmp_path)
    folder = tmp_path / "site" if linked else served
    if linked:
        folder.symlink_to(served)
    before = served.stat().st_ino
    replace_site(folder, built)
    assert served.stat().st_ino == before
    assert folder.is_symlink() is linked
    assert sorted(str(path.relative_to(served)) for path in served.rglob("*")) == [
        "new",
        "new/page.html",
        MARK,
    ]
    assert (served / MARK).read_text() == "built"


def test_a_site_that_was_left_half_written_is_known_for_one(tmp_path: Path) -> None:
    """Interrupted while it was copied, it can be built again into the same folder."""
    built = tmp_path / "built"
    built.mkdir()
    (built / MARK).touch()
    (built / "a.html").symlink_to("nowhere")  # cannot be copied
    with pytest.raises(shutil.Error):
        replace_site(tmp_path / "site", built)
    assert (tmp_path / "site" / MARK).is_file()


@pytest.mark.days
def test_a_lesson_that_takes_too_long_is_named_with_its_cell(tmp_path: Path) -> None:
    """No cell is too slow for itself, all together are; on a busy machine the kernel's start takes all."""
    cells = [new_code_cell("import time; time.sleep(1.5)  # here") for _ in range(20)]
    done: list[int] = []
    with pytest.raises(RunError, match=r"(?s)05_made, solved, takes more than the 4 s that all .*# here"):
        run_cells("05_made", new_notebook(cells=cells), tmp_path, 4, lambda number, _: done.append(number))
    assert len(done) < 5
