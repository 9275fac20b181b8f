"""A softmax with its own backward; a sort in place of topk; indices in place of gather."""

import torch


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        powers = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
        out = powers / powers.sum(dim=1, keepdim=True)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return out * (grad - (out * grad).sum(dim=1, keepdim=True))


def route(tokens, router, k, bias=None):
    if k < 1 or k > router.shape[0]:
        raise ValueError(f"k must be from 1 to {router.shape[0]}, not {k}")
    dtype = torch.promote_types(torch.promote_types(tokens.dtype, router.dtype), torch.float32)
    probabilities = Softmax.apply(torch.nn.functional.linear(tokens.to(dtype), router.to(dtype)))
    ranking = probabilities if bias is None else probabilities + bias.to(dtype)
    experts = torch.argsort(ranking.detach(), dim=1, descending=True, stable=True)[:, :k]
    chosen = torch.zeros_like(probabilities).scatter_(1, experts, 1.0)
    shares = probabilities / (probabilities * chosen).sum(dim=1, keepdim=True)
    rows = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    return shares[rows, experts], experts, probabilities
