"""`python -m autograder.gpu`: everything that needs a GPU, tried and measured, in one report."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autograder.gpu.parts import PARTS
from labkit.prove.command import run


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--part", "names", multiple=True, metavar="NAME", help="Only this part; can be repeated.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("gpu-report"), show_default=True)
@click.option("--list", "listed", is_flag=True, help="Name the parts and run none.")
def main(names: tuple[str, ...], out: Path, listed: bool) -> None:
    """Run what needs a GPU, part by part, and write OUT/report.md and OUT/report.json.

    On one GPU it takes some ten minutes. Without one, every part says so. Exits 1 when something failed, 2
    when a part is not known, 130 when interrupted; what had been found is in the report.
    """
    if listed:
        click.echo("\n".join(f"{part.name:12} at most {part.seconds:g} s: {part.asks}" for part in PARTS))
        return
    sys.exit(run(PARTS, names, out))


if __name__ == "__main__":
    main()
