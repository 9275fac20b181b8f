"""The `labkit` command. Subcommands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from labkit.slurm.options import Asked, slurm_options

# Exit statuses, the same for every subcommand (click itself exits 2 on wrong usage).
FAILED = 1  # the command ran, and what it looked at is not right
UNUSABLE = 2  # what was given cannot be used

HOUSE = Path(__file__).resolve().parent.parent
existing_directory = click.Path(exists=True, file_okay=False, path_type=Path)


class _Commands(click.Group):
    """Commands that tell what the system refuses them (a folder, room on the disk) in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # nobody reads on, for which click has its own end
                raise
            named = (error.filename2 or error.filename, error.strerror or error)
            _unusable(": ".join(str(part) for part in named if part))


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="many-gpu-workbook", message="labkit %(version)s")
def main() -> None:
    """A workbook on training models too large for one GPU.

    Students need `labkit lab` and `labkit validate`; authors `labkit build`; operators `labkit doctor`.
    """


def _unusable(problem: object) -> NoReturn:
    """Say what is wrong with what was given, and exit 2."""
    click.echo(f"labkit: {problem}", err=True)
    sys.exit(UNUSABLE)


@main.command()
@click.argument("lessons", nargs=-1, metavar="[LESSON]...")
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; exit 1 and say what differs if a notebook is not up to date.",
)
@click.option(
    "--solutions", type=existing_directory, default=HOUSE / "solutions", help="Where the sources are."
)
@click.option(
    "--notebooks", type=click.Path(path_type=Path), default=HOUSE / "notebooks", help="Where to write."
)
def build(lessons: tuple[str, ...], check: bool, solutions: Path, notebooks: Path) -> None:
    """Make the students' notebooks from solutions/.

    LESSON is `06`, `06_tensor_parallel_ffn` or a path; all lessons when none is given.
    """
    from labkit.build import LessonError, compare, find_lessons
    from labkit.build import build as build_lesson
    from labkit.build.release import BuildError

    try:
        sources = find_lessons(lessons, solutions)
        if check:
            differences = [found for source in sources if (found := compare(source, notebooks))]
        else:
            for source in sources:
                click.echo(f"built {_shown(build_lesson(source, notebooks))}")
            differences = []
    except (LessonError, LookupError, BuildError) as error:
        _unusable(error)
    for difference in differences:
        click.echo(
            f"{_shown(difference.path)} is not what its source makes:\n{difference.summary}\n", err=True
        )
    if differences:
        names = " ".join(difference.path.stem for difference in differences)
        click.echo(f"Edit solutions/, never notebooks/, then run: labkit build {names}", err=True)
        sys.exit(FAILED)
    if check:
        click.echo(f"{len(sources)} of {len(sources)} notebooks are what their sources make")


def _shown(path: Path) -> Path:
    """`path` from here when it lies below, for messages."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@main.command()
@click.argument("notebook", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def validate(notebook: Path, as_json: bool) -> None:
    """Check a saved NOTEBOOK on the visible cases, collecting its source as the grader will.

    Exits 0 when every exercise passed, 1 when one did not, and 2 when the notebook cannot be used, or this
    machine cannot check it.
    """
    from labkit.checks.jobs import CouldNotBeGraded
    from labkit.checks.practice import validate as validate_notebook
    from labkit.checks.registry import UnknownExercise
    from labkit.checks.source.notebook import BadNotebook
    from labkit.checks.source.text import visible
    from labkit.launch import JobCancelled

    try:
        reports = validate_notebook(
            notebook,
            lambda report: None if as_json else click.echo(visible(f"{report!r}\n")),
            lambda exercise, place, all_of_them: click.echo(
                f"checking {exercise}, {place} of {all_of_them} exercises", err=True
            ),
        )
    except (BadNotebook, UnknownExercise) as error:
        _unusable(visible(str(error)))
    except CouldNotBeGraded as error:
        _unusable(visible(f"this machine could not check it, whatever was written: {error}"))
    except JobCancelled:
        raise click.Abort from None
    if as_json:
        click.echo(
            json.dumps({"exercises": {report.exercise: report.to_json() for report in reports}}, indent=1)
        )
    else:
        points, most = sum(r.points for r in reports), sum(r.max_points for r in reports)
        click.echo(f"{points:g} of {most:g} points on the visible cases")
    sys.exit(0 if all(report.passed for report in reports) else FAILED)


@main.command()
@click.argument("folder", type=existing_directory)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True,
    help="Gzipped if it ends in .gz.",
)  # fmt: skip
def trace(folder: Path, output: Path) -> None:
    """One trace of all ranks from what torch.profiler wrote to FOLDER, one file a rank."""
    from labkit.record.profiles import BadProfile
    from labkit.record.trace import trace as write_trace

    try:
        click.echo(repr(write_trace(folder, output)))
    except BadProfile as error:
        _unusable(error)


@main.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8888,
    show_default=True,
    help="The next free one is taken.",
)
@click.option(
    "--root", type=click.Path(path_type=Path), help="The folder to open; the default has the lessons."
)
@click.option("--ip", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--browser/--no-browser", default=None, help="Open a browser; the default is to, where there is a screen."
)
@click.option(
    "--slurm", is_flag=True, help="On a compute node: submit a job, wait for it, say how to reach it."
)
@click.option("--stop", is_flag=True, help="End the JupyterLab that runs as a Slurm job.")
@slurm_options
def lab(
    port: int, root: Path | None, ip: str, browser: bool | None, slurm: bool, stop: bool, **asked: Any
) -> None:
    """Open JupyterLab on the lessons, and print where it is.

    Without --slurm it runs here. The lessons are those of the repository; where labkit is installed without
    one, those in the folder `lessons` of this directory, which is written when it is not there.
    """
    from labkit.hosts import wrong_system

    if problem := wrong_system():
        _unusable(problem)
    from labkit.jupyter.lab import CannotStart, run
    from labkit.lessons import folder_to_open
    from labkit.slurm import lab_job

    wanted = Asked(**asked)
    if slurm and (given := _given("port", "ip", "browser")):
        raise click.UsageError(
            f"{', '.join(given)} would be for a JupyterLab on this machine: leave that out, or --slurm"
        )
    try:
        if stop:
            sys.exit(lab_job.stop())
        root = root or folder_to_open()
        if slurm:
            sys.exit(lab_job.start(root.resolve(), wanted))
        if given := wanted.given():
            click.echo(f"{', '.join(given)} would be for a job: --slurm is not there", err=True)
        sys.exit(run(port=port, root=root, ip=ip, browser=browser))
    except (CannotStart, LookupError) as error:
        _unusable(error)


def _given(*names: str) -> list[str]:
    """Those of these options of the command that somebody has given, even if with the default's value."""
    context = click.get_current_context()
    return [
        "/".join([*one.opts, *one.secondary_opts])
        for one in context.command.params
        if one.name in names and context.get_parameter_source(one.name) is not ParameterSource.DEFAULT
    ]


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def lessons(folder: Path) -> None:
    """Write the lessons into FOLDER, to work on them there. What is there already is kept as it is."""
    from labkit.lessons import lay_out

    try:
        laid = lay_out(folder)
    except LookupError as error:
        _unusable(error)
    kept = f"; {len(laid.kept)} were there and are as before" if laid.kept else ""
    click.echo(f"{len(laid.written)} files written to {folder}{kept}")
    click.echo(f"labkit lab --root {folder}")


@main.command()
@click.argument("logdir", type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The next free one is taken; the default is your own."
)
@click.option("--ip", default="127.0.0.1", show_default=True, help="Address to listen on.")
def tensorboard(logdir: Path, port: int | None, ip: str) -> None:
    """Show the runs below LOGDIR in TensorBoard, on a port of your own, and print where it is."""
    from labkit.jupyter.lab import CannotStart
    from labkit.jupyter.tensorboard import run

    try:
        sys.exit(run(logdir=logdir, port=port, ip=ip))
    except CannotStart as error:
        _unusable(error)


@main.command()
@click.argument("lesson")
@click.option("--course", type=existing_directory, default=Path(), help="The course's folder.")
@click.option("--force", is_flag=True, help="Replace what was released before.")
def release(lesson: str, course: Path, force: bool) -> None:
    """Hand out LESSON of a course through nbgrader's exchange, and check who may read and write there.

    Exits 1 when the lesson is released, but permissions are not right.
    """
    from labkit.jupyter.exchange import CannotRelease
    from labkit.jupyter.exchange import release as release_lesson

    try:
        released = release_lesson(lesson, course.resolve(), force)
    except CannotRelease as error:
        _unusable(error)
    click.echo(f"{released.folder} is released; students get it with")
    click.echo(f"    nbgrader fetch_assignment {released.folder.name} --course {released.course_id}")
    for problem in released.problems:
        click.echo(f"not right: {problem}", err=True)
    sys.exit(FAILED if released.problems else 0)


def _not_zero(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A number of tokens that is zero is a number: what is wrong with it is told here."""
    if value is not None and re.fullmatch(r"[0_.]*0[0_.]*[A-Za-z]?", value.strip()):
        raise click.BadParameter(f"expected more than 0 tokens, found {value!r}")
    return value


@main.command()
@click.option("--model", required=True, help="A preset, such as llama-3-8b, or the path of a config.json.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--gpus-per-node", type=click.IntRange(1), default=8, show_default=True)
@click.option("--gpu", default="h100", show_default=True, help="A GPU's name, or the start of it.")
@click.option(
    "--network",
    type=click.FloatRange(0, min_open=True),
    default=50.0,
    show_default=True,
    help="GB/s between nodes, a GPU.",
)
@click.option(
    "--fabric",
    type=click.Choice(["shared", "full"]),
    default="shared",
    show_default=True,
    help="Whether large messages get slower with the nodes, as was measured once, or not (a fat tree).",
)
@click.option(
    "--sequence", type=click.IntRange(1), default=4096, show_default=True, help="Tokens a sequence."
)
@click.option(
    "--batch-tokens",
    default="1M",
    show_default=True,
    callback=_not_zero,
    help="Tokens a step; 4M is 4 x 2^20.",
)
@click.option(
    "--tokens", callback=_not_zero, help="Tokens of the whole training, such as 1T, for days and GPU-hours."
)
@click.option(
    "--recipe",
    help="Precision: a name, or bytes a parameter.  [default: the software's own, 20 or 18]",
)
@click.option(
    "--software",
    type=click.Choice(["nanotron", "megatron"]),
    default="nanotron",
    show_default=True,
    help="Whose habits the times are for. Only nanotron's were checked for the choice of plans.",
)
@click.option("--ep", type=click.IntRange(1), help="Only plans that share experts out over so many ranks.")
@click.option("--explain", metavar="DP,TP,PP,...", help="Price this plan: 16,2,4,mb=2,zero=1,recompute=full.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def plan(explain: str | None, as_json: bool, **asked: Any) -> None:
    """Say how to spread a training over GPUs: three plans to measure, and what they cost.

    Exits 1 when the plan to explain takes more memory than a GPU has, and 2 when nothing fits or what
    was given cannot be used.
    """
    from labkit.theory.hugging_face import UnknownConfig
    from labkit.theory.planning.asked import question_of
    from labkit.theory.planning.told import answer

    try:
        told = answer(question_of(**asked), explain)
    except UnknownConfig as problem:  # which is called by its folder's name there
        _unusable(f"--model {asked['model']}: {problem}")
    except ValueError as problem:
        _unusable(problem)
    click.echo(json.dumps(told.data, indent=1) if as_json else told.text)
    for reason in told.refused:
        click.echo(f"does not run: {reason}", err=True)
    sys.exit(FAILED if told.refused else 0)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--site", help="Look at this site file instead (a path, or a name in cluster/sites).")
@click.option("--prove", "proving", is_flag=True, help="Run it instead: ranks, collectives, speed, memory.")
@click.option("--part", "names", multiple=True, metavar="NAME", help="With --prove: only this part.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("node-report"),
    show_default=True,
    help="With --prove: the folder for the report.",
)
def doctor(as_json: bool, site: str | None, proving: bool, names: tuple[str, ...], out: Path) -> None:
    """Say what this host can do for the course, what is missing, and what installs it.

    With --prove it is run and measured, in a few minutes, and OUT/report.md tells what was found.

    Exits 1 when something the course cannot do without is missing, the site file is not right, or a proof
    fails.
    """
    if proving and site:
        raise click.UsageError("--site is looked at without --prove: leave one of them out")
    if proving:
        _prove(names, out, as_json)
    if names:
        raise click.UsageError("--part is a part of a proof: give --prove with it")
    from labkit.doctor import examine, to_json, to_table
    from labkit.slurm.site_check import examine_site

    findings = examine_site(site) if site else examine()
    click.echo(json.dumps(to_json(findings), indent=1) if as_json else to_table(findings))
    sys.exit(FAILED if any(finding.state == "failed" for finding in findings) else 0)


def _prove(names: tuple[str, ...], out: Path, as_json: bool) -> NoReturn:
    from labkit.prove.command import run
    from labkit.prove.part import PARTS

    sys.exit(run(PARTS, names, out, as_json))


if __name__ == "__main__":
    main()
