# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "05", title: "Activation checkpointing: forget, and run it again", minutes: 100}
# ---

# %% [markdown]
# # Activation checkpointing: forget, and run it again
#
# Forward fills memory with results that backward will need. For long sequences and deep models these
# *activations* are larger than the weights. But nobody forces you to keep them: what was computed once can
# be computed again. **How much memory does forgetting save, what does it cost, and how do you forget
# without changing a single gradient?**
#
# **You need** `torch.autograd.Function` and the activation formulas of lesson 01; micro-batches (lesson 04)
# for the last part. **You will have built** your own `checkpoint`, a chain that runs in segments, and a
# formula for its peak that agrees with what you measure. About 100 minutes.

# %% tags=["setup"]
# What this lesson imports: run it first
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import labkit
from labkit.record.live import LiveBytes, WatchedStep, watch_step
from labkit.record.memory import measure_activations
from labkit.show import Table, draw_growth, draw_held, draw_peaks, draw_timeline, prediction
from labkit.show.measured import measured_on_a_gpu
from labkit.show.target import target
from labkit.theory.units import binary_text

# %load_ext labkit

# %% [markdown]
# ## The shape of a training step
#
# Here is a chain of 16 layers, each of them a small residual MLP. We run forward and backward three times
# and write down after *every operation* how many bytes of tensors are alive. Weights and their gradients
# are left out.
#
# The first curve keeps everything. The second one keeps nothing but the chain's input and, when backward
# begins, runs the whole forward again. The third one has four segments. By the end of the lesson you will
# have built the second and the third, and will know from a formula where their peaks are.


# %%
class Layer(nn.Module):
    """The MLP half of a transformer layer, x + down(gelu(up(norm(x)))). x: [rows, width]."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def torchs_segments(layers: Sequence[nn.Module], segments: int) -> Callable[[Tensor], Tensor]:
    """PyTorch's own checkpointing, for the picture: you will replace it."""
    size = len(layers) // segments
    parts = [nn.Sequential(*layers[i : i + size]) for i in range(0, len(layers), size)]

    def forward(x: Tensor) -> Tensor:
        for part in parts:
            x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=True)
        return x

    return forward


torch.manual_seed(0)
chain = nn.Sequential(*[Layer(width=128, inner=512) for _ in range(16)])
x = torch.randn(256, 128)
steps = {
    "keep everything": watch_step(chain, x, chain),
    "one segment": watch_step(chain, x, torchs_segments(chain, 1)),
    "four segments": watch_step(chain, x, torchs_segments(chain, 4)),
}
draw_held({name: s.history for name, s in steps.items()}, {name: s.turn for name, s in steps.items()})

# %% [markdown]
# "One segment" holds almost nothing at the dot, and then climbs to the same height as "keep everything":
# when backward needs the last layer's activations, it has to build all of them again. The gain is in the
# middle.
#
# ## What backward keeps
#
# Why does a layer need so much? Autograd keeps, for each operation, what its derivative needs: a matrix
# product its input, GeLU its input, LayerNorm its input and two numbers a row. Below is one layer's list.
# In the notation of all lessons ($s$ tokens in a sequence, $b$ sequences, $h$ hidden size, $a$ heads), a
# whole transformer layer keeps
#
# $$sbh\,\Bigl(34 + 5\,\frac{as}{h}\Bigr)\ \text{bytes}$$
#
# in 16-bit training (Korthikanti et al. 2022, equation 1). This is in **bytes** already. Its input alone is
# $2sbh$ bytes: with $a s / h$ around 8, a layer keeps some 37 times as much as what enters it. Keep the
# input, forget the rest.

# %%
layer = chain[0]
names = {p.data_ptr(): "a weight" for p in layer.parameters()}
kept: list[list[object]] = []


def note(tensor: Tensor) -> Tensor:
    what = names.get(tensor.untyped_storage().data_ptr(), "an activation")
    kept.append([list(tensor.shape), what, binary_text(tensor.untyped_storage().nbytes())])
    return tensor


with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    layer(x.clone().requires_grad_())
Table(
    ["shape", "what it is", "size"], kept, caption="What autograd saved for backward of one layer, in order"
)

# %% [markdown]
# The weights are there anyway. Count the activations: which of them is the layer's own input? One input is
# $256 \times 128$ floats, 128 KiB. In units of that, **how many inputs' worth of activations does one layer
# keep?** The inner width is four times the outer one. Write a whole number; the two numbers a row that
# LayerNorm keeps are small.

# %% predict="inputs-worth"
your_inputs_worth = ...

# %%
boundary_bytes = x.nbytes
layer_bytes = measure_activations(layer, lambda: layer(x.clone().requires_grad_()))
prediction("activations of one layer, in inputs", your_inputs_worth, round(layer_bytes / boundary_bytes, 2))

# %% [markdown] reveals="inputs-worth"
# The input of the norm, its result (which the first product needs), and twice the inner width: before GeLU
# and after.

# %% [markdown]
# ## Forget, and run it again
#
# The idea in one sentence: in forward, call the function under `torch.no_grad()` and keep only its
# *inputs*; in backward, call it again with gradients on, and backpropagate through that second run.
#
# It is ten lines, and then the details begin. The second run must be **the same** run:
#
# * dropout must draw the same mask, so the generator's state of the first run has to be restored, and
#   afterwards the generator must go on as if there had been no second run;
# * if forward ran under `torch.autocast`, backward usually does not: the second run has to enter it again.
#   Where only backward stands inside one, the second run has to leave it;
# * batch normalisation would update its running averages twice.
#
# And autograd has habits of its own. Look at one of them before you start.

# %%
linear = nn.Linear(3, 3)


class Blind(torch.autograd.Function):
    """A function that calls a layer whose weights autograd does not see among its inputs."""

    @staticmethod
    def forward(ctx, value: Tensor) -> Tensor:
        with torch.no_grad():
            return linear(value)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> Tensor:
        print("backward was called")
        return grad_output


for asks in (True, False):
    result = Blind.apply(torch.ones(2, 3, requires_grad=asks))
    print(f"input requires grad: {asks!s:5}   result requires grad: {result.requires_grad}")

# %% [markdown]
# In the second line the weights of `linear` would get no gradient, silently: none of the function's
# *inputs* asks for one, so autograd leaves the function out of the graph. The first layer of a model, fed
# with plain data, is such a case. The remedy is small: hand the function one more input that does require a
# gradient.

# %% [markdown]
# ### Exercise: checkpoint
#
# Write `checkpoint(function, *args)`. The result and all gradients are those of `function(*args)`. The
# function runs once in forward and once in backward, and in between only the inputs and the results are
# alive. `torch.utils.checkpoint` is what you are building, so it may not be called.
#
# * **Arguments and results.** The arguments can be tensors or anything else. The function returns one tensor,
#   or a tuple of them. A tuple of one stays a tuple. Some results may have no graph, be whole numbers, or be
#   an argument itself, and not every one need be used. A result that has no graph in plain autograd may ask
#   for a gradient here, but not under `torch.no_grad()`.
# * **Several at once.** Several calls may come before their backwards, which come in any order. A checkpoint
#   may lie inside another: the inner function then runs three times, once in forward and twice in backward.
# * **Errors.** If the second run raises, its error comes through, and the random generator is as it was
#   before backward.
# * **Memory.** All that the process holds beside the function and its arguments is counted, at three moments.
#   Between forward and backward it is the results, and at most 16 KiB for generator states and the like. The
#   same holds when backward is over and the gradients are gone. When the results were dropped and no backward
#   came, it is at most 16 KiB. Functions and arguments are of every kind: a module or not, a leaf or what
#   another layer gave, of any dtype.
# * **Buffers.** Where `function` is a module, its buffers change in the first run alone. (A method's or a
#   closure's are not asked about.)
# * **Numbers** are compared with those of plain autograd, most of them in float64.
#
# If somebody overwrites an argument between forward and backward, the second run is another one. Plain
# autograd raises a `RuntimeError` then, and so does yours if `ctx.save_for_backward` keeps its tensors. That
# is good style, but no check overwrites an argument, or puts a module into another mode in between. No
# function returns a parameter itself, and no module puts a new tensor in a buffer's place. The second run may
# find buffers as the first one left them.
#
# Start with the plain case, run the check, and let its rows lead you through the rest.
#
# <details><summary>Hint 1: the skeleton</summary>
#
# `forward(ctx, function, extra, *args)`: keep the tensors with `ctx.save_for_backward`, the rest in `ctx`.
# `backward` gets one gradient for each result. Detach the saved tensors, give those that need it
# `requires_grad_()`, run the function under `torch.enable_grad()`, and call
# `torch.autograd.backward(results, gradients)`.
# </details>
# <details><summary>Hint 2: what backward returns</summary>
#
# One value for each argument of forward: `None` for the function, for the extra input, and for every
# argument that is no tensor; `.grad` of the detached copies for the others. A result that is not used has a
# gradient of zeros, which would reach weights that plain autograd leaves alone; after
# `ctx.set_materialize_grads(False)` it has `None`. Leave such results out, and those without a graph, which
# cannot be backpropagated.
# </details>
# <details><summary>Hint 3: random numbers</summary>
#
# `torch.get_rng_state()` before the first run. In backward: `with torch.random.fork_rng(devices=[]):` then
# `torch.set_rng_state(...)`. The `with` block puts the outer state back, also when the function raises. A
# GPU has a generator of its own: `torch.cuda.get_rng_state()`, and its device in `devices`.
# </details>
# <details><summary>Hint 4: autocast and buffers</summary>
#
# `torch.is_autocast_enabled("cpu")` and `torch.get_autocast_dtype("cpu")` say what to enter again with
# `torch.autocast(device_type, dtype=..., enabled=...)`. A module's buffers can be copied before the second
# run and copied back when backward is through (`buffer.data.copy_`: backward still reads them). To find them,
# `isinstance(function, nn.Module)` is enough. (Where your answer is checked,
# `getattr(function, "__self__", None)` is `None`, whatever the function is.)
# </details>


# %% exercise="05.checkpoint" difficulty=4 minutes=45
def checkpoint(function: Callable, *args):
    """`function(*args)`, whose activations are computed again in backward instead of being kept.

    function: a module, in training or evaluation, or a function; returns a tensor or a tuple of
        them, which may be one, without a graph, or of whole numbers. Called once now, once in
        backward; under no_grad once in all. The same one may be checkpointed again before that. Its
        parameters' gradients are added to what is in `.grad`; frozen ones get none.
    args: positional arguments, None among them; those that are tensors and require
        grad get the gradient they would have had, also where one stands in two places.
    """
    ### BEGIN SOLUTION
    # One more input, which puts us in the graph for the parameters' sake.
    extra = torch.zeros((), requires_grad=torch.is_grad_enabled())
    return _RunAgain.apply(function, extra, *args)


class _RunAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, extra, *args):
        ctx.set_materialize_grads(False)
        ctx.function, ctx.surroundings = function, _Surroundings(args)
        ctx.others = [None if isinstance(a, Tensor) else a for a in args]
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.save_for_backward(*[args[i] for i in ctx.places])
        with torch.no_grad():
            return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        args = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        buffers = list(ctx.function.buffers()) if isinstance(ctx.function, nn.Module) else []
        before = [buffer.clone() for buffer in buffers]
        with torch.enable_grad(), ctx.surroundings.again():
            results = ctx.function(*args)
        results = results if isinstance(results, tuple) else (results,)
        used = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
        if used:
            torch.autograd.backward([r for r, _ in used], [g for _, g in used])
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)
        return None, None, *[a.grad if isinstance(a, Tensor) else None for a in args]


class _Surroundings:
    """What decides a run besides its arguments: random states and autocast, as they are now."""

    def __init__(self, args):
        self.cpu_state = torch.get_rng_state()
        self.gpus = sorted({a.device.index for a in args if isinstance(a, Tensor) and a.is_cuda})
        self.gpu_states = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        kinds = ["cpu", "cuda"] if self.gpus else ["cpu"]
        self.autocasts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
        ]

    @contextmanager
    def again(self):
        """Be in these surroundings for a second run; afterwards the random stream is where it was."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=self.gpus))
            torch.set_rng_state(self.cpu_state)
            for gpu, state in zip(self.gpus, self.gpu_states, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            for kind, enabled, dtype in self.autocasts:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield

    ### END SOLUTION


# %% [markdown]
# Run it on the chain, all 16 layers in one checkpoint, and look at the curve: flat, then up. The dot is
# where backward begins.

# %%
target("05-checkpoint")

# %%
mine = watch_step(chain, x, lambda value: checkpoint(chain, value))
draw_held(
    {"keep everything": steps["keep everything"].history, "your checkpoint": mine.history},
    {"keep everything": steps["keep everything"].turn, "your checkpoint": mine.turn},
)

# %% check="05.checkpoint"
# Numbers: results, gradients of inputs and parameters, dropout, autocast. Mechanism: how
# often the function runs, what is alive in between, nesting. Robustness: no input asks
# for a gradient, several results, buffers, errors, several ranks.
labkit.check("05.checkpoint", checkpoint)

# %% [markdown]
# ## A chain in segments
#
# One checkpoint around everything has the peak of no checkpoint at all. Cut the chain of $n$ layers into
# $k$ segments instead, and checkpoint each: backward then builds up one segment at a time, uses it, and
# lets it go.

# %% [markdown]
# ### Exercise: checkpoint_sequential
#
# Run `layers` one after the other in `segments` checkpoints.
#
# * **Segments.** Every layer stands in exactly one, and their lengths differ by at most one: 7 layers in 3
#   segments are 3, 2 and 2, in whatever order. An impossible number of segments is a `ValueError` that names
#   it and the number of layers, raised before any layer runs.
# * **Layers** may be modules of any kind, `nn.Sequential` too. For each place that it has in `layers`, one
#   runs once in forward and once in backward, also if it is frozen or `x` asks for no gradient. Its buffers
#   change once, as without checkpoints. What you are handed stays as it is, and so do the layers' modes.
# * **Memory.** Between forward and backward the input of each segment is kept, and nothing of the layers
#   inside one. Backward builds up one segment at a time and lets it go (two at once are let pass).
#
# <details><summary>Hint</summary><code>divmod(7, 3)</code> is <code>(2, 1)</code>: every segment has 2
# layers, and 1 of them has one more.</details>


# %% exercise="05.checkpoint-sequential" difficulty=2 minutes=15
def checkpoint_sequential(layers: Sequence[nn.Module], x: Tensor, segments: int) -> Tensor:
    """The layers one after the other on `x`, in `segments` checkpoints whose lengths
    differ by at most one.
    layers: any sequence, such as a list, a tuple or an nn.ModuleList.

    Raises ValueError unless 1 <= segments <= len(layers).
    """
    ### BEGIN SOLUTION
    start = 0
    for length in segment_lengths(len(layers), segments):
        x = checkpoint(nn.Sequential(*layers[start : start + length]), x)
        start += length
    return x


def segment_lengths(num_layers: int, segments: int) -> list[int]:
    if not 1 <= segments <= num_layers:
        raise ValueError(
            f"expected from 1 to {num_layers} segments for {num_layers} layers, found {segments}"
        )
    length, longer = divmod(num_layers, segments)
    return [length + (i < longer) for i in range(segments)]
    ### END SOLUTION


# %%
target("05-segments")

# %%
watched = {
    k: watch_step(chain, x, lambda value, k=k: checkpoint_sequential(list(chain), value, k))
    for k in (1, 4, 16)
}
draw_held(
    {f"{k} segments" if k > 1 else "1 segment": step.history for k, step in watched.items()},
    {f"{k} segments" if k > 1 else "1 segment": step.turn for k, step in watched.items()},
)

# %% [markdown]
# Each tooth of the saw is one segment being built again. With 16 segments the teeth are small, but there
# are 16 inputs to keep; with 1 there is nothing to keep and one enormous tooth.

# %% check="05.checkpoint-sequential"
# Numbers as in plain autograd; each layer runs twice; as many even segments as asked
# for; one input each.
labkit.check("05.checkpoint-sequential", checkpoint_sequential)

# %% [markdown]
# ## Where is the peak?
#
# Let $A_\text{in}$ be the bytes of one boundary (what passes between layers), and $A_\text{layer}$ what one
# layer keeps for backward, its own input included. With segments of lengths $l_0, l_1, \dots, l_{k-1}$:
#
# * **kept** between forward and backward is the input of each segment, $k\,A_\text{in}$;
# * backward goes from the last segment to the first. While segment $j$ is built again, the inputs of
#   segments $0, \dots, j-1$ are still waiting, and the segment itself holds $l_j\,A_\text{layer}$ (its own
#   input among it). The inputs of the segments behind it are gone. The **peak** is the largest of these $k$
#   moments.

# %% [markdown]
# ### Exercise: saved_activation_bytes
#
# The peak, for any sequence of lengths: a list or a tuple, of however many segments.


# %% exercise="05.saved-activation-bytes" difficulty=2 minutes=10
def saved_activation_bytes(lengths: Sequence[int], boundary_bytes: int, layer_bytes: int) -> int:
    """The most bytes that a chain with segments of these lengths holds during backward.

    boundary_bytes: what passes between two layers.
    layer_bytes: what a layer keeps for backward, its input included. ValueError for a
    chain without segments.
    """
    ### BEGIN SOLUTION
    if not lengths:
        raise ValueError("expected the length of at least one segment, found none")
    return max(before * boundary_bytes + length * layer_bytes for before, length in enumerate(lengths))
    ### END SOLUTION


# %% check="05.saved-activation-bytes"
labkit.check("05.saved-activation-bytes", saved_activation_bytes)

# %% [markdown]
# ### Exercise: best_segment_count
#
# Take even segments of $n/k$ layers and forget the corners: the peak is about $k\,A_\text{in} + \frac{n}{k}
# A_\text{layer}$. It is lowest at $k^* = \sqrt{n\,A_\text{layer}/A_\text{in}}$ (Narayanan et al. 2021,
# section 3.5), and there it is $2\sqrt{n\,A_\text{in}\,A_\text{layer}}$: it grows with the **square root**
# of the depth (Chen et al. 2016). But segments are whole numbers of layers: the true peak goes up and down in
# steps, and is often lowest far from $k^*$.
#
# Find the best whole number exactly, for any depth. Lengths of segments differ by at most one, and here the
# longer ones come first, where the fewest inputs wait beside them: 7 layers in 3 segments are 3, 2 and 2, in
# this order.


# %% exercise="05.best-segment-count" difficulty=2 minutes=10
def best_segment_count(num_layers: int, boundary_bytes: int, layer_bytes: int) -> int:
    """The number of segments (1 to num_layers) with the lowest peak; the smallest if
    several have it.
    """

    ### BEGIN SOLUTION
    def peak(segments: int) -> int:
        length, longer = divmod(num_layers, segments)
        lengths = [length + (i < longer) for i in range(segments)]
        return max(before * boundary_bytes + n * layer_bytes for before, n in enumerate(lengths))

    return min(range(1, num_layers + 1), key=lambda segments: (peak(segments), segments))
    ### END SOLUTION


# %% check="05.best-segment-count"
labkit.check("05.best-segment-count", best_segment_count)

# %% [markdown]
# ## Find the mistake
#
# A lecture slide on checkpointing with $\sqrt n$ segments says: *"Memory for activations: O(n)"*. Take 64
# layers like ours, where a layer keeps about ten boundaries' worth. Without checkpoints that is 640
# boundaries. **How many boundaries' worth is the peak with 8 segments?** If the slide were right, it would
# be hundreds.

# %% predict="eight-segments"
your_boundaries = ...

# %% reveals="eight-segments"
prediction("peak of 64 layers in 8 segments, in boundaries", your_boundaries, 7 + 8 * 10, "computed")

# %% [markdown]
# And is 8, the square root of 64, the best number? **Write the number of segments you expect to be best**,
# then measure ten of them. The line is your formula, for all.

# %% predict="best-of-64"
your_best = ...

# %%
target("05-peaks")

# %%
deep = nn.Sequential(*[Layer(width=64, inner=256) for _ in range(64)])
small = torch.randn(128, 64)
one_layer = measure_activations(deep[0], lambda: deep[0](small.clone().requires_grad_()))


def measured_peak(layers: Sequence[nn.Module], segments: int) -> int:
    """Peak bytes in backward of a chain in so many segments, without the gradients in flight."""
    step = watch_step(
        nn.ModuleList(layers), small, lambda value: checkpoint_sequential(list(layers), value, segments)
    )
    return step.peak - in_flight


# What every backward holds besides: gradients on their way. Measured once, on a single layer, and taken
# off each peak.
in_flight = 0
in_flight = measured_peak(deep[:1], 1) - saved_activation_bytes([1], small.nbytes, one_layer)
counts = [1, 2, 4, 8, 11, 16, 22, 25, 32, 64]
points = {k: measured_peak(deep, k) for k in counts}
lengths = {k: [64 // k + (i < 64 % k) for i in range(k)] for k in range(1, 65)}
line = {k: saved_activation_bytes(lengths[k], small.nbytes, one_layer) for k in lengths}
draw_peaks(points, line, layers=64, guess=your_best)

# %%
worst = max(abs(points[k] - line[k]) / line[k] for k in counts)
print(
    f"best measured: {min(points, key=points.get)} segments; "
    f"formula: {best_segment_count(64, small.nbytes, one_layer)}"
)
print(f"largest difference between measurement and formula: {worst:.1%}")

# %% [markdown] reveals="best-of-64"
# The best number is well above 8: a layer keeps ten times its input here, so it pays to keep more inputs
# and build smaller segments. $\sqrt n$ is the rule for layers that keep just their input.

# %% [markdown]
# Now let the depth grow. Keep everything, and memory grows with $n$; take the best number of segments, and
# it follows the grey square root.

# %%
target("05-growth")

# %%
growth: dict[str, dict[int, int]] = {"keep everything": {}, "best number of segments": {}}
for n in (1, 2, 4, 8, 16, 24, 32, 48, 64):
    part = deep[:n]
    growth["keep everything"][n] = watch_step(part, small, part).peak - in_flight
    growth["best number of segments"][n] = measured_peak(part, best_segment_count(n, small.nbytes, one_layer))
draw_growth(growth, sqrt_of="best number of segments")

# %% [markdown]
# ## Not everything is worth forgetting
#
# In the formula $sbh(34 + 5as/h)$ the second term is the attention's: the probabilities, dropout's mask, and
# what it leaves of them, each of them $a \times s \times s$. They are large, and cheap to compute again.
# **Selective recomputation** checkpoints only this core of attention and keeps the rest: $34sbh$ bytes remain
# (Korthikanti et al. 2022, section 5). For GPT-3 it frees 70% of the activations and costs 0.9% more FLOPs:
# the core's forward runs once more, $4bs^2h$ a layer, whose step takes $72bsh^2(1 + s/6h)$. (The paper says
# 2.7%, which is what the core costs in a whole step; its forward is a third of that.)
#
# Here is the core of attention, plain and in your checkpoint, inside a layer. **The sequence gets twice as
# long, from 256 tokens to 512: by what factor do the kept bytes of the plain layer grow?**

# %% predict="twice-as-long"
your_factor = ...


# %%
def attention_core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v with all scores in memory. Each [b, a, s, d]."""
    return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1) @ v


class AttentionLayer(nn.Module):
    """x + attention(norm(x)), then the MLP half; `core` computes attention from q, k and v."""

    def __init__(self, width: int, heads: int, core: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.heads, self.core = heads, core
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Layer(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = self.core(q, k, v).transpose(1, 2).reshape(b, s, h)
        return self.mlp(x + self.out(attended))


def kept_by(sequence: int, core: Callable, whole: bool = False) -> WatchedStep:
    torch.manual_seed(1)
    block = AttentionLayer(128, heads=8, core=core)
    tokens = torch.randn(1, sequence, 128)
    return watch_step(block, tokens, (lambda value: checkpoint(block, value)) if whole else block)


plans = {
    "keep everything": lambda s: kept_by(s, attention_core),
    "selective: attention's core": lambda s: kept_by(s, lambda q, k, v: checkpoint(attention_core, q, k, v)),
    "full: the whole layer": lambda s: kept_by(s, attention_core, whole=True),
}
kept_bytes = {name: {s: plan(s).kept for s in (128, 256, 512)} for name, plan in plans.items()}
Table(
    ["kept for backward of one layer", *(f"s = {s}" for s in (128, 256, 512))],
    [[name, *(binary_text(b) for b in row.values())] for name, row in kept_bytes.items()],
    caption="One attention layer, h = 128, a = 8, float32",
)

# %%
grown = kept_bytes["keep everything"][512] / kept_bytes["keep everything"][256]
prediction("kept bytes at s = 512 against s = 256", your_factor, round(grown, 2))

# %% [markdown] reveals="twice-as-long"
# Between 2 (what the linear part does) and 4 (what $s^2$ does), and closer to 4 the longer the sequence.

# %% [markdown]
# The last row of the table is next to nothing, because a layer's own input is not counted in it: whoever
# made the input holds it.
#
# With FlashAttention, which never writes the scores to memory, the term is gone anyway, and selective
# recomputation has nothing left to do.
#
# ## What it costs
#
# Backward costs about two forwards, and a checkpoint runs forward once more. **By what factor does a full
# checkpoint make a step longer?**

# %% predict="slower"
your_slowdown = ...


# %%
def seconds(forward: Callable[[Tensor], Tensor]) -> float:
    """The fastest of several forward and backward passes."""
    took = []
    for _ in range(7):
        start = time.perf_counter()
        forward(big.clone().requires_grad_()).sum().backward()
        took.append(time.perf_counter() - start)
    return min(took)


big = torch.randn(2048, 128)
ratio = seconds(lambda value: checkpoint_sequential(list(chain), value, 4)) / seconds(chain)
prediction("time of a step with checkpoints / without", your_slowdown, round(ratio, 2))

# %% [markdown] reveals="slower"
# Four forwards' worth of work where there were three: about 1.33. Korthikanti et al. measured 39% more time
# for a 22-billion-parameter model (table 4).

# %% [markdown]
# ### On a real GPU
#
# A GPT of 16 layers, $h = 2048$, $a = 16$, with four sequences of 2,048 tokens in bfloat16 on an H100, your
# function being the reference solution. Measured once and kept with the course; the peaks are what
# `torch.cuda.max_memory_allocated` says, without weights and gradients.

# %%
on_h100 = measured_on_a_gpu("recomputation_h100")
shown = dict(on_h100.found["histories"])
shown.pop("fused attention, full")  # the same curve as with explicit scores
print(on_h100.about)
draw_held(
    {name: held["bytes"] for name, held in shown.items()},
    {name: held["turn"] for name, held in shown.items()},
    counted="layers begun and ended",
)

# %% reveals="slower"
rows = on_h100.found["rows"]
kept_all = {row["plan"].split(",")[0]: row["seconds"] for row in reversed(rows)}
Table(
    ["", "peak", "a step", "over keeping everything"],
    [
        [
            row["plan"],
            binary_text(row["peak_bytes"]),
            f"{1e3 * row['seconds']:.0f} ms",
            f"{row['seconds'] / kept_all[row['plan'].split(',')[0]]:.2f}",
        ]
        for row in rows
    ],
    caption=on_h100.about,
)

# %% [markdown] reveals="slower"
# With explicit scores a full checkpoint costs 38% of a step's time, close to what the paper found, and leaves
# less than a fifth of the memory; with fused attention it costs 27%. Attention that is written out is slow to
# run again: its kernels wait for memory. Here even selective recomputation costs 25%, where the paper, with
# kernels fused by hand, measured 7% (table 4). **Fused attention beats each of them.** Where it keeps
# everything, it holds as little as selective recomputation and takes less than half the time. With a full
# checkpoint it holds as little as explicit scores with one and takes little more than half the time.
# PyTorch's own `checkpoint` is a little faster than yours, because it ends the second run as soon as it has
# what backward needs: without dropout, before the layer's last linear. (The peak of the full plans is not in
# the layers any more. It is at the loss, with twelve bytes for each of $sbV$ logits.)

# %% [markdown]
# ## Pipelines: the saving where it counts
#
# In GPipe (lesson 04) the first stage runs forward for all $m$ micro-batches before the first backward:
# without checkpoints it holds $m$ times the activations of its layers. With checkpoints it holds $m$ inputs,
# plus the activations of *one* micro-batch at a time: this is why GPipe comes with them, as
# *re-materialization* (Huang et al. 2019, section 2.3).
#
# Two real ranks, 8 layers each, $m$ micro-batches. First your prediction: with the sizes below, **how many
# MiB does stage 0 hold at most, without and with checkpoints?** The cell gives you `boundary_bytes` and
# `layer_bytes` in MiB; the rest is arithmetic.

# %%
num_micro_batches, layers_per_stage = 8, 8
print(f"one boundary: {boundary_bytes / 2**20:.3f} MiB, one layer: {layer_bytes / 2**20:.3f} MiB")

# %% predict="stage-0"
your_plain_mib, your_checkpointed_mib = ..., ...


# %%
target("05-gpipe")


# %%
def gpipe_stage(checkpointed: bool, group: dist.ProcessGroup) -> int:
    """All forwards, then all backwards, of one of two stages. Returns the stage's peak bytes."""
    torch.manual_seed(dist.get_rank(group))
    first = dist.get_rank(group) == 0
    stage = nn.Sequential(*[Layer(128, 512) for _ in range(layers_per_stage)])
    run = (lambda value: checkpoint(stage, value)) if checkpointed else stage
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with LiveBytes([*stage.parameters(), *[p.grad for p in stage.parameters()]]) as live:
        waiting = []
        for _ in range(num_micro_batches):
            received = torch.randn(256, 128)
            if not first:
                dist.recv(received, group_src=0, group=group)
            with labkit.span("forward", kind="forward"):
                waiting.append((received.requires_grad_(), run(received)))
            if first:
                dist.send(waiting[-1][1].detach(), group_dst=1, group=group)
        while waiting:
            received, result = waiting.pop(0)
            gradient = torch.ones_like(result)
            if first:
                dist.recv(gradient, group_src=1, group=group)
            with labkit.span("backward", kind="backward"):
                result.backward(gradient)
            if not first:
                dist.send(received.grad, group_dst=0, group=group)
            del received, result, gradient
    return live.peak


jobs = {
    name: labkit.launch(gpipe_stage, name == "checkpoints", ranks=2, backend="gloo")
    for name in ("plain", "checkpoints")
}
draw_timeline(jobs["checkpoints"])

# %%
mib = 2**20
predicted = {
    "plain": num_micro_batches * layers_per_stage * layer_bytes / mib,
    "checkpoints": (num_micro_batches - 1) * boundary_bytes / mib + layers_per_stage * layer_bytes / mib,
}
guesses = {"plain": your_plain_mib, "checkpoints": your_checkpointed_mib}
Table(
    ["stage 0", "your guess, MiB", "formula, MiB", "measured, MiB"],
    [
        [
            name,
            guesses[name],
            round(predicted[name], 1),
            round(job.results[0] / mib, 1),
        ]
        for name, job in jobs.items()
    ],
    caption="Peak of activations, 8 layers and 8 micro-batches; results and gradients in flight come on top",
)

# %% [markdown]
# ## What PyTorch ships
#
# `torch.utils.checkpoint.checkpoint` comes in two kinds. `use_reentrant=True` is what you built: an
# autograd function that calls backward inside backward. `use_reentrant=False`, which is what you should
# use, keeps the normal graph and replaces each saved tensor by a promise (a saved-tensor hook): it works
# without a gradient on the inputs, with `torch.autograd.grad`, with keyword arguments, and it stops the
# second run as soon as it has what it needs. Same gradients all three times:


# %%
class Runs(nn.Module):
    """A stack of layers with dropout, counting its runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(128, 512) for _ in range(4)])
        self.dropout, self.runs = nn.Dropout(0.2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.dropout(self.layers(x))


def gradients_of(how: Callable[[nn.Module, Tensor], Tensor]) -> tuple[Tensor, int, int]:
    torch.manual_seed(3)
    module = Runs()
    value = torch.randn(256, 128, requires_grad=True)
    torch.manual_seed(4)
    how(module, value).square().sum().backward()
    step = watch_step(module, value, lambda v: how(module, v))
    return (
        torch.cat([value.grad.flatten(), *[p.grad.flatten() for p in module.parameters()]]),
        module.runs // 2,
        step.kept,
    )


value_of = {
    "no checkpoint": gradients_of(lambda module, v: module(v)),
    "yours": gradients_of(checkpoint),
    "torch, use_reentrant=True": gradients_of(
        lambda m, v: torch.utils.checkpoint.checkpoint(m, v, use_reentrant=True)
    ),
    "torch, use_reentrant=False": gradients_of(
        lambda m, v: torch.utils.checkpoint.checkpoint(m, v, use_reentrant=False)
    ),
}
Table(
    ["", "runs of the function", "kept for backward", "input gradient equal to plain"],
    [
        [
            name,
            runs,
            binary_text(held),
            torch.equal(gradient[: 256 * 128], value_of["no checkpoint"][0][: 256 * 128]),
        ]
        for name, (gradient, runs, held) in value_of.items()
    ],
)

# %% [markdown]
# ## Where this leaves you
#
# You built a function that forgets and remembers: it keeps the inputs, runs again in backward in the same
# surroundings, and gives the same gradients to the last bit. A chain of $n$ layers in $k$ segments holds at
# most about $k A_\text{in} + \frac nk A_\text{layer}$, so memory grows with $\sqrt n$ for one more forward,
# a third more time. Forgetting only attention's scores adds few FLOPs, and as much time as its kernels take.
#
# **Think about**
#
# 1. Backward through segment $j$ needs the segment's input only. Could the input of segment $j+1$ be
#    forgotten too, and built again from that of segment $j$? What would memory and time be if you did this
#    over and over (Chen et al. 2016 have $O(\log n)$)?
# 2. With tensor parallelism, a layer's second run repeats its all-reduces. Which part of a layer could you
#    run again without communicating?
# 3. Why does a pipeline with 1F1B need checkpoints less urgently than GPipe?
#
# **To read**
#
# - Chen, Xu, Zhang, Guestrin, *Training deep nets with sublinear memory cost*, 2016.
# - Korthikanti et al., *Reducing activation recomputation in large transformer models*, 2022, sections 4
#   and 5.
# - Huang et al., *GPipe*, 2019, section 2.3.

# %% scoreboard=true
labkit.scoreboard("05")
