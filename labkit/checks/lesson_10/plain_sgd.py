"""The training that this lesson's programs are held against, step by step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

USUAL_RATE, OTHER_RATE = 0.1, 0.25  # learning rates: no program may take one for granted


def sgd_step(module: nn.Module, loss: Tensor, learning_rate: float) -> None:
    """One step of plain SGD on a loss. Written out, because creating a torch.optim optimizer imports torch's
    compiler: seconds on every rank.
    """
    module.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(learning_rate * parameter.grad)
