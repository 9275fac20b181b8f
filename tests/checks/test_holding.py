"""What a rank holds, as checks count it: in tensors of every kind, and outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from labkit.checks.shared.holding import held_since, holding

pytestmark = pytest.mark.usefixtures("no_other_objects")


def compressed() -> tuple[Tensor, Tensor, Tensor]:
    """Of the unit matrix."""
    return torch.arange(101), torch.arange(100), torch.ones(100)


PARTS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "its inner tensor": (lambda: AsyncCollectiveTensor(torch.ones(1000)), 4000),
    "numbers and two indices each": (lambda: torch.eye(100).to_sparse(), 100 * (4 + 8 + 8)),
    "rows, columns and numbers": (
        lambda: torch.sparse_csr_tensor(*compressed(), size=(100, 100)),
        101 * 8 + 100 * (8 + 4),
    ),
    "columns, rows and numbers": (
        lambda: torch.sparse_csc_tensor(*compressed(), size=(100, 100)),
        101 * 8 + 100 * (8 + 4),
    ),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_memory_behind_a_tensor_of_another_kind_counts(name: str) -> None:
    make, num_bytes = PARTS[name]
    before = holding()
    kept = make()
    assert held_since(before) == num_bytes
    del kept


def in_pieces(whole: Any, size: int = 100) -> tuple[Any, ...]:
    return tuple(whole[at : at + size] for at in range(0, len(whole), size))


class Kept:
    """Has attributes."""

    whole: Any


KEPT: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "rows of floats": (Tensor.tolist, 8),
    "rows that nothing can change": (lambda t: tuple(map(tuple, t.tolist())), 8),
    "arrays by name": (lambda t: {"weight": t.numpy().copy()}, 4),
    "numbers by name": (lambda t: dict(enumerate(t.flatten().tolist())), 8),
    "their bits": (lambda t: t.double().view(torch.int64).tolist(), 8),
    "bytes that nothing can change": (lambda t: t.numpy().tobytes(), 4),
    "bytes in short pieces": (lambda t: in_pieces(t.numpy().tobytes()), 4),
    "one large number": (lambda t: int.from_bytes(t.numpy().tobytes(), "little"), 4),
    "numbers of 64 bytes": (
        lambda t: [int.from_bytes(b, "little") for b in in_pieces(t.numpy().tobytes(), 64)],
        4,
    ),
    "texts in short pieces": (lambda t: in_pieces(t.numpy().tobytes().decode("latin-1")), 4),
    "for one library alone": (lambda t: t.to_mkldnn(), 4),
    "an array of NumPy's": (lambda t: t.numpy().copy(), 4),
    "a view of a tensor": (Tensor.numpy, 4),
    "bytes": (lambda t: bytearray(t.numpy()), 4),
    "a storage without a tensor": (Tensor.untyped_storage, 4),
}


@pytest.mark.parametrize("name", KEPT)
def test_numbers_that_no_tensor_holds_count(name: str) -> None:
    keep, bytes_each = KEPT[name]
    before = holding()
    kept = Kept()
    kept.whole = keep(torch.rand(50, 20))
    assert held_since(before) == 1000 * bytes_each
    del kept


def test_numbers_added_to_what_was_there_count() -> None:
    kept: list[Any] = [[0.5] * 4000, []]
    before = holding()
    kept[0].clear()
    kept[1].extend(torch.rand(1000).tolist())
    assert held_since(before) == 8000


def test_what_only_a_cycle_holds_is_not_held() -> None:
    before = holding()
    cycle: list[Any] = [torch.ones(100_000)]
    cycle.append(cycle)
    del cycle
    assert held_since(before) == 0
