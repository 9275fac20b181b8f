"""What a call gave must stay when another one follows: a buffer that calls share is seen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def first_of_two(apply: Callable[[Tensor], Tensor], x: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the gradient of a call, read when a second call, and its backward, are over.

    The second one gets other numbers, so that whatever both wrote to no longer holds those of the first.
    """
    first, second = x.detach().clone().requires_grad_(), (1.0 - x.detach()).requires_grad_()
    outputs = [apply(given) for given in (first, second)]
    (gradient,) = torch.autograd.grad(outputs[0], first, grad_output)
    torch.autograd.grad(outputs[1], second, 1.0 - grad_output)
    return outputs[0], gradient
