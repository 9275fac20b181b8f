"""Both directions with their own backward; counts from the sorted numbers."""

import torch


class Gather(torch.autograd.Function):
    """Rows of a tensor, some more than once; the gradients of one row's copies are added up."""

    @staticmethod
    def forward(ctx, tokens, index):
        ctx.save_for_backward(index)
        ctx.count = len(tokens)
        return tokens.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.count, grad.shape[1])
        return total.index_add_(0, index, grad), None


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, places, gates):
        ctx.save_for_backward(rows, places, gates)
        wide = torch.promote_types(rows.dtype, gates.dtype)
        n, k = gates.shape
        out = torch.zeros(n, rows.shape[1], dtype=wide, device=rows.device)
        out.index_add_(0, places // k, rows.to(wide) * gates.reshape(-1)[places, None].to(wide))
        return out.to(rows.dtype)

    @staticmethod
    def backward(ctx, grad):
        rows, places, gates = ctx.saved_tensors
        wide = torch.promote_types(rows.dtype, gates.dtype)
        n, k = gates.shape
        here = grad.to(wide)[places // k]
        grad_rows = (here * gates.reshape(-1)[places, None].to(wide)).to(rows.dtype)
        grad_gates = torch.zeros(n * k, dtype=wide, device=rows.device)
        grad_gates[places] = (here * rows.to(wide)).sum(dim=1)
        return grad_rows, None, grad_gates.reshape(n, k).to(gates.dtype)


def permute(tokens, experts, num_experts):
    order = experts.reshape(-1).sort(stable=True)
    places = order.indices
    edges = torch.arange(num_experts + 1, device=experts.device)
    counts = torch.searchsorted(order.values, edges).diff()
    return Gather.apply(tokens, places // experts.shape[1]), places, counts


def unpermute(rows, places, gates):
    return Combine.apply(rows, places, gates)
