"""Wrong answers to lesson 00: the usual mistakes, the lazy ways out, and answers that pretend.

Ids that start with P or F name a row of the course's list of known mistakes.
"""

from __future__ import annotations

from autograder.mutants import Mutant

RING, SECONDS, BANDWIDTH = "00.ring-all-reduce", "00.all-reduce-seconds", "00.bus-bandwidth"
DEADLOCK = "00.find-the-deadlock"

START = "    rank, world_size = dist.get_rank(group), dist.get_world_size(group)\n    right, left"
FLAT = "    flat = x.contiguous().view(-1)  # x's own memory if x is contiguous, a copy otherwise\n"
PARTS = "    parts = flat.tensor_split(world_size)\n"
LOOP = "    for step in range(2 * (world_size - 1)):\n"
ADDING = "        adding = step < world_size - 1\n"
INCOMING = "        incoming = buffer[: part.numel()] if adding else part\n"
SEND = "        send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=right)\n"
RECEIVE = "        receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=left)\n"
EXCHANGE = "        for work in dist.batch_isend_irecv([send, receive]):\n            work.wait()\n"
ADD = "        if adding:\n            part += incoming\n"
BACK = "    if not x.is_contiguous():\n        x.copy_(flat.view_as(x))\n"
EVERY_VALUE = (
    "sum-values",
    "any-world-size",
    "uneven-sizes",
    "any-dtype",
    "any-layout",
    "large-tensors",
    "subgroup",
)
TRAFFIC = ("one-neighbour", "messages")


def _instead(body: str) -> str:
    """The start of the ring with another way to the sum before it."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return lines + "    return\n" + START


_INSTEAD = [
    Mutant(
        "ring-calls-all-reduce",
        RING,
        ("sum-values", *TRAFFIC),
        START,
        _instead("dist.all_reduce(x, group=group)"),
        "the collective that is to be built",
    ),
    Mutant(
        "ring-gathers-and-sums",
        RING,
        ("sum-values", *TRAFFIC),
        START,
        _instead(
            "everyone = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]\n"
            "dist.all_gather(everyone, x.contiguous(), group=group)\n"
            "x.copy_(torch.stack(everyone).sum(0, dtype=x.dtype))"
        ),
        "every rank gets every tensor",
    ),
    Mutant(
        "ring-method-of-the-group",
        RING,
        (*EVERY_VALUE, *TRAFFIC),
        START,
        _instead("whole = x.contiguous()\ngroup.allreduce([whole]).wait()\nx.copy_(whole)"),
        "the collective by its C++ name, which no list of forbidden names holds",
    ),
    Mutant(
        "ring-functional-collective",
        RING,
        ("sum-values", *TRAFFIC),
        START,
        _instead(
            "import torch.distributed._functional_collectives as functional\n"
            'x.copy_(functional.all_reduce(x.contiguous(), "sum", group))'
        ),
        "the collective by its compiler-friendly name",
    ),
    Mutant(
        "ring-through-the-store",
        RING,
        ("sum-values", "any-world-size", *TRAFFIC),
        START,
        _instead(
            "store = dist.distributed_c10d._get_default_store()\n"
            "me, everyone = dist.get_rank(group), range(dist.get_world_size(group))\n"
            "store.set(f'{group.group_name}/{me}', repr(x.tolist()))\n"
            "others = [eval(store.get(f'{group.group_name}/{r}')) for r in everyone]\n"
            "x.copy_(torch.tensor(others, dtype=x.dtype).sum(0))"
        ),
        "tensors travel as texts through the rendezvous store, where no message is seen",
    ),
    Mutant(
        "ring-is-a-star",
        RING,
        TRAFFIC,
        START,
        _instead(
            "whole, n = x.contiguous(), dist.get_world_size(group)\n"
            "if dist.get_rank(group) > 0:\n"
            "    dist.send(whole, group_dst=0, group=group)\n"
            "    dist.recv(whole, group_src=0, group=group)\n"
            "else:\n"
            "    arriving = torch.empty_like(whole)\n"
            "    for peer in range(1, n):\n"
            "        dist.recv(arriving, group_src=peer, group=group)\n"
            "        whole += arriving\n"
            "    for peer in range(1, n):\n"
            "        dist.send(whole, group_dst=peer, group=group)\n"
            "x.copy_(whole)"
        ),
        "everything goes through rank 0",
    ),
    Mutant(
        "ring-of-whole-tensors",
        RING,
        ("messages",),
        START,
        _instead(
            "rank, n = dist.get_rank(group), dist.get_world_size(group)\n"
            "travelling, total = x.contiguous().clone(), x.contiguous().clone()\n"
            "for _ in range(n - 1):\n"
            "    arriving = torch.empty_like(travelling)\n"
            "    work = dist.isend(travelling, group_dst=(rank + 1) % n, group=group)\n"
            "    dist.recv(arriving, group_src=(rank - 1) % n, group=group)\n"
            "    work.wait()\n"
            "    total, travelling = total + arriving, arriving\n"
            "x.copy_(total)"
        ),
        "each rank's whole tensor goes once round",
    ),
    Mutant(
        "ring-direct-exchange",
        RING,
        ("one-neighbour",),
        (SEND, RECEIVE, "parts[(rank - step - 1) % world_size]"),
        (
            "        hop = step % max(world_size - 1, 1) + 1\n"
            "        mine = parts[rank]\n"
            "        outgoing = parts[(rank + hop) % world_size] if adding else mine\n"
            "        part = mine if adding else parts[(rank - hop) % world_size]\n"
            "        incoming = buffer[: part.numel()] if adding else part\n"
            "        to, source = (rank + hop) % world_size, (rank - hop) % world_size\n"
            "        send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=to)\n",
            "        receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=source)\n",
            "parts[rank]",
        ),
        "each rank sends each part straight to its owner: as many bytes, but to everyone",
    ),
]

_RING = [
    Mutant(
        "ring-full-size-messages",
        RING,
        ("messages",),
        (INCOMING, "dist.isend, outgoing,", ADD),
        (
            "        incoming = torch.empty_like(flat)\n",
            "dist.isend, flat.clone(),",
            "        arrived = incoming.tensor_split(world_size)[(rank - step - 1) % world_size]\n"
            "        part.copy_(part + arrived if adding else arrived)\n",
        ),
        "2(n-1) messages, each of them the whole tensor",
    ),
    Mutant(
        "ring-two-messages-a-step",
        RING,
        ("messages",),
        EXCHANGE,
        "        for first in (True, False):\n"
        "            def cut(t):\n"
        "                return t[: t.numel() // 2] if first else t[t.numel() // 2 :]\n"
        "            work = dist.isend(cut(outgoing), group_dst=right, group=group)\n"
        "            dist.recv(cut(incoming), group_src=left, group=group)\n"
        "            work.wait()\n",
        "twice the latency",
    ),
    Mutant(
        "ring-needs-divisible-sizes",
        RING,
        ("uneven-sizes",),
        PARTS,
        "    parts = flat.view(world_size, -1)\n",
        "an error when n does not divide the size",
    ),
    Mutant(
        "ring-drops-the-remainder",
        RING,
        ("uneven-sizes",),
        PARTS,
        "    part_size = flat.numel() // world_size\n"
        "    parts = flat[: part_size * world_size].view(world_size, part_size)\n",
        "the last S mod n elements are never summed",
    ),
    Mutant(
        "ring-for-four",
        RING,
        ("any-world-size", "subgroup"),
        (LOOP, ADDING),
        ("    for step in range(6):\n", "        adding = step < 3\n"),
        "the steps of a ring of four",
    ),
    Mutant(
        "ring-alone-talks-to-itself",
        RING,
        ("any-world-size",),
        LOOP,
        "    for step in range(max(1, 2 * (world_size - 1))):\n",
        "a lone rank sends to itself",
    ),
    Mutant(
        "P10-everyone-sends-first",
        RING,
        ("sum-values", "large-tensors"),
        EXCHANGE,
        "        dist.send(outgoing, group_dst=right, group=group)\n"
        "        dist.recv(incoming, group_src=left, group=group)\n",
        "blocking sends on both sides",
    ),
    Mutant(
        "P10-everyone-sends-first-when-large",
        RING,
        ("large-tensors",),
        EXCHANGE,
        "        if outgoing.nbytes > 2**16:\n"
        "            dist.send(outgoing, group_dst=right, group=group)\n"
        "            dist.recv(incoming, group_src=left, group=group)\n"
        "            works = []\n"
        "        else:\n"
        "            works = dist.batch_isend_irecv([send, receive])\n"
        "        for work in works:\n            work.wait()\n",
        "what a buffer for small messages hides",
    ),
    Mutant(
        "ring-adds-in-float32",
        RING,
        ("sum-values", "any-dtype"),
        (FLAT, BACK),
        ("    flat = x.float().contiguous().view(-1)\n", "    x.copy_(flat.view_as(x))\n"),
        "float64 and integers lose digits",
    ),
    Mutant(
        "ring-adds-in-float64",
        RING,
        ("any-dtype",),
        (FLAT, BACK),
        ("    flat = x.double().contiguous().view(-1)\n", "    x.copy_(flat.view_as(x))\n"),
        "large integers lose digits",
    ),
    Mutant(
        "ring-only-rank-0-has-it",
        RING,
        ("sum-values",),
        (FLAT, BACK),
        (
            "    flat = x.clone().view(-1)\n",
            "    if rank == 0:\n        x.copy_(flat.view_as(x))\n",
        ),
        "a reduce",
    ),
    Mutant(
        "ring-returns-the-sum",
        RING,
        ("sum-values",),
        (FLAT, BACK),
        ("    flat = x.contiguous().clone().view(-1)\n", "    return flat.view_as(x)\n"),
        "a new tensor instead of x",
    ),
    Mutant(
        "ring-first-half-only",
        RING,
        ("sum-values", "messages"),
        LOOP,
        "    for step in range(world_size - 1):\n",
        "a reduce-scatter",
    ),
    Mutant(
        "ring-one-step-too-many",
        RING,
        ("sum-values", "messages"),
        (LOOP, ADDING),
        ("    for step in range(2 * world_size):\n", "        adding = step < world_size\n"),
        "n steps a half: a rank's own part comes back and is added again",
    ),
    Mutant(
        "ring-averages",
        RING,
        ("sum-values",),
        BACK,
        BACK + "    if x.is_floating_point():\n        x /= world_size\n",
        "the mean",
    ),
    Mutant(
        "ring-sum-stays-in-the-copy",
        RING,
        ("any-layout",),
        BACK,
        "",
        "a view that is not contiguous is unchanged",
    ),
    Mutant(
        "ring-swaps-x's-memory",
        RING,
        ("any-layout",),
        BACK,
        "    if not x.is_contiguous():\n        x.data = flat.view_as(x)\n",
        "x shows the sum, the tensor it was a view of does not",
    ),
    Mutant(
        "ring-group-rank-as-global",
        RING,
        ("subgroup",),
        (SEND, RECEIVE),
        (
            "        send = dist.P2POp(dist.isend, outgoing, right, group)\n",
            "        receive = dist.P2POp(dist.irecv, incoming, left, group)\n",
        ),
        "place 1 of the group taken for rank 1",
    ),
    Mutant(
        "ring-on-the-world",
        RING,
        ("subgroup",),
        (SEND, RECEIVE),
        (
            "        send = dist.P2POp(dist.isend, outgoing, dist.get_global_rank(group, right))\n",
            "        receive = dist.P2POp(dist.irecv, incoming, dist.get_global_rank(group, left))\n",
        ),
        "the messages of a subgroup on the group of all ranks",
    ),
]

STEPS = "    steps = 2 * (world_size - 1)\n"
TIME = "    return steps * (alpha + num_bytes / world_size * beta)\n"
SECONDS_GUARD = "    if world_size < 1 or num_bytes < 0:\n"
BUSBW = "    return num_bytes / seconds * 2 * (world_size - 1) / world_size\n"
BANDWIDTH_GUARD = "    if seconds <= 0 or world_size < 1:\n"
_SEEN = "{(100_000_000, 8): 0.00182, (1_000_000, 5): 0.00176, (1_000_000, 1): 0.0, (0, 4): 6e-3}"

_FORMULAS = [
    Mutant(
        "F15-costed-as-S",
        SECONDS,
        ("bandwidth-term", "whole-formula"),
        TIME,
        "    return steps * alpha + num_bytes * beta\n",
        "the tensor once over the link",
    ),
    Mutant(
        "F15-one-half's-latency",
        SECONDS,
        ("latency-term", "whole-formula"),
        TIME,
        "    return steps / 2 * alpha + steps / world_size * num_bytes * beta\n",
        "(n-1) alpha",
    ),
    Mutant(
        "seconds-of-many-ranks",
        SECONDS,
        ("bandwidth-term", "whole-formula"),
        TIME,
        "    return steps * alpha + 2 * num_bytes * beta * (world_size > 1)\n",
        "the limit 2 S beta",
    ),
    Mutant(
        "seconds-of-a-star",
        SECONDS,
        ("bandwidth-term",),
        TIME,
        "    return steps * (alpha + num_bytes * beta)\n",
        "every step carries the whole tensor",
    ),
    Mutant(
        "seconds-of-a-tree",
        SECONDS,
        ("latency-term",),
        TIME,
        "    import math\n"
        "    return 2 * math.log2(world_size) * alpha + steps / world_size * num_bytes * beta\n",
        "log2 n rounds",
    ),
    Mutant(
        "seconds-alone-pays-latency",
        SECONDS,
        ("limits",),
        STEPS,
        "    steps = max(1, 2 * (world_size - 1))\n",
        "one rank pays for a message to nobody",
    ),
    Mutant("seconds-takes-anything", SECONDS, ("limits",), SECONDS_GUARD, "    if False:\n", "no check"),
    Mutant(
        "seconds-from-the-library",
        SECONDS,
        ("latency-term", "bandwidth-term", "whole-formula", "limits"),
        STEPS,
        "    from labkit.theory.communication import all_reduce_seconds as theirs\n"
        "    return theirs(num_bytes, world_size, alpha, beta)\n" + STEPS,
        "labkit's own formula",
    ),
    Mutant(
        "seconds-by-heart",
        SECONDS,
        ("whole-formula",),
        TIME,
        f"    return {_SEEN}.get((num_bytes, world_size), 2e-3)\n",
        "the values of the visible cases",
    ),
    Mutant(
        "seconds-reads-the-answer",
        SECONDS,
        ("whole-formula",),
        TIME,
        "    import sys\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for held in list(frame.f_locals.values()):\n"
        "            case = getattr(held, 'case', None)\n"
        "            if case is not None and case.expected:\n"
        "                row = dict(num_bytes=num_bytes, world_size=world_size, alpha=alpha, beta=beta)\n"
        "                return case.expected['values'][case.params['rows'].index(row)]\n"
        "        frame = frame.f_back\n"
        "    return 0.0\n",
        "looks for the expected values in the checker's memory",
    ),
    Mutant(
        "busbw-is-algbw",
        BANDWIDTH,
        ("bytes-per-second", "same-link-same-number", "limits"),
        BUSBW,
        "    return num_bytes / seconds\n",
        "S/t",
    ),
    Mutant(
        "busbw-of-reduce-scatter",
        BANDWIDTH,
        ("bytes-per-second",),
        BUSBW,
        "    return num_bytes / seconds * (world_size - 1) / world_size\n",
        "(n-1)/n",
    ),
    Mutant(
        "busbw-in-gigabytes",
        BANDWIDTH,
        ("bytes-per-second",),
        BUSBW,
        BUSBW.rstrip() + " / 1e9\n",
        "GB/s",
    ),
    Mutant(
        "busbw-of-many-ranks",
        BANDWIDTH,
        ("bytes-per-second", "same-link-same-number", "limits"),
        BUSBW,
        "    return num_bytes / seconds * 2\n",
        "the limit 2",
    ),
    Mutant("busbw-takes-anything", BANDWIDTH, ("limits",), BANDWIDTH_GUARD, "    if False:\n", "no check"),
]

ALONE = "    if world_size == 1:\n        return x.clone()\n"
SENDING = "    sending = dist.isend(x, group_dst=(rank + 1) % world_size, group=group)\n"
RECEIVING = "    dist.recv(received, group_src=(rank - 1) % world_size, group=group)\n"
WAIT = "    sending.wait()\n"
TOTAL = "    total = torch.stack([losses.sum(), torch.tensor(losses.numel(), dtype=losses.dtype)])\n"
MEAN = "    return total[0] / total[1].clamp(min=1)\n"
ROW_SUM = "    dist.all_reduce(row_sum, group=row_group)\n"
COLUMN_SUM = "    dist.all_reduce(column_sum, group=column_group)\n"
COPIES = "    row_sum, column_sum = x.clone(), x.clone()\n"
CHESSBOARD = "    if (dist.get_rank(row_group) + dist.get_rank(column_group)) % 2 == 0:\n"

_DEADLOCKS = [
    Mutant(
        "P10-pass-right-sends-first",
        DEADLOCK,
        ("pass-right-values", "pass-right-messages", "pass-right-any-group"),
        (SENDING, WAIT),
        ("    dist.send(x, group_dst=(rank + 1) % world_size, group=group)\n", ""),
        "not repaired",
    ),
    Mutant(
        "pass-left",
        DEADLOCK,
        ("pass-right-any-group",),
        (SENDING, RECEIVING),
        (SENDING.replace("rank + 1", "rank - 1"), RECEIVING.replace("rank - 1", "rank + 1")),
        "the tensor of the wrong side (with two ranks, both sides are one)",
    ),
    Mutant(
        "pass-by-all-gather",
        DEADLOCK,
        ("pass-right-messages", "pass-right-any-group"),
        SENDING,
        "    everyone = [torch.empty_like(x) for _ in range(world_size)]\n"
        "    dist.all_gather(everyone, x, group=group)\n"
        "    return everyone[rank - 1]\n" + SENDING,
        "everyone's tensor to everyone",
    ),
    Mutant(
        "pass-right-to-global-rank",
        DEADLOCK,
        ("pass-right-any-group",),
        (SENDING, RECEIVING),
        (SENDING.replace("group_dst", "dst"), RECEIVING.replace("group_src", "src")),
        "place 1 of the group taken for rank 1",
    ),
    Mutant(
        "pass-right-alone",
        DEADLOCK,
        ("pass-right-any-group",),
        ALONE,
        "",
        "a lone rank sends to itself",
    ),
    Mutant(
        "pass-right-into-x",
        DEADLOCK,
        ("pass-right-values",),
        WAIT,
        WAIT + "    x.copy_(received)\n",
        "the caller's tensor is overwritten",
    ),
    Mutant(
        "mean-returns-early",
        DEADLOCK,
        ("mean-loss-values", "mean-loss-calls"),
        TOTAL,
        "    if losses.numel() == 0:\n        return torch.zeros(())\n" + TOTAL,
        "not repaired",
    ),
    Mutant(
        "mean-of-means",
        DEADLOCK,
        ("mean-loss-values",),
        TOTAL,
        "    own = losses.mean() if losses.numel() else losses.new_zeros(())\n"
        "    total = torch.stack([own, torch.ones_like(own)])\n",
        "each rank counts the same, however many samples it has",
    ),
    Mutant(
        "mean-zero-where-no-samples",
        DEADLOCK,
        ("mean-loss-values",),
        MEAN,
        "    if losses.numel() == 0:\n        return torch.zeros(())\n" + MEAN,
        "a rank without samples takes part, and then returns 0",
    ),
    Mutant(
        "mean-gathers-everything",
        DEADLOCK,
        ("mean-loss-calls",),
        TOTAL,
        "    everyone = [None] * dist.get_world_size(group)\n"
        "    dist.all_gather_object(everyone, losses, group=group)\n"
        "    losses = torch.cat(everyone)\n"
        "    if len(everyone) > 1:\n"
        "        return losses.mean() if losses.numel() else losses.new_zeros(())\n" + TOTAL,
        "all losses to all ranks",
    ),
    Mutant(
        "mean-nan-without-samples",
        DEADLOCK,
        ("mean-loss-no-samples",),
        MEAN,
        "    return total[0] / total[1]\n",
        "0/0",
    ),
    Mutant(
        "grid-chessboard",
        DEADLOCK,
        ("grid-sums-values", "grid-sums-calls"),
        ROW_SUM + COLUMN_SUM,
        f"{CHESSBOARD}    {ROW_SUM}    {COLUMN_SUM}    else:\n    {COLUMN_SUM}    {ROW_SUM}",
        "not repaired",
    ),
    Mutant(
        "grid-chessboard-started-together",
        DEADLOCK,
        ("grid-sums-calls",),
        ROW_SUM + COLUMN_SUM,
        (
            "    calls = [(row_sum, row_group), (column_sum, column_group)]\n"
            f"{CHESSBOARD}        calls.reverse()\n"
            "    works = [dist.all_reduce(s, group=g, async_op=True) for s, g in calls]\n"
            "    for work in works:\n        work.wait()\n",
        ),
        "both calls at once, in an order that depends on the rank: NCCL may hang",
    ),
    Mutant(
        "grid-sums-in-place",
        DEADLOCK,
        ("grid-sums-values",),
        COPIES,
        "    row_sum, column_sum = x, x.clone()\n",
        "the row's sum lands in x",
    ),
    Mutant(
        "grid-sums-of-sums",
        DEADLOCK,
        ("grid-sums-values",),
        COLUMN_SUM,
        "    column_sum = row_sum.clone()\n" + COLUMN_SUM,
        "the column's sum of the rows' sums",
    ),
    Mutant(
        "grid-gathers-the-world",
        DEADLOCK,
        ("grid-sums-calls",),
        ROW_SUM + COLUMN_SUM,
        (
            "    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(everyone, x)\n"
            "    for total, group in ((row_sum, row_group), (column_sum, column_group)):\n"
            "        total.copy_(sum(everyone[r] for r in dist.get_process_group_ranks(group)))\n",
        ),
        "every tensor to every rank",
    ),
    Mutant(
        "grid-of-two-by-two",
        DEADLOCK,
        ("grid-sums-any-shape",),
        COLUMN_SUM,
        "    dist.all_reduce(column_sum, group=column_group if dist.get_world_size() == 4 else row_group)\n",
        "right for the grid of the notebook only",
    ),
]

MUTANTS = [*_INSTEAD, *_RING, *_FORMULAS, *_DEADLOCKS]
