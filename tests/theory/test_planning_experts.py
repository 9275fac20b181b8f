"""Plans for models with experts: published shapes, the formulas' memory, traffic by hand, and the search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.cli import main
from labkit.theory.flops import forward_flops
from labkit.theory.hugging_face import UnknownConfig, from_config
from labkit.theory.memory import TrainingPlan, stage_activation_bytes, stage_state
from labkit.theory.models import ModelConfig, preset
from labkit.theory.parameters import count_parameters
from labkit.theory.planning import MEGATRON, NANOTRON, Cluster, Job, Plan, choose, feasible, price
from labkit.theory.planning.asked import model_named, plan_named
from labkit.theory.planning.compute import layer_work
from labkit.theory.planning.feasible import memory_limit
from labkit.theory.planning.footprint import footprints
from labkit.theory.planning.search import candidates
from labkit.theory.planning.stages import stages_of
from labkit.theory.planning.step import step_time
from labkit.theory.planning.traffic import dispatch_seconds, reduce_seconds, tensor_seconds
from labkit.theory.recipes import NANOTRON as TWENTY_BYTES

MIXTRAL = {  # mistralai/Mixtral-8x7B-v0.1
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
DEEPSEEK = {  # deepseek-ai/DeepSeek-V3
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
EIGHT = preset("Mixtral 8x7B")
V3 = preset("DeepSeek-V3 671B")
TWO = Cluster.of("h100", 2)


def test_configs_count_as_the_papers_say() -> None:
    """Jiang 2024: 47B, 13B active. DeepSeek-AI 2024 (arXiv 2412.19437): 671B, 37B active."""
    mixtral, deepseek = (count_parameters(from_config(config)) for config in (MIXTRAL, DEEPSEEK))
    assert (mixtral.total, mixtral.active) == (46_702_792_704, 12_879_925_248)
    assert deepseek.total / 1e9 == pytest.approx(671.0, abs=0.05)
    assert deepseek.active / 1e9 == pytest.approx(37.55, abs=0.01)
    assert from_config(DEEPSEEK).but(name=V3.name, max_sequence=V3.max_sequence) == V3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**MIXTRAL, "model_type": "qwen3_moe"}, "has 8 experts, and its model_type is 'qwen3_moe'"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq"),
        ({**DEEPSEEK, "q_lora_rank": None}, "q_lora_rank"),
        ({k: v for k, v in MIXTRAL.items() if k != "num_experts_per_tok"}, "num_experts_per_tok"),
    ],
)
def test_mixtures_of_another_kind_are_refused(config, said: str) -> None:
    with pytest.raises(UnknownConfig, match=said):
        from_config(config)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (EIGHT, Plan(8, 2, 4, expert=4)),
        (V3, Plan(64, 1, 8, expert=32)),
        (V3, Plan(16, 4, 8, expert=16, zero=0)),
    ],
)
def test_memory_is_that_of_the_formulas(model: ModelConfig, plan: Plan, recompute) -> None:
    """State and activations of every stage: experts divided, dense layers where they are."""
    job = Job(model, 4096, 512)
    plan = replace(plan, recompute=recompute)
    stages = stages_of(model, plan.pipeline, MEGATRON.balance)
    whole = TrainingPlan(
        model,
        4096,
        recipe=TWENTY_BYTES,
        recompute=recompute,
        data_parallel=plan.data,
        zero_stage=plan.zero,
        tensor_parallel=plan.tensor,
        sequence_parallel=plan.tensor > 1,
        expert_parallel=plan.expert,
        pipeline_parallel=plan.pipeline,
        num_micro_batches=plan.micro_batches(job),
        layers_of_stage=tuple(stage.layers for stage in stages),
        shard_checkpoints=plan.tensor > 1,
    )
    for place, held in enumerate(footprints(job, plan, MEGATRON)):
        state = stage_state(whole, place)
        assert (held.weights, held.gradients, held.optimizer) == pytest.approx(
            (state.weights, state.gradients, state.optimizer)
        )
        assert held.activations == pytest.approx(stage_activation_bytes(whole, place))


@pytest.mark.parametrize("layer", [0, 10])
def test_products_are_the_operations_of_the_layer(layer: int) -> None:
    """Where operations are all the time: attention, router, shared experts and the visited ones."""
    assert V3.mixture is not None
    slow = replace(NANOTRON, matmul_efficiency=1e-7)
    dense = replace(V3.mixture, dense_layers=0 if V3.has_experts(layer) else 1)
    alone = forward_flops(V3.but(num_layers=1, mixture=dense), 4096, 2, causal=True)
    expected = 3 * alone.layers / (TWO.gpu.dense_bf16 * slow.matmul_efficiency)
    share = Plan(16, micro_batch=2).share
    assert layer_work(Job(V3, 4096, 64), share, TWO, slow, layer).products == pytest.approx(
        expected, rel=1e-4
    )


def test_fewer_experts_on_a_rank_are_larger_products() -> None:
    """As many operations; but weights of all 256 experts through memory for a few rows each cost more."""
    job, plan = Job(V3, 4096, 64), Plan(16)
    here, spread = (
        layer_work(job, replace(plan, expert=e).share, TWO, NANOTRON, 10).products for e in (1, 16)
    )
    assert here > 1.2 * spread


def test_rows_to_experts_by_hand() -> None:
    """4,096 tokens with 2 experts of 8 each, rows of 8 KiB: there and back, forward and backward."""
    job, once = Job(EIGHT, 4096, 64), 4096 * 2 * 8192
    inside = dispatch_seconds(job, Plan(16, expert=8), TWO, 0)
    assert inside == pytest.approx(4 * once * 7 / 8 / 249.8e9)
    across = dispatch_seconds(job, Plan(8, 2, expert=8), TWO, 0)  # 4 of the 8 ranks on each node
    assert across == pytest.approx(4 * once / 2 * (3 / 8 / 249.8e9 + 4 / 8 / 50e9))
    again = dispatch_seconds(job, Plan(16, expert=8, recompute="full"), TWO, 0)
    assert again == pytest.approx(1.5 * inside)
    assert dispatch_seconds(job, Plan(16), TWO, 0) == 0
    assert dispatch_seconds(Job(V3, 4096, 64), Plan(16, expert=8), TWO, 0) == 0  # a dense layer
    step = price(job, Plan(16, expert=8), TWO).time
    assert step.dispatch == pytest.approx(32 * 4 * inside)  # 32 layers, 4 micro-batches


def test_many_nodes_of_a_shared_fabric_exchange_more_slowly() -> None:
    few, many, full = (
        cluster.exchange_bandwidth(256, 1)
        for cluster in (TWO, Cluster.of("h100", 32), Cluster.of("h100", 32, fabric="full"))
    )
    assert many < few == full == 50e9


def test_tensor_traffic_gathers_the_rows_that_visit_experts() -> None:
    share = Plan(1, 8).share
    dense, mixture = (tensor_seconds(Job(V3, 4096, 64), share, TWO, NANOTRON, layer) for layer in (0, 10))
    assert mixture == pytest.approx(5 * dense)  # attention 1 and the MLP 1, against 1 and 8 + 1 shared


def test_gradients_of_experts_stay_among_the_ranks_that_hold_them() -> None:
    job = Job(EIGHT, 4096, 64)
    for zero in (0, 1):
        one = job, Plan(8, expert=8, zero=zero), TWO, NANOTRON
        assert reduce_seconds(5e9, 0.0, *one, 3e9) == pytest.approx(reduce_seconds(2e9, 0.0, *one))
        two = job, Plan(16, expert=8, zero=zero), TWO, NANOTRON
        assert reduce_seconds(2e9, 0.0, *two) < reduce_seconds(5e9, 0.0, *two, 3e9)


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (EIGHT, Plan(15, expert=3), "8 experts do not divide over 3"),
        (EIGHT, Plan(2, 8, expert=8), "8 expert-parallel ranks do not divide the 2"),
        (EIGHT, Plan(16, zero=3), "ZeRO 3 of experts is not planned for"),
        (EIGHT, Plan(16, expert=0), "expert is 0"),
        (V3, Plan(8, context=2), "squeezed keys and values"),
        (preset("Llama 3 8B"), Plan(16, expert=2), "has no experts to share out over 2 ranks"),
    ],
)
def test_every_reason_is_told(model: ModelConfig, plan: Plan, said: str) -> None:
    assert said in "; ".join(feasible(Job(model, 4096, 240), plan, TWO))


def test_nothing_that_runs_is_faster_than_what_is_chosen() -> None:
    job, cluster = Job(EIGHT, 4096, 128), Cluster.of("h100", 4)
    best = choose(job, cluster).best[0]
    times = [
        step_time(job, plan, cluster, NANOTRON).total
        for plan in candidates(job, cluster)
        if max(held.total for held in footprints(job, plan, NANOTRON)) <= memory_limit(cluster)
    ]
    assert best.time.total == min(times)
    assert best.plan.expert > 1
    assert not feasible(job, best.plan, cluster)


def test_a_model_too_large_for_whole_experts_is_planned_with_their_ranks() -> None:
    """A layer's experts have 11 billion parameters: no rank holds 20 bytes for each of them."""
    choice = choose(Job(V3, 4096, 4096), Cluster.of("h100", 128))
    assert all(priced.plan.expert > 1 for priced in choice.best)
    assert all(held.total <= memory_limit(TWO) for priced in choice.best for held in priced.held)


def test_what_people_type() -> None:
    assert model_named("deepseek-v3") == V3
    with pytest.raises(ValueError, match="may be any of Mixtral 8x7B, Mixtral 8x22B"):
        model_named("mixtral")
    assert plan_named("16,2,4,ep=8") == Plan(16, 2, 4, expert=8)
    assert "ep 8" in str(plan_named("16,2,4,ep=8"))


def test_the_command_plans_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    words = ["plan", "--model", str(tmp_path), "--nodes", "8"]
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0
    assert "(46.7 billion parameters, 12.9 active)" in said.output
    assert "taken to be visited equally often" in said.output
    one = CliRunner().invoke(main, [*words, "--explain", "16,1,4,ep=8", "--json"])
    told = json.loads(one.output)
    assert told["plan"]["expert"] == 8
    assert told["seconds_by_term"]["dispatch"] > 0
