"""The first run shows, by its graph, whose gradients come of it; backward hands these on itself."""


def _leaves(results: Sequence[Tensor]) -> list[Tensor]:
    found, seen = [], set()
    waiting = [result.grad_fn for result in results if result.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(before for before, _ in node.next_functions if before is not None)
    return found


class _Surroundings:
    def __init__(self, function: Callable):
        self.function = function
        self.devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        self.random = torch.get_rng_state()
        self.cuda_random = [torch.cuda.get_rng_state(d) for d in self.devices]
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self.autocast = [(k, torch.get_autocast_dtype(k), torch.is_autocast_enabled(k)) for k in kinds]

    @contextmanager
    def again(self):
        owner = getattr(self.function, "__self__", self.function)  # a method's module, or what it is itself
        buffers = list(owner.buffers()) if isinstance(owner, nn.Module) else []
        before = [b.detach().clone() for b in buffers]
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=self.devices))
            torch.set_rng_state(self.random)
            for device, state in zip(self.devices, self.cuda_random, strict=True):
                torch.cuda.set_rng_state(state, device)
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            try:
                yield
            finally:
                for buffer, old in zip(buffers, before, strict=True):
                    buffer.data.copy_(old)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, values, leaves, places, rest, *tensors):
        ctx.run, ctx.leaves, ctx.places, ctx.rest, ctx.several = run, leaves, places, rest, len(values) > 1
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        made = tuple(v.detach() if isinstance(v, Tensor) else v for v in values)
        ctx.mark_non_differentiable(*[v for v in made if isinstance(v, Tensor) and not v.is_floating_point()])
        return made

    @staticmethod
    def backward(ctx, *gradients):
        leaves, inputs = ctx.saved_tensors[: ctx.leaves], ctx.saved_tensors[ctx.leaves :]
        fresh = [t.detach().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in inputs]
        arguments = list(ctx.rest)
        for place, tensor in zip(ctx.places, fresh, strict=True):
            arguments[place] = tensor
        function, surroundings = ctx.run
        asked = [t for t in (*leaves, *fresh) if t.requires_grad]
        with surroundings.again(), torch.enable_grad():
            results = function(*arguments)
            results = results if isinstance(results, tuple) else (results,)
            pairs = [
                (r, g)
                for r, g in zip(results, gradients, strict=True)
                if g is not None and isinstance(r, Tensor) and r.requires_grad
            ]
            with torch.autocast("cpu", enabled=False):  # as backward is outside
                made = torch.autograd.grad(
                    [r for r, _ in pairs], asked, [g for _, g in pairs], allow_unused=True
                )
        found = dict(zip(map(id, asked), made, strict=True))
        return (None,) * 5 + tuple(found.get(id(t)) for t in (*leaves, *fresh))


def checkpoint(function: Callable, *args):
    if not torch.is_grad_enabled():
        return function(*args)
    surroundings = _Surroundings(function)
    stand_ins = [
        a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    ]
    results = function(*stand_ins)
    values = results if isinstance(results, tuple) else (results,)
    own = {id(a) for a in stand_ins}
    leaves = [t for t in _leaves([v for v in values if isinstance(v, Tensor)]) if id(t) not in own]
    values = tuple(v.detach() if isinstance(v, Tensor) else v for v in values)
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    rest = [None if isinstance(a, Tensor) else a for a in args]
    single = not isinstance(results, tuple)
    del results, stand_ins
    made = _Again.apply(
        (function, surroundings), values, len(leaves), places, rest, *leaves, *[args[i] for i in places]
    )
    return made[0] if single else made
