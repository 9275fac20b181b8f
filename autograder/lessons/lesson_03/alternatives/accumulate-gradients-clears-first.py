"""Gradients are cleared once more at the start, and losses are added as numbers."""

import contextlib


def accumulate_gradients(model, micro_batches, loss_function):
    model.zero_grad()
    samples = [inputs.shape[0] for inputs, _ in micro_batches]
    mean = 0.0
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        share = samples[number - 1] / sum(samples)
        with contextlib.nullcontext() if number == len(micro_batches) else model.no_sync():
            loss = loss_function(model(inputs), targets)
            (share * loss).backward()
        mean += share * loss.item()
    return torch.tensor(mean)
