"""What a site is like: a TOML file (cluster/sites/*.toml) as a checked value, and what sbatch is told."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from labkit.settings import SettingsError, read_settings
from labkit.slurm.units import Limit, Time, check_minutes, limit_of, mib_of, minutes_of, slurm_time

INSTALLED, CHECKED_OUT = (Path(__file__).resolve().parents[up] / "cluster" for up in (1, 2))
CLUSTER = INSTALLED if INSTALLED.is_dir() else CHECKED_OUT
"""What goes to a cluster: within labkit in an installed wheel, beside it in the repository."""
SITES = CLUSTER / "sites"


Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=1024, le=65535)]
Ports = Annotated[
    tuple[Port, Port],
    Meta(description="the first and the last, between 1024 and 65535, such as [10000, 15999]"),
]


class Partition(Struct, frozen=True):
    """A partition. max_time: the longest job it takes, as Slurm writes it; max_nodes: 0 for no limit."""

    name: Annotated[str, Meta(min_length=1, description="the partition's name")]
    max_time: Limit = ""
    max_nodes: Count = 0
    qos: str = ""

    @property
    def max_minutes(self) -> int:
        """The longest job in minutes; 0 for no limit."""
        return limit_of(self.max_time)


class Node(Struct, frozen=True):
    """A compute node. gpus: how many each has, and gpu what they are; gpu_memory_gib: of one."""

    cpus: Count = 0
    memory_gib: Count = 0
    gpus: Count = 0
    gpu: str = ""
    gpu_memory_gib: Count = 0

    def __post_init__(self) -> None:
        if self.gpus and not (self.gpu and self.gpu_memory_gib):
            raise ValueError(
                "gpus: say also what they are (gpu) and how much memory one has (gpu_memory_gib)"
            )


class Site(Struct, frozen=True):
    """A machine or cluster. The first partition is the one taken when none is named.

    modules: for `module load` in jobs, and commands after it. account: whether jobs name one. interface: the
    network between nodes; "" finds it. ports: first and last that a person's JupyterLab may take. login: the
    host that tunnels go through; "" is where the job was submitted. ssh_to_nodes: whether one may ssh to a
    node one has a job on. tested: whether the course ran there. source: where the facts are from.
    """

    name: Annotated[str, Meta(min_length=1, description="what people call the site")]
    scheduler: Literal["slurm", "none"] = "slurm"
    tested: bool = False
    source: str = ""
    modules: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    account: Literal["required", "optional", "none"] = "optional"
    interface: str = ""
    ports: Ports = (10000, 15999)
    login: str = ""
    ssh_to_nodes: bool = True
    time: Time = "01:00:00"
    node: Node = Node()
    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        if self.ports[0] > self.ports[1]:
            raise ValueError(f"ports: expected the first before the last, found {list(self.ports)}")

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.node.gpus

    def cores(self, gpus: int) -> int:
        """Cores of a node to ask for with `gpus` of its GPUs: their share, so that others can use the rest.

        All cores without GPUs, since nothing says how many are enough; 0 where the site does not say.
        """
        if not gpus or not self.gpus:
            return self.node.cpus
        return self.node.cpus * min(gpus, self.gpus) // self.gpus

    @property
    def minutes(self) -> int:
        """How long a job may run when nobody says."""
        return minutes_of(self.time)

    def setup(self) -> str:
        """The lines of a job's script that come before its work."""
        load = [f"module load {shlex.quote(name)}" for name in self.modules]
        return "\n".join([*load, *self.commands])

    def options(
        self,
        *,
        nodes: int,
        gpus: int,
        minutes: int,
        partition: str = "",
        account: str = "",
        qos: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> list[str]:
        """What sbatch needs for this. ValueError says what the site does not have."""
        chosen = self.partition(partition or environment.get("SBATCH_PARTITION", ""))
        self._check(nodes, gpus, minutes, chosen)
        account = account or environment.get("SBATCH_ACCOUNT", "")
        if self.account == "required" and not account:
            raise ValueError(f"{self.name} wants an account: give --account, or set SBATCH_ACCOUNT")
        qos = qos or environment.get("SBATCH_QOS", "") or (chosen.qos if chosen else "")
        found = [f"--time={slurm_time(minutes)}"]
        found += [f"--partition={chosen.name}"] if chosen else []
        found += [f"--qos={qos}"] if qos else []
        found += [f"--account={account}"] if account else []
        return found + ([f"--gpus-per-node={gpus}"] if gpus else [])

    def cores_and_memory(self, gpus: int, cpus: int | None, mem: str) -> list[str]:
        """What sbatch needs for these of each node: without a number of cores, the share of the GPUs.

        ValueError says what a node of the site does not have.
        """
        if self.node.cpus and cpus and cpus > self.node.cpus:
            raise ValueError(f"{cpus} cores a node: a node of {self.name} has {self.node.cpus}")
        if mem and 0 < self.node.memory_gib * 1024 < mib_of(mem):
            raise ValueError(f"{mem} a node: a node of {self.name} has {self.node.memory_gib} GiB")
        cores = cpus or self.cores(gpus)
        return [f"--cpus-per-task={cores}"] * bool(cores) + [f"--mem={mem}"] * bool(mem)

    def partition(self, name: str = "") -> Partition | None:
        """The partition of this name, the first without one; None when the site names none."""
        known = {one.name: one for one in self.partitions}
        if name:
            return known.get(name, Partition(name))
        return self.partitions[0] if self.partitions else None

    def _check(self, nodes: int, gpus: int, minutes: int, chosen: Partition | None) -> None:
        if self.scheduler != "slurm":
            raise ValueError(f"{self.name} has no Slurm: leave out nodes= and --slurm")
        if self.gpus and gpus > self.gpus:
            raise ValueError(f"{gpus} GPUs a node: a node of {self.name} has {self.gpus}; ask for more nodes")
        if chosen and chosen.max_nodes and nodes > chosen.max_nodes:
            raise ValueError(f"{nodes} nodes: {chosen.name} of {self.name} gives at most {chosen.max_nodes}")
        check_minutes(minutes)
        if chosen and 0 < chosen.max_minutes < minutes:
            limit = f"{chosen.name} of {self.name} gives at most {chosen.max_time}"
            raise ValueError(f"{slurm_time(minutes)} is too long: {limit}")


def current_site(environment: Mapping[str, str] = os.environ) -> Site:
    """The site of LABKIT_SITE, a file or a name in cluster/sites; without it, a Slurm we know nothing of."""
    named = environment.get("LABKIT_SITE", "")
    return find_site(named) if named else Site("this cluster")


def find_site(named: str) -> Site:
    """A site by the path of its file, or by its name in cluster/sites. SettingsError when it is not right."""
    return load_site(site_path(named))


def site_path(named: str) -> Path:
    """The file that is meant. A folder is none: a name in cluster/sites may be a folder's, too."""
    path = Path(named).expanduser()
    if path.name != named or path.is_file():
        return path
    return SITES / f"{named.removesuffix('.toml')}.toml"


def load_site(path: Path) -> Site:
    """Read and check a site file. SettingsError has all that is wrong with it."""
    try:
        return read_settings(path, Site)
    except FileNotFoundError:
        known = ", ".join(sorted(one.stem for one in SITES.glob("*.toml")))
        raise SettingsError(path, [f"there is no such file; cluster/sites has {known}"]) from None
