class FullyShardedModule(nn.Module):
    """`module`, whose units are whole on a rank only while they are used (stage 3, FSDP)."""

    shards: list[nn.Parameter]  # this rank's shard of everything that is trained, for an optimizer

    def __init__(
        self, module: nn.Module, units: Sequence[nn.Module], group: dist.ProcessGroup, prefetch: int = 1
    ):
        """module: equal on every rank. prefetch: how many units ahead are fetched.

        Raises ValueError, naming the parameter, if one is in no unit.
        """
        super().__init__()
        self.module = module
        self.units = list(units)
        self.prefetch = prefetch
        self.flats: list[FlatUnit] = []
        self.needs: list[list[FlatUnit]] = []  # of each unit
        owner: dict[nn.Parameter, FlatUnit] = {}
        for unit in self.units:
            for trained in (True, False):
                own = [p for p in unit.parameters() if p not in owner and p.requires_grad == trained]
                if own:
                    self.flats.append(FlatUnit(own, group))
                    owner |= dict.fromkeys(own, self.flats[-1])
            self.needs.append(list(dict.fromkeys(owner[p] for p in unit.parameters())))
        homeless = [name for name, p in module.named_parameters() if p not in owner]
        if homeless:
            raise ValueError(f"every parameter must be in one of the units; {homeless[0]} is in none")
        self.shards = [flat.shard for flat in self.flats if flat.shard.requires_grad]
        self.calls = dict.fromkeys(self.flats, 0)  # forward calls that backward has not left yet
        self.touched: list[FlatUnit] = []  # by this backward, and not scattered yet
        self.at_work: int | None = None  # the unit that backward is in
        for number, unit in enumerate(self.units):
            unit.register_forward_pre_hook(lambda unit, args, number=number: self._enter(number, +1))
            unit.register_forward_hook(lambda unit, args, out, number=number: self._called(number, args, out))
            del unit

    def forward(self, *args, **kwargs):
        """What `module` returns."""
        try:
            return self.module(*args, **kwargs)
        finally:
            for flat in self.flats:
                flat.free()

    def _enter(self, number: int, direction: int) -> None:
        ahead = range(number, number + direction * (self.prefetch + 1), direction)
        window = [flat for n in ahead if 0 <= n < len(self.units) for flat in self.needs[n]]
        keep = set(window)
        for flat in self.flats:
            flat.free() if flat not in keep else None
        for flat in window:
            flat.start_gather()
        for flat in window[: len(self.needs[number])]:
            flat.wait()

    def _called(self, number: int, args: tuple, output: object) -> object:
        output = tree_map(lambda t: t.view_as(t) if isinstance(t, Tensor) and t.requires_grad else t, output)
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        if tensors:
            for flat in self.needs[number]:
                self.calls[flat] += 1
            entered = []

            def before(gradient: Tensor) -> None:
                if not entered:
                    entered.append(True)
                    self._enter_backward(number)

            for tensor in tensors:
                tensor.register_hook(before)
        return output

    def _enter_backward(self, number: int) -> None:
        if self.at_work is None:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._leave()
        self.at_work = number
        self.touched += [f for f in self.needs[number] if f.shard.requires_grad and f not in self.touched]
        self._enter(number, -1)

    def _leave(self) -> None:
        for flat in self.needs[self.at_work] if self.at_work is not None else ():
            self.calls[flat] -= 1
            if self.calls[flat] <= 0 and flat in self.touched:
                self._scatter(flat)

    def _scatter(self, flat: FlatUnit) -> None:
        self.touched.remove(flat)
        flat.free()
        flat.scatter()

    def _finish(self) -> None:
        self._leave()
        for flat in list(self.touched):
            self._scatter(flat)
        for flat in self.flats:
            flat.free()
        self.calls = dict.fromkeys(self.flats, 0)
        self.at_work = None

    def full_weights(self) -> dict[str, Tensor]:
        """All weights, whole, by their names in `module`: the same on every rank, which all call it."""
        names = {p: name for name, p in self.module.named_parameters()}
        found: dict[str, Tensor] = {}
        for flat in self.flats:
            flat.start_gather()
            flat.wait()
            found |= {names[p]: p.detach().clone() for p in flat.parameters}
            flat.free()
        return found
