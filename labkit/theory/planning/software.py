"""What a training framework adds to the arithmetic: a handful of numbers, each with its physical meaning.

They describe a framework on any model, any plan and any number of nodes. None is there for one configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Balance = Literal["cost", "layers"]


@dataclass(frozen=True)
class Software:
    """The numbers of one framework.

    balance: how layers are dealt out to pipeline stages (labkit.theory.planning.stages).
    most_zero, interleaves: the highest ZeRO stage there is, and whether stages may be cut into chunks.

    Compute.
    matmul_efficiency: share of peak that a matrix product reaches, apart from moving its own operands.
    passes: times that each byte kept for backward crosses the GPU's memory: 5 where every kernel does only
    what it must (written and read in forward, read in backward, a gradient of its size written and read);
    more where kernels are not fused.
    layer_floor: seconds a layer takes at least, forward and backward: the host has to launch its kernels.
    rank_floor, spread_floor: more of that for each tensor-parallel rank outside a node, and for each where a
    pipeline spans nodes: ranks in lockstep wait for the slowest host.

    Traffic.
    link_share, between_share: what tensor parallelism gets, inside and between nodes, of the bandwidth that
    one message of 256 MB was measured with; above 1 where products hide some of it.
    regathers: whether backward gathers sequence-parallel inputs once more.
    gradient_bytes: bytes of one gradient on the wire.  reduce_share, gather_share: what data parallelism gets
    of the bandwidth of a large message.
    bucket_bytes, hop_seconds: gradients travel in buckets, each of which waits for as many hops as its group
    has ranks.
    overlap: share of the last micro-batch's backward that hides their traffic, without a pipeline; with one
    it hides nothing, since each stage sends activations then.
    gather_overlap: share of a whole micro-batch that hides what ZeRO 3 gathers. Assumed, not measured.
    send_share: share of the time between stages that nothing hides.
    stall: seconds that each send and each receive between stages waits on 64 nodes, whatever it carries; none
    on `quiet_nodes` or fewer.

    Optimizer and memory.
    optimizer_passes: kernels of the optimizer's step, in times that its state crosses memory.
    accumulate_bytes: bytes moved a parameter to add a micro-batch's gradients to their sum.
    rotated_copies: whether rotated queries, and keys and values, are kept beside the projections' outputs.
    gather_buffers: buffers the size of one gathered input (2sbh) under sequence parallelism.
    runtime: bytes of libraries and their contexts that count as the process's memory.
    """

    name: str
    balance: Balance
    most_zero: int
    interleaves: bool
    matmul_efficiency: float
    passes: float
    layer_floor: float
    rank_floor: float
    spread_floor: float
    link_share: float
    between_share: float
    regathers: bool
    gradient_bytes: float
    reduce_share: float
    gather_share: float
    bucket_bytes: float
    hop_seconds: float
    overlap: float
    gather_overlap: float
    send_share: float
    stall: float
    quiet_nodes: int
    optimizer_passes: float
    accumulate_bytes: float
    rotated_copies: bool
    gather_buffers: int
    runtime: float


NANOTRON = Software(
    "nanotron",
    balance="cost",
    most_zero=1,  # its README: ZeRO-1; its pipeline engines: afab and 1f1b
    interleaves=False,
    matmul_efficiency=0.66,
    passes=5.6,
    layer_floor=4.15e-3,
    rank_floor=0.85e-3,
    spread_floor=2.0e-3,
    link_share=1.5,
    between_share=1.28,
    regathers=True,
    gradient_bytes=2,
    reduce_share=1.6,
    gather_share=0.9,
    bucket_bytes=25e6,
    hop_seconds=2.2e-6,
    overlap=0.98,
    gather_overlap=0.7,
    send_share=1.0,
    stall=0.23,
    quiet_nodes=16,
    optimizer_passes=8.9,
    accumulate_bytes=10,
    rotated_copies=True,
    gather_buffers=2,
    runtime=0.7 * 2**30,
)

MEGATRON = Software(
    "megatron",
    balance="layers",
    most_zero=3,  # 2 and 3 with its FSDP
    interleaves=True,
    matmul_efficiency=0.771,
    passes=5.0,
    layer_floor=0.3e-3,
    rank_floor=0.0,
    spread_floor=0.0,
    link_share=1.4,
    between_share=1.0,
    regathers=False,
    gradient_bytes=4,
    reduce_share=1.0,
    gather_share=1.0,
    bucket_bytes=1e9,
    hop_seconds=1e-5,
    overlap=0.0,
    gather_overlap=0.7,
    send_share=0.3,
    stall=0.0,
    quiet_nodes=16,
    optimizer_passes=1.0,
    accumulate_bytes=0,
    rotated_copies=False,
    gather_buffers=2,
    runtime=0.7 * 2**30,
)

SOFTWARE = {software.name: software for software in (NANOTRON, MEGATRON)}
