"""The first run is outside the autograd function, which ties its results to a recipe for the second."""

from collections import deque
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class _Recipe:
    function: object
    args: tuple
    rng: torch.Tensor
    mixed: dict

    @classmethod
    def now(cls, function, args):
        mixed = {
            "device_type": "cpu",
            "enabled": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
        }
        kept = tuple(None if torch.is_tensor(a) else a for a in args)
        return cls(function, kept, torch.get_rng_state(), mixed)

    def again(self, tensors):
        waiting = deque(tensors)
        args = [waiting.popleft() if there else a for there, a in zip(self.tensors, self.args, strict=True)]
        keep = {}
        if isinstance(self.function, nn.Module):
            keep = {b: b.detach().clone() for b in self.function.buffers()}
        after = torch.get_rng_state()
        torch.set_rng_state(self.rng)
        try:
            with torch.enable_grad(), torch.autocast(**self.mixed):
                return self.function(*args), keep
        finally:
            torch.set_rng_state(after)


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(recipe, count, wanted, *tensors):
        return tuple(result.detach() for result in tensors[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.recipe, ctx.count, _, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.count :])
        whole = [out for out in output if not out.is_floating_point()]
        ctx.mark_non_differentiable(*whole)

    @staticmethod
    def backward(ctx, *grads):
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        results, buffers = ctx.recipe.again(leaves)
        if torch.is_tensor(results):
            results = (results,)
        pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
        torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        for buffer, value in buffers.items():
            buffer.data.copy_(value)
        return None, None, None, *[None] * ctx.count, *(leaf.grad for leaf in leaves)


def checkpoint(function, *args):
    if not torch.is_grad_enabled():
        return function(*args)
    recipe = _Recipe.now(function, args)
    recipe.tensors = [torch.is_tensor(a) for a in args]
    with torch.no_grad():
        results = function(*args)
    alone = torch.is_tensor(results)
    together = (results,) if alone else results
    wanted = torch.ones((), requires_grad=True)
    given = filter(torch.is_tensor, args)
    tied = _Tie.apply(recipe, len(together), wanted, *together, *given)
    return tied[0] if alone else tied
