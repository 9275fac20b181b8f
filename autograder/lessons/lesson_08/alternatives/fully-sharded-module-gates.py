"""A Function on a unit's outputs says when its backward begins; flat tensors are counted, not units."""

import contextlib

from torch.utils._pytree import tree_flatten, tree_unflatten


class _Gate(torch.autograd.Function):
    """Outputs as they are; whoever stands at the gate is told before their gradients go in."""

    @staticmethod
    def forward(ctx, told, *tensors):
        ctx.told = told
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        ctx.told()
        return None, *grads


class FullyShardedModule(nn.Module):
    def __init__(self, module, units, group, prefetch=1):
        super().__init__()
        self.module = module
        self.units = list(units)
        self.prefetch = prefetch
        self._flats, self._needs, home = [], [], {}
        for unit in self.units:
            kinds = {}
            for p in unit.parameters():
                if p not in home:
                    kinds.setdefault((p.requires_grad, p.dtype), []).append(p)
            for members in kinds.values():
                flat = FlatUnit(members, group)
                self._flats.append(flat)
                home.update(dict.fromkeys(members, flat))
            self._needs.append(list({id(home[p]): home[p] for p in unit.parameters()}.values()))
        for name, p in module.named_parameters():
            if p not in home:
                raise ValueError(f"parameter {name} is in none of the {len(self.units)} units")
        self._home = home
        self.shards = [flat.shard for flat in self._flats if flat.shard.requires_grad]
        self._reset()
        for number, unit in enumerate(self.units):
            unit.register_forward_pre_hook(lambda _, __, number=number: self._enter(number, 1))
            unit.register_forward_hook(lambda _, __, out, number=number: self._gated(number, out))

    def _reset(self):
        self._due = {id(flat): 0 for flat in self._flats}
        self._touched, self._at, self._queued = {}, None, False

    def _enter(self, number, direction):
        near = [number + direction * i for i in range(self.prefetch + 1)]
        wanted = [flat for n in near if 0 <= n < len(self.units) for flat in self._needs[n]]
        kept = set(map(id, wanted))
        for flat in self._flats:
            if id(flat) not in kept:
                flat.free()
        for flat in wanted:
            flat.start_gather()
        for flat in self._needs[number]:
            flat.wait()

    def _gated(self, number, out):
        leaves, spec = tree_flatten(out)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not at:
            return out
        for flat in self._needs[number]:
            self._due[id(flat)] += 1
        gated = _Gate.apply(lambda: self._backward(number), *(leaves[i] for i in at))
        for i, leaf in zip(at, gated, strict=True):
            leaves[i] = leaf
        return tree_unflatten(leaves, spec)

    def _backward(self, number):
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._leave()
        self._at = number
        for flat in self._needs[number]:
            if flat.shard.requires_grad:
                self._touched[id(flat)] = flat
        self._enter(number, -1)

    def _leave(self):
        if self._at is None:
            return
        for flat in self._needs[self._at]:
            self._due[id(flat)] -= 1
            if self._due[id(flat)] <= 0 and id(flat) in self._touched:
                del self._touched[id(flat)]
                flat.scatter()
        self._at = None

    def _end(self):
        self._leave()
        for flat in self._touched.values():
            flat.scatter()
        self._free()
        self._reset()

    def _free(self):
        for flat in self._flats:
            flat.free()

    def forward(self, *args, **kwargs):
        with contextlib.ExitStack() as stack:
            stack.callback(self._free)
            return self.module(*args, **kwargs)

    @torch.no_grad()
    def full_weights(self):
        found = {}
        for flat in self._flats:
            flat.start_gather()
            flat.wait()
            for p in flat.parameters:
                found[p] = p.detach().clone()
            flat.free()
        return {name: found[p] for name, p in self.module.named_parameters(remove_duplicate=False)}
