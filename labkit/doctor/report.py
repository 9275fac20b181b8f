"""The findings as JSON, and as a table to read in a terminal."""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from labkit.doctor.finding import Finding


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """{"host", "python", "findings": [{"topic", "state", "says", "install"}]}"""
    return {
        "host": socket.gethostname(),
        "python": sys.executable,
        "findings": [asdict(finding) for finding in findings],
    }


def to_table(findings: Sequence[Finding]) -> str:
    """The same to read in a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{socket.gethostname()}: what the course can use", title_justify="left", box=None)
    for column in ("", "topic", "found"):
        table.add_column(column)
    colours = {"ok": "green", "note": "yellow", "missing": "yellow", "failed": "red"}
    for finding in findings:
        says = finding.says + (f"\n-> {finding.install}" if finding.install else "")
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", finding.topic, _plain(says))
    console = Console(width=shutil.get_terminal_size((110, 24)).columns, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
