"""What is around: containers, a cluster, and whether this folder is a course that others can read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from labkit.doctor.finding import Finding, output_of
from labkit.jupyter.exchange import open_to_others


def probe_apptainer() -> list[Finding]:
    """Whether Apptainer is there."""
    for name in ("apptainer", "singularity"):
        if shutil.which(name):
            status, answer = output_of(name, "--version")
            return [Finding("container", "ok" if status == 0 else "note", answer[-200:])]
    return [Finding("container", "missing", "no Apptainer; only needed to run the course from an image")]


def probe_slurm() -> list[Finding]:
    """Whether there is a cluster to send jobs to, and whether we are in one of its jobs."""
    if not shutil.which("sinfo"):
        says = "not here; only needed for jobs on several nodes and for grading large classes"
        return [Finding("Slurm", "missing", says, "apt-get install slurm-wlm (a cluster has it already)")]
    status, answer = output_of("sinfo", "--noheader", "--format=%P %D %t", seconds=10)
    if status != 0:
        reason = answer.splitlines()[-1] if answer else f"exit {status}"
        return [Finding("Slurm", "note", f"installed, but no controller answers: {reason}")]
    inside = f"; this is job {job}" if (job := os.environ.get("SLURM_JOB_ID")) else ""
    partitions = "; ".join(" ".join(line.split()) for line in answer.splitlines()[:6])
    return [Finding("Slurm", "ok", f"partitions, nodes, state: {partitions}{inside}")]


def probe_course() -> list[Finding]:
    """Where this folder is a course: that others cannot read it."""
    here = Path.cwd()
    if not (here / "nbgrader_config.py").is_file():
        return []
    for problem in open_to_others(here):
        says, _, fix = problem.rpartition(": ")
        return [Finding("this course", "note", says, fix)]
    return [Finding("this course", "ok", f"{here}: others cannot read it")]
