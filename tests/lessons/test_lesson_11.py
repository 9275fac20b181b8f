"""Lesson 11: its figure counts what its formula counts, and what each rank is handed is its own."""

from __future__ import annotations

import torch

from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.hidden import hidden_modules
from labkit.checks.lesson_11.divided_gpt import grid_of, spot_of
from labkit.checks.lesson_11.partial import causal, whole_attention
from labkit.checks.lesson_11.tokens import chunks_of, pairs_of, zigzag
from labkit.show.context import draw_exchange, draw_pairs
from labkit.theory.context import ring_sent, ulysses_sent
from labkit.theory.models import llama


def test_the_figure_counts_the_pairs_of_each_rank() -> None:
    """Zigzag over n ranks: 2n + 1 pairs on each. Contiguous pieces: one more for each rank."""
    for ranks in (2, 3, 4):
        owners = [next(r for r in range(ranks) if chunk in chunks_of(r, ranks)) for chunk in range(2 * ranks)]
        told = ", ".join(f"rank {rank} {2 * ranks + 1}" for rank in range(ranks))
        assert f"pairs to compute: {told}." in draw_pairs(owners).alt
    picture = draw_pairs([0, 1, 2])
    assert "rank 0 1, rank 1 2, rank 2 3." in picture.alt
    assert picture.png(dpi=40)[:4] == b"\x89PNG"


def test_pairs_are_those_in_which_some_query_sees_some_key() -> None:
    """Against the positions themselves, query by query and key by key."""
    ranks, size = 3, 2
    for rank in range(ranks):
        for source in range(ranks):
            mine, theirs = (torch.tensor(zigzag(2 * ranks * size, r, ranks)) for r in (rank, source))
            seen = causal(mine, theirs).view(2, size, 2, size).any(3).any(1)
            expected = {(i, j) for i in range(2) for j in range(2) if seen[i, j]}
            assert {(i, j) for i, j, _ in pairs_of(rank, source, ranks)} == expected


def test_what_answers_are_held_against_is_pytorchs_attention() -> None:
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    positions = torch.arange(7)
    out, lse = whole_attention(q, k, v, causal(positions, positions))
    stock = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(out, stock, atol=1e-12)
    assert torch.allclose(lse[..., 0], (q[..., 0, :] * k[..., 0, :]).sum(-1) / 2, atol=1e-12)


def test_a_rank_of_the_ring_is_handed_its_own_tokens_alone() -> None:
    exercise = registry.exercise("11.ring-attention")
    for case in exercise.cases(1):
        run = exercise.run_of(case)
        drawn = run.inputs(case, torch.Generator().manual_seed(1))
        for rank in range(case.ranks):
            handed = run.hand(case, drawn, rank)
            members = next(m for m in case.params.get("groups", [list(range(case.ranks))]) if rank in m)
            assert {t.shape[-2] for t in handed.values()} == {case.params["shape"][-2] // len(members)}


def test_the_figure_of_the_exchange_says_what_a_rank_has() -> None:
    picture = draw_exchange(heads=8, ranks=4)
    assert "2 heads of all tokens" in picture.alt
    assert picture.png(dpi=40)[:4] == b"\x89PNG"


def test_recorded_bytes_are_the_theorys() -> None:
    """What visible cases expect, which were written down, is what `labkit.theory.context` computes."""
    compared = 0
    for case in registry.exercise("11.context-bytes").cases(1):
        for row, value in zip(case.params.get("rows", []), case.expected.get("values", []), strict=True):
            sent = {"ring": ring_sent, "ulysses": ulysses_sent}[row["way"]]
            width = row["heads"] * row["head_size"]
            config = llama(1, width, row["heads"], row["kv_heads"], width)
            both = sent(config, row["sequence"], 1, row["ranks"], row.get("element", 2))
            assert value == (both.backward if row.get("backward") else both.forward)
            compared += 1
    assert compared == 13


def test_what_holds_the_answer_cannot_be_imported() -> None:
    assert hidden_modules("11") == ("labkit.theory.context",)


def handed(exercise_id: str, case: Case) -> list[dict[str, torch.Tensor]]:
    """What each rank is handed."""
    run = registry.exercise(exercise_id).run_of(case)
    drawn = run.inputs(case, torch.Generator().manual_seed(1))
    return [run.hand(case, drawn, rank) for rank in range(case.ranks)]


def test_ranks_of_ulysses_are_handed_the_pieces_of_their_groups_sequence() -> None:
    exercise = registry.exercise("11.ulysses")
    case = next(case for case in exercise.cases(1) if case.kind == "subgroup")
    drawn = exercise.run_of(case).inputs(case, torch.Generator().manual_seed(1))
    found = handed("11.ulysses", case)
    for index, members in enumerate(case.params["groups"]):
        joined = torch.cat([found[rank]["k"] for rank in members], dim=-2)
        assert torch.equal(joined, drawn["k"][index])


def test_ranks_of_the_whole_model_are_handed_their_own_tokens_and_blocks_alone() -> None:
    """Of each token one context rank has it, in every replica; of a cut weight only the own block is true."""
    case = next(c for c in registry.exercise("11.context-parallel-gpt").cases(1) if c.kind == "tensor")
    found = handed("11.context-parallel-gpt", case)
    grid = grid_of(case)
    assert spot_of(case, 3).context == grid[0, :, 1].tolist()
    for part in range(2):
        ids = [found[rank]["ids"] for rank in grid[0, :, part].tolist()]
        assert sum(t.shape[-1] for t in ids) == case.params["sequence"]
    cut = "full.blocks.0.attention.query.weight"
    assert torch.equal(found[0]["full.tokens.weight"], found[1]["full.tokens.weight"])
    same = [(found[0][cut] == found[rank][cut]).all(1) for rank in range(4)]
    assert not same[1].any()
    assert same[2].sum() == case.params["hidden"] // 2
