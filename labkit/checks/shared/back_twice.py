"""Two backwards through one graph, as `retain_graph=True` allows: who lets go of something in the first, or
works in place on what it gave, fails or is wrong in the second.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def back_twice(apply: Callable[[Tensor], Tensor], x: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x, both read when the second backward is over, in which the gradient of the output is
    twice as large; its result is halved, which rounds nothing.
    """
    leaf = x.detach().clone().requires_grad_()
    out = apply(leaf)
    (first,) = torch.autograd.grad(out, leaf, grad_output, retain_graph=True)
    (second,) = torch.autograd.grad(out, leaf, 2 * grad_output, retain_graph=True)
    return first, second / 2
