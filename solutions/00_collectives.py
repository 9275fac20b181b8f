# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "00", title: "Ranks, processes and collectives", minutes: 90}
# ---

# %% [markdown]
# # Ranks, processes and collectives
#
# A model that is too large for one GPU lives in several processes. Each of them has its own memory and runs
# the same program. **How do they act as one, what does it cost when they talk, and what goes wrong when
# they misunderstand each other?**
#
# **You need** Python, tensors, and nothing about distributed computing.
#
# **You will have built** an all-reduce, the operation every later lesson stands on, out of plain messages;
# predicted its time and measured it; and repaired three programs that hang. About 90 minutes.
#
# Symbols used throughout: $n$ is the number of ranks, $S$ the bytes of a tensor on one rank, $\alpha$ the
# seconds a message takes however small it is, and $\beta$ the seconds per byte.

# %% [markdown]
# **The machine you are on** is enough, whichever it is; the cells are the same.
#
# | it has | what ranks are there |
# |---|---|
# | no GPU | processes on its cores, which talk over gloo: four run fine on two cores |
# | one GPU | `ranks=1` has it to itself; more ranks share it over gloo, and the job says so |
# | several | with a GPU for each rank, NCCL; with more ranks than GPUs, gloo again |
#
# In a hosted notebook, where labkit is not installed, give a cell of its own to
# `%pip install "many_gpu_workbook-0.1.0-py3-none-any.whl"` (the file that your instructor handed out), then
# `!labkit lessons .` writes the lessons beside it. `!labkit doctor` says what a machine has, and lacks.

# %% tags=["setup"]
# What this lesson imports: run it first
import os

import torch
import torch.distributed as dist

import labkit
from labkit.launch import LaunchError
from labkit.record.marked import carried_messages
from labkit.show.collectives import draw_collectives
from labkit.show.cost import bytes_sent, draw_bytes, draw_bytes_sent, draw_times
from labkit.show.ring import draw_steps
from labkit.show.table import Table, prediction
from labkit.show.target import target
from labkit.show.timeline import draw_timeline
from labkit.theory.communication import bus_factor, fit_alpha_beta

# %load_ext labkit

# %% [markdown]
# ## Where we are going
#
# Four processes, each with four numbers of its own. One call, made by all of them, and each holds the sums
# over all four. This is an **all-reduce**. Below it is PyTorch's; at the end of this lesson it is yours.


# %%
def opening(group):
    x = 10.0 * (dist.get_rank(group) + 1) + torch.arange(4.0)  # rank 0: 10 11 12 13, rank 1: 20 21 22 23, ...
    before = x.tolist()
    dist.all_reduce(x, group=group)
    return {"all_reduce": (before, x.tolist())}


draw_collectives(labkit.launch(opening, ranks=4, backend="gloo").results, columns=1)

# %% [markdown]
# ## What starts when you launch
#
# `torchrun --nproc-per-node 4 train.py` starts four copies of Python, each running `train.py` from its
# first line. They differ in a few environment variables and in nothing else:
#
# | variable | says |
# |---|---|
# | `WORLD_SIZE` | how many copies there are, $n$ |
# | `RANK` | which one this is, $0 \dots n-1$ |
# | `LOCAL_RANK` | which one on *this machine*: it chooses the GPU |
# | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens, so that the others can find it |
#
# A copy is called a **rank**. In this course `labkit.launch(function, ranks=4)` does what torchrun does,
# with a function of your notebook in the place of `train.py`, and hands back what each rank returned.


# %%
def who_am_i():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    return [*(os.environ[name] for name in names), str(os.getpid()), dist.get_backend()]


job = labkit.launch(who_am_i, ranks=4)
Table(["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "process", "backend"], job.results)

# %% [markdown]
# Four processes, four process numbers, and none of them is this notebook. On one machine `LOCAL_RANK`
# equals `RANK`. On two machines with 8 GPUs each, `RANK` runs from 0 to 15 and `LOCAL_RANK` from 0 to 7,
# twice.
#
# The **backend** is the library that carries the bytes: NCCL between GPUs, gloo between CPUs. Which
# collectives exist and what they mean is the same for both; when a call *returns* is not, and that will
# matter when programs hang.
#
# To try something out, there is a shorter way. A cell that begins with `%%ranks 4` runs, as it stands, on
# four ranks; they stay, with their variables, for the next such cell.

# %%
# %%ranks 4
from os import getpid
from torch.distributed import get_rank, get_world_size

print(f"I am rank {get_rank()} of {get_world_size()}, in process {getpid()}")

# %% [markdown]
# ### Predict
# The list below has one element, 0. Each of 4 ranks adds 1 to it. **What does it hold on rank 0
# afterwards?**

# %% predict="shared-list"
your_guess_count = ...

# %%
shared = [0]


def add_one():
    shared[0] += 1
    return shared[0]


job = labkit.launch(add_one, ranks=4)
prediction("the list on rank 0 holds", your_guess_count, job.results[0])

# %% [markdown] reveals="shared-list"
# Every rank got a copy of the list, changed its copy, and no other rank heard of it (the notebook's own
# list still holds 0). Ranks share **nothing**. Whatever one needs to know from another has to be sent.

# %% [markdown]
# ## Messages: send and recv
#
# The smallest exchange has two sides. One rank calls `dist.send(tensor, dst)`, another calls
# `dist.recv(tensor, src)` with a tensor of the same size to be filled. Both name the other side. Below, a
# tensor travels from rank to rank, and each adds its number to it. A sleep of 30 ms stands for a slow link,
# so that you can see the waiting.


# %%
def relay(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    x = torch.zeros(1)
    if rank > 0:
        dist.recv(x, group_src=rank - 1, group=group)
    x += rank
    if rank < world_size - 1:
        labkit.slow_link(ms=30)
        dist.send(x, group_dst=rank + 1, group=group)
    return x.item()


job = labkit.launch(relay, ranks=4, backend="gloo")
print("what each rank held:", job.results)
draw_timeline(job)

# %% [markdown]
# Rank 3 waited for everything that happened before it. `recv` **blocks**: it returns when the message is
# there. `isend` and `irecv` return at once and hand you an object to `wait()` for; until then the tensor is
# not yours to touch.
#
# A **group** is a set of ranks that talk among themselves. Inside a group its members are numbered from 0
# again, so a rank has two numbers: its global one (`dst=`, `src=`) and its place in the group
# (`group_dst=`, `group_src=`). Every function you write in this course takes its group as an argument,
# because in later lessons a rank belongs to several.
#
# ## Collectives
#
# Some exchanges are so common that they have names. A **collective** is a call that *every* rank of a group
# makes. Run the cell, and read each panel as before and after: a number keeps the colour of the rank that
# brought it, and sums over all ranks are hatched.


# %%
def six_collectives(group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = 10.0 * (rank + 1) + torch.arange(float(n))
    blank = [0.0] * n

    def in_place(call, x):
        before = x.tolist()
        call(x)
        return before, x.tolist()

    def only(part):  # a picture of a rank that holds this one part
        return [part.item() if i == rank else 0.0 for i in range(n)]

    x = mine.clone() if rank == 0 else torch.zeros(n)
    broadcast = in_place(lambda x: dist.broadcast(x, src=0, group=group), x)
    all_reduce = in_place(lambda x: dist.all_reduce(x, group=group), mine.clone())
    reduce = in_place(lambda x: dist.reduce(x, dst=0, group=group), mine.clone())

    part, parts, transposed = torch.zeros(1), list(torch.zeros(n, 1)), torch.zeros(n)
    dist.reduce_scatter(part, list(mine.split(1)), group=group)
    dist.all_gather(parts, mine[rank : rank + 1], group=group)
    dist.all_to_all_single(transposed, mine, group=group)

    return {
        "broadcast": broadcast,
        "all_reduce": all_reduce,
        "reduce_scatter": (mine.tolist(), only(part)),
        "all_gather": (only(mine[rank]), torch.cat(parts).tolist()),
        "all_to_all": (mine.tolist(), transposed.tolist()),
        "reduce": (reduce[0], reduce[1] if rank == 0 else blank),
    }


job = labkit.launch(six_collectives, ranks=4, backend="gloo")
draw_collectives(job.results)

# %% [markdown]
# - **broadcast** gives everyone rank 0's tensor: the first weights of a model (lesson 03).
# - **all-reduce** gives everyone the sum: gradients (03), partial products of a split matrix (06).
# - **reduce-scatter** leaves each rank one part of the sum, **all-gather** puts parts together: sharded
#   training (08).
# - **all-to-all** transposes: rank $i$'s part $j$ becomes rank $j$'s part $i$: long sequences (11),
#   experts (12).
# - **reduce** is an all-reduce of which only one rank gets the result.
#
# Look at the picture once more: reduce-scatter leaves one part on each rank, and with one part on each rank
# all-gather begins. **An all-reduce is a reduce-scatter followed by an all-gather**, and that is how you
# are going to build it.
#
# ## The obvious way: everyone to rank 0
#
# Here is an all-reduce that a first attempt would make: rank 0 receives every tensor, adds them, and sends
# the sum back.


# %%
def star_all_reduce(x, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        dist.send(x, group_dst=0, group=group)
        dist.recv(x, group_src=0, group=group)
        return
    arriving = torch.empty_like(x)
    for peer in range(1, world_size):
        dist.recv(arriving, group_src=peer, group=group)
        x += arriving
    for peer in range(1, world_size):
        dist.send(x, group_dst=peer, group=group)


def on_ranks(all_reduce, numel, group):
    """Call an all-reduce on a tensor that holds rank + 1 everywhere, and return what
    it holds afterwards.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    x = torch.full((numel,), dist.get_rank(group) + 1.0, device=device)
    all_reduce(x, group)
    return x.cpu()


star = labkit.launch(on_ranks, star_all_reduce, 2**18, ranks=4)
print("each rank holds", [x[0].item() for x in star.results], "(1 + 2 + 3 + 4 = 10)")
draw_steps(star, row_titles=["to rank 0", "from rank 0"])

# %% [markdown]
# The values are right. But there is one arrow in each picture: rank 0's link carries $2(n-1)S$ bytes, one
# message after the other, while the links of the others idle. With 4 ranks that is bad. With 1,000 it is a
# queue of 1,998 whole tensors.
#
# ## A ring: everyone works all the time
#
# Cut the tensor into $n$ parts. Put the ranks in a circle; each sends to its right neighbour only and
# receives from its left only.
#
# **Reduce-scatter.** In step $k = 0, 1, \dots, n-2$ rank $r$ sends part $(r-k) \bmod n$ and receives part
# $(r-k-1) \bmod n$, which it adds to its own. The part it just added to is the one it sends next. After
# $n-1$ steps rank $r$ holds the finished sum of part $(r+1) \bmod n$.
#
# **All-gather.** $n-1$ more steps of the same kind, but what arrives is finished, so it replaces instead of
# being added.
#
# That is $2(n-1)$ steps of $S/n$ bytes: every rank sends $2\frac{n-1}{n}S$ bytes, less than twice its
# tensor **whatever $n$ is**, and all links are busy in every step (Patarasuk and Yuan 2009; the ring is
# what NCCL uses for large tensors).
#
# ### Predict
# A tensor of 1 MiB on 4 ranks. **How many KiB does each rank send in all, in the ring?** (In the star, rank
# 0 sends 3,072.)

# %% predict="ring-kib"
your_guess_kib = ...

# %% [markdown]
# ### Exercise: ring all-reduce
# * **Calls**: point-to-point only, `send`, `recv`, `isend`, `irecv` or `batch_isend_irecv`, in the tensor's
#   own dtype. Wait for each that you start. $n$ can be any number from 1.
# * **The tensor** can have any shape and any dtype that adds up. It need not be contiguous: it may be a
#   transposed view on one rank and not on the next, and what lies between its elements stays as it is. Its
#   size need not be a multiple of $n$, and it may have no elements at all.
# * **Bytes**: let $N$ be the number of elements. A message has at most $\lceil N/n \rceil + n$ of them. In
#   all, a rank sends no more than $2N$ elements or, if that is more, $2(n-1)\lceil N/n \rceil$. With few
#   elements some parts are empty: for such a part send an empty message, or none.
#
# Mind the first step: if every rank calls `send` and only then `recv`, who receives?
#
# <details><summary>What a check compares, here and in all lessons</summary>Your code runs on real ranks, with
# numbers drawn for it; grading adds cases of the same kinds with other sizes. Every rank's answer is
# compared: shape, dtype, and values. Values may be off by 10<sup>-9</sup> in float64, 10<sup>-4</sup> in
# float32, 4&middot;10<sup>-3</sup> in float16 and 2&middot;10<sup>-2</sup> in bfloat16, times the largest
# number expected (or 1, if that is more); integers not at all. Where less is asked, the exercise says so.
# Gradients are compared for every parameter on every rank, weights after two steps of plain SGD.
# What a rank sends is counted in calls, and in bytes of its own tensors. Send with the functions of
# <code>torch.distributed</code>: if your code goes past them (functional collectives, DTensor), or starts
# threads of its own, a person has to look at it. Ranks need not be equally fast: one may come a moment later,
# and what your function has sent may be overwritten once it has returned. A function may be called again,
# with a tensor that held other numbers before. You may add whatever your code needs: helper functions,
# attributes, further classes, tables of numbers and texts. A value that a call makes outside of all functions
# is not collected (the check names it): make it in the function that uses it. Any other way to the same
# result is as good, as long as nothing that a property names is broken.</details>
# <details><summary>Hint 1: cutting</summary><code>x.contiguous().view(-1).tensor_split(n)</code> gives n
# views, some one element longer, some perhaps empty. Is what you cut x's own memory? For which tensors is
# it not, and what do you then have to do at the end?</details>
# <details><summary>Hint 2: sending and receiving at once</summary>Start the send with <code>isend</code>,
# receive, then <code>wait()</code> for the send. On GPUs, hand both to <code>dist.batch_isend_irecv</code>,
# which lets NCCL run them together.</details>
# <details><summary>Hint 3: one loop</summary>Both halves send part (r - k) mod n in step k, if k goes on
# counting to 2(n-1). Only what you do with what arrives differs.</details>


# %% exercise="00.ring-all-reduce" difficulty=3 minutes=30
def ring_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Overwrite `x` on every rank of `group` with the sum of all ranks' `x`, by
    messages around a ring.

    x: any shape and dtype, the same on every rank; any layout, which may be another
        one on each. Changed in place; nothing is returned.
    Each rank sends 2(n-1) messages of about 1/n of the tensor, all to its right neighbour.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    flat = x.contiguous().view(-1)  # x's own memory if x is contiguous, a copy otherwise
    parts = flat.tensor_split(world_size)
    buffer = torch.empty_like(parts[0])  # the first part is the largest
    for step in range(2 * (world_size - 1)):
        adding = step < world_size - 1
        outgoing, part = parts[(rank - step) % world_size], parts[(rank - step - 1) % world_size]
        incoming = buffer[: part.numel()] if adding else part
        send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=right)
        receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        if adding:
            part += incoming
    if not x.is_contiguous():
        x.copy_(flat.view_as(x))
    ### END SOLUTION


# %% [markdown]
# Run it on 4 ranks and look at the messages your ranks sent. The tensor of this run is marked: a letter
# tells which part a message carried, and coloured squares whose numbers were in it.

# %%
target("00-ring-steps")

# %%
marked = labkit.launch(carried_messages, ring_all_reduce, ranks=4)
draw_steps(marked, row_titles=["reduce-scatter", "all-gather"], contents=marked.results)

# %% [markdown]
# You should see two rows of three steps with four arrows each. In the upper row each part collects one more
# colour at every step; in the lower row finished parts go round. Follow part A from rank 0 until it is
# whole, and on until everyone has it.

# %%
ring = labkit.launch(on_ranks, ring_all_reduce, 2**18, ranks=4)
print("each rank holds", [x[0].item() for x in ring.results])
prediction("KiB that each rank sends", your_guess_kib, bytes_sent(ring)[0] / 1024)

# %% [markdown]
# The same sum by both ways. The star makes one rank do all the sending; the ring shares it out.

# %%
target("00-bytes-sent")

# %%
draw_bytes_sent({"star": star, "ring": ring})

# %% check="00.ring-all-reduce"
# Numbers: x holds the sum on every rank. Mechanism: one neighbour, 2(n-1) messages of
# about S/n bytes, no collective called. Robustness: 1 to 4 ranks, subgroups, sizes that
# do not divide, integers and bfloat16, views, and tensors of megabytes.
labkit.check("00.ring-all-reduce", ring_all_reduce)

# %% [markdown]
# ## What it costs
#
# A message of $m$ bytes takes $\alpha + m\beta$ seconds: $\alpha$ is the **latency**, paid by an empty
# message too, and $1/\beta$ is the link's **bandwidth** in bytes per second. This is the alpha-beta model
# (Hockney 1994). It is crude, and it is right often enough to design with. In the ring all ranks send at
# the same time, so a step takes as long as one message.
#
# Of how many steps, of how many bytes? You drew them above.
#
# ### Exercise: the time of an all-reduce
# Write the formula. With $n = 1$ there is nobody to talk to. Fewer than one rank is a `ValueError`, and so
# are negative bytes, on a single rank too. Nothing is rounded.
#
# <details><summary>Hint</summary>Check yours against a case you can do in your head: n = 2, beta = 0. How
# often does each rank send?</details>


# %% exercise="00.all-reduce-seconds" difficulty=1 minutes=5
def all_reduce_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Seconds that a ring all-reduce takes in the alpha-beta model.

    num_bytes: S, bytes of the tensor on one rank. world_size: n.
    alpha: seconds per message. beta: seconds per byte. ValueError if n < 1 or S < 0.
    """
    ### BEGIN SOLUTION
    if world_size < 1 or num_bytes < 0:
        raise ValueError(f"expected world_size >= 1 and num_bytes >= 0, found {world_size} and {num_bytes}")
    steps = 2 * (world_size - 1)
    return steps * (alpha + num_bytes / world_size * beta)
    ### END SOLUTION


# %% check="00.all-reduce-seconds"
# Mechanism: each of the two terms alone. Numbers: both together (grading asks for other
# values than these).
# Robustness: n = 1, S = 0, bad arguments.
labkit.check("00.all-reduce-seconds", all_reduce_seconds)

# %% [markdown]
# ### Predict
# A tensor of 4 MiB is 4,096 times larger than one of 1 KiB. **How many times longer does its all-reduce
# take on this machine, with 4 ranks?**

# %% predict="ratio"
your_guess_ratio = ...


# %%
def time_all_reduces(all_reduce, sizes, group):
    """For each size in bytes, the seconds of 12 all-reduces as this rank saw them,
    after four to warm up.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    tensors = [torch.zeros(size // 4, device=device) for size in sizes]
    return [[timed(all_reduce, x, group) for _ in range(16)][4:] for x in tensors]


def timed(all_reduce, x, group):
    import time

    dist.barrier(group)  # all start together, so that nobody's lateness is counted as communication
    start = time.perf_counter()
    all_reduce(x, group)
    if x.is_cuda:
        torch.cuda.synchronize()  # NCCL's calls return before they are done
    return time.perf_counter() - start


def fastest(job):
    """For each size the seconds of the fastest, least disturbed run. A run is as slow
    as its slowest rank.
    """
    return [min(map(max, zip(*runs_by_rank, strict=True))) for runs_by_rank in zip(*job.results, strict=True)]


sizes = [2**k for k in range(10, 25, 2)]
ours = fastest(labkit.launch(time_all_reduces, ring_all_reduce, sizes, ranks=4, record=False))
prediction("4 MiB over 1 KiB", your_guess_ratio, ours[sizes.index(2**22)] / ours[0])

# %% [markdown]
# Small tensors all take about the same time: they are made of latency. Large ones take time in proportion
# to their bytes. Between them lies the size at which both terms are equal. Fit $\alpha$ and $\beta$ to your
# measurements, and draw **your formula** with them.

# %%
link = fit_alpha_beta(sizes, ours, world_size=4)
print(f"alpha = {link.alpha * 1e6:.0f} µs a message, 1/beta = {link.bandwidth / 1e9:.2f} GB/s")
draw_times(
    {"your ring, 4 ranks": (sizes, ours)},
    model=lambda size: all_reduce_seconds(size, 4, link.alpha, link.beta),
    model_label=f"your formula, alpha = {link.alpha * 1e6:.0f} µs, 1/beta = {link.bandwidth / 1e9:.2f} GB/s",
)

# %% [markdown]
# Two numbers describe eight measurements over four orders of magnitude. Where points leave the line,
# something the model does not know is at work: here, ranks that share the cores and caches of one machine,
# so the "link" is memory and whoever else uses it.
#
# What follows from it holds on any cluster: **many small all-reduces cost latency, one large one costs
# bandwidth**. Lesson 03 packs gradients into buckets for this reason, and lesson 08 chooses what to shard
# by it.
#
# ## Bus bandwidth: a number to compare with the hardware
#
# Someone reports "an all-reduce of 1 GB took 17.5 ms". Is that good? $S/t$ = 57 GB/s is the **algorithm
# bandwidth**. It depends on $n$ even when the links do not, since more ranks mean more bytes a link for the
# same $S$. `nccl-tests`, the tool everyone quotes, therefore multiplies by the bytes that cross a link per
# byte of $S$ and calls the result **bus bandwidth** (nccl-tests, doc/PERFORMANCE.md):
#
# $$B_\text{bus} = \frac{S}{t}\cdot 2\,\frac{n-1}{n} \quad\text{for an all-reduce}$$
#
# For reduce-scatter, all-gather and all-to-all the factor is $\frac{n-1}{n}$, for broadcast and reduce it
# is 1. A ring without latency reaches the bandwidth of its links, for every $n$.

# %%
draw_bytes(
    {
        name: 2**20 * bus_factor(name, 4)
        for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
    },
    label="bytes over each link, S = 1 MiB, n = 4",
)

# %% [markdown]
# ### Exercise: bus bandwidth
# Write the formula. A single rank uses no link, so its bus bandwidth is 0; seconds that are not positive are
# refused there too. Nothing is rounded.


# %% exercise="00.bus-bandwidth" difficulty=1 minutes=5
def bus_bandwidth(num_bytes: float, seconds: float, world_size: int) -> float:
    """The bus bandwidth of an all-reduce in bytes per second, as nccl-tests defines it.

    num_bytes: S, bytes of the tensor on one rank, perhaps 0. The result is 0 for one rank.
    ValueError if seconds <= 0 or world_size < 1.
    """
    ### BEGIN SOLUTION
    if seconds <= 0 or world_size < 1:
        raise ValueError(f"expected seconds > 0 and world_size >= 1, found {seconds} and {world_size}")
    return num_bytes / seconds * 2 * (world_size - 1) / world_size
    ### END SOLUTION


# %% check="00.bus-bandwidth"
# Numbers: bytes per second. Mechanism: the same links give the same number for every n.
# Robustness: n = 1 and bad arguments.
labkit.check("00.bus-bandwidth", bus_bandwidth)

# %%
Table(
    ["S", "your ring", "algorithm bandwidth", "bus bandwidth"],
    [
        [
            f"{s // 1024:,} KiB",
            f"{t * 1e3:.2f} ms",
            f"{s / t / 1e6:,.1f} MB/s",
            f"{bus_bandwidth(s, t, 4) / 1e6:,.1f} MB/s",
        ]
        for s, t in zip(sizes, ours, strict=True)
    ],
)

# %% [markdown]
# The bus bandwidth climbs towards $1/\beta$ as latency matters less and less.
#
# ## When nothing happens: deadlocks
#
# In a **deadlock** ranks wait for what cannot come: each for something that only another waiting rank could
# do, or for a rank that has left. There is no error and no progress, just silence, until after ten minutes
# or more a watchdog ends the job. Three programs follow that deadlock for the three usual reasons. The
# launcher watches what each rank waits in, and says so when no rank can go on. Read its reports: **who
# waits, in which call, on which line, for whom?** Then say what that rank is doing instead.


# %%
def run_and_read(function, *args, ranks):
    """Run a program; if it fails, print the launcher's report. On CPUs, so that it
    hangs alike everywhere.
    """
    try:
        return labkit.launch(function, *args, ranks=ranks, backend="gloo", timeout=20)
    except LaunchError as error:
        print(error)
        return None


# %% [markdown]
# ### Program 1: pass it on
# Every rank wants its left neighbour's tensor.


# %%
def broken_pass_right(x, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(x)
    dist.send(x, group_dst=(rank + 1) % world_size, group=group)
    dist.recv(received, group_src=(rank - 1) % world_size, group=group)
    return received


run_and_read(broken_pass_right, torch.arange(3.0), ranks=4)

# %% [markdown]
# Everyone sends, nobody receives. MPI and NCCL can buffer a small message and let `send` return early, so
# that a program like this works in the test with four numbers and hangs in production with four million.
# gloo waits for the receiver whatever the size, which is kinder.
#
# ### Program 2: nothing to report
# The mean loss over the samples of all ranks. The data ran out on one rank, which has no samples left.


# %%
def broken_mean_loss(losses, group):
    if losses.numel() == 0:
        return torch.zeros(())  # no samples here: nothing to add
    total = torch.stack([losses.sum(), torch.tensor(float(losses.numel()))])
    dist.all_reduce(total, group=group)
    return total[0] / total[1]


def with_uneven_data(mean_loss, group):
    rank = dist.get_rank(group)
    # rank 0: 1 1 1 1, rank 1: 2 2 2 2, rank 2: nothing
    losses = torch.full((4 if rank < 2 else 0,), rank + 1.0)
    return float(mean_loss(losses, group))


run_and_read(with_uneven_data, broken_mean_loss, ranks=3)

# %% [markdown]
# Two ranks wait for a third that has long finished. A collective is a promise by **every** rank of the
# group.
#
# ### Program 3: two groups at once
# Four ranks form a grid of two rows and two columns, and each belongs to a row's group and to a column's
# (lesson 09 trains on such grids). Every rank wants the sum over its row and the sum over its column. To
# use all links at once, half of the ranks begin with the row and half with the column, like the colours of
# a chessboard.


# %%
def broken_row_and_column_sums(x, row_group, column_group):
    row_sum, column_sum = x.clone(), x.clone()
    begin_with_row = (dist.get_rank(row_group) + dist.get_rank(column_group)) % 2 == 0
    if begin_with_row:
        dist.all_reduce(row_sum, group=row_group)
        dist.all_reduce(column_sum, group=column_group)
    else:
        dist.all_reduce(column_sum, group=column_group)
        dist.all_reduce(row_sum, group=row_group)
    return row_sum, column_sum


def on_grid(row_and_column_sums, group):
    rank = dist.get_rank(group)
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # every rank makes every group, its own or not
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = torch.tensor([float(10**rank)])
    return [s.item() for s in row_and_column_sums(x, rows[rank // 2], columns[rank % 2])]


run_and_read(on_grid, broken_row_and_column_sums, ranks=4)

# %% [markdown]
# Each rank takes part in every call it should, and still: rank 0 waits in its row for rank 1, which waits
# in its column for rank 3, which waits in its row for rank 2, which waits in its column for rank 0. Follow
# the report once around.
#
# ### Exercise: repair all three
# Same results, same kind of communication: one message each way in the first, all-reduces of at most 64 bytes
# together in the second, one all-reduce in each group in the third. A rank that is alone in its group need
# not call anybody. Nothing else that differs between ranks may decide *whether* or *in which order* the
# second and the third call collectives.
#
# The first and the third take a contiguous tensor of any shape and of any floating or integer dtype, both the
# same on every rank. The mean is a tensor of shape `[]` in the dtype of the losses, half precision too. It is
# nan or infinite if a loss is. It is right also where the sum of the losses, or their number, is more than
# float16, bfloat16 or float32 holds: float16 ends at 65,504. What all three return has memory of its own,
# each time they are called.
#
# <details><summary>Hint 1</summary>You solved the first one in your ring. A group of one has no neighbours:
# return a copy.</details>
# <details><summary>Hint 2</summary>What does a rank without samples contribute to a sum, and to a count?
# What if nobody has any?</details>
# <details><summary>Hint 3</summary>Any order will do, if it is the same on all ranks.</details>


# %% exercise="00.find-the-deadlock" difficulty=2 minutes=20
def pass_right(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The left neighbour's `x` (rank 0's left neighbour is the last rank), of any
    size. `x` is unchanged.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1:
        return x.clone()
    received = torch.empty_like(x)
    sending = dist.isend(x, group_dst=(rank + 1) % world_size, group=group)
    dist.recv(received, group_src=(rank - 1) % world_size, group=group)
    sending.wait()
    return received
    ### END SOLUTION


def mean_loss(losses: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The mean over the losses of all ranks, on every rank; 0 if no rank has any.

    losses: [samples] of this rank, perhaps none.
    """
    ### BEGIN SOLUTION
    total = torch.stack([losses.double().sum(), torch.tensor(losses.numel(), dtype=torch.float64)])
    dist.all_reduce(total, group=group)
    return (total[0] / total[1].clamp(min=1)).to(losses.dtype)
    ### END SOLUTION


def row_and_column_sums(
    x: torch.Tensor, row_group: dist.ProcessGroup, column_group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of `x` over the ranks of this rank's row, and over those of its column.
    `x` is unchanged.
    """
    ### BEGIN SOLUTION
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=row_group)
    dist.all_reduce(column_sum, group=column_group)
    return row_sum, column_sum
    ### END SOLUTION


# %% [markdown]
# The same three runs with your versions: 1.5 is the mean over eight samples, and rank 3 sits in row [2, 3]
# and column [1, 3].

# %%
runs = {
    "pass_right, from the left": run_and_read(
        lambda group: pass_right(torch.tensor([dist.get_rank(group)]), group).item(), ranks=4
    ),
    "mean_loss": run_and_read(with_uneven_data, mean_loss, ranks=3),
    "row and column sums": run_and_read(on_grid, row_and_column_sums, ranks=4),
}
Table(
    ["program", "what each rank returned"], [[name, str(job and job.results)] for name, job in runs.items()]
)

# %% check="00.find-the-deadlock"
# For each program, numbers: the right values on every rank. Mechanism: it still
# communicates the way it should. Robustness: odd and lone ranks, subgroups and
# megabytes; no samples anywhere, more than float16 holds; grids that are not square.
labkit.check("00.find-the-deadlock", pass_right, mean_loss, row_and_column_sums)

# %% [markdown]
# ## What PyTorch ships
#
# `dist.all_reduce` is one line. Same values? And at what speed?


# %%
def both(group):
    torch.manual_seed(dist.get_rank(group))
    x = torch.randn(1_000_003, dtype=torch.float64)
    mine, theirs = x.clone(), x.clone()
    ring_all_reduce(mine, group)
    dist.all_reduce(theirs, group=group)
    return (mine - theirs).abs().max().item()


job = labkit.launch(both, ranks=4, backend="gloo")
print(f"largest difference: {max(job.results):.1e}")
their_job = labkit.launch(
    time_all_reduces, lambda x, group: dist.all_reduce(x, group=group), sizes, ranks=4, record=False
)
theirs = fastest(their_job)
draw_times({"your ring": (sizes, ours), "dist.all_reduce": (sizes, theirs)})

# %% [markdown]
# The differences are roundings: sums were taken in another order. Both times have a flat part and a slope, as
# $\alpha$ and $\beta$ say. gloo's is a ring too, with a lower floor: its steps are driven in C++, yours in
# Python. NCCL switches to trees where latency counts, since the latency of a tree grows with $\log n$ instead
# of $n$.
#
# ## All of them on one page
#
# To look up later. The six from above, a message, and two more, scatter and gather: what each of four ranks
# holds before and after.


# %%
def nine_collectives(group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = 10.0 * (rank + 1) + torch.arange(float(n))
    nothing = [0.0] * n

    x = mine.clone() if rank == 0 else torch.zeros(n)
    before = x.tolist()
    if rank == 0:
        dist.send(x, group_dst=2, group=group)
    elif rank == 2:
        dist.recv(x, group_src=0, group=group)

    part, parts = torch.zeros(1), list(torch.zeros(n, 1))
    dist.scatter(part, list(mine.split(1)) if rank == 0 else None, group_src=0, group=group)
    dist.gather(mine[rank : rank + 1], parts if rank == 0 else None, group_dst=0, group=group)
    only = [[(number if i == rank else 0.0) for i in range(n)] for number in (part.item(), mine[rank].item())]

    return {
        "send, recv": (before, x.tolist()),
        "scatter": (mine.tolist() if rank == 0 else nothing, only[0]),
        "gather": (only[1], torch.cat(parts).tolist() if rank == 0 else nothing),
    } | six_collectives(group)


draw_collectives(labkit.launch(nine_collectives, ranks=4, backend="gloo").results)

# %% [markdown]
# | call | each rank has, and gets | a rank sends at most | its backward | in lesson |
# |---|---|---|---|---|
# | `send`, `recv` | one has $S$, one other gets it | $S$ | the message back | 02, 04, 05, 11 |
# | `broadcast` | one has $S$, all get it | $S$ | `reduce` | 03 |
# | `reduce` | all have $S$, one gets the sum | $S$ | `broadcast` | |
# | `scatter` | one has $S$, each gets its part | $\frac{n-1}{n}S$ | `gather` | |
# | `gather` | each has a part, one gets $S$ | $\frac1n S$ | `scatter` | |
# | `all_reduce` | all have $S$, all get the sum | $2\frac{n-1}{n}S$ | `all_reduce` | 03, 06 |
# | `reduce_scatter` | all have $S$, each gets a part of the sum | $\frac{n-1}{n}S$ | `all_gather` | 07, 08 |
# | `all_gather` | each has a part, all get $S$ | $\frac{n-1}{n}S$ | `reduce_scatter` | 06, 07, 08 |
# | `all_to_all` | each has $n$ parts, gets one of each rank | $\frac{n-1}{n}S$ | `all_to_all` | 11, 12 |
#
# $S$ is the size of the whole tensor, $n$ the number of ranks, and the third column is that of a ring (direct
# messages for scatter, gather and all-to-all). The fourth: what has to be done to gradients if the call was a
# step of the forward pass, and each rank's loss uses what that rank got. All but `send` and `recv` are called
# by every rank of the group, in the same order. All of them move memory as it lies: hand them contiguous
# tensors.
#
# ## Where this leaves you
#
# You know what a rank is, what each collective does, and you have built the most important one. It moves
# $2\frac{n-1}{n}S$ bytes a rank in $2(n-1)$ steps, and you can say in advance how long that takes. You have
# read three deadlock reports.
#
# **Think about**
#
# 1. Ranks 0 to 7 share a machine with fast links, 8 to 15 another; between the machines the link is ten
#    times slower. How often does each byte of your ring cross the slow link? Could it be less?
# 2. A model's gradients are 100 tensors of 1 MB. With your $\alpha$ and $\beta$: how much time does one
#    all-reduce of 100 MB save?
# 3. Which of your three repairs would a test on *one* rank have shown to be needed?
#
# **To read**
#
# - Thakur, Rabenseifner and Gropp, *Optimization of collective communication operations in MPICH*, 2005, on
#   latency terms.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009.
# - NVIDIA nccl-tests, doc/PERFORMANCE.md.

# %% scoreboard=true
labkit.scoreboard("00")
