"""The pages a submission is shown on: formgrader's, for the instructor, and the student's feedback.

nbgrader's templates are used as they are. What they are given is cut down to what may be shown, every text
that became HTML is sanitised, and a Content-Security-Policy runs the template's own scripts and no other:
either wall stands without the other.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import secrets
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from jinja2 import PackageLoader, pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import Highlight2HTML
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from traitlets.config import Config

from autograder.gradebook.patience import Patience
from autograder.gradebook.sanitise import clean_html, images_of, is_base64
from labkit.checks.source.text import python_lines, visible
from labkit.show import html as labkit_html

LATE = "labkit_late"  # in a notebook's metadata: what lateness costs, in a sentence
VERDICT = "labkit_verdict"  # in a graded cell's metadata: how its exercise ended
VERDICTS = {
    *("passed", "failed", "error", "timeout", "deadlock", "out_of_memory", "killed"),
    *("not_attempted", "could_not_be_graded"),
}
LONGEST_TEXT = 20_000  # characters of a text cell that are set as Markdown; a longer one is shown as it is
_GRADE_ID = re.compile(r"[\w-]+")
_LINKED_IMAGE = re.compile(r"attachment:([^\s)>\"']+)")


class SubmissionPage(HTMLExporter):
    """nbconvert's HTML exporter for notebooks that somebody else wrote."""

    @property
    def default_config(self) -> Config:
        """No anchors beside headings, as ids of a text are not kept."""
        config = super().default_config
        config.HTMLExporter.exclude_anchor_links = True
        return config

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.extra_loaders = [PackageLoader("autograder.gradebook", "templates")]
        self.filters = {**self.filters, "highlight_code": self.highlight_code}
        self._patience = Patience()

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The page, with its policy. Every text in `resources` is taken for a text, not for HTML."""
        resources = {**(resources or {})}
        resources.update({name: escape(text) for name, text in resources.items() if isinstance(text, str)})
        self._patience = Patience()
        empty, _ = super().from_notebook_node(new_notebook(), copy.deepcopy(resources), **kw)
        page, resources = super().from_notebook_node(self.shown(nb), resources, **kw)
        return with_policy(page, empty), resources

    def shown(self, nb: NotebookNode) -> NotebookNode:
        """The notebook cut down to what may be shown."""
        late = nb.metadata.get(LATE)
        told = [new_markdown_cell(late, id="late")] if isinstance(late, str) else []
        cells = [*told, *(cut_down(cell, number) for number, cell in enumerate(nb.cells))]
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = self.clean(output.data["text/html"])
        return new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """The template's filter for text cells and comments."""
        if len(source) > LONGEST_TEXT:
            return f"<pre>{escape(source)}</pre>"
        there = context.get("cell", {}).get("attachments", {})
        pictured = _LINKED_IMAGE.sub(lambda found: found[0] if found[1] in there else "missing:", source)
        set_as_markdown = super().markdown2html
        return self._patience.set(
            source,
            lambda: self.clean(set_as_markdown(context, pictured)),
            lambda text: f"<pre>{escape(text)}</pre>",
        )

    def highlight_code(self, source: str, language: str | None = None, metadata: Any = None) -> str:
        """The template's filter for code cells. What would turn lines around or hide a part of them is there
        as escapes: code is shown in the order in which Python reads it.
        """
        source = "\n".join(visible(line.rstrip("\r\n")) for line in python_lines(source))
        in_colours = Highlight2HTML(pygments_lexer="python", parent=self)
        return self._patience.set(
            source,
            lambda: str(in_colours(source, language, metadata)),
            lambda text: f'<div class="highlight"><pre>{escape(text)}</pre></div>',
        )

    def clean(self, html: str) -> str:
        """What may stand in the page of a piece of HTML."""
        return clean_html(html)


def cut_down(cell: NotebookNode, number: int) -> NotebookNode:
    """A copy of a cell that holds its text, its marks for grading, and outputs that are data."""
    kind = cell.cell_type if cell.cell_type in ("code", "markdown") else "markdown"
    source = cell.source if kind == cell.cell_type else f"```\n{cell.source}\n```"
    made = NotebookNode(id=f"cell-{number}", cell_type=kind, source=source, metadata=_marks(cell.metadata))
    if kind == "markdown":
        made.attachments = NotebookNode(images_of(cell.get("attachments")))
        return made
    made.execution_count = None
    made.outputs = [shown for output in cell.get("outputs", []) if (shown := _output(output)) is not None]
    return made


def with_policy(page: str, empty: str) -> str:
    """The page with the reports' style, and a policy that runs what the template has around no cells at all.

    empty: the page of a notebook without cells. Scripts in the head are the template's and get a nonce; those
        further down are known by their digests.
    """
    nonce = secrets.token_urlsafe(16)
    head, body, rest = page.partition("<body")
    if not body or "<head>" not in head:
        raise ValueError("expected a template with <head> and <body>, found another")
    head = head.replace("<script", f'<script nonce="{nonce}"')
    policy = _policy(nonce, _digests_of_scripts(empty.partition("<body")[2]))
    meta = f'<meta charset="utf-8"/><meta http-equiv="Content-Security-Policy" content="{policy}"/>'
    return head.replace("<head>", f"<head>{meta}<style>{_style_of_reports()}</style>", 1) + body + rest


def _style_of_reports() -> str:
    templates = Path(labkit_html.__file__).with_name("templates")
    return "".join((templates / name).read_text("utf-8") for name in ("theme.css", "report.css"))


def _policy(nonce: str, digests: list[str]) -> str:
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    cdn = "https://cdnjs.cloudflare.com"  # MathJax's styles and fonts; its scripts come by one with the nonce
    rules = {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}' 'strict-dynamic' 'unsafe-hashes' {allowed}",
        "style-src": f"'self' 'unsafe-inline' {cdn}",
        "font-src": f"'self' data: {cdn}",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digests_of_scripts(html: str) -> list[str]:
    """Base64 SHA-256 of the scripts and event handlers in a piece of a template."""
    tags = BeautifulSoup(f"<body{html}", "html.parser").find_all(True)
    scripts = [tag.string or "" for tag in tags if tag.name == "script"]
    handlers = [str(value) for tag in tags for name, value in tag.attrs.items() if name.startswith("on")]
    digests = [hashlib.sha256(text.encode()).digest() for text in dict.fromkeys(scripts + handlers)]
    return [base64.b64encode(digest).decode() for digest in digests]


def _marks(metadata: Mapping[str, Any]) -> NotebookNode:
    """nbgrader's metadata of a cell, if it is of the form that grading writes."""
    nbgrader = metadata.get("nbgrader")
    if not isinstance(nbgrader, dict) or not _GRADE_ID.fullmatch(str(nbgrader.get("grade_id"))):
        return NotebookNode()
    flags = {name: bool(nbgrader.get(name)) for name in ("grade", "solution", "task", "locked", "waiting")}
    found = {name: nbgrader.get(name) for name in ("points", "score")}
    numbers = {name: value if isinstance(value, int | float) else 0 for name, value in found.items()}
    more = {"comment": str(nbgrader["comment"])} if nbgrader.get("comment") else {}
    more |= {"auto": nbgrader["auto"]} if isinstance(nbgrader.get("auto"), int | float) else {}
    more |= {"verdict": verdict} if (verdict := metadata.get(VERDICT)) in VERDICTS else {}
    return NotebookNode(nbgrader=NotebookNode(grade_id=nbgrader["grade_id"], **flags, **numbers, **more))


def _output(output: NotebookNode) -> NotebookNode | None:
    """A copy of an output as text, HTML or a picture, without metadata."""
    if output.output_type == "stream":
        return NotebookNode(output_type="stream", name="stdout", text=str(output.text))
    if output.output_type == "error":
        return NotebookNode(output_type="stream", name="stderr", text="\n".join(map(str, output.traceback)))
    data = {kind: output.data[kind] for kind in ("text/plain", "text/html") if kind in output.data}
    pictures = ("image/png", "image/jpeg")
    data |= {kind: text for kind in pictures if is_base64(text := str(output.data.get(kind, "")).strip())}
    made = NotebookNode(output_type="display_data", data=NotebookNode(data), metadata=NotebookNode())
    return made if data else None
