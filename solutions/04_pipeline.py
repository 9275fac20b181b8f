# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "04", title: "Pipelines: from naive to GPipe, 1F1B and interleaved", minutes: 165}
# ---

# %% [markdown]
# # Pipelines: from naive to GPipe, 1F1B and interleaved
#
# A model is cut into four stages, a quarter of the layers each, and every stage gets a GPU. The model
# fits now. **But how busy are the four GPUs, and what has to be true for all of them to work at once?**
#
# The picture below is where most people start: one batch goes forward through all stages and back again.
# Every grey stretch is a GPU that waits.
#
# **You need** `send` and `recv` (lesson 00), gradient accumulation (lesson 03), and autograd's `backward`
# with a gradient handed in. **You will have built** three schedules as plain lists, an executor that runs
# any of them on real ranks with the gradients of the unsplit model, and a way to say beforehand how long a
# batch takes and how much every stage has to hold. About 165 minutes: two sittings, the second from *From a
# list to real ranks* on.

# %% tags=["setup"]
# What this lesson imports: run it first
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import labkit
from labkit.model import Transformer
from labkit.pipeline import PipelinePart, TiedWeight, TimedStage, measured_bubble, work_spans
from labkit.show import Table, prediction
from labkit.show.schedule import draw_bars, draw_bubble, draw_in_flight, draw_measured, draw_schedule
from labkit.show.sharding import draw_losses
from labkit.show.target import target
from labkit.theory.models import gpt
from labkit.theory.schedule import Action, Costs, dry_run, read_actions, simulate, zb_h1, zb_h2

# %load_ext labkit

# %%
naive = [read_actions("F0 B0", stage) for stage in range(4)]
draw_schedule(simulate(naive, Costs(forward=1, backward=2)))

# %% [markdown]
# With $p$ stages each GPU works $1/p$ of the time. Some texts blame communication for this. Look again:
# no message costs anything in this picture. The stages *depend on each other*, and with one batch there
# is only one thing to do at a time.
#
# ## A schedule is data
#
# The picture was made from four short lists. An **action** is the forward (F) or backward (B) of one
# micro-batch through one stage, and a **schedule** is, for each rank, the list of its actions in order.
# Nothing else: no sends, no times. What has to be sent follows from the lists, because
#
# - the forward of stage $r$ needs what the forward of stage $r-1$ made, for the same micro-batch;
# - the backward of stage $r$ needs the gradient from the backward of stage $r+1$, and its own forward.

# %%
print(naive[2])
print([str(action) for action in naive[2]])

# %% [markdown]
# Since a schedule is data, it can be tried without a GPU. `simulate` plays it through with given costs.
# `dry_run` plays it without costs, and says who would wait for ever. Below, rank 1 wants to do the
# backward of micro-batch 0 first. Read who is blocked at what, then change rank 1's list until nobody is.

# %%
broken = [
    read_actions("F0 F1 B0 B1", stage=0),
    read_actions("B0 F0 F1 B1", stage=1),
    read_actions("F0 B0 F1 B1", stage=2),
]
for blocked in dry_run(broken):
    print(blocked)

# %% [markdown]
# ## More things to do at a time
#
# The way out is to cut the *batch* as well. A batch of $B$ samples becomes $m$ **micro-batches** that
# follow each other through the stages, as cars do through a factory. The optimizer still steps once,
# after the last backward, so the result is that of the whole batch: the pipeline is **flushed** before
# the weights move.
#
# ### Exercise: cut a batch
# Sizes may differ by one where $m$ does not divide $B$. No sample is lost, none is copied. An $m$ below 1 or
# above $B$ is refused.
#
# <details><summary>Hint</summary>Cut 9 samples into 4. torch.chunk gives three parts; which function lets
# you say how many parts you want?</details>


# %% exercise="04.split-micro-batches" difficulty=1 minutes=5
def split_micro_batches(batch: Tensor, num_micro_batches: int) -> list[Tensor]:
    """Cut a batch along its first dimension into micro-batches whose sizes differ by at most one.

    batch: [samples, ...]. Returns views of it in order, the larger ones first.
    ValueError when there are more micro-batches than samples, or none.
    """
    ### BEGIN SOLUTION
    if not 1 <= num_micro_batches <= len(batch):
        raise ValueError(f"expected 1 to {len(batch)} micro-batches (all samples), got {num_micro_batches}")
    return list(torch.tensor_split(batch, num_micro_batches))
    ### END SOLUTION


# %%
[len(micro_batch) for micro_batch in split_micro_batches(torch.zeros(9, 2), 4)]

# %% check="04.split-micro-batches"
labkit.check("04.split-micro-batches", split_micro_batches)

# %% [markdown]
# ## GPipe: all forwards, then all backwards
#
# GPipe (Huang et al. 2019) is the simplest schedule that keeps stages busy. Every stage does the forwards
# of all micro-batches, and then all backwards. The order of the forwards is free, and so is that of the
# backwards, as long as *every* stage takes the same ones. Many implementations go backwards from the last
# micro-batch.
#
# ### Exercise: GPipe as a list
# Return what one stage does, as a list of `Action`s.
#
# <details><summary>Hint</summary>The list is the same on every stage, but for the stage number in its
# actions.</details>


# %% exercise="04.gpipe-schedule" difficulty=1 minutes=8
def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """What GPipe has stage `stage` do, in order: 2 * num_micro_batches actions of that stage."""
    ### BEGIN SOLUTION
    forwards = [Action("forward", stage, i) for i in range(num_micro_batches)]
    backwards = [Action("backward", stage, i) for i in reversed(range(num_micro_batches))]
    return forwards + backwards
    ### END SOLUTION


# %% [markdown]
# Draw yours. Change the number of micro-batches and watch the grey corners: they stay as they are, while
# the coloured part grows.

# %%
target("04-gpipe")

# %%
gpipe = [gpipe_schedule(stage, num_stages=4, num_micro_batches=8) for stage in range(4)]
draw_schedule(simulate(gpipe, Costs(forward=1, backward=2)))

# %% check="04.gpipe-schedule"
labkit.check("04.gpipe-schedule", gpipe_schedule)

# %% [markdown]
# ## The bubble
#
# The grey is called the **bubble**. Let a forward take $t_f$ and a backward $t_b$ on one stage. Each rank
# *works* $m(t_f+t_b)$. It also waits: in the picture, count how many forwards pass before rank 3 can
# begin, and how many backwards pass after it has ended. The result is the same for every rank,
# $(p-1)(t_f+t_b)$.
#
# **Two definitions** are in use, and they are often confused:
#
# - idle time over *working* time (Narayanan et al. 2021, section 2.2.1);
# - idle time over *all* time (Huang et al. 2019, section 2.3, as an order of magnitude).
#
# The first can be 7 (for $p = 8$ and $m = 1$), the second is always below 1. If the first is $r$, the second
# is $r/(1+r)$.

# %%
draw_bubble(num_ranks=[2, 4, 8, 16], num_micro_batches=[1, 2, 4, 8, 16, 32, 64])

# %% [markdown]
# **Find the mistake.** A lecture says that the bubble "could be negligible when $M > 4K$", with $K$
# stages and $M$ micro-batches. Take the limit it names: $K=4$ and $M=16$. What share of **all** time do
# the GPUs stand idle, in percent?

# %% predict="negligible-bubble"
your_guess_percent = ...

# %%
at_the_limit = simulate([gpipe_schedule(stage, 4, 16) for stage in range(4)], Costs(forward=1, backward=2))
simulated_percent = round(at_the_limit.bubble_fraction * 100, 1)
prediction("percent of all time idle, p = 4, m = 16", your_guess_percent, simulated_percent, "simulated")

# %% [markdown] reveals="negligible-bubble"
# A sixth of four GPUs is not nothing, and relative to working time the same bubble is 18.75%: say which
# one you mean. For large $p$, $m = 4p$ leaves 20% of all time idle. (GPipe could call it negligible
# partly because it recomputes activations, and that work fits into the bubble. Its table of measured
# speed-ups even lies above this model for $M = 4$, so do not use that table to check a formula.)

# %% [markdown]
# ## What GPipe holds
#
# A micro-batch's activations are kept from its forward to its backward. Until then it is **in flight**.
# In GPipe every stage holds all $m$ at the top of the hill. So GPipe asks for two opposite things: many
# micro-batches against the bubble, few against memory. This is also why "a quarter of the layers, so a
# quarter of the memory" is true for weights only.
#
# ## 1F1B: go back as soon as you can
#
# Look at the last stage. It could start the backward of micro-batch 0 right after its forward. 1F1B, also
# called PipeDream-Flush (Narayanan et al. 2020, arXiv 2006.09503; the PipeDream of SOSP 2019 did not
# flush), does that:
#
# 1. **warm-up**: a few forwards, more of them on early stages;
# 2. **steady**: one forward, one backward, in turn;
# 3. **cool-down**: the backwards that are left.
#
# Here it is for three stages and five micro-batches, written out by hand.

# %%
by_hand = [
    read_actions("F0 F1 F2 B0 F3 B1 F4 B2 B3 B4", stage=0),
    read_actions("F0 F1 B0 F2 B1 F3 B2 F4 B3 B4", stage=1),
    read_actions("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4", stage=2),
]
draw_schedule(simulate(by_hand, Costs(forward=1, backward=2)))

# %% [markdown]
# ### Exercise: 1F1B
# How many warm-up forwards does stage $r$ of $p$ need so that its first backward can follow its next
# forward without a wait longer than necessary? And if there are fewer micro-batches than that? Take no more
# than it needs: a longer warm-up ends no sooner, and holds more.
#
# `in_turn` is the part that does not depend on the stage. You will want it again for interleaved stages, so
# the actions that it is handed may be of several stages and in any order. It is handed as many backwards as
# forwards. Both functions return lists.
#
# <details><summary>Hint 1</summary>Count the forwards before the first B in each row above. The last of
# them belongs to the steady phase.</details>
# <details><summary>Hint 2</summary>The steady phase has as many pairs as forwards are left.</details>


# %% exercise="04.one-f-one-b-schedule" difficulty=2 minutes=12
def one_f_one_b_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """What 1F1B has stage `stage` do: warm-up, then forward and backward in turn, then what is left."""
    ### BEGIN SOLUTION
    warm_up = num_stages - stage - 1
    forwards = [Action("forward", stage, i) for i in range(num_micro_batches)]
    backwards = [Action("backward", stage, i) for i in range(num_micro_batches)]
    return in_turn(forwards, backwards, warm_up)
    ### END SOLUTION


def in_turn(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left.

    With a warm_up beyond the forwards: all forwards, then all backwards. The lists are not changed.
    """
    ### BEGIN SOLUTION
    warm_up = min(warm_up, len(forwards))
    actions = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        actions += [forward, backward]
    return actions + backwards[len(forwards) - warm_up :]
    ### END SOLUTION


# %% check="04.one-f-one-b-schedule"
labkit.check("04.one-f-one-b-schedule", one_f_one_b_schedule, in_turn)

# %% [markdown]
# **Before you draw it**: with $p=4$ and $m=8$, GPipe stands idle 27.3% of the time. And 1F1B?

# %% predict="bubble-of-1f1b"
your_guess_percent = ...

# %%
one_f_one_b = [one_f_one_b_schedule(stage, num_stages=4, num_micro_batches=8) for stage in range(4)]
played = {"GPipe": simulate(gpipe, Costs(1, 2)), "1F1B": simulate(one_f_one_b, Costs(1, 2))}
simulated_percent = round(played["1F1B"].bubble_fraction * 100, 1)
prediction("percent of all time idle with 1F1B", your_guess_percent, simulated_percent, "simulated")

# %%
target("04-one-f-one-b")

# %%
draw_schedule(played)

# %% [markdown] reveals="bubble-of-1f1b"
# The same. **1F1B does not shrink the bubble.** It moves parts of it about.

# %% [markdown]
# What 1F1B does change is how many micro-batches a stage holds:

# %%
draw_in_flight(played)

# %% [markdown]
# **Find the mistake.** A slide on 1F1B with four stages says: "in flight at most 4 *(assuming 1B = 2F)*,
# against 8 in GPipe". Suppose a backward takes only as long as a forward. How many micro-batches does
# stage 0 hold then?

# %% predict="in-flight-1b-1f"
your_guess_in_flight = ...

# %%
cheap_backward = simulate(one_f_one_b, Costs(forward=1, backward=1))
on_stage_0 = cheap_backward.peak_in_flight(0)
prediction("micro-batches on stage 0 when 1B = 1F", your_guess_in_flight, on_stage_0, "simulated")

# %% [markdown] reveals="in-flight-1b-1f"
# The assumption has nothing to do with it. The number follows from the *order* of the list, not from how
# long its actions take. (It is 4 because $p = 4$, and it is 4 on the first stage only.)

# %% [markdown]
# Two consequences. The first stage of 1F1B holds $p$ micro-batches of $L/p$ layers each: activations of
# all $L$ layers, **however many stages there are** (Korthikanti et al. 2022, section 4.2.3). And the
# stages are not alike: the first holds $p$ times what the last does, so equal layer counts are not equal
# memory.
#
# ## Interleaved stages: less bubble, more messages
#
# Give every rank $v$ thin stages (**chunks**) in place of one thick one. With $p$ ranks, rank $r$ has the
# stages $r,\ r+p,\ r+2p, \dots$, and a micro-batch goes round the ranks $v$ times. Filling and draining
# now takes $p-1$ *thin* steps, so the bubble is $v$ times smaller (Narayanan et al. 2021, section 2.2.2).
# The price: $v$ times as many messages, and some more in flight.
#
# The order, as Megatron-LM has it: forwards go in **groups of $p$ micro-batches**, each group through
# chunk 0, then chunk 1, and so on, before the next group begins. Backwards likewise, with the chunks in
# reverse. Then warm-up, pairs and cool-down as before, with a warm-up of $2(p-r-1) + (v-1)p$: the first
# group must get through $v-1$ chunks everywhere, and the factor 2 leaves messages time to travel. (Where
# they take none, as in the picture below, $p-r-1$ in place of $2(p-r-1)$ is as fast.) It works when $m$ is a
# multiple of $p$.
#
# ### Exercise: interleaved 1F1B
# Return what one *rank* does, all its chunks in one list of `Action`s; there may be just one chunk. Another
# order or a shorter warm-up is as good, if the batch takes no longer (with messages that take no time) and no
# rank ever holds more chunks than this warm-up and one more.
#
# <details><summary>Hint 1</summary>Make the list of all forwards of the rank first: for group, for stage,
# for micro-batch in group. The backwards differ in one word.</details>
# <details><summary>Hint 2</summary>Then call in_turn. With few micro-batches the warm-up may be longer
# than the list of forwards: in_turn takes that.</details>


# %% exercise="04.interleaved-schedule" difficulty=4 minutes=20
def interleaved_schedule(rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    """What interleaved 1F1B has a rank do. Its stages are rank, rank + num_ranks, rank
    + 2 * num_ranks, ...

    ValueError when num_micro_batches is not a multiple of num_ranks.
    """
    ### BEGIN SOLUTION
    if num_micro_batches % num_ranks:
        raise ValueError(f"expected a multiple of {num_ranks} ranks, got {num_micro_batches} micro-batches")
    stages = range(rank, num_chunks * num_ranks, num_ranks)
    groups = [range(first, first + num_ranks) for first in range(0, num_micro_batches, num_ranks)]
    forwards = [Action("forward", s, i) for group in groups for s in stages for i in group]
    backwards = [Action("backward", s, i) for group in groups for s in reversed(stages) for i in group]
    warm_up = 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks
    return in_turn(forwards, backwards, warm_up)
    ### END SOLUTION


# %%
target("04-interleaved")

# %%
interleaved = [interleaved_schedule(rank, 4, num_micro_batches=8, num_chunks=2) for rank in range(4)]
draw_schedule({"1F1B": played["1F1B"], "interleaved, v = 2": simulate(interleaved, Costs(1 / 2, 2 / 2))})

# %% check="04.interleaved-schedule"
labkit.check("04.interleaved-schedule", interleaved_schedule)

# %% [markdown]
# ### Exercise: micro-batches in flight
# For each of the three schedules, the most that a rank holds. An interleaved rank holds *chunks*: its
# warm-up of $2(p-r-1) + (v-1)p$, and one more, but never more than the $vm$ forwards it has. That is the rule
# for $v=1$ too, where it is more than 1F1B holds. GPipe and 1F1B have one chunk a rank.
#
# <details><summary>Hint</summary>Read 1F1B's numbers off the legend of the picture of what is held. Then
# think of m = 2 on 4 stages.</details>


# %% exercise="04.peak-in-flight" difficulty=2 minutes=10
def peak_in_flight(
    schedule: str, rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int = 1
) -> int:
    """The most forwards of this rank that wait for their backward at once.

    schedule: "gpipe", "1f1b" or "interleaved". Interleaved: chunks, each 1/num_chunks
    of the rank's layers.
    """
    ### BEGIN SOLUTION
    total = num_chunks * num_micro_batches
    if schedule == "gpipe":
        return total
    if schedule == "1f1b":
        return min(num_ranks - rank, total)
    return min(2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks + 1, total)
    ### END SOLUTION


# %%
rows = [
    ["GPipe", *(peak_in_flight("gpipe", rank, 4, 8) for rank in range(4))],
    ["1F1B", *(peak_in_flight("1f1b", rank, 4, 8) for rank in range(4))],
    ["interleaved, v = 2 (chunks)", *(peak_in_flight("interleaved", rank, 4, 8, 2) for rank in range(4))],
]
Table(["forwards open at once", *(f"rank {rank}" for rank in range(4))], rows, caption="p = 4, m = 8")

# %% check="04.peak-in-flight"
labkit.check("04.peak-in-flight", peak_in_flight)

# %% [markdown]
# ### Exercise: the bubble in formulas
# Four short functions, for all three schedules. Which of them have the same bubble, and how much smaller it
# is with $v$ chunks a rank, you have seen above. A backward need not cost twice a forward. A rank that is
# alone waits for nobody: its bubble is 0, and one micro-batch is enough. Interleaved stages take multiples of
# $p$ with one chunk a rank too. The number of micro-batches is an int; nothing else is rounded.
#
# <details><summary>Hint 1</summary>Write the first one. The second follows from r/(1+r).</details>
# <details><summary>Hint 2</summary>For the smallest m you can count upwards, or solve for m. Solved in
# floats, a whole m may come out as 12.000000000000002: that is 12, not 13.</details>


# %% exercise="04.bubble-fraction" difficulty=2 minutes=15
def bubble_over_ideal(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Idle time over working time.

    schedule: "gpipe", "1f1b" or "interleaved". num_chunks: stages a rank, 1 unless interleaved.
    """
    ### BEGIN SOLUTION
    return (num_ranks - 1) / (num_chunks * num_micro_batches)
    ### END SOLUTION


def bubble_fraction(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Idle time over all time, from 0 to 1."""
    ### BEGIN SOLUTION
    ratio = bubble_over_ideal(schedule, num_ranks, num_micro_batches, num_chunks)
    return ratio / (1 + ratio)
    ### END SOLUTION


def batch_seconds(
    schedule: str,
    num_ranks: int,
    num_micro_batches: int,
    forward: float,
    backward: float,
    num_chunks: int = 1,
) -> float:
    """Seconds from the first forward to the last backward.

    forward, backward: seconds one micro-batch takes on one rank, all its chunks together.
    """
    ### BEGIN SOLUTION
    ideal = num_micro_batches * (forward + backward)
    return ideal * (1 + bubble_over_ideal(schedule, num_ranks, num_micro_batches, num_chunks))
    ### END SOLUTION


def fewest_micro_batches(schedule: str, num_ranks: int, most_idle: float, num_chunks: int = 1) -> int:
    """The smallest number of micro-batches with at most `most_idle` of all time idle
    (0 < most_idle < 1). Where it is met exactly, that is enough: with 12 on 4 ranks, 3/15 of
    all time is idle, and that is at most 0.2.

    Interleaved stages take multiples of num_ranks only.
    """
    ### BEGIN SOLUTION
    step = num_ranks if schedule == "interleaved" else 1
    num_micro_batches = step
    while bubble_fraction(schedule, num_ranks, num_micro_batches, num_chunks) > most_idle + 1e-12:
        num_micro_batches += step
    return num_micro_batches
    ### END SOLUTION


# %%
sizes = [
    ("gpipe", 4, 16, 1),
    ("1f1b", 4, 16, 1),
    ("interleaved", 4, 16, 2),
    ("1f1b", 8, 8, 1),
    ("1f1b", 8, 32, 1),
]
rows = [[*size, bubble_over_ideal(*size), bubble_fraction(*size)] for size in sizes]
Table(["schedule", "p", "m", "v", "idle / working", "idle / all"], rows)

# %% check="04.bubble-fraction"
labkit.check("04.bubble-fraction", batch_seconds, bubble_over_ideal, bubble_fraction, fewest_micro_batches)

# %% [markdown]
# Now put your schedules beside published numbers. The Ultra-Scale Playbook (nanotron, section on
# interleaved stages) draws the bubble for $p=8$ relative to working time. Its bars are the formula
# $(p-1)/(vm)$. One bar has no cross, because there is no such schedule: at $m=4$, $v=2$, where $m$ is not a
# multiple of 8.

# %%
bars = {  # v -> m -> bubble
    1: {1: 7, 2: 3.5, 4: 1.75, 8: 0.875, 16: 0.4375, 32: 0.21875},
    2: {4: 0.875, 8: 0.4375, 16: 0.21875, 32: 0.109375},
    4: {8: 0.21875, 32: 0.0546875},
    8: {8: 0.109375, 32: 0.02734375},
}
published = {(m, v): bar for v, of_v in bars.items() for m, bar in of_v.items()}


def simulated_bubble(m: int, v: int) -> float:
    """Idle time over working time on 8 ranks."""
    if v == 1:
        lists = [one_f_one_b_schedule(rank, 8, m) for rank in range(8)]
    else:
        lists = [interleaved_schedule(rank, 8, m, v) for rank in range(8)]
    return simulate(lists, Costs(1 / v, 2 / v)).bubble_over_ideal


names = {(m, v): f"m={m}\nv={v}" for m, v in published}
ours = {names[m, v]: simulated_bubble(m, v) for m, v in published if v == 1 or m % 8 == 0}
draw_bars({names[size]: bar for size, bar in published.items()}, ours, "Bubble for p = 8")

# %% [markdown]
# ## From a list to real ranks
#
# Now run them. An **executor** takes a rank's list and does its actions. For each forward it receives an
# activation (unless it is the first stage), computes, and sends the result on (unless it is the last).
# For each backward it receives the gradient of its output, calls `backward` with it, and sends the
# gradient of its input.
#
# **Find the mistake.** A lecture's code has the comment *"all but last pipeline stage send their input
# grad to prev"*. Which one stage does **not** send the gradient of its input anywhere: `"first"` or
# `"last"`?

# %% predict="who-sends-no-gradient"
your_guess_stage = ...

# %% [markdown]
# You will count it below, in the messages of your own run.
#
# ### Sends that wait
# In 1F1B two neighbours often have something for each other at the same time: an activation one way, a
# gradient the other. `dist.send` returns when the receiver has taken the message. What if both send
# first?


# %%
def both_send_first(group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    mine, theirs = torch.full((4,), float(rank)), torch.empty(4)
    dist.send(mine, group=group, group_dst=1 - rank)
    dist.recv(theirs, group=group, group_src=1 - rank)


try:
    labkit.launch(both_send_first, ranks=2, backend="gloo", timeout=10)
except labkit.LaunchError as error:
    print(error)

# %% [markdown]
# Each waits in `send` for a `recv` that stands behind the other's `send`. A dry run cannot see this: it
# assumes that a message waits in the mail until it is wanted. So your executor has to *make that true*.
# `dist.isend` starts a send and returns at once. Two things to mind:
#
# - the tensor must live, unchanged, until the send is done: keep it, and `wait()` for all sends at the
#   end. It must be contiguous, and so must the one that is received into; what a stage returns need not be;
# - messages between two ranks may be wanted in another order than they were sent. A **tag** of its own
#   for each message keeps them apart.
#
# (This is how it is on gloo and MPI. NCCL knows no tags, and a send occupies the GPU until its receiver
# is there: `torch.distributed.pipelining` and Megatron-LM therefore post sends and receives of a step
# together, as one batch.)
#
# ### Three traps in the gradients
# **What was received is a leaf.** A tensor that came by mail has no history and requires no gradient,
# unless you say so. Forget it, and `x.grad` is `None`.
#
# **The loss is a mean over the batch.** `loss_fn` gives the mean over one micro-batch. Gradients add up
# over micro-batches, so each loss has to be weighted by its share of the samples: $b_i / B$, which is
# $1/m$ only when all are equally large.
#
# **A tied weight is in two places.** GPT's embedding is used by the first stage to look tokens up and by
# the last to score them. Each has a copy and computes *its half* of the gradient. Both need the sum, which is
# taken once, when all of a rank's actions are done (`gradients_ready` has been called by then).

# %% [markdown]
# ### Exercise: run a schedule
# What a rank is handed is a `PipelinePart`: its stages by number, the micro-batches, the loss, and
# `empty_input(stage, micro_batch)`, which has the shape of what will arrive. Read its docstring first:
# `PipelinePart?`, and `TiedWeight?`. Stage $s$ is on rank $s \bmod$ (number of ranks), so neighbours may also
# be the same rank, and where there are more ranks than stages some have none.
#
# `Mail` and `check_list` are suggestions: only `run_schedule` and `train_step` are called from outside.
#
# * **What `check_list` finds**, before anything is sent: an action that is neither forward nor backward (such
#   as a zero-bubble schedule's), a stage that is not here, a micro-batch that does not exist, an action that
#   is there twice, a backward before its forward, and a forward or backward that is missing, also where both
#   of a micro-batch are, all of a stage's, or the whole list on a rank that has stages. The error names the
#   action by its stage and micro-batch, as `str(action)` does.
# * **What it does not look for**: whether stages, this rank's too, go in an order in which each can have its
#   message. That is for `dry_run` to say beforehand, and such lists are not tried here. Nor does a rank look
#   at the lists of others, or tell them of a mistake: where bad lists are tried, every rank has one.
# * **Messages**: each activation and each gradient that goes to another rank is sent once. Nothing else is
#   sent, no shapes either, but the halves of a tied weight. A stage's input gradient is sent back where the
#   stage before is frozen, too.
# * **Memory**: what was sent, an output or a gradient, may be kept until the end, when all sends are waited
#   for. What was received may not: give up an activation after its micro-batch's backward on that stage, and
#   a gradient after the backward that it was for. When `run_schedule` has returned, nothing of the batch is
#   kept but gradients and the loss.
# * **`gradients_ready`** is called for every stage of the rank, a frozen one too, before the rank's next
#   action: whether the stage's last input gradient is sent before or after that is free.
#
# <details><summary>Hint 1</summary>Start with GPipe on two ranks and nothing else. Keep (input, output)
# of each forward in a dict until its backward, and pop it there: what stays in the dict stays in
# memory.</details>
# <details><summary>Hint 2</summary>On the last stage the "output" you keep is the weighted loss, and its
# backward needs no gradient handed in.</details>
# <details><summary>Hint 3</summary>gradients_ready(stage) is for data parallelism. It belongs right after
# the stage's last backward: earlier, and later micro-batches are not in it.</details>
# <details><summary>Hint 4</summary>A rank cannot send to itself: keep such messages in a dict.</details>
# <details><summary>Hint 5, for speed</summary>A message travels while the receiver works, if the receiver has
# asked for it before: expect the next action's message, then do this action.</details>


# %% exercise="04.run-schedule" difficulty=5 minutes=60
class Mail:
    """Messages between stages. Sending never waits, so two ranks can never wait for
    each other's sends.
    """

    def __init__(self, part: PipelinePart, group: dist.ProcessGroup) -> None:
        self.part, self.group = part, group
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self.on_the_way: list[tuple[dist.Work, Tensor]] = []  # a tensor must live until it has left
        self.coming: dict[int, tuple[dist.Work, Tensor]] = {}
        self.to_myself: dict[int, Tensor] = {}

    def tag(self, kind: str, stage: int, micro_batch: int) -> int:
        """A number of its own for what one action makes, so that no message is taken for another."""
        return 2 * (stage * len(self.part.micro_batches) + micro_batch) + (kind == "backward")

    def send(self, made_by: Action, tensor: Tensor, to_stage: int) -> None:
        """Start sending what an action made to the rank that has `to_stage`, and return at once."""
        ### BEGIN SOLUTION
        tensor, to = tensor.detach().contiguous(), to_stage % self.num_ranks
        if to == self.rank:
            self.to_myself[self.tag(*made_by)] = tensor
            return
        work = dist.isend(tensor, group=self.group, group_dst=to, tag=self.tag(*made_by))
        self.on_the_way.append((work, tensor))
        ### END SOLUTION

    def expect(self, made_by: Action, into: Tensor) -> None:
        """Start receiving what an action of another stage makes, and return at once;
        `into` has its shape.

        Does nothing when that message is expected already.
        """
        ### BEGIN SOLUTION
        source, tag = made_by.stage % self.num_ranks, self.tag(*made_by)
        if source != self.rank and tag not in self.coming:
            self.coming[tag] = dist.irecv(into, group=self.group, group_src=source, tag=tag), into
        ### END SOLUTION

    def receive(self, made_by: Action) -> Tensor:
        """Wait for a message that is expected, and return it."""
        ### BEGIN SOLUTION
        if made_by.stage % self.num_ranks == self.rank:
            return self.to_myself.pop(self.tag(*made_by))
        work, tensor = self.coming.pop(self.tag(*made_by))
        work.wait()
        return tensor
        ### END SOLUTION

    def wait_until_sent(self) -> None:
        """Return when every message has left."""
        ### BEGIN SOLUTION
        for work, _ in self.on_the_way:
            work.wait()
        self.on_the_way.clear()
        ### END SOLUTION


def check_list(part: PipelinePart, actions: list[Action]) -> None:
    """ValueError that names the first action of the list that cannot be done, or that is missing."""
    ### BEGIN SOLUTION
    done: set[Action] = set()
    for action in actions:
        kind, stage, micro_batch = action
        if kind not in ("forward", "backward"):
            raise ValueError(f"{action}: {kind} is neither forward nor backward")
        if stage not in part.stages:
            raise ValueError(f"{action}: this rank has stages {sorted(part.stages)}")
        if not 0 <= micro_batch < len(part.micro_batches):
            raise ValueError(f"{action}: there are {len(part.micro_batches)} micro-batches, from 0")
        if action in done:
            raise ValueError(f"{action}: it is there twice")
        if kind == "backward" and Action("forward", stage, micro_batch) not in done:
            raise ValueError(f"{action}: its forward does not come before it")
        done.add(action)
    for stage in part.stages:
        for micro_batch in range(len(part.micro_batches)):
            if Action("backward", stage, micro_batch) not in done:
                raise ValueError(f"backward of micro-batch {micro_batch} on stage {stage} is missing")
    ### END SOLUTION


def run_schedule(part: PipelinePart, actions: list[Action], group: dist.ProcessGroup) -> Tensor | None:
    """Do this rank's actions in order, and add the batch's gradients to the .grad of
    its stages' parameters.

    The gradients are those of the mean loss over all samples of the batch; frozen
    parameters get none: a tied weight, or all of a stage, may be frozen. Returns that
    loss (a scalar tensor without a graph, of any dtype) on the rank of the last stage,
    None elsewhere. What was sent or received has been waited for by then, and what a
    micro-batch brought is given up after its backward. A tied weight gets the sum
    of both halves; its .grad is None or zeros when the batch begins.
    The list and the micro-batches stay as they are. ValueError, naming the action, for a
    list that cannot be done, before any of it is done.
    """
    ### BEGIN SOLUTION
    check_list(part, actions)
    mail, last = Mail(part, group), part.num_stages - 1
    samples = sum(len(target) for _, target in part.micro_batches)
    held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # from a forward to its backward: input, output
    backwards_left = {stage: len(part.micro_batches) for stage in part.stages}
    losses: list[Tensor] = []

    def forward(action: Action) -> None:
        _, stage, i = action
        x, target = part.micro_batches[i]
        if stage > 0:
            x = mail.receive(Action("forward", stage - 1, i))
            x.requires_grad_()
        out = part.stages[stage](x)
        if stage == last:
            out = part.loss_fn(out, target) * (len(target) / samples)
            losses.append(out.detach())
        else:
            mail.send(action, out, to_stage=stage + 1)
        held[stage, i] = x, out

    def backward(action: Action) -> None:
        _, stage, i = action
        x, out = held.pop((stage, i))
        grad = None if stage == last else mail.receive(Action("backward", stage + 1, i))
        if out.requires_grad:  # the first stage's does not where all of the stage is frozen
            out.backward(grad)
        if stage > 0:
            mail.send(action, x.grad, to_stage=stage - 1)
        backwards_left[stage] -= 1
        if backwards_left[stage] == 0:
            part.gradients_ready(stage)

    def expect(action: Action) -> None:
        kind, stage, i = action
        if kind == "forward" and stage > 0:
            mail.expect(Action(kind, stage - 1, i), part.empty_input(stage, i))
        elif kind == "backward" and stage < last:
            mail.expect(Action(kind, stage + 1, i), part.empty_input(stage + 1, i))

    do = {"forward": forward, "backward": backward}
    for number, action in enumerate(actions):
        for soon in actions[number : number + 2]:  # the next one's message travels while this one works
            expect(soon)
        do[action.kind](action)
    mail.wait_until_sent()
    if part.tied is not None and part.tied.parameter.requires_grad:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
    return torch.stack(losses).sum() if losses else None
    ### END SOLUTION


def train_step(
    part: PipelinePart, actions: list[Action], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> Tensor | None:
    """One step of the optimizer with this batch's gradients alone. Returns the loss,
    as run_schedule does.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
    ### END SOLUTION


# %% [markdown]
# ### On the way
# Three steps. **`Mail`, if you use it:** rank 0 sends what two forwards made, and rank 1 asks for the second
# first. It should get 11 and then 10, and both ranks should come to their end.


# %%
def two_samples(stage: nn.Module, group: dist.ProcessGroup) -> PipelinePart:
    """A stage on each of two ranks, and two micro-batches of one sample."""
    batches = [(torch.tensor([[10.0 + i]]), torch.zeros(1, 1)) for i in range(2)]
    own = {dist.get_rank(group): stage}
    return PipelinePart(own, 2, batches, nn.functional.mse_loss, lambda stage, i: torch.empty(1, 1))


def mail_in_another_order(group: dist.ProcessGroup) -> list[float]:
    part, got = two_samples(nn.Identity(), group), []
    mail = Mail(part, group)
    for i in (0, 1) if 0 in part.stages else (1, 0):
        made = Action("forward", 0, i)
        if 0 in part.stages:
            mail.send(made, part.micro_batches[i][0], to_stage=1)
        else:
            mail.expect(made, torch.empty(1, 1))
            got.append(mail.receive(made).item())
    mail.wait_until_sent()
    return got


print("rank 1 got", labkit.launch(mail_in_another_order, ranks=2, backend="gloo").results[1])

# %% [markdown]
# **`check_list`, if you use it:** three lists for a rank that has stage 0, each with its mistake.

# %%
alone = PipelinePart({0: nn.Identity()}, 2, [(torch.zeros(1),) * 2], nn.functional.mse_loss, torch.empty)
forward_0, backward_0 = Action("forward", 0, 0), Action("backward", 0, 0)
for bad in ([backward_0, forward_0], [forward_0], [Action("forward", 1, 0)]):
    try:
        check_list(alone, bad)
        print("no mistake found in", bad)
    except ValueError as error:
        print(error)

# %% [markdown]
# **`run_schedule`, GPipe on two ranks:** the gradient of stage 0's one weight, beside that of a process that
# has the whole model and the whole batch.


# %%
def one_weight() -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 0.5)
    return layer


def gradient_of_stage(group: dist.ProcessGroup) -> float:
    rank, stage = dist.get_rank(group), one_weight()
    run_schedule(two_samples(stage, group), gpipe_schedule(rank, 2, 2), group)
    return stage.weight.grad.item()


in_one_process = nn.Sequential(one_weight(), one_weight())
in_one_process(torch.tensor([[10.0], [11.0]])).square().mean().backward()
print("rank 0:", labkit.launch(gradient_of_stage, ranks=2, backend="gloo").results[0])
print("whole: ", in_one_process[0].weight.grad.item())

# %% check="04.run-schedule"
labkit.check("04.run-schedule", run_schedule, train_step)

# %% [markdown]
# ## Measured above simulated
#
# Time to see your ranks work. The model below has eight small layers, which are cut into four stages, or into
# eight where chunks are interleaved: the same model in every row. Its stages are given a fixed duration:
# `TimedStage` lets a rank's forward take 40 ms and its backward 80 ms, mostly asleep. **A sleep stands for a
# kernel here.** Four ranks on a machine with two cores cannot compute four things at once, but they can
# sleep at once, as four GPUs compute at once. Everything else is real: processes, messages, autograd. Each
# schedule runs three times, and the middle one counts.

# %%
WIDTH, SAMPLES, LAYERS = 16, 24, 8


def make_stages(num_stages: int) -> list[nn.Module]:
    """The whole model, the same for any number of stages, on every rank that calls this."""
    torch.manual_seed(4)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.Tanh()) for _ in range(LAYERS)]
    each = LAYERS // num_stages
    return [nn.Sequential(*layers[s * each : (s + 1) * each]) for s in range(num_stages)]


def make_batch() -> tuple[Tensor, Tensor]:
    """Inputs and targets of one batch."""
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, y


def make_part(
    num_stages: int, num_micro_batches: int, group: dist.ProcessGroup, ms: tuple[float, float] = (0, 0)
) -> PipelinePart:
    """This rank's part. ms: what a forward and a backward of one stage take at least."""
    x, y = (split_micro_batches(whole, num_micro_batches) for whole in make_batch())
    own = range(dist.get_rank(group), num_stages, dist.get_world_size(group))
    return PipelinePart(
        stages={s: TimedStage(stage, *ms) for s, stage in enumerate(make_stages(num_stages)) if s in own},
        num_stages=num_stages,
        micro_batches=list(zip(x, y, strict=True)),
        loss_fn=nn.functional.mse_loss,
        empty_input=lambda stage, i: torch.empty_like(x[i]),
    )


# %%
FORWARD_MS, BACKWARD_MS = 40, 80


def run_on_rank(lists: list[list[Action]], num_chunks: int, group: dist.ProcessGroup) -> float | None:
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    num_micro_batches = 1 + max(action.micro_batch for action in lists[rank])
    ms = (FORWARD_MS / num_chunks, BACKWARD_MS / num_chunks)
    part = make_part(num_ranks * num_chunks, num_micro_batches, group, ms)
    dist.barrier(group=group)  # so that no rank starts early
    loss = run_schedule(part, lists[rank], group)
    return None if loss is None else loss.item()


def middle_of_three(lists: list[list[Action]], num_chunks: int) -> labkit.Job:
    """The run whose bubble is neither the largest nor the smallest."""
    runs = [labkit.launch(run_on_rank, lists, num_chunks, ranks=4, backend="gloo") for _ in range(3)]
    return sorted(runs, key=measured_bubble)[1]


jobs = {
    "GPipe": middle_of_three(gpipe, 1),
    "1F1B": middle_of_three(one_f_one_b, 1),
    "interleaved": middle_of_three(interleaved, 2),
}
seconds = {name: max(span.end for span in work_spans(job)) for name, job in jobs.items()}
simulated = {
    "GPipe": bubble_fraction("gpipe", 4, 8),
    "1F1B": bubble_fraction("1f1b", 4, 8),
    "interleaved": bubble_fraction("interleaved", 4, 8, 2),
}
Table(
    ["schedule", "idle, simulated", "idle, measured", "the batch took", "loss on rank 3"],
    [
        [
            name,
            f"{simulated[name]:.1%}",
            f"{measured_bubble(job):.1%}",
            f"{seconds[name]:.2f} s",
            job.results[3],
        ]
        for name, job in jobs.items()
    ],
    caption="p = 4, m = 8, v = 2 where interleaved; the middle of three runs of each",
)

# %%
target("04-measured")

# %%
draw_measured(jobs["1F1B"], simulate(one_f_one_b, Costs(FORWARD_MS, BACKWARD_MS)))

# %% [markdown]
# And who sent no gradient back? Each rank's messages are in the job's record.

# %%
sent_back = [
    sum(
        call.op == "send" and call.rank == rank and call.peer == rank - 1 for call in jobs["1F1B"].collectives
    )
    for rank in range(4)
]
sends_none = "first" if sent_back[0] == 0 else "last"
Table(
    ["", "your guess", "counted", *(f"rank {rank}" for rank in range(4))],
    [["the stage that sends no input gradient", your_guess_stage, sends_none, *sent_back]],
    caption="and the messages that each rank sent to the stage before it",
)

# %% [markdown]
# What the simulation leaves out, the measurement shows: each message takes a little, and a rank that
# wakes up late makes all that depend on it late. To draw the other two, change both arguments above:
# `jobs["GPipe"]` beside the simulation of `gpipe`, or `jobs["interleaved"]` beside that of `interleaved` with
# `Costs(FORWARD_MS / 2, BACKWARD_MS / 2)`, since a chunk is half a stage.
# Interleaved stages suffer most, because they send twice as many messages for half as much work each; with
# work of this length the smaller bubble should win all the same. Give them 2 ms and 4 ms and look again.
#
# ## With data parallelism
#
# A pipeline can be copied: with four ranks, two pipelines of two stages, each with half of the batch. The
# gradients of a stage are then averaged between its copies, *once*, after its last backward. That is what
# `gradients_ready` is for. Averaging after the first backward, as one does without micro-batches, would
# miss all later ones.


# %%
def two_pipelines(group: dist.ProcessGroup) -> dict[str, Tensor]:
    rank = dist.get_rank(group)
    pipelines = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    copies = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    pipeline, own_copies = pipelines[rank // 2], copies[rank % 2]
    whole = make_part(2, 6, pipeline)
    stages = whole.stages

    def average(stage: int) -> None:
        for parameter in stages[stage].parameters():
            dist.all_reduce(parameter.grad, group=own_copies)
            parameter.grad /= 2

    half = whole.micro_batches[rank // 2 :: 2]  # every second micro-batch
    sizes = [len(x) for x, _ in half]
    part = PipelinePart(
        stages,
        2,
        half,
        whole.loss_fn,
        lambda stage, i: torch.empty(sizes[i], WIDTH, dtype=torch.float64),
        gradients_ready=average,
    )
    run_schedule(part, one_f_one_b_schedule(rank % 2, 2, 3), pipeline)
    return {f"{s}.{n}": p.grad for s, stage in stages.items() for n, p in stage.module.named_parameters()}


def whole_model_gradients(num_stages: int) -> dict[str, Tensor]:
    """One process, one batch, no pipeline."""
    model, (x, y) = nn.Sequential(*make_stages(num_stages)), make_batch()
    nn.functional.mse_loss(model(x), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def largest_difference(found: list[dict[str, Tensor]], expected: dict[str, Tensor]) -> float:
    """Over all ranks and all parameters; every parameter must be there."""
    assert {name for rank in found for name in rank} == set(expected)
    return max((grad - expected[name]).abs().max().item() for rank in found for name, grad in rank.items())


job = labkit.launch(two_pipelines, ranks=4, backend="gloo")
print("largest difference to one process:", largest_difference(job.results, whole_model_gradients(2)))

# %% [markdown]
# ## A real model
#
# Stages of a GPT are not alike: the first also looks tokens up, the last also scores them, and both use one
# table. Below, a GPT of four blocks trains on the bytes of this course's own source code, once in one process
# and once in two stages on two ranks: 1F1B with four micro-batches, and the table tied.

# %%
SEQUENCE, STEPS = 32, 20
CONFIG = gpt(num_layers=4, hidden=32, num_heads=4, vocabulary=256, max_sequence=SEQUENCE, dropout=0.0)


class GPTStage(nn.Module):
    """Some blocks of a transformer. The first stage looks tokens up, the last one scores them."""

    def __init__(self, whole: Transformer, stage: int, num_stages: int):
        super().__init__()
        each = len(whole.blocks) // num_stages
        self.is_first, self.is_last = stage == 0, stage == num_stages - 1
        self.blocks = whole.blocks[stage * each : (stage + 1) * each]
        if self.is_first:
            self.tokens, self.positions = whole.tokens, whole.positions
        if self.is_last:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        """x: ids [b, s] in the first stage, else [b, s, h]. Returns [b, s, h], the
        last stage [b, s, V].
        """
        if self.is_first:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.is_last else x


def text_batch(step: int, samples: int = 16) -> tuple[Tensor, Tensor]:
    """Bytes of labkit's sources and what follows each, [samples, s]: other ones in every step."""
    text = b"".join(path.read_bytes() for path in sorted(Path(labkit.__file__).parent.glob("*.py")))
    begin, length = step * samples * SEQUENCE, samples * SEQUENCE
    ids = torch.tensor(list(text[begin : begin + length + 1]))
    return ids[:-1].view(samples, SEQUENCE), ids[1:].view(samples, SEQUENCE)


def loss_of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def new_gpt() -> Transformer:
    """The same weights on every rank that calls this."""
    torch.manual_seed(6)
    return Transformer(CONFIG)


def train_in_one_process() -> list[float]:
    model = new_gpt()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in range(STEPS):
        ids, targets = text_batch(step)
        optimizer.zero_grad()
        loss = loss_of_tokens(model(ids), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_two_stages(group: dist.ProcessGroup) -> list[float]:
    rank, actions = dist.get_rank(group), one_f_one_b_schedule(dist.get_rank(group), 2, 4)
    stage = GPTStage(new_gpt(), rank, 2)
    table = stage.tokens.weight if rank == 0 else stage.head.weight
    optimizer, losses = torch.optim.SGD(stage.parameters(), lr=0.5), []
    for step in range(STEPS):
        ids, targets = (split_micro_batches(whole, 4) for whole in text_batch(step))
        part = PipelinePart(
            stages={rank: stage},
            num_stages=2,
            micro_batches=list(zip(ids, targets, strict=True)),
            loss_fn=loss_of_tokens,
            empty_input=lambda stage, i: torch.empty(4, SEQUENCE, CONFIG.hidden),
            tied=TiedWeight(table, group),
        )
        loss = train_step(part, actions, optimizer, group)
        losses += [] if loss is None else [loss.item()]
    return losses


in_one = labkit.launch(train_in_one_process, ranks=1).results[0]
in_two = labkit.launch(train_in_two_stages, ranks=2, backend="gloo").results[1]
print(f"losses differ by at most {max(abs(a - b) for a, b in zip(in_one, in_two, strict=True)):.1e}")
draw_losses(in_one, in_two, "two stages, 1F1B")

# %% [markdown]
# ## What PyTorch ships
#
# `torch.distributed.pipelining` has the same parts: a `PipelineStage` is a module that knows its number,
# and a schedule object holds the lists and runs them. Two traps in its interface, both in the source of
# torch 2.13:
#
# - without `loss_fn` a schedule runs **forwards only**. The lecture's example has none;
# - `scale_grads=True`, the default, divides gradients by the number of micro-batches. Do not divide the
#   loss too.
#
# Same model, same batch, your executor beside theirs:

# %%
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B


def our_gradients(lists: list[list[Action]], num_chunks: int, group: dist.ProcessGroup) -> dict[str, Tensor]:
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    part = make_part(num_ranks * num_chunks, 8, group)
    run_schedule(part, lists[rank], group)
    return {
        f"{s}.{n}": p.grad for s, stage in part.stages.items() for n, p in stage.module.named_parameters()
    }


def their_gradients(schedule: type, num_chunks: int, group: dist.ProcessGroup) -> dict[str, Tensor]:
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    total, (x, y) = num_ranks * num_chunks, make_batch()
    modules = {s: m for s, m in enumerate(make_stages(total)) if s % num_ranks == rank}
    stages = [PipelineStage(m, s, total, torch.device("cpu"), group=group) for s, m in modules.items()]
    runner = schedule(
        stages if num_chunks > 1 else stages[0], n_microbatches=8, loss_fn=nn.functional.mse_loss
    )
    inputs = (x,) if rank == 0 else ()
    runner.step(*inputs, target=y if rank == num_ranks - 1 else None)
    return {f"{s}.{n}": p.grad for s, m in modules.items() for n, p in m.named_parameters()}


compared = [
    ("GPipe", gpipe, ScheduleGPipe, 1),
    ("1F1B", one_f_one_b, Schedule1F1B, 1),
    ("interleaved", interleaved, ScheduleInterleaved1F1B, 2),
]
rows = []
for name, lists, schedule, chunks in compared:
    expected = whole_model_gradients(4 * chunks)
    ours = labkit.launch(our_gradients, lists, chunks, ranks=4, backend="gloo")
    theirs = labkit.launch(their_gradients, schedule, chunks, ranks=4, backend="gloo")
    rows.append(
        [name, largest_difference(ours.results, expected), largest_difference(theirs.results, expected)]
    )
Table(
    ["schedule", "ours", "torch.distributed.pipelining"],
    rows,
    caption="Largest difference of any gradient to one process with the whole batch",
)

# %% [markdown]
# ## Zero bubble: to read and to draw
#
# A backward does two things: the gradient of its *input* (I), which the stage before waits for, and the
# gradients of its *weights* (W), which nobody waits for until the optimizer steps. Part them, and W can
# be put where the bubble was (Qi et al. 2023, arXiv 2401.10241). ZB-H1 holds no more than 1F1B's first
# stage does. ZB-H2 holds almost twice as much, and then no rank stands idle between its own first and
# last action.

# %%
costs = Costs(forward=1, backward=2, weight_backward=1)
zero_bubble = {
    "1F1B": simulate(one_f_one_b, costs),
    "ZB-H1": simulate(zb_h1(4, 8), costs),
    "ZB-H2": simulate(zb_h2(4, 8), costs),
}
draw_schedule(zero_bubble)

# %% [markdown]
# The corners of ZB-H2 are still grey. The paper fills them with the *next* batch, and so an early rank
# steps its optimizer before a late rank has finished. What each W needs must then be of its own step: a W
# that slips behind the optimizer's step would work with weights that have moved on. The paper's Table 2,
# beside the simulation:

# %%
p, t_f, t_i, t_w = 4, 1, 1, 1
table_2 = {
    "1F1B": ((p - 1) * (t_f + t_i + t_w), p),
    "ZB-H1": ((p - 1) * (t_f + t_i - t_w), p),
    "ZB-H2": ((p - 1) * (t_f + t_i - 2 * t_w), 2 * p - 1),
}
Table(
    [
        "schedule",
        "bubble in Table 2",
        "idle inside rank 0",
        "activations in Table 2",
        "held, most loaded rank",
    ],
    [
        [name, *paper[:1], run.idle_inside(0), paper[1], max(run.peak_activation(r, 1, 1) for r in range(p))]
        for (name, run), paper in zip(zero_bubble.items(), table_2.values(), strict=True)
    ],
    caption="p = 4, T_F = T_B = T_W = 1; activations in micro-batches of one stage",
)

# %% [markdown]
# ## Where this leaves you
#
# You have three schedules as lists of a few lines, an executor that runs any order a dry run accepts, and
# formulas that say beforehand what a pipeline costs:
#
# | | bubble / working time | held on rank $r$ | messages |
# |---|---|---|---|
# | GPipe | $(p-1)/m$ | $m$ | 1 |
# | 1F1B | $(p-1)/m$ | $\min(m, p-r)$ | 1 |
# | interleaved | $(p-1)/(vm)$ | up to $p + (p-1)/v$ on rank 0 | $v$ times |
#
# A message holds one micro-batch's activations: $b s h$ numbers, for $b$ sequences of $s$ tokens and hidden
# size $h$. For every micro-batch one crosses each boundary, and a gradient as large comes back: not "once",
# as one article has it.
#
# **Think about**
#
# 1. Your batch is fixed at 64 samples. More micro-batches are smaller micro-batches: what gets slower, and
#    where is the best $m$?
# 2. The last stage also has the head, which costs as much as two layers. Where do you take them from?
# 3. With recomputation a backward does the forward again. Which of your formulas change?
#
# **To read**
#
# - Huang et al. 2019 (GPipe), section 2.
# - Narayanan et al. 2021 (Megatron-LM, SC21), section 2.2.
# - Korthikanti et al. 2022, section 4.2.3.
# - Megatron-LM's `core/pipeline_parallel/schedules.py`, and `torch/distributed/pipelining/schedules.py`,
#   where a schedule is data, too.

# %% scoreboard=true
labkit.scoreboard("04")
