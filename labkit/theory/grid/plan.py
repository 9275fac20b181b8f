"""What is given in lesson 09: a plan, and the machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GridPlan:
    """d replicas x p stages x t tensor-parallel ranks, and what each GPU does.

    micro_batch: b, sequences worked on at once.  zero: stage 0 or 1.  recompute: whether each layer's forward
    is run again in backward.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    zero: int = 1
    recompute: bool = False

    @property
    def num_gpus(self) -> int:
        """d t p."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        told = f"dp {self.data}, tp {self.tensor}, pp {self.pipeline}, micro-batch {self.micro_batch}"
        return f"{told}, ZeRO {self.zero}{', recompute' if self.recompute else ''}"


@dataclass(frozen=True)
class Machines:
    """Nodes of equal GPUs.

    memory: bytes of a GPU.  flops: operations a second that its matrix products reach.  links: bytes a
    second that it sends to the GPUs of its node.  network: its share of its node's network cards, bytes a
    second.  layer_floor: the least seconds of a layer, forward and backward, however small: the host has to
    launch its kernels.  falloff: how bandwidth between nodes falls with the number of nodes, as a power.
    """

    nodes: int
    gpus_per_node: int
    memory: float
    flops: float
    links: float
    network: float
    layer_floor: float = 0.0
    falloff: float = 0.0

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def bandwidth(self, size: int, stride: int) -> float:
        """Bytes a second that a rank sends in a ring of `size` ranks, each `stride` ranks from the next.

        Inside a node, that of the links. Between nodes a ring crosses each border once, and as many rings as
        its stride (at most one a GPU) share the node's cards.
        """
        spread = size * stride / self.gpus_per_node
        if spread <= 1:
            return self.links
        rings = min(stride, self.gpus_per_node)
        return min(self.links, self.network * self.gpus_per_node / rings / spread**self.falloff)
