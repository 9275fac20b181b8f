# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "07", title: "The tensor-parallel transformer: attention, embeddings, loss", minutes: 180}
# ---

# %% [markdown]
# # The tensor-parallel transformer: attention, embeddings, loss
#
# Lesson 06 cut one MLP. A model has much more: attention, a table of token vectors, a loss over a hundred
# thousand classes, norms, dropout, residuals. **Which of these can be cut over $t$ ranks, what must the
# ranks tell each other, and what stays whole on every one of them?**
#
# **You need** lesson 06: the operators $f$ and $g$, and the cuts by columns and by rows. **You will have
# built** a GPT that is loaded from an ordinary one, trains on any number of ranks that divides its heads
# with the same losses and the same weights, and goes back to an ordinary one. About 180 minutes: two
# sittings, the second from *Sequence parallelism: cut the grey boxes too* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import labkit
from labkit.model import Attention, Block, ModelConfig, Transformer, explicit_attention, gpt
from labkit.record.memory import measure_activations
from labkit.show import Table, draw_traffic, prediction
from labkit.show.sharding import draw_block, draw_holdings, draw_losses, draw_memory, draw_sent
from labkit.show.sharding import rows_held, sent_bytes
from labkit.show.target import target
from labkit.theory.units import binary_text, decimal_text

# %load_ext labkit

# %% [markdown]
# ## Where we are going
#
# One block of a transformer, one lane a rank. Colour: cut, every rank has another part. Grey: whole, every
# rank has (and computes) the same. The green walls are the only places where ranks meet. Below each box
# stands the shape of what a rank has there; the letters are explained below.

# %%
draw_block(ranks=4)

# %% [markdown]
# The grey boxes are the price of this plan: norms, dropout and residuals are done $t$ times over, and what
# they keep for backward is kept $t$ times. In the second half of the lesson you will cut these too, along
# the sequence, with the same amount of communication.
#
# Letters for the lesson: $b$ sequences of $s$ tokens, hidden size $h$, $a$ heads of size $d$, $k$ key-value
# heads, $V$ tokens in the vocabulary, $L$ blocks, $t$ ranks.

# %% [markdown]
# ## What you bring from lesson 06
#
# Your $f$ and $g$, and your two layers as functions of one form. You can go on with your own: lesson 06's
# `CopyToTensorParallel.apply` is `copy_to_ranks`, and `ReduceFromTensorParallel.apply` is `sum_over_ranks`.
# Or take those of the library:
#
# | | takes | gives |
# |---|---|---|
# | $f$: `copy_to_ranks(x, group)` | what is whole and enters a cut region | the same |
# | $g$: `sum_over_ranks(partial, group)` | partial sums that leave a cut region | their sum over the ranks |
# | `column_parallel(x, weight, bias, group)` | $x$ whole, [..., in] | own features, [..., out / t] |
# | `row_parallel(x, weight, bias, group)` | own features, [..., in / t] | the whole output, [..., out] |
#
# The column-parallel weight is $[\text{out}/t, \text{in}]$, its bias $[\text{out}/t]$. The row-parallel
# weight is $[\text{out}, \text{in}/t]$, and its bias is whole: it is added once, behind the sum.
#
# <details><summary>What is compared, in all exercises of this lesson</summary>
#
# * **Numbers**, on every rank of the group, with what the whole module, or stock PyTorch, gives in one
#   process: shape and dtype the same, and no number off by more than $10^{-9}$ of the largest one (of 1, if
#   that is more) in float64, $10^{-4}$ in float32, $4 \cdot 10^{-3}$ in float16, $2 \cdot 10^{-2}$ in
#   bfloat16. Weights are compared after two steps of plain SGD as well.
# * **Calls**: which collectives a rank takes part in during forward and during backward, and the bytes of
#   its own tensor in each. In which order, and whether `async_op` is used, is your affair. A group of one
#   rank may call them or not.
# * **Tensors**: what you are given keeps its values, and may lie in memory in any order, another one on each
#   rank: inputs, gradients, and matrices to be cut. What you return keeps its values when you are called
#   again. The next call may have another size, and a rank may have zeros. Inputs need not ask for a gradient,
#   and using them does not make them ask. `torch.no_grad()` changes no number and no call; nor does `eval()`,
#   except through dropout. A graph that is kept (`retain_graph=True`) may go backward twice.
# * **Memory**: when a call's backward is over, or its result was let go, a module keeps no tensor of it.
#   `GatherSequence` and `ReduceScatterSequence` keep none for their backward either.
# * **Parameters** have the names and shapes of the stubs, in memory of their own: a rank has its blocks and
#   64 bytes more at most. Attributes that are no tensors are your affair. The whole module that a part is
#   made of keeps its gradients, its modes, and which of its parameters are trained. Making a part does not
#   seed torch's generator. Whether a part of a frozen one is frozen is not asked. Parts of several groups
#   work in one process. `to_full` may give views of the parameters.
# * **Refusals**: the error asked for, on every rank. Where the stub says "naming both", its text has both
#   numbers, the size and the number of ranks.
#
# Ranks come to a call at different times, and `group` need not be all ranks of the job.
# </details>

# %% [markdown]
# Do you remember what $f$ and $g$ do to a number and to a gradient? Each of four ranks sends $r + 1$ through
# both, and gets the gradient $10^r$ from behind:

# %%
from labkit.tensor_parallel import column_parallel, copy_to_ranks, row_parallel, sum_over_ranks


def through_f_and_g(group: dist.ProcessGroup) -> list[float]:
    """What comes out of f and the gradient in front of it, then the same for g."""
    rank, line = dist.get_rank(group), []
    for operator in (copy_to_ranks, sum_over_ranks):
        x = torch.tensor(rank + 1.0, device=device(), requires_grad=True)
        out = operator(x, group)
        out.backward(torch.tensor(10.0**rank, device=device()))
        line += [out.item(), x.grad.item()]
    return line


def device() -> torch.device:
    """Where this rank's tensors live: its own GPU under NCCL, the CPU under gloo."""
    nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


Table(
    ["", "x", "f(x)", "gradient of x", "g(x)", "gradient of x"],
    [[f"rank {r}", r + 1, *line] for r, line in enumerate(labkit.launch(through_f_and_g, ranks=4).results)],
)

# %% [markdown]
# Everything in this lesson starts from a whole model and can go back to one. Two helpers cut and join
# tensors; you will use both a lot.


# %%
Product = Callable[[Tensor, Tensor, Tensor | None, dist.ProcessGroup], Tensor]  # as row_parallel


def block_of(tensor: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's block of `tensor`, cut along `dim`, in its own memory. ValueError if
    it does not divide.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if tensor.shape[dim] % size:
        raise ValueError(f"dim {dim} of {list(tensor.shape)} does not divide among {size} ranks")
    return tensor.detach().chunk(size, dim)[rank].clone(memory_format=torch.contiguous_format)


def joined(block: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """The blocks of all ranks, joined along `dim` in rank order. No gradient flows."""
    block = block.detach().contiguous()
    blocks = block.new_empty(dist.get_world_size(group), *block.shape)
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # two names, by release
    call(blocks.flatten(0, 1), block, group=group)
    return torch.cat(tuple(blocks), dim)


def parameter(tensor: Tensor | None) -> nn.Parameter | None:
    """A copy of `tensor` as a parameter; None stays None."""
    return None if tensor is None else nn.Parameter(tensor.detach().clone())


# %% [markdown]
# ## Attention is cut by heads
#
# Each head works alone: it has its own queries, keys and values, and its own scores. So a rank takes $a/t$
# heads and nothing has to be sent while they attend. The projections to queries, keys and values are cut by
# **columns** (their output features are the heads), the output projection by **rows** (its input features
# are the heads): exactly the MLP of lesson 06, with attention in place of GeLU (Shoeybi et al. 2019,
# section 3).
#
# The three projections read the same $x$. Put below each other, *packed*, they are one matrix and one
# product. But mind the order. Packed in one process the rows are all queries, then all keys, then all
# values. **If you cut that packed matrix into 3 equal pieces for 3 ranks, what does rank 0 get?** Write
# `"its heads"` or `"all queries"`.

# %% predict="packed-in-one-piece"
your_guess = ...

# %%
rows = ["query"] * 4 + ["key"] * 4 + ["value"] * 4  # of the packed matrix of 4 heads of size 1
prediction("rows of rank 0, cut in one piece", your_guess, ", ".join(rows[: len(rows) // 3]), "counted")

# %% [markdown] reveals="packed-in-one-piece"
# All queries, and no key or value to go with them. So cut each of the three first, and pack what is yours.

# %% [markdown]
# **Grouped-query attention** has fewer key-value heads than heads: $k < a$, and $a/k$ neighbouring query
# heads share one. Cut in blocks, a rank has $a/t$ query heads and $k/t$ key-value heads, and those belong
# together, as long as $t$ divides $k$. Llama 3 8B has $a = 32$, $k = 8$: at $t = 8$, how many key-value
# heads does a rank hold, and what share of the attention's parameters ($h = 4096$)?

# %% predict="grouped-query"
your_key_value_heads = ...
your_share = ...

# %% reveals="grouped-query"
h, a, k, d, t = 4096, 32, 8, 128, 8
of_one_rank = (a + 2 * k) // t * d * h + h * (a // t) * d
of_all = (a + 2 * k) * d * h + h * a * d
Table(
    ["Llama 3 8B, t = 8", "your guess", "counted"],
    [
        ["key-value heads of a rank", your_key_value_heads, k // t],
        ["share of the parameters", your_share, of_one_rank / of_all],
    ],
)

# %% [markdown]
# With $t = 16$ there would be half a key-value head for each rank. Some libraries then keep copies of a
# head on several ranks and add the copies' gradients. We refuse, with the reason: **key-value heads must
# divide among the ranks**.

# %% [markdown]
# ### Exercise: tensor-parallel attention
#
# Cut a whole attention, compute with the rank's heads, and give the whole back. A rank does a $t$-th of the
# matrix products. Positions are in x already, so queries and keys are not rotated here.
#
# * **In front and behind** stand `enter` and `leave`, two functions like `column_parallel` and `row_parallel`
#   that are handed to you. Later you will put others in their place, and so does the check. Another `enter`
#   may return more tokens than x has, so take b and s from what it returns.
# * **`attend(q, k, v, dropout)`** takes the [b, heads, s, d] of this rank's query, key and value heads and
#   returns [b, query heads, s, d]. It is called once in a forward, with the config's dropout in training,
#   under `no_grad` too, and 0.0 after `eval()`.
# * **Fewer key-value heads** than query heads stay as few: `attend` knows which belong together.
#
# <details><summary>Hint 1: from [b, s, heads d] to [b, heads, s, d]</summary>
# <code>x.unflatten(-1, (-1, d)).transpose(1, 2)</code>: the heads are the outer of the two, the d numbers of
# one head stand side by side.</details>
# <details><summary>Hint 2: three parts</summary><code>heads.split(self.own_heads(), dim=1)</code>: queries,
# keys and values do not have equally many heads.</details>
# <details><summary>Hint 3: back to a whole one</summary>A rank's packed rows are its queries, keys, values.
# Split first, then join each of the three over the ranks.</details>


# %% exercise="07.tensor-parallel-attention" difficulty=3 minutes=15
class TensorParallelAttention(nn.Module):
    """Causal self-attention whose heads are divided among the ranks of a group."""

    def __init__(
        self,
        config: ModelConfig,
        attend: Callable[[Tensor, Tensor, Tensor, float], Tensor],
        qkv: tuple[Tensor, Tensor | None],
        output: tuple[Tensor, Tensor | None],
        group: dist.ProcessGroup,
        enter: Product = column_parallel,
        leave: Product = row_parallel,
    ):
        """a, k, d: heads, key-value heads, head size.

        qkv: weight [(a + 2k) d / t, h] and bias of this rank's queries, keys, values,
        one below the other.
        output: weight [h, a d / t], and the whole bias, [h].
        """
        super().__init__()
        self.config, self.attend, self.group = config, attend, group
        self.enter, self.leave = enter, leave
        self.qkv_weight, self.qkv_bias = map(parameter, qkv)
        self.output_weight, self.output_bias = map(parameter, output)

    @classmethod
    def from_attention(
        cls,
        attention: nn.Module,
        group: dist.ProcessGroup,
        enter: Product = column_parallel,
        leave: Product = row_parallel,
    ) -> "TensorParallelAttention":
        """This rank's part of a whole attention, which is left alone and of which
        nothing else is kept.

        attention: has nn.Linear `query`, `key`, `value`, `output`, and `config` and `attend`. Its
            training mode is not copied: train() and eval() are called on the part.
        Raises ValueError, naming both numbers, if heads or key-value heads do not
        divide among the ranks.
        """
        ### BEGIN SOLUTION
        config, size = attention.config, dist.get_world_size(group)
        for what, heads in (("heads", config.num_heads), ("key-value heads", config.num_kv_heads)):
            if heads % size:
                raise ValueError(f"{heads} {what} do not divide among {size} ranks")
        projections = [attention.query, attention.key, attention.value]
        weight = torch.cat([block_of(part.weight, 0, group) for part in projections])
        bias = None
        if attention.query.bias is not None:
            bias = torch.cat([block_of(part.bias, 0, group) for part in projections])
        output = block_of(attention.output.weight, 1, group), attention.output.bias
        return cls(config, attention.attend, (weight, bias), output, group, enter, leave)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: [b, s, h], the same on every rank. Returns [b, s, h], the same on every rank."""
        ### BEGIN SOLUTION
        packed = self.enter(x, self.qkv_weight, self.qkv_bias, self.group)
        heads = packed.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)
        q, k, v = heads.split(self.own_heads(), dim=1)
        out = self.attend(q, k, v, self.config.dropout if self.training else 0.0)
        out = out.transpose(1, 2).flatten(2)
        return self.leave(out, self.output_weight, self.output_bias, self.group)
        ### END SOLUTION

    def own_heads(self) -> list[int]:
        """How many query, key and value heads this rank has."""
        size, config = dist.get_world_size(self.group), self.config
        return [n // size for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole attention (query.weight, ...), on every rank."""
        ### BEGIN SOLUTION
        full = {"output.weight": joined(self.output_weight, 1, self.group)}
        if self.output_bias is not None:
            full["output.bias"] = self.output_bias.detach()
        widths = [heads * self.config.head_size for heads in self.own_heads()]
        for kind, packed in (("weight", self.qkv_weight), ("bias", self.qkv_bias)):
            if packed is not None:
                for name, part in zip(("query", "key", "value"), packed.split(widths), strict=True):
                    full[f"{name}.{kind}"] = joined(part, 0, self.group)
        return full
        ### END SOLUTION


# %% [markdown]
# Look at what your module holds on each rank. The picture is made from its parameters: each head of the
# packed weight is looked for in the whole one.


# %%
target("07-heads")


# %%
def attention_held(group: dist.ProcessGroup) -> dict[str, list[int]]:
    torch.manual_seed(0)
    config = gpt(1, 64, 8, num_kv_heads=4, dropout=0.0)
    full = Attention(config, explicit_attention)
    part = TensorParallelAttention.from_attention(full, group)
    widths = [heads * config.head_size for heads in part.own_heads()]
    names = ("query", "key", "value")
    return {
        f"{name} heads": rows_held(packed, getattr(full, name).weight.detach(), config.head_size)
        for name, packed in zip(names, part.qkv_weight.detach().split(widths), strict=True)
    }


held = labkit.launch(attention_held, ranks=4).results
by_name = {name: [rank[name] for rank in held] for name in held[0]}
draw_holdings(by_name, {"query heads": 8, "key heads": 4, "value heads": 4})

# %% [markdown]
# A slide on this subject says that self-attention needs no all-reduce. Between its products that is true.
# Then comes $g$, and in backward $f$:


# %%
target("07-attention")


# %%
def one_attention(group: dist.ProcessGroup) -> str:
    torch.manual_seed(0)
    full = Attention(gpt(1, 64, 8, num_kv_heads=4, dropout=0.0), explicit_attention).to(device())
    part = TensorParallelAttention.from_attention(full, group)
    x = torch.randn(2, 16, 64, device=device(), requires_grad=True)
    out = part(x)
    out.square().sum().backward()
    return f"off by {(out - full(x)).abs().max().item():.1e} from the whole attention"


job = labkit.launch(one_attention, ranks=4)
print("\n".join(f"rank {rank}: {line}" for rank, line in enumerate(job.results)))
draw_traffic(job)

# %% check="07.tensor-parallel-attention"
# Numbers: output, gradients of x and of every parameter, trained weights, against the whole one.
# Mechanism: what is sent and when, what a rank keeps.
# Robustness: heads that do not divide, tensors that are not contiguous, a group of some of the ranks.
labkit.check("07.tensor-parallel-attention", TensorParallelAttention)

# %% [markdown]
# ## The table of token vectors
#
# GPT-2's table has 50,257 rows of 768; Llama 3's has 128,256 of 4,096: 525 million parameters, and a second
# such table at the output. A slide writes the table as $E^{h \times V}$ and says it is split "over the
# columns". In our layout (`nn.Embedding.weight` is $[V, h]$) these are the **rows**: each rank has the
# vectors of a range of tokens.
#
# Looking up an id is not a matrix product, but it is the same thing: a one-hot row times the table. A rank
# gives the vector if the id is in its range, and *zeros* if it is not. Then $g$ adds $t$ vectors of which
# one is not zero.
#
# 50,257 does not divide by 4. So every rank gets $\lceil V/t \rceil$ rows, and the rows beyond the
# vocabulary are filled with zeros. Nobody looks them up. Your loss will have to know about them.

# %% [markdown]
# **Before you write it:** suppose you shift the ids into the rank's range, set foreign ids to 0 so that the
# look-up does not fail, and forget to zero what comes out. What does a rank that does not have an id then
# give for it? **How many wrong vectors are added to every right one on 4 ranks?**

# %% predict="foreign-rows"
your_wrong_vectors = ...


# %%
def unmasked_lookup(group: dist.ProcessGroup) -> float:
    rows, rank = 3, dist.get_rank(group)
    table = torch.ones(rows, 1, device=device())  # every vector is the number 1
    own = torch.tensor([5], device=device()) - rank * rows
    here = (own >= 0) & (own < rows)
    return sum_over_ranks(table[own.where(here, 0)], group).item()


prediction("wrong vectors added", your_wrong_vectors, labkit.launch(unmasked_lookup, ranks=4).results[0] - 1)

# %% [markdown]
# ### Exercise: the vocabulary-parallel embedding
#
# An id outside the vocabulary is nobody's: it would silently become a vector of zeros. Raise an
# `IndexError` instead. All ranks have the same ids, so all of them raise. The vectors are completed by
# `leave`, whatever function that is: it may return fewer tokens. Ids may be a view, such as
# `tokens[:, :-1]`.
#
# <details><summary>Hint 1</summary>Compare with both ends of the range: the first row of the next block is
# not yours, your own last row is.</details>
# <details><summary>Hint 2</summary>Mask the vectors, not only the ids:
# <code>vectors.where(here.unsqueeze(-1), 0.0)</code>. Then foreign ids leave no gradient in your rows
# either.</details>


# %% exercise="07.vocab-parallel-embedding" difficulty=2 minutes=8
class VocabParallelEmbedding(nn.Module):
    """A table of vectors, one row a token of the vocabulary, whose rows are divided
    among a group's ranks.
    """

    def __init__(
        self,
        weight: Tensor,
        vocabulary: int,
        group: dist.ProcessGroup,
        leave: Callable[[Tensor, dist.ProcessGroup], Tensor] = sum_over_ranks,
    ):
        """weight: this rank's rows, [ceil(V / t), h]. leave: what completes partial
        sums, [b, s, h] each.
        """
        super().__init__()
        self.weight, self.vocabulary, self.group, self.leave = nn.Parameter(weight), vocabulary, group, leave

    @staticmethod
    def own_rows(table: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Rows r ceil(V / t) to (r + 1) ceil(V / t) of `table`, [V, h], for rank r, in
        memory of their own.

        Rows beyond the vocabulary are zeros. Every rank has as many rows.
        """
        ### BEGIN SOLUTION
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        rows = -(-len(table) // size)
        own = table.new_zeros(rows, table.shape[1])
        real = table.detach()[rank * rows : (rank + 1) * rows]
        own[: len(real)] = real
        return own
        ### END SOLUTION

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Embedding,
        group: dist.ProcessGroup,
        leave: Callable[[Tensor, dist.ProcessGroup], Tensor] = sum_over_ranks,
    ) -> "VocabParallelEmbedding":
        """This rank's part of a whole table."""
        return cls(cls.own_rows(embedding.weight, group), embedding.num_embeddings, group, leave)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [b, s], integers, the same on every rank. Returns their vectors,
        [b, s, h], on every rank.

        Raises IndexError on every rank for an id that is not in the vocabulary.
        """
        ### BEGIN SOLUTION
        if ids.numel() and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise IndexError(f"ids from {ids.min()} to {ids.max()}; the vocabulary has {self.vocabulary}")
        own = ids - dist.get_rank(self.group) * len(self.weight)
        here = (own >= 0) & (own < len(self.weight))
        vectors = F.embedding(own.where(here, 0), self.weight)
        return self.leave(vectors.where(here.unsqueeze(-1), 0.0), self.group)
        ### END SOLUTION

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole table, on every rank."""
        return {"weight": joined(self.weight, 0, self.group)[: self.vocabulary].clone()}


# %%
target("07-rows")


# %%
def rows_of_table(group: dist.ProcessGroup) -> list[int]:
    torch.manual_seed(0)
    full = nn.Embedding(22, 8)
    return rows_held(VocabParallelEmbedding.from_embedding(full, group).weight.detach(), full.weight.detach())


held = labkit.launch(rows_of_table, ranks=4).results
print(f"rank 3 holds rows {held[3]}: -1 is a row of padding")
draw_holdings({"tokens of 22": held}, {"tokens of 22": 22})

# %% check="07.vocab-parallel-embedding"
labkit.check("07.vocab-parallel-embedding", VocabParallelEmbedding)

# %% [markdown]
# ## The loss, without anybody seeing the logits
#
# The output table turns $x$ into $V$ logits a token. Cut by rows of the vocabulary it is column-parallel:
# each rank has $V/t$ of the logits. A slide goes on: "all-gather is needed". Let us see what that costs:
# $b = 1$, $s = 8192$, $V = 128{,}256$, float32. **How many GB are the logits, and how many numbers a token
# does the loss really need from the other ranks?**

# %% predict="logits-or-scalars"
your_logits_gb = ...
your_numbers_a_token = ...

# %% reveals="logits-or-scalars"
s, V = 8192, 128_256
Table(
    ["", "your guess", "counted"],
    [
        ["logits of one sequence, GB", your_logits_gb, 4 * s * V / 1e9],
        ["numbers a token for the loss", your_numbers_a_token, 3],
        ["the same as bytes", ... if your_numbers_a_token is ... else "", decimal_text(4 * 3 * s)],
    ],
)

# %% [markdown]
# With logits $z_v$, one for each token $v$ of the vocabulary, and target $y$, cross-entropy is
#
# $$\ell = \log \sum_{v} e^{z_v - m} \;-\; (z_y - m), \qquad m = \max_v z_v$$
#
# and each of its three parts is a maximum or a sum over the vocabulary: every rank does its columns, and
# the ranks combine **one number a token** for the maximum, one for the sum, one for the target's logit
# (which one rank has, and the others count as zero). $V/3$ times fewer bytes than the logits.
#
# Backward sends nothing at all. The gradient of $\ell$ by the logit $z_v$ is $p_v - [v = y]$: the softmax's
# probability, minus 1 at the target. A rank has everything it needs for its own columns, once the sums went
# through $g$. (A bare `dist.all_reduce` gives the same numbers here, as $g$'s backward changes nothing. But
# autograd does not see it: elsewhere that is a wrong gradient, and torch warns where it meets one.)

# %% [markdown]
# ### Exercise: vocabulary-parallel cross-entropy
#
# It must be right where wrong answers look right: targets on the boundary of two ranks' columns, all
# targets on one rank, columns that are padding, tokens to be ignored, logits of a thousand or of minus ten
# thousand.
#
# "A few numbers a token" are at most five, of 8 bytes, in at most five all-reduces. Logits and targets stay
# as they are; they may be views, and logits need not ask for a gradient. Logits of the vocabulary are finite.
# Columns of padding may hold anything, also infinity or NaN, and have a gradient of 0. What comes out when
# every token is ignored is not asked.
#
# With **label smoothing** $\varepsilon$ the target gets $1 - \varepsilon$ of the weight and *all $V$*
# tokens share $\varepsilon$:
#
# $$\ell = \log \sum_v e^{z_v - m} - (1 - \varepsilon)(z_y - m) - \frac{\varepsilon}{V} \sum_v (z_v - m)$$
#
# The last sum is a fourth number a token.
#
# <details><summary>Hint 1: the maximum</summary><code>dist.all_reduce(largest, dist.ReduceOp.MAX,
# group=group)</code>. It cancels in the loss, so it needs no gradient: take it of
# <code>logits.detach()</code>.</details>
# <details><summary>Hint 2: padding</summary>-inf in the maximum and in the exponentials, 0 in the plain
# sum. A rank can have nothing but padding.</details>
# <details><summary>Hint 3: fewer calls</summary>Stack the sums and send them through g together.</details>


# %% exercise="07.vocab-parallel-cross-entropy" difficulty=4 minutes=20
def vocab_parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocabulary: int,
    group: dist.ProcessGroup,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The mean cross-entropy of all tokens whose target is not `ignore_index`: one
    number, on every rank.

    logits: this rank's columns, [b, s, ceil(V / t)]; columns beyond the vocabulary do
        not count. 16-bit logits are computed with as float32, and give a float32 loss.
    targets: [b, s], the same on every rank. Raises ValueError on every rank for one
    outside the vocabulary. Computes what F.cross_entropy does from logits [b, s, V].
    Sends a few numbers a token, in forward only.
    """
    ### BEGIN SOLUTION
    counted = targets != ignore_index
    wrong = targets[counted & ((targets < 0) | (targets >= vocabulary))]
    if wrong.numel():
        raise ValueError(f"target {wrong[0].item()} is outside the vocabulary of {vocabulary}")
    columns = logits.shape[-1]
    first = dist.get_rank(group) * columns
    real = torch.arange(first, first + columns, device=logits.device) < vocabulary
    logits = logits if logits.dtype == torch.float64 else logits.float()

    largest = logits.detach().masked_fill(~real, float("-inf")).amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(-1)
    own = targets - first
    here = (own >= 0) & (own < columns) & counted
    at_target = shifted.gather(-1, own.where(here, 0).unsqueeze(-1)).squeeze(-1).where(here, 0.0)
    denominator = shifted.masked_fill(~real, float("-inf")).exp().sum(-1)
    everything = shifted.masked_fill(~real, 0.0).sum(-1)
    parts = torch.stack([at_target, denominator, everything])
    at_target, denominator, everything = sum_over_ranks(parts, group)

    smoothed = (1 - label_smoothing) * at_target + label_smoothing / vocabulary * everything
    losses = (denominator.log() - smoothed).where(counted, 0.0)
    return losses.sum() / counted.sum()
    ### END SOLUTION


# %% [markdown]
# Run it: 2,048 tokens in a vocabulary of 5,003, on 4 ranks, against `F.cross_entropy` on the whole logits
# (and padding filled with a large number, which must not matter).


# %%
def one_loss(group: dist.ProcessGroup) -> tuple[float, float]:
    torch.manual_seed(0)
    vocabulary, size, rank = 5003, dist.get_world_size(group), dist.get_rank(group)
    logits = torch.randn(2, 1024, vocabulary, device=device())
    targets = torch.randint(vocabulary, (2, 1024), device=device())
    padded = F.pad(logits, (0, -vocabulary % size), value=1e4)
    own = padded.chunk(size, dim=-1)[rank].clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(own, targets, vocabulary, group)
    loss.backward()
    return loss.item(), F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


job = labkit.launch(one_loss, ranks=4)
sent = sum(call.num_bytes for call in job.collectives if call.rank == 0)
Table(
    ["", "cut over 4 ranks", "whole"],
    [
        ["loss", f"{job.results[0][0]:.6f}", f"{job.results[0][1]:.6f}"],
        ["bytes handed to collectives", binary_text(sent), f"{binary_text(4 * 2048 * 5003)} of logits"],
    ],
)

# %% check="07.vocab-parallel-cross-entropy"
labkit.check("07.vocab-parallel-cross-entropy", vocab_parallel_cross_entropy)

# %% [markdown]
# ## Who draws which random numbers
#
# GPT drops numbers in four places: attention's probabilities, what attention and the MLP add to $x$, and the
# sum of token and position vectors. The first are **cut**: each rank has other heads, and their masks should
# have nothing to do with each other. The others are **whole**: every rank has the same numbers, and unless
# all drop the same ones, the ranks hold different $x$ from here on, and nothing will ever bring them together
# again.
#
# Two ranks, one $x$, dropout 0.1. Seed the ranks differently, or alike. **How far apart are their $x$ after
# one dropout in each case?** (The numbers are about 1.)

# %% predict="dropout-apart"
your_difference_seeded_apart = ...
your_difference_seeded_alike = ...


# %%
def apart_after_dropout(alike: bool, group: dist.ProcessGroup) -> float:
    torch.manual_seed(7 if alike else 7 + dist.get_rank(group))
    x = F.dropout(torch.ones(1000, device=device()), 0.1)
    return (joined(x, 0, group).view(2, -1).diff(dim=0)).abs().max().item()


Table(
    ["largest difference between ranks", "your guess", "measured"],
    [
        [
            "seeded apart",
            your_difference_seeded_apart,
            labkit.launch(apart_after_dropout, False, ranks=2).results[0],
        ],
        [
            "seeded alike",
            your_difference_seeded_alike,
            labkit.launch(apart_after_dropout, True, ranks=2).results[0],
        ],
    ],
)

# %% [markdown]
# Alike for what is whole. But seeded alike, heads on different ranks drop the same places, and every rank's
# initialisation would be the same too. So a rank needs **two streams**, and says which one it draws from.
# A stream goes on where it stopped: the second layer must not drop what the first one dropped.

# %% [markdown]
# ### Exercise: two streams
#
# `random_state` and `set_random_state` read and put back the state of the generator that dropout uses;
# `seeded_state` gives the state for a seed. Nothing is sent, and nobody enters a stream inside another one.
#
# * **Outside a stream**, the generator is as if nothing had happened. That holds too when an exception ends
#   the block, also a `KeyboardInterrupt`: it leaves the block, and the stream later goes on from there.
# * **Seeds** are numbers of 32 bits. The same one gives the same streams each time, in another process too.
#   Another one gives a rank other streams: seeds 1 and 65,536 apart are compared, those $2^{31}$ apart are
#   not. (Of the seed that it is given, torch's CPU generator looks at the lowest 32 bits alone.) A rank
#   counts by its number in `group`.
# * **Apart.** With one seed, a rank's `own()` has no run of numbers in common, early or late, with another
#   rank's `own()` or with `shared()`. That holds on rank 0 too, and in large groups: with each of a dozen
#   seeds, the first numbers of 192 ranks are compared. Different streams of different seeds are not compared.
#
# <details><summary>Hint</summary>On entering: remember the present state, put in the stream's. On leaving,
# in a <code>finally</code>: remember the stream's, put back the other.</details>


# %%
def random_state(group: dist.ProcessGroup) -> Tensor:
    """The state of the generator that dropout draws from: this rank's GPU's, or the CPU's."""
    return torch.cuda.get_rng_state() if dist.get_backend(group) == "nccl" else torch.get_rng_state()


def set_random_state(state: Tensor, group: dist.ProcessGroup) -> None:
    """Put that generator into `state`."""
    (torch.cuda.set_rng_state if dist.get_backend(group) == "nccl" else torch.set_rng_state)(state)


def seeded_state(seed: int, group: dist.ProcessGroup) -> Tensor:
    """The state that generator has after being seeded, without seeding it."""
    where = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return torch.Generator(where).manual_seed(seed).get_state()


# %% exercise="07.random-streams" difficulty=2 minutes=10
class RandomStreams:
    """Two streams of random numbers: one that all ranks of a group draw alike, one
    that is a rank's own.
    """

    def __init__(self, seed: int, group: dist.ProcessGroup):
        """seed: the same on every rank."""
        ### BEGIN SOLUTION
        self.group = group
        self.states = {
            "shared": seeded_state(2 * seed, group),
            "own": seeded_state(2 * seed + 1 + 2718 * (1 + dist.get_rank(group)), group),
        }
        ### END SOLUTION

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Inside, all ranks draw the same numbers: for what is whole on every rank."""
        ### BEGIN SOLUTION
        with self._drawing_from("shared"):
            yield
        ### END SOLUTION

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Inside, each rank draws numbers of its own: for what is cut."""
        ### BEGIN SOLUTION
        with self._drawing_from("own"):
            yield

    @contextlib.contextmanager
    def _drawing_from(self, name: str) -> Iterator[None]:
        before = random_state(self.group)
        set_random_state(self.states[name], self.group)
        try:
            yield
        finally:
            self.states[name] = random_state(self.group)
            set_random_state(before, self.group)

    ### END SOLUTION


# %%
def draw_twice(group: dist.ProcessGroup) -> list[str]:
    streams = RandomStreams(0, group)
    lines = []
    for name in ("shared", "own", "shared", "own"):
        with getattr(streams, name)():
            lines.append(f"{torch.rand((), device=device()).item():.4f}")
    return lines


Table(
    ["", "shared", "own", "shared again", "own again"],
    [[f"rank {r}", *line] for r, line in enumerate(labkit.launch(draw_twice, ranks=4).results)],
)

# %% check="07.random-streams"
labkit.check("07.random-streams", RandomStreams)

# %% [markdown]
# ## Weights that nobody holds whole
#
# In this lesson a whole model is cut, so that you can compare. A model that fits on no rank cannot begin like
# that: each rank draws its own part. Then the two streams decide what is right, and one mistake hides in the
# **spread**. A usual choice gives a weight $[\text{out}, \text{in}]$ the standard deviation
# $1/\sqrt{\text{in}}$: each output is a sum of $\text{in}$ products, and comes out as large as the inputs.
#
# The MLP's second weight, $[h, 4h]$, is row-parallel: a rank's block is $[h, 4h/t]$, and has $4h/t$ inputs.
# **By which factor are the outputs too large on 4 ranks, after the sum, if each rank takes its block for a
# whole weight?**

# %% predict="fan-in-of-a-block"
your_factor = ...

# %%
h, t = 256, 4
x = torch.randn(1000, 4 * h)
blocks = [torch.randn(h, 4 * h // t) / (4 * h // t) ** 0.5 for _ in range(t)]  # each as if it were whole
partial_sums = [part @ block.T for part, block in zip(x.chunk(t, dim=1), blocks, strict=True)]
prediction("outputs over inputs", your_factor, (torch.stack(partial_sums).sum(0).std() / x.std()).item())

# %% [markdown]
# ### Exercise: draw your part
#
# Either dimension can be cut, 0 or 1; a whole weight need not divide. Numbers are of torch's default type,
# normal, not uniform, each drawn by itself; their mean and their spread may be off by 4% of the standard
# deviation that is asked for. A second weight of the same shape has other numbers. Nothing is sent, and
# nobody draws a cut weight whole.
#
# Below the exercise, look at how each part begins and at its spread: blocks differ from rank to rank, the
# whole weight does not, and the spread is 1 everywhere.
#
# <details><summary>Hint</summary>What is cut is drawn from <code>own()</code>, what is whole from
# <code>shared()</code>; <code>in</code> is that of the whole weight in both.</details>


# %% exercise="07.initial-weights" difficulty=2 minutes=8
def initial_weight(
    shape: tuple[int, int], cut: int | None, streams: RandomStreams, group: dist.ProcessGroup
) -> Tensor:
    """This rank's part of a new weight: normal numbers, mean 0, standard deviation 1 / sqrt(in).

    shape: of the whole weight, [out, in].
    cut: the dimension that is divided among the ranks; None for one that is whole, the
    same on all ranks. Raises ValueError, naming both numbers, if that dimension does
    not divide among the ranks.
    """
    ### BEGIN SOLUTION
    own, size = list(shape), dist.get_world_size(group)
    if cut is not None:
        if shape[cut] % size:
            raise ValueError(f"{shape[cut]} does not divide among {size} ranks")
        own[cut] //= size
    with streams.shared() if cut is None else streams.own():
        return torch.randn(own, device=device()) / shape[1] ** 0.5
    ### END SOLUTION


# %%
def draw_weights(group: dist.ProcessGroup) -> list[str]:
    streams = RandomStreams(0, group)
    parts = [initial_weight((512, 2048), cut, streams, group) for cut in (0, 1, None)]
    return [
        f"{list(part.shape)}, first {part[0, 0]:.4f}, spread {part.std() * 2048**0.5:.2f}" for part in parts
    ]


Table(
    ["", "cut along dim 0", "cut along dim 1", "whole"],
    [[f"rank {r}", *line] for r, line in enumerate(labkit.launch(draw_weights, ranks=4).results)],
    "A weight of [512, 2048]. Spread: the standard deviation, times the square root of 2048",
)

# %% check="07.initial-weights"
labkit.check("07.initial-weights", initial_weight)

# %% [markdown]
# ## Sequence parallelism: cut the grey boxes too
#
# Norm, dropout and residual work on each token alone. So between the cut regions the ranks can divide the
# **tokens**: each normalises and drops $s/t$ of them, and keeps $1/t$ for backward. (An article lists layer
# normalization among the places where GPUs all-reduce. It needs the $h$ numbers of one token, and a rank has
# all of them, with or without this: in forward there is nothing to reduce.)

# %%
draw_block(ranks=4, sequence_parallel=True)

# %% [markdown]
# In front of a cut region all tokens are needed: **gather** them. Behind it there are partial sums of all
# tokens, and each rank wants its own tokens of their sum: **reduce-scatter**. An all-reduce *is* a
# reduce-scatter and an all-gather (lesson 00), so the plan sends what it sent before, in other places
# (Korthikanti et al. 2022, section 4.2.2).
#
# | | forward | backward |
# |---|---|---|
# | gather, in front | all-gather | reduce-scatter |
# | scatter, behind | reduce-scatter | all-gather |
#
# Compare with the gather of lesson 06, whose backward just took the rank's slice: there all ranks did the
# same with the whole. Here each rank goes on with *its own* heads, and knows only their part of the
# gradient: it has to be **added** before it is cut.

# %% [markdown]
# ### Exercise: the pair
#
# Tokens are dim 1 of $[b, s, h]$. `reduce_scatter(output, parts, group)`, given below, adds the ranks'
# `parts[0]` for rank 0, their `parts[1]` for rank 1, and so on. (PyTorch has this under two names in
# different releases.) Each way is one all-gather of a rank's slice or one reduce-scatter of the whole, by
# any of the names that take one tensor: `dist.reduce_scatter` of a list of tensors gives the same numbers,
# but over gloo it sends several times as much, and grading would hold the points of *communication* back.
#
# <details><summary>Hint</summary>You have <code>joined</code>. Write its mirror image once, and each of
# the four methods is one line. <code>torch.stack(x.chunk(t, dim=1))</code> has the parts in order.</details>


# %%
def reduce_scatter(output: Tensor, parts: Tensor, group: dist.ProcessGroup) -> None:
    """Rank r's output, [...], becomes the sum of all ranks' parts[r]. parts: [t, ...]."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(output, parts.flatten(0, 1), group=group)


# %% exercise="07.sequence-parallel-pair" difficulty=3 minutes=8
class GatherSequence(torch.autograd.Function):
    """Slices of the sequence are joined; backward adds and cuts. Use:
    GatherSequence.apply(x, group).
    """

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """x: this rank's tokens, [b, s / t, ...]. Returns all tokens in rank order, [b, s, ...]."""
        ### BEGIN SOLUTION
        ctx.group = group
        return joined(x, 1, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """gradient: what this rank knows, [b, s, ...]. Returns the sum's slice,
        [b, s / t, ...], and None.
        """
        ### BEGIN SOLUTION
        return scattered_sum(gradient, ctx.group), None
        ### END SOLUTION


class ReduceScatterSequence(torch.autograd.Function):
    """Partial sums are added and cut; backward joins. Use: ReduceScatterSequence.apply(x, group)."""

    @staticmethod
    def forward(ctx, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        """partial: [b, s, ...]. Returns this rank's tokens of the sum over the ranks, [b, s / t, ...].

        Raises ValueError, naming both sizes, if the tokens do not divide among the ranks.
        """
        ### BEGIN SOLUTION
        ctx.group = group
        return scattered_sum(partial, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """gradient: of own tokens, [b, s / t, ...]. Returns that of all tokens,
        [b, s, ...], and None.
        """
        ### BEGIN SOLUTION
        return joined(gradient, 1, ctx.group), None


def scattered_sum(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
    """One reduce-scatter along dim 1."""
    size = dist.get_world_size(group)
    if partial.shape[1] % size:
        raise ValueError(f"{partial.shape[1]} tokens do not divide among {size} ranks")
    slices = torch.stack(partial.detach().chunk(size, dim=1))
    total = torch.empty_like(slices[0])
    reduce_scatter(total, slices, group)
    return total


### END SOLUTION


# %%
def try_pair(group: dist.ProcessGroup) -> tuple[list[float], list[float]]:
    own = torch.full((1, 1, 1), float(dist.get_rank(group)), device=device(), requires_grad=True)
    tokens = GatherSequence.apply(own, group)
    sums = ReduceScatterSequence.apply(tokens * 10.0 ** dist.get_rank(group), group)
    sums.sum().backward()
    return tokens.flatten().tolist(), [sums.item(), own.grad.item()]


job = labkit.launch(try_pair, ranks=4)
Table(
    ["rank", "gathered", "times 10^rank, scattered", "gradient of its token"],
    [[str(r), str(tokens), *numbers] for r, (tokens, numbers) in enumerate(job.results)],
)

# %% check="07.sequence-parallel-pair"
labkit.check("07.sequence-parallel-pair", GatherSequence, ReduceScatterSequence)

# %% [markdown]
# ## What the products keep, and who learns the bias
#
# Two traps wait where the pair meets the products.
#
# **Memory.** `F.linear` keeps its input for backward, and its input is the *gathered* $x$: whole again, in 16
# bits $2sbh$ bytes for attention and as much for the MLP. Keep the slice instead, and gather once more in
# backward: two more gathers a block, during which a rank can compute the product that needs no $x$
# (Korthikanti et al. 2022, section 4.2.2).
#
# **Whole parameters.** The bias behind the scatter is added to the rank's own tokens, so a rank's gradient
# of it knows only these. The copies of the bias drift apart. The same happens to the norms and to the
# positions. The sum is missing, and you have an operator that is nothing in forward and a sum in backward:
# $f$, applied to the *parameter*.

# %% [markdown]
# ### Exercise: the two products with divided tokens
#
# They take the places of `column_parallel` and `row_parallel`. The first is easiest with a
# `torch.autograd.Function` of your own. For $Y = X W^{\mathsf T} + \text{bias}$, and with $\partial$ for the
# gradient of the loss by something: $\partial X = \partial Y\, W$ and
# $\partial W = \partial Y^{\mathsf T} X$. The bias's gradient is the sum of $\partial Y$ over all tokens.
# Inputs and gradients may lie in memory in any order. Any of x, weight and bias may ask for no gradient; the
# others have theirs. Where the weight asks for none, backward needs no x, and may gather it or not.
#
# What both keep between forward and backward is counted by all that the process holds: the slice, what your
# caller keeps, and 24 KiB beside. What is gathered or scattered has the dtype of x, 16 bits too. The sums of
# bias gradients are not counted among the calls.
#
# <details><summary>Hint 1</summary><code>ctx.save_for_backward(x, weight)</code> with the slice;
# <code>ctx.needs_input_grad[2]</code> says whether there is a bias to care for.</details>
# <details><summary>Hint 2</summary><code>total + copy_to_ranks(bias, group)</code></details>


# %% exercise="07.sequence-parallel-linear" difficulty=4 minutes=20
def sequence_column_parallel(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup
) -> Tensor:
    """x: this rank's tokens, [b, s / t, in]. Returns all tokens, this rank's features: [b, s, out / t].

    Backward keeps this rank's tokens, not all of them, and gathers x once more.
    """
    ### BEGIN SOLUTION
    return GatheredProduct.apply(x, weight, bias, group)
    ### END SOLUTION


def sequence_row_parallel(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup) -> Tensor:
    """x: all tokens, this rank's features, [b, s, in / t]. Returns this rank's tokens, [b, s / t, out].

    bias: whole, the same on every rank. So is its gradient.
    """
    ### BEGIN SOLUTION
    total = ReduceScatterSequence.apply(F.linear(x, weight), group)
    return total if bias is None else total + copy_to_ranks(bias, group)


class GatheredProduct(torch.autograd.Function):
    """F.linear of the joined slices, of which only this rank's own is kept."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return F.linear(GatherSequence.apply(x, group), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        whole = GatherSequence.apply(x, ctx.group)
        of_x = ReduceScatterSequence.apply(gradient @ weight, ctx.group)
        rows = gradient.flatten(0, 1)
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, rows.T @ whole.flatten(0, 1), of_bias, None


### END SOLUTION


# %% check="07.sequence-parallel-linear"
labkit.check("07.sequence-parallel-linear", sequence_column_parallel, sequence_row_parallel)

# %% [markdown]
# ## The block
#
# Lesson 06's MLP, in the form of this lesson, is given:


# %%
class TensorParallelMLP(nn.Module):
    """Lesson 06's MLP: down(gelu(up(x))), the inner features divided among the ranks of a group."""

    def __init__(self, mlp: nn.Module, group: dist.ProcessGroup, enter: Product, leave: Product):
        """mlp: a whole one, with nn.Linear `up` and `down`; it is left alone."""
        super().__init__()
        self.group, self.enter, self.leave = group, enter, leave
        self.up_weight = nn.Parameter(block_of(mlp.up.weight, 0, group))
        self.up_bias = nn.Parameter(block_of(mlp.up.bias, 0, group))
        self.down_weight = nn.Parameter(block_of(mlp.down.weight, 1, group))
        self.down_bias = parameter(mlp.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.enter(x, self.up_weight, self.up_bias, self.group))
        return self.leave(inner, self.down_weight, self.down_bias, self.group)

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole MLP, on every rank."""
        return {
            "up.weight": joined(self.up_weight, 0, self.group),
            "up.bias": joined(self.up_bias, 0, self.group),
            "down.weight": joined(self.down_weight, 1, self.group),
            "down.bias": self.down_bias.detach(),
        }


# %% [markdown]
# ### Exercise: the tensor-parallel block
#
# Put the pieces together, for both plans. Three questions decide every line: is $x$ whole or divided here?
# Which stream does this dropout draw from? Does this whole parameter see all tokens or only its own?
#
# A rank does a $t$-th of the matrix products, and:
#
# * **Dropout.** Attention's is inside `attend(q, k, v, dropout)`, which came along from the whole attention:
#   wrap it, and enter no stream inside another one. In training dropout is at work, under `no_grad` too.
#   After `eval()` nothing is dropped.
# * **Memory.** What a block keeps for backward is measured. It must be 0.75 to 1.12 times what the plan's
#   formula says (below, at "What a block keeps", there for 16 bits; the check counts in its own dtype).
#   `F.layer_norm` keeps its input and a few numbers a token; a norm that is written out keeps three times as
#   much.
# * **Calls.** With divided tokens, the gradients of whole parameters are summed over the ranks. All-reduces
#   for that, of at most $4h$ numbers each, are not counted.
#
# <details><summary>Hint 1</summary><code>enter</code> and <code>leave</code> are the products of lesson 06,
# or those you just wrote.</details>
# <details><summary>Hint 2: norms</summary><code>F.layer_norm(x, norm.normalized_shape, weight, bias,
# norm.eps)</code> with <code>f(weight)</code> and <code>f(bias)</code> when tokens are divided, and with the
# parameters themselves when they are not: then their gradients are whole already.</details>


# %% exercise="07.tensor-parallel-block" difficulty=4 minutes=20
class TensorParallelBlock(nn.Module):
    """x + dropout(attention(norm(x))), then x + dropout(mlp(norm(x))), on the ranks of a group."""

    def __init__(
        self,
        block: nn.Module,
        group: dist.ProcessGroup,
        streams: RandomStreams,
        sequence_parallel: bool = False,
    ):
        """This rank's part of a whole block, which is left alone and of which nothing else is kept.

        block: has `attention_norm`, `attention`, `mlp_norm`, `mlp`, and its probability in `dropout.p`.
        Made here, under the same names: copies of the two nn.LayerNorm, a TensorParallelAttention whose
        `attend` draws this rank's own dropout, and a TensorParallelMLP.
        """
        super().__init__()
        self.group, self.streams, self.sequence_parallel = group, streams, sequence_parallel
        self.dropout = block.dropout.p
        ### BEGIN SOLUTION
        enter = sequence_column_parallel if sequence_parallel else column_parallel
        leave = sequence_row_parallel if sequence_parallel else row_parallel
        self.attention_norm, self.mlp_norm = map(copy.deepcopy, (block.attention_norm, block.mlp_norm))
        self.attention = TensorParallelAttention.from_attention(block.attention, group, enter, leave)
        self.attention.attend = self._attend(self.attention.attend)
        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: [b, s, h], the same on every rank; with sequence_parallel this rank's
        tokens, [b, s / t, h].
        """
        ### BEGIN SOLUTION
        x = x + self._drop(self.attention(self._norm(self.attention_norm, x)))
        return x + self._drop(self.mlp(self._norm(self.mlp_norm, x)))

    def _norm(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        weight, bias = norm.weight, norm.bias
        if self.sequence_parallel:  # this rank's gradient knows this rank's tokens only
            weight, bias = (copy_to_ranks(p, self.group) for p in (weight, bias))
        return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)

    def _drop(self, x: Tensor) -> Tensor:
        with self.streams.own() if self.sequence_parallel else self.streams.shared():
            return F.dropout(x, self.dropout, self.training)

    def _attend(self, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def with_own_dropout(*arguments):
            with self.streams.own():
                return attend(*arguments)

        return with_own_dropout

    ### END SOLUTION

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole block, on every rank."""
        full = {}
        for name in ("attention", "mlp"):
            full |= {f"{name}.{key}": value for key, value in getattr(self, name).to_full().items()}
            norm = getattr(self, f"{name}_norm")
            full |= {f"{name}_norm.{key}": value for key, value in norm.state_dict().items()}
        return full


# %% check="07.tensor-parallel-block"
labkit.check("07.tensor-parallel-block", TensorParallelBlock)

# %% [markdown]
# ### What a block sends
#
# A ring all-reduce of $S$ bytes sends $2\frac{t-1}{t}S$ from each rank, a gather or a scatter half of that.
# Four all-reduces a block are $8 \frac{t-1}{t} bsh$ numbers (Narayanan et al. 2021, section 3.2). With
# divided tokens: **what will the pairs of gather and scatter send, in percent of that?** Then add the two
# gathers of what backward did not keep.

# %% predict="percent-sent"
your_percent_of_the_pairs = ...
your_percent_with_gathering_again = ...


# %%
target("07-sent")


# %%
def one_block(sequence_parallel: bool, group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    full = Block(gpt(1, 64, 8, dropout=0.0), explicit_attention).to(device())
    part = TensorParallelBlock(full, group, RandomStreams(0, group), sequence_parallel)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    x = torch.randn(4, 32, 64, device=device())
    x = x.chunk(size, dim=1)[rank].clone() if sequence_parallel else x
    out = part(x.requires_grad_())
    dist.barrier(group)
    out.square().sum().backward()


def sent_by_rank_0(job: labkit.Job) -> dict[str, dict[str, float]]:
    """Bytes by phase and operation; the barrier stands between forward and backward."""
    sent: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    phase = "forward"
    for call in job.collectives:
        if call.rank == 0 and call.op == "barrier":
            phase = "backward"
        elif call.rank == 0:
            sent[phase][call.op] = sent[phase].get(call.op, 0.0) + sent_bytes(call)
    return sent


jobs = {divided: labkit.launch(one_block, divided, ranks=4) for divided in (False, True)}
sent = {
    "whole tokens": sent_by_rank_0(jobs[False]),
    "divided tokens": sent_by_rank_0(jobs[True]),
}
share = 3 / 4 * (4 * 32 * 64) * 4  # (t-1)/t b s h numbers of 4 bytes
marks = {"8 bsh (t-1)/t": 8 * share}
draw_sent(sent, {"whole tokens": marks, "divided tokens": marks | {"10 bsh (t-1)/t": 10 * share}})

# %%
four = sum(sum(operations.values()) for operations in sent["whole tokens"].values())
there, back = (sum(operations.values()) for operations in sent["divided tokens"].values())
small = sent["divided tokens"]["backward"].get("all_reduce", 0.0)  # gradients of norms and biases
Table(
    ["divided tokens, in percent of four all-reduces", "your guess", "measured"],
    [
        ["pairs of gather and scatter: forward, twice", your_percent_of_the_pairs, 100 * 2 * there / four],
        [
            "with x gathered again in backward",
            your_percent_with_gathering_again,
            100 * (there + back - small) / four,
        ],
        ["gradients of norms and biases, beside that", "", 100 * small / four],
    ],
)

# %% [markdown] reveals="percent-sent"
# Forward has half of each pair and nothing else. The pairs send exactly what the all-reduces sent. The last
# line does not grow with the batch: $6h$ numbers a block, which a real batch of $bs$ tokens makes invisible.

# %% [markdown]
# ## What a block keeps
#
# Korthikanti et al. (2022, section 4.1) count what one layer of a GPT keeps on one rank, in 16 bits, with
# dropout and with attention's scores in memory. In units of $sbh$ bytes:
#
# | kept | | kept | |
# |---|---|---|---|
# | input of attention's norm | 2 | input of the MLP's norm | 2 |
# | input of the packed product | 2 | input of the first product | 2 |
# | queries, keys, values | 6 | input of GeLU | 8 |
# | scores, three times over | $5as/h$ | output of GeLU | 8 |
# | input of the output projection | 2 | mask of its dropout | 1 |
# | mask of its dropout | 1 | **in all** | $34 + 5as/h$ |
#
# "LayerNorm and dropout are duplicated", says a slide. It is right, and this table says what that costs.
#
# ### Exercise: what a rank keeps
#
# Which of these are cut over the ranks, and which are whole? And with divided tokens? Write the bytes as a
# function. (One source prints the scores' term as $(5as)/h \cdot t$. Would you expect it to grow with $t$?)
#
# <details><summary>Hint</summary>Look at the first picture: colour is divided by t, grey is not. The input
# of a cut region is still grey.</details>


# %% exercise="07.activation-bytes" difficulty=2 minutes=8
def block_activation_bytes(s: int, b: int, h: int, a: int, t: int, sequence_parallel: bool = False) -> float:
    """Bytes a rank keeps of one block for its backward: 16-bit activations, dropout,
    explicit attention.
    """
    ### BEGIN SOLUTION
    scores = 5 * a * s / (h * t)
    outside = 10 / t if sequence_parallel else 10
    return s * b * h * (outside + 24 / t + scores)
    ### END SOLUTION


# %% check="07.activation-bytes"
labkit.check("07.activation-bytes", block_activation_bytes)

# %% [markdown]
# For the paper's model of 22 billion parameters ($s = 2048$, $b = 4$, $h = 6144$, $a = 64$) and $t = 8$ your
# function should give 1.3 GB a layer, or 0.9 GB with divided tokens, and there are 48 layers.
#
# <details><summary>Once your check passes: the formulas</summary>
#
# $sbh\,(10 + 24/t + 5as/(ht))$ with whole tokens and $(sbh/t)\,(34 + 5as/h)$ with divided ones, rows of
# table 2 of the paper. In float32 without dropout: $4sbh\,(4 + 12/t + as/(ht))$, and with divided tokens
# all of it over $t$.
#
# </details>
#
# Now measure your block. It keeps float32 and no dropout masks, so the numbers of the formula change: each
# kept number is 4 bytes, and one tensor of scores is left instead of three. For $b = 4$, $s = 128$,
# $h = 256$, $a = 16$: **how many MiB does a rank keep at $t = 4$, without and with divided tokens?**

# %% predict="mib-kept"
your_mib_whole = ...
your_mib_divided = ...


# %%
def kept_by_block(sequence_parallel: bool, group: dist.ProcessGroup) -> float:
    """MiB that autograd keeps of one forward."""
    torch.manual_seed(0)
    full = Block(gpt(1, 256, 16, dropout=0.0), explicit_attention).to(device())
    part = TensorParallelBlock(full, group, RandomStreams(0, group), sequence_parallel)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    x = torch.randn(4, 128, 256, device=device())
    x = x.chunk(size, dim=1)[rank].clone() if sequence_parallel else x
    return measure_activations(part, lambda: part(x.requires_grad_())) / 2**20


def formula_mib(t: float, divided: bool) -> float:
    """The formula for float32 without dropout."""
    b, s, h, a = 4, 128, 256, 16
    whole = 4 / t if divided else 4
    return 4 * s * b * h * (whole + 12 / t + a * s / (h * t)) / 2**20


measured = {
    divided: [labkit.launch(kept_by_block, divided, ranks=t).results[0] for t in (1, 2, 4)]
    for divided in (False, True)
}
Table(
    ["MiB of a rank at t = 4", "your guess", "formula", "measured"],
    [
        ["tokens whole", your_mib_whole, formula_mib(4, False), measured[False][2]],
        ["tokens divided", your_mib_divided, formula_mib(4, True), measured[True][2]],
    ],
)

# %%
target("07-kept")

# %%
fine = [2 ** (n / 8) for n in range(17)]
names = {False: "tokens whole", True: "tokens divided"}
draw_memory(
    {names[divided]: (fine, [formula_mib(t, divided) for t in fine]) for divided in names},
    {names[divided]: ((1, 2, 4), measured[divided]) for divided in names},
    "MiB kept for backward",
)

# %% [markdown]
# Whole tokens put a floor under the blue line that no number of ranks gets through. Divided tokens have no
# floor.

# %% [markdown]
# ## The whole model
#
# What is left: the table in front, positions, a final norm, the head, the loss. In a **tied** model the
# head *is* the table, so it is one parameter with two uses and one gradient, and each rank has the same
# rows in both. An untied head is cut as the table is.
#
# $f$ (or the gather) stands in front of the head, which is column-parallel; its logits stay cut and go
# straight into your loss.
#
# ### Exercise: the tensor-parallel GPT
#
# The same three questions as for the block, and a $t$-th of the matrix products for each rank.
#
# * **Positions** are whole: all rows of the whole model's. With divided tokens a rank has, between table and
#   head, its own tokens only, and adds their positions.
# * **Dropout.** In training the sum of token and position vectors is dropped with the config's probability,
#   other numbers in each call, under `no_grad` too, and when a call in evaluation came between.
# * **Calls.** All-reduces of at most five numbers a token (the loss) are not counted, nor, with divided
#   tokens, those that sum the gradients of whole parameters: norms, biases, positions.
# * **Names.** `to_full` has every name of the whole model's state dict, `head.weight` too where it is tied.
#   In a tied model `tokens.weight` is the only parameter of the two: `head_weight` is none, not even the same
#   one under a second name.
#
# <details><summary>Hint 1</summary>The embedding's <code>leave</code> takes <code>(partial, group)</code>:
# <code>sum_over_ranks</code>, or the scatter.</details>
# <details><summary>Hint 2</summary>Positions with divided tokens: f first, then the slice, so that every
# rank's gradient has all rows before the sum.</details>


# %% exercise="07.tensor-parallel-gpt" difficulty=4 minutes=20
class TensorParallelGPT(nn.Module):
    """A GPT on the ranks of a group: `labkit.model.Transformer` with its largest matrices cut."""

    def __init__(
        self, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ):
        """This rank's part of `full`, which is left alone. Parameters made here: `tokens` (a
        VocabParallelEmbedding), `positions` [s, h] whole, `blocks`, `norm`, and for untied embeddings
        `head_weight`, this rank's rows of `full.head.weight`, cut as the table's are.
        """
        super().__init__()
        self.config, self.group, self.sequence_parallel = full.config, group, sequence_parallel
        self.streams = RandomStreams(seed, group)
        ### BEGIN SOLUTION
        leave = ReduceScatterSequence.apply if sequence_parallel else sum_over_ranks
        self.tokens = VocabParallelEmbedding.from_embedding(full.tokens, group, leave)
        self.positions = parameter(full.positions.weight)
        self.blocks = nn.ModuleList(
            TensorParallelBlock(block, group, self.streams, sequence_parallel) for block in full.blocks
        )
        self.norm = copy.deepcopy(full.norm)
        self.head_weight = None
        if not self.config.tied_embeddings:
            self.head_weight = nn.Parameter(VocabParallelEmbedding.own_rows(full.head.weight, group))
        ### END SOLUTION

    @classmethod
    def from_full(
        cls, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ) -> "TensorParallelGPT":
        """This rank's part of a whole model."""
        return cls(full, group, seed, sequence_parallel)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """ids, targets: [b, s], views perhaps, the same on every rank. The mean
        cross-entropy, on every rank.

        Raises ValueError, naming both sizes, if tokens are to be divided and do not
        divide among the ranks.
        """
        ### BEGIN SOLUTION
        s = ids.shape[1]
        x = self._drop(self.tokens(ids) + self._own_tokens(self.positions[:s]))
        for block in self.blocks:
            x = block(x)
        weight, bias = self._whole(self.norm.weight), self._whole(self.norm.bias)
        x = F.layer_norm(x, self.norm.normalized_shape, weight, bias, self.norm.eps)
        enter = sequence_column_parallel if self.sequence_parallel else column_parallel
        head = self.tokens.weight if self.head_weight is None else self.head_weight
        logits = enter(x, head, None, self.group)
        return vocab_parallel_cross_entropy(logits, targets, self.config.vocabulary, self.group)

    def _whole(self, parameter: Tensor) -> Tensor:
        """A parameter that is whole on every rank; its gradient is summed where tokens are divided."""
        return copy_to_ranks(parameter, self.group) if self.sequence_parallel else parameter

    def _own_tokens(self, positions: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return positions
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        return self._whole(positions).chunk(size)[rank]

    def _drop(self, x: Tensor) -> Tensor:
        with self.streams.own() if self.sequence_parallel else self.streams.shared():
            return F.dropout(x, self.config.dropout, self.training)

    ### END SOLUTION

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole model, ready for Transformer.load_state_dict, on every rank."""
        ### BEGIN SOLUTION
        full = {"tokens.weight": self.tokens.to_full()["weight"], "positions.weight": self.positions.detach()}
        for number, block in enumerate(self.blocks):
            full |= {f"blocks.{number}.{name}": value for name, value in block.to_full().items()}
        full |= {f"norm.{name}": value for name, value in self.norm.state_dict().items()}
        head = self.tokens.weight if self.head_weight is None else self.head_weight
        full["head.weight"] = joined(head, 0, self.group)[: self.config.vocabulary]
        return full
        ### END SOLUTION


# %% check="07.tensor-parallel-gpt"
labkit.check("07.tensor-parallel-gpt", TensorParallelGPT)

# %% [markdown]
# ### Train it
#
# On the bytes of this course's own source of a transformer (256 tokens in the vocabulary), with tied
# embeddings, in float64, 20 steps: one process with the whole model, and four ranks with divided tokens.
#
# First a guess. Norms, positions and the biases behind the scatters are whole on every rank, everything else
# is cut. The model has $L = 2$, $h = 64$, $V = 256$ and 64 positions, 120,576 parameters in all. **How many
# does each of four ranks hold?**

# %% predict="parameters-of-a-rank"
your_parameters = ...

# %%
target("07-losses")

# %%
TEXT = torch.tensor(list(Path(labkit.__file__).with_name("model.py").read_bytes()))
STEPS = 20


def small_model() -> Transformer:
    torch.manual_seed(0)
    config = gpt(2, 64, 4, vocabulary=256, max_sequence=64, dropout=0.0)
    return Transformer(config, explicit_attention).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Four pieces of the text, [4, 64] ids and the ids that follow."""
    starts = torch.randint(len(TEXT) - 65, (4,), generator=torch.Generator().manual_seed(step))
    pieces = torch.stack([TEXT[start : start + 65] for start in starts]).to(device())
    return pieces[:, :-1], pieces[:, 1:]


def train(model: nn.Module) -> list[float]:
    losses = []
    for step in range(STEPS):
        loss = model.loss(*batch(step))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():  # plain SGD, written out
                weight -= 0.1 * weight.grad
        losses.append(loss.item())
    return losses


def train_whole(group: dist.ProcessGroup) -> list[float]:
    return train(small_model().to(device()))


def train_cut(group: dist.ProcessGroup) -> tuple[list[float], float, int]:
    model = TensorParallelGPT.from_full(small_model().to(device()), group, sequence_parallel=True)
    losses = train(model)
    held = sum(weight.numel() for weight in model.parameters())
    whole = small_model().to(device())
    whole.load_state_dict(model.to_full())
    with torch.no_grad():
        return losses, whole.loss(*batch(STEPS)).item() - model.loss(*batch(STEPS)).item(), held


one = labkit.launch(train_whole, ranks=1).results[0]
four, off, held = labkit.launch(train_cut, ranks=4).results[0]
print(f"loaded back into one process, the trained model's next loss is off by {abs(off):.1e}")
draw_losses(one, four, "four ranks, tokens divided")

# %%
prediction("parameters on each of four ranks", your_parameters, held)

# %% [markdown] reveals="parameters-of-a-rank"
# A little more than a quarter: what is whole is small. And it becomes less when $h$ grows: it grows with $h$,
# the matrices of the blocks with $h^2$.

# %% [markdown]
# ## One norm for cut and whole
#
# Training clips the gradient: if its norm over *all* parameters is above a bound, all are scaled down.
# Each rank has blocks of the cut parameters, and all of the whole ones. Add up every rank's squares and the
# whole ones count $t$ times. Four ranks, cut parameters with a squared norm of 3 in all, whole ones with 1:
# the norm is 2. **What do you get if every rank sums the squares of all it has, and the ranks add up?**

# %% predict="norm-counted-on-every-rank"
your_norm = ...


# %%
def norm_of_all_that_a_rank_has(group: dist.ProcessGroup) -> float:
    cut = torch.full((3,), 0.5, device=device())  # 3/4 of a squared norm, and 3 on four ranks
    whole = torch.ones(1, device=device())
    squares = torch.cat((cut, whole)).square().sum()
    dist.all_reduce(squares, group=group)
    return squares.sqrt().item()


found = labkit.launch(norm_of_all_that_a_rank_has, ranks=4).results[0]
prediction("the norm, which should be 2", your_norm, found)

# %% [markdown]
# ### Exercise: clip the gradient's norm
#
# * **Lists.** Either may be empty, and one rank may have no gradient of what is cut where another has. Where
#   no rank has anything cut, you may make the all-reduce or leave it out.
# * **Gradients.** A `.grad` may be changed in place or replaced; all keep their types, of which a call may
#   have several. They may lie in memory in any order, be single numbers, or nothing but zeros. A frozen
#   parameter that has one counts.
# * **Numbers.** The norm, in whatever type you add up in, may be off by $10^{-5}$ of it, with 16-bit
#   gradients by $10^{-4}$, and you may divide by norm + $10^{-6}$, as torch does. A `max_norm` of 0 makes
#   zeros of all.
#
# <details><summary>Hint</summary>Squares are added, norms are not. Reduce the cut ones' sum only, in one
# dtype on every rank: a rank without gradients has none to take it from.</details>


# %% exercise="07.clip-grad-norm" difficulty=3 minutes=8
def clip_grad_norm(
    cut: Sequence[nn.Parameter], whole: Sequence[nn.Parameter], max_norm: float, group: dist.ProcessGroup
) -> Tensor:
    """Scale all gradients so that the norm of the whole model's gradient is at most `max_norm`.

    cut: parameters of which each rank has a block. whole: those that every rank has, with equal
    gradients. Parameters without a gradient are left out. Sums squares in float32 or better.
    All-reduces one number. Returns the norm before scaling, the same on every rank.
    """
    ### BEGIN SOLUTION
    of_cut, of_whole = square_sum(cut), square_sum(whole)
    dist.all_reduce(of_cut, group=group)
    norm = (of_cut + of_whole).sqrt()
    if norm > max_norm:
        for parameter in (*cut, *whole):
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm


def square_sum(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.zeros((), dtype=torch.float64, device=device())
    for gradient in gradients:
        total += gradient.double().square().sum()
    return total


### END SOLUTION


# %% check="07.clip-grad-norm"
labkit.check("07.clip-grad-norm", clip_grad_norm)

# %% [markdown]
# ## What PyTorch ships
#
# `parallelize_module` cuts a model that knows nothing of it, by a plan: a style for each module's name.
# Nothing in the plan is new to you. One line is worth a look: three separate projections read $x$, and
# without `PrepareModuleInput` each of them sums its own gradient of $x$ in backward, 3 all-reduces instead
# of 1.


# %%
def library_plan(layers: int) -> dict[str, object]:
    """Megatron's plan in DTensor's words, for labkit.model.Transformer with an untied head."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

    whole = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    plan: dict[str, object] = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),  # your embedding: rows of the vocabulary
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),  # logits stay cut
    }
    for layer in range(layers):
        plan |= {f"blocks.{layer}.{name}": whole for name in ("attention", "mlp")}  # one f for each
        columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
        plan |= {f"blocks.{layer}.{name}": ColwiseParallel() for name in columns}
        plan |= {f"blocks.{layer}.{name}": RowwiseParallel() for name in ("attention.output", "mlp.down")}
    return plan


def untied_model() -> Transformer:
    torch.manual_seed(0)
    config = gpt(2, 64, 4, vocabulary=256, max_sequence=64, dropout=0.0, tied_embeddings=False)
    return Transformer(config, explicit_attention).to(device())


def three_steps(model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
    losses = []
    for step in range(3):
        loss = loss_of(*batch(step))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.3 * weight.grad
        losses.append((loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item())
    return losses


def ours(group: dist.ProcessGroup) -> list[float]:
    model = TensorParallelGPT.from_full(untied_model(), group)
    return three_steps(model, model.loss)


def theirs(group: dist.ProcessGroup) -> list[float]:
    warnings.simplefilter("ignore")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    model = untied_model()
    mesh = init_device_mesh(device().type, (dist.get_world_size(group),))
    parallelize_module(model, mesh, library_plan(layers=2))
    with loss_parallel():  # your cross-entropy
        return three_steps(
            model, lambda ids, targets: F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        )


def unsplit(group: dist.ProcessGroup) -> list[float]:
    model = untied_model()
    return three_steps(model, model.loss)


jobs = {
    "one process": labkit.launch(unsplit, ranks=1),
    "ours, 4 ranks": labkit.launch(ours, ranks=4),
    "DTensor, 4 ranks": labkit.launch(theirs, ranks=4, timeout=120),
}
activation = 4 * 4 * 64 * 64  # bytes of [b, s, h]


def all_reduces(job: labkit.Job) -> list[int]:
    return [c.num_bytes for c in job.collectives if c.rank == 0 and c.op == "all_reduce"]


Table(
    ["", "loss 1", "loss 2", "loss 3", "all-reduces of bsh", "smaller ones", "bytes in all"],
    [
        [
            name,
            *(f"{loss:.5f}" for loss in job.results[0]),
            sum(n == activation for n in all_reduces(job)),
            sum(n != activation for n in all_reduces(job)),
            sum(all_reduces(job)),
        ]
        for name, job in jobs.items()
    ],
)

# %% [markdown]
# The same losses, and the same 30 all-reduces of $bsh$ numbers in three steps: $4L + 2$ a step, four for
# each of two blocks, one behind the table, one in front of the head. The smaller ones are the loss: your
# sums travel together (with a fourth number a token, for label smoothing), the library's one by one.
# Sequence parallelism is in the library too: `SequenceParallel()` for the norms, and `Shard(1)` as layout
# between the regions.

# %% [markdown]
# ## Where this leaves you
#
# You cut a whole transformer: heads, rows of the vocabulary, columns of the logits, and then the tokens in
# between. You know what is whole on every rank, and the two prices of that: memory, and care for whoever
# draws a random number or learns from its own tokens only. The loss sends a few numbers a token where it
# could have sent $V$.
#
# **Think about**
#
# 1. Your `initial_weight` gives another model for another $t$. How would you draw a block so that the model
#    is the same for every $t$, without ever holding a whole weight?
# 2. Recomputing a block in backward (lesson 05) runs its dropouts again. What must the checkpoint remember
#    of your two streams?
# 3. Sequence parallelism needs $t$ to divide $s$. A model generates its answer one token at a time. What
#    would you do?
#
# **To read**
#
# - Shoeybi et al., *Megatron-LM* (2019, arXiv 1909.08053), section 3: attention by heads, the embeddings,
#   and the loss that is fused with the output embedding.
# - Korthikanti et al., *Reducing activation recomputation in large transformer models* (2022, arXiv
#   2205.05198), section 4: the table above, sequence parallelism, and what selective recomputation adds.
# - Narayanan et al., *Efficient large-scale language model training on GPU clusters* (SC 2021, arXiv
#   2104.04473), section 3.2: $8bsh(t-1)/t$, beside what the other kinds of parallelism send.
# - The PyTorch tutorial *Large scale transformer model training with tensor parallel*.

# %% scoreboard=true
labkit.scoreboard("07")
