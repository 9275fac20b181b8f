# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "11", title: "Long context: one sequence over many ranks", minutes: 180}
# ---

# %% [markdown]
# # Long context: one sequence over many ranks
#
# Data parallelism gives every rank sequences of its own. But one of 131,072 tokens, as Llama 3 405B was
# trained on in the end, is too long for any one GPU: its activations alone would fill several. So ranks must
# share *one* sequence. Everything in a transformer works token by token, and does not mind, except
# attention: there every token looks at all tokens before it. **How can ranks compute attention over a
# sequence that none of them holds?**
#
# **You need** send and receive (lesson 00), a `torch.autograd.Function` (lesson 05), and attention itself.
# **You will have built** attention that never holds all scores, forward and backward, a fair way of cutting
# a sequence, and from them Ring Attention: keys and values travel round a ring of ranks, and each rank adds
# up what its queries see of them. Then the other way, Ulysses, which gives heads away for tokens, a loss
# over a divided sequence, and a whole GPT that trains on one. About 180 minutes: two sittings, the second
# from *The ring, with its backward* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import copy
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import labkit
from labkit.model import Transformer, explicit_attention, gpt
from labkit.parallel.block import TensorParallelBlock
from labkit.parallel.streams import RandomStreams
from labkit.show import Table, draw_timeline, prediction
from labkit.show.context import draw_exchange, draw_pairs
from labkit.show.target import target
from labkit.theory import preset
from labkit.theory.units import binary_text

# %load_ext labkit

# %% [markdown]
# ## What stands in the way
#
# Letters: $s$ tokens in a sequence, $d$ numbers in a head, $n$ ranks. For one head, queries, keys and values
# are matrices $Q, K, V$ of shape $[s, d]$, and
#
# $$S = \frac{Q K^\top}{\sqrt d}, \qquad P = \mathrm{softmax}(S), \qquad O = P V$$
#
# where query $i$ sees keys $0 \dots i$. The scores $S$ have $s^2$ numbers a head. How many is that?

# %%
heads = preset("Llama 3 405B").num_heads
Table(
    ["tokens", "scores of one layer, 16 bits", "keys and values of one layer"],
    [
        [s, binary_text(2 * heads * s * s), binary_text(2 * 2 * s * preset("Llama 3 405B").kv_width)]
        for s in (8192, 32_768, 131_072)
    ],
    caption="Llama 3 405B, one sequence",
)

# %% [markdown]
# Keys and values are small; scores are not. So scores must be made piece by piece, used and dropped. The
# softmax is in the way: each of its numbers is divided by a sum over the *whole* row.

# %% [markdown]
# ## Softmax in two halves
#
# Let a query see only *some* of the keys, a set $A$, and let $s_j$ be its score for key $j$. What it gets
# from those keys, and the logarithm of its softmax's denominator (`lse` in code: log, sum, exp), are
#
# $$o_A = \sum_{j \in A} e^{s_j - \ell_A}\, v_j, \qquad \ell_A = \log \sum_{j \in A} e^{s_j}$$
#
# Everything about $A$ that matters to anyone else is in this pair. For two sets of keys $A$ and $B$ that have
# nothing in common, the denominators add up, and each output counts by its share of the sum:
#
# $$\ell = \log\left(e^{\ell_A} + e^{\ell_B}\right), \qquad
# o = e^{\ell_A - \ell}\, o_A + e^{\ell_B - \ell}\, o_B$$
#
# Nothing is approximated. Scores of several hundreds occur, above 0 and below it, here and in all that
# follows, and $e^{800}$ is too large for any float: subtract before you take the exponential. And a query may
# have seen nothing at all so far: then $o_A = 0$ and $\ell_A = -\infty$.

# %% [markdown]
# ### Exercise: two partial attentions made one
#
# Write `merge`, which is these two formulas.
#
# <details><summary>Hint</summary>
#
# `torch.logaddexp` takes care of the larger one. Where the sum is $-\infty$, $-\infty - (-\infty)$ is not a
# number: put any finite number in its place before you subtract.
#
# </details>


# %% exercise="11.merge-partials" difficulty=2 minutes=10
def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from attention over each: (out, lse).

    out, other: [..., s, d]. lse, other_lse: [..., s]; zeros and -inf for a query that
    saw no key of that set, and again for one that saw none of either. What is given
    may be views, and is not changed.
    """
    ### BEGIN SOLUTION
    total = torch.logaddexp(lse, other_lse)
    finite = total.masked_fill(total.isneginf(), 0.0)
    shares = (lse - finite).exp(), (other_lse - finite).exp()
    return shares[0].unsqueeze(-1) * out + shares[1].unsqueeze(-1) * other, total
    ### END SOLUTION


# %% check="11.merge-partials"
labkit.check("11.merge-partials", merge)

# %% [markdown]
# ## Attention block by block
#
# With `merge`, attention needs no more than a block of scores at a time. Here is one block, with everything
# in sight. Where queries and keys are the *same* tokens, the block lies on the diagonal, and a mask hides
# the future.


# %%
def attend_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """A block of queries [..., c, d] over one of keys and values [..., e, d]: out
    [..., c, d], lse [..., c].

    diagonal: queries and keys are the same tokens, and query i sees keys 0 to i.
    Otherwise all are seen.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


# %% [markdown]
# For a sequence in $N$ blocks there are $N^2$ pairs of a block of queries and a block of keys. In $N (N-1)/2$
# of them every key is in the future: no need to compute those and throw them away.


# %%
draw_pairs([0, 0, 0, 0])

# %% [markdown]
# ### Exercise: attention block by block
#
# Go through the blocks of queries; for each, through the blocks of keys it sees, and merge. This is what
# FlashAttention does inside one GPU. Scores and probabilities of a pair, in any form, are gone when those of
# the next have been used. Beside q, k and v there are never more numbers than ten times the scores of a pair
# (those of all heads) and four times the output together. No tensor is larger than the scores of a pair or
# the output, whichever has more numbers. Partial outputs of one row of blocks may stay. A last block may be
# shorter; no pair of the future is computed for it either. What is given is not changed.
#
# <details><summary>Hint</summary>
#
# Begin each block of queries with its diagonal block: there every query sees at least itself, so there is a
# partial to merge the others into.
#
# </details>


# %% exercise="11.blockwise-attention" difficulty=2 minutes=12
def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Causal attention with scores of one pair of blocks at a time: out [..., s, d]
    and lse [..., s].

    q, k, v: [..., s, d]. block: tokens of a block; the last one may be shorter. Pairs
    that lie in the future are not computed, no tensor has more numbers than one pair's
    scores, or than the output, and scores of a pair, or what is made of them, in any
    form, are gone when those of the next have been used.
    """
    ### BEGIN SOLUTION
    outs, lses = [], []
    for start in range(0, q.shape[-2], block):
        rows = slice(start, start + block)
        partial = attend_block(q[..., rows, :], k[..., rows, :], v[..., rows, :], True)
        for first in range(0, start, block):
            keys = slice(first, first + block)
            before = attend_block(q[..., rows, :], k[..., keys, :], v[..., keys, :], False)
            partial = merge(*partial, *before)
        outs.append(partial[0])
        lses.append(partial[1])
    return torch.cat(outs, dim=-2), torch.cat(lses, dim=-1)
    ### END SOLUTION


# %% check="11.blockwise-attention"
labkit.check("11.blockwise-attention", blockwise_attention)

# %% [markdown]
# ## Backward, one block at a time
#
# Autograd would keep the probabilities of every block, and bring the $s^2$ numbers back. They need not be
# kept: with the row's $\ell$ from forward, any block of $P$ can be made again, $P = e^{S - \ell}$. From
# $\mathrm dO$, the gradient of the output, the chain rule gives
#
# $$\mathrm dV = P^\top \mathrm dO, \qquad \mathrm dP = \mathrm dO\, V^\top, \qquad
# \mathrm dS = P \circ (\mathrm dP - \delta), \qquad
# \mathrm dQ = \frac{\mathrm dS\, K}{\sqrt d}, \qquad \mathrm dK = \frac{\mathrm dS^\top Q}{\sqrt d}$$
#
# where $\delta_i = \sum_j P_{ij}\, \mathrm dP_{ij}$ belongs to the whole row. It looks as if it needed all
# blocks at once. It does not: exchange the sums, and $\delta_i = \mathrm dO_i \cdot O_i$, one number a query,
# known before the first block (Dao et al. 2022, arXiv 2205.14135).
#
# ### Exercise: the gradients of one block
#
# Write `block_backward`: what one block of queries and one of keys add to $\mathrm dQ$, $\mathrm dK$ and
# $\mathrm dV$. Scores may be several hundreds, as before.
#
# <details><summary>Hint</summary>
#
# Nothing of other blocks is needed but `lse` and `delta`, and both come in. Masked scores are $-\infty$, so
# their probabilities are 0, and with them every gradient that passes through.
#
# </details>


# %% exercise="11.block-backward" difficulty=3 minutes=15
def block_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, lse: Tensor, delta: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of one block, as parts of the whole rows' gradients.

    q, grad_out: [..., c, d]; k, v: [..., e, d]. lse, delta: [..., c], of the whole
    rows: delta is the sum of grad_out times the whole output. diagonal: as for
    `attend_block`. What is given may be views, and is not changed. Called within a
    Function's backward too, where autograd records nothing.
    """
    ### BEGIN SOLUTION
    scale = math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-2, -1) / scale
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    probabilities = (scores - lse.unsqueeze(-1)).exp()
    grad_probabilities = grad_out @ v.transpose(-2, -1)
    grad_scores = probabilities * (grad_probabilities - delta.unsqueeze(-1)) / scale
    return (
        grad_scores @ k,
        grad_scores.transpose(-2, -1) @ q,
        probabilities.transpose(-2, -1) @ grad_out,
    )
    ### END SOLUTION


# %% check="11.block-backward"
labkit.check("11.block-backward", block_backward)

# %% [markdown]
# ## Who gets which tokens
#
# Now cut the sequence over $n$ ranks. The obvious way: rank 0 the first $s/n$ tokens, rank 1 the next. Below,
# each pair of chunks has the colour of the rank that computes it, the one with the queries.

# %%
draw_pairs([0, 1, 2, 3])

# %% [markdown]
# Rank 0 has hardly anything to do, rank 3 has most, and everybody waits for rank 3. Before you go on:
# cut each of these chunks in two, so that there are 8, and a block for each pair. How many blocks does rank 3
# compute, with the last two?

# %% predict="last-rank-blocks"
your_blocks = ...

# %% [markdown]
# A fair cut: make $2n$ chunks, and give rank $r$ chunk $r$ from the front and chunk $2n - 1 - r$, as far from
# the end. Who has little work in one has much in the other (Llama 3, arXiv 2407.21783, section 3.3.2).

# %%
draw_pairs([0, 1, 2, 3, 3, 2, 1, 0])

# %%
contiguous = [sum(1 for i in (2 * r, 2 * r + 1) for j in range(i + 1)) for r in range(4)]
zigzag = [sum(1 for i in (r, 7 - r) for j in range(i + 1)) for r in range(4)]
Table(
    ["blocks computed", "your guess", "contiguous", "zigzag"],
    [[f"rank {r}", your_blocks if r == 3 else "", contiguous[r], zigzag[r]] for r in range(4)],
)

# %% [markdown]
# ### Exercise: a fair cut
#
# Two functions. `own_tokens` says which positions a rank has; where it refuses, its error names both numbers,
# of tokens and of ranks. `block_pairs` says what there is to compute when a rank holds the keys that rank
# `source` came with: pairs of one of its own two halves of queries, 0 or 1, with one of the two halves of
# keys.


# %% exercise="11.own-tokens" difficulty=2 minutes=10
def own_tokens(sequence: int, rank: int, ranks: int) -> list[int]:
    """A list of the positions of a rank's tokens: those of chunk `rank` of 2n, then of
    chunk 2n - 1 - rank.

    Raises ValueError, naming `sequence` and `ranks`, when 2n does not divide the sequence.
    """
    ### BEGIN SOLUTION
    size, rest = divmod(sequence, 2 * ranks)
    if rest:
        raise ValueError(f"2 x {ranks} chunks do not divide a sequence of {sequence} tokens")
    chunks = (rank, 2 * ranks - 1 - rank)
    return [chunk * size + i for chunk in chunks for i in range(size)]
    ### END SOLUTION


def block_pairs(rank: int, source: int, ranks: int) -> list[tuple[int, int, bool]]:
    """A list of (half of the rank's queries, half of source's keys, whether they are
    the same tokens), for each pair in which some query sees some key.
    """
    ### BEGIN SOLUTION
    queries, keys = (rank, 2 * ranks - 1 - rank), (source, 2 * ranks - 1 - source)
    return [(i, j, a == b) for i, a in enumerate(queries) for j, b in enumerate(keys) if b <= a]
    ### END SOLUTION


# %% check="11.own-tokens"
labkit.check("11.own-tokens", own_tokens, block_pairs)

# %% [markdown]
# ## Round the ring
#
# Each rank now has queries, keys and values of its own tokens. Its queries have to meet *all* keys before
# them. So let keys and values travel: in each step every rank passes those it holds to the next rank, and
# gets others from the one before. After step $i$ a rank holds what the $i$-th rank before it came with, and
# after $n - 1$ steps it has met everyone's. Meanwhile it computes: the next keys are on their way while
# blocks are made from these (Liu et al. 2023, arXiv 2310.01889).
#
# Passing on takes two messages a tensor, one out and one in. They are only *started* here: both run until you
# wait for them. A message leaves only while its receiver takes it: ranks that all send first, and wait until
# that has left, wait for ever.


# %%
def start_passing(tensors: list[Tensor], group: dist.ProcessGroup) -> tuple[list[Tensor], list[dist.Work]]:
    """Start sending tensors to the next rank of the group, and receiving those of the one before.

    Returns what will have come, and what to wait for before that is read, or anything sent is changed.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    after, before = ((rank + step) % ranks for step in (1, -1))
    coming = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
    calls = [dist.P2POp(dist.irecv, t, group=group, group_peer=before) for t in coming]
    calls += [dist.P2POp(dist.isend, t.contiguous(), group=group, group_peer=after) for t in tensors]
    return coming, dist.batch_isend_irecv(calls)  # together: one by one, NCCL would wait in the first


# %% [markdown]
# ### Exercise: keys and values go round
#
# Blocks are computed by the `attend` that is handed in, which is `attend_block` or something that behaves
# like it. What is passed in a step is under way during all blocks of that step, by sends and receives. That
# holds for the first step too, with the rank's own keys: start passing them before you compute any block,
# also those on the diagonal. Only the last step's two blocks have no message beside them, and those of a
# rank that is alone. Keys and values may share a message, or go in several. What is sent and returned has the
# dtype of q, k and v, float32 or float64.
#
# <details><summary>Hint</summary>
#
# Start each half of the queries with zeros and $-\infty$: a part that saw nothing. In each step start passing
# what you hold, compute with it, wait, and take what has come; in the last step there is nothing to pass.
# Whose keys are they now? Those of rank $r - i$ of the group, counted round.
#
# </details>


# %% exercise="11.ring-forward" difficulty=4 minutes=20
def ring_forward(
    q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, attend: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Causal attention of this rank's queries over the whole sequence: out [..., c, d]
    and lse [..., c].

    q, k, v: [..., c, d], of the tokens that `own_tokens` gives this rank; often views,
    not contiguous, and not to be changed. Sends 2(n - 1) tensors, in messages of any
    size, to the next rank of the group, each while blocks are computed. No other rank's
    keys and values have come more than one step before their blocks are computed.
    attend(q, k, v, diagonal): one block, as `attend_block`. Asked for 2n + 1 blocks of
    a half by a half, or as much in other pieces: none of the future.
    """
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    queries, held = q.chunk(2, dim=-2), [k, v]
    partials = [(torch.zeros_like(half), torch.full_like(half[..., 0], float("-inf"))) for half in queries]
    for step in range(ranks):
        coming, works = start_passing(held, group) if step < ranks - 1 else (held, [])
        keys, values = (t.chunk(2, dim=-2) for t in held)
        for i, j, diagonal in block_pairs(rank, (rank - step) % ranks, ranks):
            partials[i] = merge(*partials[i], *attend(queries[i], keys[j], values[j], diagonal))
        for work in works:
            work.wait()
        held = coming
    return torch.cat([out for out, _ in partials], dim=-2), torch.cat([lse for _, lse in partials], dim=-1)
    ### END SOLUTION


# %% check="11.ring-forward"
labkit.check("11.ring-forward", ring_forward)

# %% [markdown]
# Now look at your ring on four ranks. While the blocks of one step are computed, the messages of the next are
# under way.


# %%
target("11-ring")


# %%
def device() -> torch.device:
    """Where this rank's tensors live: its own GPU under NCCL, the CPU under gloo."""
    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def one_sequence(s: int, d: int, heads: int) -> list[Tensor]:
    """q, k, v and a gradient of the output, the same on every rank."""
    torch.manual_seed(0)
    return [torch.randn(1, heads, s, d, dtype=torch.float64).to(device()) for _ in range(4)]


def with_spans(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    with labkit.span("block", kind="forward"):
        return attend_block(q, k, v, diagonal)


def go_round(group: dist.ProcessGroup) -> float:
    q, k, v, _ = one_sequence(1024, 32, 4)
    own = torch.tensor(own_tokens(1024, dist.get_rank(group), dist.get_world_size(group)), device=device())
    dist.barrier(group)
    out, _ = ring_forward(*(t[..., own, :] for t in (q, k, v)), group, with_spans)
    whole, _ = blockwise_attention(q, k, v, 256)
    return float((out - whole[..., own, :]).abs().max())


job = labkit.launch(go_round, ranks=4)
print(f"furthest from one process: {max(job.results):.1e}")
draw_timeline(job)

# %% [markdown]
# ## The ring, with its backward
#
# In backward the keys and values go round once more, and with them goes something new: the sums of their
# gradients. Every rank adds what its queries have to say about the keys it holds, and passes the sum on. A
# sum must follow its keys through all ranks *and then come home*: $n$ steps, where keys and values need
# $n - 1$. With $k$, $v$, $\mathrm dk$ and $\mathrm dv$ each a message, that is $2(n-1) + 2n = 4n - 2$ of
# them. (Keys and values may be stacked into one message, and their sums too: it is the same bytes.) Gradients
# of the queries stay where they are.
#
# What is kept from forward: $q$, $k$ and $v$, themselves and not copies, the output and $\ell$, of a rank's
# own tokens. Nothing of anybody else's.
#
# ### Exercise: ring attention
#
# Write both passes of `RingAttention`. In either, keys and values of other ranks, and the sums of their
# gradients, are there for one step and on their way for the next: never those of all ranks together. Several
# tensors may go as one message; what is counted is bytes, and when they go is not looked at in this exercise.
# All that is sent and returned, gradients too, has the dtype of q, k and v, float32 or float64. Some of these
# three may need no gradient.
#
# <details><summary>Hint</summary>
#
# `tensor.chunk(2, dim=-2)` gives views: adding to one of them adds to the tensor. The sums must not be passed
# on before the last block of the step has been added, and must be passed on in the last step too.
#
# </details>


# %% exercise="11.ring-attention" difficulty=5 minutes=30
class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        """q, k, v: [..., c, d], of the tokens `own_tokens` gives this rank; often
        views, and not changed.

        Returns out [..., c, d]. 2n - 2 tensors go to the next rank. What backward needs
        is saved by `ctx.save_for_backward`: as attributes, output and graph hold each other.
        """
        ### BEGIN SOLUTION
        out, lse = ring_forward(q, k, v, group, attend_block)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_out):
        """Gradients of q, k and v, of the rank's own tokens; neither grad_out nor the
        output is changed. 4n - 2 tensors go to the next rank, none where there is no other.
        """
        ### BEGIN SOLUTION
        q, k, v, out, lse = ctx.saved_tensors
        group = ctx.group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        delta = (grad_out * out).sum(-1)
        rows = [t.chunk(2, dim=-2) for t in (q, grad_out)]
        row_sums = [t.chunk(2, dim=-1) for t in (lse, delta)]
        grad_q = torch.zeros_like(q)
        held, sums = [k, v], [torch.zeros_like(k), torch.zeros_like(v)]
        for step in range(ranks):
            coming, works = start_passing(held, group) if step < ranks - 1 else (held, [])
            keys, values = (t.chunk(2, dim=-2) for t in held)
            for i, j, diagonal in block_pairs(rank, (rank - step) % ranks, ranks):
                own_q, own_grad, own_lse, own_delta = (t[i] for t in (*rows, *row_sums))
                dq, dk, dv = block_backward(own_q, keys[j], values[j], own_grad, own_lse, own_delta, diagonal)
                grad_q.chunk(2, dim=-2)[i].add_(dq)
                sums[0].chunk(2, dim=-2)[j].add_(dk)
                sums[1].chunk(2, dim=-2)[j].add_(dv)
            arriving, sum_works = start_passing(sums, group) if ranks > 1 else (sums, [])
            for work in works + sum_works:
                work.wait()
            held, sums = coming, arriving
        return grad_q, *sums, None
        ### END SOLUTION


# %% check="11.ring-attention"
labkit.check("11.ring-attention", RingAttention)

# %% [markdown]
# ## The same numbers as PyTorch's own attention
#
# PyTorch's fused `scaled_dot_product_attention` on the whole sequence, in one process, against your ring on
# four ranks: output and all three gradients.


# %%
def ours(group: dist.ProcessGroup) -> list[Tensor]:
    q, k, v, grad = one_sequence(256, 32, 4)
    own = torch.tensor(own_tokens(256, dist.get_rank(group), dist.get_world_size(group)), device=device())
    leaves = [t[..., own, :].requires_grad_() for t in (q, k, v)]
    out = RingAttention.apply(*leaves, group)
    (out * grad[..., own, :]).sum().backward()
    return [t.cpu() for t in (own, out.detach(), *(leaf.grad for leaf in leaves))]


q, k, v, grad = one_sequence(256, 32, 4)
leaves = [t.requires_grad_() for t in (q, k, v)]
whole = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
(whole * grad).sum().backward()
expected = [whole.detach(), *(leaf.grad for leaf in leaves)]
job = labkit.launch(ours, ranks=4)
Table(
    ["", "rank 0", "rank 1", "rank 2", "rank 3"],
    [
        [
            name,
            *(
                f"{(result[i + 1] - expected[i][..., result[0], :]).abs().max():.1e}"
                for result in job.results
            ),
        ]
        for i, name in enumerate(("output", "gradient of q", "gradient of k", "gradient of v"))
    ],
    caption="Furthest apart, in float64",
)

# %% [markdown]
# ## The other way: heads for tokens
#
# A ring brings all keys to all queries. There is another way to compute attention over a sequence that is
# divided: do not divide it, but divide the heads. A head needs all tokens, and no other head. So before
# attention let every rank give away its tokens of the heads that others compute, and get everybody's tokens
# of its own heads; afterwards the other way round (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509).
# What happens between is attention over a whole sequence, by whatever kernel there is.
#
# Every rank computes equally many heads over equally many tokens, so nothing has to be cut in a zigzag: of
# $n$ equal parts of the sequence, rank $r$ has part $r$.

# %%
draw_exchange(heads=8, ranks=4)

# %% [markdown]
# This trade is an all-to-all: every rank sends another part to each rank. `dist.all_to_all_single(into,
# given)` cuts `given` into $n$ parts along its *first* dimension, sends the $i$-th to rank $i$, and puts
# what comes from rank $i$ into the $i$-th part of `into`.
#
# It is linear, and the gradient of what rank $i$ got from rank $j$ must go back to rank $j$: **what is the
# backward of an exchange of heads for tokens?** And with fewer key-value heads than heads, which ranks need
# which of them?
#
# ### Exercise: heads for tokens
#
# `Exchange` gives away pieces along one dimension and joins what comes along another one; with it, attention
# is four lines. You may do without `Exchange`: what is checked is `ulysses_attention`. `attend` is handed in:
# attention of some heads over a whole sequence, whose output may lie in memory in any order, as that of fused
# kernels does. What is sent goes by all-to-alls, or by sends and receives of the pieces.
#
# <details><summary>Hint</summary>
#
# `torch.stack(x.chunk(n, dim))` has the pieces along a new first dimension, in memory of its own, and
# `torch.cat(pieces.unbind(), dim)` is its inverse. In backward what was joined is cut, and what was cut is
# joined: the same class does it.
#
# </details>


# %% exercise="11.ulysses" difficulty=4 minutes=15
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, joined, group):
        """Cut x into n pieces along dim `cut`, send the i-th to rank i of the group,
        and join what comes, in the order of ranks, along dim `joined`.
        """
        ### BEGIN SOLUTION
        ctx.back = joined, cut, group
        pieces = torch.stack(x.chunk(dist.get_world_size(group), dim=cut))
        coming = torch.empty_like(pieces)
        dist.all_to_all_single(coming, pieces, group=group)
        return torch.cat(coming.unbind(), dim=joined)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """The gradient of x, and None for what is not differentiated."""
        ### BEGIN SOLUTION
        return Exchange.apply(grad, *ctx.back), None, None, None
        ### END SOLUTION


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: dist.ProcessGroup,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Causal attention of this rank's queries over the whole sequence: [b, a, c, d].

    q: [b, a, c, d]; k, v: [b, key-value heads, c, d], of the rank's n-th of the
    tokens, in their order; often views that are not contiguous, and not to be changed.
    attend(q, k, v): the same of whole sequences, with an n-th of both kinds of heads.
    Sends (n-1)/n of q, k, v and of the output, in their dtype. Raises ValueError, naming
    both numbers, when n does not divide the heads or the key-value heads, before
    anything is sent.
    """
    ### BEGIN SOLUTION
    ranks = dist.get_world_size(group)
    for heads in (q.shape[1], k.shape[1]):
        if heads % ranks:
            raise ValueError(f"{heads} heads do not divide among {ranks} ranks")
    whole = [Exchange.apply(t, 1, 2, group) for t in (q, k, v)]
    return Exchange.apply(attend(*whole), 2, 1, group)
    ### END SOLUTION


# %% check="11.ulysses"
labkit.check("11.ulysses", ulysses_attention)

# %% [markdown]
# Neighbouring heads share a key-value head. So of $n$ equal parts, part $i$ of the heads needs part $i$ of
# the key-value heads: nothing else has to be thought of, as long as $n$ divides both.


# %%
def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's attention, some queries' heads to each of the keys'."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def by_heads(group: dist.ProcessGroup) -> tuple[float, float]:
    """How far output and gradient of the queries are from one process."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    q, k, v, grad = one_sequence(256, 32, 8)
    q, k, v = q.requires_grad_(), k[:, :4], v[:, :4]
    whole = fused(q, k, v)
    (expected,) = torch.autograd.grad(whole, q, grad)
    whole = whole.detach()
    own_q = q.detach().chunk(ranks, dim=2)[rank].clone().requires_grad_()
    own_k, own_v, own_grad, own_expected, own_whole = (
        t.chunk(ranks, dim=2)[rank] for t in (k, v, grad, expected, whole)
    )
    out = ulysses_attention(own_q, own_k, own_v, group, fused)
    out.backward(own_grad.contiguous())
    out, gradient = out.detach(), own_q.grad
    return float((out - own_whole).abs().max()), float((gradient - own_expected).abs().max())


job = labkit.launch(by_heads, ranks=4)
Table(
    ["furthest from one process", "rank 0", "rank 1", "rank 2", "rank 3"],
    [
        ["output", *(f"{out:.1e}" for out, _ in job.results)],
        ["gradient of q", *(f"{gradient:.1e}" for _, gradient in job.results)],
    ],
    caption="8 heads, 4 for keys and values, 256 tokens, in float64",
)

# %% [markdown]
# ## What each of them sends
#
# Letters: $a$ heads, $k$ of them for keys and values. In forward of a ring a rank sends keys and values of
# $s/n$ tokens $n - 1$ times. With Ulysses it sends $\frac{n-1}{n}$ of its queries, keys, values and output.
# Before you write it as a function: Llama 3 8B has $a = 32$ and $k = 8$. **On more than how many ranks
# does Ulysses send less?**

# %% predict="ulysses-sends-less-from"
your_ranks = ...

# %% [markdown]
# ### Exercise: what a rank sends
#
# Write `context_bytes` for both ways, forward and backward. (In backward Ulysses sends the gradients of the
# four, and nothing again.) It is enough that $n$ divides $s$: $2n$ has to for the cut of `own_tokens` alone.
# One rank by itself sends nothing, either way.


# %% exercise="11.context-bytes" difficulty=2 minutes=5
def context_bytes(
    way: str,
    sequence: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    ranks: int,
    backward: bool = False,
    element: int = 2,
) -> float:
    """Bytes that leave one rank in the forward, or the backward, of one layer's
    attention over one sequence.

    way: "ring" (yours above) or "ulysses". element: bytes of a number. Raises
    ValueError for another way, and where the ranks do not divide the sequence, or with
    Ulysses either kind of heads.
    """
    ### BEGIN SOLUTION
    divided = {"ring": [sequence], "ulysses": [sequence, heads, kv_heads]}
    if way not in divided or any(number % ranks for number in divided[way]):
        raise ValueError(f"{way}: expected ring or ulysses, and {ranks} ranks that divide {divided.get(way)}")
    tokens = sequence // ranks
    if way == "ulysses":
        return 2 * (heads + kv_heads) * head_size * tokens * element * (ranks - 1) / ranks
    tensors = 2 * (ranks - 1) + (2 * ranks if backward and ranks > 1 else 0)
    return tensors * kv_heads * head_size * tokens * element
    ### END SOLUTION


# %% check="11.context-bytes"
labkit.check("11.context-bytes", context_bytes)

# %%
shape = (131_072, 32, 8, 128)
Table(
    ["ranks", "ring, forward", "Ulysses, forward", "ring / Ulysses", "n k / (a + k)", "ring, backward"],
    [
        [
            n,
            binary_text(context_bytes("ring", *shape, n)),
            binary_text(context_bytes("ulysses", *shape, n)),
            f"{context_bytes('ring', *shape, n) / context_bytes('ulysses', *shape, n):.2f}",
            f"{n * 8 / (32 + 8):.2f}",
            binary_text(context_bytes("ring", *shape, n, backward=True)),
        ]
        for n in (2, 4, 8)
    ],
    caption="Llama 3 8B, 131,072 tokens: sent by a rank in one layer",
)

# %% reveals="ulysses-sends-less-from"
prediction("Ulysses sends less on more ranks than (a + k) / k", your_ranks, (32 + 8) / 8, "computed")

# %% [markdown]
# A ring's bytes grow a little with $n$, those of Ulysses fall: their ratio is $\frac{nk}{a + k}$. But a
# ring's messages may cost nothing, where they travel behind the blocks. A block of $c$ queries and $c$ keys
# of one head takes $4 d c^2$ operations and $4 d c$ bytes in 16 bits, so that a GPU of $F$ operations a
# second and a link of $B$ bytes a second need $c \ge F / B$ tokens. The paper holds six blocks of that size
# on a device and prints this table of shortest sequences (Liu et al. 2023, table 2):

# %%
printed = [
    ("A100, NVLink", 312, 300, "1.0", "6.2"),
    ("A100, InfiniBand", 312, 12.5, "24.5", "149.5"),
    ("TPU v3", 123, 112, "1.1", "6.6"),
    ("TPU v4", 275, 268, "1.0", "6.2"),
    ("TPU v5e", 196, 186, "1.1", "6.3"),
]
Table(
    ["", "TFLOP/s", "GB/s", "c = F/B, thousands", "printed", "6c, thousands", "printed"],
    [
        [name, flops, link, f"{flops / link:.1f}", block, f"{6 * flops / link:.1f}", sequence]
        for name, flops, link, block, sequence in printed
    ],
    caption="Tokens on a device from which a ring's messages disappear behind its blocks",
)

# %% [markdown]
# Four rows come out as printed. The row of InfiniBand does not: 312/12.5 is 25.0, and six times that 149.8.
# These are whole blocks. Your ring is causal, and in a step it computes two of the four pairs of halves: half
# the operations for the same bytes, so it needs $2F/B$ tokens.
#
# With $a/k$ query heads to each key-value head the same keys serve more queries, and your ring needs
# $2\frac{F}{B} \cdot \frac{k}{a}$ tokens.
#
# **Ring or Ulysses?**
#
# | | ring | Ulysses |
# |---|---|---|
# | ranks | any number, where $2n$ divides $s$ | no more than key-value heads, which are cut for TP too |
# | sends | nearly all keys and values, whatever $n$ | an $n$-th of that and of queries and output |
# | when | behind the blocks, where these are long enough | before and after attention: nothing hides it |
# | links | to one neighbour | from everybody to everybody: inside a node |
# | attention | in blocks, with their lse | any kernel, any mask |
#
# Both at once (USP, Fang and Zhao 2024, arXiv 2405.07719): Ulysses among the GPUs of a node, a ring from
# node to node.

# %% [markdown]
# ## One loss
#
# Everything else in a transformer works token by token, also on a rank's own tokens, but for its two ends.
# Positions: a rank must add, or turn by, those of *its* tokens, which are not 0, 1, 2, ... And the loss is a
# mean over the targets of the sequence, of which some are ignored: those of the prompt in fine-tuning, and
# padding. Ranks hold equally many tokens, but not equally many targets; one may hold none.
#
# So ranks add up two numbers: their sum of losses, and their number of targets. What each returns is the same
# mean, and what it differentiates is its own part of it: $\frac{1}{N} \sum_{\text{own}} \ell_i$ with the
# $N$ of all ranks. Gradients of weights are then *summed* over ranks, and nothing is divided any more.
#
# ### Exercise: the loss of a divided sequence
#
# Write `sharded_loss`, with the value of all targets and the gradient of the rank's own. The loss is returned
# in the dtype in which it is computed: float32 for logits of 16 bits too. The sum and the number may travel
# together or each in a call of its own.
#
# <details><summary>Hint</summary>
#
# `F.cross_entropy` has `reduction="sum"`, which over no targets is 0 and not nan. To return the value of all
# and the gradient of your own: add what the others have as a number that is not differentiated.
#
# </details>


# %% exercise="11.sharded-loss" difficulty=3 minutes=10
def sharded_loss(logits: Tensor, targets: Tensor, group: dist.ProcessGroup, ignore: int = -100) -> Tensor:
    """Mean cross-entropy over all targets of the group, the same on every rank; 0
    where there is none.

    logits: [b, c, V], targets: [b, c], of this rank's tokens; where a target is `ignore`
    there is none. Computed in float32, or float64 where the logits are. Backward gives
    this rank's part of the gradient: the parts of all ranks add up to the whole's. A sum
    and a number are sent, also where no graph is made, and in backward nothing. What is
    given may be views, and is not changed.
    """
    ### BEGIN SOLUTION
    exact = logits if logits.dtype == torch.float64 else logits.float()
    own = F.cross_entropy(exact.flatten(0, 1), targets.flatten(), ignore_index=ignore, reduction="sum")
    totals = torch.stack((own.detach(), (targets != ignore).sum().to(own.dtype)))
    dist.all_reduce(totals, group=group)
    whole, count = totals[0], totals[1].clamp(min=1)
    return (own - own.detach() + whole) / count  # 0 first: the same to the last bit on every rank
    ### END SOLUTION


# %% check="11.sharded-loss"
labkit.check("11.sharded-loss", sharded_loss)

# %% [markdown]
# ## A whole model
#
# Put it together: a GPT whose sequences are divided over a *context* group. Weights are whole on every rank,
# or their heads are cut over a *tensor* group, as in lesson 07; several replicas have other sequences. Who
# has what:
#
# | group | its ranks have | gradients of weights |
# |---|---|---|
# | context | other tokens of the same sequences | parts of one sum |
# | tensor | the same tokens, other heads | of other weights; of norms and tables, the same |
# | batch | all tokens there are: replicas times context | parts of one sum |
#
# So data and context parallelism are one thing for weights: one sum over the batch group, of a loss that
# is a mean over the batch group's targets.
#
# `TensorParallelBlock(block, group, streams)` is lesson 07's, from `labkit.parallel`: it makes a rank's part
# of a block, and calls `block.attention.attend(q, k, v, dropout)` with tensors [b, a/t, c, d]. What you put
# there decides how attention is computed. `streams` are lesson 07's `RandomStreams(seed, group)`, with the
# tensor group: dropout draws from them, and where there is none any seed will do. The part that it makes has
# copies of the block's weights.
#
# ### Exercise: a GPT on divided sequences
#
# Between ranks with other tokens go the messages of the ring, the two numbers of a loss, and the gradients,
# and nothing else. Each gradient is summed once, over the batch group: not over the context group first and
# over the replicas then. A head that is tied to the table is one parameter with it, and has one gradient. Of
# the whole model a rank keeps its part alone once it is built. All parameters are trained; `sum_gradients` is
# called once, after one backward.
#
# <details><summary>Hint 1</summary>
#
# A deep copy of the whole model keeps the head tied to the table; copies of its parts, one by one, do not.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.positions(own)` with the positions of the rank's own tokens, as a tensor of whole numbers. Rows of
# other ranks' positions get a gradient of zeros, which the sum over ranks fills.
#
# </details>


# %% exercise="11.context-parallel-gpt" difficulty=5 minutes=20
class ContextParallelGPT(nn.Module):
    def __init__(
        self,
        full: Transformer,
        context: dist.ProcessGroup,
        tensor: dist.ProcessGroup,
        batch: dist.ProcessGroup,
    ):
        """This rank's part of `full`, a GPT without dropout, which is left alone. All is
        computed, sent and returned in the dtype of its parameters, float32 or float64.

        context: ranks that share each sequence, cut as `own_tokens` says. tensor: ranks that share
        heads, with the same tokens. batch: all ranks with tokens of the batch, replicas times
        context. Made here, by the names they have in `full`: copies of `tokens`, `positions`,
        `norm` and `head`, tied where full's are, and `blocks`, a TensorParallelBlock for each.
        """
        super().__init__()
        self.context, self.batch = context, batch
        ### BEGIN SOLUTION
        whole, streams = copy.deepcopy(full), RandomStreams(0, tensor)
        self.tokens, self.positions = whole.tokens, whole.positions
        self.norm, self.head = whole.norm, whole.head
        self.blocks = nn.ModuleList(TensorParallelBlock(block, tensor, streams) for block in whole.blocks)
        for block in self.blocks:
            block.attention.attend = lambda q, k, v, dropout: RingAttention.apply(q, k, v, context)
        ### END SOLUTION

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """ids, targets: [b, c], of this rank's rows and tokens; b and c may be others in every call.
        A target of -100 is none. The mean over all targets of the batch, the same on every rank.
        """
        ### BEGIN SOLUTION
        rank, ranks = dist.get_rank(self.context), dist.get_world_size(self.context)
        own = torch.tensor(own_tokens(ids.shape[1] * ranks, rank, ranks), device=ids.device)
        x = self.tokens(ids) + self.positions(own)
        for block in self.blocks:
            x = block(x)
        return sharded_loss(self.head(self.norm(x)), targets, self.batch)
        ### END SOLUTION

    def sum_gradients(self) -> None:
        """After backward: every parameter's gradient is that of the whole batch."""
        ### BEGIN SOLUTION
        for parameter in self.parameters():
            dist.all_reduce(parameter.grad, group=self.batch)
        ### END SOLUTION


# %% check="11.context-parallel-gpt"
labkit.check("11.context-parallel-gpt", ContextParallelGPT)

# %% [markdown]
# Train it on the first lines of this course's own source of a transformer: two replicas with two pieces of
# each sequence, and one process beside it.


# %%
def small_gpt() -> Transformer:
    torch.manual_seed(0)
    shape = gpt(2, 32, 4, vocabulary=256, max_sequence=32, dropout=0.0)
    return Transformer(shape, explicit_attention).double().to(device())


def one_batch() -> tuple[Tensor, Tensor]:
    """ids and targets [4, 32], the same in every step; the first 10 targets of each row are ignored."""
    text = Path(labkit.__file__).with_name("model.py").read_bytes()
    ids = torch.tensor(list(text[: 4 * 32 + 1]), device=device())
    targets = ids[1:].clone().view(4, 32)
    targets[:, :10] = -100
    return ids[:-1].view(4, 32), targets


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad


def train_divided(group: dist.ProcessGroup) -> list[float]:
    """2 replicas x 2 pieces of a sequence."""
    replica, piece = divmod(dist.get_rank(group), 2)
    context = [dist.new_group([0, 1]), dist.new_group([2, 3])][replica]
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank(group)]
    model, losses = ContextParallelGPT(small_gpt(), context, alone, group), []
    own = torch.tensor(own_tokens(32, piece, 2), device=device())
    for _ in range(5):
        model.zero_grad()
        ids, targets = (t.chunk(2)[replica][:, own] for t in one_batch())
        loss = model.loss(ids, targets)
        loss.backward()
        model.sum_gradients()
        descend(model)
        losses.append(loss.item())
    return losses


def train_whole(group: dist.ProcessGroup) -> list[float]:
    model, losses = small_gpt(), []
    for _ in range(5):
        model.zero_grad()
        ids, targets = one_batch()
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        descend(model)
        losses.append(loss.item())
    return losses


divided, whole_run = labkit.launch(train_divided, ranks=4), labkit.launch(train_whole, ranks=1)
Table(
    ["step", "2 replicas x 2 pieces", "one process", "apart"],
    [
        [step, f"{ours:.6f}", f"{theirs:.6f}", f"{abs(ours - theirs):.1e}"]
        for step, (ours, theirs) in enumerate(zip(divided.results[0], whole_run.results[0], strict=True))
    ],
)

# %% [markdown]
# ## How Llama 3 did it
#
# Llama 3 405B was trained in the end on 131,072 tokens, with 16 ranks to a sequence, beside 8 for tensor and
# 16 for pipeline parallelism. Table 4 of the paper (arXiv 2407.21783) gives the three rows below. Its number
# of replicas in the last row differs between versions of the paper, 4 and 8: only one of them uses all
# 16,384 GPUs and has 16 million tokens in a batch.

# %%
Table(
    ["GPUs", "TP", "CP", "PP", "DP", "product", "tokens in a sequence", "sequences a replica", "tokens"],
    [
        [gpus, tp, cp, pp, dp, tp * cp * pp * dp, s, batch, f"{s * batch * dp / 1e6:.1f} million"]
        for gpus, tp, cp, pp, dp, s, batch in (
            (8192, 8, 1, 16, 64, 8192, 32),
            (16_384, 8, 1, 16, 128, 8192, 16),
            (16_384, 8, 16, 16, 4, 131_072, 16),
            (16_384, 8, 16, 16, 8, 131_072, 16),
        )
    ],
    caption="The last row with 4 replicas, and with 8",
)

# %% [markdown]
# Llama 3 cuts the sequence as you did, in a zigzag, but neither sends keys round nor exchanges heads: every
# rank *gathers* all keys and values, and then computes its own queries' attention in one go. Ulysses could
# not have done it: of 8 key-value heads, tensor parallelism over 8 ranks leaves one to each. And gathering is
# cheap for the same reason: one head of 128 numbers for 131,072 tokens, keys and values in 16 bits.

# %%
print(binary_text(2 * 2 * 128 * 131_072), "of gathered keys and values, for 16 heads of queries")

# %% [markdown]
# Any mask is then easy, as attention sees whole keys: documents in one sequence must not see each other. What
# it gives up is what a ring has: the messages are not behind the blocks, and the memory grows with $s$.

# %% [markdown]
# ## Beside PyTorch's own ring
#
# On GPUs, `torch.distributed.tensor.experimental.context_parallel` does such a ring to any model that calls
# `scaled_dot_product_attention`. It does not run on CPUs, but what it is made of does, with the CPU's own
# attention for blocks. **These functions are private**: they are here for a comparison, may change with any
# version, and are nothing to build on.


# %%
def torchs_ring(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Output, and gradients of q, k and v, of tokens in a zigzag, by private functions of PyTorch's."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as private

    private.set_rotate_method("alltoall")  # by itself it gathers all keys and values first
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, lse, *_ = private._templated_ring_attention(
        group, 2, forward, q, k, v, is_causal=True, dropout_p=0.0
    )
    gradients = private._templated_ring_attention_backward(
        group, 2, backward, grad, "grad_out", q, k, v, out, lse, is_causal=True, dropout_p=0.0
    )
    return [out, *gradients[:3]]


def both_rings(group: dist.ProcessGroup) -> list[float]:
    """How far ours and theirs are apart, in float32."""
    own = torch.tensor(own_tokens(512, dist.get_rank(group), dist.get_world_size(group)))
    q, k, v, grad = (t[..., own, :].float() for t in one_sequence(512, 32, 4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = RingAttention.apply(*leaves, group)
    out.backward(grad)
    mine = [out.detach(), *(leaf.grad for leaf in leaves)]
    theirs = torchs_ring(q, k, v, grad, group)
    return [float((a - b).abs().max()) for a, b in zip(mine, theirs, strict=True)]


job = labkit.launch(both_rings, ranks=4, backend="gloo")
Table(
    ["furthest from PyTorch's ring", "rank 0", "rank 1", "rank 2", "rank 3"],
    [
        [name, *(f"{result[i]:.1e}" for result in job.results)]
        for i, name in enumerate(("output", "gradient of q", "gradient of k", "gradient of v"))
    ],
    caption="512 tokens on 4 ranks, in float32",
)

# %% [markdown]
# ## Where this leaves you
#
# You merged softmaxes of parts into that of the whole, computed attention without its scores ever being
# there together, and took its gradients block by block from two numbers a row. You cut a sequence so that
# every rank has the same work, and sent keys, values and the sums of their gradients round a ring of ranks.
# You gave heads away for tokens instead, and know what either sends. A GPT trained on divided sequences, with
# replicas beside it, as one process would have done.
#
# **Think about**
#
# 1. Rotary positions turn each query and key by its place in the sequence. Which positions does a rank need
#    here, and what goes wrong if it counts its own tokens from 0?
# 2. Eight key-value heads, four nodes of eight GPUs. Ulysses within a node and a ring between nodes: how many
#    ranks share a sequence, and what does each send to another node in forward?
# 3. Recomputation (lesson 05) runs forward once more. What does a ring send then, and what could be kept so
#    that it does not?
#
# **To read**
#
# - Liu et al., *Ring attention with blockwise transformers for near-infinite context* (2023, arXiv
#   2310.01889).
# - Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018, arXiv 1805.02867).
# - Dao et al., *FlashAttention* (2022, arXiv 2205.14135), appendix B: the backward you wrote.
# - Jacobs et al., *DeepSpeed Ulysses* (2023, arXiv 2309.14509), and Fang and Zhao, *USP* (2024, arXiv
#   2405.07719), which puts both together.
# - Llama team, *The Llama 3 herd of models* (2024, arXiv 2407.21783), section 3.3.2: context parallelism at
#   131,072 tokens.

# %% scoreboard=true
labkit.scoreboard("11")
