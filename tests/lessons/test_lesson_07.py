"""Lesson 07: a mistake costs what it breaks and nothing else, and is told as what it is.

Most tests start ranks, through the executor that `labkit.check` uses, on what the grader would run.
"""

from __future__ import annotations

import pytest
import torch
from lesson_grading import lost, report_of

from labkit.checks import registry
from labkit.checks.lesson_07.block import block_case
from labkit.checks.lesson_07.modules import config_of
from labkit.checks.shared.cuts import cut_gpt, cut_rows
from labkit.model import Transformer, gpt
from labkit.theory.activations import layer_activation_bytes

EXERCISES = registry.exercises("07")


def test_a_mistake_in_attention_costs_the_block_only_its_own_parts() -> None:
    block = registry.exercise("07.tensor-parallel-block")
    report = report_of("07", "packed-weight-cut-in-one-piece", block, "two ranks", "all parts your own")
    assert lost(report) == {"own-parts"}, report


@pytest.mark.days
def test_a_failure_says_what_where_and_why() -> None:
    report = report_of("07", "logits-gathered")
    assert lost(report) == {"scalars-only"}, report
    message = report.row("scalars-only").message
    assert "all_gather of 480 bytes" in message  # [2, 5, 6] float64 columns of this rank
    assert "V numbers a token" in message


@pytest.mark.days
@pytest.mark.parametrize(
    ("mistake", "only"),
    [
        ("T27-bias-gradient-not-summed", "parameter-gradients"),
        ("T24-smoothing-over-the-padding", "label-smoothing"),
        ("always-scaled", "small-norms"),
    ],
)
def test_a_mistake_costs_only_what_it_breaks(mistake: str, only: str) -> None:
    assert lost(report_of("07", mistake)) == {only}


def test_no_exercise_is_graded_on_one_rank() -> None:
    """Every property of what communicates has visible evidence on two ranks or more."""
    for exercise in EXERCISES:
        if exercise.id == "07.activation-bytes":
            continue
        shown = {name for case in exercise.cases(1) if case.ranks > 1 for name in exercise.shown_by(case)}
        assert shown == {p.name for p in exercise.properties}, exercise.id


def test_blocks_of_a_model_join_to_the_model() -> None:
    """What the judge expects on the ranks is the whole: rows in order, nothing twice, padding beyond V."""
    torch.manual_seed(0)
    config = gpt(2, 12, 4, vocabulary=11, max_sequence=6, dropout=0.0, tied_embeddings=False)
    full = {name: tensor.detach() for name, tensor in Transformer(config).named_parameters()}
    parts = [cut_gpt(full, rank, 4) for rank in range(4)]
    table = torch.cat([part["tokens.weight"] for part in parts])
    assert torch.equal(table[:11], full["tokens.weight"])
    assert not table[11:].any()
    packed = parts[3]["blocks.1.attention.qkv_weight"]
    assert torch.equal(packed[:3], full["blocks.1.attention.query.weight"][9:])
    assert torch.equal(packed[6:], full["blocks.1.attention.value.weight"][9:])
    assert cut_rows(torch.ones(5, 2), 3, 4).abs().sum() == 0


def test_the_two_formulas_are_those_of_the_paper() -> None:
    """Korthikanti et al. 2022, table 2, for the 22B model's layer at t = 8 (table 3)."""
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    config = gpt(1, h, a, max_sequence=s)
    sbh = s * b * h
    whole = layer_activation_bytes(config, s, b, tensor_parallel=t)
    divided = layer_activation_bytes(config, s, b, tensor_parallel=t, sequence_parallel=True)
    assert whole == pytest.approx(sbh * (10 + 24 / t + 5 * a * s / (h * t)))
    assert divided == pytest.approx(sbh / t * (34 + 5 * a * s / h))


def test_a_case_sets_the_model_it_names() -> None:
    config = config_of(block_case("grouped", "values", 4, 1, heads=8, kv_heads=4, hidden=16))
    assert (config.num_heads, config.num_kv_heads, config.head_size, config.dropout) == (8, 4, 2, 0.0)
