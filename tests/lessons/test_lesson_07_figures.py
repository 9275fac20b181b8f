"""What lesson 07 draws: who holds what, what is sent and kept, and how far two losses are apart."""

from __future__ import annotations

import pytest
import torch

from labkit.record import Collective
from labkit.show.sharding import (
    draw_block,
    draw_holdings,
    draw_losses,
    draw_memory,
    draw_sent,
    rows_held,
    sent_bytes,
)


def call(op: str, num_bytes: int, ranks: int) -> Collective:
    group = tuple(range(ranks))
    return Collective(0, op, num_bytes, (1,), "float32", group, None, 0, 0.0, 1.0, "python", "")


def test_rows_are_found_where_they_came_from() -> None:
    whole = torch.randn(12, 5)
    assert rows_held(whole[4:8], whole) == [4, 5, 6, 7]
    assert rows_held(torch.cat([whole[8:12], whole[0:4]]), whole, rows=4) == [2, 0]
    assert rows_held(torch.zeros(2, 5), whole) == [-1, -1]


def test_a_gather_and_a_scatter_send_what_an_all_reduce_sends() -> None:
    """Ring collectives (Thakur 2005): 2(n-1)/n S for an all-reduce of S bytes, half of it for the others.

    A gather's record holds the bytes of one rank's part, a scatter's those of the whole.
    """
    whole, ranks = 1200, 4
    all_reduce = sent_bytes(call("all_reduce", whole, ranks))
    gather, scatter = call("all_gather", whole // ranks, ranks), call("reduce_scatter", whole, ranks)
    assert all_reduce == pytest.approx(2 * 3 / 4 * whole)
    assert sent_bytes(gather) == sent_bytes(scatter) == pytest.approx(all_reduce / 2)


def test_a_message_is_sent_by_one_of_the_two() -> None:
    """The record of a recv holds the bytes that came."""
    assert (sent_bytes(call("send", 300, 4)), sent_bytes(call("recv", 300, 4))) == (300, 0)


def test_pictures_say_what_they_show() -> None:
    parts = {"heads": [[0, 1], [2, 3]], "rows": [[0], [1, -1]]}
    held = draw_holdings(parts, {"heads": 4, "rows": 2})
    assert "heads: 0 to 1, 2 to 3" in held.alt
    assert "rows: 0 to 0, 1 to 1" in held.alt
    sent = draw_sent({"whole": {"forward": {"all_reduce": 100.0}}}, {"whole": {"8 bsh": 100.0}})
    assert "whole: 100, formulas 8 bsh 100" in sent.alt
    memory = draw_memory({"a": ([1, 2], [4.0, 2.0])}, {"a": ([1, 2], [4.1, 2.1])}, "MiB")
    assert "4.1 at t = 1, 2.1 at t = 2" in memory.alt
    losses = draw_losses([3.0, 2.0], [3.0, 2.5], "two ranks")
    assert "differ by at most 5.0e-01" in losses.alt
    for picture in (held, sent, memory, losses, draw_block(2), draw_block(4, sequence_parallel=True)):
        assert picture.png(dpi=40)[:4] == b"\x89PNG"


def test_what_nobody_holds_and_what_two_hold_are_seen() -> None:
    """Head 1 is missing, head 0 is on both ranks: white and ink, no rank's colour."""
    picture = draw_holdings({"heads": [[0], [0, 2]]}, {"heads": 3})
    boxes = [patch.get_facecolor() for patch in picture.figure.axes[0].patches]
    assert boxes[0] == pytest.approx((0.0, 0.0, 0.0, 1.0))
    assert boxes[1] == (1.0, 1.0, 1.0, 1.0)
    assert boxes[2] not in boxes[:2]
