"""Links in a submission, and folders that are links: nbgrader, which copies what lies beside a notebook,
would follow them.
"""

from __future__ import annotations

import os
from pathlib import Path

from autograder.gradebook.problems import CourseError

DEEPEST = 50  # folders within folders: what walks through them, nbgrader's copying too, calls itself for each


def linked(folder: Path) -> str:
    """Why submitted/STUDENT/LESSON is not the student's own, and what to do: it, or the student's folder, is
    a link, to another student's perhaps, or to the solution. Empty where both are folders, or not there.
    """
    for place in (folder.parent, folder):
        if place.is_symlink():
            told = f"{place.name}/" if place == folder else "the student's folder"
            return (
                f"{told} is a symbolic link, and what it points to is not taken for the student's work: put "
                "a folder with that work in its place"
            )
    return ""


def remove_links(folder: Path) -> list[str]:
    """Remove what is not a plain file or folder from a submission; returns the names.

    CourseError where the submission is a link itself, or its folders lie too deep in one another.
    """
    if why := linked(folder):
        raise CourseError(why)
    removed = []
    for directory, folders, files in os.walk(folder):
        if len(Path(directory).relative_to(folder).parts) > DEEPEST:
            raise CourseError(
                f"beside the notebook, more than {DEEPEST} folders lie in one another: take them away, or "
                "let it be handed in without them"
            )
        for name in [*folders, *files]:
            path = Path(directory) / name
            if name.endswith(".ipynb"):
                continue  # never copied, and read without following
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                path.unlink()
                removed.append(str(path.relative_to(folder)))
    return removed


def check_no_links(folder: Path) -> None:
    """RuntimeError where there are links after a submission was copied: nbgrader then takes the copy away.

    They are taken out before that, by a hook; but nbgrader goes on when a hook fails.
    """
    if found := remove_links(folder):
        raise RuntimeError(
            f"links in a submission were not taken out in time ({', '.join(found)[:300]}); now they are: "
            "grade it again"
        )
