"""Starts a job over several nodes: as a step of the Slurm job around us, or as a job that is submitted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from labkit.launch import api, hosts
from labkit.launch.failure.errors import Diagnosis, InfrastructureError
from labkit.launch.handover.directory import remove
from labkit.launch.handover.request import PAYLOAD, Request
from labkit.launch.nodes.files import new_directory
from labkit.launch.nodes.job import NodesJob
from labkit.launch.nodes.steps import BatchStep, SrunStep, Step
from labkit.slurm import commands as slurm
from labkit.slurm.site import Site, current_site

_RANKS_WITHOUT_GPU = 4  # on each node
_MARGIN = 3  # minutes beyond the job's timeout for Python to start and the nodes to meet


def plan(
    ranks: int | None, nodes: int, timeout: float, backend: str | None, env: dict[str, str], record: bool,
    target: str = "payload",
) -> Request:  # fmt: skip
    """The request of a job over `nodes` nodes, checked. ValueError says what does not fit."""
    site, inside = current_site(), slurm.allocation()
    _check(ranks, nodes, inside)
    gpus = hosts.gpu_count() if inside else site.gpus
    total = ranks or nodes * (gpus or _RANKS_WITHOUT_GPU)
    if total % nodes:
        raise ValueError(
            f"ranks is the total over the nodes: {total} ranks do not divide among {nodes} nodes"
        )
    each = total // nodes
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend must be 'gloo' or 'nccl', found {backend!r}")
    if backend == "nccl" and gpus < each:
        raise ValueError(f"backend='nccl' needs one GPU a rank: {each} ranks a node, {gpus} GPUs; use 'gloo'")
    cpus = inside.cpus if inside else site.cores(min(each, gpus)) or each
    return Request(
        ranks=total, backend=backend or ("nccl" if each <= gpus else "gloo"), timeout=timeout, record=record,
        target=target, env={**_interfaces(site), **env}, cwd=os.getcwd(), sys_path=api.import_path(),
        devices=[index % each % gpus for index in range(total)] if gpus else [],
        threads=max(1, cpus // each), nodes=nodes,
    )  # fmt: skip


def _check(ranks: int | None, nodes: int, inside: slurm.Allocation | None) -> None:
    if ranks is not None and ranks < nodes:
        raise ValueError(f"ranks is the total over the nodes: {ranks} ranks are too few for {nodes} nodes")
    if inside is not None and nodes > len(inside.nodes):
        have = f"{len(inside.nodes)} ({', '.join(inside.nodes)})"
        raise ValueError(
            f"nodes={nodes}: this Slurm job, {inside.job}, has {have}; start it with --nodes={nodes}"
        )


def _interfaces(site: Site) -> dict[str, str]:
    if not site.interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": site.interface}


def submit(request: Request, payload: bytes, prepare: Callable[[Path], None] | None = None) -> NodesJob:
    """Start the job; `prepare` gets its directory before. InfrastructureError when Slurm refuses it."""
    site, inside = current_site(), slurm.allocation()
    directory = new_directory(request)
    try:
        request.write(directory)
        (directory / PAYLOAD).write_bytes(payload)
        if prepare is not None:
            prepare(directory)
        return NodesJob(_step(request, directory, site, inside), directory, request)
    except slurm.SlurmError as error:
        remove(directory)
        summary = f"nodes={request.nodes} needs a Slurm that takes the job: {error}"
        hint = "ask for what there is; without nodes= the ranks run on this machine"
        raise InfrastructureError(Diagnosis("infrastructure", summary, hint=hint)) from None
    except BaseException:
        remove(directory)
        raise


def _step(request: Request, directory: Path, site: Site, inside: slurm.Allocation | None) -> Step:
    if inside is not None:
        return SrunStep(directory, inside, request.nodes)
    minutes = int(request.timeout // 60) + _MARGIN if request.timeout else site.minutes
    each = request.ranks // request.nodes
    gpus = min(each, site.gpus) if request.devices else 0
    options = site.options(nodes=request.nodes, gpus=gpus, minutes=minutes)
    return BatchStep(directory, options, request.nodes, site.cores(gpus) or each, site.setup())
