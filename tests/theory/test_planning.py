"""The planner's parts against closed forms, and its search against trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from labkit.theory.memory import TrainingPlan, gathered_bytes
from labkit.theory.models import gpt, llama, preset
from labkit.theory.planning import MEGATRON, NANOTRON, Cluster, Job, Plan, choose, feasible, price
from labkit.theory.planning.compute import product_seconds
from labkit.theory.planning.feasible import memory_limit
from labkit.theory.planning.footprint import footprints, peak_bytes
from labkit.theory.planning.search import candidates
from labkit.theory.planning.stages import balanced_stages, equal_stages, kinds_of, stage_parameters
from labkit.theory.planning.step import step_time
from labkit.theory.planning.traffic import context_seconds, reduce_seconds, send_seconds, tensor_seconds

ONE_B = llama(16, 2048, 32, 32, 8192, 131_072, 4096, tied_embeddings=True)
EIGHT_B = llama(32, 4096, 32, 32, 14_336, 131_072, 4096)
NODE = Cluster.of("h100", 1)
FOUR = Cluster.of("h100", 4)


def job(model=ONE_B, batch: int = 64, sequence: int = 4096) -> Job:
    return Job(model, sequence, batch)


def test_stages_are_balanced_with_the_head_counted() -> None:
    """The head of a 1B model with 131,072 words is worth four layers: 11 layers and 5, not 8 and 8."""
    assert [stage.layers for stage in balanced_stages(ONE_B, 2)] == [11, 5]
    assert [stage.layers for stage in equal_stages(ONE_B, 2)] == [8, 8]
    assert [stage.head for stage in balanced_stages(ONE_B, 4)] == [False] * 3 + [True]


@pytest.mark.parametrize("p", [1, 2, 3, 8, 16, 32])
@pytest.mark.parametrize("balance", ["cost", "layers"])
def test_stages_hold_the_whole_model(p: int, balance) -> None:
    """Also where there are more stages than layers; a tied table is held twice."""
    kinds = kinds_of(ONE_B, p, balance)
    assert sum(number for _, number in kinds) == p
    assert sum(stage.layers * number for stage, number in kinds) == 16
    held = sum(stage_parameters(ONE_B, p, stage, 1) * number for stage, number in kinds)
    twice = ONE_B.vocabulary * ONE_B.hidden if p > 1 else 0
    assert held == job().num_params + twice


def test_memory_is_the_formulas_and_what_the_framework_adds() -> None:
    """One GPU, by hand: 20 bytes a parameter, 24 times 2sbh a layer, 10 a logit, 3 rotated copies of 2sbh."""
    held = footprints(job(), Plan(8, zero=0), NANOTRON)[0]
    unit = 2 * 4096 * 2048
    assert held.weights + held.gradients + held.optimizer == 20 * job().num_params
    assert held.activations == 16 * 24 * unit + 2 * unit
    assert held.copies == 16 * 3 * unit
    assert held.logits == 10 * 4096 * 131_072
    assert held.working == 0
    split = footprints(job(), Plan(2, 4), NANOTRON)[0]
    assert split.working == 2 * unit
    assert split.copies == held.copies / 4
    assert footprints(job(), Plan(8), NANOTRON)[0].optimizer == held.optimizer / 8


def test_the_first_stage_holds_most_in_flight() -> None:
    held = footprints(job(EIGHT_B), Plan(2, 1, 4), NANOTRON)
    activations = [one.activations for one in held]
    assert activations == sorted(activations, reverse=True)
    assert peak_bytes(job(EIGHT_B), Plan(2, 1, 4), NANOTRON) == max(one.total for one in held)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("name", ["Llama 3 8B", "Llama 3.2 1B", "Llama 3 70B"])
def test_the_embedding_is_gathered_too(name: str, zero: int) -> None:
    """Of all units it is the largest: 525 million numbers of the 8B model, whose layers have 218."""
    one, plan = job(preset(name)), Plan(16, 2, zero=zero)
    by_formula = TrainingPlan(
        preset(name), 4096, recipe=one.recipe, data_parallel=16, tensor_parallel=2, zero_stage=zero
    )
    held = footprints(one, plan, replace(MEGATRON, gather_buffers=0))[0]
    assert held.working == pytest.approx(gathered_bytes(by_formula, 0))


def test_a_product_is_slower_the_smaller_it_is() -> None:
    """Large: the share of peak. Small: its operands' way through memory counts as much."""
    large = product_seconds(2**17, 2**17, 2**17, NODE, NANOTRON)
    assert large == pytest.approx(2 * 2**51 / (989e12 * NANOTRON.matmul_efficiency), rel=0.02)
    thin = product_seconds(4096, 1, 4096, NODE, NANOTRON)
    assert thin > 2 * 4096 * 4096 / 3.35e12


def test_a_step_adds_up() -> None:
    """Micro-batches one after the other, and nothing that one GPU does not do."""
    alone = step_time(job(batch=8), Plan(1, zero=1), Cluster.of("h100", 1, 1), NANOTRON)
    twice = step_time(job(batch=16), Plan(1, zero=1), Cluster.of("h100", 1, 1), NANOTRON)
    assert twice.products == pytest.approx(2 * alone.products)
    assert alone.tensor == alone.bubble == alone.send == alone.data == alone.context == 0
    assert alone.total == pytest.approx(sum(alone.as_dict().values()))


def test_the_bubble_is_one_micro_batch_of_every_other_stage() -> None:
    """(p-1)/m of the work where stages are equal, a v-th of it with v chunks (SC21, section 2.2)."""
    deep = gpt(64, 4096, 32, vocabulary=64)
    one = job(deep, batch=64, sequence=2048)
    for chunks in (1, 2, 4):
        plan = Plan(2, 1, 4, chunks=chunks)
        time = step_time(one, plan, NODE, MEGATRON)
        work = time.products + time.elementwise + time.host
        assert time.bubble / work == pytest.approx(3 / (32 * chunks), rel=0.01)


def test_tensor_traffic_is_slower_between_nodes() -> None:
    inside, between = (tensor_seconds(job(EIGHT_B), Plan(1, t).share, FOUR, NANOTRON) for t in (8, 16))
    assert 0 < inside < between
    assert tensor_seconds(job(EIGHT_B), Plan(1).share, FOUR, NANOTRON) == 0


def test_zero_1_shows_the_gathering_of_weights_and_zero_0_hides_everything() -> None:
    """Without a pipeline a long enough backward hides the all-reduce; the new weights come after it."""

    def exposed(zero: int, backward: float, pipeline: int = 1) -> float:
        return reduce_seconds(1e9, backward, job(), Plan(4, 8, pipeline, zero=zero), FOUR, NANOTRON)

    assert exposed(0, 100.0) == 0
    assert exposed(1, 100.0) > 0
    assert exposed(0, 100.0, 2) == exposed(0, 0.0, 1), "a pipeline hides nothing"
    assert exposed(3, 0.0) > exposed(2, 0.0) > exposed(1, 0.0)


@pytest.mark.parametrize("software", [NANOTRON, MEGATRON])
@pytest.mark.parametrize("backward", [0.0, 0.01, 0.1, 1.0])
def test_zero_3_hides_no_more_of_the_gradients_than_zero_2(software, backward: float) -> None:
    """It sends three halves of what ZeRO 2 sends (ZeRO, section 7); only the last gather is gained."""

    def exposed(zero: int, software=software) -> float:
        return reduce_seconds(1e9, backward, job(), Plan(32, zero=zero), FOUR, software)

    last_gather = exposed(1, replace(software, overlap=1e9)) if backward else 0.0
    assert exposed(3) >= exposed(2) - last_gather - 1e-12


def test_stages_in_one_node_send_over_its_links() -> None:
    near, far = (send_seconds(job(), Plan(d, 1, 2), FOUR, NANOTRON) for d in (4, 8))
    assert near * 9 == pytest.approx(far)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(8, 3), "32 attention heads do not divide over 3"),
        (Plan(3, 2, 1), "the plan is for 6 GPUs, and there are 32"),
        (Plan(32, micro_batch=3), "a batch of 64 sequences is no multiple of 96"),
        (Plan(1, 1, 32, micro_batch=64, chunks=2), "16 layers are too few for 64 pieces"),
        (Plan(8, 1, 4, micro_batch=4, chunks=2), "there are 2"),
        (Plan(8, 1, 4, chunks=3), "16 layers are no multiple of 4 stages x 3 chunks"),
        (Plan(8, 1, 4, zero=3), "ZeRO 3 with a pipeline"),
        (Plan(32, zero=4), "there is no ZeRO stage 4"),
        (Plan(0), "data is 0, and must be 1 or more"),
        (Plan(8, 4, context=3), "4096 tokens does not divide over 3 context-parallel"),
        (Plan(1, 32, 1, micro_batch=64, sequence_parallel=False), "most of it activations"),
    ],
)
def test_every_reason_is_told(plan: Plan, said: str) -> None:
    assert any(said in reason for reason in feasible(job(), plan, FOUR))


def test_all_reasons_are_told_at_once() -> None:
    assert len(feasible(job(), Plan(5, 3, 1, micro_batch=7), FOUR)) >= 4
    assert feasible(job(), Plan(32), FOUR) == []
    with pytest.raises(ValueError, match=r"do not divide.*; the plan is for"):
        price(job(), Plan(8, 3), FOUR)


def everything(one: Job, cluster: Cluster) -> list[Plan]:
    """All plans of a few numbers, whether sensible or not, that run."""
    found = []
    for d, t, p, b, v in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4)):
        for zero, recompute in product((0, 1, 2, 3), ("none", "full")):
            plan = Plan(d, t, p, b, zero, v, recompute=recompute)
            if d * t * p == cluster.num_gpus and not feasible(one, plan, cluster):
                found.append(plan)
    return found


@pytest.mark.parametrize("model", [ONE_B, EIGHT_B, preset("Llama 3 8B")])
def test_nothing_that_runs_is_faster_than_what_is_chosen(model) -> None:
    """Against every plan of eight GPUs; in pipelines the search looks at ZeRO 1 alone, and so does this."""
    one = job(model, batch=16)
    seconds = [
        step_time(one, plan, NODE, NANOTRON).total
        for plan in everything(one, NODE)
        if plan.pipeline == 1 or plan.zero == 1
    ]
    assert choose(one, NODE).best[0].time.total == pytest.approx(min(seconds))


def test_the_best_plans_have_different_grids_and_fit() -> None:
    choice = choose(job(EIGHT_B, 256), Cluster.of("h100", 16))
    grids = [(p.plan.tensor, p.plan.pipeline, p.plan.context) for p in choice.best]
    assert len(set(grids)) == 3
    for one in choice.best:
        assert feasible(job(EIGHT_B, 256), one.plan, Cluster.of("h100", 16)) == []
        assert max(held.total for held in one.held) <= memory_limit(NODE)
    times = [one.time.total for one in choice.best] + [one.time.total for one, _ in choice.runners_up]
    assert times == sorted(times)
    assert all("slower: " in reason for _, reason in choice.runners_up)


def test_what_the_framework_cannot_do_is_neither_proposed_nor_priced() -> None:
    """nanotron has ZeRO 0 and 1, and of pipeline schedules all-forward-all-backward and 1F1B."""
    for one in candidates(job(batch=256), FOUR, software=NANOTRON):
        assert (one.zero <= 1, one.chunks) == (True, 1)
    assert {one.zero for one in candidates(job(batch=256), FOUR, software=MEGATRON)} == {0, 1, 2, 3}
    assert feasible(job(), Plan(32, zero=3), FOUR, MEGATRON) == []
    with pytest.raises(ValueError, match="nanotron has no ZeRO 3: it has stages up to 1"):
        price(job(), Plan(32, zero=3), FOUR, NANOTRON)
    assert any("does not interleave" in said for said in feasible(job(), Plan(8, 1, 4, chunks=4), FOUR))


def test_a_slow_network_keeps_traffic_inside_nodes() -> None:
    """With a hundredth of the network the gradients of 16 replicas cost more than anything else saves."""
    slow = replace(Cluster.of("h100", 16), network=0.5e9)
    fast = choose(job(EIGHT_B, 256), Cluster.of("h100", 16)).best[0].plan
    assert choose(job(EIGHT_B, 256), slow).best[0].plan.data < fast.data


def test_bandwidth_between_nodes() -> None:
    """Groups of one GPU a node share its cards; on a shared fabric large messages get slower with nodes."""
    shared, full = Cluster.of("h100", 64), Cluster.of("h100", 64, fabric="full")
    assert full.all_reduce_bandwidth(16, 8) == full.all_reduce_bandwidth(64, 8) == 50e9
    assert full.all_reduce_bandwidth(16, 4) == 2 * 50e9
    ways = [shared.all_gather_bandwidth(8 * nodes, 1) for nodes in (1, 2, 4, 8, 16, 32, 64)]
    assert ways == [gb * 1e9 for gb in (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0)]
    assert replace(shared, network=25e9).all_gather_bandwidth(16, 1) == ways[1] / 2


@pytest.mark.parametrize("gpu", ["a100", "h100", "b200"])
@pytest.mark.parametrize("fabric", ["shared", "full"])
@pytest.mark.parametrize("network", [25e9, 50e9, 100e9, 400e9])
def test_a_ring_over_nodes_is_no_faster_than_inside_one(gpu: str, fabric, network: float) -> None:
    """It goes over the links of each node, too, where it has more than one GPU there."""
    cluster = Cluster.of(gpu, 4, network=network, fabric=fabric)
    for bandwidth in (cluster.all_reduce_bandwidth, cluster.all_gather_bandwidth):
        for size, stride in ((16, 1), (32, 1), (8, 4), (16, 2)):
            assert bandwidth(size, stride) <= bandwidth(8, 1)


def test_only_many_nodes_hold_sends_up() -> None:
    """Not on 16 nodes; on 64 each send and receive between stages waits; 128 are taken to be no worse."""

    def stall(nodes: int, pipeline: int = 4) -> float:
        one, cluster = job(batch=nodes * 16), Cluster.of("h100", nodes)
        return step_time(one, Plan(nodes * 8 // pipeline, 1, pipeline), cluster, NANOTRON).stall

    assert stall(16) == 0
    assert stall(64, pipeline=1) == 0
    assert 0 < stall(32) < stall(64)
    # 8 micro-batches with 4 sends and receives each on a stage in the middle, and 2 for each further stage
    assert stall(64) == pytest.approx((8 * 4 + 3 * 2) * NANOTRON.stall)
    assert stall(64, pipeline=2) == pytest.approx((4 * 2 + 2) * NANOTRON.stall)
    assert stall(128) == pytest.approx(stall(64))


def test_context_parallel_ranks_share_a_sequence() -> None:
    """Half the tokens a rank: half the activations, and about half the products of its micro-batch."""
    long = job(EIGHT_B, batch=8, sequence=65_536)
    whole, halves = Plan(2, 4, context=1, recompute="full"), Plan(1, 4, context=2, recompute="full")
    held = [footprints(long, plan, NANOTRON)[0].activations for plan in (whole, halves)]
    assert held[0] == pytest.approx(2 * held[1])
    times = [step_time(long, plan, NODE, NANOTRON) for plan in (whole, halves)]
    assert times[0].products == pytest.approx(times[1].products, rel=0.02)


def test_recomputation_sends_keys_and_values_round_once_more() -> None:
    """Three rounds of 2 x 2 bytes a key-value column without it: forward, backward, and their gradients."""
    long = job(EIGHT_B, batch=8, sequence=65_536)
    once = 4 * 32_768 * 4096 / 2 / NODE.all_gather_bandwidth(2, 2)
    for recompute, rounds in (("none", 3), ("full", 4)):
        plan = Plan(2, 2, context=2, recompute=recompute)
        assert context_seconds(long, plan, NODE, 0.0) == pytest.approx(rounds * once)


def test_what_cannot_be_planned_says_why() -> None:
    with pytest.raises(ValueError, match=r"none of .* fits: the smallest needs"):
        choose(Job(preset("Llama 3 405B"), 4096, 64), NODE)
    with pytest.raises(ValueError, match="no grid of 8 GPUs divides"):
        choose(job(gpt(5, 320, 5, vocabulary=1000), batch=3), NODE)
    with pytest.raises(ValueError, match="no GPU 'q9'; there are A100"):
        Cluster.of("q9", 1)
    with pytest.raises(ValueError, match="network must be positive"):
        Cluster.of("h100", 1, network=0)
