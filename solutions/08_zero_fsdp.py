# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "08", title: "ZeRO and FSDP: sharding the data-parallel state", minutes: 220}
# ---

# %% [markdown]
# # ZeRO and FSDP: sharding the data-parallel state
#
# Data parallelism (lesson 03) puts the whole training state on every GPU: for a model of 7.5 billion
# parameters that is 120 GB, 64 times over on 64 GPUs, all copies equal. **What if each rank kept only its
# share, and asked the others when it needs more? What does that save, and what does it cost on the wire?**
#
# **You need** reduce-scatter and all-gather (lesson 00), the bytes of a training state (lesson 01),
# gradient hooks (lesson 03). **You will have built** the three stages of ZeRO (the third is what PyTorch
# calls FSDP), a norm over shards, and a checkpoint that four ranks write and three can read. About 220
# minutes: two sittings, the second from *Stage 3: weights that come and go* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from IPython.display import display
import safetensors
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import labkit
from labkit.record.live import LiveBytes, bytes_of_process, settled_bytes_of_process, tensors_of_process
from labkit.show import Table, draw_timeline, prediction
from labkit.show.memory import draw_memory
from labkit.show.zero import draw_flat_layout, draw_over_a_step, draw_stages
from labkit.show.target import target
from labkit.theory.recipes import RECIPES, Recipe
from labkit.theory.units import binary_text
from labkit.whole_file import on_disk

# %load_ext labkit

# %% [markdown]
# ## Where the bytes sit
#
# One letter for the whole lesson: $\Psi$ parameters, on $d$ data-parallel ranks. With Adam in mixed
# precision each parameter costs 2 bytes of weights, 2 of gradients, and 12 of optimizer state: the fp32
# master weight and Adam's two moments, 4 bytes each. That is 16 bytes; recipes that keep gradients in fp32
# come to 18, and those that keep them in both to 20 (lesson 01).
#
# Each stage of ZeRO (Rajbhandari et al. 2020) shards one row more of the picture below. A full box is held
# whole; a narrow one is a share of $1/d$.

# %%
draw_stages(ranks=4)

# %% [markdown]
# Why is that possible at all? An optimizer works number by number: to step parameter 17 it needs gradient
# 17 and moments 17, and nothing else. So it does not matter *who* steps parameter 17, as long as somebody
# does and tells the others (stage 1). Then nobody else needs the averaged gradient 17 (stage 2). And weight
# 17 is needed by all, but only while its layer is at work (stage 3).
#
# A find-the-mistake: an article on this subject says that in sharded data parallelism "each GPU holds its own
# copy of the model". That is the kind *without* shards.

# %% [markdown]
# ### Exercise: the bytes of one rank
#
# Shards are equal: a tensor of $n$ numbers is cut into $d$ shards of $\lceil n/d \rceil$, and padded where
# that is too much. A model is a sequence of *units* (its layers, mostly), one or more, `numels[i]`
# parameters each; they may come in a tuple as well as in a list. All bytes are whole numbers (`int`).
#
# * **Stage 0** shards nothing and pads nothing.
# * **Stage 1** lays the whole model in one flat tensor, cut once: $S = \lceil \Psi/d \rceil$. Weights are the
#   flat tensor with its padding, $d \cdot S$; gradients are whole and not padded; the optimizer has $S$.
# * **Stages 2 and 3** lay *each unit* in a flat tensor of its own, $S_i = \lceil n_i/d \rceil$. Gradients and
#   optimizer have $\sum S_i$ each; weights $d \sum S_i$ in stage 2, and $\sum S_i$ in stage 3.
#
# A fourth part is held for moments only, `working`. In stages 0 and 1 it counts as 0. In stage 2: the flat
# gradient of one unit, before it is scattered. In stage 3, in backward at unit $i$: the whole weights of unit
# $i$ *and* of unit $i-1$, which is being fetched already, and the flat gradient of unit $i$. (Unit 0 has none
# before it.) Flat means padded, and the largest such moment counts.
#
# <details><summary>Hint</summary><code>-(-n // d)</code> rounds up.</details>


# %% exercise="08.rank-bytes" difficulty=2 minutes=10
def rank_bytes(numels: Sequence[int], recipe: Recipe, stage: int, world_size: int) -> dict[str, int]:
    """Bytes on each of `world_size` ranks: {"weights", "gradients", "optimizer",
    "working"}, whole numbers.

    numels: parameters of each unit, in the order forward uses them. recipe: bytes a parameter, as
    `recipe.weights`, `recipe.gradients` and `recipe.optimizer`. stage: 0 to 3.

    Raises ValueError for another stage, or a world_size below 1.
    """
    ### BEGIN SOLUTION
    if stage not in (0, 1, 2, 3) or world_size < 1:
        raise ValueError(
            f"expected a stage of 0 to 3 and 1 rank or more, got stage {stage}, {world_size} ranks"
        )
    whole = sum(numels)
    shards = [-(-n // world_size) for n in ([whole] if stage < 2 else numels)]
    shard, flat = sum(shards), sum(shards) * world_size
    weights = {0: whole, 1: flat, 2: flat, 3: shard}[stage]
    moments = [0]
    if stage == 2:
        moments = [s * world_size * recipe.gradients for s in shards]
    if stage == 3:
        before = [0, *shards[:-1]]
        moments = [
            world_size * ((s + b) * recipe.weights + s * recipe.gradients)
            for s, b in zip(shards, before, strict=True)
        ]
    return {
        "weights": weights * recipe.weights,
        "gradients": (whole if stage < 2 else shard) * recipe.gradients,
        "optimizer": (whole if stage < 1 else shard) * recipe.optimizer,
        "working": max(moments),
    }
    ### END SOLUTION


# %% [markdown]
# Table 1 of the ZeRO paper, from your function, in GB (of $10^9$ bytes) a rank. For 7.5 billion parameters on
# 64 ranks the paper has 120, 31.4, 16.6 and 1.88; it counts the state at rest, without `working`.

# %%
model_sizes = {"7.5B": 7_500_000_000, "128B": 128_000_000_000, "1T": 1_000_000_000_000}
mixed_adamw = RECIPES["mixed AdamW, 16 B"]


def gigabytes_at_rest(num_params: int, stage: int, ranks: int) -> float:
    parts = rank_bytes([num_params], mixed_adamw, stage, ranks)
    return (parts["weights"] + parts["gradients"] + parts["optimizer"]) / 1e9


rank_counts = (1, 4, 16, 64, 256, 1024)
Table(
    ["parameters", "stage", *(f"d = {d:,}" for d in rank_counts)],
    [
        [name, str(stage), *(gigabytes_at_rest(num_params, stage, d) for d in rank_counts)]
        for name, num_params in model_sizes.items()
        for stage in (0, 1, 2, 3)
    ],
    caption="GB on each of d ranks",
)

# %% check="08.rank-bytes"
labkit.check("08.rank-bytes", rank_bytes)

# %% [markdown]
# ## What it costs on the wire
#
# Plain data parallelism all-reduces the gradients, and a ring all-reduce *is* a reduce-scatter followed by an
# all-gather: $2\Psi\frac{d-1}{d}$ numbers sent by each rank. Stage 1 only puts the optimizer between the two
# halves: reduce-scatter the gradients, step the shard, all-gather the *weights*.
#
# A lecture says that ZeRO has "high communication costs". How many numbers does each rank send in a step of
# stage 1, in units of $\Psi\frac{d-1}{d}$? And in stage 3, where weights are gathered for forward and again
# for backward, and gradients scattered?

# %% predict="traffic"
your_stage_1, your_stage_3 = ..., ...

# %% [markdown]
# ### Exercise: the traffic of a step
#
# Count what **one rank sends**, in numbers, in one step of `micro_batches` micro-batches, whose gradients add
# up: an `int`, for units in a list or in a tuple. A reduce-scatter or an all-gather of $d$ shards of $S$
# sends $(d-1)\,S$, an all-reduce twice that. Flat tensors are those of the exercise before, with their
# padding; stage 0 pads its one as stage 1 does.
#
# * Stage 0: one all-reduce a step, of one flat tensor for the whole model (`no_sync` until the last
#   micro-batch).
# * Stage 1: gradients add up on each rank; one reduce-scatter and one all-gather a step.
# * Stage 2: there is no whole gradient to add to, so each micro-batch scatters, unit by unit. Weights are
#   gathered once a step, unit by unit as well.
# * Stage 3: each micro-batch gathers the weights in forward, scatters the gradients, and, with `regather`,
#   gathers all weights a second time for backward, the last unit's too. Without it they stay from forward to
#   backward.


# %% exercise="08.step-traffic" difficulty=2 minutes=8
def step_traffic(
    numels: Sequence[int], stage: int, world_size: int, micro_batches: int = 1, regather: bool = True
) -> int:
    """Numbers (not bytes) that one rank sends in one step.

    numels: parameters of each unit. regather: whether stage 3 frees weights between
    forward and backward.

    Raises ValueError for a stage other than 0 to 3, and for fewer than 1 rank or micro-batch.
    """
    ### BEGIN SOLUTION
    if stage not in (0, 1, 2, 3) or world_size < 1 or micro_batches < 1:
        raise ValueError(
            f"expected a stage of 0 to 3, 1 rank or more and 1 micro-batch or more, got stage {stage}, "
            f"{world_size} ranks, {micro_batches} micro-batches"
        )
    units = [sum(numels)] if stage < 2 else numels
    one_pass = (world_size - 1) * sum(-(-n // world_size) for n in units)
    passes = {0: 2, 1: 2, 2: micro_batches + 1, 3: micro_batches * (3 if regather else 2)}
    return passes[stage] * one_pass
    ### END SOLUTION


# %%
psi, d = 7_500_000_000, 64
one_pass = psi * (d - 1) // d
guesses = {1: your_stage_1, 3: your_stage_3}
Table(
    ["", "your guess", "1 micro-batch", "4", "16"],
    [
        [f"stage {stage}", guesses.get(stage, "")]
        + [step_traffic([psi], stage, d, m) / one_pass for m in (1, 4, 16)]
        for stage in (0, 1, 2, 3)
    ],
    caption="Numbers sent by a rank, in units of Ψ (d - 1) / d",
)

# %% [markdown] reveals="traffic"
# So the lecture is right about stage 3 only, and there it is 1.5 times as much: 2, 2, 2 and 3 $\Psi$ (ZeRO,
# section 7).

# %% [markdown]
# Look to the right as well: with micro-batches that add up, stages 0 and 1 talk once a step, stages 2 and 3
# every time. That column decides more often than the first one which stage is used.

# %% check="08.step-traffic"
labkit.check("08.step-traffic", step_traffic)

# %% [markdown]
# ## Who owns what
#
# Parameters of all shapes are laid end to end in one *flat* tensor, which is cut into $d$ equal shards. A
# cut goes through the middle of a matrix as happily as between two. That is fine for the optimizer, which
# never asks for shapes, and it keeps shards equal, as collectives want them.

# %% [markdown]
# ### Exercise: flat layout
#
# Return the size of a shard, $\lceil \Psi/d \rceil$, and for each rank the list of its pieces: `(parameter,
# start, stop)` says that the rank owns elements `start` to `stop` (excluded) of that parameter, flattened.
# Pieces come in the order of the flat tensor, none is empty. All of these are `int`s, since tensors are
# sliced with them. The padding is at the end of the flat tensor and belongs to no piece. There may be fewer
# elements than ranks, and parameters without elements, even all. `numels`, a list or a tuple, stays as it is.


# %% exercise="08.flat-layout" difficulty=2 minutes=12
def flat_layout(numels: Sequence[int], world_size: int) -> tuple[int, list[list[tuple[int, int, int]]]]:
    """(shard_size, pieces): pieces[rank] lists (parameter, start, stop), in the order
    of the flat tensor.

    numels: elements of each parameter. Raises ValueError for fewer than 1 rank.
    """
    ### BEGIN SOLUTION
    if world_size < 1:
        raise ValueError(f"expected 1 rank or more, got {world_size}")
    shard_size = -(-sum(numels) // world_size)
    pieces: list[list[tuple[int, int, int]]] = [[] for _ in range(world_size)]
    begin = 0  # where in the flat tensor this parameter begins
    for parameter, numel in enumerate(numels):
        start = 0
        while start < numel:
            owner = (begin + start) // shard_size
            stop = min(numel, (owner + 1) * shard_size - begin)
            pieces[owner].append((parameter, start, stop))
            start = stop
        begin += numel
    return shard_size, pieces
    ### END SOLUTION


# %%
target("08-flat-layout")

# %%
layer = nn.ModuleDict({"up": nn.Linear(5, 6), "down": nn.Linear(6, 3)})
layer_numels = [p.numel() for p in layer.parameters()]
layer_names = [name for name, _ in layer.named_parameters()]
draw_flat_layout(*flat_layout(layer_numels, 4), layer_names)

# %% check="08.flat-layout"
labkit.check("08.flat-layout", flat_layout)

# %% [markdown]
# ## Tools for the rest
#
# Two collectives under one name each (PyTorch calls them differently in different releases). Use these, or
# any of torch's names that take one tensor: `dist.reduce_scatter` of a *list* of tensors gives the same
# numbers, but over gloo it sends several times as many bytes, and the bytes are compared. And two helpers:
# `flatten` moves parameters into one padded flat tensor, so that each is from then on a *view* of it: who
# writes into the flat tensor changes the weights. `views` finds the places of parameters in any tensor that
# is laid out like that, a gradient for example.


# %%
def all_gather(
    whole: Tensor, shard: Tensor, group: dist.ProcessGroup, async_op: bool = False
) -> dist.Work | None:
    """Fill `whole` with the ranks' shards, in their order. `shard` may be this rank's
    part of `whole`.
    """
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(whole, shard, group=group, async_op=async_op)


def reduce_scatter(
    shard: Tensor, whole: Tensor, group: dist.ProcessGroup, async_op: bool = False
) -> dist.Work | None:
    """Put into `shard` this rank's part of the sum of the ranks' `whole`."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(shard, whole, group=group, async_op=async_op)


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The place of each parameter in a flat tensor, in its shape. The rest of `flat` is padding."""
    sizes = [p.numel() for p in parameters]
    return [part.view(p.shape) for part, p in zip(flat[: sum(sizes)].split(sizes), parameters, strict=True)]


def flatten(parameters: Sequence[nn.Parameter], world_size: int) -> Tensor:
    """Move the parameters into one flat tensor, padded with zeros to `world_size`
    equal shards; return it.

    All must have the same dtype. Each parameter is a view of the flat tensor afterwards.
    """
    kinds = {p.dtype for p in parameters}
    if len(kinds) != 1:
        raise ValueError(f"expected parameters of one dtype, found {kinds or 'no parameters'}")
    shard_size = -(-sum(p.numel() for p in parameters) // world_size)
    flat = torch.zeros(shard_size * world_size, dtype=parameters[0].dtype, device=parameters[0].device)
    for p, place in zip(parameters, views(flat, parameters), strict=True):
        place.copy_(p.detach())
        p.data = place
    return flat


# %% [markdown]
# ## Stage 1: each rank steps its share
#
# `ShardedOptimizer` stands where an optimizer stands. `step()` averages the gradients over the ranks by one
# reduce-scatter, lets an ordinary torch optimizer step this rank's shard, and all-gathers the weights. What
# could go wrong?
#
# * **Options.** Biases and norms are usually not decayed, so parameters come in groups with options of their
#   own. The flat cut does not ask where a group ends: a rank's shard may have a piece of each. So the inner
#   optimizer gets one tensor *a group*, in as many groups as were given. (One tensor for the whole shard
#   would decay a bias because it lies behind a matrix.)
# * **Precision.** A step changes a weight by little, and in bf16 the number after 1 is $1 + 2^{-7}$. So
#   a shard of 16-bit weights (bf16 or float16) has an fp32 *master* copy, which is what is stepped; the
#   weights are the master, rounded. Only the owner needs one. Weights in fp32 or float64 are their own
#   master; a copy of the shard, in the same dtype, is allowed. Gradients are averaged in the master's
#   precision as well.
#
# How often must $10^{-3}$ be added to a bf16 weight of 1 before it changes? Ten times, a hundred, never?

# %% predict="bf16-steps"
your_number_of_steps = ...

# %%
weight, master = torch.ones((), dtype=torch.bfloat16), torch.ones(())
for _ in range(10_000):
    weight += 1e-3
    master += 1e-3
when = "never" if weight == 1 else "earlier"
found = f"{when}: after 10,000 steps {weight.item():.2f}, an fp32 master {master.item():.2f}"
prediction("steps until it changes", your_number_of_steps, found)

# %% [markdown]
# ### Exercise: sharded optimizer
#
# * **Groups.** Keep the inner torch optimizer as `self.optimizer`: learning-rate schedules are built on it.
#   Its `param_groups` are yours, in the same order and with every option that yours have, also one that torch
#   does not know. A group of which nothing is trained, or of which this rank's shard has nothing, is there
#   all the same, with no tensor or with an empty one. Padding may be in any group, or in none.
# * **Parameters.** At least one is trained, and all that are have one dtype; all replicas start equal. A
#   trained one without a gradient counts as one with zeros, and a rank may have no gradient at all. Frozen
#   ones (`requires_grad=False`), of any dtype, are left alone. (No frozen one comes with a gradient, and no
#   group comes without parameters.)
# * **Bytes.** Send each gradient once, through reduce-scatter and in the master's dtype, and each weight
#   once, through all-gather and in its own: $2\Psi$, not an all-reduce *and* an all-gather. Rounding is
#   torch's, to the nearest.
# * **Memory.** After `zero_grad` a rank holds the weights once, its share of the rest, and no gradient, not
#   even of its shard. What it holds is counted in whatever form it is kept, arrays, lists and bytes as well
#   as tensors, with 96 KiB for all that is none of these.
#
# <details><summary>Hint 1: init</summary>List the parameters that require gradients, group by group. Flatten
# them. Your shard is a slice of the flat weights; <code>pieces[rank]</code> of <code>flat_layout</code> says
# how many of its elements are in each group. Slices of the master, one a group, become
# <code>nn.Parameter</code>s.</details>
# <details><summary>Hint 2: step</summary>Copy gradients into a flat tensor of the master's dtype; divide;
# reduce-scatter; hand out slices as <code>.grad</code>; step; copy the master into the shard; gather the
# shard into the flat weights.</details>


# %% exercise="08.sharded-optimizer" difficulty=4 minutes=40
class ShardedOptimizer:
    """A torch optimizer of which each rank of `group` holds and steps its share (ZeRO, stage 1)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup,
        **options: object,
    ):
        """parameters: as torch optimizers take them, parameters or dicts {"params":
        parameters, option: value}, in lists or iterators, which can be read once.

        options: defaults for all groups, handed on to `optimizer_class`.
        """
        ### BEGIN SOLUTION
        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        trained = [[p for p in g["params"] if p.requires_grad] for g in groups]
        self.group, self.world_size = group, dist.get_world_size(group)
        self.parameters = [p for members in trained for p in members]
        self.weights = flatten(self.parameters, self.world_size)
        self.shard = self.weights.chunk(self.world_size)[dist.get_rank(group)]
        self.master = self.shard.to(torch.promote_types(self.shard.dtype, torch.float32))
        self.sizes = self._elements_of_groups(
            [n for n, members in enumerate(trained) for _ in members], groups
        )
        self.parts = [nn.Parameter(part) for part in self.master.split(self.sizes)]
        inner = [
            {**g, "params": [part] if part.numel() else []}
            for g, part in zip(groups, self.parts, strict=True)
        ]
        self.optimizer = optimizer_class(inner, **options)

    def _elements_of_groups(self, group_of: Sequence[int], groups: Sequence[dict]) -> list[int]:
        """How many elements of this rank's shard are in each group; the padding is in the last."""
        shard_size, pieces = flat_layout([p.numel() for p in self.parameters], self.world_size)
        sizes = [0] * len(groups)
        for parameter, start, stop in pieces[dist.get_rank(self.group)]:
            sizes[group_of[parameter]] += stop - start
        sizes[-1] += shard_size - sum(sizes)
        return sizes
        ### END SOLUTION

    @torch.no_grad()
    def step(self) -> None:
        """Average the ranks' gradients, step, and leave the same new weights on every rank.

        The parameters' own `.grad` stays as it was; it may be transposed.
        """
        ### BEGIN SOLUTION
        for part, gradient in zip(self.parts, self._mean_gradient().split(self.sizes), strict=True):
            part.grad = gradient
        self.optimizer.step()
        for part in self.parts:  # of all groups, also those the optimizer holds nothing of here
            part.grad = None
        if self.master is not self.shard:
            self.shard.copy_(self.master)
        all_gather(self.weights, self.shard, self.group)

    def _mean_gradient(self) -> Tensor:
        """This rank's shard of the mean over the ranks, in the master's dtype."""
        flat = torch.zeros_like(self.weights, dtype=self.master.dtype)
        for p, place in zip(self.parameters, views(flat, self.parameters), strict=True):
            if p.grad is not None:
                place.copy_(p.grad)
        flat /= self.world_size
        shard = torch.empty_like(self.master)
        reduce_scatter(shard, flat, self.group)
        return shard
        ### END SOLUTION

    def zero_grad(self) -> None:
        """Forget the gradients of the model's parameters."""
        ### BEGIN SOLUTION
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


# %% [markdown]
# Run it. Four ranks, each with data of its own; Adam, and its state counted on each rank.


# %%
def small_model(width: int = 96, layers: int = 4) -> nn.Sequential:
    """The same weights on every rank. The units of this lesson's examples are its children."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def own_rows(width: int = 96, seed: int = 1) -> Tensor:
    """Rows that differ from rank to rank."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randn(4, width, generator=generator)


def three_sharded_steps(group: dist.ProcessGroup) -> list[int]:
    model = small_model()
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, group, lr=1e-3)
    for step in range(3):
        model(own_rows(seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    states = optimizer.optimizer.state.values()
    return [sum(t.numel() for s in states for t in s.values() if t.dim() > 0), len(list(model.parameters()))]


stage_1 = labkit.launch(three_sharded_steps, ranks=4, backend="gloo")
psi = sum(p.numel() for p in small_model().parameters())
Table(
    ["rank", "numbers of Adam's state", "of 2 psi"],
    [[rank, held, f"{held / (2 * psi):.1%}"] for rank, (held, _) in enumerate(stage_1.results)],
)

# %% check="08.sharded-optimizer"
# Numbers: weights after steps of SGD with momentum and of AdamW, groups of options wherever the cut
# falls, bf16 with its fp32 master. Mechanism: what each rank holds, what it sends. Robustness:
# unused, frozen, tied parameters, fewer elements than ranks, one rank, another group.
labkit.check("08.sharded-optimizer", ShardedOptimizer)

# %% [markdown]
# ## Stage 2: gradients that do not stay
#
# In stage 1 each rank still collects *all* gradients, only to throw $\frac{d-1}{d}$ of them away. Stage 2
# scatters a bucket of them as soon as it is complete, during backward, keeps its shard of the mean, and frees
# the rest. Buckets are those of lesson 03, and so is the trap: **reduce-scatters are matched by their
# order**. If one rank did not use a layer, its bucket is never complete. So bucket $i$ is scattered only
# after bucket $i-1$, and what is left at the end of backward is scattered then, with zeros for what is
# missing.
#
# The weights of a bucket lie in one flat tensor, and this rank's slice of it is an `nn.Parameter`, a *view*.
# An optimizer over these slices changes them in place, and one all-gather for each bucket completes the
# weights.


# %%
def make_buckets(module: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """From the last parameter that is trained to the first, as many in a bucket as fit (lesson 03)."""
    buckets: list[list[nn.Parameter]] = []
    used = 0
    for p in reversed([p for p in module.parameters() if p.requires_grad]):
        if not buckets or used + p.nbytes > bucket_bytes:
            buckets.append([])
            used = 0
        buckets[-1].append(p)
        used += p.nbytes
    return buckets


# %% [markdown]
# ### Exercise: sharded gradients
#
# After `loss.backward()`, `shards[i].grad` has this rank's part of bucket $i$'s gradient, averaged over
# ranks, and no parameter of the module has a `.grad` (one that was there before is not asked about). In
# `shards[i].grad` the gradients of several backward passes add up, also where `gather_weights` is called in
# between.
#
# * **Calls.** Each backward sends one reduce-scatter a bucket, `gather_weights` one all-gather a bucket, and
#   nothing else is sent. All have ended when `backward()` or `gather_weights()` returns. In each backward a
#   rank uses one parameter of the module at least. The module may be in `eval()`.
# * **Memory.** Weights are held once. Where every rank uses every layer, gradients take no more than the
#   shards and two whole buckets at a time. What stays is counted in whatever form it is kept, as in stage 1.
#
# <details><summary>Hint 1: hooks</summary>As in lesson 03:
# <code>p.register_post_accumulate_grad_hook(hook)</code>, and
# <code>torch.autograd.Variable._execution_engine.queue_callback(f)</code> in the first hook of each backward
# has <code>f</code> called at its end.</details>
# <details><summary>Hint 2: memory</summary>In the hook, copy <code>p.grad</code> into its place in the
# bucket's flat gradient (made when its first gradient comes) and set <code>p.grad = None</code>. Let go of
# the flat gradient when it is scattered.</details>


# %% exercise="08.sharded-gradients" difficulty=4 minutes=20
class ShardedGradients:
    """Scatters the gradients of `module` during backward; each rank of `group` keeps
    its shards (stage 2).
    """

    shards: list[nn.Parameter]  # this rank's slice of each bucket's flat weights, for an optimizer

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        """module: equal on every rank. Its buckets are `make_buckets(module, bucket_bytes)`."""
        ### BEGIN SOLUTION
        self.group, self.world_size = group, dist.get_world_size(group)
        self.buckets = make_buckets(module, bucket_bytes)
        self.weights = [flatten(bucket, self.world_size) for bucket in self.buckets]
        rank = dist.get_rank(group)
        self.shards = [nn.Parameter(flat.chunk(self.world_size)[rank]) for flat in self.weights]
        for number, bucket in enumerate(self.buckets):
            for position, p in enumerate(bucket):
                p.register_post_accumulate_grad_hook(self._hook_of(number, position))
        self._reset()

    def _reset(self) -> None:
        self.gradients: dict[int, Tensor] = {}  # flat ones, of buckets that wait for more
        self.missing = [len(bucket) for bucket in self.buckets]
        self.scattered = 0
        self.callback_queued = False

    def _hook_of(self, number: int, position: int):
        def hook(p: nn.Parameter) -> None:
            if not self.callback_queued:
                self.callback_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            place = views(self._gradient(number), self.buckets[number])[position]
            torch.div(p.grad, self.world_size, out=place)
            p.grad = None
            self.missing[number] -= 1
            while self.scattered < len(self.buckets) and not self.missing[self.scattered]:
                self._scatter_next()

        return hook

    def _gradient(self, number: int) -> Tensor:
        if number not in self.gradients:
            self.gradients[number] = torch.zeros_like(self.weights[number])
        return self.gradients[number]

    def _scatter_next(self) -> None:
        shard = self.shards[self.scattered]
        mean = torch.empty_like(shard, requires_grad=False)
        reduce_scatter(mean, self._gradient(self.scattered), self.group)
        del self.gradients[self.scattered]
        shard.grad = mean if shard.grad is None else shard.grad.add_(mean)
        self.scattered += 1

    def _finish(self) -> None:
        while self.scattered < len(self.buckets):
            self._scatter_next()  # this rank did not use all of it
        self._reset()
        ### END SOLUTION

    @torch.no_grad()
    def gather_weights(self) -> None:
        """After an optimizer's step over `shards`: complete the module's weights on every rank."""
        ### BEGIN SOLUTION
        for flat, shard in zip(self.weights, self.shards, strict=True):
            all_gather(flat, shard, self.group)
        ### END SOLUTION


# %% [markdown]
# Let us watch the bytes. `LiveBytes` counts the tensors that are alive after every operation. Below: one step
# of plain data parallelism (gradients averaged after backward) and one of yours, on four ranks.


# %%
target("08-stage-2")


# %%
def watched(step, group: dist.ProcessGroup) -> list[int]:
    """Bytes of all tensors of this process after each operation of one `step()`; others went before."""
    before = bytes_of_process()
    run = step(group)
    run()
    live = LiveBytes()
    live.count(tensors_of_process())
    with live:
        run()
    return [max(0, num_bytes - before) for num_bytes in live.history]


def plain_step(group: dist.ProcessGroup):
    model = small_model(256, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        model(own_rows(256)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
        optimizer.step()
        optimizer.zero_grad()

    return run


def stage_2_step(group: dist.ProcessGroup):
    model = small_model(256, 6)
    sharded = ShardedGradients(model, group, bucket_bytes=4 * (256 * 256 + 256))
    optimizer = torch.optim.SGD(sharded.shards, lr=0.1)

    def run() -> None:
        model(own_rows(256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sharded.gather_weights()

    return run


histories = {
    name: labkit.launch(watched, step, ranks=4, backend="gloo", record=False).results[0]
    for name, step in (("data parallel", plain_step), ("stage 2", stage_2_step))
}
six_units, fp32_sgd = [256 * 256 + 256] * 6, RECIPES["fp32 SGD"]
draw_over_a_step(
    histories,
    {
        "data parallel": sum(rank_bytes(six_units, fp32_sgd, 0, 4).values()),
        "stage 2": sum(rank_bytes(six_units, fp32_sgd, 2, 4).values()),
    },
)

# %% [markdown]
# The dotted lines are your `rank_bytes`, `working` included. In stage 2 the measured peak is one unit above
# its line: a gradient that autograd hands over is there twice while it is copied to its place, and gloo
# makes a copy of its own while it scatters (NCCL does not). At rest both hold the same: gradients are gone
# then. Weights are still whole, which is what stage 3 is about.

# %% check="08.sharded-gradients"
# Numbers: gradients and weights after several micro-batches and steps. Mechanism:
# scattered during backward, bytes held. Robustness: a layer that only some ranks use,
# frozen and tied ones, one bucket, one rank.
labkit.check("08.sharded-gradients", ShardedGradients)

# %% [markdown]
# ## Stage 3: weights that come and go
#
# Now weights too. A *unit* is a part of the module whose weights are gathered together, mostly one layer.
# Each rank keeps its shard of the flat tensor. The whole one exists while the unit is at work:
#
# | | forward of unit $i$ | backward of unit $i$ |
# |---|---|---|
# | before | all-gather its weights | all-gather them again |
# | meanwhile | all-gather those of unit $i+1$ | all-gather those of unit $i-1$ |
# | after | free them | reduce-scatter its gradients, free both |
#
# **How to free a tensor that autograd still needs?** A linear layer saves its weight for backward. Saved is
# the tensor object, not a copy: if you replace it by a new one, the old one stays alive, and nothing is
# freed. But the *storage* behind it can be emptied and filled again, and everyone who refers to it sees the
# new content:

# %%
flat = torch.arange(6.0)
saved = flat[2:4]  # what a layer has kept
full_size = flat.untyped_storage().nbytes()
flat.untyped_storage().resize_(0)
print("freed:", flat.untyped_storage().nbytes(), "bytes")
flat.untyped_storage().resize_(full_size)
flat.copy_(torch.arange(10.0, 16.0))
print("filled again, and the saved view sees it:", saved)

# %% [markdown]
# `FlatUnit` below does that for one flat tensor; read it, it is part of the lesson. Yours is to say *when*.
# Mixed precision comes with it: the shard of bf16 weights is their fp32 master. It is rounded when it is
# gathered (2 bytes a number on the wire), gradients add up and are scattered in fp32, and an optimizer over
# the shards steps masters. At rest there is no bf16 weight at all, and nothing else in any other form.
#
# * **Before a unit's forward**: `unit.register_forward_pre_hook(lambda unit, args: ...)`.
# * **Before its backward**: a hook on its output, set in a `register_forward_hook`.
#   `torch.autograd.graph.register_multi_grad_hook(tensors, hook, mode="any")` fires once, with the first of
#   the outputs' gradients.
# * **After its backward**: when the backward of the *next* unit begins (in the list, the one before it), or
#   at the end of the pass (`queue_callback`). Not when "all gradients are there": a rank that did not use
#   some weight would wait for it, while the others go on to another collective.


# %%
class FlatUnit:
    """Parameters that are gathered together. Each rank keeps its shard; the whole
    exists between calls.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup):
        self.parameters, self.group, self.world_size = list(parameters), group, dist.get_world_size(group)
        self.full = flatten(self.parameters, self.world_size)
        self.num_bytes = self.full.untyped_storage().nbytes()
        own = self.full.chunk(self.world_size)[dist.get_rank(group)].clone()
        master = own.to(torch.promote_types(own.dtype, torch.float32))
        self.shard = nn.Parameter(master, requires_grad=self.parameters[0].requires_grad)
        self.gradient: Tensor | None = None  # flat, of what has come so far
        self.arriving: dist.Work | None = None
        self.gathered = True
        self.free()
        if self.shard.requires_grad:
            for position, p in enumerate(self.parameters):
                p.register_post_accumulate_grad_hook(self._take(position))

    def start_gather(self) -> None:
        """Begin to fetch the weights, if they are not here."""
        if not self.gathered:
            self.gathered = True
            self.full.untyped_storage().resize_(self.num_bytes)
            rounded = self.shard.detach().to(self.full.dtype)
            self.arriving = all_gather(self.full, rounded, self.group, async_op=True)

    def wait(self) -> None:
        """Return when the weights are here."""
        if self.arriving is not None:
            self.arriving.wait()
            self.arriving = None

    def free(self) -> None:
        """Give the memory of the whole weights back."""
        if self.gathered:
            self.wait()
            self.full.untyped_storage().resize_(0)
            self.gathered = False

    def _take(self, position: int):
        """A hook that moves a parameter's gradient to its place in the flat one."""

        def hook(p: nn.Parameter) -> None:
            if p.grad is None:  # of an output that nobody used
                return
            if self.gradient is None:
                self.gradient = self._zeros()
            views(self.gradient, self.parameters)[position].add_(p.grad, alpha=1 / self.world_size)
            p.grad = None

        return hook

    def _zeros(self) -> Tensor:
        return self.shard.new_zeros(self.shard.numel() * self.world_size, requires_grad=False)

    def scatter(self) -> None:
        """Add this rank's part of the mean gradient to `shard.grad`; zeros where this rank has none."""
        whole = self._zeros() if self.gradient is None else self.gradient
        mean = torch.empty_like(self.shard, requires_grad=False)
        reduce_scatter(mean, whole, self.group)
        self.gradient = None
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)


# %% [markdown]
# ### Exercise: fully sharded module
#
# `units` are submodules, in the order forward uses them. Every parameter is in at least one of them. One that
# two units share belongs to the first, and the second needs the first's flat tensor as well. Frozen and
# trained parameters of a unit have flat tensors of their own, so a unit *needs* a list of `FlatUnit`s.
#
# What must hold:
#
# * At most `1 + prefetch` units are whole at a time (two with `prefetch=1`): the one at work and those that
#   come next in the list, also where one is skipped or called again. Where one of these needs a weight that
#   belongs to another unit, that unit may be whole beside them. Nothing is whole after a forward (with
#   gradients or without, also one that raised, be it a `KeyboardInterrupt`, and the next one after that),
#   after backward or after `full_weights`. (No check has a backward that raises.)
# * There are gradients of at most two units, and of those that backward will enter again. Where a forward
#   that no backward followed came before, gradients may stay until the end of the next backward.
# * Three passes a micro-batch: gather, gather, scatter (frozen: two gathers). What is fetched ahead is waited
#   for when its own unit's turn comes, not before.
# * A unit may have no parameters; it is one of those that come next all the same. It may return a tensor
#   that it was given (also by keyword, or in a list), and tensors in lists, tuples and dicts, one in the
#   other, of which some are not used.
# * A unit may be called twice or not at all, and the module twice before one backward; then all ranks do so.
#   For a unit that is not called nothing is scattered, or zeros: the `.grad` of its shards stays None, or is
#   zeros. A unit may be in `eval()` and have gradients all the same.
#
# <details><summary>Hint 1: one function to enter</summary><code>_enter(number, direction)</code>: of all flat
# tensors, free those that neither this unit nor the next one in this direction needs; start gathering the
# others; wait for this unit's own.</details>
# <details><summary>Hint 2: called twice</summary>Count the forward calls of a unit (those whose output
# requires a gradient). Its gradients are complete when backward has left as many.</details>
# <details><summary>Hint 3: the end</summary>In a queued callback: leave the last unit, scatter what backward
# has touched and not scattered, free everything, set the counts to zero.</details>
# <details><summary>Hint 4: a unit that returns its input</summary>Hooks on one tensor run in the order they
# were set: this unit's would come behind that of the unit before. Let its forward hook return a
# <code>clone()</code>.</details>


# %% exercise="08.fully-sharded-module" difficulty=5 minutes=60
class FullyShardedModule(nn.Module):
    """`module`, whose units are whole on a rank only while they are used (stage 3, FSDP)."""

    shards: list[nn.Parameter]  # this rank's shard of everything that is trained, for an optimizer

    def __init__(
        self, module: nn.Module, units: Sequence[nn.Module], group: dist.ProcessGroup, prefetch: int = 1
    ):
        """module: equal on every rank. prefetch: how many units ahead are fetched.

        Raises ValueError, naming the parameter, if one is in no unit.
        """
        super().__init__()
        self.module = module
        self.units = list(units)
        self.prefetch = prefetch
        ### BEGIN SOLUTION
        self.flats: list[FlatUnit] = []
        self.needs: list[list[FlatUnit]] = []  # of each unit
        owner: dict[nn.Parameter, FlatUnit] = {}
        for unit in self.units:
            for trained in (True, False):
                own = [p for p in unit.parameters() if p not in owner and p.requires_grad == trained]
                if own:
                    self.flats.append(FlatUnit(own, group))
                    owner |= dict.fromkeys(own, self.flats[-1])
            self.needs.append(list(dict.fromkeys(owner[p] for p in unit.parameters())))
        homeless = [name for name, p in module.named_parameters() if p not in owner]
        if homeless:
            raise ValueError(f"every parameter must be in one of the units; {homeless[0]} is in none")
        self.shards = [flat.shard for flat in self.flats if flat.shard.requires_grad]
        self.calls = dict.fromkeys(self.flats, 0)  # forward calls that backward has not left yet
        self.touched: list[FlatUnit] = []  # by this backward, and not scattered yet
        self.at_work: int | None = None  # the unit that backward is in
        for number, unit in enumerate(self.units):
            unit.register_forward_pre_hook(lambda unit, args, number=number: self._enter(number, +1))
            unit.register_forward_hook(
                lambda unit, args, kwargs, out, number=number: self._called(number, (args, kwargs), out),
                with_kwargs=True,
            )
        ### END SOLUTION

    def forward(self, *args, **kwargs):
        """What `module` returns."""
        ### BEGIN SOLUTION
        try:
            return self.module(*args, **kwargs)
        finally:
            for flat in self.flats:
                flat.free()

    def _enter(self, number: int, direction: int) -> None:
        ahead = range(number, number + direction * (self.prefetch + 1), direction)
        window = [flat for n in ahead if 0 <= n < len(self.units) for flat in self.needs[n]]
        for flat in self.flats:
            if flat not in window:
                flat.free()
        for flat in window:
            flat.start_gather()
        for flat in self.needs[number]:
            flat.wait()

    def _called(self, number: int, inputs: object, output: object) -> object:
        # hooks on one tensor run in their order: this unit's would come behind that of the unit before
        given = {id(t) for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad}
        output = tree_map(lambda t: t.clone() if id(t) in given else t, output)
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        if tensors:
            for flat in self.needs[number]:
                self.calls[flat] += 1
            torch.autograd.graph.register_multi_grad_hook(
                tensors, lambda gradient: self._enter_backward(number), mode="any"
            )
        return output

    def _enter_backward(self, number: int) -> None:
        if self.at_work is None:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._leave()
        self.at_work = number
        self.touched += [f for f in self.needs[number] if f.shard.requires_grad and f not in self.touched]
        self._enter(number, -1)

    def _leave(self) -> None:
        for flat in self.needs[self.at_work] if self.at_work is not None else ():
            self.calls[flat] -= 1
            if self.calls[flat] <= 0 and flat in self.touched:
                self._scatter(flat)

    def _scatter(self, flat: FlatUnit) -> None:
        self.touched.remove(flat)
        flat.free()
        flat.scatter()

    def _finish(self) -> None:
        self._leave()
        for flat in list(self.touched):
            self._scatter(flat)
        for flat in self.flats:
            flat.free()
        self.calls = dict.fromkeys(self.flats, 0)
        self.at_work = None
        ### END SOLUTION

    def full_weights(self) -> dict[str, Tensor]:
        """All weights, whole, in their own dtype, by the names `module.named_parameters()`
        gives them (a tied one has one): the same on every rank, which all call it.
        """
        ### BEGIN SOLUTION
        names = {p: name for name, p in self.module.named_parameters()}
        found: dict[str, Tensor] = {}
        for flat in self.flats:
            flat.start_gather()
            flat.wait()
            found |= {names[p]: p.detach().clone() for p in flat.parameters}
            flat.free()
        return found
        ### END SOLUTION


# %% [markdown]
# How many bytes will a rank hold at most? Six units of 257 KiB, fp32, plain SGD, four ranks: weights and
# gradients at rest, and your `working`. Write a number of **units** (257 KiB each), then look.

# %% predict="peak-of-stage-3"
your_peak_in_units = ...


# %%
def stage_3_step(group: dist.ProcessGroup):
    model = small_model(256, 6)
    sharded = FullyShardedModule(model, list(model), group)
    optimizer = torch.optim.SGD(sharded.shards, lr=0.1)

    def run() -> None:
        sharded(own_rows(256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


histories["stage 3"] = labkit.launch(watched, stage_3_step, ranks=4, backend="gloo", record=False).results[0]
unit_bytes = 4 * (256 * 256 + 256)
display(
    prediction("peak, in units", your_peak_in_units, max(histories["stage 3"]) / unit_bytes),
    draw_over_a_step(
        histories,
        {
            name: sum(rank_bytes(six_units, fp32_sgd, stage, 4).values())
            for name, stage in (("data parallel", 0), ("stage 2", 2), ("stage 3", 3))
        },
    ),
)

# %% [markdown]
# ### Four moments
#
# Now the three stages side by side, with Adam in fp32 on four ranks: before a step, between forward and
# backward, at the peak of backward, and after backward, before the optimizer steps. Predict what a rank
# holds, in **units** again (the model's weights are six of them). Which of the four parts of `rank_bytes` is
# there at each moment?

# %% predict="four-moments"
your_units = {1: [..., ..., ..., ...], 2: [..., ..., ..., ...], 3: [..., ..., ..., ...]}


# %%
def with_optimizer(optimizer, after=lambda: None):
    def run() -> None:
        optimizer.step()
        optimizer.zero_grad()
        after()

    return run


def stage_with_adam(stage: int, group: dist.ProcessGroup):
    """A model in this stage, and what ends a step of it."""
    model, adam = small_model(256, 6), torch.optim.Adam
    if stage == 1:
        return model, with_optimizer(ShardedOptimizer(model.parameters(), adam, group))
    if stage == 2:
        gradients = ShardedGradients(model, group, unit_bytes)
        return model, with_optimizer(adam(gradients.shards), gradients.gather_weights)
    sharded = FullyShardedModule(model, list(model), group)
    return sharded, with_optimizer(adam(sharded.shards))


def four_moments(stage: int, group: dist.ProcessGroup) -> list[int]:
    """Bytes of this process's tensors before a step, after forward, at the peak of
    backward, after it.
    """
    before = bytes_of_process()
    model, end_step = stage_with_adam(stage, group)
    x = own_rows(256)
    model(x).square().mean().backward()
    end_step()
    at_rest = settled_bytes_of_process()
    loss = model(x).square().mean()
    after_forward = settled_bytes_of_process()
    live = LiveBytes()
    live.count(tensors_of_process())
    with live:
        loss.backward()
    return [held - before for held in (at_rest, after_forward, live.peak, settled_bytes_of_process())]


moments = ("before a step", "after forward", "peak of backward", "after backward")
rows = []
for stage in (1, 2, 3):
    parts = rank_bytes(six_units, RECIPES["fp32 AdamW"], stage, 4)
    rest = parts["weights"] + parts["optimizer"]
    predicted = [rest, rest, sum(parts.values()), rest + parts["gradients"]]
    measured = labkit.launch(four_moments, stage, ranks=4, backend="gloo", record=False).results[0]
    for guess, moment, *both in zip(your_units[stage], moments, predicted, measured, strict=True):
        rows.append([f"stage {stage}, {moment}", guess, *(held / unit_bytes for held in both)])
Table(["", "your guess", "rank_bytes", "measured"], rows, caption="Units (257 KiB) that rank 0 holds")

# %% [markdown] reveals="four-moments"
# Stage 1 steps a shard and still ends backward with all gradients. In stage 2 they leave, and the peak is one
# bucket above what stays. Stage 3 is the only one in which a rank at rest has less than the model. Measured
# is 0.1 above the formula after forward (activations), and at the peak by a unit in stage 2 and half of one
# in stage 3 (the gradient that autograd hands over, and gloo's copy of what it scatters).

# %% [markdown]
# And the timeline. For this picture each layer also sleeps 15 ms, which stands for a kernel, so that there is
# something to hide behind. The gathers below the bars are those that were on their way while a layer worked.


# %%
target("08-prefetch")


# %%
class SlowLayer(nn.Module):
    """A linear layer that takes 15 ms and says so in the record."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with labkit.span("forward", kind="forward"):
            time.sleep(0.015)
            return torch.tanh(self.linear(x))


def timed_step(prefetch: int, group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(SlowLayer(512) for _ in range(4)))
    sharded = FullyShardedModule(model, list(model), group, prefetch)
    sharded(torch.randn(8, 512)).square().mean().backward()


draw_timeline(labkit.launch(timed_step, 1, ranks=2, backend="gloo"))

# %% check="08.fully-sharded-module"
# Numbers: outputs, and weights after several micro-batches and steps. Mechanism: bytes held at rest
# and at most, the passes and their order. Robustness: tied, frozen, unused units, one called twice,
# several inputs and outputs, a unit whose weights only some ranks use, one rank, another group.
labkit.check("08.fully-sharded-module", FullyShardedModule)

# %% [markdown]
# ## A norm over shards
#
# Gradients are clipped by their *global* norm, $\lVert g \rVert = \sqrt{\sum g_i^2}$ over all parameters. No
# rank has all of them. Squares add up, norms do not: each rank sums the squares of its shards, one all-reduce
# of one number completes the sum, and *then* comes the root. Two traps:
#
# * Parameters that every rank holds whole (a small norm layer that was not sharded) count once, not $d$
#   times.
# * Padding is not a gradient. Here it may hold anything: the first `owned[i]` elements of a shard count,
#   and a rank's shard may be padding only.

# %% [markdown]
# ### Exercise: global gradient norm
#
# Scale every gradient by $\min(1,\ \mathrm{max\_norm} / (\lVert g \rVert + 10^{-6}))$, in place (a `.grad`
# may be a view of a flat tensor, which is clipped with it), and return the norm before scaling, the same
# scalar on every rank, in float32 or float64. Sum in float64. Where a gradient is NaN, the norm is too.
# `max_norm` is 0 or more.
#
# * **Which gradients.** A parameter may have none (on this rank), and then has none afterwards; a frozen one
#   may have one, which counts. There may be no shards, or no replicated ones. Replicated ones have any shape,
#   and their `.grad` may be transposed. What becomes of the padding does not matter.
# * **Calls.** One all-reduce, also where there are no shards.


# %% exercise="08.global-grad-norm" difficulty=2 minutes=8
def clip_grad_norm(
    shards: Sequence[nn.Parameter],
    owned: Sequence[int],
    replicated: Sequence[nn.Parameter],
    max_norm: float,
    group: dist.ProcessGroup,
) -> Tensor:
    """Clip by the global norm; return it as it was before, a scalar.

    shards: this rank's, flat, each with `.grad` or None. owned: how many elements of
    each are not padding.
    replicated: whole on every rank, with the same gradients, or None on every rank.
    """
    ### BEGIN SOLUTION
    device = next((p.device for p in [*shards, *replicated]), torch.device("cpu"))
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for shard, count in zip(shards, owned, strict=True):
        if shard.grad is not None:
            squares += shard.grad[:count].double().square().sum()
    dist.all_reduce(squares, group=group)
    for p in replicated:
        if p.grad is not None:
            squares += p.grad.double().square().sum()
    norm = squares.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in [*shards, *replicated]:
        if p.grad is not None:
            p.grad.mul_(factor)
    return norm
    ### END SOLUTION


# %% check="08.global-grad-norm"
labkit.check("08.global-grad-norm", clip_grad_norm)

# %% [markdown]
# ## Saving in shards
#
# Nobody has the whole state, so everybody writes a part. And the next job may have another number of ranks,
# whose shards begin elsewhere. So a checkpoint must be readable *by range*: cut off the padding, and the
# parts laid end to end are the flat tensor, whatever $d$ was.
#
# A job can die while it saves, and a checkpoint of which one part is missing must never be taken for a whole
# one. The usual way: the parts first, then, when **all** ranks have written theirs, one small file that says
# "whole", written under another name and renamed, as a rename happens at once or not at all.
#
# Written is not yet on the disk: the kernel keeps what a program wrote in memory for a while, and a node that
# loses power in between has the marker, perhaps, and not the parts. `on_disk(path)` of the setup returns when
# the disk has the file's bytes (`fsync`). Saving takes longer with it, and is not done without it.

# %% [markdown]
# ### Exercise: sharded checkpoint
#
# * **Parts** are safetensors files (`save_file`, `safetensors.safe_open`), never pickles, which run code when
#   they are read. Shards have any dtype that safetensors can write. A tensor in `shards` has
#   $\lceil \text{total}/d \rceil$ elements on every rank, with padding at the end of the flat tensor.
#   `load_shards` returns such shards for *its* number of ranks, padding zero. No two of the shards that are
#   handed over share memory. Nor do two that are loaded: each can be changed or given up by itself. `extra`
#   is small and the same on every rank: step counts, the learning rate. Names of tensors and keys of `extra`
#   may be long and have dots, spaces and letters of any kind; a key may be `step` or `ranks`.
# * **The newest** whole checkpoint is loaded: the one of the highest step, and where a step was saved again,
#   its last one. It must be told by names or contents: a file that was copied has another time. Older
#   checkpoints stay, so nobody deletes a part of a whole checkpoint of another step.
# * **The disk is shared**, but what another rank wrote may be seen late. So in saving each rank makes the
#   folder itself and works on its own files alone: none looks for another's or renames what another wrote. (A
#   file that the rank of the same number wrote in an earlier job is its own: it may replace or delete that.)
#   Ranks may tell each other names and counts, not what is in the tensors, and nothing is written outside of
#   `directory`. In the checks the ranks' files come together when all have saved.
# * **A step may be saved again**, by a job that was resumed, perhaps on fewer ranks, and what is there of it
#   may be half written: parts of the two saves must never be read as one. If the second one fails, the first
#   may be lost with it, but no other step: loading then gives the step before it, never an error.
# * **A rank that cannot write** raises; the others may raise too, or wait until their group gives up.
# * **On the disk**: what a rank wrote is there when `save_shards` returns on it. The parts, and the bytes of
#   the file that says "whole", are there before a rename gives that file, or a folder of this rank's own, the
#   name that says so: the checks cut the power at that moment. They keep names, so no folder needs an
#   `on_disk`.
# * **What to use.** `Path` does all that is needed, and its `rename` replaces a file. Code that imports `os`
#   costs nothing, but a person will look at it. A person also looks at `getattr(torch, name)`, and until then
#   its points wait: to make a dtype of its name, look it up in a dict of your own, or let an empty tensor in
#   a part tell.
#
# <details><summary>Hint</summary><code>safetensors.safe_open(path, "pt").get_slice(name)</code> has
# <code>get_shape()</code>, and reads from the file only what is between the brackets of
# <code>[start:stop]</code>.</details>


# %% exercise="08.sharded-checkpoint" difficulty=3 minutes=35
def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    """Write a checkpoint of `step` into `directory`, which all ranks share; all ranks call it.

    directory: made if it is not there. shards: name -> this rank's shard, 1-d, of any dtype.
    totals: name -> elements of the flat tensor without padding, perhaps fewer than ranks, or none.
    extra: what JSON can hold. Raises whatever kept this rank from writing: then it is
    no checkpoint.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    folder = Path(directory) / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        (folder / "whole.json").unlink(missing_ok=True)  # of an earlier try
    dist.barrier(group)
    own = {}
    for name, shard in shards.items():
        left = max(0, totals[name] - rank * shard.numel())
        own[name] = shard.detach()[:left].cpu().contiguous()
    save_file(own, folder / f"part-{rank}.safetensors")
    on_disk(folder / f"part-{rank}.safetensors")
    dist.barrier(group)
    if rank == 0:
        whole = {"ranks": world_size, "totals": dict(totals), "extra": dict(extra)}
        (folder / "whole.tmp").write_text(json.dumps(whole))
        on_disk(folder / "whole.tmp")
        (folder / "whole.tmp").replace(folder / "whole.json")
    dist.barrier(group)
    ### END SOLUTION


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    """(step, shards, extra) of the newest whole checkpoint, cut for the ranks of `group`.

    Raises FileNotFoundError, naming the directory, if there is none.
    """
    ### BEGIN SOLUTION
    complete = sorted(Path(directory).glob("step-*/whole.json"), key=step_of)
    if not complete:
        raise FileNotFoundError(f"no whole checkpoint in {directory}")
    folder, whole = complete[-1].parent, json.loads(complete[-1].read_text())
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parts = [safetensors.safe_open(folder / f"part-{n}.safetensors", "pt") for n in range(whole["ranks"])]
    shards = {}
    for name, total in whole["totals"].items():
        size = -(-total // world_size)
        shards[name] = read_range(parts, name, rank * size, size)
    return step_of(complete[-1]), shards, whole["extra"]


def step_of(marker: Path) -> int:
    """The step that a marker's folder is named after: as text, 9 would come behind 10."""
    return int(marker.parent.name.removeprefix("step-"))


def read_range(parts: Sequence, name: str, start: int, size: int) -> Tensor:
    """`size` elements from `start` on of the tensor whose parts are laid end to end;
    zeros behind its end.
    """
    found, begin = [], 0
    for part in parts:
        piece = part.get_slice(name)
        (length,) = piece.get_shape()
        low, high = max(start - begin, 0), min(start + size - begin, length)
        if low < high or not found:
            found.append(piece[min(low, length) : max(high, min(low, length))])
        begin += length
    read = torch.cat(found)
    return torch.cat([read, read.new_zeros(size - read.numel())])
    ### END SOLUTION


# %% check="08.sharded-checkpoint"
# Numbers: every range, on other numbers of ranks, dtypes kept. Mechanism: each rank writes its own
# part only, safetensors only, without padding. Robustness: a disk that is full on one rank while
# it saves, a rank that is killed while it saves, a power failure, saving again.
# The last property trains with your own module, norm, layout and checkpoint: saved on 4
# ranks, resumed on 3.
labkit.check("08.sharded-checkpoint", save_shards, load_shards)

# %% [markdown]
# ## What PyTorch ships
#
# Stage 1 is `ZeroRedundancyOptimizer`, stages 2 and 3 are `fully_shard` (FSDP2), and
# `torch.distributed.checkpoint` saves in shards. One difference: FSDP2 has no flat tensor. It cuts each
# parameter by its rows, so that a shard still has a name, a shape and an option of its own, and pays for it
# with copies in and out of the tensor that is gathered. The same job, three steps of SGD on four ranks:


# %%
def losses_of(model: nn.Module, step_optimizer) -> list[float]:
    losses = []
    for step in range(3):
        loss = model(own_rows(seed=step)).square().mean()
        loss.backward()
        step_optimizer()
        losses.append(loss.item())
    return losses


def our_stage_1(group: dist.ProcessGroup) -> list[float]:
    model = small_model()
    return losses_of(
        model, with_optimizer(ShardedOptimizer(model.parameters(), torch.optim.SGD, group, lr=0.5))
    )


def torchs_stage_1(group: dist.ProcessGroup) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(small_model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=0.5)
    return losses_of(model, with_optimizer(optimizer))


def our_stage_2(group: dist.ProcessGroup) -> list[float]:
    model = small_model()
    sharded = ShardedGradients(model, group)
    optimizer = torch.optim.SGD(sharded.shards, lr=0.5)
    return losses_of(model, with_optimizer(optimizer, sharded.gather_weights))


def our_stage_3(group: dist.ProcessGroup) -> list[float]:
    model = small_model()
    sharded = FullyShardedModule(model, list(model), group)
    return losses_of(sharded, with_optimizer(torch.optim.SGD(sharded.shards, lr=0.5)))


def torchs_stage_3(group: dist.ProcessGroup) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = small_model(), init_device_mesh("cpu", (dist.get_world_size(group),))
    for unit in model:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return losses_of(model, with_optimizer(torch.optim.SGD(model.parameters(), lr=0.5)))


same_job = {
    "yours, stage 1": our_stage_1,
    "ZeroRedundancyOptimizer under DDP": torchs_stage_1,
    "yours, stage 2": our_stage_2,
    "yours, stage 3": our_stage_3,
    "fully_shard": torchs_stage_3,
}
jobs = {name: labkit.launch(run, ranks=4, backend="gloo") for name, run in same_job.items()}


def passes_of(job: labkit.Job, op: str) -> int:
    return sum(1 for c in job.collectives if c.rank == 0 and c.op == op)


Table(
    ["", "loss 1", "loss 2", "loss 3", "all-gathers", "reduce-scatters", "all-reduces", "broadcasts"],
    [
        [name, *(f"{loss:.6f}" for loss in job.results[0])]
        + [passes_of(job, op) for op in ("all_gather", "reduce_scatter", "all_reduce", "broadcast")]
        for name, job in jobs.items()
    ],
    caption="Losses of rank 0, and what it took part in",
)

# %% [markdown]
# The same losses, to the last digit shown. But DDP all-reduces whole gradients, $2\Psi$, and its optimizer
# broadcasts the weights, another $\Psi$, where yours sends $2\Psi$ in all. And the checkpoint, with
# `torch.distributed.checkpoint` on the same tensor:


# %%
def both_checkpoints(directory: str, group: dist.ProcessGroup) -> dict[str, object]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    flat = torch.arange(10_000, dtype=torch.float32)
    save_shards(f"{directory}/ours", 1, {"w": flat.chunk(world_size)[rank]}, {"w": 10_000}, {}, group)
    dist.barrier(group)  # a rank may return before another has said that all is there
    _, ours, _ = load_shards(f"{directory}/ours", group)
    mesh = init_device_mesh("cpu", (world_size,))
    dcp.save({"w": distribute_tensor(flat, mesh, [Shard(0)])}, checkpoint_id=f"{directory}/theirs")
    theirs = {"w": distribute_tensor(torch.zeros(10_000), mesh, [Shard(0)])}
    dcp.load(theirs, checkpoint_id=f"{directory}/theirs")
    sizes = {
        which: sum(f.stat().st_size for f in Path(directory, which).rglob("*") if f.is_file())
        for which in ("ours", "theirs")
    }
    return {**sizes, "equal": torch.equal(ours["w"], theirs["w"].to_local())}


with tempfile.TemporaryDirectory() as directory:
    found = labkit.launch(both_checkpoints, directory, ranks=4, backend="gloo").results[0]
Table(
    ["", "bytes on disk", "the same shard back"],
    [
        ["yours", binary_text(found["ours"]), found["equal"]],
        ["torch.distributed.checkpoint", binary_text(found["theirs"]), found["equal"]],
    ],
)

# %% [markdown]
# ## When is which stage worth it?
#
# A model of 8 billion parameters with Adam in mixed precision on 8 GPUs, and where each byte of it sits
# (activations left out):

# %%
eight_billion = [250_000_000] * 32
draw_memory({f"stage {stage}": rank_bytes(eight_billion, mixed_adamw, stage, 8) for stage in (0, 1, 2, 3)})

# %% [markdown]
# Stage 3 saves most. Is it the best? First stage 1 against none, measured: the authors of the Ultra-Scale
# Playbook ran 878 configurations of a 1.34B and an 8.86B model with tensor (TP) and pipeline parallelism (PP)
# on nodes of 8 H100, sequences of 4096 tokens and about a million tokens a step. 85 pairs that finished
# differ in the stage alone: with stage 1 a GPU uses 0.72 times the memory (median) and trains at 1.01 times
# the speed. Where a replica has many ranks and few micro-batches, stage 1 costs speed. An example is the
# 8.86B model on 16 nodes with d = 16, TP 8 and 2 micro-batches: each GPU uses 66.9 GB and trains on 6,028
# tokens a second without, 51.9 GB and 5,067 with stage 1.
#
# The table has the fastest run of each size, by tokens a second on each GPU, and its memory. (Not by MFU: the
# data count the tied head of the 1.34B model twice in pipelines, where MFU comes out 17% too high. "GB" is as
# printed: nanotron divides bytes by $1024^3$ before it prints that, so these are most likely GiB.)
#
# | nodes | 1.34B model | 8.86B model |
# |---|---|---|
# | 1 | stage **0**, d = 8, 16 micro-batches: 40,150, 50 GB | stage **1**, d = 2, PP 4, 128: 7,503, 63 GB |
# | 4 | stage **1**, d = 32, 4: 36,990, 35 GB | stage **1**, d = 16, PP 2, 16: 7,186, 61 GB |
# | 16 | stage **0**, d = 64, TP 2, 1: 30,186, 39 GB | stage **0**, d = 16, TP 8, 2: 6,028, 67 GB |
# | 64 | stage **1**, d = 128, TP 2, PP 2, 1: 4,603, 8 GB | stage **0**, d = 128, TP 4, 1: 3,101, 58 GB |
#
# Stages 2 and 3 were not among these runs, so what they would have cost is arithmetic: your `step_traffic`
# over the bandwidth that the same authors measured. One pass sends 8.86 billion numbers in bf16, be they
# weights or gradients (yours, in fp32, would count twice). Stage 1 sends two passes in a step. Stage 3 sends
# three for each micro-batch, and hides them as long as the micro-batch computes for longer.

# %%
all_gather_gbs = {1: 249.8, 4: 119.0, 16: 55.0, 64: 11.0}  # GB/s of an all-gather, by nodes of 8
parameters, compute = 8_860_000_000, 4096 / 7503  # seconds of a sequence, as fast as the run on one node
rows = []
for nodes, gbs in all_gather_gbs.items():
    sent = {stage: 2 * step_traffic([parameters], stage, 8 * nodes) / (gbs * 1e9) for stage in (1, 3)}
    rows.append([nodes, 8 * nodes, sent[1], sent[3], compute, f"{sent[3] / compute:.1f} sequences"])
Table(
    ["nodes", "d", "stage 1, a step", "stage 3, a micro-batch", "compute, a sequence", "hidden by"],
    rows,
    caption="Seconds of sending and of computing: 8.86 billion parameters, data parallel alone",
)

# %% [markdown]
# On one node a micro-batch of one sequence hides what stage 3 sends. On 16 it takes two, and on 64 nine: more
# than memory has room for, and 4,608 sequences a step on all ranks. Stage 1 sends its two passes once a
# step, however many micro-batches there are: where its state fits, beside tensor and pipeline parallelism,
# it wins. Stage 3 is for what does not fit otherwise, or where nobody wants to cut a model by hand: it asks
# nothing of the model but a list of units. Lesson 09 makes that choice by arithmetic.

# %% [markdown]
# ## Where this leaves you
#
# You built the three stages of ZeRO. An optimizer whose state is spread over the ranks, without a byte
# more on the wire than plain data parallelism; gradients that leave as they come; weights that exist
# where and when they are used. You know what a flat layout makes easy (equal shards, few collectives) and
# what it makes hard (options, names, norms, checkpoints), and how to save what nobody has whole.
#
# **Think about**
#
# 1. Your reduce-scatters block backward until they are done. Start them with `async_op=True` and wait one
#    unit later: what is the new peak, and when does it pay?
# 2. The last unit is freed at the end of forward and gathered again at once. Which collective can be saved,
#    and what does `reshard_after_forward=False` cost in bytes?
# 3. Activation checkpointing (lesson 05) runs a unit's forward again in backward. What would your hooks do?
#
# **To read**
#
# - Rajbhandari et al., *ZeRO: memory optimizations toward training trillion parameter models* (SC 2020, arXiv
#   1910.02054), sections 5 and 7: the stages and their traffic.
# - Zhao et al., *PyTorch FSDP: experiences on scaling fully sharded data parallel* (VLDB 2023, arXiv
#   2304.11277), sections 3 and 4: flat parameters, prefetching, rate limits.
# - Tazi et al., *The Ultra-Scale Playbook: training LLMs on GPU clusters* (2025,
#   huggingface.co/spaces/nanotron/ultrascale-playbook), the chapter on ZeRO, and its data: the configurations
#   (`benchmarks/data/measured_configurations.csv` in this course's repository) and the bandwidths above.

# %% scoreboard=true
labkit.scoreboard("08")
