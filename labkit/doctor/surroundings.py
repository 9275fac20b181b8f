"""What is around: containers, a cluster, and whether this folder is a course that others can read."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from labkit.doctor.finding import Finding, output_of
from labkit.jupyter.exchange import open_to_others

OLDEST_SLURM = (20, 11)  # the first whose srun has --overlap, by which steps share a job's cores with us


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
    says = f"partitions, nodes, state: {partitions}{inside}"
    if too_old := slurm_too_old(output_of("sinfo", "--version")[1]):
        return [Finding("Slurm", "note", f"{too_old}; {says}")]
    return [Finding("Slurm", "ok", says)]


def slurm_too_old(told: str) -> str:
    """What is to be said of a version as `sinfo --version` tells it, "slurm 20.02.3"; "" for nothing."""
    found = re.search(r"(\d+)\.(\d+)", told)
    if not found or (int(found[1]), int(found[2])) >= OLDEST_SLURM:
        return ""
    least = ".".join(map(str, OLDEST_SLURM))
    return f"{told.strip()} is older than {least}, and its srun has no --overlap: no ranks on several nodes"


def probe_course() -> list[Finding]:
    """Where this folder is a course: that others cannot read it."""
    here = Path.cwd()
    if not (here / "nbgrader_config.py").is_file():
        return []
    for problem in open_to_others(here):
        says, _, fix = problem.rpartition(": ")
        return [Finding("this course", "note", says, fix)]
    return [Finding("this course", "ok", f"{here}: others cannot read it")]
