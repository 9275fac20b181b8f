"""autograd.grad for all but the last micro-batch, whose backward finds the others' sums in place."""

import torch


def accumulate_gradients(model, micro_batches, loss_function):
    rows = [len(targets) for _, targets in micro_batches]
    shares = [n / sum(rows) for n in rows]
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = 0.0

    def share_of(number):
        inputs, targets = micro_batches[number]
        return loss_function(model(inputs), targets) * shares[number]

    for number in range(len(rows) - 1):
        with model.no_sync():
            loss = share_of(number)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        total = total + loss.detach()
        for p, grad in zip(parameters, found, strict=True):
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad + grad
    last = share_of(-1)
    last.backward()
    return total + last.detach()
