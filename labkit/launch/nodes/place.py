"""Ranks on several nodes: a step of the Slurm job around us, or a job that is submitted."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from labkit import hosts
from labkit.launch.failure.errors import Diagnosis, InfrastructureError
from labkit.launch.handover.directory import remove
from labkit.launch.handover.pickling import current_folder, import_path
from labkit.launch.handover.request import PAYLOAD, Request, Wanted
from labkit.launch.nodes import wire
from labkit.launch.nodes.files import new_directory
from labkit.launch.nodes.run import NodesRun
from labkit.launch.nodes.steps import BatchStep, SrunStep, Step
from labkit.slurm import commands as slurm
from labkit.slurm.shared import unusable
from labkit.slurm.site import Site, current_site

_MARGIN = 3  # minutes beyond the job's timeout for Python to start and the nodes to meet


class Nodes:
    """`nodes` nodes of a cluster."""

    patience = 300.0  # to find a place in the queue, to import torch, and to meet
    parting = 30.0  # a node that has died is given some seconds for last words
    session_target = "labkit.launch.nodes.session_rank:serve"

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def plan(self, wanted: Wanted) -> tuple[Request, tuple[str, ...]]:
        """Raises InfrastructureError where there is no Slurm."""
        try:
            return self._plan(wanted)
        except slurm.SlurmError as error:
            raise _refused(self.nodes, error) from None

    def _plan(self, wanted: Wanted) -> tuple[Request, tuple[str, ...]]:
        site, inside = current_site(), slurm.allocation()
        _check(wanted.ranks, self.nodes, inside)
        there = _gpus_of_a_node(inside) if inside else site.gpus
        gpus, notes = hosts.usable(_shown(there, wanted.env))
        total = wanted.ranks or self.nodes * (gpus or hosts.RANKS_WITHOUT_GPU)
        if total % self.nodes:
            raise ValueError(
                f"ranks is the total over the nodes: {total} ranks do not divide among {self.nodes} nodes"
            )
        each = total // self.nodes
        cpus = inside.cpus if inside else site.cores(min(each, gpus)) or each
        request = Request(
            ranks=total,
            backend=hosts.backend_for(wanted.backend if wanted.gpus else "gloo", each, gpus),
            timeout=wanted.timeout,
            record=wanted.record,
            env={**_interfaces(site), **wanted.env},
            cwd=current_folder(),
            sys_path=import_path(),
            devices=[index % each % gpus for index in range(total)] if gpus and wanted.gpus else [],
            threads=hosts.threads_said(wanted.env) or max(1, cpus // each),
            nodes=self.nodes,
            seed=wanted.seed,
            queue=wanted.queue or 0.0,
            key=secrets.token_hex(16),
        )
        if inside is None:  # what would be refused is known before anybody gives up what there is
            slurm.must_be_here("sbatch")
            _options(request, site)
        return request, notes

    def start(self, request: Request, payload: bytes, prepare: Callable[[Path], None]) -> NodesRun:
        """Raises InfrastructureError when Slurm refuses the job, or there is no folder that the nodes see."""
        site, inside = current_site(), slurm.allocation()
        try:
            directory = new_directory(request)
        except slurm.SlurmError as error:
            raise _refused(request.nodes, error) from None
        try:
            request.write(directory)
            (directory / PAYLOAD).write_bytes(payload)
            prepare(directory)
            return NodesRun(_step(request, directory, site, inside), directory, request)
        except slurm.SlurmError as error:
            remove(directory)
            raise _refused(request.nodes, error) from None
        except OSError as error:  # a full disk
            remove(directory)
            raise _refused(request.nodes, unusable(directory, error)) from None
        except BaseException:
            remove(directory)
            raise

    def listen(self, directory: Path) -> wire.Listener:
        return wire.listen(directory)


def _refused(nodes: int, error: slurm.SlurmError) -> InfrastructureError:
    summary = f"nodes={nodes} needs a Slurm that takes the job: {error}"
    hint = "ask for what there is; without nodes= the ranks run on this machine"
    return InfrastructureError(Diagnosis("infrastructure", summary, hint=hint))


def _gpus_of_a_node(inside: slurm.Allocation) -> int:
    """Those of this node; on the login node, where `salloc` may leave its shell, those of the nodes."""
    return hosts.gpu_count() if "SLURMD_NODENAME" in os.environ else slurm.gpus_of(inside.job)


def _shown(there: int, env: Mapping[str, str]) -> int:
    """How many GPUs of a node ranks see: `launch(env=...)` has the last word."""
    return min(there, hosts.gpu_count(env)) if "CUDA_VISIBLE_DEVICES" in env else there


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


def _step(request: Request, directory: Path, site: Site, inside: slurm.Allocation | None) -> Step:
    if inside is not None:
        return SrunStep(directory, inside, request.nodes)
    cores = site.cores(_gpus(request, site)) or request.ranks // request.nodes
    options = _options(request, site)
    return BatchStep(directory, options, request.nodes, cores, site.setup(), request.queue)


def _gpus(request: Request, site: Site) -> int:
    """Of each node, for a job of its own."""
    return min(request.ranks // request.nodes, site.gpus) if request.devices else 0


def _options(request: Request, site: Site) -> list[str]:
    """What sbatch is told. ValueError says what the site does not have."""
    minutes = int(request.timeout // 60) + _MARGIN if request.timeout else site.minutes
    return site.options(nodes=request.nodes, gpus=_gpus(request, site), minutes=minutes)
