"""What this host can do for the course, found out by trying, and what would add the rest.

Nothing here touches CUDA, starts ranks or imports torch in this process: whatever could hang or hold a device
is asked of a short-lived child with a deadline.

software, machine, confinement, surroundings: what is looked at; each gives findings, which report shows
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from labkit.doctor.confinement import apptainer_refuses, probe_limits, probe_sandbox
from labkit.doctor.finding import Finding
from labkit.doctor.machine import probe_ranks, probe_shared_memory, probe_temporary_folder
from labkit.doctor.report import to_json, to_table
from labkit.doctor.software import (
    TESTED_TORCH,
    ask_torch,
    find_browser,
    probe_browser,
    probe_packages,
    probe_python,
    probe_torch,
)
from labkit.doctor.surroundings import probe_apptainer, probe_course, probe_slurm

__all__ = [
    "TESTED_TORCH",
    "Finding",
    "apptainer_refuses",
    "ask_torch",
    "examine",
    "find_browser",
    "probe_course",
    "probe_limits",
    "probe_sandbox",
    "to_json",
    "to_table",
]

PROBES: tuple[Callable[[], list[Finding]], ...] = (
    probe_python,
    probe_torch,
    probe_ranks,
    probe_shared_memory,
    probe_temporary_folder,
    probe_packages,
    probe_sandbox,
    probe_limits,
    probe_apptainer,
    probe_slurm,
    probe_browser,
    probe_course,
)


def examine() -> list[Finding]:
    """Look at everything, side by side. Takes as long as importing torch once does."""
    with ThreadPoolExecutor(len(PROBES)) as pool:
        return [finding for findings in pool.map(_looked_at, PROBES) for finding in findings]


def _looked_at(probe: Callable[[], list[Finding]]) -> list[Finding]:
    """What a probe finds. One that cannot look, on a host that is like no other, leaves the others theirs."""
    try:
        return probe()
    except Exception as error:
        topic = probe.__name__.removeprefix("probe_").replace("_", " ")
        return [Finding(topic, "note", f"could not be looked at: {type(error).__name__}: {error}")]
