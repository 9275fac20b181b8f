"""The copies of each expert are looked up, one expert after the other; sums by index_add."""

import torch
from torch import Tensor


def permute(tokens: Tensor, experts: Tensor, num_experts: int):
    copies = experts.reshape(-1)
    found = [(copies == expert).nonzero().squeeze(1) for expert in range(num_experts)]
    places = torch.cat(found)
    counts = torch.tensor([len(own) for own in found], device=tokens.device)
    return tokens.index_select(0, places // experts.shape[1]), places, counts


def unpermute(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    weighted = rows * gates.reshape(-1)[places].unsqueeze(1)
    out = torch.zeros(gates.shape[0], rows.shape[1], dtype=weighted.dtype, device=rows.device)
    return out.index_add(0, places // gates.shape[1], weighted).to(rows.dtype)
