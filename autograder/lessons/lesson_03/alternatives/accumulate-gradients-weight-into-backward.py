"""A micro-batch's share is the gradient that its backward begins with; losses are put together in float64."""

from contextlib import nullcontext

import torch
from torch import Tensor


def accumulate_gradients(model, micro_batches, loss_function) -> Tensor:
    rows = torch.tensor([len(x) for x, _ in micro_batches], dtype=torch.float64)
    shares = rows / rows.sum()

    def one(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        loss = loss_function(model(x), y)
        torch.autograd.backward((loss,), (share.to(loss),))
        return loss.detach().double()

    *first, last = zip(micro_batches, shares, strict=True)
    with model.no_sync() if first else nullcontext():
        found = [one(x, y, share) for (x, y), share in first]
    (x, y), share = last
    found.append(one(x, y, share))
    return torch.stack(found).dot(shares.to(found[0]))
