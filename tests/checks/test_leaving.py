"""Numbers that a tensor gives away are counted, whichever way they go, and none of those that stay."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor

from labkit.checks.shared.leaving import numbers_leaving

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
