"""Seeds are drawn from a generator; a stack puts states back."""


class RandomStreams:
    def __init__(self, seed: int, group: dist.ProcessGroup):
        self.group = group
        seeds = torch.randint(2**62, (1 + group.size(),), generator=torch.Generator().manual_seed(seed))
        self._shared = [seeded_state(int(seeds[0]), group)]
        self._own = [seeded_state(int(seeds[1 + group.rank()]), group)]

    def shared(self):
        return self._within(self._shared)

    def own(self):
        return self._within(self._own)

    def _within(self, stream: list[Tensor]):
        stack = contextlib.ExitStack()

        def leave(outside: Tensor) -> None:
            stream[0] = random_state(self.group)
            set_random_state(outside, self.group)

        @contextlib.contextmanager
        def block():
            with stack:
                stack.callback(leave, random_state(self.group))
                set_random_state(stream[0], self.group)
                yield

        return block()
