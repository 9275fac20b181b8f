"""All messages are asked for before the first is sent, sends are waited for at the end, part i is every n-th
element from i on.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(x: Tensor, group: dist.ProcessGroup) -> None:
    n, r = dist.get_world_size(group=group), dist.get_rank(group=group)
    flat = x.contiguous().flatten()
    parts = {i: flat[i::n].clone() for i in range(n)}
    places = [(r - k - 1) % n for k in range(2 * (n - 1))]
    inbox = [torch.empty_like(parts[place]) for place in places]
    arrivals = [dist.irecv(t, group=group, group_src=(r - 1) % n) for t in inbox]
    departures = []
    for k, place in enumerate(places):
        outgoing = parts[(r - k) % n].clone()
        # kept beside its handle: until that is waited for, its memory must not be used again
        departures.append((outgoing, dist.isend(outgoing, group=group, group_dst=(r + 1) % n)))
        arrivals[k].wait()
        parts[place] = parts[place] + inbox[k] if k < n - 1 else inbox[k]
    whole = torch.empty_like(flat)
    for i, part in parts.items():
        whole[i::n] = part
    for _, departure in departures:
        departure.wait()
    x.copy_(whole.view_as(x))
