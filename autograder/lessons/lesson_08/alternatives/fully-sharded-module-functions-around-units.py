from functools import partial

from torch.utils._pytree import tree_flatten, tree_unflatten


class Passing(torch.autograd.Function):
    """Tensors as they are; `then` is called when backward comes through."""

    @staticmethod
    def forward(ctx, then, *tensors):
        ctx.then = then
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.then()
        return (None, *gradients)


def passing(then, things):
    """(the same things, whether backward will come through)."""
    leaves, form = tree_flatten(things)
    places = [n for n, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    if not places or not torch.is_grad_enabled():
        return things, False
    for place, tensor in zip(places, Passing.apply(then, *(leaves[n] for n in places)), strict=True):
        leaves[place] = tensor
    return tree_unflatten(leaves, form), True


class FullyShardedModule(nn.Module):
    def __init__(self, module, units, group, prefetch=1):
        super().__init__()
        self.module, self.number_of_units, self.prefetch = module, len(units), prefetch
        home = {}
        for unit in units:
            fresh = {True: [], False: []}
            for p in unit.parameters():
                if p not in home:
                    fresh[p.requires_grad].append(p)
            for members in filter(None, fresh.values()):
                home.update(dict.fromkeys(members, FlatUnit(members, group)))
        lost = [name for name, p in module.named_parameters() if p not in home]
        if lost:
            raise ValueError(f"in no unit: {', '.join(lost)}")
        self.flats = list(dict.fromkeys(home.values()))
        self.flats_of = [list(dict.fromkeys(home[p] for p in unit.parameters())) for unit in units]
        self.shards = [flat.shard for flat in self.flats if flat.shard.requires_grad]
        self.end()
        for number, unit in enumerate(units):
            unit.register_forward_pre_hook(partial(self.before, number), with_kwargs=True)
            unit.register_forward_hook(partial(self.after, number))

    def forward(self, *args, **kwargs):
        try:
            return self.module(*args, **kwargs)
        finally:
            self.keep_only([])

    def keep_only(self, wanted):
        for flat in self.flats:
            if flat not in wanted:
                flat.free()

    def fetch(self, number, step):
        numbers = [number + step * ahead for ahead in range(self.prefetch + 1)]
        wanted = [flat for n in numbers if n in range(self.number_of_units) for flat in self.flats_of[n]]
        self.keep_only(wanted)
        for flat in wanted:
            flat.start_gather()
        for flat in self.flats_of[number]:
            flat.wait()

    def before(self, number, unit, args, kwargs):
        self.fetch(number, 1)
        return passing(partial(self.left, number), (args, kwargs))[0]

    def after(self, number, unit, args, out):
        out, comes_back = passing(partial(self.entered, number), out)
        if comes_back:
            for flat in self.flats_of[number]:
                self.open[flat] = self.open.get(flat, 0) + 1
        return out

    def entered(self, number):
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
        self.unsent.update((flat, None) for flat in self.flats_of[number] if flat.shard.requires_grad)
        self.fetch(number, -1)

    def left(self, number):
        for flat in self.flats_of[number]:
            self.open[flat] = self.open.get(flat, 1) - 1
            if self.open[flat] == 0:
                flat.free()
                self.send(flat)

    def send(self, flat):
        if flat in self.unsent:
            del self.unsent[flat]
            flat.scatter()

    def end(self):
        for flat in list(getattr(self, "unsent", [])):
            flat.free()
            self.send(flat)
        self.keep_only([])
        self.unsent, self.open, self.in_backward = {}, {}, False

    def full_weights(self):
        weights = {}
        for name, p in self.module.named_parameters():
            (flat,) = (flat for flat in self.flats if any(p is q for q in flat.parameters))
            flat.start_gather()
            flat.wait()
            weights[name] = p.detach().clone()
            flat.free()
        return weights
