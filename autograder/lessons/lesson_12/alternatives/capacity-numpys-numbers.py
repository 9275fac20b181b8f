"""numpy's ceiling; visits are numbered by running sums over a table of all experts."""

import numpy as np


def expert_capacity(tokens, k, num_experts, factor):
    if factor < 0:
        raise ValueError(f"a factor of {factor}")
    return np.ceil(factor * k * tokens / num_experts).astype(int)


def drop(gates, experts, num_experts, capacity):
    first = experts.T.flatten()
    table = (first[:, None] == torch.arange(num_experts, device=experts.device)).int()
    number = (table.cumsum(0) * table).sum(1).view(experts.T.shape).T
    return gates * (number <= capacity)
