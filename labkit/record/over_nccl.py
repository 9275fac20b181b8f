"""What a rank does over NCCL, where torch gives other things to wait for than over gloo."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from labkit.record.entry import Entry
from labkit.record.recorder import Recorder, install
from labkit.record.state import RUNNING, WAITING, StatePage
from labkit.torch_private_distributed import Call
from labkit.torch_private_gpu import watch_batches


class RecorderOverNccl(Recorder):
    """Knows calls that torch has waited for itself, which give nothing to wait for, and batches of calls,
    which give one thing for all.
    """

    def __init__(self, rank: int, page: StatePage) -> None:
        super().__init__(rank, page)
        self._batches: dict[weakref.ref[Any], list[Entry]] = {}
        self._batch: list[Entry] | None = None  # the calls so far of a batch that is being started

    def posted(self, call: Call, entry: Entry, work: Any) -> None:
        """torch has taken the call; without `work` it is over, or one of a batch."""
        super().posted(call, entry, work)
        if work is not None:
            return
        if self._batch is not None:
            self._batch.append(entry)
        else:
            entry.end = entry.posted

    def batch_begins(self) -> None:
        """The calls from here on are started together."""
        self._batch = []

    def batch_ends(self, work: Any) -> None:
        """They are started; `work` is what the rank may wait for, None where torch has waited."""
        batch, self._batch = self._batch or [], None
        if work is not None and batch:
            self._batches[weakref.ref(work, self._batch_forgotten)] = batch
        else:
            _end(batch)

    def wait(
        self, work: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Wait for `work` as torch does; where it is a batch's, all its calls are over then."""
        batch = self._batches.pop(weakref.ref(work), None)
        if batch is None:
            return super().wait(work, original, args, kwargs)
        self.last = batch[-1]
        self.page.set_call(self._packed_once(self.last), self.last.number)
        self.page.enter(WAITING)
        result = original(work, *args, **kwargs)  # a wait that fails stays on the page: it says what in
        _end(batch)
        self.page.enter(RUNNING)
        return result

    def _batch_forgotten(self, work: weakref.ref[Any]) -> None:
        self._batches.pop(work, None)


def install_over_nccl(recorder: RecorderOverNccl) -> None:
    """Make every communication call of this process pass through `recorder`, and every batch of them."""
    install(recorder)
    watch_batches(recorder.batch_begins, recorder.batch_ends)


def _end(batch: list[Entry]) -> None:
    now = time.monotonic()
    for entry in batch:
        entry.end = now
