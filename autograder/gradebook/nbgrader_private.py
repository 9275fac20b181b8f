"""Where this course reaches into nbgrader and nbconvert beyond what they offer. Nothing else here may.

Written against nbgrader 0.9; `tests/autograder/test_formgrader.py` tells when another one differs.
"""

from __future__ import annotations

import sys
from typing import Any

from nbconvert.exporters import Exporter, HTMLExporter

FORMGRADER = "nbgrader.server_extensions.formgrader"


def show_submissions_with(page: type[HTMLExporter]) -> None:
    """Make formgrader, where this process serves it, show submissions as `page` does.

    Formgrader names its exporter in its code, and hands out a submission's other files as they are: here they
    are downloads, and open, if at all, without scripts and apart from the server they came from.
    """
    handlers = sys.modules.get(f"{FORMGRADER}.handlers")
    if handlers is None:
        return  # a command, not a server
    handlers.SubmissionHandler.exporter = property(
        lambda self: page(config=self.settings["nbgrader_formgrader"].config)
    )
    files: Any = handlers.SubmissionFilesHandler
    files.content_security_policy = "sandbox; default-src 'none'"
    files.set_extra_headers = _as_a_download


def take_only(converter: Any, found: dict[str, list[str]]) -> None:
    """Make a converter take these notebooks (folder -> files), whatever patterns their names would match."""
    converter.init_notebooks = lambda: setattr(converter, "assignments", found)


def reads_the_students_file(exporter: Exporter) -> bool:
    """Whether autograding is in its first pass, over what was handed in, and not in that over the result."""
    return bool(getattr(exporter.parent, "_sanitizing", True))


def resources_of(exporter: Exporter, resources: Any) -> Any:
    """What nbconvert hands from step to step, filled in as it does itself."""
    return exporter._init_resources(resources)


def _as_a_download(self: Any, path: str) -> None:
    self.set_header("Content-Disposition", "attachment")
    self.set_header("X-Content-Type-Options", "nosniff")
