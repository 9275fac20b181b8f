"""`labkit lab --slurm`: JupyterLab as a job, from asking for it to the line that reaches it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from pathlib import Path

import click

from labkit.jupyter.behind_jupyter import Jupyter, jupyter_around
from labkit.jupyter.lab import CannotStart
from labkit.settings import SettingsError
from labkit.slurm import commands as slurm
from labkit.slurm import lab_files
from labkit.slurm.options import Asked
from labkit.slurm.site import CLUSTER, Site, current_site, find_site, site_path
from labkit.slurm.units import check_minutes, minutes_of

NAME = "labkit-lab"  # of the job, by which it is found again
SCRIPT = CLUSTER / "slurm" / "lab.sbatch"
_LOOK_EVERY = 0.5
_ENDING = 30.0  # seconds a job gets to end
_LOG_WITHIN = 10.0  # seconds until a job's log is seen on this machine


def start(root: Path, asked: Asked) -> int:
    """Submit the job, or take the one that there is; wait until JupyterLab is up; print how to reach it.

    Returns 0. CannotStart says what Slurm, the site or a disk does not give. Ctrl-C while it waits cancels
    the job, and so does any error.
    """
    try:
        _check(root, asked)
        jobs = _jobs("--states=PENDING,CONFIGURING,RUNNING,SUSPENDED")  # and none that ends
        _tidy()
        if jobs:
            click.echo(_there_is(jobs[0], asked.given()), err=True)
            return _wait(jobs[0], cancel=False)
        site = find_site(asked.site) if asked.site else current_site()
        return _wait(_submit(site, asked, root), cancel=True, queue=asked.queue)
    except (slurm.SlurmError, SettingsError, ValueError, OSError) as error:
        raise CannotStart(str(error)) from error


def _check(root: Path, asked: Asked) -> None:
    """What needs no Slurm to be seen as wrong."""
    if not root.is_dir():
        raise CannotStart(f"no folder {root}; give one that exists with --root")
    if asked.time:
        check_minutes(minutes_of(asked.time))


def _tidy() -> None:
    """Remove what jobs have left that Slurm has forgotten. Nothing where it does not answer."""
    with contextlib.suppress(slurm.SlurmError):
        if left := lab_files.left_behind():
            known = slurm.command("squeue", "--me", "--noheader", "--states=all", "--format=%A").split()
            lab_files.remove(left - set(known), slurm.configured("ClusterName"))


def _there_is(job: str, given: list[str]) -> str:
    line = f"You have a JupyterLab already, job {job}; `labkit lab --stop` ends it."
    if given:
        line += f" It stays as it is: {', '.join(given)} would be for a new one."
    return line


def _jobs(*which: str) -> list[str]:
    """This user's jobs that are, will be, or still end as a JupyterLab."""
    return slurm.command("squeue", "--me", "--noheader", f"--name={NAME}", "--format=%A", *which).split()


def stop() -> int:
    """End them, and wait until they have ended. Returns 0, or 1 when one still runs."""
    try:
        jobs = _jobs()
        for job in jobs:
            slurm.cancel(job)
        until = time.monotonic() + _ENDING
        while (left := _jobs()) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
    except slurm.SlurmError as error:
        raise CannotStart(str(error)) from error
    if not jobs:
        click.echo("no JupyterLab runs as a job of yours")
    if ended := [job for job in jobs if job not in left]:
        click.echo(f"ended: job {', '.join(ended)}")
    if left:
        click.echo(f"still ending: job {', '.join(left)}", err=True)
    return 1 if left else 0


def _options(site: Site, asked: Asked) -> list[str]:
    """What sbatch is told of it."""
    gpus = min(site.gpus, 1) if asked.gpus is None else asked.gpus
    minutes = minutes_of(asked.time) if asked.time else site.minutes
    needed = site.options(
        nodes=asked.nodes,
        gpus=gpus,
        minutes=minutes,
        partition=asked.partition,
        account=asked.account,
        qos=asked.qos,
    )
    return [f"--nodes={asked.nodes}", *needed, *site.cores_and_memory(gpus, asked.cpus, asked.mem)]


def _submit(site: Site, asked: Asked, root: Path) -> str:
    """sbatch of lab.sbatch, which reads the rest from the environment."""
    if not SCRIPT.is_file():
        raise CannotStart(f"no {SCRIPT}: copy the repository's folder cluster/ to {CLUSTER}")
    options = _options(site, asked)
    told = {
        "LABKIT_PYTHON": sys.executable,
        "LABKIT_ROOT": str(root),
        "LABKIT_IDLE": f"{asked.idle:g}",
        "LABKIT_SETUP": site.setup(),
        **_told_of_jupyter(),
        **({"LABKIT_SITE": str(site_path(asked.site).resolve())} if asked.site else {}),
    }
    os.environ.update(told)  # sbatch hands its own environment on to the job
    output = f"--output={lab_files.log_path('%j')}"  # sbatch puts the number there
    return slurm.submit([f"--job-name={NAME}", output, *options], SCRIPT.read_text())


def _told_of_jupyter() -> dict[str, str]:
    """For the job: the JupyterLab around us, which can pass on the pages of the new one."""
    jupyter = jupyter_around(os.environ) or Jupyter("", "")  # and not one that was told a job around us
    return {"LABKIT_JUPYTER": jupyter.address, "LABKIT_JUPYTER_PATH": jupyter.path}


def _wait(job: str, cancel: bool, queue: float = 0.0) -> int:
    """cancel: whether the job is to go, too, when nobody waits for it any more."""
    watch = slurm.JobWatch(job, queue)
    try:
        found = _until_up(job, watch)
    except CannotStart:  # the job has ended
        raise
    except BaseException as error:
        if cancel:
            told = slurm.cancelled(job, "labkit lab --stop")
            click.echo(f"\n{told}", err=True)
        if isinstance(error, KeyboardInterrupt):
            return 130
        raise
    state = watch.state(fresh=True)
    if state.state != "RUNNING" and not state.unanswered:
        raise CannotStart(f"job {job} ends just now ({state}); the same command starts another in a moment")
    click.echo(str(found))
    return 0


def _until_up(job: str, watch: slurm.JobWatch) -> lab_files.Connection:
    """How to reach it, once it can be reached. CannotStart when the job has ended, or was given up."""
    told, began = "", time.monotonic()
    runs_since = math.inf
    while (found := lab_files.read(job)) is None:
        state = watch.state()
        if state.ended or (state.hopeless and not _has_begun(job, state)):
            raise CannotStart(_why(job, state))
        line = str(state)
        if state.state == "RUNNING":
            runs_since = min(runs_since, time.monotonic())
            line += f", {_is_starting(job, time.monotonic() - runs_since)}"
        if line != told:
            click.echo(f"job {job}: {line} ({time.monotonic() - began:.0f} s)", err=True)
            told = line
        time.sleep(_LOOK_EVERY)
    return found


def _is_starting(job: str, seconds: float) -> str:
    """What a job does that has run for at least so long, and cannot be reached yet."""
    if seconds < _LOG_WITHIN or lab_files.log_path(job).exists():
        return "JupyterLab is starting"
    return (
        f"and no log of it is in {lab_files.folder()}: it was started with another LABKIT_SHARED; set that, "
        "or end it with `labkit lab --stop`"
    )


def _has_begun(job: str, state: slurm.JobState) -> bool:
    """Whether it was started although Slurm does not say so: its log is made then."""
    return bool(state.unanswered) and lab_files.log_path(job).exists()


def _why(job: str, state: slurm.JobState) -> str:
    if state.hopeless:
        with contextlib.suppress(slurm.SlurmError):  # what is to be told is why it was given up
            slurm.cancel(job)
        return f"job {job}: {state.why_hopeless()}"
    log = lab_files.log_path(job)
    words = log.read_text(errors="replace")[-1000:].strip() if log.exists() else "it left no log"
    return f"job {job} ended before JupyterLab was up ({state}): {words}"
