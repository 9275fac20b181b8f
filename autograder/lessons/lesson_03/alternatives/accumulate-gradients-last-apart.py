"""The sum of the losses is divided once, the gradients through the loss that backward starts from."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    *early, last = micro_batches
    total_rows = 0
    for inputs, _ in micro_batches:
        total_rows += inputs.size(0)
    result: list[Tensor] = []

    def one(inputs: Tensor, targets: Tensor) -> None:
        mean = loss_function(model(inputs), targets)
        share = mean.mul(inputs.size(0)).div(total_rows)
        torch.autograd.backward(share)
        result.append(share.detach())

    if early:
        with model.no_sync():
            for pair in early:
                one(*pair)
    one(*last)
    return torch.stack(result).sum()
