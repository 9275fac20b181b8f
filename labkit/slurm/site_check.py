"""`labkit doctor --site`: is a site file right in itself, and does it say of this machine what is so?"""

from __future__ import annotations

import shutil

import psutil

from labkit.doctor import Finding
from labkit.settings import SettingsError
from labkit.slurm import commands as slurm
from labkit.slurm.site import Site, find_site


def examine_site(named: str) -> list[Finding]:
    """What is wrong with the file; or, when nothing is, how it compares with the Slurm that answers here."""
    try:
        site = find_site(named)
    except SettingsError as error:
        return [Finding("site file", "failed", problem) for problem in error.problems]
    ran = "the course was run there" if site.tested else "the course was not run there yet"
    node = site.node
    gpus = f", {node.gpus} x {node.gpu} ({node.gpu_memory_gib} GiB)" if node.gpus else ", no GPUs stated"
    return [
        Finding("site file", "ok", f"{site.name}: nothing wrong with it"),
        Finding(
            "tested",
            "ok" if site.tested else "note",
            ran + (f"; facts from {site.source}" if site.source else ""),
        ),
        Finding("a node", "ok", f"{node.cpus or 'unstated'} cores{gpus}"),
        *_against_this_machine(site),
    ]


def _against_this_machine(site: Site) -> list[Finding]:
    if site.scheduler == "none":
        return []
    if shutil.which("sinfo") is None:
        return [Finding("partitions", "note", "not compared: there is no Slurm on this machine")]
    try:
        told = slurm.command("sinfo", "--noheader", "--format=%R").split()
    except slurm.SlurmError as error:
        return [Finding("partitions", "note", f"not compared: Slurm does not answer here: {error}")]
    lacking = [one.name for one in site.partitions if one.name not in told]
    found = Finding(
        "partitions", "ok", f"Slurm here has {', '.join(one.name for one in site.partitions) or 'a default'}"
    )
    if lacking:
        there = ", ".join(sorted(set(told)))
        found = Finding("partitions", "failed", f"Slurm here has no {', '.join(lacking)}; it has {there}")
    return [found, *_interface(site)]


def _interface(site: Site) -> list[Finding]:
    if not site.interface or site.interface in psutil.net_if_addrs():
        return []
    says = f"{site.interface} is not on this machine, which is fine if it is on the compute nodes"
    return [Finding("interface", "note", says)]
