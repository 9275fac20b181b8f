"""Links in a submission: nbgrader, which copies what lies beside a notebook, would follow them."""

from __future__ import annotations

import os
from pathlib import Path


def remove_links(folder: Path) -> list[str]:
    """Remove what is not a plain file or folder from a submission; returns the names."""
    removed = []
    for directory, folders, files in os.walk(folder):
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
