"""In the second run batch norms, told by their common type, keep no averages; other buffers are put back."""

from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def buffers_as_they_are(function):
    if not isinstance(function, nn.Module):
        yield
        return
    norms = [m for m in function.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    averaging = [norm for norm in norms if norm.training and norm.track_running_stats]
    others = [m for m in function.modules() if m not in norms]
    kept = [(b, b.clone()) for m in others for b in m.buffers(recurse=False)]
    for norm in averaging:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in averaging:
            norm.track_running_stats = True
        for buffer, value in kept:
            buffer.data.copy_(value)


@contextmanager
def as_in(state, mode):
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.set_rng_state(state)
        stack.enter_context(torch.autocast("cpu", **mode))
        stack.enter_context(torch.enable_grad())
        yield


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, anchor, *args):
        ctx.function, ctx.state = function, torch.get_rng_state()
        ctx.mode = {
            "dtype": torch.get_autocast_dtype("cpu"),
            "enabled": torch.is_autocast_enabled("cpu"),
        }
        ctx.set_materialize_grads(False)
        ctx.rest = {i: a for i, a in enumerate(args) if not isinstance(a, Tensor)}
        ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
        with torch.no_grad():
            return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        tensors = iter([t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors])
        count = len(ctx.saved_tensors) + len(ctx.rest)
        args = [ctx.rest[i] if i in ctx.rest else next(tensors) for i in range(count)]
        with buffers_as_they_are(ctx.function):
            with as_in(ctx.state, ctx.mode):
                results = ctx.function(*args)
            pairs = zip(results if isinstance(results, tuple) else [results], grads, strict=True)
            used = [(result, g) for result, g in pairs if result.requires_grad and g is not None]
            if used:
                torch.autograd.backward(*map(list, zip(*used, strict=True)))
        return None, None, *(getattr(a, "grad", None) for a in args)


def checkpoint(function, *args):
    return _Again.apply(function, torch.empty(0, requires_grad=torch.is_grad_enabled()), *args)
