"""Batches are copied on a stream of their own, and losses brought back in one copy at the end."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    copies, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    pinned, losses = [], []
    parameters = list(model.parameters())
    for pair in batches:
        on_host = [t.pin_memory() for t in pair]
        pinned.append(on_host)
        with torch.cuda.stream(copies):
            x, y = (t.to(device, non_blocking=True) for t in on_host)
        main.wait_stream(copies)
        for t in (x, y):
            t.record_stream(main)
        loss = F.mse_loss(model(x), y)
        with torch.no_grad():
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.add_(gradient, alpha=-learning_rate)
        losses.append(loss.detach())
    if not losses:
        return []
    numbers = torch.empty(len(losses), dtype=losses[0].dtype).pin_memory()
    numbers.copy_(torch.stack(losses), non_blocking=True)
    main.synchronize()
    return numbers.tolist()
