# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "03", title: "Data parallelism: many replicas, one model", minutes: 120}
# ---

# %% [markdown]
# # Data parallelism: many replicas, one model
#
# The oldest way to train on several GPUs: give each a copy of the whole model and its own part of the
# batch, and average the gradients. It is a dozen lines. **Why is PyTorch's version thousands of lines long,
# and what do those lines buy?** And: what goes silently wrong when you write the dozen yourself?
#
# **You need** all-reduce and broadcast (lesson 00). **You will have built** a `DistributedDataParallel`
# that overlaps communication with backward, accumulates gradients without sending them, survives unused
# parameters, and weighs tokens right; and compared it with PyTorch's on the same job. About 120 minutes.

# %% tags=["setup"]
# What this lesson imports: run it first
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

import labkit
from IPython.display import display
from labkit.show import Picture, Table, draw_timeline, new_figure, prediction
from labkit.show.target import target
from labkit.theory.units import binary_text

# %load_ext labkit

# %% [markdown]
# ## The whole idea in one picture
#
# Let $L(w; x)$ be the loss of one sample. The gradient of a batch's mean loss is the mean of the samples'
# gradients. Split a batch of $B$ samples into $d$ equal parts ($d$ is the *data-parallel degree*), and
#
# $$\nabla \frac1B \sum_{i=1}^{B} L(w; x_i)
# = \frac1d \sum_{r=0}^{d-1} \Bigl( \frac{d}{B} \sum_{i \in \text{part } r} \nabla L(w; x_i) \Bigr)$$
#
# so each rank computes the gradient of its own part's mean, and the *average over ranks* is the gradient of
# the whole batch. Same start, same average, same step: the copies stay equal for ever, and the weights
# never have to be sent.
#
# Below, one training step of PyTorch's own `DistributedDataParallel` on two ranks. Look at where the green
# is: the all-reduces lie **inside** backward. (C++ starts them, and only their beginning can be seen from
# outside: hence the thin marks.) At the end of the lesson stands the same picture of a class of yours.


# %%
class Stack(nn.Module):
    """Layers whose backward takes a known time: on two cores, sleeping stands for a GPU's kernels.

    Each layer is a real linear layer; `milliseconds` pass in its forward, and twice
    that in its backward.
    """

    def __init__(self, layers: int = 4, width: int = 256, milliseconds: float = 12.0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.milliseconds = milliseconds

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(TakesTime.apply(x, self.milliseconds)))
        return x


class TakesTime(torch.autograd.Function):
    """The identity, which takes its time in both directions."""

    @staticmethod
    def forward(ctx, x: Tensor, milliseconds: float) -> Tensor:
        ctx.milliseconds = milliseconds
        if milliseconds:
            with labkit.span("forward", kind="forward"):
                time.sleep(milliseconds / 1000)
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        if ctx.milliseconds:
            with labkit.span("backward", kind="backward"):
                time.sleep(2 * ctx.milliseconds / 1000)
        return grad, None


def one_step_of_torch(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Stack(), process_group=group, bucket_cap_mb=0.5)
    # torch builds its final buckets after the first step, which takes no time: we look at the second
    for milliseconds in (0.0, 12.0):
        model.module.milliseconds = milliseconds
        model(torch.randn(8, 256, requires_grad=True)).square().mean().backward()


job_of_torch = labkit.launch(one_step_of_torch, ranks=2, backend="gloo")
draw_timeline(job_of_torch, start_at="forward")

# %% [markdown]
# ## Not DataParallel
#
# PyTorch has an older class with a similar name. `nn.DataParallel` is one *process* with one thread a GPU:
# at every step it copies the weights from GPU 0 to all others, scatters the batch, gathers the outputs on
# GPU 0, and adds the gradients up there. GPU 0 holds more than the others, Python's lock makes the threads
# wait for one another, and it ends at the edge of the node. Data parallelism today means one *process* a
# GPU and equal partners.
#
# In the words of an article: *"Sharded data parallelism: each GPU holds its own copy of the model."* That is
# *replicated* data parallelism, what we build here. Sharded means that no GPU has a whole copy (lesson 08).
#
# ## Who reads what

# %% [markdown]
# ### Exercise: shard_indices
#
# Every epoch, all samples are shuffled and dealt out. All ranks must agree on the order **without talking**,
# so it comes from a generator of its own, torch's or Python's, that is seeded alike everywhere; the global
# ones of torch, Python and NumPy are left alone. Every rank must get the same number of samples, or one rank
# starts a step, and an all-reduce, that the others never join. So if the number of ranks $d$ does not divide
# the number of samples, fill up by starting over from the front of the shuffled order; without any samples
# every share is empty. Which rank gets which part of the order is free. Every epoch has an order of its own,
# and deals a rank another set of samples (of a few samples, chance may deal the same again). A seed is a
# number of 32 bits. Every one has orders of its own, 0 too.
#
# <details><summary>Hint 1</summary><code>torch.randperm(n, generator=g)</code> with
# <code>g = torch.Generator().manual_seed(...)</code>. The seed must depend on the epoch.</details>
# <details><summary>Hint 2</summary>Rank r takes positions r, r + d, r + 2d, ... of the filled-up list. With
# fewer samples than ranks you may have to start over more than once.</details>


# %% exercise="03.shard-indices" difficulty=2 minutes=10
def shard_indices(num_samples: int, rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    """The samples (from 0) that `rank` reads in `epoch`, in order:
    ceil(num_samples / world_size) of them.

    Plain ints, the same on every machine, without communication, and torch's own generator
    is left alone. Together the ranks read every sample; where sizes do not divide, the
    shuffled order starts over. Raises ValueError unless 0 <= rank < world_size.
    """
    ### BEGIN SOLUTION
    if not 0 <= rank < world_size:
        raise ValueError(f"expected a rank from 0 to {world_size - 1}, found {rank}")
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(num_samples, generator=generator).tolist()
    each = -(-num_samples // world_size)
    return [order[(rank + i * world_size) % num_samples] for i in range(each)]
    ### END SOLUTION


# %%
shares = [shard_indices(10, rank, 4, epoch=0, seed=1) for rank in range(4)]
Table(
    ["rank", "epoch 0", "epoch 1"],
    [[r, shares[r], shard_indices(10, r, 4, epoch=1, seed=1)] for r in range(4)],
)

# %% check="03.shard-indices"
labkit.check("03.shard-indices", shard_indices)

# %% [markdown]
# ## The same start
#
# Averaging gradients keeps equal replicas equal. It never makes different ones equal: start from different
# weights, and the ranks train different models for ever, each with the others' gradients. The loss goes
# down all the same.
#
# Four ranks below start from a different seed each and average their gradients perfectly for 20 steps.
# **How far apart are rank 0 and rank 3 in the end, compared with the beginning?** Write the ratio you
# expect (1: as far as before; 0: equal).

# %% predict="apart"
your_ratio = ...


# %%
def train_from_different_seeds(group: dist.ProcessGroup) -> list[float]:
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    model = nn.Linear(8, 8)
    distances = []
    for _ in range(21):
        weights = [torch.empty_like(model.weight) for _ in range(dist.get_world_size(group))]
        dist.all_gather(weights, model.weight.detach(), group=group)
        distances.append((weights[0] - weights[-1]).norm().item())
        model.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.data -= 0.1 * parameter.grad / dist.get_world_size(group)
    return distances


apart = labkit.launch(train_from_different_seeds, ranks=4, backend="gloo").results[0]
prediction("distance of rank 0 and rank 3, after / before", your_ratio, round(apart[-1] / apart[0], 3))

# %% [markdown]
# ### Exercise: broadcast_module
#
# Make every rank's module equal to that of the group's
# first rank: parameters **and buffers** (batch normalisation keeps its averages there); a module may have no
# parameters at all. Write into the tensors that are there: an optimizer may already hold them. A parameter
# that appears under two names is sent once. Whether each tensor travels alone or several as one flat one is
# free.
#
# A tensor is numbers and an order in which they lie in memory. A rank may hold a weight transposed (or in
# `channels_last`), while the others hold it row by row: equal shapes, another order. gloo sends memory from
# the first byte on and asks nothing, so the weights would arrive in the wrong places. (PyTorch's own class
# compares the strides of all replicas first, and refuses.) Send what `contiguous()` gives, and copy back.
#
# <details><summary>Hint</summary>In a group, "the first rank" is not rank 0 of the job:
# <code>dist.broadcast(tensor, group_src=0, group=group)</code>. <code>module.parameters()</code> and
# <code>module.buffers()</code> name shared tensors once.</details>


# %% exercise="03.broadcast-module" difficulty=2 minutes=10
def broadcast_module(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Overwrite parameters and buffers of `module`, in place, with those of the first
    rank of `group`.

    A tensor that has two names is sent once, by broadcast. On some ranks tensors may be views that
    are not contiguous. `requires_grad`, gradients and the mode (training or not) stay as they are.
    """
    ### BEGIN SOLUTION
    for tensor in [*module.parameters(), *module.buffers()]:
        sent = tensor.detach().contiguous()
        dist.broadcast(sent, group_src=0, group=group)
        tensor.detach().copy_(sent)
    ### END SOLUTION


# %% check="03.broadcast-module"
labkit.check("03.broadcast-module", broadcast_module)

# %% [markdown]
# ## Naive: average after backward
#
# The dozen lines: run backward, then all-reduce every gradient and divide.
#
# Divide! Forget it, and the gradients are $d$ times too large. With Adam, whose step depends on the scale of
# the gradients through its tiny epsilon alone, nobody would notice. With SGD the learning rate is silently
# $d$ times what you set.

# %% [markdown]
# ### Exercise: average_gradients
#
# Replace every gradient by its mean over the group, one all-reduce each, in one order on all ranks. Skip
# frozen parameters, also one that still has a gradient from when it was trained. Careful with parameters that
# a rank did not use in this step, perhaps all of them: their `grad` is `None` here and may not be elsewhere.
# (Where it is `None` on every rank, an all-reduce takes place too, and `None` or zeros are right.) And a
# gradient may lie in memory in another order than on the other ranks. Usually it lies as its parameter does,
# but not always: look at the gradient itself. A mean over ranks is nan or infinite where a rank's number is.
# When a call is over, nothing of it is kept but the gradients: steps must not pile up in memory.
#
# <details><summary>Hint</summary>A rank that skips an all-reduce leaves the others waiting, or, worse,
# pairs its next gradient with their current one. What would this rank contribute to the sum?</details>


# %% exercise="03.average-gradients" difficulty=2 minutes=10
def average_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Replace the gradient of every parameter that requires one by its mean over `group`.

    One all_reduce for each; frozen parameters are left alone, and one with two names
    counts once. A parameter that has none on this rank counts as zeros. Gradients may be views that
    are not contiguous, on some ranks alone. Called by all ranks, after backward.
    """
    ### BEGIN SOLUTION
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad = parameter.grad.contiguous()
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    ### END SOLUTION


# %% [markdown]
# Run it. Forward, backward, and then, when all the work is done, the green part begins. Every rank sits
# idle while its gradients travel.


# %%
target("03-naive")


# %%
def one_naive_step(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    model = Stack()
    model(torch.randn(8, 256, requires_grad=True)).square().mean().backward()
    average_gradients(model, group)


draw_timeline(labkit.launch(one_naive_step, ranks=2, backend="gloo"))

# %% check="03.average-gradients"
labkit.check("03.average-gradients", average_gradients)

# %% [markdown]
# ## Buckets
#
# Two things are wrong with the naive way. First: many small messages. Each costs a latency $\alpha$ before
# the first byte (lesson 00), so gradients are packed into *buckets* of some 25 MB and a bucket is sent as
# one flat tensor. Second: it waits for the end of backward. But backward computes the **last** layer's
# gradients first, and they could travel while the layers before are still at work. So buckets are filled
# from the last parameter to the first.
#
# Below: the time of an all-reduce of the same 4 MiB in one piece, and in more and more pieces. **How many
# times longer do 256 pieces take than one?**

# %% predict="pieces"
your_factor = ...


# %%
def seconds_in_pieces(pieces: Sequence[int], group: dist.ProcessGroup) -> list[float]:
    found = []
    for count in pieces:
        tensors = torch.ones(2**20).chunk(count)
        best = float("inf")
        for _ in range(5):
            dist.barrier(group)
            start = time.perf_counter()
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
            best = min(best, time.perf_counter() - start)
        found.append(best)
    return found


pieces = [1, 4, 16, 64, 256]
took = labkit.launch(seconds_in_pieces, pieces, ranks=2, backend="gloo").results[0]
figure, (axes,) = new_figure(2.8)
axes.plot(pieces, [s * 1000 for s in took], "o-", color="#0072B2")
axes.set(xlabel="number of all-reduces that share 4 MiB", ylabel="milliseconds in all", ylim=(0, None))
axes.set_xscale("log", base=2)
axes.set_xticks(pieces, [str(p) for p in pieces])
Picture(
    figure,
    f"An all-reduce of 4 MiB takes {took[0] * 1e3:.1f} ms in one piece, {took[-1] * 1e3:.1f} ms in 256.",
)

# %%
prediction("time of 256 pieces / one piece", your_factor, round(took[-1] / took[0], 1))

# %% [markdown]
# ### Exercise: assign_buckets
#
# From the last parameter to the first, put each into the current bucket as long as the bucket stays within
# `bucket_bytes`; otherwise open a new one.
#
# * **Bytes**, not elements: where a bucket counts elements, as in the library picotron, the caller has to
#   divide the megabytes by the bytes of a gradient first, or float32 buckets are four times as large as they
#   say.
# * A parameter that is larger than a bucket has a bucket of its own. Not even a parameter without elements
#   joins it.
# * One bucket holds one dtype. Frozen parameters are in none.
# * The parameters may come in a tuple as well as in a list, and stay as they are. The buckets are a list of
#   lists.


# %% exercise="03.assign-buckets" difficulty=2 minutes=10
def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[int]]:
    """Positions in `parameters`, bucket by bucket, from the last that requires a
    gradient to the first.

    A bucket takes the next parameter if it has the same dtype and the bytes stay
    within bucket_bytes. Bytes are those of a parameter's own numbers, also where it is
    a view of more memory. The list that is handed over stays as it is.
    """
    ### BEGIN SOLUTION
    buckets: list[list[int]] = []
    used, dtype = 0, None
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        if not parameter.requires_grad:
            continue
        size = parameter.numel() * parameter.element_size()
        if not buckets or used + size > bucket_bytes or parameter.dtype != dtype:
            buckets.append([])
            used, dtype = 0, parameter.dtype
        buckets[-1].append(index)
        used += size
    return buckets
    ### END SOLUTION


# %%
stack = Stack()
named = dict(enumerate(name for name, _ in stack.named_parameters()))
sizes = [p.numel() * p.element_size() for p in stack.parameters()]
Table(
    ["bucket", "parameters, in the order backward has them ready", "size"],
    [
        [number, ", ".join(named[i] for i in bucket), binary_text(sum(sizes[i] for i in bucket))]
        for number, bucket in enumerate(assign_buckets(list(stack.parameters()), 2**19))
    ],
    caption="Buckets of at most 512 KiB",
)

# %% check="03.assign-buckets"
labkit.check("03.assign-buckets", assign_buckets)

# %% [markdown]
# ## Overlap: communicate during backward
#
# Autograd tells you when a parameter's gradient is complete:
# `parameter.register_post_accumulate_grad_hook(hook)`. When the last gradient of a bucket has come, copy
# the bucket into one flat tensor and start `dist.all_reduce(flat, async_op=True)`. It returns a handle at
# once, and backward goes on. At the very end wait for all handles; each gradient is then its part of the flat
# tensor, copied back, or better, never copied: `.grad` may be a view of it (PyTorch calls that
# `gradient_as_bucket_view`).
#
# Three details decide whether this is right:
#
# * **When is the end?** Inside a hook, `torch.autograd.Variable._execution_engine.queue_callback(f)` has
#   `f` called when this backward is through. Queue it in the first hook of each backward.
# * **The same order on every rank.** All-reduces are matched by order. If rank 0 used a layer that rank 1
#   did not, their buckets fill at different moments. So bucket $i$ may start only after bucket $i-1$, and
#   those that never fill start at the end, with zeros for the missing gradients.
# * **Accumulation.** With `no_sync()` gradients only add up; the backward after it sends the sums.

# %% [markdown]
# ### Exercise: OverlappedDataParallel
#
# The class. It starts from equal replicas, `forward` passes everything on to the module, and after
# `loss.backward()` every gradient is the mean over the group: nothing else to call. Several forward passes
# may come before their backwards, and all parameters may be frozen.
#
# * **Unused parameters**: a rank may leave out some of the trained parameters in a backward, but never all: a
#   backward that reaches none calls no hook. What it leaves out is sent all the same, as the gradient that is
#   there: an earlier backward's, or zeros where there is none.
# * **Several models**: one backward may go through two of these models. Each sends its own buckets, and the
#   `no_sync()` of one does not silence the other.
# * **Memory** does not grow from step to step: what a backward sent is let go at its end, or used again by
#   the next.
# * **Exceptions**: one inside `no_sync()`, such as one that ends a backward there, changes nothing for later.
#
# <details><summary>Hint 1: state</summary>For each bucket, the set of parameters whose gradients are ready;
# the number of buckets started so far; the handles with their flat tensors; whether this backward has its
# callback. All of it is reset at the end of each backward.</details>
# <details><summary>Hint 2: no_sync</summary>A context manager that sets a flag and puts the old value back in
# <code>finally</code>. The hook returns at once while the flag is set.</details>
# <details><summary>Hint 3: the flat tensor</summary>
# <code>torch.cat([p.grad.flatten() for p in bucket])</code>, and back with
# <code>flat.split([p.numel() for p in bucket])</code> and <code>view_as</code>. Offsets count
# elements, not parameters. The quicker way makes one flat tensor a bucket in <code>__init__</code>, copies
# each gradient into its view there, and lets <code>p.grad</code> be that view from then on.</details>


# %% exercise="03.overlapped-data-parallel" difficulty=5 minutes=35
class OverlappedDataParallel(nn.Module):
    """Replicas of `module` in `group`, whose gradients are averaged bucket by bucket
    during backward.

    After `loss.backward()`, outside `no_sync()`, each gradient is the mean over the group;
    a parameter that this rank did not use counts as it stands, or as zeros, and a frozen one is
    left alone, as where all are frozen. One backward may go through several such models.
    Forward sends nothing. Backward sends each gradient once, one all_reduce a bucket, most
    of them before the last gradient is ready, and waits for none before that. Gradients
    that are there, zeros or an earlier backward's, are added to, as always. Parameters may
    have several dtypes, and on some ranks be views that are not contiguous.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module = module
        self.group = group
        ### BEGIN SOLUTION
        broadcast_module(module, group)
        parameters = list(module.parameters())
        self.buckets = [
            [parameters[i] for i in bucket] for bucket in assign_buckets(parameters, bucket_bytes)
        ]
        self.flats = [bucket[0].new_zeros(sum(p.numel() for p in bucket)) for bucket in self.buckets]
        self.places: dict[nn.Parameter, Tensor] = {}  # where in its bucket a gradient goes
        for number, (bucket, flat) in enumerate(zip(self.buckets, self.flats, strict=True)):
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                self.places[parameter] = part.view_as(parameter)
                parameter.register_post_accumulate_grad_hook(self._hook_of(number))
        self.sync = True
        self._reset()
        ### END SOLUTION

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside add up on this rank, and nothing is sent, wherever
        their forward was. The next backward outside sends the sums, of parameters that it does not
        use itself too. One no_sync inside another changes nothing; nor does one of another model.
        """
        ### BEGIN SOLUTION
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def _reset(self) -> None:
        self.missing = [set(bucket) for bucket in self.buckets]  # whose gradients have still to come
        self.started: list[dist.Work] = []
        self.callback_queued = False

    def _hook_of(self, number: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if not self.sync:
                return
            if not self.callback_queued:
                self.callback_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._fill(parameter)  # while the gradient is still in the cache
            self.missing[number].remove(parameter)
            while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
                self._start_next()

        return hook

    def _fill(self, parameter: nn.Parameter) -> None:
        place = self.places[parameter]
        if parameter.grad is None:
            place.zero_()
        else:
            torch.mul(parameter.grad, 1 / dist.get_world_size(self.group), out=place)

    def _start_next(self) -> None:
        number = len(self.started)
        self.started.append(dist.all_reduce(self.flats[number], group=self.group, async_op=True))
        for parameter in self.buckets[number]:
            parameter.grad = self.places[parameter]  # no copy back: the mean arrives here

    def _finish(self) -> None:
        for parameter in [p for missing in self.missing for p in missing]:
            self._fill(parameter)  # this rank did not use it
        while len(self.started) < len(self.buckets):
            self._start_next()
        for handle in self.started:
            handle.wait()
        self._reset()
        ### END SOLUTION


# %% [markdown]
# ### On the way
# Three steps, each with a cell that needs no more than what is named above it. **Equal replicas:** two ranks
# begin with weights of their own, and end `__init__` with the same.


# %%
def first_weights(group: dist.ProcessGroup) -> str:
    torch.manual_seed(dist.get_rank(group))
    stack = Stack(layers=2, width=3, milliseconds=0)
    OverlappedDataParallel(stack, group)
    return ", ".join(f"{number:.3f}" for number in stack.layers[0].weight[0].tolist())


print("\n".join(labkit.launch(first_weights, ranks=2, backend="gloo").results))

# %% [markdown]
# **Hooks and buckets:** the gradients of your `average_gradients`, in one bucket and in many, twice in a row.


# %%
def off_by_from_average(bucket_bytes: int, group: dist.ProcessGroup) -> str:
    torch.manual_seed(0)
    model = OverlappedDataParallel(Stack(3, 4, milliseconds=0), group, bucket_bytes)
    torch.manual_seed(0)
    plain, off_by = Stack(3, 4, milliseconds=0), []
    for step in range(2):
        for module in (model, plain):
            module.zero_grad()
            module(torch.full((1, 4), 1.0 + dist.get_rank(group) + step)).sum().backward()
        average_gradients(plain, group)
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        off_by.append(f"{max((a.grad - b.grad).abs().max().item() for a, b in pairs):.1e}")
    return f"{bucket_bytes} bytes a bucket: off by {off_by[0]}, then {off_by[1]}"


for size in (10**6, 64):
    print(labkit.launch(off_by_from_average, size, ranks=2, backend="gloo").results[0])

# %% [markdown]
# **`no_sync`:** nothing inside, all buckets in the backward after it.


# %%
def one_inside_one_after(group: dist.ProcessGroup) -> None:
    model = OverlappedDataParallel(Stack(2, 3, milliseconds=0), group, bucket_bytes=64)
    with model.no_sync():
        model(torch.ones(1, 3)).sum().backward()
    dist.barrier(group)
    model(torch.ones(1, 3)).sum().backward()


calls = [
    c.op for c in labkit.launch(one_inside_one_after, ranks=2, backend="gloo").collectives if c.rank == 0
]
print(" ".join(op for op in calls if op != "broadcast"))

# %% [markdown]
# Your step, with the same stack and the same bucket size as PyTorch's in the first picture. Compare: how
# many all-reduces, and where do they lie?


# %%
target("03-overlapped")


# %%
def one_step_of_yours(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    model = OverlappedDataParallel(Stack(), group, bucket_bytes=2**19)
    model(torch.randn(8, 256, requires_grad=True)).square().mean().backward()


job_of_yours = labkit.launch(one_step_of_yours, ranks=2, backend="gloo")
display(draw_timeline(job_of_torch, start_at="forward"), draw_timeline(job_of_yours, start_at="forward"))

# %% check="03.overlapped-data-parallel"
# Numbers: replicas, gradients, two steps. Mechanism: all-reduces, their bytes, and
# whether they overlap with backward. Robustness: no_sync, unused layers, other groups.
labkit.check("03.overlapped-data-parallel", OverlappedDataParallel)

# %% [markdown]
# ## The same job, yours and PyTorch's
#
# Three training steps each on two ranks, from the same weights and with the same data. Then compare, on
# each rank, all gradients, and what was sent.


# %%
def train_three_steps(wrap: Callable, group: dist.ProcessGroup) -> dict[str, object]:
    torch.manual_seed(0)
    model = wrap(Stack(milliseconds=1).double(), group)
    torch.manual_seed(1 + dist.get_rank(group))
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 256, dtype=torch.float64)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return {"grads": torch.cat([p.grad.flatten() for p in model.parameters()])}


def torchs(module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module, process_group=group, bucket_cap_mb=1)


def yours(module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    return OverlappedDataParallel(module, group, bucket_bytes=2**20)


both = {
    name: labkit.launch(train_three_steps, wrap, ranks=2, backend="gloo")
    for name, wrap in (("yours", yours), ("PyTorch's", torchs))
}
rows = []
for name, job in both.items():
    reduced = [c for c in job.collectives if c.rank == 0 and c.op == "all_reduce"]
    difference = max(
        (job.results[r]["grads"] - both["PyTorch's"].results[r]["grads"]).abs().max().item() for r in (0, 1)
    )
    counts = Counter(binary_text(c.num_bytes) for c in reduced)
    sizes = ", ".join(f"{count} of {size}" for size, count in counts.items())
    in_all = binary_text(sum(c.num_bytes for c in reduced))
    rows.append([name, len(reduced), sizes, in_all, f"{difference:.1e}"])
Table(
    ["", "all-reduces of rank 0", "which are", "in all", "gradients differ from PyTorch's by"],
    rows,
    caption="Three steps, two ranks",
)

# %% [markdown]
# The same bytes in twelve all-reduces and in five. Your bucket is never larger than 1 MiB. A layer's weight
# is exactly half of that, so beside a bias two no longer fit: one weight a bucket, with the biases that come
# before the next weight, four buckets a step. PyTorch closes a bucket when it has *reached* 1 MiB, so two
# layers go into each. And it sends the first step's gradients in one
# piece, because it builds its buckets only after that step, in the order in which gradients really came:
# 1 + 2 + 2. Everything else you have built.
#
# ## Accumulation
#
# A batch that does not fit is cut into $k$ *micro-batches* whose gradients are added up. Two mistakes are
# common: sending the gradients $k$ times instead of once, and weighing the micro-batches wrongly: each mean
# loss must count with its share of the rows.

# %% [markdown]
# ### Exercise: accumulate_gradients
#
# Backward for every micro-batch. Only the last one sends: the model does that by itself. The gradients are
# those of the mean over all rows together, and the mean loss is returned. A row is an entry of the first
# dimension; every micro-batch has at least one, and the same micro-batch may come several times. Who calls
# your function has cleared the gradients before, as between steps: whether you clear them once more makes no
# difference. Go through the model's own forward, not past it to a module in it: a wrapper's forward may do
# more than pass its input on.


# %% exercise="03.accumulate-gradients" difficulty=2 minutes=10
def accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Leave in `model` the gradients of the mean loss over all rows; return that loss, detached.

    Rows are this rank's; the model averages over ranks. Each micro-batch goes forward
    and back before the next, so that one graph is held at a time.
    model: has `no_sync()`; its mode stays as it is. micro_batches: (inputs, targets), at
    least one; rows, their length and the number of micro-batches may differ, between ranks too.
    loss_function: (outputs, targets) -> mean over rows. The loss that you return may be
    float32 or float64, whatever the losses are.
    """
    ### BEGIN SOLUTION
    rows = sum(len(x) for x, _ in micro_batches)
    total = torch.zeros(())

    def add(x: Tensor, target: Tensor) -> Tensor:
        loss = loss_function(model(x), target) * (len(x) / rows)
        loss.backward()
        return loss.detach()

    with model.no_sync():
        for x, target in micro_batches[:-1]:
            total = total + add(x, target)
    return total + add(*micro_batches[-1])
    ### END SOLUTION


# %% check="03.accumulate-gradients"
labkit.check("03.accumulate-gradients", accumulate_gradients)

# %% [markdown]
# ## Unequal numbers of tokens
#
# Sequences differ in length, so ranks differ in how many tokens their loss averages over. Rank 0 has 2
# tokens with losses 1 and 1, rank 1 has 6 tokens with loss 3 each. **What is the mean loss over all tokens?
# And what does averaging the two ranks' means give?**

# %% predict="means"
your_mean_over_tokens, your_mean_of_means = ..., ...

# %% reveals="means"
Table(
    ["", "your guess", "computed"],
    [
        ["mean over all tokens", your_mean_over_tokens, (2 * 1 + 6 * 3) / 8],
        ["mean of the ranks' means", your_mean_of_means, (1 + 3) / 2],
    ],
)

# %% [markdown] reveals="means"
# The mean of means gives a token on the short rank three times the weight of one on the long rank. The same
# mistake in gradient accumulation went unnoticed for years in widely used training code.

# %% [markdown]
# ### Exercise: token_weighted_loss
#
# Data parallelism will **average** gradients over ranks, whatever you do. Write the loss to call `backward`
# on, so that this average is the gradient of the mean over all tokens of all ranks, to the precision of the
# sum you are given (all ranks together have 16 million tokens at most). One number is sent, by one all-reduce
# or all-gather; a group of one may send none. What you return is a scalar, of the dtype of `loss_sum` or
# wider. A rank may have no tokens at all: it takes part in the averaging all the same, with gradients of
# zeros. Your function leaves `loss_sum` as it is: its value, and what its own `backward()` would give.
#
# <details><summary>Hint</summary>Write the loss you want, $\sum_r S_r / \sum_r n_r$, as $\frac1d \sum_r
# (\dots)$. What is in the parentheses?</details>


# %% exercise="03.token-weighted-loss" difficulty=3 minutes=10
def token_weighted_loss(loss_sum: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    """A scalar whose mean over the ranks of `group` is the mean loss over all their tokens.

    loss_sum: sum of this rank's token losses, of any floating dtype, perhaps near the largest
    number this has (zero, with a graph, if there are none); it stays as it is, and so does its
    own gradient.
    num_tokens: how many, up to millions.
    Sends one number, once. Where no rank has a token, the result is zero. On every rank its
    backward reaches what loss_sum hangs on: without tokens these gradients are zeros, not None.
    """
    ### BEGIN SOLUTION
    total = torch.tensor(float(num_tokens), device=loss_sum.device)
    dist.all_reduce(total, group=group)
    return loss_sum * (dist.get_world_size(group) / total.clamp(min=1).item())
    ### END SOLUTION


# %% check="03.token-weighted-loss"
labkit.check("03.token-weighted-loss", token_weighted_loss)

# %% [markdown]
# ## How far does it scale?
#
# Each step sends the gradients once around: with a ring, $2 \frac{d-1}{d} S$ bytes per rank, nearly
# independent of $d$ (lesson 00). If backward takes longer than that, communication hides behind it. But the
# batch grows with $d$ while the useful batch size does not, so at some point each rank's share, and its
# backward, become too short to hide anything. And even where every rank keeps its batch, so that backward
# stays as long as it was, the all-reduce does not: beyond a node it crosses slower links, a ring pays its
# latency $2(d-1)$ times, and all wait for the slowest. That was measured on nodes of 8 H100 (Ultra-Scale
# Playbook, data of its scaling figure):

# %%
gpus = [8, 16, 32, 64, 128, 256]
tokens_per_second = [40149.94, 37609.69, 35367.61, 31112.23, 26446.44, 15700.38]
figure, (axes,) = new_figure(2.8)
axes.plot(
    gpus, [t / tokens_per_second[0] for t in tokens_per_second], "o-", color="#0072B2", label="measured"
)
axes.axhline(1, color="#222222", linestyle=":", label="perfect")
axes.set(xlabel="data-parallel GPUs", ylabel="throughput of one GPU, relative", ylim=(0, 1.1))
axes.set_xscale("log", base=2)
axes.set_xticks(gpus, [str(g) for g in gpus])
axes.legend(frameon=False)
Picture(figure, "Throughput of one GPU falls from 1 on 8 GPUs to 0.39 on 256.")

# %% [markdown]
# The batch, finally, is a product of three numbers: *micro-batch* (rows in one forward) $\times$
# *accumulation steps* $\times$ *data-parallel degree*. A global batch of 4 million tokens ($2^{22}$) with
# sequences of 4096 tokens is 1024 sequences. On 512 GPUs, all of them data-parallel, with micro-batches of
# one sequence: **how many accumulation steps?** (A lecture computes "4M tokens / 4000 = 1024": it is
# $2^{22} / 4096$. The other quotient is 1000.)

# %% predict="accumulation-steps"
your_steps = ...

# %% reveals="accumulation-steps"
prediction("accumulation steps on 512 GPUs", your_steps, 2**22 // 4096 // 512, "computed")

# %% [markdown]
# ## Where this leaves you
#
# You built data parallelism as PyTorch ships it: replicas made equal once, gradients averaged in buckets
# while backward is still running, in one order on every rank, silent during accumulation. It sends $2\Psi$
# numbers a step for $\Psi$ parameters (once reduce-scatter, once all-gather), and every rank holds all of
# weights, gradients and optimizer state. Lesson 08 takes that last sentence apart.
#
# **Think about**
#
# 1. Why does averaging happen *before* the optimizer's step, rather than averaging weights after it? When
#    would the two be the same?
# 2. `no_sync` saves traffic, but what does it cost in memory, compared with sending each micro-batch's
#    gradients?
# 3. Gradients in bf16 halve the traffic. What happens to a sum over 1024 ranks in bf16?
#
# **To read**
#
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020, sections 3
#   and 4.
# - Goyal et al., *Accurate, Large Minibatch SGD*, 2017.
# - The Ultra-Scale Playbook's chapter on data parallelism.

# %% scoreboard=true
labkit.scoreboard("03")
