"""The repository's own pages on the site: the same text, with links to what the site has."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from autograder.grade.reference import REPOSITORY

PAGES = {
    "notebooks/README.md": "start",
    "labkit/README.md": "library",
    "cluster/README.md": "operators",
    "autograder/README.md": "instructors",
}
"""Document -> the page it is on the site."""

NODE_BEGINS, NODE_ENDS = "## Slurm, for students\n", "\n## Slurm, for operators"


def document(source: str) -> str:
    """A document of the repository as a page, by its path in it."""
    return with_links((REPOSITORY / source).read_text(encoding="utf-8"), source)


def getting_a_node() -> str:
    """What the operators' page says to students: how to get JupyterLab on a compute node."""
    text = (REPOSITORY / "cluster" / "README.md").read_text(encoding="utf-8")
    _, found, rest = text.partition(NODE_BEGINS)
    section, ended, _ = rest.partition(NODE_ENDS)
    if not (found and ended):
        raise LookupError(
            f"cluster/README.md has no section {NODE_BEGINS.strip()!r} before {NODE_ENDS.strip()!r}"
        )
    return with_links(f"# Getting a node\n\nOn a cluster with Slurm.\n{section}\n", "cluster/README.md")


def with_links(text: str, source: str) -> str:
    """Links to documents go to their pages; of links to anything else in the repository the words stay."""

    def linked(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if target.startswith(("http://", "https://")):
            return link[0]
        path, _, _ = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if there in PAGES:
            return f"[{words}]({PAGES[there]}.md)"
        lesson = Path(there)
        if lesson.suffix == ".ipynb":
            return f"[{words}](lessons/{lesson.name})"
        return words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", linked, text)
