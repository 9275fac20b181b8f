"""What long context and experts send, against messages counted one by one and what papers tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.theory.context import least_ring_block, ring_sent, ulysses_sent
from labkit.theory.experts import dispatch_sent
from labkit.theory.models import MixtureOfExperts, llama

RANKS = st.sampled_from((1, 2, 4, 8))
HEADS = st.sampled_from((8, 16, 32))


def shape(heads: int, kv_heads: int, **more: object):
    return llama(1, heads * 16, heads, kv_heads, 64, **more)


@given(HEADS, RANKS)
def test_a_rings_bytes_are_those_of_its_messages(heads: int, ranks: int) -> None:
    """Step by step: a rank passes on what not everybody has had; gradients go one step more."""
    config, message = shape(heads, 8), 2 * 3 * (64 // ranks) * 8 * 16
    forward = backward = 0
    for step in range(ranks):
        passed_on = step < ranks - 1
        forward += 2 * message * passed_on
        backward += 2 * message * (passed_on + (ranks > 1))
    assert ring_sent(config, 64, 3, ranks).forward == forward
    assert ring_sent(config, 64, 3, ranks).backward == backward


@given(HEADS, st.sampled_from((2, 4, 8)))
def test_ring_over_ulysses_is_n_k_over_a_plus_k(heads: int, ranks: int) -> None:
    config = shape(heads, 8)
    ring, ulysses = (sent(config, 64, 3, ranks).forward for sent in (ring_sent, ulysses_sent))
    assert ring / ulysses == pytest.approx(ranks * 8 / (heads + 8))


def test_ulysses_sends_4nh_over_p() -> None:
    """DeepSpeed-Ulysses (arXiv 2309.14509): 4Nh/P elements a layer with as many key-value heads as heads,
    of which a P-th stays.
    """
    config = shape(32, 32)
    sent = ulysses_sent(config, 4096, 1, 8, element=1)
    assert sent.forward == sent.backward == 4 * 4096 * config.hidden / 8 * 7 / 8
    assert sent.total == 2 * sent.forward


@pytest.mark.parametrize(
    ("tera", "giga", "block", "sequence"),
    [
        pytest.param(312, 300, 1.0, 6.2, id="A100 NVLink"),
        pytest.param(123, 112, 1.1, 6.6, id="TPU v3"),
        pytest.param(275, 268, 1.0, 6.2, id="TPU v4"),
        pytest.param(196, 186, 1.1, 6.3, id="TPU v5e"),
    ],
)
def test_blocks_that_hide_the_ring_are_the_papers(
    tera: float, giga: float, block: float, sequence: float
) -> None:
    """Ring Attention (arXiv 2310.01889), table 2, in thousands of tokens; a device holds six blocks."""
    thousands = least_ring_block(tera * 1e12, giga * 1e9) / 1e3
    assert (round(thousands, 1), round(6 * thousands, 1)) == (block, sequence)


def test_over_infiniband_the_papers_row_is_not_its_own_formula() -> None:
    """It prints 24.5 and 149.5 thousand for 312 TFLOP/s and 12.5 GB/s."""
    assert least_ring_block(312e12, 12.5e9) == 24_960


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 24), (2, 24), (4, 48)])
def test_dispatch_sends_the_rows_whose_expert_is_elsewhere(ranks: int, tokens: int) -> None:
    """Tokens of rank 0 visit experts t, t + 1, t + 2 of 8 in turn; there and back, and again in backward."""
    config = shape(8, 8, mixture=MixtureOfExperts(8, 3, 64))
    visits = [(token + choice) % 8 for token in range(tokens) for choice in range(3)]
    away = sum(expert // (8 // ranks) != 0 for expert in visits)
    sent = dispatch_sent(config, tokens, ranks)
    assert sent.forward == sent.backward == 2 * 2 * away * config.hidden


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ring_sent(shape(8, 8), 66, 1, 4), "divides sequence 66, got 4"),
        (lambda: ulysses_sent(shape(8, 2), 64, 1, 4), "divides num_kv_heads 2, got 4"),
        (lambda: dispatch_sent(shape(8, 2), 64, 4), "has no experts"),
        (
            lambda: dispatch_sent(shape(8, 8, mixture=MixtureOfExperts(6, 2, 8)), 64, 4),
            "divides num_experts 6, got 4",
        ),
    ],
)
def test_what_does_not_divide_is_named(call, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()
