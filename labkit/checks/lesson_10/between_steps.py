"""What a program holds, and has done, between two steps: when it asks for the next batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from torch import Tensor

from labkit.checks.shared.held import allocated_now
from labkit.record.live import settled_bytes_of_process

SEEN = 0.9  # of the products of a plain step
SETTLING = 0.2  # seconds in which a backend lets go of what it held


class LoadedBatches:
    """One batch a step, as a notebook's loader has them.

    asked: called before each with its number; what it knows is out of the student's reach.
    """

    def __init__(self, batches: Sequence[Tensor], asked: Callable[[int], None]) -> None:
        self._batches, self._asked = batches, asked

    def __iter__(self) -> Iterator[Tensor]:
        for number, batch in enumerate(self._batches):
            self._asked(number)
            yield batch

    def __len__(self) -> int:
        return len(self._batches)


class BetweenSteps:
    """Looks what this process holds, and has done, when a batch is asked for.

    most: bytes of all tensors then, at most, but for the first batch. most_allocated: the same of memory,
    which has what sparse tensors hold, too. steps: how many batches there are.
    done: operations of products so far.
    """

    def __init__(self, steps: int, done: Callable[[], int]) -> None:
        self.most = self.most_allocated = 0
        self._steps, self._done = steps, done
        self._at_batches: list[int] = []

    def look(self, number: int) -> None:
        """Before the batch of this number."""
        if number:
            self.most = max(self.most, settled_bytes_of_process(SETTLING))
            self.most_allocated = max(self.most_allocated, allocated_now())  # that has settled, too
        self._at_batches.append(self._done())

    @property
    def early(self) -> bool:
        """Whether one was asked for before the one before it was worked on, or most of that: the batches are
        of one size. To be asked when all is trained.
        """
        whole = self._done()
        of_steps = [after - before for before, after in pairwise([*self._at_batches, whole])]
        return any(done * self._steps <= SEEN * whole for done in of_steps)
