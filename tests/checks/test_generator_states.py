"""The state of a random generator is told from bytes of its size."""

from __future__ import annotations

import pytest
import torch

from labkit.checks.shared.generator_states import is_generator_state
from labkit.checks.shared.holding import held_since, holding

pytestmark = pytest.mark.usefixtures("no_other_objects")


@pytest.mark.parametrize("seed", [0, 7, 2**63, 2**64 - 1])
def test_a_state_is_one_however_much_was_drawn(seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for drawn in (0, 1, 623, 624, 100_000):
            torch.rand(drawn)
            torch.randn(drawn)
            assert is_generator_state(torch.get_rng_state().untyped_storage())


def test_other_bytes_of_its_size_are_not() -> None:
    numbers = torch.randint(256, torch.get_rng_state().shape, dtype=torch.uint8)
    assert not is_generator_state(numbers.untyped_storage())
    inside = torch.get_rng_state()
    inside[24:1024] = numbers[24:1024]
    assert not is_generator_state(inside.untyped_storage())
    assert not is_generator_state(torch.zeros(16, dtype=torch.uint8).untyped_storage())


def test_states_are_no_part_of_a_model_and_bytes_of_their_size_are() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)  # no number waits, as one may that an earlier test drew
        before = holding()
        kept = [torch.get_rng_state() for _ in range(3)]
        assert held_since(before) == 0
        kept.append(torch.full_like(kept[0], 3))
        assert held_since(before) == kept[0].nbytes


def test_few_states_may_have_a_number_that_waits() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.randn(1)
        before = holding()
        kept = [torch.get_rng_state() for _ in range(2)]
        assert held_since(before) == 0
        kept.append(torch.get_rng_state())
        assert held_since(before) == kept[0].nbytes
