"""Numbers that a tensor gives away are counted, whichever way they go, and none of those that stay."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor

from labkit.checks.shared.leaving import numbers_given, numbers_leaving

LEAVE: dict[str, Callable[[Tensor], object]] = {
    "a list": lambda x: x.tolist(),
    "NumPy": lambda x: x.numpy(),
    "NumPy's asarray": numpy.asarray,
    "another library": lambda x: numpy.from_dlpack(x),
    "safetensors": lambda x: safetensors.torch.save({"x": x}),
    "torch.save": lambda x: torch.save(x, io.BytesIO()),
    "a pickle": pickle.dumps,
    "its storage": lambda x: bytes(x.untyped_storage()),
    "its address": lambda x: x.data_ptr(),
}
STAY: dict[str, Callable[[Tensor], object]] = {
    "counted": torch.bincount,
    "sorted": lambda x: torch.sort(x, stable=True).indices,
    "picked": lambda x: x[x > 2].cumsum(0),
    "scattered": lambda x: torch.zeros(9, dtype=x.dtype).scatter_add_(0, x, x),
    "copied": lambda x: x.clone().view(2, 3).transpose(0, 1).contiguous(),
}


@pytest.mark.parametrize("way", LEAVE)
def test_what_leaves_is_counted(way: str) -> None:
    x = torch.arange(6)
    with numbers_leaving() as leaving:
        LEAVE[way](x)
    assert leaving.numbers >= 6


@pytest.mark.parametrize("way", STAY)
def test_what_stays_is_not(way: str) -> None:
    x = torch.arange(6)
    with numbers_leaving() as leaving:
        STAY[way](x)
    assert leaving.numbers == 0


def test_afterwards_all_is_as_it_was() -> None:
    before = {name: getattr(Tensor, name) for name in ("numpy", "data_ptr", "__reduce_ex__")}
    with numbers_leaving():
        pass
    assert {name: getattr(Tensor, name) for name in before} == before


GIVE: dict[str, Callable[[Tensor], object]] = {
    **{way: leave for way, leave in LEAVE.items() if way not in ("its address", "safetensors")},
    "one by one": lambda x: [each.item() for each in x],
    "as Python's": lambda x: list(map(float, x)),
    "as an index": lambda x: [each.__index__() for each in x],
    "as if it were ranks": lambda x: (x.repeat(10) % 50).tolist(),
    "its storage, whole": lambda x: x.untyped_storage().tolist(),
    "its storage, as a pickle": lambda x: pickle.dumps(x.untyped_storage()),
}
ASK: dict[str, Callable[[Tensor], object]] = {
    **STAY,
    "where it lies": lambda x: x.data_ptr(),
    "its copy": copy.deepcopy,
    "the copy of a module": lambda x: copy.deepcopy(torch.nn.BatchNorm1d(50)),
    "a seed": lambda x: int(x[0]),
    "a grid of ranks": lambda x: torch.arange(64).view(8, 8).T.tolist(),
}


@pytest.mark.parametrize("way", GIVE)
def test_what_is_given_away_may_be_kept(way: str) -> None:
    x = torch.arange(5000, 5100)
    with numbers_given() as given:
        GIVE[way](x)
    assert given.kept_bytes >= 800


@pytest.mark.parametrize("way", ASK)
def test_what_is_only_asked_is_not(way: str) -> None:
    x = torch.arange(6)
    with numbers_given() as given:
        ASK[way](x)
    assert given.kept_bytes == 0
