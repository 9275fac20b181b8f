"""What the commands that prove a node share: choose parts, run them, say where the report is."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from labkit.processes import ending_signals_do
from labkit.prove.part import Part
from labkit.prove.report import to_json
from labkit.prove.running import UnknownPart, chosen, prove

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


def run(parts: Sequence[Part], names: Sequence[str], out: Path, as_json: bool = False) -> int:
    """Run the parts of these names, all when none is given, and return the exit status.

    out: the folder for the report.  as_json: print the report as one object instead of progress.
    """
    try:
        wanted = chosen(parts, names)
    except UnknownPart as problem:
        click.echo(f"--part: {problem}", err=True)
        return UNUSABLE
    try:
        # A job's time limit and a closed terminal do what Ctrl-C does: a report is due then too.
        with ending_signals_do(signal.default_int_handler):
            proof = prove(wanted, out, (lambda line: None) if as_json else click.echo)
    except KeyboardInterrupt:
        click.echo(f"interrupted; what was found is in {out}/report.md", err=True)
        return INTERRUPTED
    except OSError as problem:
        click.echo(f"--out {out}: {problem}", err=True)
        return UNUSABLE
    counts = ", ".join(f"{number} {state}" for state, number in sorted(proof.counts.items()))
    click.echo(
        json.dumps(to_json(proof), indent=1) if as_json else f"{counts}; the report is {out}/report.md"
    )
    return 0 if proof.holds else FAILED
