# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "12", title: "Experts: a model of which each token uses a part", minutes: 150}
# ---

# %% [markdown]
# # Experts: a model of which each token uses a part
#
# DeepSeek-V3 has 671 billion parameters, and each token is multiplied with 37 billion of them. The MLP of a
# layer is not one but 256, called *experts*, and a small matrix, the *router*, sends each token to 8. So the
# model is large and a token is cheap. But 58 layers of 256 experts fit on no GPU; they lie on many, and the
# tokens too.
# **How does a token get to an expert that lives on another rank, and back, and how do gradients?**
#
# **You need** all-to-all and groups (lesson 00), a `torch.autograd.Function` (lesson 05), and what data
# parallelism does with gradients (lesson 03). **You will have built** a layer of experts over any number of
# ranks that gives what one process gives, number for number, and what keeps it trainable: balance, a
# capacity, gradients and their norm over two kinds of parameters. About 150 minutes: two sittings, the
# second from *Balance* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import math
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

import labkit
from labkit.model import Mixture
from labkit.show import Table, draw_timeline, prediction
from labkit.show.experts import draw_dispatch, draw_visits
from labkit.show.target import target
from labkit.theory import ModelConfig, llama, preset
from labkit.theory.models import MixtureOfExperts
from labkit.theory.units import binary_text

# %load_ext labkit

# %% [markdown]
# ## What an expert is
#
# Letters: $n$ tokens of $h$ numbers, $E$ experts, of which each token visits $k$. An expert is an MLP as in
# any transformer. The router has a row of $h$ numbers for each expert, and turns a token $x$ into
# probabilities:
#
# $$p = \mathrm{softmax}(W x), \qquad y = \sum_{e \in \text{the } k \text{ highest}} g_e \,
# \mathrm{expert}_e(x), \qquad g_e = \frac{p_e}{\sum_{\text{chosen}} p}$$
#
# The *gates* $g$ are what remains of $p$ when only the chosen ones count, and they add up to 1 (Mixtral,
# arXiv 2401.04088, section 2.1, takes the softmax of the $k$ highest scores, which is the same). The chosen
# experts' numbers are whole, and have no gradient. The router learns through its gates: an expert that helped
# gets more weight next time.
#
# Two of those probabilities can lie close together, and then rounding decides. bfloat16 keeps 8 bits: 0.30
# and 0.301 are the same number. So the router works in float32 even where nothing else does (Switch
# Transformer, arXiv 2101.03961, section 2.4): it is less than a hundredth of the arithmetic.

# %% [markdown]
# ### Exercise: which experts a token visits
#
# Besides gates and experts, return the probabilities: balance will need them. The `bias` is for later too. It
# is added to the probabilities where experts are *chosen*, and nowhere else: gates and probabilities are
# returned without it.
#
# Everything is computed in float32, or in float64 where tokens or router have it, and gates and probabilities
# are returned in that dtype. The experts' numbers are int64, as torch's own indices are. Scores of several
# hundreds occur, above 0 and below it; but no bias is so large that it chooses only experts of probability 0.
#
# <details><summary>Hint</summary>
#
# `topk` gives values and indices. Take the indices, and fetch the gates from the probabilities with `gather`:
# then the bias cannot get into them. `torch.promote_types(a, torch.float32)` is the wider of two dtypes.
#
# </details>


# %% exercise="12.route" difficulty=2 minutes=10
def route(
    tokens: Tensor, router: Tensor, k: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Which experts each token visits: gates [n, k], experts [n, k] (whole numbers),
    probabilities [n, E].

    tokens: [n, h], or none of them: n may be 0. router: [E, h]. bias: [E]. What is
    given is not changed. The expert with the highest probability (plus bias) comes
    first. Raises ValueError, naming both numbers, where k is not 1 to E.
    """
    ### BEGIN SOLUTION
    if not 1 <= k <= len(router):
        raise ValueError(f"expected 1 to {len(router)} experts a token, got {k}")
    wide = torch.promote_types(torch.promote_types(tokens.dtype, router.dtype), torch.float32)
    probabilities = (tokens.to(wide) @ router.to(wide).T).softmax(dim=-1)
    scores = probabilities if bias is None else probabilities + bias
    experts = scores.topk(k, dim=-1).indices
    gates = probabilities.gather(-1, experts)
    return gates / gates.sum(dim=-1, keepdim=True), experts, probabilities
    ### END SOLUTION


# %% check="12.route"
labkit.check("12.route", route)

# %% [markdown]
# What does a router do that has not learned anything yet? Below, 512 tokens that have something in common,
# as the tokens of one text do, and 8 experts. If they were visited evenly, each would have $512 \cdot 2 / 8 =
# 128$ visits. How many does the busiest one have? Write a guess.

# %% predict="busiest-expert"
your_busiest = ...


# %%
target("12-visits")


# %%
def device() -> torch.device:
    """Where this rank's tensors live: its own GPU under NCCL, the CPU under gloo."""
    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def some_text(n: int, h: int, seed: int = 0) -> Tensor:
    """Tokens with a part in common."""
    torch.manual_seed(seed)
    return (torch.randn(n, h, dtype=torch.float64) + torch.randn(h, dtype=torch.float64) / 2).to(device())


def a_router(num_experts: int, h: int) -> Tensor:
    torch.manual_seed(7)
    return (torch.randn(num_experts, h, dtype=torch.float64) / h**0.5).to(device())


_, experts, _ = route(some_text(512, 32), a_router(8, 32), 2)
visits = torch.bincount(experts.flatten(), minlength=8).tolist()
draw_visits(visits, owners=[0, 0, 1, 1, 2, 2, 3, 3])

# %%
prediction("visits of the busiest of 8 experts", your_busiest, max(visits))

# %% [markdown]
# The dashed line is the even share. Colours are ranks, two experts on each: some ranks will have several
# times the work of others, and all wait for the busiest. Remember this picture; it comes back under
# *Balance*.

# %% [markdown]
# ## Rows of one expert together
#
# An expert is a matrix product, and wants all its rows in one matrix. So each token is copied $k$ times, and
# the copies are put in the order of experts. When the experts are done, the copies go back to where their
# tokens stand, and are added up, each times its gate.
#
# Number the copies: copy $i k + j$ is token $i$ on its way to its $j$-th expert. A list of copies in the
# order of experts is then all one needs to go there and back. Three tokens, $k = 2$:
#
# | token | experts | copies |
# |---|---|---|
# | 0 | 2, 0 | 0, 1 |
# | 1 | 0, 1 | 2, 3 |
# | 2 | 2, 1 | 4, 5 |
#
# Expert 0 gets copies 1 and 2, expert 1 gets 3 and 5, expert 2 gets 0 and 4: *places* are 1, 2, 3, 5, 0, 4,
# and *counts* 2, 2, 2. Within an expert copies stay in their order: the sort has to be *stable*, or two runs
# of one program add numbers in different orders.
#
# ### Exercise: rows in the order of experts, and back
#
# Rows are moved, not multiplied: no product with a matrix of zeros and ones. Rows have the tokens' dtype;
# places and counts are int64, as the experts that are handed over. `unpermute` must work for any order of the
# places. It multiplies and adds up in the dtype that `torch.promote_types` gives for rows and gates (float32
# for one in bfloat16 and one in float16), and only then rounds to the rows' dtype, which it returns. Any
# expert may be without tokens, and there may be one token, or none at all. Experts and gates may be views of
# any layout. What is handed over stays as it is.
#
# <details><summary>Hint</summary>
#
# `argsort(stable=True)` of all experts in a row gives the places at once. The `argsort` of a permutation is
# its inverse. Gates are in the order of tokens: bring the rows into that order before you multiply.
#
# </details>


# %% exercise="12.permute" difficulty=3 minutes=12
def permute(tokens: Tensor, experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """A row for each token and each of its experts, in the order of experts: rows, places, counts.

    tokens: [n, h]. experts: [n, k]. Returns rows [n k, h], those of one expert in the order
    of tokens; places [n k], of each row which copy it is (token x k + place among the
    token's experts); counts [num_experts], rows of each expert, 0 for those without.
    """
    ### BEGIN SOLUTION
    places = experts.flatten().argsort(stable=True)
    counts = torch.bincount(experts.flatten(), minlength=num_experts)
    return tokens[places // experts.shape[1]], places, counts
    ### END SOLUTION


def unpermute(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    """For each token the sum of its rows, each times its gate: [n, h], in the rows' dtype.

    rows: [n k, h]. places: [n k], as `permute` gives them. gates: [n, k].
    """
    ### BEGIN SOLUTION
    copies = rows[places.argsort()].view(*gates.shape, rows.shape[1])
    return (copies * gates.unsqueeze(-1)).sum(dim=1).to(rows.dtype)
    ### END SOLUTION


# %% check="12.permute"
labkit.check("12.permute", permute, unpermute)

# %% [markdown]
# With these two a whole layer of experts is four lines. Here it is beside `labkit.model.Mixture`, which goes
# from expert to expert and looks for its tokens: the same weights, the same numbers.


# %%
def all_experts_here(tokens: Tensor, router: Tensor, experts: Sequence[nn.Module], k: int) -> Tensor:
    gates, chosen, _ = route(tokens, router, k)
    rows, places, counts = permute(tokens, chosen, len(experts))
    parts = rows.split(counts.tolist())
    outs = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return unpermute(outs, places, gates)


small = llama(1, 32, 4, 4, 64, vocabulary=100, mixture=MixtureOfExperts(8, 2, 48))
mixture = Mixture(small).double()
tokens = some_text(40, 32)
ours = all_experts_here(tokens, mixture.router.weight, list(mixture.experts), 2)
apart = (ours - mixture(tokens.unsqueeze(0))[0]).detach().abs().max()
print(f"furthest from Mixture: {apart:.1e}")

# %% [markdown]
# ## To the ranks of the experts
#
# Now the $E$ experts are spread over ranks. From here on $n$ is the number of ranks, except where a shape
# such as [n, h] counts tokens. Each rank has $E/n$ experts: rank 0 the first ones, rank 1 the next. Every
# rank has tokens of its own, and rows for everybody. That is an all-to-all, and one in which no two messages
# need be equally long: who gets how many rows is the router's doing, and new every time.
#
# So there are two questions, one after the other. *How many* rows come from whom? Without that a rank cannot
# make room for them; worse, if it expects another number than is sent, gloo ends the process or leaves old
# memory in the place of rows. (This course's recorder compares both sides, and says who expected what, but
# not of functional collectives, which go past it.) Then the rows themselves.
#
# What about backward? Rows that went from rank 0 to rank 2 have gradients that are on rank 2. They come back
# by an all-to-all in which what was received is sent, and what was sent is received. Nothing is summed over
# ranks or divided by their number: each row is in one place at a time.
#
# ### Exercise: rows to the ranks of their experts
#
# What `exchange_counts` returns has the dtype of the counts it is given, int64 or int32. Nobody changes the
# lists of splits.
#
# <details><summary>Hint</summary>
#
# `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=...)`: the sizes of what
# comes stand before those of what goes, as the output stands before the input. Nothing of forward has to be
# kept but the splits.
#
# </details>


# %% exercise="12.all-to-all" difficulty=3 minutes=15
def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """From each rank the number of its rows for each expert of this rank: [n, E/n],
    the ranks in order.

    counts: [E], this rank's rows for each expert, which stay as they are; rank r of the
    group has experts r E/n to (r + 1) E/n. Sends E whole numbers, in one all-to-all.
    """
    ### BEGIN SOLUTION
    table = torch.empty_like(counts)
    dist.all_to_all_single(table, counts, group=group)
    return table.view(dist.get_world_size(group), -1)
    ### END SOLUTION


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received, group):
        """Rows for this rank, from each rank of the group in order: [sum of received, h].

        rows: [sum of sent, h], those for rank 0 of the group first. sent, received: a number of
        rows for each rank, as lists that stay as they are. One all-to-all of the rows there are, in
        their dtype; rows may be a view of any layout. It may be called again, with other numbers,
        before backward, for which nothing is kept but the splits.
        """
        ### BEGIN SOLUTION
        ctx.splits = sent, received
        ctx.group = group
        return exchanged(rows, sent, received, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """The gradient of rows: each row's comes back from where it went."""
        ### BEGIN SOLUTION
        sent, received = ctx.splits
        return exchanged(grad, received, sent, ctx.group), None, None, None


def exchanged(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
    return out
    ### END SOLUTION


# %% check="12.all-to-all"
labkit.check("12.all-to-all", exchange_counts, AllToAll)

# %% [markdown]
# Four ranks, 256 tokens each, 8 experts, two for each token. The record of your all-to-all says who sent how
# many rows to whom.


# %%
target("12-dispatch")


# %%
def send_once(group: dist.ProcessGroup) -> int:
    tokens, ranks = some_text(256, 32, dist.get_rank(group)), dist.get_world_size(group)
    _, experts, _ = route(tokens, a_router(8, 32), 2)
    rows, _, counts = permute(tokens, experts, 8)
    sent = counts.view(ranks, -1).sum(dim=1).tolist()
    received = exchange_counts(counts, group).sum(dim=1).tolist()
    return len(AllToAll.apply(rows, sent, received, group))


job = labkit.launch(send_once, ranks=4)
row_bytes = 32 * 8
sent_rows = [
    [num_bytes // row_bytes for num_bytes in call.sent]
    for call in sorted(job.collectives, key=lambda call: call.rank)
    if call.op == "all_to_all" and call.dtype == "float64" and call.sent
]
draw_dispatch(sent_rows)

# %% [markdown]
# ## Experts spread over ranks
#
# Everything is there: route, permute, tell the counts, send the rows, compute, send them back, unpermute.
# One thing is left to think about. Rows arrive in the order of *ranks*, and from each rank in the order of
# experts. With two experts on this rank, and three ranks:
#
# | from rank | 0 | 0 | 1 | 1 | 2 | 2 |
# |---|---|---|---|---|---|---|
# | for expert | a | b | a | b | a | b |
#
# An expert called once for each rank makes three small products where one large one would do. Bring the rows
# of one expert together first, and take them apart again before they go back. (The table of counts is this
# row of numbers.)
#
# **An expert that nobody visits** is a trap. Skip it, and its gradients are `None` in this step; whatever
# adds up gradients over ranks later waits for them, on some ranks and not on others. Call it with no rows, a
# matrix $[0, h]$: then its gradients are there, and zero.
#
# **Gradients of experts need nothing more.** An expert has seen the rows of *all* ranks, so its gradients are
# the sum over all tokens already. Those of the router are not: each rank has them for its own tokens.
#
# Before you write it: 3 ranks with equally many tokens, every expert visited equally often, $k = 2$. Which
# part of a rank's rows leaves it?

# %% predict="rows-that-leave"
your_part = ...

# %% reveals="rows-that-leave"
prediction("rows that leave, of all", your_part, "(n - 1) / n = 2/3", "computed")

# %% [markdown]
# ### Exercise: a layer of experts over ranks
#
# Keep the very router and modules that are handed over, not copies, as a parameter and as modules of the
# layer: others hold them too. What is frozen stays frozen. The router may be, and the experts of some ranks;
# tokens get their gradients and every rank takes part all the same. Experts have the tokens' dtype, and the
# router may have a wider one, as float32 beside bfloat16. Rows travel in the tokens' dtype, which the output
# has too, and only the rows that there are. A forward makes one all-to-all of counts and two of rows, a
# backward two of rows. A forward calls each expert once, also one that has no rows. In evaluation and without
# a graph forward is the same.
#
# <details><summary>Hint</summary>
#
# The expert of each arrived row is a list that the table tells: for each rank, for each own expert, as many
# times its number as there are rows (`repeat_interleave`). Sort it, stably, and you have an order as in
# `permute`; its `argsort` leads back.
#
# </details>


# %% exercise="12.expert-parallel" difficulty=5 minutes=25
class ExpertParallel(nn.Module):
    """A layer of experts, the tokens and the experts spread over the ranks of a group."""

    def __init__(
        self, router: nn.Parameter, experts: Sequence[nn.Module], active: int, group: dist.ProcessGroup
    ):
        """router: [E, h], the same on every rank. experts: the E/n of this rank, rank
        r of the group having r E/n to (r + 1) E/n; each maps [rows, h] to [rows, h],
        also 0 rows. active: experts of a token.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.router, self.experts = router, nn.ModuleList(experts)
        self.active, self.group = active, group
        ### END SOLUTION

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [n, h], this rank's own, which stay as they are; each rank has another
        number of them, or none, and on some ranks they may need no gradient. Returns
        [n, h], in evaluation as in training. It may be called again, with other tokens,
        before backward.
        """
        ### BEGIN SOLUTION
        gates, chosen, _ = route(tokens, self.router, self.active)
        rows, places, counts = permute(tokens, chosen, len(self.router))
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows = rows.detach().requires_grad_()  # in backward every rank takes part
        table = exchange_counts(counts, self.group)
        sent = counts.view(len(table), -1).sum(dim=1).tolist()
        received = table.sum(dim=1).tolist()
        arrived = AllToAll.apply(rows, sent, received, self.group)
        done = AllToAll.apply(self.each_expert(arrived, table), received, sent, self.group)
        return unpermute(done, places, gates)

    def each_expert(self, rows: Tensor, table: Tensor) -> Tensor:
        """Rows through their experts, in the order they came in: by rank, and for each
        rank by expert.
        """
        number = torch.arange(table.shape[1], device=rows.device).repeat(len(table))
        by_expert = number.repeat_interleave(table.flatten()).argsort(stable=True)
        parts = rows[by_expert].split(table.sum(dim=0).tolist())
        outs = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return outs[by_expert.argsort()]
        ### END SOLUTION


# %% check="12.expert-parallel"
labkit.check("12.expert-parallel", ExpertParallel)

# %% [markdown]
# ## The same numbers as one process
#
# Four ranks with two experts each, against `Mixture` on all tokens in one process: outputs, gradients of
# tokens, and gradients of an expert. And what the ranks do meanwhile: five all-to-alls, and nobody who waits
# for a rank that has nothing to do.


# %%
def the_mixture() -> Mixture:
    torch.manual_seed(1)
    return Mixture(small).double().to(device())


def spread(group: dist.ProcessGroup) -> list[Tensor]:
    whole, rank = the_mixture(), dist.get_rank(group)
    layer = ExpertParallel(whole.router.weight, whole.experts[2 * rank : 2 * rank + 2], 2, group)
    tokens = some_text(64, 32, rank).requires_grad_()
    dist.barrier(group)
    with labkit.span("forward", kind="forward"):
        out = layer(tokens)
    with labkit.span("backward", kind="backward"):
        out.square().sum().backward()
    first = next(whole.experts[2 * rank].parameters()).grad
    return [t.detach().cpu() for t in (out, tokens.grad, first)]


job = labkit.launch(spread, ranks=4)
whole = the_mixture().cpu()
together = torch.cat([some_text(64, 32, rank).cpu() for rank in range(4)]).requires_grad_()
out = whole(together.unsqueeze(0))[0]
out.square().sum().backward()
Table(
    ["", *(f"rank {rank}" for rank in range(4))],
    [
        [
            name,
            *(f"{(found[i] - expected[rank]).abs().max():.1e}" for rank, found in enumerate(job.results)),
        ]
        for i, (name, expected) in enumerate(
            {
                "output": out.detach().split(64),
                "gradient of tokens": together.grad.split(64),
                "gradient of its first expert": [
                    next(whole.experts[2 * rank].parameters()).grad for rank in range(4)
                ],
            }.items()
        )
    ],
    caption="Furthest apart, in float64",
)

# %%
target("12-layer")

# %%
draw_timeline(job)

# %% [markdown]
# ## Balance
#
# Back to the picture of visits. An expert that is visited often learns more, becomes better, and is visited
# more often still: left alone, routers collapse onto a few experts. Training adds a loss that pulls the other
# way. With $T$ tokens, $f_e$ the share of all visits that expert $e$ gets, and $P_e$ the mean of its
# probabilities,
#
# $$\mathcal L = E \sum_e f_e P_e, \qquad f_e = \frac{\text{visits of } e}{k\,T}, \qquad
# P_e = \frac1T \sum_t p_{t,e}$$
#
# It is 1 where the visits or the probabilities are even, and larger where the experts with more visits have
# the higher probabilities too, as is the rule (Switch Transformer, equations 4 to 6, there with $k = 1$).
# Visits are counted and have no gradient; it is $P_e$ that is pushed down where $f_e$ is large.
#
# The tokens lie on many ranks. Could each rank take the loss of its own tokens, and the mean of these be
# minimized, as for any other loss? Try: two ranks, two experts, one token each. Rank 0's token visits expert
# 0 with probability 0.9, rank 1's visits expert 1 with probability 0.9. All ranks together are in perfect
# balance: $\mathcal L = 1$. What is the mean of the ranks' own losses?

# %% predict="mean-of-losses"
your_mean = ...

# %% reveals="mean-of-losses"
alone = [2 * (1.0 * 0.9 + 0.0 * 0.1), 2 * (0.0 * 0.1 + 1.0 * 0.9)]
prediction("mean of the ranks' own losses", your_mean, sum(alone) / 2, "computed")

# %% [markdown]
# A sum of products of means is not linear in the tokens. The mean of losses forces *each rank's* tokens to be
# spread evenly, though a text on chemistry has every reason to visit the same experts (Qiu et al. 2025, arXiv
# 2501.11873, found that models become worse for it). So $f$ and $P$ must be those of all ranks.
#
# And the gradient? A rank can only push its own tokens' probabilities, by $E f_e / T$ each, with the $f$ and
# $T$ of everybody. Summed over the ranks that is the gradient of $\mathcal L$. Nothing has to be sent in
# backward. Mind what comes after: where gradients are *averaged* over $n$ ranks, as you will do it below,
# this loss must be multiplied by $n$ first, or it counts for an $n$-th.
#
# The other way needs no loss. DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) gives each expert a bias that
# takes part in the choice alone, as in your `route` (it is added to sigmoids of $Wx$ there, where you have a
# softmax), and after each step nudges it: up by a small rate where an expert had less than the mean of
# visits, down where it had more.
#
# ### Exercise: balance
#
# Write both ways: `balance_loss` over the tokens of all ranks, a tensor without dimensions as every loss is,
# and `nudge`, which moves the bias. The loss is returned in the probabilities' dtype, float32 or float64; the
# bias may be of any floating-point dtype, and comes back in it. A rank may have no tokens; all together have
# some. What is all-reduced may go in one call or in several, and in any dtype that holds it.
#
# <details><summary>Hint</summary>
#
# Reduce counts, sums of probabilities and the number of tokens together. A number that has one value and
# another's gradient: `own - own.detach() + whole`, in this order, as the first two make an exact 0.
#
# </details>


# %% exercise="12.balance" difficulty=4 minutes=18
def balance_loss(probabilities: Tensor, experts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The balancing loss of all tokens of the group, a number, the same on every rank.

    probabilities: [n, E]; experts: [n, k], of this rank's n tokens; n differs between
    ranks and may be 0. The gradient of the number, where a graph is made, reaches this
    rank's probabilities, as they stand in the loss of all tokens. Computed in their
    dtype. All-reduces sums over tokens, 2 E + 2 numbers at most, in forward alone.
    """
    ### BEGIN SOLUTION
    num_experts = probabilities.shape[1]
    visits = torch.bincount(experts.flatten(), minlength=num_experts)
    sums = probabilities.sum(dim=0)
    tokens = torch.tensor([float(len(experts))], device=sums.device)
    everywhere = torch.cat([visits.to(sums), sums.detach(), tokens.to(sums)])
    dist.all_reduce(everywhere, group=group)
    all_visits, all_sums, total = everywhere.split([num_experts, num_experts, 1])
    weights = num_experts * all_visits / all_visits.sum() / total
    own, whole = (weights * sums).sum(), (weights * all_sums).sum()
    return own - own.detach() + whole  # 0 first: the same to the last bit on every rank
    ### END SOLUTION


def nudge(bias: Tensor, visits: Tensor, rate: float, group: dist.ProcessGroup) -> Tensor:
    """The new bias: up by `rate` where the group's ranks together visit an expert less than the
    mean, down where more, the same where just as often. What is handed over stays as it is.

    bias: [E], the same on every rank; the new one has its dtype. visits: [E], int32 or
    int64, of this rank; their sums are exact up to thousands of millions.
    All-reduces E + 1 numbers at most.
    """
    ### BEGIN SOLUTION
    everywhere = visits.double()
    dist.all_reduce(everywhere, group=group)
    return bias + rate * (everywhere.mean() - everywhere).sign().to(bias)
    ### END SOLUTION


# %% check="12.balance"
labkit.check("12.balance", balance_loss, nudge)

# %% [markdown]
# Does the nudge work? The router and the tokens of the first picture, four ranks, and only the bias moves.


# %%
def nudge_for_a_while(group: dist.ProcessGroup) -> list[list[int]]:
    tokens, router = some_text(512, 32, seed=0), a_router(8, 32)
    mine = tokens.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    bias, history = torch.zeros(8, dtype=torch.float64, device=device()), []
    for _ in range(60):
        _, experts, _ = route(mine, router, 2, bias)
        visits = torch.bincount(experts.flatten(), minlength=8)
        bias = nudge(bias, visits, 0.01, group)
        dist.all_reduce(visits, group=group)
        history.append(visits.tolist())
    return history


history = labkit.launch(nudge_for_a_while, ranks=4).results[0]
Table(
    ["step", "busiest expert", "idlest expert", "even share"],
    [[step, max(history[step]), min(history[step]), sum(history[step]) / 8] for step in (0, 5, 15, 30, 59)],
)

# %%
target("12-nudged")

# %%
draw_visits(history[-1], owners=[0, 0, 1, 1, 2, 2, 3, 3])

# %% [markdown]
# ## A capacity
#
# Splits that differ each time are a nuisance: no memory can be planned for them, and one popular expert can
# bring a rank down. The first large mixtures gave each expert a fixed number of rows instead, its *capacity*,
#
# $$C = \left\lceil \text{factor} \cdot \frac{k\,T}{E} \right\rceil$$
#
# and sent exactly $C$ rows for each expert, empty ones where there were fewer. A visit that finds no room is
# *dropped*: the token's gate there is 0, and if it has no other expert, the layer gives it nothing. (The
# residual connection still carries it.) GShard (arXiv 2006.16668, section 2.2) has $k = 2$, cuts the $N$
# tokens of a batch into $G$ groups, and gives an expert $2N/(GE)$ places in each: a factor of 1. Switch
# (arXiv 2101.03961, equation 3 and table 1) has $k = 1$ and factors of 1, 1.25 and 2.
#
# Who is dropped? First choices count more. GShard lets *all* tokens of a group have their first choice, in
# order, before any of them gets its second (its algorithm 1). So the first token's second choice comes after
# the last token's first. (It also leaves second choices with small gates out at random, which we do not.)
#
# With a router that has not learned anything, 512 tokens, 8 experts, $k = 2$ and factor 1: which part of the
# 1,024 visits is dropped?

# %% predict="dropped"
your_dropped = ...

# %% [markdown]
# ### Exercise: a capacity, and what it drops
#
# Write `expert_capacity`, the number of rows that an expert takes, and `drop`, which gives visits without
# room a gate of 0. A capacity that is a whole number stays one: $7 \cdot 200 / 25$ is 56, but in floats $7 /
# 25 \cdot 200$ is a little more, and rounded up 57. So multiply before you divide. (A factor like 1.1 is no
# such number: as a float it is a little more than 1.1 from the start, and may cost a row.) `drop` returns
# gates in their dtype; those that are handed over stay as they are. No number that is handed over is infinite
# or NaN. Gates and experts stay in torch: no NumPy, no lists of them.
#
# <details><summary>Hint</summary>
#
# Put visits in a row, all first choices, then all second ones: `experts.T.flatten()`. Make a table of zeros
# and ones, a row for each visit and a column for each expert. A running sum down its columns (`cumsum`)
# numbers the visits of each expert.
#
# </details>


# %% exercise="12.capacity" difficulty=3 minutes=12
def expert_capacity(tokens: int, k: int, num_experts: int, factor: float) -> int:
    """Rows that an expert takes: factor x k x tokens / num_experts, rounded up.

    ValueError for a factor below 0.
    """
    ### BEGIN SOLUTION
    if factor < 0:
        raise ValueError(f"expected a capacity factor of 0 or more, got {factor}")
    return math.ceil(factor * k * tokens / num_experts)
    ### END SOLUTION


def drop(gates: Tensor, experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """The gates, with 0 in place of those whose visit finds no room: [n, k]. Others
    are not changed.

    gates: [n, k], finite, of any dtype. experts: [n, k]. Both of any layout. Each expert takes
    the first `capacity` of its visits, gates of 0 too; first choices of all tokens, in order,
    come before all second ones, and so on. No loop over tokens.
    """
    ### BEGIN SOLUTION
    in_order = experts.T.flatten()
    visits = torch.nn.functional.one_hot(in_order, num_experts)
    number = (visits.cumsum(dim=0) * visits).sum(dim=1)  # 1 for the first visit of an expert
    kept = (number <= capacity).view(experts.shape[1], -1).T
    return gates * kept
    ### END SOLUTION


# %% check="12.capacity"
labkit.check("12.capacity", expert_capacity, drop)

# %%
gates, experts, _ = route(some_text(512, 32), a_router(8, 32), 2)
rows = []
for factor in (1.0, 1.25, 1.5, 2.0, 4.0):
    capacity = expert_capacity(512, 2, 8, factor)
    kept = drop(gates, experts, 8, capacity) > 0
    nothing = (~kept).all(dim=1).double().mean().item()
    empty = 1 - int(kept.sum()) / (8 * capacity)
    guess, dropped = your_dropped if factor == 1 else "", 1 - kept.double().mean()
    rows.append([factor, capacity, guess, f"{dropped:.1%}", f"{nothing:.1%}", f"{empty:.1%}"])
Table(
    ["factor", "capacity", "your guess", "visits dropped", "tokens without expert", "rows that are empty"],
    rows,
    caption="A router that has learned nothing",
)

# %% [markdown]
# Dropped visits and empty rows are both waste, and a factor trades one for the other. What you built before,
# with splits as long as there are rows, has neither, and is called *dropless* (MegaBlocks, arXiv 2211.15841).

# %% [markdown]
# ## Large and cheap: the numbers
#
# Two numbers describe such a model: its parameters in all, which must lie somewhere, and the *active* ones,
# those one token is multiplied with, which cost time. "8x7B" is neither: Mixtral 8x7B has 46.7 billion
# parameters, as attention is there once, and 12.9 billion of them are active.
#
# What there is to count. An expert has three matrices (SwiGLU), $3 h f$, with $f$ its own width. DeepSeek has
# *shared* experts of the same width, which every token visits besides its $k$, and leaves its first layers
# *dense*: they have one MLP of the model's own width, and no router. Attention differs more than the rest;
# its parameters a layer are handed to you:


# %%
def attention_parameters(config: ModelConfig) -> int:
    """Of one layer. DeepSeek squeezes queries, keys and values (arXiv 2405.04434, section 2.1)."""
    h, a, d = config.hidden, config.num_heads, config.head_size
    if config.latent is None:
        return h * (a * d + 2 * config.kv_width) + a * d * h
    small = config.latent
    queries = h * small.query_rank + small.query_rank + small.query_rank * a * (d + small.rotary)
    squeezed = h * (small.key_value_rank + small.rotary) + small.key_value_rank
    return queries + squeezed + small.key_value_rank * a * (d + small.value) + a * small.value * h


# %% [markdown]
# How many percent of DeepSeek-V2's 236 billion does a token use? It visits 6 of 160 experts, and two shared
# ones.

# %% predict="active-part"
your_active_part = ...

# %% [markdown]
# ### Exercise: the numbers
#
# `config` has `num_layers`, `hidden`, `ffn`, `vocabulary`, and `config.mixture` (`None` in a model without
# experts, for which only `dispatch_bytes` is asked) has `num_experts`, `active_experts`, `expert_ffn`,
# `shared_experts` and `dense_layers`. These models are Llamas otherwise: two RMSNorms a layer and one at the
# end, $h$ numbers each, no biases, a table of tokens and an output matrix, $V h$ each. Both count as active,
# and so does a whole router. Operations are those of matrix products.
#
# In a forward pass each row travels to its expert and back. Take experts as visited equally often: then
# $(n-1)/n$ of the rows go to another rank. Shared experts are on every rank. Bytes are not rounded, to whole
# rows or whole bytes.


# %% exercise="12.expert-arithmetic" difficulty=2 minutes=12
def count_parameters(config: ModelConfig, attention: int) -> tuple[int, int]:
    """Parameters in all, and those active for one token. attention: those of one layer's attention."""
    ### BEGIN SOLUTION
    h, mixture = config.hidden, config.mixture
    assert mixture is not None
    of_all = config.num_layers * (attention + 2 * h) + h + 2 * config.vocabulary * h
    of_all += mixture.dense_layers * 3 * h * config.ffn
    sparse, expert = config.num_layers - mixture.dense_layers, 3 * h * mixture.expert_ffn
    of_all += sparse * (h * mixture.num_experts + mixture.shared_experts * expert)
    return of_all + sparse * mixture.num_experts * expert, of_all + sparse * mixture.active_experts * expert
    ### END SOLUTION


def expert_flops(config: ModelConfig, tokens: int) -> int:
    """Operations of one layer of experts in forward, router and shared experts too; a
    multiply-add is two.
    """
    ### BEGIN SOLUTION
    h, mixture = config.hidden, config.mixture
    assert mixture is not None
    visits = mixture.active_experts + mixture.shared_experts
    return 2 * tokens * (h * mixture.num_experts + visits * 3 * h * mixture.expert_ffn)
    ### END SOLUTION


def dispatch_bytes(config: ModelConfig, tokens: int, ranks: int, element: int = 2) -> float:
    """Bytes that leave one rank with `tokens` tokens in forward of one layer: rows for
    others, and rows back.

    element: bytes of a number. ValueError for a model without experts, or ranks that
    do not divide them.
    """
    ### BEGIN SOLUTION
    if config.mixture is None or config.mixture.num_experts % ranks:
        raise ValueError(f"expected experts that {ranks} ranks divide, found {config.mixture}")
    rows = tokens * config.mixture.active_experts * (ranks - 1) / ranks
    return 2 * rows * config.hidden * element
    ### END SOLUTION


# %% check="12.expert-arithmetic"
labkit.check("12.expert-arithmetic", count_parameters, expert_flops, dispatch_bytes)

# %%
published = [
    preset(name) for name in ("Mixtral 8x7B", "Mixtral 8x22B", "DeepSeek-V2 236B", "DeepSeek-V3 671B")
]
papers = ["12.9 of 46.7", "39 of 141", "21 of 236", "37 of 671"]
counts = [count_parameters(model, attention_parameters(model)) for model in published]
Table(
    ["", "your guess", "active part", "billions active", "billions in all", "its authors say"],
    [
        [
            model.name,
            your_active_part if "V2" in model.name else "",
            f"{active / total:.1%}",
            f"{active / 1e9:.2f}",
            f"{total / 1e9:.2f}",
            said,
        ]
        for model, (total, active), said in zip(published, counts, papers, strict=True)
    ],
)

# %% [markdown]
# DeepSeek counts 37 billion, you count 37.55: its table of tokens, 0.93 billion, is looked up and not
# multiplied, and left out 36.6 remain. Now what travels, for a rank with 4,096 tokens in 16 bits:

# %%
Table(
    ["", "8 ranks, one layer, forward", "operations of its tokens", "bytes for each 1,000 operations"],
    [
        [
            model.name,
            binary_text(dispatch_bytes(model, 4096, 8)),
            f"{expert_flops(model, 4096):.2e}",
            f"{1000 * dispatch_bytes(model, 4096, 8) / expert_flops(model, 4096):.3f}",
        ]
        for model in published
    ],
)

# %% [markdown]
# Small experts are many visits, and each visit is a row on the way: DeepSeek's send several times as much for
# each operation as Mixtral's. That is why DeepSeek-V3 allows a token no more than 4 nodes, and hides what is
# left behind arithmetic.

# %% [markdown]
# ## Two kinds of gradients
#
# On many ranks experts are not only spread, but copied. Take 4 ranks, and experts that fit on 2: ranks 0 and
# 1 share one copy of all experts, ranks 2 and 3 another. Attention, norms and the router are on all four.
#
# | | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | attention, router | whole | whole | whole | whole |
# | experts | first half | second half | first half | second half |
#
# After backward, the model wants the gradient of the *mean of the four ranks' losses*, as in data
# parallelism. For the router that is the mean over four ranks. And for the first expert, of which ranks 0 and
# 2 have a gradient? It has seen the tokens of all four already: on rank 0 those of ranks 0 and 1, on rank 2
# the others. Their sum is the sum over four losses. By how much must that sum be divided?

# %% predict="divide-experts-by"
your_divisor = ...

# %% reveals="divide-experts-by"
prediction("divide the two copies' sum by", your_divisor, 4, "computed")

# %% [markdown] reveals="divide-experts-by"
# Whoever takes the mean over an expert's copies, as a DistributedDataParallel around them would, divides by 2
# here, and under SGD experts learn twice as fast as the rest; with 64 ranks and one copy it would be 64
# times. Adam hides the factor, but the norm that gradients are clipped by does not. Nobody sees an error.

# %% [markdown]
# ### Exercise: gradients of two kinds
#
# Write `reduce_gradients`: after it every gradient, of shared parameters and of experts, is that of the mean
# of all ranks' losses. Each is all-reduced once, by itself or in one message with others, among the ranks
# that have the parameter: `everyone` for the shared ones, `replicas` for experts. A frozen parameter gets its
# gradient like any other and stays frozen. Parameters may be stored in any layout, the same on all ranks;
# gradients come in that layout and may leave in any. They may differ in dtype, as a router in float32 does
# from weights in bfloat16: no gradient is rounded to the dtype of another. Each stays what it is when the
# next call comes, for another model.


# %% exercise="12.reduce-gradients" difficulty=3 minutes=12
def reduce_gradients(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> None:
    """Make all gradients those of the mean of the losses of the ranks of `everyone`.

    shared: parameters that every rank of `everyone` has. experts: this rank's, which the ranks of
    `replicas` have too, each with a gradient that holds the tokens of its own copy's ranks. There
    may be none of either kind. A parameter without gradient counts as zeros, and has one
    afterwards. Some may be frozen (`requires_grad`), on some ranks or all: that makes no
    difference, nor does the layout of parameters, which their gradients have, on all ranks.
    Each gradient is all-reduced once, among these ranks.
    """
    ### BEGIN SOLUTION
    ranks = dist.get_world_size(everyone)
    for parameters, group in ((shared, everyone), (experts, replicas)):
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= ranks
    ### END SOLUTION


# %% check="12.reduce-gradients"
labkit.check("12.reduce-gradients", reduce_gradients)

# %% [markdown]
# ## One norm
#
# Before the step the gradient is clipped: if its norm over *all* parameters is above a bound, all are scaled
# down by the same factor. Each rank has other experts; what it has of the norm is a part. The parts add up,
# as squares, over everybody: and then each copy of an expert has been counted, and attention on every rank.
#
# ### Exercise: one norm, each expert once
#
# Write `clip_grad_norm`: it computes the norm of the whole model's gradient, and scales what is too long.
# Layouts and dtypes may differ as before, and gradients may be views of one buffer; again no gradient is
# rounded to another dtype. The norm is a tensor of the type in which you add up, and the factor may be
# torch's, `max_norm / (norm + 1e-6)`, never above 1 (a norm less than 1e-6 below the bound is scaled then
# too). Like the gradients, the norm stays what it is when the next call comes, for another model.
#
# <details><summary>Hint</summary>Squares are added, norms are not. An expert has as many copies as
# <code>replicas</code> has ranks.</details>


# %% exercise="12.clip-grad-norm" difficulty=3 minutes=8
def clip_grad_norm(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    max_norm: float,
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> Tensor:
    """Scale all gradients so that the norm of the whole model's gradient is at most `max_norm`, 0 or
    more: in place, or by new ones. A norm below that, 0 too, leaves them as they are; as in torch,
    1e-6 may be added to it.

    shared, experts, everyone, replicas: as for `reduce_gradients`, whose gradients these are; there
    may be no shared ones, or no experts, and frozen ones with a gradient count like others.
    Parameters without gradient are left out, and have none afterwards. Sums squares in float32 or
    better. All-reduces one number. Returns the norm before scaling, the same on every rank.
    """
    ### BEGIN SOLUTION
    device = next((p.device for p in (*shared, *experts)), torch.device("cpu"))
    squares = square_sum(experts, device) / dist.get_world_size(replicas)
    dist.all_reduce(squares, group=everyone)
    norm = (squares + square_sum(shared, device)).sqrt()
    if norm > max_norm:
        for parameter in (*shared, *experts):
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm


def square_sum(parameters: Sequence[nn.Parameter], device: torch.device) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=device)
    for parameter in parameters:
        if parameter.grad is not None:
            total += parameter.grad.double().square().sum()
    return total


### END SOLUTION


# %% check="12.clip-grad-norm"
labkit.check("12.clip-grad-norm", clip_grad_norm)

# %% [markdown]
# ## The same numbers as PyTorch's own all-to-all
#
# PyTorch ships the all-to-all with a backward, `torch.distributed.nn.functional.all_to_all_single`, but no
# layer of experts: libraries build theirs from such a call, as you did. Rows and gradients of both, on four
# ranks:


# %%
def beside_torchs(group: dist.ProcessGroup) -> tuple[float, float]:
    from torch.distributed.nn.functional import all_to_all_single

    warnings.simplefilter("ignore", FutureWarning)  # newer releases of PyTorch have it under another name
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sent, received = [rank + i + 1 for i in range(ranks)], [i + rank + 1 for i in range(ranks)]
    rows = some_text(sum(sent), 16, rank)
    found = []
    for theirs in (False, True):
        leaf = rows.clone().requires_grad_()
        if theirs:
            empty = leaf.new_empty(sum(received), 16)
            out = all_to_all_single(empty, leaf, received, sent, group=group)
        else:
            out = AllToAll.apply(leaf, sent, received, group)
        out.square().sum().backward()
        found.append((out.detach(), leaf.grad))
    (out, grad), (their_out, their_grad) = found
    return float((out - their_out).abs().max()), float((grad - their_grad).abs().max())


rows_and_gradients = labkit.launch(beside_torchs, ranks=4).results
print("furthest apart, rows and gradients:", *(f"{max(both):.1e}" for both in rows_and_gradients))

# %% [markdown]
# ## Where this leaves you
#
# You sent tokens to experts and their gradients back through autograd, ordered rows so that each expert sees
# all of its own at once, and moved them between ranks in numbers that nobody knows beforehand. The layer
# gives what one process gives, also where an expert or a whole rank has nothing to do. You kept experts in
# balance over all ranks, by a loss and by a bias, saw what a capacity wastes, and counted what such a model
# is and what it sends. And you made one gradient, and one norm, of parameters that some ranks share and
# others do not.
#
# **Think about**
#
# 1. Twice as many experts on twice as many ranks: what happens to the bytes a rank sends, to its arithmetic,
#    and to the number of messages of an all-to-all?
# 2. In `ExpertParallel` every rank waits for the counts before it can send rows. On GPUs the sizes have to
#    reach the CPU for that, which stops everything. What could be done instead, and what would it cost?
# 3. A shared expert sees every token, and lives on every rank. When in forward would you compute it, so that
#    it costs no time at all?
#
# **To read**
#
# - Lepikhin et al., *GShard* (2020, arXiv 2006.16668): capacity, and experts by all-to-all.
# - Fedus et al., *Switch Transformers* (2021, arXiv 2101.03961): one expert a token, the balancing loss,
#   precision.
# - Gale et al., *MegaBlocks* (2022, arXiv 2211.15841): no token dropped.
# - Jiang et al., *Mixtral of experts* (2024, arXiv 2401.04088).
# - DeepSeek-AI, *DeepSeek-V3 technical report* (2024, arXiv 2412.19437): the bias in place of a loss, node
#   limits, and overlap.
# - Qiu et al., *Demons in the detail* (2025, arXiv 2501.11873): what the balancing loss is summed over.

# %% scoreboard=true
labkit.scoreboard("12")
