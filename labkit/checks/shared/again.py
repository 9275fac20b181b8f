"""Calls that come more than once, as in training: what one gave must stay when another one follows, and who
keeps what a tensor gave, rather than its numbers, is wrong the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from labkit.checks.rank import Rank

Returned = TypeVar("Returned")


def first_of_two(apply: Callable[[Tensor], Tensor], x: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the gradient of a call, read when a second call, and its backward, are over.

    The second one gets other numbers, so that whatever both wrote to no longer holds those of the first.
    """
    first, second = x.detach().clone().requires_grad_(), (1.0 - x.detach()).requires_grad_()
    outputs = [apply(given) for given in (first, second)]
    (gradient,) = torch.autograd.grad(outputs[0], first, grad_output)
    torch.autograd.grad(outputs[1], second, 1.0 - grad_output)
    return outputs[0], gradient


def called_before(rank: Rank, tensors: Iterable[Tensor], call: Callable[[], Returned]) -> Returned | None:
    """Where the case says `again`: make the call while the tensors hold zeros, then put the numbers back.
    Returns what the call gave.
    """
    if not rank.params.get("again"):
        return None
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    fill_with_zeros(tensor for tensor, _ in kept)
    returned = call()
    for tensor, numbers in kept:
        tensor.data.copy_(numbers)
    return returned


def others(*tensors: Tensor) -> list[Tensor]:
    """Tensors of the same shapes and dtypes with other numbers, halves, for a call that comes first: who
    keeps what that one gave, by shapes, gives it again.
    """
    return [tensor.detach() * 0.5 for tensor in tensors]


def fill_with_zeros(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors, leaves that ask for a gradient too."""
    for tensor in tensors:
        tensor.data.zero_()
