"""The checks of `shard_indices`, `assign_buckets` and `token_weighted_loss`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.lesson_03.evidence import describe, groups_used
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.places import enter_group, place_of

# -- shard_indices


def indices_on_rank(rank: Rank) -> None:
    """Ask for every rank's indices of several epochs and seeds, or for ranks that cannot be."""
    n, world = rank.params["samples"], rank.params["world"]
    ask = rank.student.shard_indices
    if rank.params["kind"] == "refused":
        for r, w in ((world, world), (-1, world), (0, 0)):
            with rank.expect_error(f"{r} of {w}"):
                ask(n, r, w, 0, 0)
        return
    seed_generators(7)
    for name, epoch, seed in (("a", 0, 3), ("b", 1, 3), ("c", 0, 4), ("again", 0, 3)):
        with rank.recording(name):
            rank.fact(name, [[int(i) for i in ask(n, r, world, epoch, seed)] for r in range(world)])
    rank.answer("random", torch.rand(2))


def judge_indices(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about. The order is the student's own choice."""
    n, world = case.params["samples"], case.params["world"]
    facts = answers[0].facts
    if case.params["kind"] == "refused":
        for name in (f"{world} of {world}", f"-1 of {world}", "0 of 0"):
            raised = facts[name]["raised"]
            yield Finding("wrong-rank", raised == "ValueError", f"ValueError for rank {name}", str(raised))
        return
    for name in ("a", "b", "c"):
        yield from _partition(facts[name], n, world)
    seed_generators(7)
    same = torch.equal(torch.rand(2), answers[0].tensors["random"])
    yield Finding(
        "reproducible", same, "torch's global generator is left alone", "" if same else "it was seeded"
    )
    yield Finding(
        "reproducible", facts["a"] == facts["again"], "the same for the same epoch and seed", "another order"
    )
    calls = [c for recorded in answers[0].collectives.values() for c in recorded]
    yield Finding("reproducible", not calls, "no communication: every rank can work it out", describe(calls))
    if n >= 8:
        orders = [[i for share in facts[name] for i in share] for name in ("a", "b", "c")]
        yield Finding("shuffled", orders[0] != orders[1], "another order in the next epoch", "the same order")
        yield Finding("shuffled", orders[0] != orders[2], "another order for another seed", "the same order")
        rising = sum(a < b for a, b in zip(facts["a"][0], facts["a"][0][1:], strict=False))
        fine = rising < len(facts["a"][0]) - 1 and sorted(orders[0][: n // 2]) != list(range(n // 2))
        yield Finding("shuffled", fine, "shuffled over all samples", f"rank 0 has {facts['a'][0][:8]}")


def _partition(shares: list[list[int]], n: int, world: int) -> Iterator[Finding]:
    each = -(-n // world)
    lengths = [len(share) for share in shares]
    yield Finding("equal-shares", lengths == [each] * world, f"{each} samples on every rank", f"{lengths}")
    counts = [sum(share.count(i) for share in shares) for i in range(n)]
    missing = [i for i, count in enumerate(counts) if count == 0]
    yield Finding("every-sample", not missing, f"all of 0..{n - 1}", f"missing: {missing[:6]}")
    foreign = sorted({i for share in shares for i in share if not 0 <= i < n})
    yield Finding("every-sample", not foreign, f"indices from 0 to {n - 1}", f"found {foreign[:6]}")
    most = -(-world * each // n) if n else 0
    often = [i for i, count in enumerate(counts) if count > most]
    yield Finding("every-sample", not often, f"no sample more than {most} times", f"too often: {often[:6]}")


# -- assign_buckets


def _parameters(case: Case) -> list[nn.Parameter]:
    found = []
    for shape, dtype, asks in case.params["parameters"]:
        found.append(nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)), requires_grad=asks))
    return found


def buckets_on_rank(rank: Rank) -> None:
    """Ask for the buckets of the case's parameters."""
    answer = rank.student.assign_buckets(_parameters(rank.case), rank.params["bucket_bytes"])
    rank.fact("buckets", [[int(i) for i in bucket] for bucket in answer])


def judge_buckets(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Compare with buckets filled greedily from the last parameter to the first."""
    parameters, most = _parameters(case), case.params["bucket_bytes"]
    seen = answers[0].facts["buckets"]
    wanted = [i for i in reversed(range(len(parameters))) if parameters[i].requires_grad]
    flat = [i for bucket in seen for i in bucket]
    told = f"each of {sorted(wanted)} in one bucket, frozen parameters in none"
    yield Finding("every-parameter", sorted(flat) == sorted(wanted), told, f"{seen}")
    yield Finding("reverse-order", flat == wanted, f"in the order {wanted}", f"{flat}")
    expected = _greedy(parameters, wanted, most)
    too_large = [b for b in seen if len(b) > 1 and _bytes(parameters, b) > most]
    told = f"at most {most} bytes in a bucket of several"
    sizes = [_bytes(parameters, b) for b in seen]
    yield Finding("bucket-bytes", not too_large and all(seen), told, f"bytes: {sizes}")
    yield Finding(
        "bucket-bytes", len(seen) == len(expected), f"{len(expected)} buckets", f"{len(seen)}: {sizes}"
    )
    mixed = [b for b in seen if len({parameters[i].dtype for i in b}) > 1]
    yield Finding("one-dtype", not mixed, "one dtype in a bucket", f"mixed: {mixed}")


def _bytes(parameters: list[nn.Parameter], bucket: list[int]) -> int:
    return sum(parameters[i].nbytes for i in bucket if 0 <= i < len(parameters))


def _greedy(parameters: list[nn.Parameter], order: list[int], most: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    for i in order:
        fits = buckets and _bytes(parameters, [*buckets[-1], i]) <= most
        if not fits or parameters[buckets[-1][0]].dtype != parameters[i].dtype:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


# -- token_weighted_loss


def loss_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """A weight vector, and rows of which each rank has its own number."""
    rows = max([1, *case.params["tokens"]])
    drawn = torch.randn(case.ranks, rows, 4, generator=generator, dtype=torch.float64)
    return {"x": drawn, "w": torch.randn(4, generator=generator, dtype=torch.float64)}


def _loss_sum(inputs: Inputs, w: Tensor, tokens: list[int], rank: int) -> Tensor:
    return (inputs["x"][rank, : tokens[rank]] @ w).square().sum()


def loss_on_rank(rank: Rank) -> None:
    """Backpropagate the student's loss; what DDP does afterwards, averaging, is done by the judge."""
    group = enter_group(rank)
    w = rank.inputs["w"].clone().requires_grad_()
    tokens = rank.params["tokens"]
    with rank.recording("all"):
        loss: Any = rank.student.token_weighted_loss(
            _loss_sum(rank.inputs, w, tokens, rank.rank), tokens[rank.rank], group
        )
        loss.backward()
    rank.answer("loss", loss)
    rank.answer("grad", w.grad)


def judge_loss(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """The mean of the ranks' gradients is that of the mean over all tokens of the group."""
    tokens = case.params["tokens"]
    special = {"subgroup": "subgroup", "empty": "no-tokens"}.get(case.params["kind"])
    for answer in answers:
        place = place_of(case, answer.rank)
        w = inputs["w"].clone().requires_grad_()
        total = sum(tokens[r] for r in place.members)
        sums = torch.stack([_loss_sum(inputs, w, tokens, r) for r in place.members]).sum()
        mean = sums / max(total, 1)
        mean.backward()
        assert w.grad is not None
        shares = [answers[r].tensors.get("grad", torch.zeros_like(w)) for r in place.members]
        wrong = difference(w.grad, torch.stack(shares).mean(0))
        told = f"averaged over ranks: the gradient of the mean over all {total} tokens"
        yield Finding(special or "gradients", wrong is None, told, wrong or "", answer.rank)
        losses = torch.stack([answers[r].tensors["loss"].reshape(()) for r in place.members]).mean()
        wrong = difference(mean.detach(), losses)
        told = "averaged over ranks: the mean over all tokens"
        yield Finding(special or "loss-value", wrong is None, told, wrong or "", answer.rank)
        calls = answer.collectives["all"]
        if special == "subgroup":
            yield from groups_used("subgroup", answer, place.members)
        elif special is None and place.size > 1:
            fine = [c["op"] for c in calls] == ["all_reduce"] and calls[0]["num_bytes"] <= 8
            yield Finding("communication", fine, "one all_reduce of one number", describe(calls), answer.rank)
