"""Sums are accumulated, from the last micro-batch to the first, and everything is divided in the end."""

import contextlib


def accumulate_gradients(model, micro_batches, loss_function):
    total_rows = sum(x.shape[0] for x, _ in micro_batches)
    losses = []
    for left in reversed(range(len(micro_batches))):
        inputs, targets = micro_batches[left]
        with model.no_sync() if left else contextlib.nullcontext():
            share = loss_function(model(inputs), targets) * inputs.shape[0]
            (share / total_rows).backward()
        losses.append(share.item())
    return torch.tensor(sum(losses) / total_rows)
