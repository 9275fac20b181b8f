"""Predictions against the bytes a real training step holds: state within 1%, activations within 3%."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from labkit.model import (
    ModelConfig,
    Recomputed,
    Transformer,
    explicit_attention,
    fused_attention,
    gpt,
    llama,
    recomputed_attention,
)
from labkit.record.memory import StepMemory, measure_activations, measure_step
from labkit.theory.activations import eager_counting
from labkit.theory.memory import MemoryBreakdown, TrainingPlan, training_memory
from labkit.theory.recipes import Recipe

pytestmark = pytest.mark.days()

SHAPES = {
    "gpt": gpt(2, 64, 4, vocabulary=300, max_sequence=160, dropout=0.0),
    "gpt with dropout": gpt(3, 96, 6, vocabulary=200, max_sequence=160, dropout=0.1),
    "gpt, many heads, untied": gpt(
        2, 64, 16, vocabulary=100, max_sequence=160, dropout=0.1, tied_embeddings=False
    ),
    "llama": llama(2, 64, 4, 2, 176, vocabulary=300, max_sequence=160),
    "llama, wide, one key head": llama(3, 48, 6, 1, 200, vocabulary=100, max_sequence=160),
    "llama with query biases, tied": llama(
        2, 64, 4, 4, 100, vocabulary=100, max_sequence=160, biases="qkv", tied_embeddings=True
    ),
}
DTYPES = {torch.float32: 4, torch.bfloat16: 2, torch.float64: 8}
ATTENTION = {"explicit": explicit_attention, "fused": fused_attention}


def build(config: ModelConfig, attention: str, recompute: str) -> Transformer:
    attend = ATTENTION[attention]
    if recompute == "selective":
        attend = recomputed_attention(attend)
    return Transformer(config, attend, Recomputed if recompute == "full" else lambda block: block)


def predicted(
    config: ModelConfig, sequence: int, batch: int, element: int, attention: str, recompute: str
) -> MemoryBreakdown:
    recipe = Recipe("one type, AdamW", element, element, 0, 2 * element)
    plan = TrainingPlan(
        config,
        sequence,
        batch,
        recipe,
        recompute,  # type: ignore[arg-type]
        attention,  # type: ignore[arg-type]
        counting=eager_counting(element),
    )
    return training_memory(plan)


def measured(model: Transformer, ids: torch.Tensor) -> StepMemory:
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = ids[:, :-1].clone(), ids[:, 1:].clone()
    return measure_step(model, optimizer, lambda: model.loss(tokens, targets))


GRID = [
    (name, s, b, dtype, attention, recompute)
    for (name, (s, b), dtype, attention, recompute) in product(
        SHAPES, [(33, 3), (150, 1)], DTYPES, ATTENTION, ["none", "selective", "full"]
    )
    # PyTorch's fused kernel has no dropout on a CPU; and float64 once is enough
    if not (SHAPES[name].dropout and attention == "fused") and (dtype != torch.float64 or name == "gpt")
]


@pytest.mark.parametrize(("name", "s", "b", "dtype", "attention", "recompute"), GRID)
def test_a_step_holds_what_the_formulas_say(
    name: str, s: int, b: int, dtype: torch.dtype, attention: str, recompute: str
) -> None:
    config = SHAPES[name]
    model = build(config, attention, recompute).to(dtype)
    step = measured(model, torch.randint(config.vocabulary, (b, s + 1)))
    theory = predicted(config, s, b, DTYPES[dtype], attention, recompute)
    assert (step.weights, step.gradients) == (theory.weights, theory.gradients)
    assert step.optimizer == theory.optimizer
    assert step.activations == pytest.approx(theory.activations + theory.logits, rel=0.005)


@pytest.mark.parametrize("name", ["gpt with dropout", "llama"])
def test_two_rulers_agree(name: str) -> None:
    """torch's MemTracker follows every live tensor: what it sees after forward is what autograd saved."""
    from torch.distributed._tools.mem_tracker import MemTracker  # seconds, for all who only collect the tests

    config = SHAPES[name]
    model = build(config, "explicit", "none")
    ids = torch.randint(config.vocabulary, (2, 101))
    ours = measure_activations(model, lambda: model.loss(ids[:, :-1], ids[:, 1:]))
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        live = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
    weights = sum(t.untyped_storage().nbytes() for t in [*model.parameters(), *model.buffers()])
    assert ours == pytest.approx(live - weights, abs=8 * ids.numel() + 8)  # the ids came from outside
    del loss


@pytest.mark.parametrize("m", [1, 2, 5])
def test_gpipe_keeps_the_logits_of_every_micro_batch(m: int) -> None:
    """All forwards, each with its loss, before the first backward; by the formula of one, m = 5 is half."""
    config = gpt(2, 64, 4, vocabulary=2000, max_sequence=160, dropout=0.0)
    model = build(config, "explicit", "none")
    batches = [torch.randint(config.vocabulary, (2, 101)) for _ in range(m)]
    kept = measure_activations(
        model, lambda: torch.stack([model.loss(ids[:, :-1].clone(), ids[:, 1:].clone()) for ids in batches])
    )
    plan = TrainingPlan(
        config,
        100,
        2,
        attention="explicit",
        schedule="gpipe",
        num_micro_batches=m,
        counting=eager_counting(4),
    )
    theory = training_memory(plan)
    assert kept == pytest.approx(theory.activations + theory.logits, rel=0.005)


def test_measuring_changes_nothing() -> None:
    config = SHAPES["gpt"]
    torch.manual_seed(3)
    ids = torch.randint(config.vocabulary, (2, 33))
    plain, watched = build(config, "fused", "none"), build(config, "fused", "none")
    watched.load_state_dict(plain.state_dict())
    measured(watched, ids)
    optimizer = torch.optim.AdamW(plain.parameters())
    plain.loss(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("attention", ATTENTION)
def test_a_step_on_a_gpu(name: str, attention: str) -> None:
    """The same on a GPU, where dropout masks take one byte; and the allocator's peak is not below the sum."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = SHAPES[name]
    if attention == "fused" and config.head_size % 8:
        pytest.skip("torch pads heads to a multiple of 8 numbers before its fused kernel, and keeps them so")
    model = build(config, attention, "none").to("cuda", torch.bfloat16)
    ids = torch.randint(config.vocabulary, (4, 129), device="cuda")
    step = measured(model, ids)
    counting = eager_counting(2, "cuda")
    plan = TrainingPlan(config, 128, 4, attention=attention, counting=counting)  # type: ignore[arg-type]
    theory = training_memory(plan)
    assert step.weights == 2 * sum(p.numel() for p in model.parameters())
    assert step.activations == pytest.approx(theory.activations + theory.logits, rel=0.03)
    assert step.peak is not None
    assert step.peak >= step.weights + step.activations
