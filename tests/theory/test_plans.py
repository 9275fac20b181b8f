"""Plans over many GPUs: every rank's share adds up, stages differ where they should, and nothing is free."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.lessons.lesson_01.memory_values import REFERENCE
from labkit.theory.activations import layer_activation_bytes, layer_kept
from labkit.theory.batches import accumulation_steps, global_batch_size, largest_that_fits
from labkit.theory.hardware import GPUS
from labkit.theory.inference import inference_bytes, kv_cache_bytes
from labkit.theory.memory import (
    TrainingPlan,
    stage_parameters,
    stage_units,
    training_memory,
    working_bytes,
    worst_stage,
)
from labkit.theory.models import PRESETS, MixtureOfExperts, gpt, llama, preset
from labkit.theory.parameters import count_parameters, layer_weights
from labkit.theory.pipeline import bubble_of_total, bubble_over_ideal, in_flight, layers_of_stages
from labkit.theory.recipes import RECIPES, recipe, state_bytes, zero_traffic_elements
from labkit.theory.units import binary_text, bytes_text, decimal_text

GPT = gpt(6, 64, 4, vocabulary=1000, max_sequence=128)
LLAMA = llama(6, 64, 8, 4, 160, vocabulary=1000, max_sequence=128)
EXPERTS = LLAMA.but(mixture=MixtureOfExperts(8, 2, 40, shared_experts=1, dense_layers=2))


def test_a_tensor_parallel_rank_holds_norms_and_row_biases_whole() -> None:
    """Counted by hand for t = 4: columns and their biases / 4, rows / 4, row biases and norms whole."""
    h, t = 64, 4
    attention = (3 * h * h + 3 * h) // t + h * h // t + h
    mlp = (h * 4 * h + 4 * h) // t + 4 * h * h // t + h
    layer = attention + mlp + 4 * h
    assert layer_weights(GPT).per_rank(t) == layer
    whole = stage_parameters(TrainingPlan(GPT, 128, tensor_parallel=t), 0)
    assert whole == 6 * layer + 1000 * h // t + 128 * h + 2 * h


@pytest.mark.parametrize("p", [1, 2])
def test_an_expert_parallel_rank_holds_its_experts_alone(p: int) -> None:
    """Of 8 experts of 3 x 64 x 40 numbers in each of 4 layers, 2 on each of 4 ranks; the rest on all."""
    whole, cut = (
        TrainingPlan(
            EXPERTS, 128, data_parallel=4, context_parallel=2, expert_parallel=e, pipeline_parallel=p
        )
        for e in (1, 4)
    )
    elsewhere = sum(stage_parameters(whole, s) - stage_parameters(cut, s) for s in range(p))
    assert elsewhere == 4 * 6 * (3 * 64 * 40)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_with_the_same_experts_share_their_state(stage: int) -> None:
    """What ZeRO cuts is the same share of the model, however experts are spread; what it does not is less."""
    whole, cut = (
        training_memory(TrainingPlan(EXPERTS, 128, data_parallel=8, zero_stage=stage, expert_parallel=e))
        for e in (1, 4)
    )
    for part, sharded_from in (("optimizer", 1), ("gradients", 2), ("weights", 3)):
        one, other = getattr(whole, part), getattr(cut, part)
        assert one == pytest.approx(other) if stage >= sharded_from else other < one


@pytest.mark.parametrize(
    ("model", "degrees", "message"),
    [
        (LLAMA, {"data_parallel": 2, "expert_parallel": 2}, "has no experts"),
        (EXPERTS, {"data_parallel": 3, "expert_parallel": 3}, "must divide num_experts 8, got 3"),
        (EXPERTS, {"data_parallel": 2, "expert_parallel": 4}, "context_parallel 2, got 4"),
    ],
)
def test_experts_are_spread_evenly_over_ranks_of_the_data(model, degrees, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingPlan(model, 128, **degrees)


def test_an_uneven_vocabulary_is_rounded_up() -> None:
    odd = LLAMA.but(vocabulary=1001)
    even = stage_parameters(TrainingPlan(LLAMA, 128, tensor_parallel=4), 0)
    assert stage_parameters(TrainingPlan(odd, 128, tensor_parallel=4), 0) - even == 2 * (64 // 4)


@pytest.mark.parametrize("config", [GPT, LLAMA, LLAMA.but(tied_embeddings=True)])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_stages_add_up_to_the_model(config, p: int) -> None:
    """Each parameter on one stage; a tied table on two, if there are two."""
    plan = TrainingPlan(config, 128, pipeline_parallel=p)
    twice = config.vocabulary * config.hidden if config.tied_embeddings and p > 1 else 0
    held = sum(stage_parameters(plan, stage) for stage in range(p))
    assert held == count_parameters(config).total + twice


@pytest.mark.parametrize("name", PRESETS)
def test_layers_of_a_mixture_differ(name: str) -> None:
    model = preset(name)
    plan = TrainingPlan(model, 1024)
    assert sum(unit.total for unit in stage_units(plan, 0)) == count_parameters(model).total


def test_the_last_stage_has_the_logits_and_the_first_the_most_in_flight() -> None:
    plan = TrainingPlan(LLAMA, 128, micro_batch=2, pipeline_parallel=3, num_micro_batches=8)
    stages = [training_memory(plan, stage) for stage in range(3)]
    assert [s.logits for s in stages] == [0, 0, 4 * 128 * 2 * 1000]
    one = 2 * layer_activation_bytes(LLAMA, 128, 2, attention="fused")
    assert [s.activations for s in stages[:2]] == [3 * one, 2 * one]
    assert stages[2].activations == one + 2 * (
        2 * 128 * 2 * 64
    )  # and the inputs of the final norm and the head
    assert worst_stage(plan)[1].total == max(s.total for s in stages)


@pytest.mark.parametrize(
    ("schedule", "stage", "m", "v", "held"),
    [
        ("gpipe", 0, 12, 1, 12),
        ("gpipe", 3, 12, 1, 12),
        ("1f1b", 0, 12, 1, 4),
        ("1f1b", 3, 12, 1, 1),
        ("1f1b", 0, 2, 1, 2),
        ("interleaved", 0, 12, 3, 4 + 3 / 3),
        ("interleaved", 3, 12, 3, (2 * 4 + 1) / 3),
        ("interleaved", 0, 4, 3, 4),  # m v chunks are all there are
    ],
)
def test_micro_batches_in_flight_with_four_stages(schedule, stage: int, m: int, v: int, held: float) -> None:
    assert in_flight(schedule, stage, 4, m, v) == pytest.approx(held)


def held_by_running(p: int, m: int, v: int, stage: int) -> float:
    """Another way: count forwards minus backwards along Megatron's interleaved order of one stage."""
    warm_up = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    order = ["F"] * warm_up + ["F", "B"] * (m * v - warm_up) + ["B"] * warm_up
    held = peak = 0
    for step in order:
        held += 1 if step == "F" else -1
        peak = max(peak, held)
    return peak / v


@pytest.mark.parametrize(("p", "v", "rounds"), list(product([2, 4, 5], [1, 2, 3], [1, 2, 3])))
def test_interleaved_in_flight_equals_a_run(p: int, v: int, rounds: int) -> None:
    for stage in range(p):
        expected = held_by_running(p, rounds * p, v, stage)
        assert in_flight("interleaved", stage, p, rounds * p, v) == pytest.approx(expected)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_stage_may_have_no_layer(recompute) -> None:
    """The head alone on the last stage; and more stages than layers, the last of which only hand on."""
    alone = TrainingPlan(LLAMA, 128, recompute=recompute, pipeline_parallel=2, layers_of_stage=(6, 0))
    assert training_memory(alone, 1).weights == 2 * (1000 * 64 + 64)
    assert worst_stage(alone)[0] == 0
    longer = TrainingPlan(LLAMA, 128, recompute=recompute, pipeline_parallel=8)
    assert longer.layers_of_stage == (1,) * 6 + (0, 0)
    assert training_memory(longer, 6).total == 0
    sharded = TrainingPlan(LLAMA, 128, pipeline_parallel=8, data_parallel=2, zero_stage=3)
    assert training_memory(sharded, 6).working == 0
    assert worst_stage(longer)[1].total > 0


def test_no_rank_holds_part_of_a_key_value_head() -> None:
    """4 key-value heads on 8 ranks: two ranks keep the same one, weights and activations alike."""
    h, head, t = 64, 8, 8
    layer = layer_weights(LLAMA)
    assert layer.per_rank(t) == 2 * h * h // t + 2 * h * head + 3 * h * 160 // t + 2 * h
    assert layer.per_rank(4) == layer.per_rank(t) + 2 * h * h // 8 + 3 * h * 160 // 8
    tokens = 100 * 2
    cut = layer_activation_bytes(LLAMA, 100, 2, tensor_parallel=t, attention="fused")
    assert cut == 2 * tokens * (4 * h + 2 * h / t + 2 * head + 4 * 160 / t)


def test_the_largest_micro_batch_of_lesson_01_fits_by_the_calculator() -> None:
    """The loss holds ten bytes a logit for a moment; with four, an H100 is filled half as full again."""
    small = gpt(24, 1024, 16, vocabulary=128_000)
    gpu = GPUS["H100 80 GB"]
    for recompute in ("none", "full"):
        largest = REFERENCE["largest_micro_batch"](small, 2048, gpu.memory, "adamw-mixed", recompute)
        plan = TrainingPlan(small, 2048, largest, recompute=recompute)
        assert 0.85 * gpu.memory < training_memory(plan).total < 0.92 * gpu.memory


def test_fp32_weights_are_their_own_master_copy() -> None:
    """AdamW keeps 8 bytes a parameter for fp32 weights, and 12 for those that need a master copy."""
    assert [RECIPES[name].optimizer for name in ("fp32 AdamW", "mixed AdamW, 16 B")] == [8, 12]


def test_leonardos_a100_has_more_multiprocessors() -> None:
    """124 of them (arXiv 2307.16885) against 108: 358 TFLOP/s at the same clock."""
    leonardo, sold = GPUS["A100 64 GB (Leonardo)"], GPUS["A100 80 GB"]
    assert leonardo.dense_bf16 / sold.dense_bf16 == pytest.approx(124 / 108)
    assert leonardo.dense_bf16 / 1e12 == pytest.approx(358, abs=0.5)


@given(st.integers(1, 200), st.data())
def test_layers_are_shared_as_equally_as_they_go(layers: int, data: st.DataObject) -> None:
    p = data.draw(st.integers(1, layers + 3))
    shares = layers_of_stages(layers, p)
    assert sum(shares) == layers
    assert len(shares) == p
    assert max(shares) - min(shares) <= 1


def test_two_bubbles() -> None:
    """p = 4, m = 16: 18.75% of the ideal time is 15.8% of the total (GPipe and SC21 count differently)."""
    assert bubble_over_ideal(4, 16) == 0.1875
    assert bubble_of_total(4, 16) == pytest.approx(3 / 19)
    assert bubble_of_total(4, 4) == pytest.approx(3 / 7)


@pytest.mark.parametrize("name", RECIPES)
def test_zero_shards_one_thing_more_each_stage(name: str) -> None:
    kept = [state_bytes(1e6, recipe(name), stage, 8) for stage in range(4)]
    whole = kept[0]
    assert [k.optimizer for k in kept] == [whole.optimizer] + [whole.optimizer / 8] * 3
    assert [k.gradients for k in kept] == [whole.gradients] * 2 + [whole.gradients / 8] * 2
    assert [k.weights for k in kept] == [whole.weights] * 3 + [whole.weights / 8]
    assert zero_traffic_elements(8.0, 3, 8) == 3 * 7


def test_zero_keeps_the_largest_unit_whole() -> None:
    """Llama 3 8B: the embedding (525M) is larger than a layer (218M); two units are gathered, one reduced."""
    plan = TrainingPlan(preset("Llama 3 8B"), 1024, data_parallel=10**6, zero_stage=3)
    embedding, head = 128_256 * 4096, 128_256 * 4096 + 4096
    gathered = 2 * (embedding + head) + 2 * head
    assert working_bytes(plan, 0) >= gathered
    memory = training_memory(plan)
    assert memory.state < 1e6
    assert memory.total > gathered
    alone = TrainingPlan(preset("Llama 3 8B"), 1024, data_parallel=1, zero_stage=3)
    assert working_bytes(alone, 0) == working_bytes(TrainingPlan(preset("Llama 3 8B"), 1024), 0)


def test_stage_2_keeps_no_full_gradients() -> None:
    """8B on 64 ranks, 16 B a parameter: 16.6 GiB; with whole gradients it would be 31.3."""
    memory = training_memory(TrainingPlan(preset("Llama 3 8B"), 1024, data_parallel=64, zero_stage=2))
    assert memory.state == 2 * 8_030_261_248 + 14 * 8_030_261_248 / 64


def test_recomputation_brings_one_layer_back_for_a_moment() -> None:
    full = TrainingPlan(GPT, 128, 4, recompute="full", attention="explicit")
    whole = layer_activation_bytes(GPT, 128, 4)
    kept = layer_activation_bytes(GPT, 128, 4, "full")
    assert working_bytes(full, 0) == max(whole - kept, 1.5 * 4 * 128 * 4 * 1000)


@given(
    st.sampled_from([GPT, LLAMA]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["fused", "explicit"]),
)
@settings(max_examples=60)
def test_more_sharding_never_keeps_more(config, t: int, sp: bool, recompute: str, attention: str) -> None:
    options = {"recompute": recompute, "attention": attention}
    plain = layer_activation_bytes(config, 100, 2, **options)
    cut = layer_activation_bytes(config, 100, 2, tensor_parallel=t, sequence_parallel=sp, **options)
    assert plain / t <= cut <= plain
    assert layer_activation_bytes(config, 100, 4, **options) == 2 * plain


def test_a_llama_layer_by_hand() -> None:
    """Fused attention, 16 bits: 4 norm and block inputs, q, k, v, the output, and four tensors f wide."""
    s, b, h, f, kv = 128, 3, 64, 160, 4 * 8
    kept = layer_kept(LLAMA, s, b, "fused")
    assert sum(k.num_bytes for k in kept) == 2 * s * b * (4 * h + h + 2 * kv + h + 4 * f)


def test_tensor_parallel_ranks_each_keep_all_rows_of_an_expert() -> None:
    """They share its width, so each multiplies the rows of all their tokens: Megatron's dispatcher gathers
    them before the experts. With t = 8 that is a third more than an eighth of Mixtral's layer.
    """
    model, tokens = preset("Mixtral 8x7B"), 4096
    whole, cut = (
        layer_activation_bytes(
            model, tokens, 1, tensor_parallel=t, sequence_parallel=t > 1, attention="fused"
        )
        for t in (1, 8)
    )
    rows = 2 * tokens * 2 * model.hidden  # 16 bits, 2 experts a token
    assert cut == pytest.approx((whole - rows) / 8 + rows)
    assert cut > 1.3 * whole / 8


def test_inference_adds_weights_and_cache() -> None:
    config = preset("Llama 3 8B")
    cache = kv_cache_bytes(config, 4096, 3)
    assert cache == 2 * 32 * 8 * 128 * 2 * 4096 * 3
    assert inference_bytes(config, 4096, 3, bits=8, overhead=1.2) == 8_030_261_248 * 1.2 + cache
    assert (
        kv_cache_bytes(preset("DeepSeek-V2 236B"), 1) == 60 * (512 + 64) * 2
    )  # arXiv 2405.04434, section 2.1


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 10**8))
def test_the_largest_that_fits(fixed: int, each: int, memory: int) -> None:
    found = largest_that_fits(lambda n: fixed + each * n, memory, limit=10**5)
    best = min(max(0, (memory - fixed) // each), 10**5)
    assert found == best


def test_batches() -> None:
    """The lecture's example: 2 x 128 x 4 = 1024 sequences; with 512 GPUs, one step."""
    assert global_batch_size(2, 4, 128) == 1024
    assert [accumulation_steps(1024, 2, d) for d in (128, 512)] == [4, 1]
    with pytest.raises(ValueError, match="2 x 768 = 1536"):
        accumulation_steps(1024, 2, 768)


def test_units_are_always_told() -> None:
    assert bytes_text(1120e9) == "1.12 TB (1.02 TiB)"
    assert bytes_text(140e9) == "140.0 GB (130.4 GiB)"
    assert (decimal_text(999), binary_text(2**30)) == ("999 B", "1.00 GiB")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingPlan(GPT, 128, tensor_parallel=3), "tensor_parallel must divide num_heads 4, got 3"),
        (lambda: TrainingPlan(GPT, 128, pipeline_parallel=0), "num_stages must be 1 or more, got 0"),
        (
            lambda: TrainingPlan(LLAMA, 127, tensor_parallel=2, sequence_parallel=True),
            "127 tokens .* tensor_parallel = 2 equal parts",
        ),
        (
            lambda: TrainingPlan(
                LLAMA.but(num_heads=12, num_kv_heads=3, head_size=8), 128, tensor_parallel=4
            ),
            "tensor_parallel 4 neither divides num_kv_heads 3 nor",
        ),
        (lambda: TrainingPlan(GPT, 128, pipeline_parallel=2, layers_of_stage=(5, 2)), "add up to 6 layers"),
        (lambda: TrainingPlan(GPT, 128, context_parallel=3), "context_parallel must divide sequence 128"),
        (lambda: TrainingPlan(GPT, 128, context_parallel=2, attention="explicit"), "never stores the scores"),
        (lambda: state_bytes(1.0, RECIPES["fp32 SGD"], 4, 2), "zero_stage must be 0, 1, 2 or 3, got 4"),
        (lambda: layer_activation_bytes(GPT, 8, 1, "some"), "recompute must be"),
        (
            lambda: training_memory(TrainingPlan(GPT, 8, attention="flash")),
            "attention must be .* got 'flash'",
        ),
        (lambda: in_flight("interleaved", 0, 4, 6, 2), "needs a multiple of 4 micro-batches, got 6"),
        (lambda: in_flight("1f1b", 4, 4, 6), "stage must be 0..3"),
        (lambda: recipe("adam"), "no recipe 'adam'"),
        (lambda: preset("GPT-5"), "no preset 'GPT-5'"),
        (lambda: TrainingPlan(GPT, 0), "sequence must be 1 or more, got 0"),
        (lambda: TrainingPlan(GPT, 8, micro_batch=-1), "micro_batch must be 1 or more, got -1"),
        (lambda: TrainingPlan(GPT, 8, num_micro_batches=-3), "num_micro_batches must be 0 or more, got -3"),
        (lambda: TrainingPlan(GPT, 8, num_chunks=0), "num_chunks must be 1 or more, got 0"),
        (lambda: GPT.but(ffn=-3), "ffn must be at least 1, or 0 for its default, got -3"),
        (lambda: GPT.but(norm="LayerNorm"), "norm must be one of layernorm, rmsnorm, got 'LayerNorm'"),
        (lambda: accumulation_steps(1024, 0, 8), "must be 1 or more, got 1024, 0, 8"),
    ],
)
def test_errors_say_what_is_wrong(make, message: str) -> None:
    with pytest.raises((ValueError, KeyError), match=message):
        make()
