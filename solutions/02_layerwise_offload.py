# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "02", title: "Layers over devices, and weights that come just in time", minutes: 160}
# ---

# %% [markdown]
# # Layers over devices, and weights that come just in time
#
# Your model's twelve layers take 16 MiB. Your GPU has 5. **What can you do without changing a single number
# that the model computes?** There are two simple answers: give the other layers to other GPUs, or let them
# wait in the host's memory and fetch each one just before it works. This lesson builds both, measures what
# they cost, and then takes the first one across processes and nodes.
#
# **You need** `nn.Module`, autograd, and `send`/`recv` (lesson 00). **You will have built** a fair cut of a
# model, a model over four devices, a stopwatch that does not lie about GPUs, a model whose weights stream
# in with prefetch, and a stage that talks to the next one by messages. About 160 minutes: two sittings, the
# second from *One GPU and a large host* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import copy
import logging
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import labkit
import labkit.devices
from labkit.devices import FixedTime
from labkit.model import Block, fused_attention, gpt
from labkit.show import Table, draw_timeline, prediction
from labkit.show.measured import measured_on_a_gpu
from labkit.show.offload import draw_resident_peaks
from labkit.show.placement import draw_placement
from labkit.show.target import target
from labkit.show.utilisation import draw_utilisation
from labkit.theory.models import preset
from labkit.theory.parameters import count_parameters, embedding_weights, head_weights
from labkit.theory.units import binary_text

# %load_ext labkit

MIB = 2**20
torch.set_num_threads(1)  # the tensors are small: more threads would only get in the way of the ranks

# %% [markdown]
# ## The question in one picture
#
# On the left, twelve layers on one device, and the line behind which it is full. On the right, one of the two
# answers: the same layers over four devices. Each block is a layer, as wide as its weights are large.

# %%
sketch = [4 * MIB, *[0.76 * MIB] * 10, 4 * MIB]  # bytes of an embedding, ten blocks, a head
draw_placement(
    {"too much for one": [range(12)], "room on four": [[0], range(1, 6), range(6, 11), [11]]},
    sketch,
    ["embedding", *["block"] * 10, "head"],
    capacity=5 * MIB,
)

# %% [markdown]
# ## Four GPUs, if need be made of nothing
#
# This lesson wants up to four GPUs. Where the host does not have them, `labkit.devices` stands in: inside the
# `with` block torch has devices `cuda:0` to `cuda:3`, and **code written for GPUs runs as it is**. Each
# stand-in has its own memory, which can be full, and every copy from one device to another is written down.
# What is not imitated is speed: the numbers are computed by the CPU, at the CPU's pace.

# %%
with labkit.devices.use(4, bytes_each=64 * MIB) as gpus:
    layer = nn.Linear(1024, 1024).to("cuda:1")
    x = torch.randn(8, 1024)
    y = layer(x.to("cuda:1"))
    print(y.device, binary_text(torch.cuda.max_memory_allocated(1)))
    print(gpus)
    del layer, x, y

# %% [markdown]
# Tensors of two devices do not meet in one operation. The error is the one CUDA raises, and the first one
# everybody gets when a model is split:

# %%
with labkit.devices.use(4, bytes_each=64 * MIB):
    layer = nn.Linear(1024, 1024).to("cuda:1")
    try:
        layer(torch.randn(8, 1024, device="cuda:0"))
    except RuntimeError as error:
        print(textwrap.fill(str(error), 100))
    del layer

# %% [markdown]
# ## A model that does not fit
#
# Our patient: a small GPT with ten blocks. Its embedding and its head are large beside a block, because the
# vocabulary is large beside the hidden size. That is so in real models of this depth too. (In shapes, $b$ is
# the sequences of a batch, $s$ the tokens of a sequence, $h$ the hidden size and $V$ the vocabulary.)


# %%
class Embedding(nn.Module):
    """Token ids [b, s] -> [b, s, h], with learned positions."""

    def __init__(self, vocabulary: int, hidden: int, max_sequence: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(max_sequence, hidden)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.positions.weight[: ids.shape[1]]


class Head(nn.Module):
    """[b, s, h] -> logits [b, s, V]."""

    def __init__(self, vocabulary: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


config = gpt(num_layers=10, hidden=128, num_heads=4, vocabulary=8192, max_sequence=64)


def make_layers() -> list[nn.Module]:
    torch.manual_seed(2)
    blocks = [Block(config, fused_attention) for _ in range(config.num_layers)]
    embedding = Embedding(config.vocabulary, config.hidden, config.max_sequence)
    return [embedding, *blocks, Head(config.vocabulary, config.hidden)]


def weight_bytes(layer: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in layer.parameters())


kinds = ["embedding", *["block"] * config.num_layers, "head"]
costs = [weight_bytes(layer) for layer in make_layers()]
print("MiB a layer:", [round(cost / MIB, 2) for cost in costs], " in all:", round(sum(costs) / MIB, 1))

# %% [markdown]
# Say a device has 5 MiB. The whole model does not fit, and the error says so in numbers worth reading: what
# was asked for, what there is, what is free.

# %%
with labkit.devices.stand_in(1, bytes_each=5 * MIB):
    try:
        nn.Sequential(*make_layers()).to("cuda:0")
    except torch.OutOfMemoryError as error:
        print(textwrap.fill(str(error), 100))

# %% [markdown]
# ## Three layers each?
#
# Four devices have 20 MiB together, and the model has about 15.6. Twelve layers, four devices, three layers
# each. A slide of one lecture puts it so: *"divide layers evenly between the GPUs"*. **Does it fit?** Write
# `True` or `False`.

# %% predict="even-count-fits"
your_guess_fits = ...

# %% reveals="even-count-fits"
evenly = [range(0, 3), range(3, 6), range(6, 9), range(9, 12)]
largest = max(sum(costs[index] for index in part) for part in evenly)
print(f"the largest part: {binary_text(largest)}")
prediction("three layers each fit into 5 MiB", your_guess_fits, largest <= 5 * MIB, "computed")

# %% [markdown] reveals="even-count-fits"
# It does not fit: equal *counts* are not equal *memory*.

# %% [markdown]
# Small models are not alone in this. Take Llama 3 8B over 8 GPUs, 4 layers each: the first and the last one
# carry an embedding or a head of $V h = 128\,256 \times 4096$ weights on top (in 16-bit numbers, 2 bytes
# each; the *Ultra-Scale Playbook* draws the same 2.60 GiB against 1.87):

# %%
llama = preset("Llama 3 8B")
in_all = count_parameters(llama).total
ends = embedding_weights(llama).total + head_weights(llama).total
Table(
    ["8 stages of Llama 3 8B", "weights"],
    [
        ["a stage, if all were equal", binary_text(2 * in_all / 8)],
        ["a stage in the middle", binary_text(2 * (in_all - ends) / 8)],
        ["the first or the last stage", binary_text(2 * ((in_all - ends) / 8 + ends / 2))],
    ],
)

# %% [markdown]
# ### Exercise: cut the layers where it is fair
# The layers must stay in order and each device gets a contiguous run of them; some runs may be empty, and
# without layers all are. Among all such cuts, find one whose **largest part is as small as possible**. For
# 300 layers on 16 devices the search may take a few seconds, no more. The same function serves for bytes, for
# milliseconds, or for anything else that adds up. A refusal names the wrong number itself: how many devices
# were asked for, or the cost that is negative.
#
# <details><summary>Hint 1</summary>Filling each device up to the average does not work: costs [1, 3, 2, 3]
# on 3 devices, average 3, would give [1], [3], [2, 3], whose largest part is 5, where [1, 3], [2], [3] has 4.
# Think backwards: if you knew the largest part allowed, could you tell in one pass whether the layers
# fit?</details>
# <details><summary>Hint 2</summary>The largest part of the best cut is the sum of <i>some</i> contiguous run
# of layers. Or: let best[k][n] be the answer for the first n layers on k devices; the last device takes
# layers cut to n, for some cut.</details>
# <details><summary>Hint 3</summary>best[k][n] = min over cut of max(best[k-1][cut], sum of costs[cut:n]).
# Keep the cut that won beside each number, and walk back from the end.</details>


# %% exercise="02.partition-layers" difficulty=3 minutes=20
def partition_layers(costs: Sequence[float], num_devices: int) -> list[range]:
    """For each of `num_devices` devices, the run of layers that it gets; the largest
    run costs least.

    costs: what each layer costs, 0 or more; a list or a tuple, not changed. Returns
    ranges that together are range(0, len(costs)), in order; some may be empty.
    Raises ValueError, naming the number, for num_devices below 1 or a negative cost.
    """
    ### BEGIN SOLUTION
    if num_devices < 1:
        raise ValueError(f"expected at least 1 device, found {num_devices}")
    if any(cost < 0 for cost in costs):
        raise ValueError(f"expected costs of 0 or more, found {min(costs)}")
    until = [0.0]  # until[n]: what the first n layers cost together
    for cost in costs:
        until.append(until[-1] + cost)
    best = list(until)  # best[n]: the largest part of the best cut of the first n layers
    chosen = []  # chosen[k][n]: where device k + 1 begins in that cut
    for _ in range(1, num_devices):
        options = [
            min((max(best[cut], whole - until[cut]), cut) for cut in range(n + 1))
            for n, whole in enumerate(until)
        ]
        best = [largest for largest, _ in options]
        chosen.append([cut for _, cut in options])
    parts, end = [], len(costs)
    for cuts in reversed(chosen):
        parts.append(range(cuts[end], end))
        end = cuts[end]
    return [range(0, end), *reversed(parts)]
    ### END SOLUTION


# %% [markdown]
# What your cut does to the patient. The dashed line is a device's memory:

# %%
target("02-your-cut")

# %%
fair = partition_layers(costs, num_devices=4)
draw_placement({"three layers each": evenly, "your cut": fair}, costs, kinds, capacity=5 * MIB)

# %% check="02.partition-layers"
# Numbers: no cut has a smaller largest part, for random costs and for costs like a language model's.
# Mechanism: every layer once, in order, one part a device; 300 layers on 16 devices in a few seconds.
# Robustness: fewer layers than devices, zeros, one device; wrong arguments are refused by name.
labkit.check("02.partition-layers", partition_layers)

# %% [markdown]
# ## One model, several devices
#
# Now put each layer where the cut says. A tensor goes to another device with `x.to("cuda:1")`. That is an
# operation like any other: autograd records it, and backward sends the gradient **the same way back**. All
# you have to write is the forward pass.

# %%
with labkit.devices.use(2, bytes_each=64 * MIB) as gpus:
    a = torch.ones(3, device="cuda:0", requires_grad=True)
    b = (2 * a).to("cuda:1")
    with gpus.recording() as copies:
        b.sum().backward()
    print(a.grad, [f"{c.source} -> {c.destination}: {c.num_bytes} bytes" for c in copies])
    del a, b

# %% [markdown]
# Three things to think of before you begin:
#
# - `layer.to(device)` moves a layer's parameters **and its buffers**, in place: the `nn.Parameter` objects
#   stay the same objects, so an optimizer that has them keeps them. (A new `nn.Parameter` would not do: the
#   optimizer would go on stepping the old one, and those weights would never change.)
# - `x.detach().to(device)`, `x.data` or a detour through NumPy move the numbers and lose the way back. The
#   loss looks fine. The gradients of everything before are `None`.
# - Two layers may share one parameter (GPT-2's head *is* its token embedding). There is one tensor, and it
#   lives on one device. A later layer on another device needs a copy of it for each forward pass, made with
#   `.to`, so that its gradient comes home. `torch.func.functional_call(layer, {name: tensor}, (x,))` runs
#   a layer with other tensors in the place of its own.
#
# ### Exercise: a model over several devices
#
# Write `LayerwiseModel`: `__init__` puts each layer on its device, and `forward` takes the input from layer
# to layer. An activation is copied only where the device changes, straight from the one to the other, and its
# gradient comes back the same way. Call layers as modules: hooks may hang on them. What a layer writes into
# its buffers, such as a running mean, is kept. Layers may share parameters, but no buffers. No parameter has
# a gradient yet when the model is made, and one that is frozen then may be trained later. None of the layers
# changes its input in place.
#
# <details><summary>Hint 1</summary>Keep the layers in an nn.ModuleList: a plain list hides their parameters
# from .parameters().</details>
# <details><summary>Hint 2</summary>For ties: before moving a layer, look which of its parameters an earlier
# layer has already put somewhere else. Moving the layer would move them too: move its other tensors one by
# one (tensor.data = tensor.data.to(device)), and remember the names of the shared ones.</details>
# <details><summary>Hint 3</summary>A shared parameter can be recognised with <code>is</code>, or by
# id(parameter). In forward: functional_call(layer, {name: parameter.to(device)}, (x,)).</details>


# %% exercise="02.layerwise-model" difficulty=3 minutes=20
class LayerwiseModel(nn.Module):
    """Layers in a row, each on a device of its own choice. Computes what
    nn.Sequential(*layers) computes, after eval() and under torch.no_grad() too.

    layers: moved, not copied; every parameter stays the object it is, after a pass that
    failed too. devices: where each layer lives, a GPU or the host, as many as layers
    (ValueError otherwise, naming both numbers). A parameter that several layers share lives
    with the first of them; a later layer on another device, which may have it under two
    names, works with a copy of it that is in the graph, and one layer without buffers may
    stand in the row twice. When a pass is over, it leaves nothing on a device but gradients.
    """

    def __init__(self, layers: Sequence[nn.Module], devices: Sequence[torch.device | str]):
        super().__init__()
        ### BEGIN SOLUTION
        if len(layers) != len(devices):
            raise ValueError(f"expected a device for each of {len(layers)} layers, found {len(devices)}")
        self.layers = nn.ModuleList(layers)
        self.devices = [torch.device(device) for device in devices]
        self.borrowed: list[list[str]] = []  # for each layer, the names of parameters that live elsewhere
        settled: dict[int, torch.device] = {}
        for layer, device in zip(self.layers, self.devices, strict=True):
            names = [n for n, p in layer.named_parameters() if settled.get(id(p), device) != device]
            for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                if name not in names:
                    tensor.data = tensor.data.to(device)
                    settled[id(tensor)] = device
            self.borrowed.append(names)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: on any device, of any dtype; stays as it is. Returns the output, on the
        last layer's device.
        """
        ### BEGIN SOLUTION
        for layer, device, names in zip(self.layers, self.devices, self.borrowed, strict=True):
            x = x.to(device)
            copies = {name: layer.get_parameter(name).to(device) for name in names}
            x = functional_call(layer, copies, (x,)) if copies else layer(x)
        return x
        ### END SOLUTION


# %% [markdown]
# The patient on four devices, one training step, on bytes of this course's own source code. What should cross
# the boundaries is $b s h$ numbers each way; the token ids go in once. (Training takes more room than
# weights: gradients as large, and on the last device $b s V$ logits, several times. The fair cut of
# *weights* is not the fair cut of a training step.)


# %%
def bytes_of_the_course(batch: int, sequence: int) -> tuple[Tensor, Tensor]:
    """Token ids and what follows each, [b, s]: the bytes of labkit's own sources."""
    text = b"".join(path.read_bytes() for path in sorted(Path(labkit.__file__).parent.glob("*.py")))
    ids = torch.tensor(list(text[: batch * sequence + 1]))
    return ids[:-1].view(batch, sequence), ids[1:].view(batch, sequence)


def places(parts: Sequence[range]) -> list[str]:
    """The device of each layer, from a cut."""
    return [f"cuda:{index}" for index, part in enumerate(parts) for _ in part]


ids, targets = bytes_of_the_course(batch=4, sequence=32)
with labkit.devices.use(4, bytes_each=32 * MIB) as gpus:
    model = LayerwiseModel(make_layers(), places(fair))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gpus.recording() as copies:
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(logits.device).flatten())
        loss.backward()
    optimizer.step()
    peaks = [gpus.peak(index) for index in range(4)]
    print(f"loss {loss.item():.3f}; peak of each device: {', '.join(map(binary_text, peaks))}")
    del model, optimizer, logits, loss

rows = [[c.source, c.destination, str(c.shape), c.num_bytes] for c in copies]
Table(["from", "to", "shape", "bytes"], rows)

# %% check="02.layerwise-model"
# Numbers: output, gradients of the input and of every parameter, weights after two
# steps, against one device.
# Mechanism: each device holds its own layers' bytes, before passes and after;
# activations cross exactly the boundaries, gradients back. Robustness: buffers, tied
# parameters, an optimizer made before, a list of devices that is too short.
labkit.check("02.layerwise-model", LayerwiseModel)

# %% [markdown]
# ## A stopwatch for devices
#
# How fast is it? A GPU works on its own: a call puts work into the device's queue and returns at once, and
# only what needs a *value* waits. So a clock that is read right after the call has timed the queueing.
#
# Our stand-ins compute on the CPU, so their pace says nothing about GPUs. For questions of time we give them
# work of a **fixed duration**: `labkit.devices.busy(0.03, "cuda:0")` stands for a kernel of 30 ms. It is
# queued and takes its time, as on a GPU.

# %%
with labkit.devices.stand_in(1, bytes_each=MIB):
    start = time.perf_counter()
    labkit.devices.busy(0.03, "cuda:0")
    queued = time.perf_counter()
    torch.cuda.synchronize("cuda:0")
    done = time.perf_counter()
print(f"the call returned after {1e3 * (queued - start):.1f} ms")
print(f"the device was done after {1e3 * (done - start):.1f} ms")

# %% [markdown]
# ### Exercise: time what the device does
# Published speed-ups have come from exactly this mistake. Three rules: wait for **every** device before you
# read the clock; let the first step pass (it compiles, allocates, tunes); and be sure that nothing older is
# still queued when the clock starts.
#
# <details><summary>Hint</summary>torch.cuda.synchronize(device) waits for one device. You need it in two
# places.</details>


# %% exercise="02.step-seconds" difficulty=1 minutes=8
def seconds_per_step(step: Callable[[], Any], devices: Sequence[torch.device], steps: int) -> float:
    """Seconds that one call of `step` keeps the devices at work: the mean of `steps` calls.

    One more call goes before and is not counted. step: may train; nothing around it is
    changed. devices: all that it gives work to, on any of their queues.
    """
    ### BEGIN SOLUTION
    step()
    for device in devices:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    for device in devices:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / steps
    ### END SOLUTION


# %% check="02.step-seconds"
# Numbers: the time of the slowest device. Mechanism: the first step and older work do not count.
labkit.check("02.step-seconds", seconds_per_step)

# %% [markdown]
# ## Four devices: how much faster?
#
# Eight layers, each of 5 ms forward and 10 ms backward. On one device a step takes 120 ms. Now the same on
# four devices, two layers each, and a copy from device to device costs *nothing* here. **How many
# milliseconds does a step take?**

# %% predict="four-devices-ms"
your_guess_ms = ...


# %%
def timed_layers(count: int, forward_ms: float) -> list[nn.Module]:
    """Small layers that keep their device busy for forward_ms, and for twice that in backward."""
    return [nn.Sequential(nn.Linear(8, 8), FixedTime(forward_ms / 1e3)) for _ in range(count)]


def time_layerwise(num_devices: int) -> tuple[float, list[Any]]:
    """Milliseconds of a step of eight layers over some devices, and what the devices
    did in one step.
    """
    with labkit.devices.stand_in(num_devices, bytes_each=MIB) as gpus:
        model = LayerwiseModel(timed_layers(8, 5), places(partition_layers([1] * 8, num_devices)))

        def step() -> None:
            model(torch.ones(1, 8)).sum().backward()

        milliseconds = 1e3 * seconds_per_step(step, gpus.devices, steps=2)
        before = len(gpus.timeline)
        step()
        gpus.synchronize()
        return milliseconds, gpus.timeline[before:]


one_ms, one_device = time_layerwise(1)
four_ms, four_devices = time_layerwise(4)
prediction("a step on four devices (ms)", your_guess_ms, four_ms)

# %%
draw_utilisation({"one device": one_device, "four devices": four_devices}, guess_ms=your_guess_ms)

# %% [markdown] reveals="four-devices-ms"
# No faster at all. Device 1 cannot begin before device 0 has finished, and backward walks the stairs down
# again: **at any moment one device works and the others wait**. With $p$ devices each is at work $1/p$ of the
# time. The source slides say that layer-wise parallelism is *"slower than 1 GPU, because of the communication
# overhead"*. The copies do cost something, but look at the picture: it has no communication in it, and three
# quarters of it are idle. Idling is the main loss, communication comes second (Narayanan et al. 2021, section
# 2.2; the lecture on model parallelism says it too: *"all but one GPU is idle at any given moment"*).

# %% [markdown]
# What several devices buy is **room**: four times the memory. Lesson 04 fills the idle time with more
# micro-batches.

# %% [markdown]
# ## One GPU and a large host
#
# And if there is only one GPU? The host has memory too, and slow as it is, it can even compute. Your
# `LayerwiseModel` already knows how: name the CPU as the device of some layers.

# %%
with labkit.devices.use(1, bytes_each=64 * MIB) as gpus:
    model = LayerwiseModel(make_layers(), ["cuda:0"] * 8 + ["cpu"] * 4)
    model(ids).sum().backward()
    print(gpus)
    del model

# %% [markdown]
# That is the first kind of CPU offloading, and the four layers now run on a processor that is many times
# slower than the GPU. The second kind is better: all layers **compute on the GPU**, and the weights of
# some of them **wait on the host** and are copied over just in time. While layer $i$ works, the copy of layer
# $i+1$ is already on its way, on a *stream* of its own: a second queue of the same device.
#
# What makes it work, and what makes it fail:
#
# - A copy runs beside other work only if it comes from **pinned** host memory, which the operating system
#   leaves in its place (`tensor.pin_memory()`), is asked for with `non_blocking=True`, and is queued on
#   another stream (`with torch.cuda.stream(side):`).
# - Then nothing orders the two queues. A layer that starts before its weights have arrived computes with
#   whatever was in that memory. The cure: `side.record_event()` after the copy, and
#   `torch.cuda.current_stream(device).wait_event(event)` before the layer. On a GPU the mistake gives wrong
#   numbers *now and then*. A stand-in is merciless: the copy holds NaN until somebody has waited for it.

# %%
with labkit.devices.stand_in(1, bytes_each=MIB):
    host = torch.ones(4).pin_memory()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        on_device = host.to("cuda:0", non_blocking=True)
        arrived = side.record_event()
    print("too early: ", on_device * 2)
    torch.cuda.current_stream("cuda:0").wait_event(arrived)
    print("after wait:", on_device * 2)

# %% [markdown]
# - A parameter on the host must get the gradient of its copy. This is given: it hands out the copy in
#   forward, and brings the gradient home in backward.


# %%
class OnDevice(torch.autograd.Function):
    """Use `copied`, a copy on a device, in the place of `parameter`, which stays where it is."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, copied: Tensor) -> Tensor:
        ctx.home = parameter.device
        return copied.view_as(copied)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.home), None


# %% [markdown]
# - Autograd keeps what backward needs, and a linear layer's backward needs its weight. So after forward *all*
#   copies would still be on the device. The way out that you may know from checkpointing: run each offloaded
#   layer under `checkpoint(..., use_reentrant=False)`. Its results are forgotten, and in backward the layer
#   runs again, which fetches its weights again, from the last layer to the first. Dropout draws the same
#   numbers again: `checkpoint` sees to it. (Lesson 05 builds `checkpoint`. It costs one more forward pass of
#   these layers.)
#
# ### Exercise: weights that come just in time
# The first `resident_layers` layers live on the device. The others live in pinned host memory; their
# parameters are the same `nn.Parameter` objects, so that any optimizer finds weight and gradient on the host.
# No two layers share a parameter. One that is frozen in a pass may be trained in a later one.
#
# * **Buffers** are constants here, and on the device when their layer works. Those of offloaded layers stay
#   on the device, or wait in pinned memory and come as the weights do, on the side stream.
# * **Prefetch**: while a layer works, the next offloaded one is on its way. The first of them comes while the
#   last resident layer works, or earlier. In backward the next one is the layer before, frozen or not. (Where
#   nothing before the layer at work wants a gradient, backward ends there: fetch one more layer or none.)
# * **Memory**: beside activations and gradients, the device never holds more than the resident layers, the
#   layer at work, and the one on its way. A pass that is over leaves no activations there.
# * **Left-over copies**: a pass, also one that an error ended, may leave copies that no layer took. The next
#   forward must not use them, for weights may have changed. A backward that comes before it may.
# * **Order**: several forward passes, of two models too, may come before their backwards, which then come in
#   any order.
#
# `_fetch` and `_run` are suggestions: only the class and its `forward` are used from outside. Leave alone
# what torch keeps to itself (`torch._C`), here and elsewhere: no exercise needs it, and code that reaches for
# it has to wait for its points until a person has looked at it.
#
# <details><summary>Hint 1: the parts</summary>fetch(i): on the side stream, copy every tensor of layer i, and
# record an event. run(x, i): fetch(i) unless that was done before; wait for the event; fetch the next;
# functional_call the layer with OnDevice.apply(parameter, copy) for each parameter.</details>
# <details><summary>Hint 2: which is next?</summary>In forward i + 1, in backward i - 1. An attribute that
# forward() sets to +1 when it begins and to -1 when it ends is enough. Only fetch what exists and is
# offloaded.</details>
# <details><summary>Hint 3: dropping</summary>Take a layer's copies out of your dictionary (dict.pop) when it
# runs: then they live exactly as long as something uses them. Copies that no layer took, of a pass without
# backward for example, are old when the next forward begins: it begins with none. And the host is ahead of
# a real GPU: the next copy may land in memory that a layer is still reading. Before each fetch, let the
# side stream wait for what has been queued so far: side.wait_stream(torch.cuda.current_stream(device)). (A
# stand-in does not show this mistake.)</details>


# %% exercise="02.offloaded-model" difficulty=4 minutes=55
class OffloadedModel(nn.Module):
    """Layers in a row that all compute on one device, with most of their weights waiting on the
    host. Computes what nn.Sequential(*layers) computes, after eval() and under torch.no_grad() too.

    layers: the first `resident_layers` are moved to `compute_device`, any GPU, the others to
    pinned host memory; every parameter stays the object it is, and some may be frozen.
    Several forward passes may come before their backward. Layers may have dropout.
    Raises ValueError, naming the number, for resident_layers below 0 or above the number of layers.
    """

    def __init__(self, layers: Sequence[nn.Module], compute_device: torch.device, resident_layers: int):
        super().__init__()
        ### BEGIN SOLUTION
        if not 0 <= resident_layers <= len(layers):
            raise ValueError(f"expected 0 to {len(layers)} resident layers, found {resident_layers}")
        self.layers = nn.ModuleList(layers)
        self.device, self.resident_layers = torch.device(compute_device), resident_layers
        self.side = torch.cuda.Stream(self.device)
        self.on_the_way: dict[int, tuple[dict[str, Tensor], Any]] = {}  # layer -> copies, their arrival
        self.ahead = 1  # which layer comes next: +1 in forward, -1 in backward
        for layer in self.layers[resident_layers:]:
            for tensor in [*layer.parameters(), *layer.buffers()]:
                tensor.data = tensor.data.cpu().pin_memory()
        self.layers[:resident_layers].to(self.device)  # last: what both kinds of layers share is resident
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: on any device, of any dtype; stays as it is. Returns the output, on the compute device."""
        ### BEGIN SOLUTION
        x, self.ahead = x.to(self.device), 1
        self.on_the_way.clear()  # fetched for a pass that failed, or for a layer that backward did not need
        try:
            for index, layer in enumerate(self.layers):
                if index < self.resident_layers:
                    self._fetch(index + 1)
                    x = layer(x)
                elif torch.is_grad_enabled():
                    x = checkpoint(self._run, x, index, use_reentrant=False)
                else:
                    x = self._run(x, index)
        finally:
            self.ahead = -1
        return x
        ### END SOLUTION

    def _fetch(self, index: int) -> None:
        """Start copying a layer's tensors to the device, unless it is there, under way, or no layer."""
        ### BEGIN SOLUTION
        if not self.resident_layers <= index < len(self.layers) or index in self.on_the_way:
            return
        layer = self.layers[index]
        tensors = [*layer.named_parameters(), *layer.named_buffers()]
        self.side.wait_stream(torch.cuda.current_stream(self.device))  # memory of a finished layer is reused
        with torch.cuda.stream(self.side):
            copies = {name: t.detach().to(self.device, non_blocking=True) for name, t in tensors}
            self.on_the_way[index] = (copies, self.side.record_event())
        ### END SOLUTION

    def _run(self, x: Tensor, index: int) -> Tensor:
        """One offloaded layer; the copies of its tensors live as long as something uses them."""
        ### BEGIN SOLUTION
        self._fetch(index)
        copies, arrived = self.on_the_way.pop(index)
        torch.cuda.current_stream(self.device).wait_event(arrived)
        self._fetch(index + self.ahead)
        layer = self.layers[index]
        for name, parameter in layer.named_parameters():
            copies[name] = OnDevice.apply(parameter, copies[name])
        return functional_call(layer, copies, (x,))
        ### END SOLUTION


# %% [markdown]
# ### On the way
# Four layers of which two are resident, in three steps. Each cell needs what is named above it and no more,
# so run it as soon as that is written. **`__init__`:** two weights on the device, two in pinned memory.


# %%
def four_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 4, bias=False) for _ in range(4)]


def two_resident() -> OffloadedModel:
    return OffloadedModel(four_layers(), torch.device("cuda:0"), resident_layers=2)


with labkit.devices.use(1, bytes_each=MIB):
    places_of_weights = [(str(weight.device), weight.is_pinned()) for weight in two_resident().parameters()]
Table(["weight on", "pinned"], places_of_weights)

# %% [markdown]
# **`forward` without gradients:** the plain model's numbers. NaN means that a layer did not wait.

# %%
with labkit.devices.use(1, bytes_each=MIB) as gpus, torch.no_grad():
    streamed = two_resident()
    with gpus.recording() as copies:
        out = streamed(torch.ones(1, 4)).cpu()
    off_by = (out - nn.Sequential(*four_layers())(torch.ones(1, 4))).abs().max().item()
    del streamed
print(f"off by {off_by:.1e}; fetched: {[c.num_bytes for c in copies if c.destination == 'cuda:0']} bytes")

# %% [markdown]
# The input has 16 bytes and a weight 64: the input, and two weights once each. **`backward`:** gradients
# where their weights are, and right.

# %%
plain = nn.Sequential(*four_layers())
plain(torch.ones(1, 4)).sum().backward()
with labkit.devices.use(1, bytes_each=MIB):
    streamed = two_resident()
    streamed(torch.ones(1, 4)).sum().backward()
    pairs = list(zip(streamed.parameters(), plain.parameters(), strict=True))
    found = [[str(s.grad.device), f"{(s.grad.cpu() - p.grad).abs().max().item():.1e}"] for s, p in pairs]
    del streamed, pairs
Table(["gradient on", "off by"], found)

# %% check="02.offloaded-model"
# Numbers: output, gradients, weights after two steps, on the host and on the device,
# against the plain model.
# Mechanism: peak bytes, bytes fetched, the next layer on its way while one works, no layer
# before its weights. Robustness: no layer resident, all of them, numbers that cannot be.
labkit.check("02.offloaded-model", OffloadedModel)

# %% [markdown]
# ## How much room does it make?
#
# Twelve layers of 1 MiB each, one training step (forward and backward; activations are negligible here). With
# all layers resident the device ends up with 12 MiB of weights and 12 MiB of gradients. **With 4 of 12
# resident, what is the peak, in MiB?** Follow backward from the last layer to the first, and ask at each
# what is there: resident weights, the layer at work and its gradient, the one on its way, gradients of
# resident layers.

# %% predict="peak-with-4-resident"
your_guess_mib = ...


# %%
def peak_bytes(resident_layers: int, train: bool) -> int:
    """The most that the device holds, with some of 12 layers of 1 MiB resident. (A GPU
    would hold more: what its libraries keep for themselves, tens of MiB.)
    """
    with labkit.devices.stand_in(1, bytes_each=64 * MIB) as gpu:
        layers = [nn.Linear(512, 512, bias=False) for _ in range(12)]
        model = OffloadedModel(layers, torch.device("cuda:0"), resident_layers)
        gpu.reset_peaks()
        with torch.set_grad_enabled(train):
            out = model(torch.ones(1, 512))
        if train:
            out.sum().backward()
        return gpu.peak(0)


measured = {
    "training step": {count: peak_bytes(count, train=True) for count in range(13)},
    "inference": {count: peak_bytes(count, train=False) for count in range(0, 13, 3)},
}
prediction("peak with 4 of 12 resident (MiB)", your_guess_mib, measured["training step"][4] / MIB)

# %%
target("02-resident-peaks")

# %%
guess = None if your_guess_mib is ... else (4, your_guess_mib * MIB)
draw_resident_peaks(measured, whole=24 * MIB, guess=guess)

# %% [markdown] reveals="peak-with-4-resident"
# With $R$ resident layers of $w$ bytes, inference peaks at $(R + 2)w$, as long as there are two to fetch.
# Training has two candidates: among the offloaded layers it holds $(R + 3)w$ (one gradient more), and at the
# end, when only resident layers are left, $2Rw$. The larger one wins: that is the knee at $R = 3$. With
# $R = 0$ a model of any depth trains in the room of three layers.

# %% [markdown]
# ## What does it cost?
#
# Nothing, if the copies are faster than the layers. Below, a copy of a layer takes 20 ms and its kernel 24
# (durations are fixed, as before). First the simple way, found in many scripts: `layer.to("cuda:0")`, run,
# `layer.to("cpu")`. Then yours.


# %%
def one_after_the_other(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.to("cuda:0")(x.to("cuda:0"))
        layer.to("cpu")
    return x


def watch_streaming(run: Callable[[list[nn.Module], Tensor], Tensor]) -> list[Any]:
    """What the device did while `run` took five layers that wait on the host through inference."""
    layer_bytes = 4 * 256 * 256
    with labkit.devices.stand_in(1, bytes_each=16 * MIB, host_link=layer_bytes / 0.020) as gpu:
        linear = [nn.Linear(256, 256, bias=False) for _ in range(5)]
        layers: list[nn.Module] = [nn.Sequential(layer, FixedTime(0.024)) for layer in linear]
        with torch.no_grad():
            run(layers, torch.ones(1, 256))
        gpu.synchronize()
        return gpu.timeline


draw_utilisation(
    {
        "one after the other": watch_streaming(one_after_the_other),
        "yours": watch_streaming(lambda layers, x: OffloadedModel(layers, torch.device("cuda:0"), 0)(x)),
    }
)

# %% [markdown]
# With prefetch only the first copy shows. When is a layer's kernel as long as its copy? A layer of $N$
# weights (16 bit) takes $2N / B$ seconds to copy at $B$ bytes a second, and $2 N T / F$ seconds for $T$
# tokens at $F$ FLOP/s. $N$ cancels: the copy hides if
#
# $$T \ge F / B$$
#
# An A100 (312 TFLOP/s dense, 16 bit) behind PCIe 4.0 x16 (31.5 GB/s, each way) needs about **10,000 tokens**
# in the batch at peak, and fewer at the half of the peak that real models reach. Training has them.
# Generating text one token at a time has one: there offloading is bound by the link, whatever you do.

# %% [markdown]
# ### On a real GPU
#
# The same on an H100, measured once and kept with the course: six transformer layers of 100 MB each, all on
# the host, the reference solution of the exercise. Copies from pinned memory ran at 52 GB/s there and a large
# 16-bit product at 755 TFLOP/s, so $F/B$ is 14,500 tokens; whole layers reach 80% of that rate, which makes
# it 11,600. With 16,384 tokens the layers take longer than their copies:

# %%
on_h100 = measured_on_a_gpu("streaming_h100")
print(on_h100.about)
draw_utilisation({"16,384 tokens, all six layers on the host": on_h100.timeline("yours")})

# %%
copies = on_h100.found["weight_bytes"] / on_h100.found["link_bytes_per_second"]
Table(
    ["tokens", "layers alone", "copies alone", "yours", "one after the other"],
    [
        [
            f"{row['tokens']:,}",
            *(f"{1e3 * t:.1f} ms" for t in (row["computing"], copies, row["streamed"])),
            f"{1e3 * row['simple']:.0f} ms",
        ]
        for row in on_h100.found["rows"]
    ],
    caption=f"A pass through the six layers. {on_h100.about}",
)

# %% [markdown]
# Up to 8,192 tokens a pass takes little more than its copies, for one token as for thousands; above, what its
# layers take and the first copy, which nothing hides. The simple way takes 12 to 45 times as long. It copies
# each layer back, though nobody changed it, and its memory on the host is not pinned, so the driver copies
# every byte a second time.

# %% [markdown]
# ## Stages in processes
#
# So far one process drove all devices. Across nodes it cannot: each node runs its own processes. Then a
# boundary is a message. The activation goes to the next process with `send`, and in backward its gradient
# comes back. Both ends need to know what comes, so a short announcement goes first. These two are given:

# %%
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def send_tensor(x: Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Send x to rank `peer` of the group: first its dtype and shape, then its values."""
    about = [DTYPES.index(x.dtype), x.dim(), *x.shape, *[0] * (6 - x.dim())]
    dist.send(torch.tensor(about, device=x.device), group_dst=peer, group=group)
    dist.send(x.detach().contiguous(), group_dst=peer, group=group)


def receive_tensor(peer: int, group: dist.ProcessGroup) -> Tensor:
    """The tensor that rank `peer` of the group sends with `send_tensor`."""
    nccl = dist.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    about = torch.zeros(8, dtype=torch.int64, device=device)
    dist.recv(about, group_src=peer, group=group)
    dtype, dim, *shape = about.tolist()
    x = torch.empty(shape[:dim], dtype=DTYPES[dtype], device=device)
    dist.recv(x, group_src=peer, group=group)
    return x


# %% [markdown]
# ### Exercise: a stage in each process
# Write the two halves of a boundary as autograd functions, and a module that uses them. Rank $r$ of the group
# has stage $r$. Every rank calls `out = stage(...)` and then `out.backward()`:
#
# | | first rank | between | last rank |
# |---|---|---|---|
# | forward | is given x, sends | receives, sends | receives, returns the output |
# | backward | receives a gradient | receives, then sends | sends |
#
# A rank that sends has nothing to return that means anything: it returns a *handle*, a tensor of no
# dimensions whose `backward()` sets the rest in motion. The x that the first rank is given stays as it is: it
# requires a gradient afterwards only if it did before. Over each boundary goes one activation, its gradient
# comes back, and nothing else is sent but what announces a tensor: whole numbers, 512 bytes at most for each.
# All else counts as values, of whatever type. Wait for each message that you start.
#
# <details><summary>Hint 1</summary>Forward of one function is <code>send_tensor</code>, its
# backward is <code>receive_tensor</code>; in the other function it is the other way round.</details>
# <details><summary>Hint 2</summary>Autograd calls a function's backward only if one of its inputs requires a
# gradient. What the receiving function is given has no such thing by itself: hand it a handle too,
# torch.zeros((), requires_grad=True).</details>
# <details><summary>Hint 3</summary>backward returns one value for each argument of forward; None for those
# without a gradient.</details>


# %% exercise="02.remote-stage" difficulty=3 minutes=25
class SendActivation(torch.autograd.Function):
    """Forward: send x to `peer`, return a handle. Backward: the gradient of x is what
    `peer` sends back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, peer: int, group: dist.ProcessGroup) -> Tensor:
        ### BEGIN SOLUTION
        ctx.peer, ctx.group = peer, group
        send_tensor(x, peer, group)
        return x.new_zeros(())
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:
        ### BEGIN SOLUTION
        return receive_tensor(ctx.peer, ctx.group), None, None
        ### END SOLUTION


class ReceiveActivation(torch.autograd.Function):
    """Forward: return what `peer` sends. Backward: send its gradient to `peer`."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, peer: int, group: dist.ProcessGroup) -> Tensor:
        ### BEGIN SOLUTION
        ctx.peer, ctx.group = peer, group
        return receive_tensor(peer, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ### BEGIN SOLUTION
        send_tensor(grad, ctx.peer, ctx.group)
        return None, None, None
        ### END SOLUTION


class RemoteStage(nn.Module):
    """This rank's stage of a model whose layers are split over the ranks of `group`,
    in order of rank.

    module: this rank's layers, some of which are trained; eval() is heard. A group of one rank
    sends nothing. Under torch.no_grad() activations are sent, no gradient is waited for, and the
    output has no graph. Messages of integers, which announce a shape, are not counted. When
    backward returns, or forward under no_grad, what went in or came out may be overwritten.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup):
        super().__init__()
        ### BEGIN SOLUTION
        self.module, self.group = module, group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        ### END SOLUTION

    def forward(self, x: Tensor | None = None) -> Tensor:
        """x: the input, on the first rank only. Returns the output on the last rank,
        elsewhere a handle.
        """
        ### BEGIN SOLUTION
        if self.rank > 0:
            x = ReceiveActivation.apply(torch.zeros((), requires_grad=True), self.rank - 1, self.group)
        y = self.module(x)
        if self.rank < self.world_size - 1:
            y = SendActivation.apply(y, self.rank + 1, self.group)
        return y
        ### END SOLUTION


# %% [markdown]
# Three processes, the patient cut for them by your own function. Every rank reports what it sent and
# received:


# %%
def train_in_stages(parts: Sequence[range], group: dist.ProcessGroup) -> float | None:
    """Two steps of a model split over the group; the last rank returns the loss of the second."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    layers = make_layers()
    stage = RemoteStage(nn.Sequential(*[layers[index] for index in parts[rank]]), group)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    ids, targets = bytes_of_the_course(batch=4, sequence=32)
    for _ in range(2):
        optimizer.zero_grad()
        out = stage(ids) if rank == 0 else stage()
        loss = F.cross_entropy(out.flatten(0, 1), targets.flatten()) if rank == last else out
        loss.backward()
        optimizer.step()
    return loss.item() if rank == last else None


job = labkit.launch(train_in_stages, partition_layers(costs, 3), ranks=3, backend="gloo")
messages = [c for c in job.collectives if c.dtype == "float32"]
rows = [[c.rank, c.op, c.peer, str(c.shape), c.num_bytes] for c in messages if c.op == "send"]
print(f"loss of the second step, on the last rank: {job.results[-1]:.4f}")
Table(["rank", "op", "to", "shape", "bytes"], rows, caption="Activations and gradients in two steps")

# %% check="02.remote-stage"
# Numbers: output, gradients, weights after two steps, on every rank, against one process.
# Mechanism: one activation over each boundary, one gradient back, nothing else.
# Robustness: another batch size, two chains side by side, no waiting for gradients without grad.
labkit.check("02.remote-stage", RemoteStage)

# %% [markdown]
# ## The same by remote procedure calls
#
# The slides point to another way over nodes: `torch.distributed.rpc`. One process writes the whole training
# loop; modules live elsewhere and are called through references; a *distributed autograd* context collects
# the gradients where the parameters are, and a distributed optimizer steps them there. It is less to write,
# and harder to see what travels. Its backend, TensorPipe, picks a transport itself: shared memory within a
# node, InfiniBand where it can, else TCP. PyTorch maintains it but does not develop it further.
# Here it is at work, with rank 1 holding the second half:


# %%
def train_by_rpc(meeting_place: str, group: dist.ProcessGroup) -> list[float] | None:
    import torch.distributed.autograd as distributed_autograd
    from torch.distributed import rpc
    from torch.distributed.optim import DistributedOptimizer

    warnings.simplefilter("ignore")  # both modules talk about their own future
    logging.disable(logging.WARNING)
    rank = dist.get_rank(group)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting_place}", rpc_timeout=30)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    losses = []
    if rank == 0:  # rank 1 only answers calls
        first = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        second = rpc.remote("worker1", nn.Linear, args=(32, 4))
        here = [rpc.RRef(parameter) for parameter in first.parameters()]
        there = [second.remote().get_parameter(name) for name in ("weight", "bias")]
        optimizer = DistributedOptimizer(torch.optim.NAdam, [*here, *there], lr=0.01)
        x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
        for _ in range(4):
            with distributed_autograd.context() as context:
                loss = F.cross_entropy(second.rpc_sync().forward(first(x)), y)
                distributed_autograd.backward(context, [loss])
                optimizer.step(context)
                losses.append(round(loss.item(), 4))
    rpc.shutdown()
    return losses or None


with tempfile.TemporaryDirectory() as folder:
    job = labkit.launch(train_by_rpc, f"{folder}/meet", ranks=2, backend="gloo")
print("losses, seen from rank 0:", job.results[0])

# %% [markdown]
# ## Layers and data: 2 x 2
#
# Layer-wise parallelism combines with others. Four ranks: ranks 0 and 1 are one chain of two stages, ranks 2
# and 3 another, and both chains have the same weights. Each chain takes half of the batch. Then the ranks
# that hold the *same* stage, 0 and 2, 1 and 3, average their gradients: that is DDP, with a group of its own.
#
# The layers sleep here (20 ms forward, 40 backward; a sleep stands for a kernel), so that you see who waits.


# %%
class Sleep(torch.autograd.Function):
    """Stands for a stage's kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with labkit.span("forward", kind="forward"):
            time.sleep(0.02)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        with labkit.span("backward", kind="backward"):
            time.sleep(0.04)
        return grad


class SlowLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(super().forward(x))


def step_two_by_two(whole: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One step of 2 chains x 2 stages; the gradients of this rank's stage."""
    rank = dist.get_rank()
    chains = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    chain, stage_index = rank // 2, rank % 2
    layers = DistributedDataParallel(whole[stage_index], process_group=replicas[stage_index])
    stage = RemoteStage(layers, chains[chain])
    x, y = x.chunk(2)[chain], y.chunk(2)[chain]
    out = stage(x) if stage_index == 0 else stage()
    loss = F.mse_loss(out, y) if stage_index == 1 else out
    loss.backward()
    return {name: p.grad for name, p in layers.module.named_parameters()}


torch.manual_seed(0)
whole = nn.Sequential(SlowLinear(8, 16), SlowLinear(16, 4))
x, y = torch.randn(32, 8), torch.randn(32, 4)
job = labkit.launch(step_two_by_two, whole, x, y, ranks=4, backend="gloo")
F.mse_loss(whole(x), y).backward()
for rank, gradients in enumerate(job.results):
    expected = {name: p.grad for name, p in whole[rank % 2].named_parameters()}
    same = all(torch.allclose(g, expected[name], atol=1e-6) for name, g in gradients.items())
    print(f"rank {rank}: gradients of stage {rank % 2} equal the whole batch's on one process: {same}")
draw_timeline(job)

# %% [markdown]
# Right numbers, on four ranks of which two work at any moment: in the words of the slide, the *inefficiency
# is upscaled*. Replicating a half-idle chain gives two half-idle chains. The cure has to come from within the
# chain: lesson 04 brings it.
#
# ## What PyTorch ships
#
# `torch.distributed.pipelining` is your `RemoteStage` with a schedule. With a single micro-batch its
# schedule is the staircase you drew, so its numbers must be yours:


# %%
def shipped_and_ours(whole: nn.Sequential, x: Tensor, y: Tensor, group: dist.ProcessGroup) -> float:
    """The largest difference between the gradients of PyTorch's stage and of ours, on this rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    theirs, ours = copy.deepcopy(whole[rank]), copy.deepcopy(whole[rank])
    stage = PipelineStage(theirs, rank, last + 1, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, n_microbatches=1, loss_fn=F.mse_loss)
    schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == last else {}))
    remote = RemoteStage(ours, group)
    out = remote(x) if rank == 0 else remote()
    (F.mse_loss(out, y) if rank == last else out).backward()
    pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
    return max((a.grad - b.grad).abs().max().item() for a, b in pairs)


plain = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
job = labkit.launch(shipped_and_ours, plain, x, y, ranks=2, backend="gloo")
print("largest difference of a gradient, on each rank:", *(f"{apart:.1e}" for apart in job.results))

# %% [markdown]
# For offloading, Hugging Face's `accelerate` has `cpu_offload` and `dispatch_model`: hooks around each layer
# that copy its weights in before forward and drop them after, for inference and without prefetch. Where a
# GPU is at hand, `benchmarks/offload.py` runs it beside your technique. FSDP2 has `CPUOffloadPolicy` (lesson
# 08).
#
# ## Where this leaves you
#
# | | memory of a device | time of a step | what travels |
# |---|---|---|---|
# | layers over $p$ devices | the largest part | as on one device | $b s h$ a boundary, each way |
# | weights on the host | $\max(R + 3, 2R)\, w$ | hidden from $F/B$ tokens on | weights 2x, gradients 1x |
# | stages in processes | the largest part | as on one device | the same, as messages |
#
# **Think about**
#
# 1. In the fair cut you counted weights. What else should `costs` count when you train with Adam? And with
#    activations: does the first device of a naive split hold more of them than the last?
# 2. Your `OffloadedModel` sends gradients home with a blocking copy. What would have to change to hide that
#    one too, and who would have to wait for it?
# 3. Two chains of two stages, or one of four: which one waits less, and which one needs more memory?
#
# **To read**
#
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters*, 2021, section 2.2.
# - Huang et al., *GPipe*, 2019, section 2.
# - Ren et al., *ZeRO-Offload*, 2021, section 3.
# - The notes on CUDA semantics in PyTorch's documentation (asynchronous execution, streams, pinned memory).

# %% scoreboard=true
labkit.scoreboard("02")
