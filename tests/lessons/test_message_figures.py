"""Figures of lesson 00: which messages share a step, what a marked message held, and that all is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from labkit.record import Collective, Span
from labkit.record.marked import Carried, carried
from labkit.show.collectives import draw_collectives
from labkit.show.cost import bytes_sent, draw_bytes, draw_bytes_sent, draw_times
from labkit.show.ring import draw_steps, steps_of
from labkit.show.style import Picture


@dataclass
class Recorded:
    """A job that never ran: what figures need of one."""

    ranks: int
    collectives: list[Collective] = field(default_factory=list)
    timeline: list[Span] = field(default_factory=list)

    def message(self, source: int, to: int, num_bytes: int, start: float) -> None:
        """A message that takes one second, from `start` on."""
        for rank, op, peer in ((source, "send", to), (to, "recv", source)):
            order = sum(call.rank == rank for call in self.collectives)
            group = tuple(range(self.ranks))
            self.collectives.append(
                Collective(
                    rank, op, num_bytes, (num_bytes,), "uint8", group, peer, order, start, start + 1, "", ""
                )
            )


def ring(ranks: int, num_bytes: int) -> Recorded:
    """All ranks send to the right, step by step, each step a little later on each rank."""
    job = Recorded(ranks)
    for step in range(2 * (ranks - 1)):
        for rank in range(ranks):
            job.message(rank, (rank + 1) % ranks, num_bytes, 2 * step + 0.01 * rank)
    return job


def star(ranks: int, num_bytes: int) -> Recorded:
    """Everyone to rank 0, one after the other, and back."""
    job = Recorded(ranks)
    peers = range(1, ranks)
    for step, (source, to) in enumerate([*((p, 0) for p in peers), *((0, p) for p in peers)]):
        job.message(source, to, num_bytes, 2.0 * step)
    return job


def test_a_ring_has_2_n_minus_1_steps_of_n_messages() -> None:
    """Nobody waits for a message of the same step."""
    steps = steps_of(ring(5, 64))
    assert [len(step) for step in steps] == [5] * 8
    assert [(m.rank, m.peer) for m in steps[3]] == [(r, (r + 1) % 5) for r in range(5)]


def test_a_star_has_as_many_steps_and_one_message_in_each() -> None:
    """Rank 0 receives one after the other, and sends after that."""
    steps = steps_of(star(4, 64))
    assert [[(m.rank, m.peer) for m in step] for step in steps] == [
        [(1, 0)],
        [(2, 0)],
        [(3, 0)],
        [(0, 1)],
        [(0, 2)],
        [(0, 3)],
    ]


def test_a_relay_waits_for_what_arrives() -> None:
    """Rank 1 sends on what it received: a step later."""
    job = Recorded(3)
    job.message(0, 1, 8, 0.0)
    job.message(1, 2, 8, 2.0)
    assert [len(step) for step in steps_of(job)] == [1, 1]


def test_pairs_that_do_not_meet_share_a_step() -> None:
    """Two messages between four different ranks need not wait for each other, whenever they were sent."""
    job = Recorded(4)
    job.message(0, 1, 8, 0.0)
    job.message(2, 3, 8, 9.0)
    job.message(2, 3, 0, 12.0)
    assert [len(step) for step in steps_of(job)] == [2]


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (0b0001, Carried(0, (0,))),
        (0b1010_0000, Carried(1, (1, 3))),
        (0b1111 << 12, Carried(3, (0, 1, 2, 3))),
        (0b1_0001, None),  # parts 0 and 1 mixed
        (0, None),
    ],
)
def test_a_marked_sum_tells_its_part_and_its_ranks(value: int, held: Carried | None) -> None:
    """Bit 4p + r is rank r's mark in part p of a ring of four."""
    assert carried(value, 4) == held


def test_bytes_sent_count_sends_only() -> None:
    """What a rank receives was sent by another."""
    assert bytes_sent(star(4, 10)) == [30, 10, 10, 10]
    assert bytes_sent(ring(4, 10)) == [60] * 4


def is_drawn(picture: Picture, *words: str) -> None:
    assert picture.png(dpi=40).startswith(b"\x89PNG")
    for word in words:
        assert word in picture.alt


@pytest.mark.days
def test_figures_are_drawn_and_told_in_words() -> None:
    """Each gives an image, and a text for readers who cannot see it."""
    held = [[Carried((rank - step) % 3, (rank,)) for step in range(4)] for rank in range(3)]
    is_drawn(
        draw_steps(ring(3, 2048), row_titles=["a", "b"], contents=held),
        "rank 0 to 1, 2.00 KiB (part A of ranks",
    )
    is_drawn(draw_steps(Recorded(2)), "none")
    is_drawn(draw_steps(Recorded(2), row_titles=["a", "b"], contents=[[], []]), "none")
    is_drawn(draw_steps(star(3, 1)), "step 4: rank 0 to 2, 1 B")
    is_drawn(draw_bytes_sent({"star": star(2, 5), "ring": ring(2, 5)}), "star: 5 B, 5 B")
    is_drawn(draw_bytes({"all_reduce": 3.0}, label="bytes"), "all_reduce 3 B")
    is_drawn(draw_times({"ours": ([1024, 4096], [1e-4, 2e-3])}, model=lambda size: size * 1e-7), "2 ms")
    results = [{"all_reduce": ([float(r), 5.0], [9.0, 9.0])} for r in range(2)]
    is_drawn(draw_collectives(results, columns=1), "after all-reduce: rank 0 [9.0, 9.0]")
