"""The machines: GPUs, the links inside a node, and the network between nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from labkit.theory.hardware import GPU, GPUS

Fabric = Literal["shared", "full"]


@dataclass(frozen=True)
class Rates:
    """Bytes per second of one GPU: its memory, and one direction of its links to the GPUs of its node."""

    memory: float
    links: float


RATES = {  # the makers' data sheets
    "A100 40 GB": Rates(1.555e12, 300e9),
    "A100 64 GB (Leonardo)": Rates(1.640e12, 300e9),
    "A100 80 GB": Rates(2.039e12, 300e9),
    "H100 80 GB": Rates(3.35e12, 450e9),
    "H200 141 GB": Rates(4.8e12, 450e9),
    "B200 180 GB": Rates(8.0e12, 900e9),
}

# Bus bandwidths (nccl-tests) of 256 MB on 1, 2, 4, ... 64 nodes of 8 H100 with 50 GB/s of network each, in
# GB/s, all GPUs of the nodes in one group (Ultra-Scale Playbook, figure of bandwidths by number of nodes)
_ALL_REDUCE = (436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9)
_ALL_GATHER = (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0)
_MEASURED_NETWORK = 50e9


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs.

    network: bytes per second of one GPU's share of its node's network cards.
    fabric: "shared": large messages get slower with the number of nodes, as was measured on one cluster;
    "full": any number of nodes at the cards' full rate (a fat tree, as SC21 ran on).
    """

    gpu: GPU
    nodes: int
    gpus_per_node: int = 8
    network: float = 50e9
    fabric: Fabric = "shared"

    def __post_init__(self) -> None:
        for field in ("nodes", "gpus_per_node", "network"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")
        if self.fabric not in get_args(Fabric):
            raise ValueError(f"fabric must be one of {', '.join(get_args(Fabric))}, got {self.fabric!r}")
        if self.gpu.name not in RATES:
            raise ValueError(f"no bandwidths are known for {self.gpu.name!r}; there are {', '.join(RATES)}")

    @classmethod
    def of(
        cls,
        gpu: str,
        nodes: int,
        gpus_per_node: int = 8,
        network: float = 50e9,
        fabric: Fabric = "shared",
    ) -> Cluster:
        """The same with the GPU by its name or the start of it: "h100"."""
        return cls(find_gpu(gpu), nodes, gpus_per_node, network, fabric)

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def rates(self) -> Rates:
        """The GPU's bandwidths."""
        return RATES[self.gpu.name]

    def nodes_of(self, size: int, stride: int) -> float:
        """Nodes, 1 or more, that a group of `size` ranks, each `stride` from the next, is spread over."""
        return max(1.0, min(self.nodes, size * stride / self.gpus_per_node))

    def all_reduce_bandwidth(self, size: int, stride: int) -> float:
        """Bus bandwidth (bytes/s) of such a group while all groups like it are at work."""
        return self._shared(_ALL_REDUCE, size, stride)

    def all_gather_bandwidth(self, size: int, stride: int) -> float:
        """The same for all-gather and reduce-scatter."""
        return self._shared(_ALL_GATHER, size, stride)

    def exchange_bandwidth(self, size: int, stride: int) -> float:
        """Bytes per second that one GPU sends to ranks of such a group on other nodes, each to each."""
        spread = self.nodes_of(size, stride)
        if self.fabric == "full" or spread <= 2:
            return self.network
        return self.network * _at(_ALL_GATHER, spread) / _at(_ALL_GATHER, 2)

    def _shared(self, table: tuple[float, ...], size: int, stride: int) -> float:
        """Inside a node the measured share of the links. Between nodes the groups share the network cards;
        those with several GPUs of a node get no more than its links carry.
        """
        spread = self.nodes_of(size, stride)
        links = table[0] * 1e9 * self.rates.links / RATES["H100 80 GB"].links
        if spread <= 1:
            return links
        groups = min(stride, self.gpus_per_node)
        if self.fabric == "full":
            between = self.network * self.gpus_per_node / groups
        else:
            cards = self.network * self.gpus_per_node / (_MEASURED_NETWORK * 8)
            between = _at(table, spread) * 1e9 * cards / groups
        return between if stride >= self.gpus_per_node else min(links, between)


def _at(table: tuple[float, ...], nodes: float) -> float:
    """The table's value for a number of nodes, geometric between entries; beyond it, the last one."""
    position = min(math.log2(nodes), len(table) - 1)
    low = min(int(position), len(table) - 2)
    return table[low] * (table[low + 1] / table[low]) ** (position - low)


def find_gpu(name: str) -> GPU:
    """A GPU by name, or by the start of one name, whatever the case; of several, the one with most memory."""
    wanted = name.lower().replace("-", " ").replace("_", " ").strip()
    for full, gpu in GPUS.items():
        if full.lower() == wanted:
            return gpu
    starts = [
        gpu
        for full, gpu in GPUS.items()
        if wanted and full.lower().replace(" ", "").startswith(wanted.replace(" ", ""))
    ]
    if not starts:
        raise ValueError(f"no GPU {name!r}; there are {', '.join(GPUS)}")
    return max(starts, key=lambda gpu: gpu.memory) if len(starts) > 1 else starts[0]
