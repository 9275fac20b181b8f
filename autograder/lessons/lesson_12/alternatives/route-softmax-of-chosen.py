"""Gates as Mixtral writes them: the softmax of the chosen scores."""

import torch
from torch import Tensor


def route(tokens: Tensor, router: Tensor, k: int, bias: Tensor | None = None):
    if k < 1 or k > router.shape[0]:
        raise ValueError(f"k is {k}, and there are {router.shape[0]} experts")
    wide = torch.float64 if torch.float64 in (tokens.dtype, router.dtype) else torch.float32
    logits = torch.nn.functional.linear(tokens.to(wide), router.to(wide))
    probabilities = torch.softmax(logits, -1)
    chosen = (probabilities.detach() + (0 if bias is None else bias)).argsort(-1, descending=True)[:, :k]
    return torch.softmax(torch.gather(logits, 1, chosen), -1), chosen, probabilities
