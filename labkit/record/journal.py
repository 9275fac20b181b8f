"""Writes down what a rank does, in order and without a clock: arithmetic, bytes, calls, waits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from labkit.record.exchange import leaving_bytes
from labkit.record.live import has_bytes
from labkit.record.recorder import Recorder
from labkit.record.replay import Act
from labkit.torch_private import CALLS, WatchingMode, tree_iter

_CALLS = ("c10d", "_c10d_functional")  # namespaces of torch's operators
_ATTENTION = "_scaled_dot_product"
_BACKWARD_PRODUCTS = 5  # of the two that attention's forward takes: scores again, and two gradients of each


class Journal(WatchingMode):
    """Keeps a rank's acts inside `with Journal(recorder) as journal:`; read `journal.acts` afterwards.

    Operations are those that torch dispatches, forward and backward alike, but for views. Calls are those
    that Python makes through torch.distributed; DistributedDataParallel waits in C++, where none is seen.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.acts: list[Act] = []
        self._recorder = recorder
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._calls = 0
        self._stack = contextlib.ExitStack()

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Add it to what was computed before, if it is no call and no view."""
        if func.namespace in _CALLS or func.is_view:
            return
        operands = [t for t in tree_iter(inputs) if has_bytes(t)]
        touched = [*operands, *(t for t in tree_iter(out) if has_bytes(t))]
        num_bytes = sum({id(t): t.nbytes for t in touched}.values())
        flops, ops = flops_of(func._schema.name, operands), 1
        if self.acts and self.acts[-1].kind == "compute":
            last = self.acts.pop()
            flops, num_bytes, ops = flops + last.flops, num_bytes + last.num_bytes, 1 + last.ops
        self.acts.append(Act("compute", flops, num_bytes, ops))

    def __enter__(self) -> Journal:
        for name, call in CALLS.items():
            original = getattr(dist.ProcessGroup, name, None)
            if original is not None:
                _replace(self._stack, dist.ProcessGroup, name, self._noting_start(original, call.blocks))
        _replace(self._stack, dist.Work, "wait", self._noting_wait(dist.Work.wait))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _noting_start(self, original: Callable[..., Any], blocks: bool) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = original(group, *args, **kwargs)
            entry = self._recorder.last  # which the recorder has just made of this call
            assert entry is not None
            self.acts.append(
                Act(
                    "start",
                    num_bytes=entry.num_bytes,
                    number=self._calls,
                    op=entry.op,
                    members=entry.members,
                    peer=entry.peer,
                    tag=entry.tag,
                    crossing=max(
                        leaving_bytes(self._recorder.rank, entry.members, parts)
                        for parts in (entry.sent, entry.received)
                    ),
                )
            )
            if work is not None:
                self._numbers[work] = self._calls
            if blocks:
                self.acts.append(Act("wait", number=self._calls))
            self._calls += 1
            return work

        return call

    def _noting_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            number = self._numbers.pop(work, None)
            if number is not None:
                self.acts.append(Act("wait", number=number))
            return result

        return wait


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def flops_of(name: str, operands: Sequence[Tensor]) -> int:
    """Operations of products, convolutions and attention, a multiply-add as two; 0 for everything else.

    A convolution is taken to have as many places as its input: with a stride it has fewer.
    name: as torch's schema has it, "aten::mm". operands: the tensors among the arguments, in order.
    """
    op = name.removeprefix("aten::")
    shapes = [tuple(t.shape) for t in operands]
    if op.startswith(_ATTENTION):
        products = _BACKWARD_PRODUCTS if "backward" in op else 2
        query, key = (shapes[1], shapes[2]) if "backward" in op else (shapes[0], shapes[1])
        return 2 * products * math.prod(query) * key[-2]
    if op in ("mm", "bmm"):
        return 2 * math.prod(shapes[0]) * shapes[1][-1]
    if op in ("addmm", "baddbmm"):
        return 2 * math.prod(shapes[1]) * shapes[2][-1]
    if op in ("mv", "dot", "vdot"):
        return 2 * math.prod(shapes[0])
    if op == "addmv":
        return 2 * math.prod(shapes[1])
    if op in ("convolution", "_convolution"):
        channels = 1 if len(shapes[0]) < len(shapes[1]) else shapes[0][1]
        return 2 * math.prod(shapes[0]) // max(channels, 1) * math.prod(shapes[1])
    return 0
