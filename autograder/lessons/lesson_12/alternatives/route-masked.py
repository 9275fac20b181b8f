"""Gates from a table with zeros where nothing was chosen; the product is written the other way round."""

import torch
from torch import Tensor


def route(tokens: Tensor, router: Tensor, k: int, bias: Tensor | None = None):
    num_experts = len(router)
    if k not in range(1, num_experts + 1):
        raise ValueError(f"cannot visit {k} of {num_experts} experts")
    dtype = torch.promote_types(torch.result_type(tokens, router), torch.float32)
    scores = (router.to(dtype) @ tokens.to(dtype).T).T
    exponentials = (scores - scores.max(-1, keepdim=True).values).exp()
    probabilities = exponentials / exponentials.sum(-1, keepdim=True)
    preferred = probabilities if bias is None else probabilities + bias
    chosen = torch.topk(preferred, k).indices
    mask = torch.zeros_like(probabilities).scatter_(1, chosen, 1.0)
    weights = probabilities * mask
    return (weights / weights.sum(1, keepdim=True)).gather(1, chosen), chosen, probabilities
