"""Lesson 12: what its answers are held against, what a rank is handed, and what its figures tell."""

from __future__ import annotations

import torch
from matplotlib.patches import Rectangle

from labkit.checks.case import Case
from labkit.checks.lesson_12.permuting import permuted, unpermuted
from labkit.checks.lesson_12.reference import decided_tokens, routed
from labkit.model import Mixture
from labkit.show.experts import draw_dispatch, draw_visits
from labkit.theory.models import MixtureOfExperts, llama

MODEL = llama(1, 16, 2, 1, 24, vocabulary=50, mixture=MixtureOfExperts(6, 2, 12))


def test_what_routing_is_held_against_is_the_models_own() -> None:
    mixture, tokens = Mixture(MODEL).double(), torch.randn(20, 16, dtype=torch.float64)
    gates, chosen = mixture.route(tokens)
    found = routed(tokens, mixture.router.weight, 2)
    assert torch.allclose(found.gates, gates)
    assert torch.equal(found.experts, chosen)
    assert torch.allclose(found.probabilities.sum(-1), torch.ones(20, dtype=torch.float64))


def test_rows_that_go_there_and_back_are_the_models_own_layer() -> None:
    mixture, tokens = Mixture(MODEL).double(), torch.randn(20, 16, dtype=torch.float64)
    found = routed(tokens, mixture.router.weight, 2)
    rows, places, counts = permuted(tokens, found.experts, 6)
    parts = rows.split(counts.tolist())
    outs = torch.cat([expert(part) for expert, part in zip(mixture.experts, parts, strict=True)])
    assert torch.allclose(unpermuted(outs, places, found.gates), mixture(tokens[None])[0])


def test_no_token_of_a_case_is_near_a_tie_or_at_an_idle_expert() -> None:
    generator = torch.Generator().manual_seed(3)
    router = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    tokens = decided_tokens(Case("", 1), generator, 40, router, 2, idle=(1, 4))
    highest = routed(tokens, router, 3).probabilities.topk(3).values
    assert (highest.diff(dim=-1).abs() > 1e-3).all()
    assert not torch.isin(routed(tokens, router, 2).experts, torch.tensor([1, 4])).any()


def test_bars_are_visits_in_the_colours_of_their_ranks() -> None:
    picture = draw_visits([5, 1, 2], owners=[0, 0, 1])
    bars = [p for p in picture.figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [bar.get_height() for bar in bars] == [5, 1, 2]
    assert bars[0].get_facecolor() == bars[1].get_facecolor() != bars[2].get_facecolor()
    assert "expert 0 5, expert 1 1, expert 2 2; an even share is 2.66667" in picture.alt


def test_boxes_are_as_wide_as_there_are_rows() -> None:
    picture = draw_dispatch([[3, 1], [0, 60]])
    boxes = [p for p in picture.figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(0, 3), (3, 1), (0, 0), (0, 60)]
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["3\nto 0", "60\nto 1"]
    assert "from rank 0: 3, 1; from rank 1: 0, 60" in picture.alt
