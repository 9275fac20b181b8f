# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "10", title: "Tracing: seeing what the ranks do", minutes: 140}
# ---

# %% [markdown]
# # Tracing: seeing what the ranks do
#
# A step takes 60 milliseconds, and by your arithmetic 25 would do. **Which rank spends the rest, and on
# what: communication that nothing hides, waiting for somebody, or nothing at all?** Until now you drew what
# you expected to see. In this lesson you do not know what is wrong, and find it.
#
# **You need** buckets and overlap (lesson 03), the stand-in devices (lesson 02), MFU (lesson 01). **You
# will have built** the four numbers that sum up a trace, a repair for each of three slow programs, and a
# training program that is as fast as you can make it. About 140 minutes: two sittings, the second from
# *Three slow programs* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from IPython.display import display
from torch import Tensor, nn
from torch.profiler import profile, record_function, schedule

import labkit
from labkit import devices
from labkit.model import Transformer, explicit_attention
from labkit.record.current import current_recorder
from labkit.record.journal import Journal
from labkit.record.matching import everybody_came, meetings
from labkit.record.replay import replay
from labkit.show import Picture, Table, draw_breakdown, draw_timeline, new_figure, prediction
from labkit.show.measured import measured_on_a_gpu
from labkit.show.target import target
from labkit.show.utilisation import draw_utilisation
from labkit.theory.flops import train_step_flops, utilization
from labkit.theory.hardware import GPU
from labkit.theory.models import ModelConfig, gpt
from labkit.theory.units import binary_text

# %load_ext labkit

# %% [markdown]
# ## A run to look at
#
# Four ranks train a small net, data-parallel: forward, backward, one all-reduce for all gradients, step.
# `labkit.span` names stretches of time; the recorder adds every collective and the memory.


# %%
def small_net(width: int = 192, layers: int = 4) -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def watched_training(rows_of_rank: Sequence[int], steps: int, group: dist.ProcessGroup) -> None:
    """Steps in which each rank has its own number of rows."""
    rank, model = dist.get_rank(group), small_net()
    for _ in range(steps):
        x = torch.randn(rows_of_rank[rank], 192)
        with labkit.span("step", "step"):
            with labkit.span("forward", "forward"):
                loss = model(x).square().mean()
            with labkit.span("backward", "backward"):
                loss.backward()
                flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat, group=group)
            with labkit.span("optimizer", "optimizer"), torch.no_grad():
                sizes = [p.numel() for p in model.parameters()]
                for p, summed in zip(model.parameters(), flat.split(sizes), strict=True):
                    p -= 0.1 / dist.get_world_size(group) * summed.view_as(p)
                    p.grad = None


job = labkit.launch(watched_training, [256, 256, 256, 2048], 6, ranks=4, backend="gloo")
draw_timeline(job, start_at="forward")

# %% [markdown]
# Six steps are too many for a picture, and this job is tiny. For more there is a **trace**: a file of events
# that a viewer lets you walk through. `labkit.trace` writes one file for all ranks, on one clock: a process
# a rank, arrows from each send to its receive, and curves for memory and for bytes in flight.

# %%
folder = Path(tempfile.mkdtemp(prefix="lesson-10-"))
labkit.trace(job, folder / "job.json")

# %% [markdown]
# Download it (in JupyterLab: *File > Open from Path*, then *Download*) and drop it on
# [ui.perfetto.dev](https://ui.perfetto.dev). The page works in your browser alone and uploads nothing;
# `chrome://tracing` and [speedscope](https://www.speedscope.app) read the same file. `W` and `S` zoom, `A`
# and `D` go left and right, a click on an all-reduce shows its bytes, its line in your code, and how long it
# waited for others. A cell of `%%ranks` is traced by `%ranks trace cell.json`.
#
# One rank has eight times the rows. Its all-reduce is the *shortest*. **Why? And how long is the step of a
# rank that has an eighth of the work?** Write down how many percent of rank 0's step you think are lost, that
# is, not spent computing.

# %% predict="lost"
your_lost_percent = ...

# %%
draw_breakdown(job, "step", warm_up=1)

# %% [markdown]
# Four kinds of time, and together they are the step. You will write the functions behind this picture.
#
# ## What torch.profiler sees
#
# The recorder knows calls and regions. `torch.profiler` knows every operation, and on a GPU every kernel. It
# runs on each rank alone; a run of it has three phases, which `schedule` counts in steps: *wait* (not
# watching), *warm-up* (watching and throwing away: the first watched step is slow by itself), *active*, and
# again from the beginning, `repeat` times. `record_function` does what `labkit.span` does.


# %%
def profiled_training(directory: str, options: dict, steps: int, group: dist.ProcessGroup) -> float:
    """Seconds of an active step; the trace of each rank goes to `directory`."""
    rank, model, marks = dist.get_rank(group), small_net(), []

    def export(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{directory}/rank{rank}.json")

    when = schedule(wait=1, warmup=1, active=steps, repeat=1)
    with profile(schedule=when, on_trace_ready=export, **options) as profiler:
        for _ in range(2 + steps):
            marks.append(time.perf_counter())
            with record_function("forward"):
                loss = model(torch.randn(256, 192)).square().mean()
            with record_function("backward"):
                loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, group=group)
                p.grad = None
            if len(marks) < 2 + steps:
                profiler.step()
        seconds = (time.perf_counter() - marks[2]) / steps
        profiler.step()
    return seconds


quiet = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # the profiler's own messages
profiles = folder / "profiles"
profiles.mkdir()
options = {"profile_memory": True}
labkit.launch(profiled_training, str(profiles), options, 3, ranks=2, backend="gloo", env=quiet)
labkit.trace(profiles, folder / "profiles.json")

# %% [markdown]
# (The warning is torch's: what was in memory before it watched is not in its curves.)
#
# The same function, given a folder, merges what the profiler wrote on each rank; on the command line it is
# `labkit trace FOLDER -o all.json`, also for a training under Slurm (`cluster/slurm/train.py --profile
# FOLDER`). Ranks on several hosts have several clocks: they are put right as you will do it below. What no
# merging can add is what was not recorded: gloo's events do not say who the other end of a message is, so
# arrows between ranks are in the recorder's traces only.
#
# What does watching cost? Shapes, memory and Python stacks can be asked for on top. **How many times as long
# is a step that is watched with Python stacks?**

# %% predict="factor"
your_factor = ...

# %%
asked_for = {
    "nothing more": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "stacks": {"with_stack": True},
}


def bare_training(steps: int, group: dist.ProcessGroup) -> float:
    model = small_net()
    for step in range(2 + steps):
        if step == 2:
            begin = time.perf_counter()
        model(torch.randn(256, 192)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad = None
    return (time.perf_counter() - begin) / steps


bare = labkit.launch(bare_training, 5, ranks=2, backend="gloo", record=False).results[0]
rows = [["not watched", "", 1.0, bare * 1e3, ""]]
for name, options in asked_for.items():
    here = folder / name.replace(" ", "-")
    here.mkdir()
    how = {"ranks": 2, "backend": "gloo", "record": False, "env": quiet}
    seconds = labkit.launch(profiled_training, str(here), options, 5, **how).results[0]
    guess = your_factor if name == "stacks" else ""
    size = binary_text((here / "rank0.json").stat().st_size)
    rows.append([name, guess, seconds / bare, seconds * 1e3, size])
Table(["the profiler records", "your guess", "times as long", "ms a step", "a rank's file, 5 steps"], rows)

# %% [markdown]
# On a shared machine these numbers jump from run to run; the order mostly stays. The cost is per *operation*,
# so a step of few large kernels hardly notices what this one of many tiny ones pays. Two rules follow: watch
# few steps, and never quote the time of a watched step.
#
# ## Exposed communication
#
# Communication costs nothing while something is computed at the same time. What counts is the rest, the
# *exposed* part. Meta's Holistic Trace Analysis reports the other one, the share that is hidden, as
# "communication computation overlap" (`pip install HolisticTraceAnalysis`); on a trace of kernels that both
# can read, its version 0.5.0 and the reference of the next exercise agree to the last digit it prints.
#
# ### Exercise: exposed communication
#
# Two lists of stretches `(begin, end)` of one rank, in any unit, in any order. Calls can be under way at the
# same time, lie inside each other, touch, or last no time, and so can kernels. For how long does something
# communicate while nothing computes? Leave the lists as they are: the caller goes on with them. Either may be
# empty.
#
# <details><summary>Hint 1</summary>A union of stretches: sort them by their beginning; each either reaches
# into the one before, or begins a new one.</details>
# <details><summary>Hint 2</summary>How long is the union of both lists? And of the one?</details>


# %% exercise="10.exposed-communication" difficulty=2 minutes=12
def exposed_communication(
    compute: Sequence[tuple[float, float]], communication: Sequence[tuple[float, float]]
) -> float:
    """How long something of `communication` lasts while nothing of `compute` does.
    Both: (begin, end).
    """

    ### BEGIN SOLUTION
    def covered(stretches: Sequence[tuple[float, float]]) -> float:
        total, reached = 0, float("-inf")
        for begin, end in sorted(map(tuple, stretches)):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    return covered([*compute, *communication]) - covered(compute)
    ### END SOLUTION


# %% [markdown]
# Your function on each rank of the run above, in milliseconds a step; all that computes has a span:


# %%
def exposed_ms(job: labkit.Job, rank: int) -> float:
    compute = [(s.start, s.end) for s in job.spans if s.rank == rank and s.kind != "step"]
    calls = [(c.start, c.end) for c in job.collectives if c.rank == rank and c.end is not None]
    return exposed_communication(compute, calls) * 1e3 / 6


Table(["rank", "exposed, ms a step"], [[rank, exposed_ms(job, rank)] for rank in range(4)])

# %% check="10.exposed-communication"
labkit.check("10.exposed-communication", exposed_communication)

# %% [markdown]
# ## Who is late?
#
# Rank 3 has least communication and is the cause of everybody's. An all-reduce begins when the *last* rank
# has come: whoever came early waits, and the wait looks like communication. So a long all-reduce accuses the
# wrong rank. To find the right one, compare when ranks **came** to the same collective.
#
# That needs one clock. On one machine there is one. Clocks of several nodes differ: by milliseconds if
# somebody takes care (NTP), by hours if nobody does. But the trace itself tells by how much, since all ranks
# **leave** an all-reduce at the same moment, when the result is there. Not quite: now and then a rank is
# woken late, by milliseconds, because its core was busy.
#
# ### Exercise: the straggler
#
# `starts[rank][k]` and `ends[rank][k]` say when the rank came to the $k$-th collective, and left it, by
# **its own** clock. All ranks take part in all of them.
#
# * `clocks_ahead`: by how much each clock is ahead of rank 0's, in the unit of `ends`, seconds or any other:
#   the median over the collectives of the differences of the ends (of an even number the mean of the middle
#   two).
# * `find_stragglers`: for each collective the rank that came last, and how long the others waited for it,
#   all together (in rank-seconds: what you pay for). Of ranks that came at the same moment the lowest.
#
# Moments may be large, such as microseconds counted over days, and differ by less than 1: keep all their
# digits. The lists stay as they are.


# %% exercise="10.straggler" difficulty=3 minutes=15
def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    """Seconds by which each rank's clock is ahead of rank 0's; 0 where there are no collectives."""
    ### BEGIN SOLUTION
    apart = [[mine - first for mine, first in zip(own, ends[0], strict=True)] for own in ends]
    return [median(differences) if differences else 0.0 for differences in apart]
    ### END SOLUTION


def find_stragglers(
    starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    """(who came last, what the others waited together) for each collective."""
    ### BEGIN SOLUTION
    ahead = clocks_ahead(ends)
    moved = [[moment - a for moment in own] for own, a in zip(starts, ahead, strict=True)]
    found = []
    for moments in zip(*moved, strict=True):
        last = max(moments)
        found.append((moments.index(last), sum(last - moment for moment in moments)))
    return found
    ### END SOLUTION


# %%
met = meetings(job.collectives)  # each all-reduce, as its ranks' calls
came_at = [[calls[rank].start for calls in met] for rank in range(4)]
left_at = [[calls[rank].end for calls in met] for rank in range(4)]
Table(
    ["all-reduce", "came last", "the others waited, ms together"],
    [[k, f"rank {rank}", lost * 1e3] for k, (rank, lost) in enumerate(find_stragglers(came_at, left_at))],
)

# %% check="10.straggler"
# Numbers: clocks, the late rank, the cost. Robustness: late wake-ups, clocks that are
# off by hours, ranks that swap roles, one rank, no collectives.
labkit.check("10.straggler", clocks_ahead, find_stragglers)

# %% [markdown]
# ## Where a step goes
#
# ### Exercise: step breakdown
#
# Now all of it. A rank's step goes from `begin` to `end`, and `compute` is as before. Each of `calls` has a
# third number: the moment when the last rank that the call waits for came. (It may be *after* the call's end,
# as with a send that goes into a buffer: then the call waited all its time. It may be *before* the call's
# beginning, as with a message that was there already: then the call communicates all its time, and not
# before.) Every moment of the step belongs to the first of these that is true:
#
# * `compute`: something is computed;
# * `exposed`: some call communicates, which it does from when the last rank came;
# * `waiting`: some call waits for the last rank;
# * `idle`: none of these.
#
# What lies outside the step does not count; what reaches into it counts with that part. The four add up to
# the step. The lists stay as they are: they hold the other steps too. Either may be empty.
#
# <details><summary>Hint</summary>Cut everything to the step first. Then each part is a difference of two
# unions, of the kind you have.</details>


# %% exercise="10.step-breakdown" difficulty=3 minutes=15
def step_breakdown(
    begin: float,
    end: float,
    compute: Sequence[tuple[float, float]],
    calls: Sequence[tuple[float, float, float]],
) -> dict[str, float]:
    """{"compute", "exposed", "waiting", "idle"}: how long each was. calls: (begin,
    end, last rank came).

    Raises ValueError if the step ends before it begins.
    """
    ### BEGIN SOLUTION
    if end < begin:
        raise ValueError(f"expected a step that ends after its beginning, got {begin} to {end}")

    def inside(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        cut = [(max(b, begin), min(e, end)) for b, e in stretches]
        return [(b, e) for b, e in cut if b < e]

    computing = inside((b, e) for b, e in compute)
    moving = inside((max(b, came), e) for b, e, came in calls)
    waiting = inside((b, min(came, e)) for b, e, came in calls)
    busy = exposed_communication([], computing)
    exposed = exposed_communication(computing, moving)
    waited = exposed_communication([*computing, *moving], waiting)
    return {
        "compute": busy,
        "exposed": exposed,
        "waiting": waited,
        "idle": (end - begin) - busy - exposed - waited,
    }
    ### END SOLUTION


# %%
came_to = everybody_came(job.collectives)  # each call -> when the last of its ranks came


def mean_breakdown(job: labkit.Job, rank: int) -> dict[str, float]:
    """Milliseconds of each part, over all steps but the first."""
    compute = [(s.start, s.end) for s in job.spans if s.rank == rank and s.kind != "step"]
    calls = [(c.start, c.end, came_to[c]) for c in job.collectives if c.rank == rank]
    steps = [s for s in job.spans if s.rank == rank and s.kind == "step"][1:]
    parts = [step_breakdown(s.start, s.end, compute, calls) for s in steps]
    return {name: sum(p[name] for p in parts) / len(parts) * 1e3 for name in parts[0]}


yours = {rank: mean_breakdown(job, rank) for rank in range(4)}
lost = 100 * (1 - yours[0]["compute"] / sum(yours[0].values()))
display(prediction("% of rank 0's step that is not computing", your_lost_percent, round(lost)))
Table(["rank", *yours[0]], [[rank, *parts.values()] for rank, parts in yours.items()], "ms a step")

# %% check="10.step-breakdown"
labkit.check("10.step-breakdown", step_breakdown)

# %% [markdown]
# ## Memory over a step
#
# The profiler also notes every allocation. On the CPU each event carries what is allocated in all; with it
# you see a step breathe: activations pile up in forward, and go one by one in backward while gradients come.


# %%
def memory_of_a_step(directory: str, group: dist.ProcessGroup) -> tuple[list[float], list[float], int]:
    """Milliseconds, bytes and the bytes of the weights, over forward and backward of
    the second step.
    """
    import json

    model, readings = small_net(width=192, layers=8), {}

    def export(profiler: profile) -> None:
        file = Path(directory, "memory.json")
        profiler.export_chrome_trace(str(file))
        for event in json.loads(file.read_text())["traceEvents"]:
            if event["name"] == "[memory]":
                readings[event["ts"]] = event["args"]["Total Allocated"]

    when = schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(schedule=when, on_trace_ready=export, profile_memory=True) as profiler:
        for _ in range(2):
            model(torch.randn(1024, 192)).square().mean().backward()
            for p in model.parameters():
                p.grad = None
            profiler.step()
    times = sorted(readings)
    return (
        [(t - times[0]) / 1e3 for t in times],
        [readings[t] for t in times],
        sum(p.nbytes for p in model.parameters()),
    )


times, held, _ = labkit.launch(memory_of_a_step, str(folder), ranks=1, record=False, env=quiet).results[0]
figure, (axes,) = new_figure(2.4)
axes.step(times, [(num_bytes - held[0]) / 2**20 for num_bytes in held], where="post", color="#009E73")
axes.set(xlabel="milliseconds", ylabel="MiB above the beginning")
Picture(figure, "Memory rises during forward to a peak and falls during backward, layer by layer.")

# %% [markdown]
# One activation of $1024 \times 192$ numbers in fp32 is 0.75 MiB, and each layer keeps one: the output of its
# tanh, which the backward of tanh needs, and that of the next linear layer too. Count the stairs. On a GPU
# ask `torch.cuda.memory._record_memory_history()` before a step and
# `torch.cuda.memory._dump_snapshot("step.pickle")` after it; the file opens in the browser at
# [docs.pytorch.org/memory_viz](https://docs.pytorch.org/memory_viz), with the Python stack of every block.
# (No cell here runs that: there may be no GPU under this page.)
#
# ## Curves while it runs
#
# A trace tells of milliseconds. For hours there are curves: loss, tokens a second, MFU. `SummaryWriter` from
# `torch.utils.tensorboard` writes them, TensorBoard draws them, and both run on the compute node. The way to
# your browser is the tunnel that Jupyter came through: `labkit lab --slurm` prints the one `ssh` command,
# and in a terminal of that JupyterLab
#
#     labkit tensorboard runs
#
# takes a port that is yours alone and an address that nobody guesses, and prints both (cluster/README.md).
# Two people on one node do not meet.
#
# ## How much of the machine?
#
# Shares of a step say what could be won. They do not say whether the computing is done well. MFU does: model
# FLOPs of a step (what the mathematics asks for, lesson 01), over the seconds it took, all GPUs, and their
# **dense** peak. Four ways to get it wrong, each published somewhere: counting what was recomputed (that is
# HFU); the peak with 2:4 sparsity, twice as high; a warm-up step that counts; and a clock that is read when
# the host has *queued* a step, which on a GPU is long before it is done.
#
# ### Exercise: the MFU of a measured step
#
# `seconds_per_step` gets what it needs as arguments: `step()` queues one step, `synchronize()` waits until
# the device has done everything queued so far, `clock()` tells seconds. Run `warm_up` steps that do not
# count, then `steps` that do, one behind the other: wait for the device once before them and once after them,
# not in between. `measured_mfu` is told what the run recomputed; decide what to make of that. `gpu` has
# `dense_bf16` and `sparse_bf16`, FLOP/s of one GPU. Scores count for all $s^2$ positions, as lesson 01's
# `train_step_flops(config, sequence, batch)` has it, and `config` may be a GPT or a Llama, with heads of any
# size. A share above 1 is told as it is: then the seconds are wrong, and somebody should see it.


# %% exercise="10.measured-mfu" difficulty=2 minutes=10
def seconds_per_step(
    step: Callable[[], object],
    synchronize: Callable[[], object],
    clock: Callable[[], float],
    warm_up: int,
    steps: int,
) -> float:
    """Mean seconds of a step on the device, of `steps` steps after `warm_up` that do not count."""
    ### BEGIN SOLUTION
    for _ in range(warm_up):
        step()
    synchronize()
    begin = clock()
    for _ in range(steps):
        step()
    synchronize()
    return (clock() - begin) / steps
    ### END SOLUTION


def measured_mfu(
    config: ModelConfig,
    batch: int,
    sequence: int,
    seconds: float,
    num_gpus: int,
    gpu: GPU,
    recompute: str,
) -> float:
    """The share of the GPUs' dense bf16 peak that the model's own FLOPs make up.

    batch: sequences in a step, over all GPUs. recompute: what the run recomputed, "none",
    "selective" or "full".
    """
    ### BEGIN SOLUTION
    return utilization(train_step_flops(config, sequence, batch), seconds, num_gpus, gpu.dense_bf16)
    ### END SOLUTION


# %% [markdown]
# On this machine: a GPT of 3 layers on one core. Its peak is not on any data sheet; we take the best that a
# large matrix product reaches here.


# %%
def rates_of_this_core(group: dist.ProcessGroup) -> dict[str, float]:
    """FLOP/s of a large product, bytes/s of a large sum, and seconds of a step of a small GPT."""
    torch.set_num_threads(1)
    a, long, other = torch.randn(768, 768), torch.randn(8_000_000), torch.randn(8_000_000)
    config = gpt(3, 256, 8, 1024, 128, dropout=0.0)
    model, ids = Transformer(config), torch.randint(1024, (4, 129))

    def step() -> None:
        model.zero_grad()
        model.loss(ids[:, :-1], ids[:, 1:]).backward()

    def best(call: Callable[[], object], times: int = 5) -> float:
        return min(seconds_per_step(call, lambda: None, time.perf_counter, 1, 1) for _ in range(times))

    return {
        "flops": 2 * 768**3 / best(lambda: a @ a),
        "bytes": 3 * long.nbytes / best(lambda: long + other),
        "step": seconds_per_step(step, lambda: None, time.perf_counter, 2, 4),
    }


core = labkit.launch(rates_of_this_core, ranks=1, record=False).results[0]
this_core = GPU("this core", 0, core["flops"])
small_gpt = gpt(3, 256, 8, 1024, 128, dropout=0.0)
here = measured_mfu(small_gpt, 4, 128, core["step"], 1, this_core, "none")
Table(
    ["on this core", "measured"],
    [
        ["peak", f"{core['flops'] / 1e9:.0f} GFLOP/s"],
        ["memory", f"{core['bytes'] / 1e9:.1f} GB/s"],
        ["a step", f"{core['step'] * 1e3:.0f} ms"],
        ["MFU", f"{here:.0%}"],
    ],
)

# %% check="10.measured-mfu"
labkit.check("10.measured-mfu", seconds_per_step, measured_mfu)

# %% [markdown]
# On an H100 the same two functions gave this, once, for a GPT of 12 layers, $h = 2048$, with 2,048 tokens in
# a sequence, in bfloat16 with fused attention and a fused AdamW. The last column is the clock that does not
# wait for the device.

# %%
on_h100 = measured_on_a_gpu("stepping_h100")
Table(
    ["sequences in a step", "a step", "MFU", "MFU, if the clock does not wait"],
    [
        [
            row["batch"],
            f"{1e3 * row['seconds']:.0f} ms",
            f"{row['mfu']:.0%}",
            f"{row['mfu'] * row['seconds'] / row['queued_seconds']:.0%}",
        ]
        for row in on_h100.found["mfu"]
    ],
    caption=on_h100.about,
)

# %% [markdown]
# The host needs 37 to 40 ms to queue a step, whatever is in it. With one sequence that is all there is: the
# device waits for the host, both clocks agree, and half the machine is lost. With sixteen the host is ahead,
# and a clock that does not wait for the device claims several times the peak.

# %% [markdown]
# ## The roofline of one layer
#
# Why is it not 100%? Some operations wait for memory, not for arithmetic. An operation with $F$ FLOPs that
# moves $M$ bytes has *intensity* $F/M$. At peak $P$ and bandwidth $B$ it cannot be faster than $\min(P,
# B\,F/M)$: a slope and a flat roof (Williams, Waterman and Patterson 2009). Left of the ridge, at $P/B$,
# more FLOP/s on the data sheet help nobody. Below: the operations of one layer at $b = 4, s = 128, h = 256$,
# measured here.

# %%
b, s, h = 4, 128, 256


def operations(tokens: int) -> dict[str, tuple[Callable[[], object], float, float]]:
    """Name -> what to run, its FLOPs, and the bytes it must read and write (fp32)."""
    x, y, w, wide = (torch.randn(*size) for size in ((tokens, h), (tokens, h), (h, 4 * h), (tokens, 4 * h)))
    q, k = (torch.randn(b, 8, s, h // 8) for _ in range(2))
    return {
        "MLP product": (lambda: x @ w, 8 * tokens * h**2, 4 * (5 * tokens * h + 4 * h**2)),
        "attention scores": (
            lambda: q @ k.transpose(-2, -1),
            2 * b * s * s * h,
            4 * (2 * b * s * h + 8 * b * s * s),
        ),
        "GeLU": (lambda: F.gelu(wide), 8 * wide.numel(), 8 * wide.numel()),
        "LayerNorm": (lambda: F.layer_norm(x, (h,)), 8 * x.numel(), 8 * x.numel()),
        "residual": (lambda: x + y, x.numel(), 12 * x.numel()),
    }


def measured_operations(group: dist.ProcessGroup) -> dict[str, tuple[float, float]]:
    """Name -> intensity, FLOP/s."""
    torch.set_num_threads(1)
    found = {}
    for name, (call, flops, num_bytes) in operations(b * s).items():
        seconds = min(seconds_per_step(call, lambda: None, time.perf_counter, 3, 20) for _ in range(5))
        found[name] = (flops / num_bytes, flops / seconds)
    return found


points = labkit.launch(measured_operations, ranks=1, record=False).results[0]
figure, (axes,) = new_figure(3.2)
intensities = sorted([*(0.03 * 2**n for n in range(14)), core["flops"] / core["bytes"]])
roof = [min(core["flops"], core["bytes"] * i) / 1e9 for i in intensities]
axes.plot(intensities, roof, color="#222222", label="roofline of this core")
for (name, (intensity, rate)), mark in zip(points.items(), "os^Dv", strict=True):
    axes.plot(intensity, rate / 1e9, mark, label=name)
axes.set(xscale="log", yscale="log", xlabel="FLOPs a byte", ylabel="GFLOP/s")
axes.legend(frameon=False, fontsize=8)
Picture(figure, "The matrix products lie under the flat roof; GeLU, LayerNorm and the residual on the slope.")

# %% [markdown]
# (Points above the slope are honest: these tensors are small enough for the core's caches, which are faster
# than the memory. Those of a large model's layer fit into no cache, a GPU's included.)
#
# ## Three slow programs
#
# Each of the next three works, and has one thing wrong with it that costs most of its time. Look at the trace
# before you look at the code. You are graded on two things: the numbers stay what they were, and the cause is
# gone. The cause is looked for in the order of what was done, in counts and in bytes, not by the clock, which
# tells little on a shared machine. All parameters of all models here are trained; none is frozen.
#
# To see what depends on what, without a clock, there is a `Journal`: it writes down what a rank does, in
# order. `replay` then plays the journals of all ranks on a machine of fixed speeds, the same for everybody:
# 50 GFLOP/s, 20 GB/s of memory, 2 µs for each operation, and links of 1 GB/s and 10 µs. A call begins when
# all its ranks have come and their links are free; a wait ends when the call does. What comes out is a
# record like any other.


# %%
Prepare = Callable[[dist.ProcessGroup], Callable[[], object]]


def replayed(prepare: Prepare, ranks: int) -> labkit.record.files.Record:
    """What the function that `prepare(group)` gives does on the ranks, on the machine
    of fixed speeds.
    """

    def written_down(group: dist.ProcessGroup) -> list:
        run = prepare(group)
        with Journal(current_recorder()) as journal:
            run()
        return journal.acts

    return replay(labkit.launch(written_down, ranks=ranks, backend="gloo", timeout=120).results)


# %% [markdown]
# ### Slow program 1
#
# Data-parallel training that sends gradients in buckets while backward still runs: `GradientBuckets` starts
# a bucket's all-reduce when the last of its gradients is there. So it should overlap.


# %%
class GradientBuckets:
    """Averages gradients over the ranks, bucket by bucket, each as soon as it is complete."""

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], group: dist.ProcessGroup):
        """buckets: every parameter in one of them; the same on every rank."""
        self.group, self.world_size = group, dist.get_world_size(group)
        self.buckets = [list(bucket) for bucket in buckets]
        self.missing = [len(bucket) for bucket in self.buckets]
        self.on_their_way: list[tuple[int, Tensor, dist.Work]] = []
        self.hooks = [
            p.register_post_accumulate_grad_hook(lambda _, number=number: self._ready(number))
            for number, bucket in enumerate(self.buckets)
            for p in bucket
        ]

    def _ready(self, number: int) -> None:
        self.missing[number] -= 1
        if not self.missing[number]:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[number]])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self.on_their_way.append((number, flat, work))

    def wait(self) -> None:
        """Until every gradient is the mean over the ranks."""
        for number, flat, work in self.on_their_way:
            work.wait()
            sizes = [p.numel() for p in self.buckets[number]]
            for p, part in zip(self.buckets[number], flat.split(sizes), strict=True):
                p.grad.copy_(part.view_as(p) / self.world_size)
        self.on_their_way.clear()
        self.missing = [len(bucket) for bucket in self.buckets]


def slow_program_1(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], group: dist.ProcessGroup, learning_rate: float
) -> None:
    averaged = GradientBuckets([list(model.parameters())], group)
    for x, y in batches:
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        averaged.wait()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
    for hook in averaged.hooks:
        hook.remove()


def eight_layers(program: Callable) -> Prepare:
    """Two steps of a program on a net of eight layers."""

    def prepare(group: dist.ProcessGroup) -> Callable[[], object]:
        model, batches = small_net(layers=8), [(rows, rows) for rows in torch.randn(2, 256, 192)]
        return lambda: program(model, batches, group, 0.1)

    return prepare


draw_timeline(replayed(eight_layers(slow_program_1), ranks=4))

# %% [markdown]
# What should you see, and do not? When does the all-reduce begin, and what is computed while it is under
# way?
#
# ### Exercise: slow program 1
#
# Repair it: in each step at least half of the bytes are on their way while backward computes. There is a
# second way to do it badly, one call for each parameter: each pays its latency.
#
# * **Calls.** Make three all-reduces a step or more, and at most half as many as there are parameters, and
#   send every gradient once. Call `torch.distributed`'s own functions, no functional collectives, wait for
#   each call by its `wait()`, and multiply no matrices but those of forward and backward.
# * **The batches** may come from an iterator: go through them once. There may be none.
# * **The model** has six parameters or more, none of them frozen and none with more than a third of the
#   numbers. It may have been trained before, in another group too, and may be trained again: gradients that
#   it comes with count for nothing, and hooks are removed in the end.
#
# <details><summary>Hint</summary>Three to five buckets of about equal bytes. Which gradients come
# first?</details>


# %% exercise="10.slow-program-1" difficulty=2 minutes=10
def program_1(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], group: dist.ProcessGroup, learning_rate: float
) -> None:
    """Data-parallel SGD on the mean squared error; each rank has its own batches. Changes `model`."""
    ### BEGIN SOLUTION
    parameters = list(model.parameters())[::-1]  # as their gradients come
    most, total = min(5, len(parameters) // 2), sum(p.numel() for p in parameters)
    buckets: list[list[nn.Parameter]] = [[]]
    for p in parameters:
        if sum(q.numel() for bucket in buckets for q in bucket) * most >= total * len(buckets):
            buckets.append([])
        buckets[-1].append(p)
    averaged = GradientBuckets(buckets, group)
    for x, y in batches:
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        averaged.wait()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
    for hook in averaged.hooks:
        hook.remove()
    ### END SOLUTION


# %%
target("10-buckets")

# %%
draw_timeline(replayed(eight_layers(program_1), ranks=4))

# %% check="10.slow-program-1"
# Numbers: the weights after several steps. Mechanism: number and bytes of the all-reduces, and what is
# computed between the start of each and its wait. Robustness: another group.
labkit.check("10.slow-program-1", program_1)

# %% [markdown]
# ### Slow program 2
#
# One GPU this time, stood in for as in lesson 02: work queued on it takes its time there while the host goes
# on. The program trains, and keeps the loss of each step. The GPU should be busy all the time; there is
# nothing in the way but copies, which have a link of their own.


# %%
def slow_program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    losses = []
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
        losses.append(loss.item())
    return losses


def on_a_gpu(program: Callable) -> tuple[list, int]:
    """What the device did in eight steps, and how often the host waited for it."""
    with devices.stand_in(1, bytes_each=64 * 2**20, host_link=2e8) as gpus:
        model = nn.Sequential(nn.Linear(64, 64), devices.FixedTime(0.004), nn.Linear(64, 1)).to("cuda:0")
        batches = [(torch.randn(512, 64), torch.randn(512, 1)) for _ in range(8)]
        before = gpus.host_waits
        program(model, batches, torch.device("cuda:0"), 0.1)
        waits = gpus.host_waits - before
        gpus.synchronize()
        return list(gpus.timeline), waits


slow_timeline, slow_waits = on_a_gpu(slow_program_2)
print(f"times the host waited in 8 steps: {slow_waits}")
draw_utilisation({"slow program 2": slow_timeline})

# %% [markdown]
# Grey is time in which the GPU has nothing to do. Who could have given it something? Each wait costs little
# here. On a GPU whose step is a thousand kernels of 10 µs, a host that waits has to queue the next ones from
# nothing, and the gap is the time the host needs for them.
#
# ### Exercise: slow program 2
#
# The same losses and weights, whatever gradients the model comes with. The host waits for the device at most
# once in a call, when all is queued; to ask it in a loop whether something is done is a wait too. Each batch
# is copied once, from pinned memory with `non_blocking=True`. Such a copy takes what is in that memory when
# its turn comes, perhaps long after the host has gone on: leave the memory as it is until the copy is done.
# Batches come as ordinary tensors on the host, of the shapes that the model takes and gives, and can be gone
# through once. The last may have fewer rows, and there may be none. `device` need not be the first.
#
# <details><summary>Hint 1</summary>What makes the host wait: <code>.item()</code>, <code>float()</code>,
# <code>print</code>, <code>.cpu()</code>, and copies to the device from memory that is not pinned, whatever
# <code>non_blocking</code> says. (On the stand-in the number of waits leaves such copies out; the check looks
# at the memory.)</details>
# <details><summary>Hint 2</summary>A loss need not be a number before the end. Keep it where it
# is.</details>


# %% exercise="10.slow-program-2" difficulty=2 minutes=12
def program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    """SGD on the mean squared error of a model on `device`. Returns the loss of each
    step, as floats.
    """
    ### BEGIN SOLUTION
    losses: list[Tensor] = []
    for x, y in batches:
        x, y = (part.pin_memory().to(device, non_blocking=True) for part in (x, y))
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
        losses.append(loss.detach())
    return torch.stack(losses).tolist() if losses else []
    ### END SOLUTION


# %%
target("10-no-waiting")

# %%
timeline, waits = on_a_gpu(program_2)
print(f"times the host waited in 8 steps: {waits}")
draw_utilisation({"slow program 2": slow_timeline, "yours": timeline})

# %% check="10.slow-program-2"
labkit.check("10.slow-program-2", program_2)

# %% [markdown]
# And on an H100: 12 linear layers of 1,024 with 2,048 rows in a batch, four steps, seen by `torch.profiler`.
# (The copies run on the stream that computes, so they are in one row with it.)

# %%
both = ("slow program 2", "yours")
draw_utilisation({f"{name}, on an H100": on_h100.timeline(name) for name in both})

# %%
Table(
    ["", "a step, without the profiler"],
    [[name, f"{1e3 * t:.1f} ms"] for name, t in on_h100.found["seconds_per_step"].items()],
    caption=on_h100.about,
)

# %% [markdown]
# A repair can bring its own cost, and only a measurement tells. Copies from pinned memory take 0.3 ms where
# the others took 0.95, and nothing waits for a loss. But `pin_memory()` itself is work for the host, 8 MB
# copied in its own memory, and while it is at it the device runs out of things to do. Under the profiler each
# took 3.6 ms, half of all the time, and the repaired program looks slower; left alone it takes a third less.
# A `DataLoader` with `pin_memory=True` pins in a thread beside the loop, which is why it has that option.

# %% [markdown]
# ### Slow program 3
#
# Language modelling on documents of many lengths. Every rank knows the step's documents and works on its
# share; one all-reduce adds up the gradients, and the loss is the mean over *all* tokens of *all* ranks.
# Someone sorted the documents by length, for good reasons.


# %%
def slow_program_3(
    model: nn.Module, documents: Sequence[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> None:
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    each = -(-len(documents) // world_size)
    mine = documents[rank * each : (rank + 1) * each]
    total = sum(len(ids) - 1 for ids in documents)
    model.zero_grad()
    for ids in mine:
        (F.cross_entropy(model(ids[:-1]), ids[1:], reduction="sum") / total).backward()
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    )
    dist.all_reduce(flat, group=group)
    with torch.no_grad():
        for p, part in zip(
            model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
        ):
            p -= learning_rate * part.view_as(p)


class BagOfWords(nn.Module):
    """Token ids [s] -> logits [s, V]: as small as a language model can be."""

    def __init__(self, vocabulary: int = 256, width: int = 128):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.up, self.head = nn.Linear(width, 4 * width), nn.Linear(4 * width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(self.tokens(ids))))


def many_documents(program: Callable) -> Prepare:
    """One step on 32 documents, the shortest of 20 tokens and the longest of 485."""

    def prepare(group: dist.ProcessGroup) -> Callable[[], object]:
        torch.manual_seed(0)
        model, documents = BagOfWords(), [torch.randint(256, (20 + 15 * n,)) for n in range(32)]
        return lambda: program(model, documents, group, 0.1)

    return prepare


draw_breakdown(replayed(many_documents(slow_program_3), ranks=4))

# %% [markdown]
# ### Exercise: slow program 3
#
# The weights stay what they were. Gradients that the model comes with count for nothing, as in the slow
# program. No rank predicts more than 1.15 times as many tokens as the ranks do on average, or as the longest
# document asks for, where that is more. (The lengths you are graded on can be divided like that; five equal
# documents on three ranks cannot.) There may be fewer documents than ranks. A document goes through the model
# whole and by itself, one in a call: in most models what comes of a token depends on all tokens before it.
# All ranks come to the same shares without talking: every rank knows all documents, and no rank tells another
# what to do. (Random numbers are not the same on all ranks.) The list of documents stays as it is.
#
# <details><summary>Hint</summary>The longest first, each to the rank that has least so far (Graham 1969:
# never more than 4/3 of the best).</details>


# %% exercise="10.slow-program-3" difficulty=2 minutes=10
def program_3(
    model: nn.Module, documents: Sequence[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> None:
    """One step of SGD on the mean loss over all tokens of `documents`, which are the
    same on every rank.

    Each document is worked on by one rank: `model(ids[:-1])` are the logits for `ids[1:]`.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    shares: list[list[Tensor]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for ids in sorted(documents, key=len, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(ids)
        loads[least] += len(ids) - 1
    total = sum(loads)
    model.zero_grad()
    for ids in shares[rank]:
        (F.cross_entropy(model(ids[:-1]), ids[1:], reduction="sum") / total).backward()
    parameters = list(model.parameters())
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    dist.all_reduce(flat, group=group)
    with torch.no_grad():
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p -= learning_rate * part.view_as(p)
    ### END SOLUTION


# %%
target("10-documents")

# %%
draw_breakdown(replayed(many_documents(program_3), ranks=4))

# %% check="10.slow-program-3"
# Numbers: the weights. Mechanism: tokens of each rank in each step, every document once.
# Robustness: fewer documents than ranks, another group.
labkit.check("10.slow-program-3", program_3)

# %% [markdown]
# ## Make it fast
#
# The last program is a plain one: a small GPT on 4 ranks, each with its rows of every micro-batch. It has no
# single mistake. It does everything at the first moment it can be done.


# %%
def plain_train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parameters, losses = list(model.parameters()), []
    for micro_batches in batches:  # [m, rows, s + 1]
        mean = torch.zeros((), dtype=parameters[0].dtype)
        totals = [torch.zeros_like(p) for p in parameters]
        for ids in micro_batches:
            mine = ids.chunk(world_size)[rank]
            loss = model.loss(mine[:, :-1], mine[:, 1:]) / (world_size * len(micro_batches))
            for total, gradient in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
                dist.all_reduce(gradient, group=group)
                total += gradient
            loss = loss.detach()
            dist.all_reduce(loss, group=group)
            mean += loss
        with torch.no_grad():
            for p, total in zip(parameters, totals, strict=True):
                p -= learning_rate * total
        losses.append(mean.item())
    return losses


def small_gpt_run(program: Callable) -> Prepare:
    """What the check measures: two steps of two micro-batches of sixteen sequences."""

    def prepare(group: dist.ProcessGroup) -> Callable[[], object]:
        torch.manual_seed(0)
        model = Transformer(gpt(4, 48, 4, 64, 24, dropout=0.0), attend=explicit_attention).double()
        batches = list(torch.randint(64, (2, 2, 16, 25)))
        return lambda: program(model, batches, group, 0.1)

    return prepare


plain_record = replayed(small_gpt_run(plain_train), ranks=4)
plain_ms = max(span.end for span in plain_record.timeline) * 1e3 / 2
print(f"{plain_ms:.2f} ms a step on the machine of fixed speeds")
draw_breakdown(plain_record)

# %% [markdown]
# ### Exercise: make it fast
#
# Any plan of this course is fair: fewer calls, larger ones, later ones, behind backward, shards. At the end
# every rank has all of the weights.
#
# * **Batches.** Take each when its step begins, at the earliest when backward of the one before is over (an
#   iterator hands it over then, and once). It has the micro-batches `[m, rows, s + 1]` for all ranks, and
#   `rows` is a multiple of the number of ranks. The next batch may have more or fewer of both, and there may
#   be none.
# * **The model** has no frozen parameters. It may have been trained before, in another group too, and may be
#   trained again, as may another model: gradients that it comes with count for nothing, and hooks are removed
#   in the end.
# * **Calls.** Call `torch.distributed`'s own functions, no functional collectives, and wait for each call by
#   its `wait()`: the machine of fixed speeds knows of no other way. Libraries' own wrappers
#   (DistributedDataParallel, FSDP) are not allowed.
#
# Your score is the time of a step on the machine of fixed speeds: it depends on what your ranks did in which
# order, and not on the computer they did it on. That machine sees what torch does in your program's own
# thread: compute there, the optimizer's step as well. There are no points for speed if more bytes than a
# tenth of the weights' go through NumPy, lists of numbers or another thread.
#
# Points are given for at most 60% and at most 40% of the plain program's time; for at most 12% of a step
# exposed, and 5% waiting or idle; and for holding at most four times the weights' bytes between steps, these
# included. On models and batches of other sizes less can be won: there at most 75% of the plain program's
# time is asked for, and at most 35% exposed. Your instructor may publish a table of scores under names that
# people chose: write one into `ranking_name`, or leave it empty and stay out.
#
# <details><summary>Hint 1</summary>Gradients of several micro-batches add up by themselves in
# <code>.grad</code>. Which of them need to be sent?</details>
# <details><summary>Hint 2</summary>Only the last micro-batch's backward has something to hide communication
# behind.</details>
# <details><summary>Hint 3</summary>The losses need one all-reduce a step, of one number, and nobody is
# waiting for it before the step is over.</details>


# %% exercise="10.make-it-fast" difficulty=4 minutes=25
ranking_name = ""


def train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    """SGD on the mean loss over each batch, [m, rows, s + 1]. Returns the mean loss of each batch."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parameters = list(model.parameters())[::-1]  # about as their gradients come
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)  # gradients add up where they are sent from
    sending: list[dist.Work] = []
    hooks: list = []
    last = False

    def send_when_complete(members: Sequence[nn.Parameter], bucket: Tensor) -> None:
        missing = len(members)

        def ready(_: Tensor) -> None:
            nonlocal missing
            missing -= last
            if last and missing == 0:
                missing = len(members)
                sending.append(dist.all_reduce(bucket, group=group, async_op=True))

        hooks.extend(p.register_post_accumulate_grad_hook(ready) for p in members)

    begin = first = 0
    most = flat.numel() / 5
    for number, _ in enumerate(parameters, start=1):
        end = begin + sum(q.numel() for q in parameters[first:number])
        if end - begin >= most or number == len(parameters):
            send_when_complete(parameters[first:number], flat[begin:end])
            begin, first = end, number

    losses = []
    for micro_batches in batches:
        mean = torch.zeros((), dtype=flat.dtype)
        flat.zero_()
        for number, ids in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            mine = ids.chunk(world_size)[rank]
            loss = model.loss(mine[:, :-1], mine[:, 1:]) / (world_size * len(micro_batches))
            mean += loss.detach()
            if last:
                sending.append(dist.all_reduce(mean, group=group, async_op=True))
            loss.backward()
        for work in sending:
            work.wait()
        sending.clear()
        with torch.no_grad():
            for p in parameters:
                p -= learning_rate * p.grad
        losses.append(mean)
    for hook in hooks:
        hook.remove()
    return [mean.item() for mean in losses]
    ### END SOLUTION


# %%
your_record = replayed(small_gpt_run(train), ranks=4)
your_ms = max(span.end for span in your_record.timeline) * 1e3 / 2


def measured_here(program: Callable, group: dist.ProcessGroup) -> float:
    """Milliseconds a step by the clock."""
    runs = [small_gpt_run(program)(group) for _ in range(4)]
    runs.pop()()
    dist.barrier()
    begin = time.perf_counter()
    for run in runs:
        run()
    return (time.perf_counter() - begin) / (2 * len(runs)) * 1e3


clock = {
    program.__name__: max(
        labkit.launch(measured_here, program, ranks=4, backend="gloo", record=False).results
    )
    for program in (plain_train, train)
}
display(
    Table(
        ["", "on the machine of fixed speeds, ms", "by the clock here, ms"],
        [["plain", plain_ms, clock["plain_train"]], ["yours", your_ms, clock["train"]]],
        "a step",
    )
)
draw_breakdown(your_record)

# %% check="10.make-it-fast"
labkit.check("10.make-it-fast", train)

# %% [markdown]
# ## Where this leaves you
#
# You can say where a step goes, to the millisecond and by name: who computes, what hides and what does not,
# who comes late and what that costs everybody, and how far the computing is from what the machine could do.
# You found three causes that explain most slow training runs (communication that cannot overlap, a host that
# waits, work that is uneven), from their traces.
#
# **Think about**
#
# 1. Your replay lets a collective take all of a link. Two all-reduces of half the size then take as long as
#    one. What would an all-reduce that hides behind backward cost on a GPU, where it uses the same memory
#    and some of the same cores?
# 2. A rank is late in every step, but another one each time. What does the mean over ranks say, and what the
#    maximum? Which of them do you pay for?
# 3. With MFU at 45%, exposed communication at 10% and waiting at 5%: where is the rest?
#
# **To read**
#
# - Meta's [Holistic Trace Analysis](https://hta.readthedocs.io): the same questions on traces of thousands
#   of GPUs.
# - The PyTorch documentation of `torch.profiler`, and of understanding CUDA memory usage.
# - Williams, Waterman and Patterson, *Roofline: an insightful visual performance model for multicore
#   architectures* (CACM 2009).
# - Lin et al., *Understanding stragglers in large model training using what-if analysis* (arXiv 2505.05713).

# %% scoreboard=true
labkit.scoreboard("10")
