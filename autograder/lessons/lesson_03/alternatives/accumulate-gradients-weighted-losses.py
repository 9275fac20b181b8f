"""One loop; the last micro-batch leaves no_sync by an ExitStack."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    sizes = torch.tensor([inputs.shape[0] for inputs, _ in micro_batches], dtype=torch.float64)
    weights = (sizes / sizes.sum()).tolist()
    losses = []
    for number, ((inputs, targets), weight) in enumerate(zip(micro_batches, weights, strict=True), 1):
        with ExitStack() as stack:
            if number < len(micro_batches):
                stack.enter_context(model.no_sync())
            loss = weight * loss_function(model(inputs), targets)
            loss.backward()
        losses.append(loss.detach())
    return sum(losses)
