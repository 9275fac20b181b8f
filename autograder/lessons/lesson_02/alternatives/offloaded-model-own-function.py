"""Recomputation written out: one autograd function a layer, which keeps its input and nothing else."""

import torch
from torch import nn
from torch.func import functional_call


class _RunAgain(torch.autograd.Function):
    """The layer of `index` without a graph; backward runs it once more, with one."""

    @staticmethod
    def forward(ctx, model, index, x, *parameters):
        ctx.model, ctx.index, ctx.random = model, index, torch.get_rng_state()
        ctx.save_for_backward(x)
        return functional_call(model.layers[index], model.take(index, +1), (x,))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        layer = ctx.model.layers[ctx.index]
        copies = ctx.model.take(ctx.index, -1)
        leaves = [copies[name] for name, _ in layer.named_parameters()]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random)
            x = x.detach().requires_grad_(wanted[2])
            for leaf, needed in zip(leaves, wanted[3:], strict=True):
                leaf.requires_grad_(needed)
            out = functional_call(layer, copies, (x,))
            asked = [t for t, needed in zip([x, *leaves], wanted[2:], strict=True) if needed]
            found = iter(torch.autograd.grad(out, asked, gradient, allow_unused=True))
        of_x, *of_leaves = (next(found) if needed else None for needed in wanted[2:])
        return None, None, of_x, *(None if g is None else g.cpu() for g in of_leaves)


class OffloadedModel(nn.Module):
    def __init__(self, layers, compute_device, resident_layers):
        super().__init__()
        if resident_layers not in range(len(layers) + 1):
            raise ValueError(f"{resident_layers} resident layers of {len(layers)}")
        self.layers = nn.ModuleList(layers)
        self.device, self.residents = compute_device, resident_layers
        self.side = torch.cuda.Stream(compute_device)
        self.coming = None
        for layer in self.layers[:resident_layers]:
            layer.to(compute_device)
        for layer in self.layers[resident_layers:]:
            for tensor in (*layer.parameters(), *layer.buffers()):
                tensor.data = tensor.data.cpu().pin_memory()

    def forward(self, x):
        x = x.to(self.device)
        self.coming = None
        for number, layer in enumerate(self.layers[: self.residents], 1):
            if number == self.residents < len(self.layers):
                self.coming = self.order(number)
            x = layer(x)
        for index in range(self.residents, len(self.layers)):
            x = _RunAgain.apply(self, index, x, *self.layers[index].parameters())
        return x

    def order(self, index):
        """Begin to copy a layer: its number, the copies by name, and the event of their arrival."""
        layer = self.layers[index]
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            named = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
            copies = {n: t.detach().to(self.device, non_blocking=True) for n, t in named.items()}
            return index, copies, self.side.record_event()

    def take(self, index, step):
        """The copies of a layer, ready; the next one in this direction is under way."""
        ready = self.coming if self.coming and self.coming[0] == index else self.order(index)
        torch.cuda.current_stream(self.device).wait_event(ready[2])
        following = index + step
        exists = self.residents <= following < len(self.layers)
        self.coming = self.order(following) if exists else None
        return ready[1]
