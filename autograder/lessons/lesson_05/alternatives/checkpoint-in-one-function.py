"""A function of autograd whose backward runs the function again, with the generator forked around it."""

import torch
from torch import Tensor, nn


class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, always, function, *inputs):
        ctx.function = function
        ctx.generator_was = torch.random.get_rng_state()
        ctx.precision = {
            "enabled": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
        }
        ctx.is_tensor = [torch.is_tensor(value) for value in inputs]
        ctx.plain = [value for value in inputs if not torch.is_tensor(value)]
        ctx.save_for_backward(*(value for value in inputs if torch.is_tensor(value)))
        return function(*inputs)  # autograd is off in here

    @staticmethod
    def backward(ctx, *gradients):
        tensors, plain = list(ctx.saved_tensors), list(ctx.plain)
        inputs = []
        for is_tensor in ctx.is_tensor:
            if is_tensor:
                value = tensors.pop(0)
                inputs.append(value.detach().requires_grad_(value.requires_grad))
            else:
                inputs.append(plain.pop(0))
        state = {}
        if isinstance(ctx.function, nn.Module):
            state = {name: buffer.clone() for name, buffer in ctx.function.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(ctx.generator_was)
            with torch.enable_grad(), torch.autocast("cpu", **ctx.precision):
                outputs = ctx.function(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True))
        for name, buffer in state.items():
            ctx.function.get_buffer(name).copy_(buffer)
        return None, None, *(value.grad if isinstance(value, Tensor) else None for value in inputs)


def checkpoint(function, *args):
    return Forgetful.apply(torch.ones(1, requires_grad=True), function, *args)
