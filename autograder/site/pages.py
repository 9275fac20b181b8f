"""The sources of the site, written into a folder for Sphinx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click
import nbformat

from autograder.cli import main as autograder
from autograder.site.documents import PAGES, document, getting_a_node
from autograder.site.lessons import lesson_page
from autograder.site.runs import Outputs
from labkit.build.markup import Lesson
from labkit.cli import main as labkit

COMMANDS: Mapping[str, click.Group] = MappingProxyType({"labkit": labkit, "autograder": autograder})


@dataclass(frozen=True)
class Contents:
    """What the site is made of. outputs: lesson's name -> what its run showed; host: where, in words."""

    lessons: tuple[Lesson, ...]
    outputs: Mapping[str, Outputs]
    host: str

    def write(self, folder: Path) -> None:
        """Write every page's source."""
        for path, text in self._pages():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")

    def _pages(self) -> Iterator[tuple[str, str]]:
        yield "index.md", self._index()
        for lesson in self.lessons:
            page = lesson_page(lesson.name, self.outputs.get(lesson.name), self.host)
            yield f"lessons/{lesson.name}.ipynb", nbformat.writes(page)
        for source, page_name in PAGES.items():
            yield f"{page_name}.md", document(source)
        yield "node.md", getting_a_node()
        yield from _command_pages()

    def _index(self) -> str:
        rows = [
            f"| [{lesson.number} {lesson.title}](lessons/{lesson.name}.ipynb) | {lesson.minutes} |"
            for lesson in self.lessons
        ]
        titles = [f"{lesson.number} {lesson.title} <lessons/{lesson.name}>" for lesson in self.lessons]
        return (
            INDEX.replace("ROWS", "\n".join(rows))
            + _toctree("Lessons", titles)
            + _toctree("Working on it", ["For students <start>", "node", "library"])
            + _toctree("Running a course", ["instructors", "operators"])
            + _toctree("Commands", [f"commands/{name}" for name in COMMANDS])
        )


INDEX = """# Training models too large for one GPU: a workbook

Lessons in which the techniques of large-scale training are built by hand, in ten or twenty lines each, and
run on real ranks from a notebook cell: four processes on a laptop, or the GPUs of a node. A check shows at
once which properties of your solution hold, on which rank one does not, and why that usually happens.

These pages are to read: every lesson as students get it, with the pictures, tables and numbers that its cells
showed in a run of the reference. To write and run your own, [start here](start.md); on a cluster,
[get a node](node.md).

| lesson | minutes |
|---|---|
ROWS

"""


def _toctree(caption: str, entries: list[str]) -> str:
    lines = "\n".join(entries)
    named = f":caption: {caption}\n" if caption else ""
    return f"```{{toctree}}\n{named}:hidden:\n:maxdepth: 1\n\n{lines}\n```\n\n"


def _command_pages() -> Iterator[tuple[str, str]]:
    """For each command a page, and one for each of its subcommands, from what `--help` says."""
    for name, group in COMMANDS.items():
        known = {word: command for word, command in sorted(group.commands.items()) if not command.hidden}
        yield f"commands/{name}.md", _group_page(name, group, known)
        for word in known:
            yield f"commands/{name}-{word}.md", _command_page(f"{name} {word}", known[word])


def _group_page(name: str, group: click.Group, known: Mapping[str, click.Command]) -> str:
    rows = [f"| [`{name} {w}`]({name}-{w}.md) | {c.get_short_help_str(120)} |" for w, c in known.items()]
    table = "\n".join(["| command | |", "|---|---|", *rows])
    return f"# {name}\n\n{group.help}\n\n{table}\n\n" + _toctree("", [f"{name}-{word}" for word in known])


def _command_page(name: str, command: click.Command) -> str:
    """What `--help` prints, of the command and of its own subcommands."""
    own = command.commands.items() if isinstance(command, click.Group) else ()
    said = click.Context(command, info_name=name, max_content_width=100).get_help()
    return f"# {name}\n\n```text\n{said}\n```\n\n" + "".join(
        _command_page(f"{name} {word}", part).replace("# ", "## ", 1) for word, part in own
    )
