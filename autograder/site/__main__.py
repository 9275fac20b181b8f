"""`python -m autograder.site FOLDER`: the course as a web site."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autograder.site.building import SiteError, build_site


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", "lessons", multiple=True, metavar="LESSON", help="Run only this one; can be repeated.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=Path("build/site-work"), show_default=True,
    help="Where runs are kept.",
)  # fmt: skip
def main(lessons: tuple[str, ...], folder: Path, work: Path) -> None:
    """Write the course as a web site into FOLDER, which opens from any web server or as a file.

    Each lesson's solved notebook is run once, and again when the lesson or labkit has changed. With --run,
    the other lessons are shown without outputs. Exits 1 when a lesson cannot be run or shown.
    """
    try:
        print(f"Open {build_site(folder, work, lessons).resolve() / 'index.html'}")
    except (SiteError, LookupError, OSError) as problem:
        sys.exit(f"site: {problem}")


if __name__ == "__main__":
    main()
