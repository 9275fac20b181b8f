# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "09", title: "Combining: 3D parallelism and choosing a strategy", minutes: 150}
# ---

# %% [markdown]
# # Combining: 3D parallelism and choosing a strategy
#
# You can cut a batch (lesson 03), a stack of layers (04), each layer (06, 07), and the training state (08).
# You have 64 GPUs and a model that does not fit on one. **Which cut do you use, how much of each, and which
# GPUs get which part?** In this lesson you put all axes into one training, write down what a step costs,
# and let a program choose. Then you hold rules of thumb against 555 measured runs.
#
# **You need** process groups (lesson 00), the bytes of a training state (01), and what lessons 03, 04, 07
# and 08 are about. You do not need your own solutions of them: their final forms are in `labkit.parallel`.
# **You will have built** a GPT that trains on any grid of data-, pipeline- and tensor-parallel ranks with
# the losses and weights of one process, and a planner. About 150 minutes: two sittings, the second from
# *What a step costs* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from IPython.display import display
from torch import Tensor, nn

import labkit
from labkit.model import Transformer, explicit_attention, gpt
from labkit.parallel import Parts, is_cut, library_parts
from labkit.pipeline import PipelinePart, TiedWeight
from labkit.show import Table, prediction
from labkit.show.grid import draw_groups, draw_over_nodes, draw_terms
from labkit.show.target import target
from labkit.tensor_parallel import column_parallel
from labkit.theory import ModelConfig, preset
from labkit.theory.flops import train_step_flops
from labkit.theory.grid import GridPlan, Machines
from labkit.theory.memory import TrainingPlan, worst_stage
from labkit.theory.parameters import count_parameters
from labkit.theory.pipeline import layers_of_stages
from labkit.theory.units import decimal_text

# %load_ext labkit

# %% [markdown]
# ## A rank has coordinates
#
# With $d$ replicas of $p$ pipeline stages of $t$ tensor-parallel ranks, $n = d\,p\,t$ ranks stand in a
# grid, and each has a coordinate along each axis. Ranks are numbered as digits of a number are: the last
# axis of the *order* counts fastest. In the order `("pp", "dp", "tp")`, ranks 0 and 1 are neighbours along
# `tp`.
#
# Along each axis every rank has a *group*: the ranks that share all of its other coordinates. A 3D training
# talks inside these groups only.
#
# Sixteen ranks on two nodes of eight, sizes `dp 2, pp 2, tp 4`, in the order `("pp", "dp", "tp")`. **How
# many groups are there along `dp`, and how many of them have ranks on both nodes?**

# %% predict="groups"
your_groups_along_dp, your_groups_on_both_nodes = ..., ...

# %% [markdown]
# ### Exercise: the rank grid
#
# Three functions for any axes of any sizes, 1 included. `build_groups` is called by all ranks of `group` at
# once. In `torch.distributed` **every rank has to create every group**, in the same order, also those that it
# is not in: `dist.new_group` waits for all of them. (With `use_local_synchronization=True` it waits for the
# group's own ranks alone. Do without it here: these ranks meet under a name made of their numbers and of how
# many groups each is in already. A rank that is in one more waits under another name. And if an earlier group
# had the same name, they meet where that one did.)
#
# A rank's position in its group along an axis must be its coordinate there. `coordinates_to_rank` is handed a
# coordinate for each axis. A wrong grid is refused before a group is made. What a function is handed stays as
# it is. `DeviceMesh` and `new_subgroups`, which make such groups, may not be called here; `new_group` may.
#
# <details><summary>Hint 1</summary>From the last axis to the first: <code>rank, coordinate = divmod(rank,
# size)</code>.</details>
# <details><summary>Hint 2</summary>A group begins at each rank whose coordinate along the axis is
# 0.</details>


# %% exercise="09.rank-grid" difficulty=2 minutes=15
def rank_to_coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """The coordinate of a rank along each axis. order: the axes, outermost first; the
    last counts fastest.

    Raises ValueError if `order` does not name each axis of `sizes` once, or the grid
    has no such rank.
    """
    ### BEGIN SOLUTION
    if sorted(order) != sorted(sizes):
        raise ValueError(f"the order {list(order)} does not name each axis of {dict(sizes)} once")
    if not 0 <= rank < math.prod(sizes.values()):
        raise ValueError(f"a grid of {dict(sizes)} has no rank {rank}")
    coordinates = {}
    for axis in reversed(order):
        rank, coordinates[axis] = divmod(rank, sizes[axis])
    return coordinates
    ### END SOLUTION


def coordinates_to_rank(
    coordinates: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]
) -> int:
    """The rank at those coordinates. Raises ValueError, naming the axis, for one that
    is not in the grid.
    """
    ### BEGIN SOLUTION
    rank = 0
    for axis in order:
        if not 0 <= coordinates[axis] < sizes[axis]:
            raise ValueError(f"{axis} {coordinates[axis]} is not below its size, {sizes[axis]}")
        rank = rank * sizes[axis] + coordinates[axis]
    return rank
    ### END SOLUTION


def build_groups(
    sizes: Mapping[str, int], order: Sequence[str], group: dist.ProcessGroup
) -> dict[str, dist.ProcessGroup]:
    """Axis -> this rank's group along it. group: all ranks of the job; all of them call this.

    Raises ValueError if `order` does not name each axis of `sizes` once, or, naming both
    numbers, if the grid has more or fewer ranks than `group`.
    """
    ### BEGIN SOLUTION
    size, me = dist.get_world_size(group), dist.get_rank(group)
    if math.prod(sizes.values()) != size:
        raise ValueError(f"a grid of {math.prod(sizes.values())} ranks, {dict(sizes)}, on {size} ranks")
    mine = {}
    for axis in order:
        for first in range(size):
            at = rank_to_coordinates(first, sizes, order)
            if at[axis] == 0:
                members = [coordinates_to_rank(at | {axis: i}, sizes, order) for i in range(sizes[axis])]
                made = dist.new_group([dist.get_global_rank(group, member) for member in members])
                if me in members:
                    mine[axis] = made
    return mine
    ### END SOLUTION


# %% [markdown]
# Who stands where? One letter and colour a group, one box a node:


# %%
target("09-groups")


# %%
def groups_along(axis: str, sizes: Mapping[str, int], order: Sequence[str]) -> list[list[int]]:
    found: dict[tuple, list[int]] = {}
    for rank in range(math.prod(sizes.values())):
        at = rank_to_coordinates(rank, sizes, order)
        found.setdefault(tuple(at[other] for other in order if other != axis), []).append(rank)
    return list(found.values())


sixteen, tensor_inside = {"dp": 2, "pp": 2, "tp": 4}, ("pp", "dp", "tp")
draw_groups({axis: groups_along(axis, sixteen, tensor_inside) for axis in sixteen}, gpus_per_node=8)

# %%
along_dp = groups_along("dp", sixteen, tensor_inside)
Table(
    ["sizes dp 2, pp 2, tp 4", "your guess", "counted"],
    [
        ["groups along dp", your_groups_along_dp, len(along_dp)],
        [
            "of them on both nodes",
            your_groups_on_both_nodes,
            sum(members[0] // 8 != members[-1] // 8 for members in along_dp),
        ],
    ],
)

# %% [markdown]
# PyTorch's grid is `DeviceMesh`. Its shape is the sizes in order, outermost first, and it numbers ranks as
# you do. On eight ranks, the members of rank 5's groups by both:


# %%
def both_grids(group: dist.ProcessGroup) -> list[list[object]]:
    from torch.distributed.device_mesh import init_device_mesh

    sizes, order = {"dp": 2, "pp": 2, "tp": 2}, ("pp", "dp", "tp")
    ours = build_groups(sizes, order, group)
    mesh = init_device_mesh(device().type, tuple(sizes[axis] for axis in order), mesh_dim_names=order)
    return [
        [axis, dist.get_process_group_ranks(ours[axis]), dist.get_process_group_ranks(mesh.get_group(axis))]
        for axis in order
    ]


def device() -> torch.device:
    """Where this rank's tensors live: its own GPU under NCCL, the CPU under gloo."""
    nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


Table(["axis", "yours", "DeviceMesh"], labkit.launch(both_grids, ranks=8, backend="gloo").results[5])

# %% check="09.rank-grid"
# Numbers: every rank of many grids, there and back. Mechanism: each rank's groups, and a sum
# over each of them. Robustness: axes of size 1, a grid that does not fit the job, no such rank.
labkit.check("09.rank-grid", rank_to_coordinates, coordinates_to_rank, build_groups)

# %% [markdown]
# ## Which axis goes between nodes?
#
# Inside a node, a GPU sends to another at several hundred GB/s. Between nodes eight GPUs share network cards,
# mostly 50 GB/s each (400 Gbit/s; the newest have twice that). So the order of the axes decides which traffic
# goes over the slow link. What does each rank send along each axis in a step? $A = 2bsh$ bytes is one
# activation of a micro-batch: $b$ sequences of $s$ tokens, $h$ numbers a token, 2 bytes a number. $m$ is the
# number of a replica's micro-batches, $L$ that of layers, $N$ that of parameters.
#
# | axis | what | bytes a rank passes on |
# |---|---|---|
# | `tp` | 4 ring all-reduces of $A$ a layer and micro-batch | $\frac{mL}{p}\cdot 4 \cdot 2\frac{t-1}{t} A$ |
# | `dp` | one ring all-reduce of $N/(p\,t)$ gradients of 2 bytes | $2\frac{d-1}{d}\cdot\frac{2N}{p\,t}$ |
# | `pp` | each micro-batch's activation on, and its gradient back | $mA$ each way; nothing if $p = 1$ |
#
# (Narayanan et al. 2021, section 3.2.) A model of 7 billion parameters, $d = p = t = 4$, a million tokens a
# step: **which axis passes on most, and how many times as much as the least?**

# %% predict="most-traffic"
your_axis, your_times_the_least = ..., ...

# %% [markdown]
# ### Exercise: bytes between nodes
#
# Ranks $r$ and $q$ are on one node if `r // gpus_per_node == q // gpus_per_node`. Along `tp` and `dp` each
# rank sends `sent[axis]` bytes to the next in its group, and the last to the first. Along `pp` each sends
# `sent["pp"]` bytes to the next stage *and* as many to the stage before; the first and the last stage have
# one neighbour. A group of one sends nothing. Add up the bytes that go from one node to another.
#
# Take layers and parameters as if they divided evenly: $L/p$ and $N/(p\,t)$ may be fractions.
# `count_parameters(model).total` is $N$. `sizes` and `sent` have all three axes, `dp`, `pp` and `tp`, in any
# order.


# %% exercise="09.bytes-between-nodes" difficulty=3 minutes=15
def bytes_sent(
    model: ModelConfig, sizes: Mapping[str, int], batch: int, sequence: int, micro_batch: int
) -> dict[str, float]:
    """Bytes that one rank passes to one neighbour along each axis ("dp", "pp", "tp") in one step.

    batch: sequences of a step, of all replicas together; a multiple of dp x micro_batch.
    """
    ### BEGIN SOLUTION
    d, p, t = sizes["dp"], sizes["pp"], sizes["tp"]
    micro_batches = batch // (d * micro_batch)
    activation = 2 * micro_batch * sequence * model.hidden
    gradients = 2 * count_parameters(model).total / (t * p)
    return {
        "dp": 2 * (d - 1) / d * gradients,
        "pp": micro_batches * activation if p > 1 else 0.0,
        "tp": micro_batches * model.num_layers / p * 4 * 2 * (t - 1) / t * activation,
    }
    ### END SOLUTION


def bytes_between_nodes(
    sizes: Mapping[str, int], order: Sequence[str], gpus_per_node: int, sent: Mapping[str, float]
) -> dict[str, float]:
    """Axis -> bytes of a step, of all ranks together, whose sender and receiver are on different nodes.

    sent: axis -> bytes from a rank to one neighbour. The last node may be filled in part.
    """
    ### BEGIN SOLUTION
    crossing = dict.fromkeys(order, 0.0)
    for rank in range(math.prod(sizes.values())):
        at = rank_to_coordinates(rank, sizes, order)
        for axis in order:
            for place in receivers(axis, at[axis], sizes[axis]):
                to = coordinates_to_rank(at | {axis: place}, sizes, order)
                if to // gpus_per_node != rank // gpus_per_node:
                    crossing[axis] += sent[axis]
    return crossing


def receivers(axis: str, place: int, size: int) -> list[int]:
    """To whom the rank at that place of an axis sends."""
    if axis == "pp":
        return [near for near in (place - 1, place + 1) if 0 <= near < size]
    return [(place + 1) % size] if size > 1 else []
    ### END SOLUTION


def best_order(sizes: Mapping[str, int], gpus_per_node: int, sent: Mapping[str, float]) -> tuple[str, ...]:
    """The order of the axes with the fewest bytes between nodes; one of them if there are several."""
    ### BEGIN SOLUTION
    return min(
        permutations(sizes),
        key=lambda order: sum(bytes_between_nodes(sizes, order, gpus_per_node, sent).values()),
    )
    ### END SOLUTION


# %%
seven_billion = preset("Llama 2 7B")
cube = {"dp": 4, "pp": 4, "tp": 4}
each_sends = bytes_sent(seven_billion, cube, batch=256, sequence=4096, micro_batch=1)
by_size = sorted(each_sends, key=each_sends.get)
most, least = by_size[-1], by_size[0]
ratio = round(each_sends[most] / each_sends[least])
guesses = [["the axis that passes on most", your_axis, most]]
guesses.append(["times the axis that passes on least", your_times_the_least, f"{ratio}, of {least}"])
display(Table(["", "your guess", "computed"], guesses))
Table(
    ["order, outermost first", *(f"along {axis}" for axis in cube), "in all"],
    [
        [
            ", ".join(order),
            *(decimal_text(crossing[axis]) for axis in cube),
            decimal_text(sum(crossing.values())),
        ]
        for order in permutations(cube)
        for crossing in [bytes_between_nodes(cube, order, 8, each_sends)]
    ],
    caption=f"Bytes between nodes of 8; your best order: {', '.join(best_order(cube, 8, each_sends))}",
)

# %% [markdown]
# Tensor parallelism innermost, always: it sends for every layer of every micro-batch. Between the other two
# it is a matter of size, and *"data parallelism has the lowest communication"*, as an article says, is no
# rule. A pipeline sends an activation for each micro-batch; data parallelism sends all gradients, but once a
# step. Here, with 64 micro-batches, stages pass on more than replicas, so replicas are outermost. For a
# larger model in fewer micro-batches it is the other way round. The first *takeaway* of Narayanan et al.
# (section 3) is about such models: tensor parallelism inside a node, pipeline parallelism between nodes.
#
# Megatron-LM lets stages send less (section 4.1): tensor-parallel ranks all have the activation that goes on,
# so each sends a $t$-th of it to its counterpart, and the next stage gathers the parts inside its node. Here
# that leaves 0.54 of 2.1 GB each way, less than the replicas' 1.3 GB.

# %% check="09.bytes-between-nodes"
labkit.check("09.bytes-between-nodes", bytes_sent, bytes_between_nodes, best_order)

# %% [markdown]
# ## Three axes, one training
#
# Now for real: a GPT on $d \times p \times t$ ranks. You have all parts:
#
# | part | what it does | lesson |
# |---|---|---|
# | `parts.block(block, tp_group, streams)` | a block's heads and features over ranks | 07 |
# | `parts.embedding.from_embedding(table, tp_group)` | the table's rows over ranks | 07 |
# | `parts.embedding.own_rows(weight, tp_group)` | this rank's rows of a $[V, h]$: table or head | 07 |
# | `column_parallel(x, rows, None, tp_group)` | own columns of $x$ times a head; sums in backward | 06 |
# | `parts.cross_entropy(logits, targets, vocabulary, tp_group)` | loss of divided logits | 07 |
# | `parts.streams(seed, tp_group)` | `shared()` and `own()` random numbers | 07 |
# | `parts.schedule(stage, num_stages, m)` | 1F1B as a list of actions | 04 |
# | `parts.run_schedule(part, actions, pp_group)` | does them; the loss on the last stage, else `None` | 04 |
# | `parts.average_gradients(module, dp_group)` | means over replicas | 03 |
#
# `run_schedule` takes a `PipelinePart` (`labkit.pipeline`): your stage, the micro-batches, a loss, and
# three things that matter here. `empty_input(stage, i)` says what a message will look like. `tied` names a
# weight that first and last stage both have, with the group of those two ranks: their gradients are summed
# at the end. `gradients_ready(stage)` is called after the stage's *last* backward. (`PipelinePart??` and
# `TiedWeight??` in a cell show all their fields.) Hand it the schedule's actions in
# their order: in 1F1B stage $i$ never keeps more than $p - i$ micro-batches for backward.
#
# What is new is between the parts, and each of these has cost somebody a training run:
#
# * **Data.** All ranks of one replica work on the same rows, replicas on different ones. `step` is handed the
#   rows of its own replica; only the first stage may look at ids, only the last at targets. Another step may
#   have fewer rows, or shorter ones, but never fewer rows than micro-batches.
# * **Tied embeddings.** The table is on the first stage and, as the head, on the last. Two copies of one
#   parameter: equal at the start, so equal forever, if both get the *sum* of both gradients. With $p = 1$
#   it is one parameter.
# * **Replicas** average after the last micro-batch's backward. After the first, the others would be
#   missing.
# * **The norm** is that of the whole model's gradient: every number once. Whole parameters (norms,
#   positions, some biases) are on all $t$ ranks, the tied table is on two stages, and everything is on all
#   $d$ replicas.
# * **Random numbers.** Tensor-parallel ranks draw alike where they hold the same tensor. Replicas and stages
#   must not draw alike: equal dropout masks on all replicas are noise that does not average out. Blocks drop
#   by themselves, and in training alone. Likewise the whole model drops its embeddings, the sum of tokens and
#   positions: that is left to you, with numbers from `shared()`.
#
# A gradient is 1.0 in each of 12 numbers: 8 of cut weights (4 on each of 2 tensor-parallel ranks) and 4 of
# whole ones, on 2 replicas. The norm should be $\sqrt{12} = 3.46$. **What does a program get that adds up
# the squares of all four ranks?**

# %% predict="norm-of-a-grid"
your_norm = ...

# %% reveals="norm-of-a-grid"
prediction("the norm, which should be 3.46", your_norm, (2 * 2 * (4 + 4)) ** 0.5, "computed")

# %% [markdown]
# ### Exercise: train in three dimensions
#
# First, two things that are given: which layers a stage has, and a rank's way back to names and tensors of
# the whole model.


# %%
def own_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """The layers of a stage: as equal as they go, the first stages have one more."""
    counts = layers_of_stages(num_layers, num_stages)
    first = sum(counts[:stage])
    return range(first, first + counts[stage])


def stage_to_full(stage: "Stage", parts: Parts) -> dict[str, Tensor]:
    """What a stage holds, by the names of the whole model; all of its tensor-parallel
    ranks call this.
    """
    full: dict[str, Tensor] = {}
    for number, block in stage.blocks.items():
        full |= {f"blocks.{number}.{name}": tensor for name, tensor in block.to_full().items()}
    if stage.tokens is not None:
        full["tokens.weight"] = stage.tokens.to_full()["weight"]
        full["positions.weight"] = stage.positions.detach()
    if stage.norm is not None:
        full |= {f"norm.{name}": weight.detach() for name, weight in stage.norm.named_parameters()}
    if stage.head_weight is not None:
        head = parts.embedding(stage.head_weight.detach(), stage.vocabulary, stage.group)
        full["head.weight"] = head.to_full()["weight"]
    return full


# %% [markdown]
# Each rank is handed a model of the whole shape. Only the numbers that this rank will hold need be right in
# it. All others may differ from rank to rank, and no weights have to be sent. The model and the rows of a
# step stay as they are.
#
# `is_cut(name)` tells whether tensor parallelism cuts the parameter of that name (as `named_parameters` of a
# stage gives it); otherwise all tensor-parallel ranks have it whole, with equal gradients. For that to work,
# keep the names below. `positions` and `head_weight` are parameters, not modules. `blocks` is an
# `nn.ModuleDict`; its keys are the layers' numbers in the whole model, as strings (`stage_to_full` reads it
# too). Where gradients are clipped, 1e-6 may be added to their norm, as in torch; a `max_norm` of 0 leaves
# nothing of them. Seeds that are handed over are 0 or more.
#
# <details><summary>Hint 1: the tied pairs</summary>As many pairs as there are ranks in a stage: for each
# <code>dp</code> and <code>tp</code> coordinate the first and the last stage. Every rank creates
# all.</details>
# <details><summary>Hint 2: micro-batches</summary><code>ids.tensor_split(m)</code> may give parts of two
# sizes; <code>run_schedule</code> weighs them.</details>
# <details><summary>Hint 3: the loss</summary>Zero on all stages but the last, then a sum over the pipeline,
# and a mean over replicas.</details>


# %% exercise="09.train-3d" difficulty=5 minutes=45
def stream_seed(seed: int, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The seed of a rank's random streams, 0 or more: equal along tp, another for each
    dp, pp and seed.
    """
    ### BEGIN SOLUTION
    return (seed * sizes["dp"] + coordinates["dp"]) * sizes["pp"] + coordinates["pp"]
    ### END SOLUTION


class Stage(nn.Module):
    """One pipeline stage of a GPT on the ranks of a tensor-parallel group."""

    def __init__(
        self,
        full: Transformer,
        stage: int,
        num_stages: int,
        group: dist.ProcessGroup,
        streams: object,
        parts: Parts,
    ):
        """This rank's part of `full`, which is left alone and of which nothing else is kept.

        Sets tokens and positions [s, h] (first stage), norm and head_weight (last
        stage; None where tokens are the head too): None on other stages.
        """
        super().__init__()
        self.first, self.last = stage == 0, stage == num_stages - 1
        self.group, self.streams, self.dropout = group, streams, full.config.dropout
        self.vocabulary = full.config.vocabulary
        self.tokens = self.positions = self.norm = self.head_weight = None
        ### BEGIN SOLUTION
        layers = own_layers(full.config.num_layers, stage, num_stages)
        self.blocks = nn.ModuleDict({str(n): parts.block(full.blocks[n], group, streams) for n in layers})
        if self.first:
            self.tokens = parts.embedding.from_embedding(full.tokens, group)
            self.positions = nn.Parameter(full.positions.weight.detach().clone())
        if self.last:
            self.norm = copy.deepcopy(full.norm)
            if not (self.first and full.config.tied_embeddings):
                self.head_weight = nn.Parameter(parts.embedding.own_rows(full.head.weight.detach(), group))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """ids [b, s] on the first stage, activations [b, s, h] on others -> activations;
        on the last stage logits [b, s, ceil(V / t)] of this rank's columns.
        """
        ### BEGIN SOLUTION
        if self.first:
            with self.streams.shared():
                x = F.dropout(self.tokens(x) + self.positions[: x.shape[1]], self.dropout, self.training)
        for block in self.blocks.values():
            x = block(x)
        if self.last:
            head = self.tokens.weight if self.head_weight is None else self.head_weight
            x = column_parallel(self.norm(x), head, None, self.group)
        return x
        ### END SOLUTION


class GPT3D:
    """One rank's part of a GPT on a grid of ranks, and its training."""

    def __init__(
        self,
        full: Transformer,
        sizes: Mapping[str, int],
        order: Sequence[str],
        group: dist.ProcessGroup,
        seed: int = 0,
        parts: Parts | None = None,
    ):
        """All ranks of `group` call this, with models of one shape and any dtype, left alone.

        parts: what to build it of; the library's parts where none are handed over. Sets `stage`.
        """
        self.config, self.sizes, self.parts = full.config, dict(sizes), parts or library_parts()
        ### BEGIN SOLUTION
        self.at = rank_to_coordinates(dist.get_rank(group), sizes, order)
        self.groups = build_groups(sizes, order, group)
        streams = self.parts.streams(stream_seed(seed, self.at, sizes), self.groups["tp"])
        self.stage = Stage(full, self.at["pp"], sizes["pp"], self.groups["tp"], streams, self.parts)
        self.tied = self._tied_weight(order, group)

    def _tied_weight(self, order: Sequence[str], group: dist.ProcessGroup) -> TiedWeight | None:
        if not self.config.tied_embeddings or self.sizes["pp"] == 1:
            return None
        mine = None
        for dp, tp in product(range(self.sizes["dp"]), range(self.sizes["tp"])):
            ends = [
                coordinates_to_rank({"dp": dp, "tp": tp, "pp": pp}, self.sizes, order)
                for pp in (0, self.sizes["pp"] - 1)
            ]
            made = dist.new_group([dist.get_global_rank(group, rank) for rank in ends])
            if dist.get_rank(group) in ends:
                mine = made
        if mine is None:
            return None
        return TiedWeight(self.stage.tokens.weight if self.stage.first else self.stage.head_weight, mine)
        ### END SOLUTION

    def step(
        self, ids: Tensor, targets: Tensor, num_micro_batches: int, learning_rate: float, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """One step of plain SGD. Returns the mean loss of all replicas' tokens, and the
        norm of the whole model's gradient before it was clipped to `max_norm`: two
        scalars, the same on every rank, which later steps leave as they are. Ranks talk, of
        single numbers too, inside the groups along the axes and the tied pairs alone.

        ids, targets: [B / d, s], the rows of this rank's replica.
        """
        ### BEGIN SOLUTION
        self.stage.zero_grad()
        stage, num_stages = self.at["pp"], self.sizes["pp"]
        actions = self.parts.schedule(stage, num_stages, num_micro_batches)
        part = self._part(
            list(zip(*(rows.tensor_split(num_micro_batches) for rows in (ids, targets)), strict=True))
        )
        loss = self.parts.run_schedule(part, actions, self.groups["pp"])
        norm = self._clip(max_norm)
        with torch.no_grad():
            for parameter in self.stage.parameters():
                parameter -= learning_rate * parameter.grad
        return self._mean(loss, norm), norm

    def _part(self, micro_batches: list[tuple[Tensor, Tensor]]) -> PipelinePart:
        weight = next(self.stage.parameters())

        def empty_input(stage: int, i: int) -> Tensor:
            return weight.new_empty(*micro_batches[i][0].shape, self.config.hidden)

        return PipelinePart(
            {self.at["pp"]: self.stage},
            self.sizes["pp"],
            micro_batches,
            lambda logits, target: self.parts.cross_entropy(
                logits, target, self.config.vocabulary, self.groups["tp"]
            ),
            empty_input,
            self.tied,
            lambda stage: self.parts.average_gradients(self.stage, self.groups["dp"]),
        )

    def _clip(self, max_norm: float) -> Tensor:
        squares = torch.zeros((), dtype=torch.float64, device=next(self.stage.parameters()).device)
        for name, parameter in self.stage.named_parameters():
            copied = name == "head_weight" and self.tied is not None
            if not copied and (is_cut(name) or self.at["tp"] == 0):
                squares += parameter.grad.double().square().sum()
        dist.all_reduce(squares, group=self.groups["tp"])
        dist.all_reduce(squares, group=self.groups["pp"])
        norm = squares.sqrt()
        if norm > max_norm:
            for parameter in self.stage.parameters():
                parameter.grad *= max_norm / norm
        return norm

    def _mean(self, loss: Tensor | None, like: Tensor) -> Tensor:
        mean = torch.zeros_like(like) if loss is None else loss.to(like.dtype, copy=True)
        dist.all_reduce(mean, group=self.groups["pp"])
        dist.all_reduce(mean, group=self.groups["dp"])
        return mean / self.sizes["dp"]
        ### END SOLUTION

    def to_full(self) -> dict[str, Tensor]:
        """What this rank's stage holds, by the whole model's names. All its
        tensor-parallel ranks call it.
        """
        return stage_to_full(self.stage, self.parts)


# %% [markdown]
# Train it on the bytes of this course's own source of a transformer, on eight ranks, and beside it the
# whole model in one process:

# %%
TEXT = torch.tensor(list(Path(labkit.__file__).with_name("model.py").read_bytes()))
ROWS, WINDOW, STEPS = 16, 16, 6


def small_model(tied: bool = True) -> Transformer:
    torch.manual_seed(0)
    config = gpt(4, 32, 4, vocabulary=256, max_sequence=WINDOW, dropout=0.0, tied_embeddings=tied)
    return Transformer(config, explicit_attention).double().to(device())


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """[ROWS, WINDOW] ids and the ids that follow them; the same on every rank."""
    starts = torch.randint(len(TEXT) - WINDOW - 1, (ROWS,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([TEXT[start : start + WINDOW + 1] for start in starts]).to(device())
    return rows[:, :-1], rows[:, 1:]


def in_one_process(group: dist.ProcessGroup) -> list[float]:
    model, losses = small_model(), []
    for step in range(STEPS):
        model.zero_grad()
        loss = model.loss(*batch_of(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
        losses.append(loss.item())
    return losses


def on_a_grid(
    sizes: dict[str, int], group: dist.ProcessGroup, notebooks: dict[str, str] | None = None
) -> list[float]:
    """notebooks: lesson -> your own notebook, whose parts are used."""
    from labkit.parallel.own import own_parts

    order = ("pp", "dp", "tp")
    trainer = GPT3D(small_model(), sizes, order, group, parts=own_parts(notebooks) if notebooks else None)
    replica = rank_to_coordinates(dist.get_rank(group), sizes, order)["dp"]
    losses = []
    for step in range(STEPS):
        ids, targets = (rows.chunk(sizes["dp"])[replica] for rows in batch_of(step))
        loss, _ = trainer.step(ids, targets, num_micro_batches=3, learning_rate=0.5, max_norm=1.0)
        losses.append(loss.item())
    return losses


grids = [{"dp": 2, "pp": 2, "tp": 2}, {"dp": 1, "pp": 2, "tp": 2}, {"dp": 2, "pp": 1, "tp": 2}]
grids += [{"dp": 2, "pp": 2, "tp": 1}, {"dp": 4, "pp": 1, "tp": 2}]
runs = {"one process": labkit.launch(in_one_process, ranks=1).results[0]}
for sizes in grids:
    name = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    runs[name] = labkit.launch(on_a_grid, sizes, ranks=math.prod(sizes.values()), backend="gloo").results[0]
Table(
    ["", *(f"loss {step}" for step in range(1, STEPS + 1))],
    [[name, *(f"{loss:.6f}" for loss in losses)] for name, losses in runs.items()],
)

# %% check="09.train-3d"
# Numbers: losses, norms and all weights after several steps on five grids. Mechanism:
# what each rank keeps, who sends what to whom, whose random streams are whose.
# Robustness: layers, rows and a vocabulary that do not divide, other orders of the axes.
labkit.check("09.train-3d", GPT3D)

# %% [markdown]
# **Your own parts.** If you have solved lessons 03, 04 or 07, name your notebooks (as saved), and see the
# same job run on what you built. This is not graded.

# %%
my_notebooks: dict[str, str] = {}  # for example {"04": "../04_pipeline/04_pipeline.ipynb", "07": ...}

if my_notebooks:
    mine = labkit.launch(on_a_grid, grids[0], notebooks=my_notebooks, ranks=8, backend="gloo").results[0]
    print("your own parts:", *(f"{loss:.6f}" for loss in mine))

# %% [markdown]
# ### With torch's own parts
#
# The same in the library's words: a `DeviceMesh` for the grid, `parallelize_module` along `tp`,
# `fully_shard` along `dp`, `PipelineStage` and `Schedule1F1B` along `pp`. It needs an untied head: none of
# these knows of a weight on two stages. Your trainer runs the same untied model beside it.


# %%
class PlainStage(nn.Module):
    """A stage of a whole model, for torch to cut."""

    def __init__(self, full: Transformer, stage: int, num_stages: int):
        super().__init__()
        self.tokens, self.positions = (full.tokens, full.positions) if stage == 0 else (None, None)
        layers = own_layers(full.config.num_layers, stage, num_stages)
        self.blocks = nn.ModuleDict({str(n): full.blocks[n] for n in layers})
        self.norm, self.head = (full.norm, full.head) if stage == num_stages - 1 else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def tensor_plan(stage: PlainStage) -> dict[str, object]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, object] = {}
    if stage.tokens is not None:
        plan["tokens"] = RowwiseParallel(input_layouts=Replicate())
    if stage.head is not None:
        plan["head"] = ColwiseParallel(output_layouts=Replicate())
    for number in stage.blocks:
        columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
        plan |= {f"blocks.{number}.{name}": ColwiseParallel() for name in columns}
        plan |= {f"blocks.{number}.{name}": RowwiseParallel() for name in ("attention.output", "mlp.down")}
    return plan


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def with_torchs_parts(group: dist.ProcessGroup) -> list[float] | None:
    import warnings

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor.parallel import parallelize_module

    warnings.simplefilter("ignore")
    mesh = init_device_mesh(device().type, (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    at = {axis: mesh.get_local_rank(axis) for axis in ("pp", "dp", "tp")}
    module = PlainStage(small_model(tied=False), at["pp"], 2)
    parallelize_module(module, mesh["tp"], tensor_plan(module))
    fully_shard(module, mesh=mesh["dp"])
    stage = PipelineStage(module, at["pp"], 2, device(), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=token_loss)
    means = []
    for step in range(3):
        ids, targets = (rows.chunk(2)[at["dp"]] for rows in batch_of(step))
        losses: list[Tensor] = []
        if at["pp"] == 0:
            schedule.step(ids)
        else:
            schedule.step(target=targets, losses=losses)
        with torch.no_grad():
            for weight in module.parameters():
                weight -= 0.5 * weight.grad
        module.zero_grad()
        means.append(torch.stack(losses).mean().item() if losses else None)
    return means


def the_same_untied(group: dist.ProcessGroup) -> list[float]:
    sizes, order = {"dp": 2, "pp": 2, "tp": 2}, ("pp", "dp", "tp")
    trainer = GPT3D(small_model(tied=False), sizes, order, group)
    replica, losses = rank_to_coordinates(dist.get_rank(group), sizes, order)["dp"], []
    for step in range(3):
        ids, targets = (rows.chunk(2)[replica] for rows in batch_of(step))
        losses.append(trainer.step(ids, targets, 2, 0.5, max_norm=math.inf)[0].item())
    return losses


theirs = labkit.launch(with_torchs_parts, ranks=8, backend="gloo", timeout=180).results
ours = labkit.launch(the_same_untied, ranks=8, backend="gloo").results[0]
means = [(a + b) / 2 for a, b in zip(theirs[4], theirs[6], strict=True)]  # the last stages of both replicas
Table(
    ["dp 2, pp 2, tp 2", "loss 1", "loss 2", "loss 3"],
    [
        [name, *(f"{loss:.6f}" for loss in losses)]
        for name, losses in (("yours", ours), ("torch's own parts", means))
    ],
)

# %% [markdown]
# The same losses. Look at what torch leaves to you: `tensor_plan` by the names of layers, which stage has
# what, and anything that two stages share.

# %% [markdown]
# ## What a step costs
#
# Does 2 x 2 x 2 make sense, or 8 x 1 x 1? To answer that without eight of everything, write down the
# seconds of a step in four terms. The plan is a `GridPlan`: `data`, `tensor`, `pipeline`, `micro_batch`,
# `zero` (0 or 1), `recompute`. The machines are `Machines`: `nodes`, `gpus_per_node`, `memory`, `flops`
# (what products reach), `links` and `network` (bytes a second of one GPU), `layer_floor`, `falloff`.
#
# One method is given, because it is about machines: `machines.bandwidth(size, stride)` is the bytes a
# second that each rank of a ring of `size` ranks sends, each `stride` ranks from the next. Inside a node it
# is `links`. Between nodes a ring crosses each border once, and the rings side by side share the node's
# cards.
#
# Here is why `falloff` is there. Bus bandwidths of 256 MB over more and more nodes of 8 H100, measured for
# the Ultra-Scale Playbook (read from its figure; the numbers of nodes are taken to be powers of two):

# %%
NODES = [1, 2, 4, 8, 16, 32, 64]
MEASURED_BANDWIDTH = {
    "all-reduce": [436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9],
    "all-gather": [249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0],
}
h100_nodes = partial(
    Machines, gpus_per_node=8, memory=80e9, flops=600e12, links=436e9, network=50e9, falloff=0.6
)
model_line = [h100_nodes(n).bandwidth(8 * n, 1) / 1e9 for n in NODES]
draw_over_nodes({**MEASURED_BANDWIDTH, "network / nodes^0.6": model_line}, NODES)

# %% [markdown]
# A textbook ring has the same bus bandwidth for any number of ranks. This cluster did not: 64 nodes get a
# tenth of what 2 nodes get. What does that do to data parallelism? The same source trained a model on 8 to
# 256 GPUs with nothing but data parallelism: on 8, each GPU did 40,150 tokens a second. **How many on 256, in
# percent of that?**

# %% predict="data-parallel-on-256"
your_percent = ...

# %% reveals="data-parallel-on-256"
TOKENS = [40149.94, 37609.69, 35367.61, 31112.23, 26446.44, 15700.38]  # on 8, 16, ... 256 GPUs
prediction("tokens a second on each GPU, percent of 8 GPUs'", your_percent, 100 * TOKENS[-1] / TOKENS[0])

# %%
draw_over_nodes({"data parallelism only": TOKENS}, NODES[:6], "tokens/s/GPU")

# %% [markdown]
# ### Exercise: the seconds of a step
#
# All terms are those of the slowest stage, which has $\lceil L/p \rceil$ layers. A batch of $B$ sequences is
# $m = B/(db)$ micro-batches for each replica.
#
# * **One layer's compute**, forward and backward of a micro-batch: $C = \max\big(\frac{k\,F}{L\,t \cdot
#   \text{flops}},\ \mathrm{layer\_floor}\big)$, where $F$ is `train_step_flops(model, sequence,
#   micro_batch)`, the operations of the whole model ($F/L$ deals the head's out to the layers), and $k = 4/3$
#   with recomputation, 1 without. The floor is the seconds that the host needs to launch a layer's kernels.
# * **One layer's tensor-parallel traffic**: $T$ is the seconds of $r \cdot 2\frac{t-1}{t} \cdot 2bsh$ bytes
#   over `bandwidth(t, 1)`, with $r = 4$ all-reduces, 6 with recomputation (lesson 06's two of forward come
#   twice).
# * **compute** $= m \lceil L/p \rceil C$, **tensor** $= m \lceil L/p \rceil T$, and the **bubble** $= (p -
#   1)\lceil L/p \rceil (C + T)$ (lesson 04).
# * **data**, the seconds of the replicas' traffic that nothing hides. An all-reduce is a reduce-scatter and
#   an all-gather. Each half moves $H = \frac{d-1}{d} \cdot \frac{2N}{p\,t}$ bytes over `bandwidth(d, t)`, as
#   replicas stand $t$ ranks apart; that takes $H'$ seconds. What goes on beside the last micro-batch's
#   backward is hidden, for at most $\text{hidden} = \frac23 \lceil L/p \rceil (C + T)$ seconds, with
#   recomputation as without. With ZeRO stage 0 both halves go on beside it: $\max(0, 2H' - \text{hidden})$ is
#   left. With stage 1 only the scatter of gradients does, as the new weights are gathered after the step:
#   $\max(0, H' - \text{hidden}) + H'$.
#
# $N$ is again `count_parameters(model).total`, and $N/(p\,t)$ may be a fraction.


# %% exercise="09.step-seconds" difficulty=3 minutes=15
def step_seconds(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int
) -> dict[str, float]:
    """Seconds of one step by term: {"compute", "tensor", "bubble", "data"}.

    batch: sequences of a step, of all replicas together. The plan is one that runs.
    """
    ### BEGIN SOLUTION
    d, t, p, b = plan.data, plan.tensor, plan.pipeline, plan.micro_batch
    layers, micro_batches = math.ceil(model.num_layers / p), batch // (d * b)
    again = 4 / 3 if plan.recompute else 1.0
    flops = again * train_step_flops(model, sequence, b) / model.num_layers / t
    compute = max(flops / machines.flops, machines.layer_floor)
    reduces = 6 if plan.recompute else 4
    moved = reduces * 2 * (t - 1) / t * 2 * b * sequence * model.hidden
    tensor = moved / machines.bandwidth(t, 1)
    turn = layers * (compute + tensor)
    half = (d - 1) / d * 2 * count_parameters(model).total / (t * p) / machines.bandwidth(d, t)
    hidden = 2 / 3 * turn
    exposed = max(0.0, half - hidden) + half if plan.zero else max(0.0, 2 * half - hidden)
    return {
        "compute": micro_batches * layers * compute,
        "tensor": micro_batches * layers * tensor,
        "bubble": (p - 1) * turn,
        "data": exposed,
    }
    ### END SOLUTION


# %% [markdown]
# Six ways to put Llama 3 8B on 64 GPUs (batches of 256 sequences of 4096 tokens):

# %%
target("09-terms")

# %%
eight_nodes = h100_nodes(8, layer_floor=4e-3)
llama = preset("Llama 3 8B")
some_plans = [
    GridPlan(64, 1, 1, zero=1, recompute=True),
    GridPlan(32, 2, 1),
    GridPlan(8, 8, 1, 4),
    GridPlan(16, 1, 4),
    GridPlan(16, 2, 2),
    GridPlan(2, 8, 4),
]
draw_terms({str(plan): step_seconds(plan, llama, eight_nodes, 256, 4096) for plan in some_plans})

# %% [markdown]
# Is that true? Narayanan et al. published the speed of GPTs on up to 3,072 A100 (Table 1), which by their
# equation 3 is the seconds of a step (full recomputation, a fat tree, so `falloff` 0). Fit one number,
# `flops`, on the first row, and predict the others:

# %%
SC21 = [  # billions of parameters, a, h, L, t, p, GPUs, batch, micro-batch, seconds a step by equation 3
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 3.53),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 3.70),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 3.70),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 9.40),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 14.45),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 16.06),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 24.82),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 37.61),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 54.08),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 102.63),
]


def sc21_seconds(row: tuple, flops: float) -> float:
    _, a, h, layers, t, p, gpus, batch, b, _ = row
    machines = Machines(gpus // 8, 8, 80e9, flops, links=240e9, network=25e9)
    plan = GridPlan(gpus // (t * p), t, p, b, zero=0, recompute=True)
    return sum(step_seconds(plan, gpt(layers, h, a), machines, batch, 2048).values())


def fitted_flops() -> float:
    low, high = 50e12, 312e12  # more operations a second, fewer seconds
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sc21_seconds(SC21[0], middle) > SC21[0][-1] else (low, middle)
    return low


reached = fitted_flops()
print(f"fitted on the first row: {reached / 1e12:.0f} TFLOP/s of 312")
Table(
    ["billions", "t", "p", "GPUs", "from the paper, s", "predicted, s", "off by"],
    [
        [row[0], row[4], row[5], row[6], f"{row[-1]:.2f}", f"{seconds:.2f}", f"{seconds / row[-1] - 1:+.0%}"]
        for row in SC21
        for seconds in [sc21_seconds(row, reached)]
    ],
)

# %% [markdown]
# One fitted number is good for models of its size, and a third too slow for the largest. What is missing?
# Products of larger matrices reach more of the peak than those of the first row; and runs from 76 to 530
# billion interleaved their stages (lesson 04), which divides the bubble. Both make the real step faster
# than yours. `labkit plan` knows of both.

# %% check="09.step-seconds"
labkit.check("09.step-seconds", step_seconds)

# %% [markdown]
# ## What does not run at all
#
# The fastest plan on paper is often one that cannot run. In the data behind this lesson, 323 of 878
# configurations that somebody queued crashed or ran out of memory.
#
# Formulas come out low. Beside the runs that finished, arithmetic like lesson 01's (with nanotron's 20 bytes
# a parameter and its sequence parallelism) is 6 GiB off on average and 3 GiB at the median. It is nearly
# always too low: fragmentation, buffers and copies are not in it. So a plan must leave **a tenth of the
# memory free**. A plan that fits with 79.9 of 80 GB does not fit.

# %% [markdown]
# ### Exercise: feasible
#
# Return every reason why a plan does not run, each as a sentence that names the two numbers that disagree,
# and nothing for a plan that does.
#
# | what must hold | the numbers to name |
# |---|---|
# | $d\,t\,p$ is the number of GPUs | $dtp$, GPUs |
# | $t$ divides the GPUs of a node | $t$, GPUs a node |
# | $t$ divides the heads, and the key-value heads, and the width of the MLP: three rules | the size, $t$ |
# | no stage without a layer | $p$, $L$ |
# | $db$ divides the batch | the batch, $db$ |
# | a tenth of `machines.memory` stays free | GiB with one decimal: needed, may be used |
#
# Memory is asked about only if all else holds. It is lesson 01's: `worst_stage(TrainingPlan(...))[1].total`
# in bytes, with the default recipe (16 bytes a parameter) and fused attention, `recompute` "full" or
# "none", no sequence parallelism, the plan's degrees, ZeRO stage, and number of micro-batches. In a cell,
# `TrainingPlan?` and `ModelConfig?` show how its fields and the model's are called.


# %% exercise="09.feasible" difficulty=3 minutes=12
def feasible(plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int) -> list[str]:
    """Every reason why the plan does not run, in words; an empty list if it runs."""
    ### BEGIN SOLUTION
    d, t, p, b = plan.data, plan.tensor, plan.pipeline, plan.micro_batch
    reasons = []
    if plan.num_gpus != machines.num_gpus:
        reasons.append(f"the plan is for {plan.num_gpus} GPUs, and there are {machines.num_gpus}")
    if machines.gpus_per_node % t:
        reasons.append(f"{t} tensor-parallel ranks do not divide a node of {machines.gpus_per_node} GPUs")
    sizes = {"heads": model.num_heads, "key-value heads": model.num_kv_heads, "columns of the MLP": model.ffn}
    for what, size in sizes.items():
        if size % t:
            reasons.append(f"{size} {what} do not divide over {t} tensor-parallel ranks")
    if p > model.num_layers:
        reasons.append(f"{p} stages have only {model.num_layers} layers")
    if batch % (d * b):
        reasons.append(f"a batch of {batch} sequences is no multiple of {d * b}, replicas x micro-batch")
    return reasons or too_large(plan, model, machines, batch, sequence)


def too_large(plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int) -> list[str]:
    """The reason that memory gives, if it does."""
    held = worst_stage(
        TrainingPlan(
            model,
            sequence,
            plan.micro_batch,
            recompute="full" if plan.recompute else "none",
            data_parallel=plan.data,
            zero_stage=plan.zero,
            tensor_parallel=plan.tensor,
            pipeline_parallel=plan.pipeline,
            num_micro_batches=batch // (plan.data * plan.micro_batch),
        )
    )[1].total
    usable = 0.9 * machines.memory
    if held <= usable:
        return []
    return [f"the fullest stage needs {held / 2**30:.1f} GiB, and {usable / 2**30:.1f} GiB may be used"]
    ### END SOLUTION


# %%
for plan in (*some_plans, GridPlan(1, 16, 4), GridPlan(3, 8, 40, 5)):
    reasons = feasible(plan, llama, eight_nodes, 256, 4096)
    print(plan, *(reasons or ["runs"]), sep="\n    ")

# %% check="09.feasible"
labkit.check("09.feasible", feasible)

# %% [markdown]
# ## Choosing
#
# You can price a plan and refuse it: a choice is a search. Before you write it: Llama 3 70B on 128 H100 (16
# nodes), batches of 512 sequences of 4096 tokens. **What would you choose?** Write $d$, $t$, $p$ and the
# micro-batch.

# %% predict="plan-of-70B"
your_plan = GridPlan(data=1, tensor=1, pipeline=1, micro_batch=1)

# %% [markdown]
# ### Exercise: choose a plan
#
# Find the fastest plan that runs, over all $d$, $t$, $p$, micro-batches, ZeRO stages 0 and 1, with and
# without recomputation. The docstring's *nearly so* means: by the formulas above it takes at most 5% longer
# than the fastest. That is as good as the best. You are graded on models and machines you have not seen: slow
# networks, little memory, two GPUs a node, or six. There are points if every plan runs, and more if none
# takes over 20%, none over 10%, none over 5% longer than the best: a single slow plan costs them.
#
# A thousand plans are quick to price and slow to check for memory: which should you ask first? All calls of
# a check together, about thirty, may take a minute.
#
# <details><summary>Hint</summary>$t$ divides the GPUs of a node, $p$ is at most $L$, $d = n / (tp)$, the
# micro-batch divides $B/d$. Sort by seconds, and take the first that <code>feasible</code> has nothing
# against.</details>


# %% exercise="09.choose-plan" difficulty=3 minutes=15
def choose_plan(model: ModelConfig, machines: Machines, batch: int, sequence: int) -> GridPlan:
    """A plan that runs, with the fewest seconds by step_seconds or nearly so.
    ValueError if none runs.
    """
    ### BEGIN SOLUTION
    plans = sorted(
        possible_plans(model, machines, batch),
        key=lambda plan: sum(step_seconds(plan, model, machines, batch, sequence).values()),
    )
    for plan in plans:
        if not feasible(plan, model, machines, batch, sequence):
            return plan
    raise ValueError(f"no plan of {model.name} runs on {machines.num_gpus} GPUs")


def possible_plans(model: ModelConfig, machines: Machines, batch: int) -> Iterator[GridPlan]:
    """Every grid of all GPUs that divides the batch, with every micro-batch and option."""
    gpus = machines.num_gpus
    for tensor, pipeline in product(divisors(machines.gpus_per_node), range(1, model.num_layers + 1)):
        data = gpus // (tensor * pipeline)
        if data * tensor * pipeline == gpus and batch % data == 0:
            for options in product(divisors(batch // data), (0, 1), (False, True)):
                yield GridPlan(data, tensor, pipeline, *options)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
    ### END SOLUTION


# %%
sixteen_nodes, seventy = h100_nodes(16, layer_floor=4e-3), preset("Llama 3 70B")
chosen = choose_plan(seventy, sixteen_nodes, 512, 4096)
found = {"the best by your functions": chosen}
if feasible(your_plan, seventy, sixteen_nodes, 512, 4096):
    print("your guess does not run:", *feasible(your_plan, seventy, sixteen_nodes, 512, 4096), sep="\n    ")
else:
    found["your guess"] = your_plan
draw_terms(
    {f"{name}: {plan}": step_seconds(plan, seventy, sixteen_nodes, 512, 4096) for name, plan in found.items()}
)

# %% check="09.choose-plan"
labkit.check("09.choose-plan", choose_plan)

# %% [markdown]
# ### From one GPU to 64 nodes
#
# What does your chooser combine when? The 8B model, a million tokens a step, on more and more nodes of 8
# H100:

# %%
Table(
    ["nodes", "your choice", "seconds", "compute", "tensor", "bubble", "data"],
    [
        [
            nodes,
            str(plan),
            f"{sum(terms.values()):.2f}",
            *(f"{s / sum(terms.values()):.0%}" for s in terms.values()),
        ]
        for nodes in (1, 2, 4, 8, 16, 32, 64)
        for plan in [choose_plan(llama, h100_nodes(nodes, layer_floor=4e-3), 256, 4096)]
        for terms in [step_seconds(plan, llama, h100_nodes(nodes, layer_floor=4e-3), 256, 4096)]
    ],
)

# %% [markdown]
# The batch stays 256 sequences, so each GPU has less and less to do: on 512 GPUs half a sequence. The
# **batch arithmetic** sets the limit before anything else: $B = d \cdot b \cdot m$, so $d \le B$, and a
# pipeline wants $m$ to be several times $p$ on top of it. Whoever wants more GPUs to pay off must raise
# $B$, and at some $B$ more samples a step teach no more.
#
# ## The rules of thumb, measured
#
# Narayanan et al. give three takeaways (section 3), two of them on plans: (1) tensor parallelism up to the
# size of a node, then pipelines over nodes; (2) just enough model parallelism to fit, data parallelism for
# the rest. The Ultra-Scale Playbook's authors ran nanotron on 1 to 64 nodes of 8 H100: 555 runs of a 1B and
# an 8B model (1.34 and 8.86 billion parameters) finished (256 sequences of 4096 tokens; figures from their
# data, Apache-2.0). **Of the fastest run of each of the eight groups of a model and a number of nodes: in how
# many is $t = 8$?**

# %% predict="fastest-with-t-8"
your_groups_with_t_8 = ...

# %% reveals="fastest-with-t-8"
# model, nodes, fastest (d, t, p, b, ZeRO), its tokens/s/GPU; the best with t = 8, with t
# > 8, with p > 1
BEST = [
    ("1B", 1, (8, 1, 1, 2, 0), 40150, 28101, None, 38895),
    ("1B", 4, (32, 1, 1, 2, 1), 36990, 22279, 9881, 33677),
    ("1B", 16, (64, 2, 1, 4, 0), 30186, 25911, 13180, 20616),
    ("1B", 64, (128, 2, 2, 2, 1), 4603, 1655, 2764, 4603),
    ("8B", 1, (2, 1, 4, 1, 1), 7503, 5909, None, 7503),
    ("8B", 4, (16, 1, 2, 1, 1), 7186, 5593, 2657, 7186),
    ("8B", 16, (16, 8, 1, 8, 0), 6028, 6028, 3804, 5397),
    ("8B", 64, (128, 4, 1, 2, 0), 3101, 1299, 1335, 1327),
]


def share(tokens: float | None, best: float) -> str:
    return "" if tokens is None else f"{tokens / best:.0%}"


prediction("groups whose fastest run has t = 8", your_groups_with_t_8, sum(row[2][1] == 8 for row in BEST))

# %%
Table(
    [
        "model",
        "nodes",
        "fastest: d, t, p, b, ZeRO",
        "tokens/s/GPU",
        "best with t = 8",
        "with t > 8",
        "with p > 1",
    ],
    [
        [model, nodes, ", ".join(map(str, plan)), tokens, *(share(other, tokens) for other in others)]
        for model, nodes, plan, tokens, *others in BEST
    ],
    caption="Columns to the right: the best of such runs, as a share of the fastest",
)

# %% [markdown]
# What holds, and what does not?
#
# * *Tensor parallelism stays inside a node*: yes. With $t > 8$ the best run has 27 to 63% of the fastest
#   one's speed.
# * *... and goes up to the size of the node*: no. $t = 8$ is fastest in one group of eight; in the others
#   it loses 14 to 64%. Fast links make tensor parallelism possible, not free: products get smaller, and
#   nothing hides its traffic.
# * *Just enough model parallelism to fit*: up to 4 nodes, yes: $p\,t$ is 1 for the 1B model, 2 to 4 for the
#   8B. On 16 and 64 nodes, no: there $d$ would be so large that its traffic over slow nodes costs more than
#   a little tensor parallelism.
# * *Pipelines go between nodes*: three of the eight fastest have stages, and one of the three is on a single
#   node. A bubble is cheap when $m$ is large (128 micro-batches there) and expensive when it is not; yet the
#   1B model on 64 nodes has two stages with $m = 1$, and all else that was tried was slower still.
# * Common to all: never more tensor parallelism than a node. (Of ZeRO, stages 0 and 1 alone were measured.)
#
# Eight groups are few, all on one cluster with one framework, and with a small batch on 64 nodes. A rule
# that was found on another cluster may be right there.
#
# ## What Llama 3 chose
#
# | GPUs | TP | CP | PP | DP | sequence | sequences / DP | tokens a step | BF16 MFU |
# |---|---|---|---|---|---|---|---|---|
# | 8,192 | 8 | 1 | 16 | 64 | 8,192 | 32 | 16M | 43% |
# | 16,384 | 8 | 1 | 16 | 128 | 8,192 | 16 | 16M | 41% |
# | 16,384 | 8 | 16 | 16 | 8 | 131,072 | 16 | 16M | 38% |
#
# (405B on H100; arXiv 2407.21783, Table 4.) Read it with your formulas. $t = 8$ is the node, and memory
# wants it: with nothing recomputed, and the tokens of norms divided too (lesson 07; your `feasible` has
# them whole), a first stage of 8 layers keeps 82 GB of activations by the formula of 1F1B, and at $t = 4$
# twice that. (82 GB are too many as well. The paper, section 3.3, says how they came to fit: the first stage
# and the last have a layer less than the others, and tensors that nothing reads again are freed at once.)
# The second row has twice the replicas for the *same* tokens a step, so half the sequences for each: the
# bubble grows, and two points of MFU go. The third row is about sequences of 131,072 tokens: one is too long
# for one pipeline, so *context parallelism* (CP) cuts the sequence itself over 16 ranks (lesson 11), and
# replicas pay for it: $16{,}384 / (8 \cdot 16 \cdot 16) = 8$. (The first version of the paper prints 4
# there. Which can it be? $8 \times 16 \times 131{,}072$ tokens are 16 M; 4 would be half.)
#
# The order of their axes is TP, CP, PP, DP from inside to outside: DP outermost, where its traffic hides
# behind compute (section 3.3). Your `best_order` asks for the fewest bytes, which is not quite the same
# question. How many of the bytes are in sight?
#
# ## The tool
#
# `labkit plan` is your chooser grown up: it has an efficiency curve, context parallelism, experts, a memory
# that was held against the runs above; and it says how wrong it was on them. On more nodes than 16 that is
# very wrong: ask it for 64, and read what it says first. It plans for nanotron, which ran them; with
# `software="megatron"` stages may be interleaved too, and ZeRO has stages 2 and 3.

# %%
from labkit.theory.planning.asked import question_of
from labkit.theory.planning.told import answer

print(answer(question_of("llama-3-8b", nodes=16, sequence=4096, batch_tokens="1M")))

# %% [markdown]
# In a terminal that is `labkit plan --model llama-3-8b --nodes 16 --sequence 4096 --batch-tokens 1M`. With
# controls, in a running notebook (take the model and the cluster that you care about):

# %%
from labkit.show.planner import Planner

Planner(model="Llama 3 70B", nodes=16, sequence=4096, batch=512)

# %% [markdown]
# **A fourth axis.** In a *mixture of experts* each token visits a few of many MLPs (2 of 8 in Mixtral, 8 of
# 256 in DeepSeek-V3), and the model has far more parameters than a token uses. So the experts of a layer are
# shared out over $e$ ranks of the replicas, and the rows of tokens travel to them and back (lesson 12). That
# is `ep`: it divides the number of experts and the replicas, and takes no GPUs of its own. Mixtral 8x7B on
# four nodes; set *experts over* to 1 rank and see which axes make room for them instead, then take
# DeepSeek-V3 and as many nodes as it needs:

# %%
Planner(model="Mixtral 8x7B", nodes=4, sequence=4096, batch=256)

# %% [markdown]
# And what does it say of *your* choice for the 70B model? `--explain` prices a plan that you have:

# %%
explained = f"{chosen.data},{chosen.tensor},{chosen.pipeline},mb={chosen.micro_batch},zero={chosen.zero}"
explained += ",recompute=full" if chosen.recompute else ""
asked = question_of("llama-3-70b", nodes=16, sequence=4096, batch_tokens="2M")
print(answer(asked, explain=explained))

# %% [markdown]
# ## Where this leaves you
#
# Every rank has coordinates, and groups along each axis; tensor parallelism is innermost. You trained one
# model on five grids to the same losses, and know the five places where such a training goes wrong without
# a word. You can say what a step costs in four terms, why a plan does not run, and which one to measure
# first. And you have seen how far to trust a rule: until somebody measures. Your chooser knows no experts;
# `labkit plan` does, but no run it was held against had any.
#
# **Think about**
#
# 1. Your `step_seconds` hides data-parallel traffic behind one backward. With a pipeline, the first stage
#    ends its last backward later than the last stage does. Who has time to hide more?
# 2. The norm needs two all-reduces of one number a step. On 64 nodes, what do they wait for?
# 3. With sequence parallelism (lesson 07) norms see only a rank's tokens. What changes in
#    `average_gradients`, and what in the norm?
#
# **To read**
#
# - Narayanan et al., *Efficient large-scale language model training on GPU clusters using Megatron-LM* (SC
#   2021, arXiv 2104.04473), section 3: the takeaways, with the analysis behind them.
# - *The Ultra-Scale Playbook* (2025), the chapter on finding the best training configuration.
# - *The Llama 3 herd of models* (arXiv 2407.21783), section 3.3: a network, and a parallelism made for it.
# - Isaev et al., *Calculon* (SC 2023): a search like yours over many more options.

# %% scoreboard=true
labkit.scoreboard("09")
