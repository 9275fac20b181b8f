# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "06", title: "Megatron's MLP: one matrix product on several GPUs", minutes: 90}
# ---

# %% [markdown]
# # Megatron's MLP: one matrix product on several GPUs
#
# The MLP of one layer of GPT-3 has 1.2 billion parameters. In training, at 18 bytes each (lesson 01, with
# fp32 gradients), they take 22 GB, and GPT-3 has 96 such layers. Lessons 02 and 04 gave *whole* layers to
# different GPUs. **Can several GPUs share one matrix product instead, so that all of them work on
# the same tokens at the same time? And what must they tell each other?**
#
# **You need** all-reduce and all-gather (lesson 00), and to have seen a `torch.autograd.Function`. **You
# will have built** the two linear layers that Megatron-LM is made of, and from them an MLP that runs on any
# number of ranks and computes, number for number, what the unsplit one computes. About 90 minutes.

# %% tags=["setup"]
# What this lesson imports: run it first
import warnings

import matplotlib.ticker
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import labkit
from labkit.model import MLP, gpt
from labkit.show import Picture, Table, draw_matmul_split, draw_parallel_mlp, draw_timeline, draw_traffic
from labkit.show import new_figure, prediction
from labkit.show.target import target
from labkit.theory.communication import all_reduce_seconds
from labkit.theory.units import binary_text, decimal_text

# %load_ext labkit

# %% [markdown]
# ## Where we are going
#
# Below is the whole lesson in one picture. Each lane is a rank. The weights, in colour, are cut: no two
# ranks hold the same. The grey tensors are the same on every rank. Two things in the picture are not
# ordinary layers: the green walls $f$ and $g$, the only places where ranks meet. By the end you will have
# built every box, and you will know what the walls do, in both directions.

# %%
draw_parallel_mlp(ranks=4)

# %% [markdown]
# ## Why split a matrix product
#
# Some letters for the whole lesson: a batch has $b$ sequences of $s$ tokens, each token is a vector of $h$
# numbers (the hidden size), and $t$ ranks share a layer ($t$ is the *tensor-parallel degree*). The MLP of a
# GPT layer is
#
# $$Z = \mathrm{GeLU}(X A)\, B, \qquad X: [b s,\ h],\quad A: [h,\ 4h],\quad B: [4h,\ h]$$
#
# so it has $8h^2$ weights, two thirds of its layer. A layer that is too large for one GPU cannot be saved
# by giving each GPU other layers: it has to be cut *inside*. And when it does fit, cutting it lets $t$ GPUs
# finish it in about a $t$-th of the time. What one rank then stores:

# %%
# Megatron's mixed precision: bf16 weight 2, fp32 gradient 4, fp32 master weight 4, Adam's two moments 8
bytes_per_parameter = 18
degrees = [1, 2, 4, 8]
hidden_sizes = {"GPT 7.5B": 4096, "GPT-3 175B": 12288, "MT-NLG 530B": 20480}  # h


def state_of_one_mlp(h: int, t: int) -> str:
    return decimal_text(8 * h**2 * bytes_per_parameter / t)


Table(
    ["one MLP of", "h", *(f"t = {t}" for t in degrees)],
    [[name, h, *(state_of_one_mlp(h, t) for t in degrees)] for name, h in hidden_sizes.items()],
    caption="Weights, gradients and optimizer state of one MLP, on each of t ranks",
)

# %% [markdown]
# ## Two ways to cut
#
# Look at $Y = XA$ and cut $A$. There are two directions.
#
# **By columns**, $A = [A_0, A_1]$. Each rank multiplies all of $X$ by its columns, and has some *columns*
# of $Y$, finished:
#
# $$Y = [X A_0,\ X A_1]$$

# %%
draw_matmul_split("columns", ranks=2)

# %% [markdown]
# **By rows**. Then $X$ is cut by columns to match, and each rank has a matrix as large as $Y$ in which
# every number is *unfinished*, a partial sum (the picture has the sizes of the MLP's second product, which
# will be cut so):
#
# $$Y = \begin{bmatrix} X_0 & X_1 \end{bmatrix} \begin{bmatrix} A_0 \\ A_1 \end{bmatrix} = X_0 A_0 + X_1 A_1$$

# %%
draw_matmul_split("rows", ranks=2)

# %% [markdown]
# Both are exact. Check it in one process, with nothing parallel about it yet. Mind one trap: `nn.Linear`
# keeps the *transpose* of our matrices, `weight` is `[out_features, in_features]`, so that **the columns of
# $A$ are the rows of `weight`**.

# %%
linear = nn.Linear(6, 8, bias=False)
A = linear.weight.T  # [6, 8]
X = torch.randn(3, 6)
by_columns = torch.cat([X @ A[:, :4], X @ A[:, 4:]], dim=-1)
by_rows = X[:, :3] @ A[:3] + X[:, 3:] @ A[3:]
print("by columns, joined:", torch.allclose(by_columns, linear(X), atol=1e-6))
print("by rows, added:    ", torch.allclose(by_rows, linear(X), atol=1e-6))

# %% [markdown]
# ## Find the mistake
#
# An article on this subject has a layer of hidden size 2048 on 4 GPUs: each of them computes 512 of the
# dimensions, and then an all-reduce combines what they have. Stop there. Each GPU has 512 of the layer's
# 2048 **outputs**. Which collective gives every GPU the whole output? Write `"all_reduce"` or
# `"all_gather"`, and then let four ranks try both.

# %% predict="which-collective"
your_guess = ...


# %%
def device() -> torch.device:
    """Where this rank's tensors live: its own GPU under NCCL, the CPU under gloo."""
    nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def quarter_of_the_outputs(group: dist.ProcessGroup) -> dict[str, str]:
    torch.manual_seed(0)  # the same X and A on every rank
    x, a = torch.randn(2, 2048, device=device()), torch.randn(2048, 2048, device=device())
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = x @ a.chunk(size, dim=1)[rank]
    added = mine.clone()
    dist.all_reduce(added, group=group)
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine, group=group)
    joined = torch.cat(parts, dim=-1)
    return {
        "all_reduce": f"shape {list(added.shape)}: output 0 plus output 512 plus ..., which nobody asked for",
        "all_gather": f"shape {list(joined.shape)}, equal to X A: {torch.allclose(joined, x @ a, atol=1e-3)}",
    }


for collective, outcome in labkit.launch(quarter_of_the_outputs, ranks=4).results[0].items():
    print(f"{collective}: {outcome}{'   <- your guess' if collective == your_guess else ''}")

# %% [markdown] reveals="which-collective"
# Outputs are *joined*, partial sums are *added*. An all-reduce belongs to the cut by rows. Remember the
# pair:
#
# | cut of the weights | needs of $X$ | gives | to complete it |
# |---|---|---|---|
# | by columns (output features) | all of it | some columns of $Y$, finished | all-gather, **or stay cut** |
# | by rows (input features) | its own columns | all of $Y$, partial sums | all-reduce |
#
# The last column holds the idea of this lesson. What a cut by columns gives is exactly what a cut by rows
# needs. Put one behind the other and nothing has to be sent in between.

# %% [markdown]
# ## Which cut comes first? GeLU decides
#
# Two products, two ways to cut each, and a GeLU between them. If the first one is cut by rows, every rank
# holds partial sums when it reaches GeLU. GeLU is not linear, so it cannot be applied to parts of a sum.
#
# One number will do: rank 0 has the partial sum $2$, rank 1 has $-2$. The finished number is $0$, and
# $\mathrm{GeLU}(0) = 0$. What comes out if each rank applies GeLU to its own part, and the results are
# added? Write a number, then look at the picture.

# %% predict="gelu-of-parts"
your_sum_of_gelus = ...

# %%
part = torch.linspace(-4, 4, 401)
figure, (left, right) = new_figure(height=2.9, columns=2)
for axes, other, title in ((left, -part, "v = -u: parts that cancel"), (right, torch.tensor(1.0), "v = 1")):
    axes.plot(part, F.gelu(part + other), label="GeLU(u + v)", color="#222222", linewidth=2)
    axes.plot(
        part, F.gelu(part) + F.gelu(other), "--", label="GeLU(u) + GeLU(v)", color="#D55E00", linewidth=2
    )
    axes.set(xlabel="u, the part of rank 0", title=title)
left.set_ylabel("result")
left.legend(frameon=False, fontsize=8)
Picture(figure, "GeLU of a sum, and the sum of the GeLUs of its two parts: far apart nearly everywhere.")

# %% reveals="gelu-of-parts"
u = torch.tensor(2.0)
prediction("GeLU(2) + GeLU(-2)", your_sum_of_gelus, round((F.gelu(u) + F.gelu(-u)).item(), 3), "computed")

# %% [markdown]
# So a first product cut by rows would need an all-reduce *before* GeLU, and then another one later. Cut by
# columns instead, and each rank has finished numbers for its own share of the $4h$ inner features: GeLU
# works on those as if nothing had been cut. The second product takes exactly these features as input, so it
# is cut by rows:
#
# $$[Y_0, Y_1] = [\mathrm{GeLU}(X A_0),\ \mathrm{GeLU}(X A_1)], \qquad Z = Y_0 B_0 + Y_1 B_1$$
#
# One all-reduce at the very end, and none in between. That is Megatron's MLP (Shoeybi et al. 2019, section
# 3).

# %% [markdown]
# ## Backward: who knows the gradient of X?
#
# Training needs gradients too. Suppose every rank has $\partial Z$ (short for the gradient of the loss with
# respect to $Z$), which it does: everything after $g$ is the same on every rank. Then each rank finds the
# gradients of its own $B_i$ and $A_i$ alone. But $X$ went into *every* rank's product, so its gradient has
# one term from each:
#
# $$\partial X = \sum_{i=0}^{t-1} \partial (X A_i)\, A_i^{\mathsf T}$$
#
# and a rank knows only its own term. Let four ranks compute theirs. The cell starts with `%%ranks 4`: it
# runs on four processes, which stay and remember their variables, so you can go on in another such cell.

# %%
# %%ranks 4
import torch
import torch.distributed as dist

torch.manual_seed(0)  # the same X, A and gradient of Y on every rank
rank, size = dist.get_rank(), dist.get_world_size()
X, A, gradient_of_Y = torch.randn(3, 6), torch.randn(6, 8), torch.randn(3, 8)
own_term = gradient_of_Y.chunk(size, dim=1)[rank] @ A.chunk(size, dim=1)[rank].T
whole = gradient_of_Y @ A.T
torch.set_printoptions(precision=3)
print(f"my term of dX[0]: {own_term[0, :3]}   what it should be: {whole[0, :3]}")

# %% [markdown]
# Every rank has another answer, and none is right. Add them up, in a second cell, on the same ranks:

# %%
# %%ranks 4
total = own_term.clone() if dist.get_backend() == "gloo" else own_term.cuda()
dist.all_reduce(total)
print(f"sum of the terms: {total[0, :3].cpu()}   right: {torch.allclose(total.cpu(), whole, atol=1e-5)}")

# %% [markdown]
# ## Two operators that mirror each other
#
# So the split MLP needs an all-reduce in *forward*, behind $B$, for the values of $Z$, and an all-reduce in
# *backward*, in front of $A$, for the gradient of $X$. Megatron writes them as two functions, each doing to
# gradients what the other does to values:
#
# | | forward | backward | stands |
# |---|---|---|---|
# | $f$ | identity | all-reduce | where a whole tensor enters the cut region |
# | $g$ | all-reduce | identity | where partial sums leave it |

# %%
draw_parallel_mlp(ranks=2, show_backward=True)

# %% [markdown]
# ## Why the backward of g is not an all-reduce
#
# Be suspicious here. PyTorch ships a differentiable all-reduce,
# `torch.distributed.nn.functional.all_reduce`, and its backward *is* an all-reduce. It assumes that each
# rank computes a loss of its own and that their sum is what you differentiate. In tensor parallelism there
# is **one** loss, which all ranks compute alike.
#
# Four ranks, each with the loss $\mathrm{sum}(Z)$ and $Z = \mathrm{all\_reduce}(x)$. The right gradient of
# $x$ is 1. What will PyTorch's differentiable all-reduce give?

# %% predict="gradient-through-all-reduce"
your_gradient = ...


# %%
def gradient_through_all_reduce(group: dist.ProcessGroup) -> float:
    warnings.simplefilter("ignore", FutureWarning)  # newer releases are about to move it
    from torch.distributed.nn.functional import all_reduce

    x = torch.ones(3, device=device(), requires_grad=True)
    all_reduce(x, group=group).sum().backward()
    return x.grad[0].item()


measured = labkit.launch(gradient_through_all_reduce, ranks=4).results[0]
prediction("the gradient of x, which should be 1", your_gradient, measured)

# %% [markdown] reveals="gradient-through-all-reduce"
# Four times too large: one for each rank. Nothing crashes, nothing looks wrong in forward, and every
# gradient in front of the all-reduce is silently $t$ times what it should be. So you build your own.

# %% [markdown]
# ### Exercise: f, copy to the tensor-parallel region
#
# A `torch.autograd.Function` has a `forward` and a `backward`; `ctx` carries what backward needs to
# remember. `backward` returns one gradient for each argument of `forward`: here one for `x`, and `None` for
# the group.
#
# Forward may return `x` itself, a view of it or a copy. Two things to watch. `dist.all_reduce` works **in
# place**, and the gradient that autograd hands you may be used by others as well. And that gradient can be
# any view, such as the expanded scalar that `sum()` sends back, while a collective wants contiguous memory.
#
# <details><summary>What is compared, in all exercises of this lesson</summary>
#
# * **Numbers**, on every rank of the group, with what stock PyTorch gives in one process: shape and dtype the
#   same, and no number off by more than $10^{-9}$ of the largest one (of 1, if that is more) in float64,
#   $10^{-4}$ in float32, $2 \cdot 10^{-2}$ in bfloat16.
# * **Calls**: which collectives a rank takes part in during forward and during backward, and the bytes of
#   its own tensor in each. In which order, under which of torch's names, and whether `async_op` is used, is
#   your affair. A group of one rank may call them or not.
# * **Tensors**: what a forward or a backward is given keeps its values. What it returned keeps them too when
#   it is called again, so no memory is used for two results. Tensors may lie in memory in any order, another
#   one on each rank: $X$, gradients, and the weights of a layer to be cut. They may have any number of
#   dimensions, another size the next time, and be zeros on some ranks. $X$ need not ask for a gradient, and
#   using it does not make it ask. $X$ may also go through the layer twice, and past it: then its gradients
#   add up, as a parameter's do over several backwards. A graph that is kept (`retain_graph=True`) may go
#   backward twice.
# * **Memory**: until its backward, a linear layer keeps its input alone, and the operators keep nothing. Once
#   backward is over, and under `torch.no_grad()`, a layer keeps no tensor of the call.
# * **What is cut**, a layer or an MLP, is left as it is, and torch's generator is not seeded by cutting it.
#   Whether a part of a frozen one is frozen too, or a part of one in evaluation in evaluation, is not asked.
# * **Modes**: `eval()`, `torch.no_grad()` and another layer in the same process, of another group, change no
#   number, no call and no work.
# * **Work**: matrix products are divided too. A rank does a $t$-th of those of forward and of backward. (A
#   product that backward computes once more is let pass.)
# * **Refusals**, of the two linear layers: a `ValueError` on every rank whose text has both numbers, the size
#   and the number of ranks in `group`.
#
# Ranks come to a call at different times, and `group` need not be all ranks of the job.
# </details>
# <details><summary>Hint 1</summary>Forward has nothing to compute. What must it remember?</details>
# <details><summary>Hint 2</summary><code>tensor.clone(memory_format=torch.contiguous_format)</code> gives
# you a copy that is both yours and contiguous.</details>


# %% exercise="06.copy-to-tensor-parallel" difficulty=2 minutes=10
class CopyToTensorParallel(torch.autograd.Function):
    """f: a whole tensor enters the cut region. Use: CopyToTensorParallel.apply(x, group)."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """x: any shape, the same on every rank of `group`. Returns x, and sends nothing."""
        ### BEGIN SOLUTION
        ctx.group = group
        return x
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        """grad_output: this rank's gradient, not to be changed. Returns the sum over
        the ranks, and None.
        """
        ### BEGIN SOLUTION
        total = grad_output.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
        ### END SOLUTION


# %% [markdown]
# Run it: rank $r$ sends back the gradient $10^r$. What should every rank end with?


# %%
target("06-copy")


# %%
def try_f(group: dist.ProcessGroup) -> tuple[float, float]:
    x = torch.full((2, 3), 7.0, device=device(), requires_grad=True)
    out = CopyToTensorParallel.apply(x, group)
    out.backward(torch.full_like(out, 10.0 ** dist.get_rank(group)))
    return out[0, 0].item(), x.grad[0, 0].item()


job = labkit.launch(try_f, ranks=4)
for rank, (value, gradient) in enumerate(job.results):
    print(f"rank {rank}: forward gave {value:g}, the gradient of x is {gradient:g}")
draw_traffic(job)

# %% check="06.copy-to-tensor-parallel"
# Numbers: x comes through unchanged; its gradient is the sum over the ranks.
# Mechanism: nothing is sent in forward, one all-reduce in backward, of exactly the gradient's bytes.
# Robustness: your caller's tensors keep their values; views work; so does a group of some of the ranks.
labkit.check("06.copy-to-tensor-parallel", CopyToTensorParallel)

# %% [markdown]
# ### Exercise: g, reduce from the tensor-parallel region
#
# The mirror image: partial sums come in, their sum goes out; the gradient passes through.
#
# <details><summary>Hint</summary>The caller still owns <code>x</code>. After your forward it must hold what
# it held before, so reduce a copy. Backward needs nothing from <code>ctx</code>.</details>


# %% exercise="06.reduce-from-tensor-parallel" difficulty=1 minutes=5
class ReduceFromTensorParallel(torch.autograd.Function):
    """g: partial sums leave the cut region, added. Use: ReduceFromTensorParallel.apply(x, group)."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """x: this rank's partial sums, any shape, not to be changed. Returns their sum
        over the ranks.
        """
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        """grad_output: gradient of the sum, the same on every rank. Returns the
        gradient of x, and None.
        """
        ### BEGIN SOLUTION
        return grad_output, None
        ### END SOLUTION


# %% [markdown]
# The same experiment as with PyTorch's all-reduce above. This time the gradient of $x$ should be 1:


# %%
target("06-reduce")


# %%
def try_g(group: dist.ProcessGroup) -> tuple[float, float]:
    x = torch.full((2, 3), 10.0 ** dist.get_rank(group), device=device(), requires_grad=True)
    out = ReduceFromTensorParallel.apply(x, group)
    out.sum().backward()
    return out[0, 0].item(), x.grad[0, 0].item()


job = labkit.launch(try_g, ranks=4)
for rank, (value, gradient) in enumerate(job.results):
    print(f"rank {rank}: forward gave {value:g}, the gradient of x is {gradient:g}")
draw_traffic(job)

# %% check="06.reduce-from-tensor-parallel"
labkit.check("06.reduce-from-tensor-parallel", ReduceFromTensorParallel)

# %% [markdown]
# ## What a rank keeps
#
# Each rank should hold a $t$-th of the weights. Cutting a tensor is easy, but think about what a slice
# *is*. Take a quarter of a weight of 1024 by 1024 float32 numbers (4 MiB) and let go of the rest. **How
# many MiB stay in memory?**

# %% predict="bytes-behind-a-slice"
your_mib = ...

# %%
weight = torch.randn(1024, 1024)
kept = nn.Parameter(weight.chunk(4, dim=0)[0])  # 256 of the 1024 rows
del weight
measured_mib = kept.untyped_storage().nbytes() / 2**20
prediction("MiB in memory behind a quarter of 4 MiB", your_mib, measured_mib)

# %% [markdown] reveals="bytes-behind-a-slice"
# A slice is a *view*: it points into the old storage and keeps all of it alive. A layer that stores views
# saves no memory at all, and every shape you print looks right. `clone()` makes a block that stands on its
# own.

# %% [markdown]
# ### Exercise: the column-parallel linear layer
#
# `from_linear` takes an ordinary `nn.Linear`, the same on every rank, and keeps this rank's block.
# `forward` then has all of $X$ and gives this rank's output features. $f$ goes in front: $X$ is whole, and
# enters the cut region.
#
# With `gather_output=True` the layer joins the features of all ranks, so that every rank has the whole
# output. For that you write a third operator, an all-gather in forward. After it everything is whole again
# and all ranks compute the same loss, so think about its backward as you did for $g$: of the whole
# gradient, which part belongs to this rank? The operator is checked as part of the layer.
#
# Ranks are numbered within `group`, and the group need not be all ranks: ask it for your rank and its size.
# If the sizes do not divide, raise a `ValueError` that names them.
#
# <details><summary>Hint 1: which dimension?</summary>Column-parallel cuts the output features.
# <code>weight</code> is <code>[out, in]</code>, <code>bias</code> is <code>[out]</code>: both are cut along
# dim 0.</details>
# <details><summary>Hint 2: joining</summary><code>dist.all_gather(parts, x, group=group)</code> fills a
# list of tensors in rank order and wants <code>x</code> contiguous. Features are the last dimension,
# whatever comes before it.</details>
# <details><summary>Hint 3: the backward of joining</summary>The incoming gradient is whole and the same on
# every rank. Rank r put in slice r, so slice r is its gradient: nothing to send.</details>


# %% exercise="06.column-parallel-linear" difficulty=3 minutes=20
class GatherFromTensorParallel(torch.autograd.Function):
    """Slices of the last dimension are joined. Use: GatherFromTensorParallel.apply(x, group)."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """x: this rank's slice, [..., n]. Returns the slices of all ranks in rank order, [..., t n]."""
        ### BEGIN SOLUTION
        ctx.group = group
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        return torch.cat(parts, dim=-1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        """grad_output: [..., t n], the same on every rank. Returns the gradient of x,
        [..., n], and None.
        """
        ### BEGIN SOLUTION
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        return grad_output.chunk(size, dim=-1)[rank], None
        ### END SOLUTION


class ColumnParallelLinear(nn.Module):
    """A linear layer whose output features are divided among the ranks of a group."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, gather_output: bool = False
    ):
        """weight: this rank's block, [out / t, in]. bias: its part of the bias, [out / t], or None."""
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.group = group
        self.gather_output = gather_output

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, group: dist.ProcessGroup, gather_output: bool = False
    ) -> "ColumnParallelLinear":
        """This rank's part of `linear`, which is left alone and of which nothing else
        is kept in memory.

        Raises ValueError, naming both sizes, if the ranks of `group` do not divide the
        output features.
        """
        ### BEGIN SOLUTION
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if linear.out_features % size:
            raise ValueError(f"{linear.out_features} output features do not divide among {size} ranks")
        weight = linear.weight.detach().chunk(size, dim=0)[rank].clone()
        bias = None if linear.bias is None else linear.bias.detach().chunk(size, dim=0)[rank].clone()
        return cls(weight, bias, group, gather_output)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in], the same on every rank. Returns [..., out / t], or [..., out]
        with gather_output.
        """
        ### BEGIN SOLUTION
        x = CopyToTensorParallel.apply(x, self.group)
        out = F.linear(x, self.weight, self.bias)
        return GatherFromTensorParallel.apply(out, self.group) if self.gather_output else out
        ### END SOLUTION


# %% [markdown]
# Run it on four ranks and look at three things: what each rank stores, what it gives, and what it sent. The
# first call leaves the output cut, the second gathers it. How many collectives do you expect from a forward
# and a backward of each?


# %%
target("06-gathered")


# %%
def try_column(gather_output: bool, group: dist.ProcessGroup) -> tuple[str, str]:
    torch.manual_seed(0)  # every rank starts from the same full layer
    full = nn.Linear(64, 256).to(device())
    layer = ColumnParallelLinear.from_linear(full, group, gather_output)
    x = torch.randn(2, 8, 64, device=device(), requires_grad=True)
    out = layer(x)
    out.sum().backward()
    stored = sum(p.untyped_storage().nbytes() for p in layer.parameters())
    return binary_text(stored), str(list(out.shape))


cut = labkit.launch(try_column, gather_output=False, ranks=4)
gathered = labkit.launch(try_column, gather_output=True, ranks=4)
for rank, (stored, shape) in enumerate(cut.results):
    print(f"rank {rank} stores {stored} of 65.00 KiB, output {shape}; gathered {gathered.results[rank][1]}")
draw_traffic(gathered)

# %% check="06.column-parallel-linear"
# Numbers: output, gradients of x, weight and bias, the weights after two steps of SGD,
# against nn.Linear.
# Mechanism: what is sent and when, what a rank keeps in memory, that it computes with
# its own block only.
# Robustness: sizes that do not divide are refused; a group of some of the ranks works.
labkit.check("06.column-parallel-linear", ColumnParallelLinear)

# %% [markdown]
# ## Once, not t times
#
# In the row-parallel layer every rank computes partial sums, and $g$ adds them. The bias is not cut (it has
# one number for each *output* feature, and all ranks have all outputs). Suppose you write
# `F.linear(x, weight, bias)` as usual on each of four ranks, and reduce after that. With a bias of 1
# everywhere and an input of zeros the right output is 1. **What do you get?**

# %% predict="bias-before-reduce"
your_output = ...


# %%
def bias_before_reduce(group: dist.ProcessGroup) -> float:
    x, weight, bias = (torch.zeros(1, 4), torch.randn(3, 4), torch.ones(3))
    partial = F.linear(x.to(device()), weight.to(device()), bias.to(device()))
    return ReduceFromTensorParallel.apply(partial, group)[0, 0].item()


measured = labkit.launch(bias_before_reduce, ranks=4).results[0]
prediction("bias 1, added on each of 4 ranks", your_output, measured)

# %% [markdown] reveals="bias-before-reduce"
# A model whose biases start at zero would not show this at first: it would drift away as it learns.
# Dividing the bias by $t$ on every rank only hides it. The output is right, but each of the $t$ copies then
# learns at full speed, so that their sum learns $t$ times too fast.

# %% [markdown]
# ### Exercise: the row-parallel linear layer
#
# Its input is already cut: rank $r$ gets slice $r$ of the input features, as the column-parallel layer left
# it. Its output is whole on every rank. The gradient of its input is, for each rank, the gradient of its
# own slice.
#
# <details><summary>Hint 1: which dimension?</summary>Row-parallel cuts the input features, dim 1 of
# <code>weight</code>. The bias stays whole, the same on every rank.</details>
# <details><summary>Hint 2: the order</summary>Multiply without bias, reduce with g, then add the bias. Its
# gradient is then whole on every rank, and the copies stay equal.</details>


# %% exercise="06.row-parallel-linear" difficulty=2 minutes=15
class RowParallelLinear(nn.Module):
    """A linear layer whose input features are divided among the ranks of a group."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup):
        """weight: this rank's block, [out, in / t]. bias: whole, [out], the same on
        every rank, or None.
        """
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.group = group

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup) -> "RowParallelLinear":
        """This rank's part of `linear`, which is left alone and of which nothing else
        is kept in memory.

        Raises ValueError, naming both sizes, if the ranks of `group` do not divide the
        input features.
        """
        ### BEGIN SOLUTION
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if linear.in_features % size:
            raise ValueError(f"{linear.in_features} input features do not divide among {size} ranks")
        weight = linear.weight.detach().chunk(size, dim=1)[rank].clone()
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls(weight, bias, group)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in / t], this rank's slice. Returns [..., out], the same on every rank."""
        ### BEGIN SOLUTION
        partial = F.linear(x, self.weight)
        out = ReduceFromTensorParallel.apply(partial, self.group)
        return out if self.bias is None else out + self.bias
        ### END SOLUTION


# %% [markdown]
# Run it on four ranks. Every rank should print the same output, and one all-reduce of the output should be
# all that was sent, in forward and backward together.


# %%
target("06-row")


# %%
def try_row(group: dist.ProcessGroup) -> str:
    torch.manual_seed(0)
    full = nn.Linear(256, 64).to(device())
    x = torch.randn(2, 8, 256, device=device())
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    layer = RowParallelLinear.from_linear(full, group)
    own_slice = x.chunk(size, dim=-1)[rank].clone().requires_grad_()
    out = layer(own_slice)
    out.sum().backward()
    error = (out - full(x)).abs().max().item()
    return f"weight {list(layer.weight.shape)}, output {list(out.shape)}, off by {error:.1e} from nn.Linear"


job = labkit.launch(try_row, ranks=4)
for rank, line in enumerate(job.results):
    print(f"rank {rank}: {line}")
draw_traffic(job)

# %% check="06.row-parallel-linear"
labkit.check("06.row-parallel-linear", RowParallelLinear)

# %% [markdown]
# ## How much will it send?
#
# You have all the parts of the picture at the top. Before you put them together, a second find-the-mistake.
# A lecture slide says of this MLP that it needs no all-reduce. Look at your two layers and decide: in one
# training step (one forward, one backward), **how many all-reduces does the MLP take part in, and how many
# bytes does a rank hand to them?** Take $b = 4$, $s = 128$, $h = 512$, float32.

# %% predict="traffic-of-a-step"
your_number_of_all_reduces = ...
your_bytes = ...

# %% [markdown]
# ### Exercise: the tensor-parallel MLP
#
# `from_mlp` takes an ordinary MLP with two linear layers `up` ($A$) and `down` ($B$), each with a bias or
# without, and cuts them the way the picture shows. Almost nothing is left to write.
#
# <details><summary>Hint</summary>The output of <code>up</code> must stay cut, and so must everything until
# <code>down</code>.</details>


# %% exercise="06.tensor-parallel-mlp" difficulty=1 minutes=10
class TensorParallelMLP(nn.Module):
    """down(gelu(up(x))), with the inner features divided among the ranks of a group."""

    def __init__(self, up: ColumnParallelLinear, down: RowParallelLinear):
        super().__init__()
        self.up = up
        self.down = down

    @classmethod
    def from_mlp(cls, mlp: nn.Module, group: dist.ProcessGroup) -> "TensorParallelMLP":
        """This rank's part of `mlp`, which has two nn.Linear: `mlp.up` (h to 4h) and
        `mlp.down` (4h to h).
        """
        ### BEGIN SOLUTION
        up = ColumnParallelLinear.from_linear(mlp.up, group)
        down = RowParallelLinear.from_linear(mlp.down, group)
        return cls(up, down)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., h], the same on every rank. Returns [..., h], the same on every
        rank. Between: GeLU.
        """
        ### BEGIN SOLUTION
        return self.down(F.gelu(self.up(x)))
        ### END SOLUTION


# %% [markdown]
# Run one training step on two ranks and look at what they did. The blue bars are your forward, the orange
# ones your backward, the green ones your two operators at work. (A rank that gets there first waits for the
# other: its green bar is longer.)


# %%
target("06-one-step")


# %%
def one_step(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    config = gpt(num_layers=1, hidden=512, num_heads=8, vocabulary=256, max_sequence=128)
    mlp = TensorParallelMLP.from_mlp(MLP(config).to(device()), group)
    x = torch.randn(4, 128, 512, device=device(), requires_grad=True)
    for _ in range(2):  # the first step pays for allocating memory: look at the second
        dist.barrier(group)
        with labkit.span("forward", kind="forward"):
            loss = mlp(x).square().mean()
        with labkit.span("backward", kind="backward"):
            loss.backward()


step = labkit.launch(one_step, ranks=2)
draw_timeline(step)

# %%
on_rank_0 = [c for c in step.collectives if c.rank == 0 and c.op == "all_reduce"]
in_one_step = on_rank_0[: len(on_rank_0) // 2]
Table(
    ["one training step", "your guess", "measured"],
    [
        ["all-reduces", your_number_of_all_reduces, len(in_one_step)],
        ["bytes", your_bytes, sum(c.num_bytes for c in in_one_step)],
    ],
)

# %% [markdown]
# Two, of $bsh$ numbers each: $2 \cdot 4 \cdot 128 \cdot 512 \cdot 4$ bytes = 2 MiB. The slide is right
# about what happens *between* the two products, and only about that.

# %% check="06.tensor-parallel-mlp"
# As before, and: nothing is sent between the two layers. The last property uses your own
# f, g, column and row layers. The others are graded with reference versions of those, so
# that one mistake costs once.
labkit.check("06.tensor-parallel-mlp", TensorParallelMLP)

# %% [markdown]
# ## What it costs: communication
#
# A transformer layer has two such regions, attention (lesson 07) and the MLP. Each takes one all-reduce
# forward and one backward, **2 + 2 in a layer**, of $bsh$ numbers each. A ring all-reduce moves every
# number about twice (lesson 00), so each rank sends, per layer and micro-batch,
#
# $$4 \cdot 2\,\frac{t-1}{t}\; b s h \;=\; 8\, b s h\, \frac{t-1}{t} \ \text{numbers}$$
#
# (Narayanan et al. 2021, section 3.2). The MLP's half is $4bsh(t-1)/t$. It grows with $t$, if only a
# little, while the arithmetic of a rank shrinks. And sending cannot hide behind arithmetic: the next layer
# needs $Z$ before it can start. So the link decides. Below is the forward of one GPT-3 MLP on A100s, at the
# arithmetic's peak and the links' full bandwidth (latency left out).

# %%
h, s, b = 12288, 2048, 1
flops = 16 * b * s * h**2  # two products of 2 bs h 4h floating-point operations
peak = 312e12  # A100, dense bf16, FLOP/s
# Bytes a second for each GPU, one direction: A100 data sheet; the cluster of Narayanan 2021, section 5
links = {
    "NVLink, 300 GB/s (a node of 8)": (300e9, "s--", [2, 4, 8]),
    "InfiniBand HDR, 25 GB/s": (25e9, "^:", [2, 4, 8, 16]),
}
degrees = [1, 2, 4, 8, 16]

figure, (axes,) = new_figure(height=3.2)
arithmetic = [1e3 * flops / t / peak for t in degrees]
axes.plot(degrees, arithmetic, "o-", color="#0072B2", label="arithmetic of one rank")
for name, (bandwidth, style, reach) in links.items():
    milliseconds = [1e3 * all_reduce_seconds(2 * b * s * h, t, alpha=0, beta=1 / bandwidth) for t in reach]
    axes.plot(reach, milliseconds, style, color="#009E73", label=f"all-reduce of Z over\n{name}")
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(degrees, [str(t) for t in degrees])
axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
axes.set(xlabel="t, ranks that share the layer", ylabel="milliseconds")
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
Picture(
    figure,
    "The arithmetic of a rank falls from 16 ms at t = 1 to 1 ms at t = 16. The all-reduce takes 0.2 to 0.3 "
    "ms over NVLink; over InfiniBand it takes 2 to 4 ms, more than the arithmetic from t = 8 on.",
)

# %% [markdown]
# Inside a node the all-reduce is a small part of the time. Between nodes, at $t = 8$ it takes longer than
# the arithmetic it serves. This is why tensor parallelism is used up to the number of GPUs in a node, and
# other ways of splitting a model go across nodes (Narayanan et al. 2021, takeaway 1).
#
# One more claim to read with care: some articles list layer normalization among the places where GPUs
# all-reduce. LayerNorm works on whole tokens, which every rank has behind $g$. Each rank computes all of
# it, alike, and sends nothing (Korthikanti et al. 2022, section 4.2). Lesson 07 removes this duplicate
# work, with sequence parallelism.

# %% [markdown]
# ## What it saves: memory
#
# Weights fall to $1/t$, and gradients and optimizer state with them. What backward keeps of the forward
# falls only in part: the inner tensors have $4h/t$ features on a rank, but $X$ is whole. With 16-bit
# activations and dropout, Korthikanti et al. (2022, section 4) count $19\,sbh$ bytes for an MLP: $2sbh$ for
# $X$, $8sbh$ each for the input and the output of GeLU, $sbh$ for the dropout mask. Only the two in the
# middle are cut: $sbh\,(3 + 16/t)$.
#
# Your MLP keeps float32 and has no dropout, so $4sbh$ for $X$ and $16sbh$ for each of the inner two. How
# many **sbh bytes** does it keep in all on each of 4 ranks?

# %% predict="kept-for-backward"
your_sbh_bytes = ...


# %%
def kept_for_backward(group: dist.ProcessGroup) -> float:
    """Bytes that autograd keeps of one forward, parameters left out, in units of s b h bytes."""
    torch.manual_seed(0)
    config = gpt(num_layers=1, hidden=64, num_heads=4, vocabulary=256, max_sequence=32)
    mlp = TensorParallelMLP.from_mlp(MLP(config).to(device()), group)
    parameters = {p.untyped_storage().data_ptr() for p in mlp.parameters()}
    kept = {}

    def remember(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(4, 32, 64, device=device(), requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        out = mlp(x)
    return sum(kept.values()) / out.numel()


measured = {t: labkit.launch(kept_for_backward, ranks=t).results[0] for t in (1, 2, 4)}

# %% reveals="kept-for-backward"
Table(
    ["in sbh bytes", "your guess", "formula: 4 + 32 / t", "measured"],
    [[f"t = {t}", your_sbh_bytes if t == 4 else "", 4 + 32 / t, kept] for t, kept in measured.items()],
)

# %% [markdown]
# ## What PyTorch ships
#
# PyTorch can do all this to a model that knows nothing of it. `parallelize_module` takes a plan, a style
# for each linear layer by name, and replaces its parameters by `DTensor`s: tensors that know how they are
# cut (`Shard(0)`, `Shard(1)`) and send what an operation needs. `ColwiseParallel` is your column-parallel
# layer, `RowwiseParallel` your row-parallel one.
#
# Run both on the same weights and the same input: three training steps each, on four ranks.


# %%
def three_steps(mlp: nn.Module, x: Tensor, target: Tensor) -> list[float]:
    losses = []
    for _ in range(3):
        loss = (mlp(x) - target).square().mean()
        mlp.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in mlp.parameters():  # plain SGD, written out
                parameter -= 0.5 * parameter.grad
        losses.append(loss.item())
    return losses


def same_job(group: dist.ProcessGroup) -> tuple[MLP, Tensor, Tensor]:
    """The same weights, input and target on every rank."""
    torch.manual_seed(0)
    config = gpt(num_layers=1, hidden=64, num_heads=4, vocabulary=256, max_sequence=32)
    tensors = [torch.randn(4, 32, 64, device=device()) for _ in range(2)]
    return MLP(config).to(device()), *tensors


def ours(group: dist.ProcessGroup) -> list[float]:
    mlp, x, target = same_job(group)
    return three_steps(TensorParallelMLP.from_mlp(mlp, group), x.requires_grad_(), target)


def theirs(group: dist.ProcessGroup) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mlp, x, target = same_job(group)
    mesh = init_device_mesh(device().type, (dist.get_world_size(group),))
    parallelize_module(mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return three_steps(mlp, x.requires_grad_(), target)


def unsplit(group: dist.ProcessGroup) -> list[float]:
    return three_steps(*same_job(group))


jobs = {
    "one process, nn.Linear": labkit.launch(unsplit, ranks=1),
    "ours, 4 ranks": labkit.launch(ours, ranks=4),
    "DTensor, 4 ranks": labkit.launch(theirs, ranks=4),
}


def all_reduces(job: labkit.Job) -> list[int]:
    return [c.num_bytes for c in job.collectives if c.rank == 0 and c.op == "all_reduce"]


Table(
    ["", "loss 1", "loss 2", "loss 3", "all-reduces of rank 0", "bytes"],
    [
        [name, *(f"{loss:.6f}" for loss in job.results[0]), len(all_reduces(job)), sum(all_reduces(job))]
        for name, job in jobs.items()
    ],
)

# %% [markdown]
# The same losses, the same collectives: two in a step, three steps. What you wrote in about thirty lines is
# what the library does; what the library adds is that it works for any module, composes with FSDP on
# another mesh dimension (lesson 09), and saves checkpoints that can be read back on another number of
# ranks.

# %% [markdown]
# ## Where this leaves you
#
# You cut a matrix product in both directions and know which collective each direction asks for. You wrote
# $f$ and $g$, and know why the backward of $g$ is *not* an all-reduce. Your MLP keeps $1/t$ of its weights
# on each rank and takes one all-reduce forward, one backward, and none between its two products.
#
# **Think about**
#
# 1. `from_linear` starts from the full layer on every rank. If that layer fits on no rank, how would you
#    initialise the blocks so that the model is the same for every $t$? What goes wrong if every rank seeds
#    its generator alike and draws its own block?
# 2. GPT applies dropout to $Z$. All ranks have $Z$: must they draw the same mask? What about a dropout on
#    the inner features, which are cut?
# 3. At $t = 16$ on nodes of 8 GPUs, which of the four all-reduces of a layer leave the node? What would you
#    do with 16 GPUs instead?
#
# **To read**
#
# - Shoeybi et al., *Megatron-LM* (2019, arXiv 1909.08053), section 3: the MLP, $f$ and $g$.
# - Narayanan et al., *Efficient large-scale language model training on GPU clusters* (SC 2021, arXiv
#   2104.04473), sections 2.3 and 3.2: tensor parallelism beside the other kinds, and what each sends.
# - Korthikanti et al., *Reducing activation recomputation in large transformer models* (2022, arXiv
#   2205.05198), section 4.2: $f$ and $g$ with sequence parallelism, where the letter $g$ gets a second
#   meaning.
# - The PyTorch tutorial *Large scale transformer model training with tensor parallel*, for DTensor plans of
#   whole models.

# %% scoreboard=true
labkit.scoreboard("06")
