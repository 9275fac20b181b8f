"""What a site is like: a TOML file (cluster/sites/*.toml) as a checked value, and what sbatch is told."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit.slurm.duration import minutes_of, slurm_time

HOUSE = Path(__file__).resolve().parents[2]
SITES = HOUSE / "cluster" / "sites"
ACCOUNTS = ("required", "optional", "none")


class SiteError(ValueError):
    """A site file that cannot be used; `problems` has one sentence each."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(f"{path}: " + "; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Partition:
    """A partition. max_time: the longest job it takes, as Slurm writes it; max_nodes: 0 for no limit."""

    name: str
    max_time: str = ""
    max_nodes: int = 0
    qos: str = ""


@dataclass(frozen=True)
class Node:
    """A compute node. gpus: how many each has, and gpu what they are; gpu_memory_gib: of one."""

    cpus: int = 0
    memory_gib: int = 0
    gpus: int = 0
    gpu: str = ""
    gpu_memory_gib: int = 0


@dataclass(frozen=True)
class Site:
    """A machine or cluster. The first partition is the one taken when none is named.

    modules: for `module load` in jobs. account: "required", "optional" or "none". interface: the network
    between nodes; "" finds it. ports: first and last that a person's JupyterLab may take. login: the host
    that tunnels go through; "" is where the job was submitted. ssh_to_nodes: whether one may ssh to a node
    one has a job on. tested: whether the course ran there. source: where the facts are from.
    """

    name: str
    scheduler: str = "slurm"
    tested: bool = False
    source: str = ""
    modules: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    account: str = "optional"
    interface: str = ""
    ports: tuple[int, int] = (10000, 15999)
    login: str = ""
    ssh_to_nodes: bool = True
    time: str = "01:00:00"
    node: Node = field(default_factory=Node)
    partitions: tuple[Partition, ...] = ()

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
        self, *, nodes: int, gpus: int, minutes: int, partition: str = "", account: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> list[str]:  # fmt: skip
        """What sbatch needs for this. ValueError says what the site does not have."""
        chosen = self.partition(partition or environment.get("SBATCH_PARTITION", ""))
        self._check(nodes, gpus, minutes, chosen)
        account = account or environment.get("SBATCH_ACCOUNT", "")
        if self.account == "required" and not account:
            raise ValueError(f"{self.name} wants an account: give --account, or set SBATCH_ACCOUNT")
        found = [f"--time={slurm_time(minutes)}"]
        found += [f"--partition={chosen.name}"] if chosen else []
        found += [f"--qos={chosen.qos}"] if chosen and chosen.qos else []
        found += [f"--account={account}"] if account else []
        return found + ([f"--gpus-per-node={gpus}"] if gpus else [])

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
        if chosen and chosen.max_time and minutes > minutes_of(chosen.max_time):
            limit = f"{chosen.name} of {self.name} gives at most {chosen.max_time}"
            raise ValueError(f"{slurm_time(minutes)} is too long: {limit}")


def current_site(environment: Mapping[str, str] = os.environ) -> Site:
    """The site of LABKIT_SITE, a file or a name in cluster/sites; without it, a Slurm we know nothing of."""
    named = environment.get("LABKIT_SITE", "")
    return find_site(named) if named else Site("this cluster")


def find_site(named: str) -> Site:
    """A site by the path of its file, or by its name in cluster/sites. SiteError when it cannot be used."""
    path = Path(named).expanduser()
    if not path.exists() and path.name == named:
        path = SITES / f"{named.removesuffix('.toml')}.toml"
    return load_site(path)


def load_site(path: Path) -> Site:
    """Read and check a site file. SiteError has all that is wrong with it."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(sorted(one.stem for one in SITES.glob("*.toml")))
        raise SiteError(path, [f"there is no such file; cluster/sites has {known}"]) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SiteError(path, [f"it cannot be read as TOML: {error}"]) from None
    problems = _problems(data)
    if problems:
        raise SiteError(path, problems)
    lists: dict[str, Any] = {
        name: tuple(data[name]) for name in ("modules", "commands", "ports") if name in data
    }
    parts: dict[str, Any] = {
        "node": Node(**data.get("node", {})),
        "partitions": tuple(Partition(**one) for one in data.get("partitions", ())),
    }
    return Site(**(data | lists | parts))


_KINDS: dict[type, dict[str, Any]] = {
    Site: {"name": str, "scheduler": str, "tested": bool, "source": str, "modules": list, "commands": list,
           "account": str, "interface": str, "ports": list, "login": str, "ssh_to_nodes": bool, "time": str,
           "node": dict, "partitions": list},
    Node: {"cpus": int, "memory_gib": int, "gpus": int, "gpu": str, "gpu_memory_gib": int},
    Partition: {"name": str, "max_time": str, "max_nodes": int, "qos": str},
}  # fmt: skip
_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _problems(data: Mapping[str, Any]) -> list[str]:
    found = _wrong_keys(Site, data, "")
    if found:
        return found  # the rest looks into values that have the right kind
    found += _wrong_keys(Node, data.get("node", {}), "node.")
    for number, one in enumerate(data.get("partitions", ()), 1):
        where = f"partition {number}: "
        found += _wrong_keys(Partition, one, where) if isinstance(one, dict) else [f"{where}expected a table"]
    found += _wrong_values(data)
    return found or _wrong_times(data)


def _wrong_keys(kind: type, data: Mapping[str, Any], where: str) -> list[str]:
    kinds = _KINDS[kind]
    known = ", ".join(one.name for one in fields(kind))
    found = [f"{where}{name}: not a setting; there are {known}" for name in data if name not in kinds]
    for name, expected in kinds.items():
        value = data.get(name)
        if value is not None and type(value) is not expected:
            found.append(f"{where}{name}: expected {_WORDS[expected]}, found {value!r}")
    if kind is not Node and not data.get("name"):
        found.append(f"{where}name: is missing")
    return found


def _wrong_values(data: Mapping[str, Any]) -> list[str]:
    found = []
    if data.get("scheduler", "slurm") not in ("slurm", "none"):
        found.append(f'scheduler: expected "slurm" or "none", found {data["scheduler"]!r}')
    if data.get("account", "optional") not in ACCOUNTS:
        found.append(f"account: expected one of {', '.join(ACCOUNTS)}, found {data['account']!r}")
    ports = data.get("ports", [10000, 15999])
    whole = len(ports) == 2 and all(type(port) is int for port in ports)
    if not whole or not 1024 <= ports[0] <= ports[1] <= 65535:
        found.append(f"ports: expected the first and the last, between 1024 and 65535, found {ports!r}")
    for name in ("modules", "commands"):
        if not all(isinstance(one, str) for one in data.get(name, ())):
            found.append(f"{name}: expected a list of texts, found {data[name]!r}")
    node = data.get("node", {})
    found += [
        f"node.{name}: is negative" for name, value in node.items() if isinstance(value, int) and value < 0
    ]
    if node.get("gpus") and not (node.get("gpu") and node.get("gpu_memory_gib")):
        found.append("node.gpus: say also what they are (gpu) and how much memory one has (gpu_memory_gib)")
    return found


def _wrong_times(data: Mapping[str, Any]) -> list[str]:
    times = {"time": data.get("time", "")}
    times |= {
        f"partition {one['name']}: max_time": one.get("max_time", "") for one in data.get("partitions", ())
    }
    found = []
    for where, text in times.items():
        try:
            minutes_of(text or "1")
        except ValueError as error:
            found.append(f"{where}: {error}")
    return found
