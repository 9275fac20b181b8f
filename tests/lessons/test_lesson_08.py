"""Lesson 08: its arithmetic against published tables, and against what its stages really hold and send."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.record.live import LiveBytes, bytes_of_process, settled_bytes_of_process, tensors_of_process
from labkit.theory.recipes import RECIPES, ZERO_PAPER, state_bytes
from labkit.theory.sharding import bytes_of_rank, numbers_sent, pieces_of_ranks

WIDTH, LAYERS = 64, 8
UNIT = 4 * WIDTH * WIDTH

# ZeRO (arXiv 1910.02054), Table 1: GB of 10^9 bytes on each of d ranks, stages 1 to 3. The column of 7.5B is
# rounded, the other two are cut off.
TABLE_1 = {
    (7.5e9, 4): (52.5, 41.3, 30),
    (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 256): (30.4, 15.4, 0.47),
    (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 64): (536, 284, 32),
    (128e9, 1024): (513, 257, 2),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 1024): (4011, 2013, 15.6),
}


@pytest.mark.parametrize(("model", "gigabytes"), TABLE_1.items())
def test_table_1_of_the_zero_paper(model: tuple[float, int], gigabytes: tuple[float, float, float]) -> None:
    num_params, ranks = int(model[0]), model[1]
    for stage, told in enumerate(gigabytes, 1):
        parts = bytes_of_rank([num_params], ZERO_PAPER, stage, ranks)
        found = sum(v for name, v in parts.items() if name != "working") / 1e9
        last_place = 10.0 ** -len(str(told).partition(".")[2]) if "." in str(told) else 1.0
        assert abs(found - told) <= last_place, (stage, found, told)


units = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


@given(units, st.integers(0, 3), st.integers(1, 9))
def test_without_padding_it_is_lesson_01s_formula(numels: list[int], stage: int, ranks: int) -> None:
    """Where every unit divides, the exact bytes at rest are the share that lesson 01 computes."""
    whole = [n * ranks for n in numels]
    exact = bytes_of_rank(whole, ZERO_PAPER, stage, ranks)
    limit = state_bytes(sum(whole), ZERO_PAPER, stage, ranks)
    assert (exact["weights"], exact["gradients"], exact["optimizer"]) == pytest.approx(
        (limit.weights, limit.gradients, limit.optimizer)
    )


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 9))
def test_a_layout_owns_every_element_once(numels: list[int], ranks: int) -> None:
    size, pieces = pieces_of_ranks(numels, ranks)
    assert len(pieces) == ranks
    owned = [(p, i) for own in pieces for p, start, stop in own for i in range(start, stop)]
    assert owned == [(p, i) for p, numel in enumerate(numels) for i in range(numel)]
    lengths = [sum(stop - start for _, start, stop in own) for own in pieces]
    assert all(length <= size for length in lengths)
    assert all(after == 0 or before == size for before, after in pairwise(lengths))


def solution(exercise: str, name: str) -> Submission:
    return collect(reference_cells("08"), exercise, [name])


def make_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def stage_2(submission: Submission, group: dist.ProcessGroup) -> tuple[nn.Module, list[Tensor], Any]:
    model = make_layers()
    sharded = submission.load().ShardedGradients(model, group, UNIT)
    return model, sharded.shards, sharded.gather_weights


def stage_3(submission: Submission, group: dist.ProcessGroup) -> tuple[nn.Module, list[Tensor], Any]:
    model = make_layers()
    sharded = submission.load().FullyShardedModule(model, list(model), group)
    return sharded, sharded.shards, lambda: None


def bytes_and_traffic(build: Any, submission: Submission, group: dist.ProcessGroup) -> dict[str, int]:
    """Of one step of plain SGD."""
    before = bytes_of_process()
    model, shards, after = build(submission, group)
    x = torch.ones(1, WIDTH)
    model(x).sum().backward()
    live = LiveBytes(leave_out=[x])
    with torch.no_grad():
        for shard in shards:
            shard -= 0.1 * shard.grad
    at_rest = bytes_of_process() - before - x.nbytes
    for shard in shards:
        shard.grad = None
    after()
    live.count(tensors_of_process())
    with live:
        model(x).sum().backward()
    return {"at_rest": at_rest, "peak": live.peak - before}


STAGES = {
    2: ("08.sharded-gradients", "ShardedGradients", stage_2),
    3: ("08.fully-sharded-module", "FullyShardedModule", stage_3),
}


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_stages_hold_and_send_what_the_formulas_say(stage: int, ranks: int) -> None:
    exercise, name, build = STAGES[stage]
    job = labkit.launch(
        partial(bytes_and_traffic, build), solution(exercise, name), ranks=ranks, backend="gloo"
    )
    numels = [WIDTH * WIDTH] * LAYERS
    formula = bytes_of_rank(numels, RECIPES["fp32 SGD"], stage, ranks)
    at_rest = formula["weights"] + formula["gradients"] + formula["optimizer"]
    for found in job.results:
        assert found["at_rest"] == at_rest
        # beside the formula: a gradient that is handed over, a copy of gloo's, and small activations
        assert found["peak"] <= at_rest + formula["working"] + 2.5 * UNIT
    two_passes = [c for c in job.collectives if c.rank == 0 and c.source == "python"]
    shares = {"all_gather": float(ranks - 1), "reduce_scatter": (ranks - 1) / ranks}
    sent = sum(c.num_bytes * shares[c.op] for c in two_passes if c.op in shares)
    assert sent / 4 == numbers_sent(numels, stage, ranks, micro_batches=2)


def train_beside_torch(ours: Submission, group: dist.ProcessGroup) -> float:
    """The largest difference of a weight to fully_shard after three steps."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mine = make_layers()
    sharded = ours.load().FullyShardedModule(mine, list(mine), group)
    theirs, mesh = make_layers(), DeviceMesh.from_group(group, "cpu")
    for layer in theirs:
        fully_shard(layer, mesh=mesh)
    fully_shard(theirs, mesh=mesh)
    optimizers = [torch.optim.SGD(sharded.shards, lr=0.5), torch.optim.SGD(theirs.parameters(), lr=0.5)]
    torch.manual_seed(1 + dist.get_rank(group))
    for _ in range(3):
        x = torch.randn(3, WIDTH)
        for model, optimizer in zip((sharded, theirs), optimizers, strict=True):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    whole = sharded.full_weights()
    return max((whole[n] - p.full_tensor()).abs().max().item() for n, p in theirs.named_parameters())


def test_stage_3_gives_fully_shards_numbers() -> None:
    submission = solution("08.fully-sharded-module", "FullyShardedModule")
    job = labkit.launch(train_beside_torch, submission, ranks=3, backend="gloo", record=False)
    assert max(job.results) < 1e-6


def test_a_storage_counts_with_the_size_it_has() -> None:
    with LiveBytes() as live:
        tensor = torch.ones(1000)
        assert live.now == 4000
        tensor.untyped_storage().resize_(0)
        assert live.now == 0
        tensor.untyped_storage().resize_(4000)
        tensor.fill_(2.0)
        assert live.history[-1] == 4000
        del tensor
    assert live.now == 0


@pytest.mark.days
def test_what_a_backend_lets_go_of_late_is_not_held() -> None:
    before, held = bytes_of_process(), [torch.zeros(1000)]
    threading.Timer(0.1, held.clear).start()
    assert settled_bytes_of_process(seconds=5) == before


def test_above_most_counts_what_is_still_there_a_moment_later() -> None:
    with LiveBytes(most=6000) as live:
        let_go = [torch.ones(1000)]
        threading.Timer(0.05, let_go.clear).start()
        kept = torch.ones(1000)
        assert live.peak == 4000, "the first was on its way out"
        more = torch.ones(1000)
    assert live.peak == kept.nbytes + more.nbytes == 8000
