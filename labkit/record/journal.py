"""Writes down what a rank does, in order and without a clock: arithmetic, bytes, calls, waits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from labkit.record.exchange import leaving_bytes
from labkit.record.live import has_bytes
from labkit.record.names import named_as
from labkit.record.recorder import Recorder
from labkit.record.replay import Act
from labkit.torch_private import WatchingMode, dense_parts, tree_iter
from labkit.torch_private_distributed import CALLS, COLLECTS, FUTURE

# By what a handle of a call is waited for, or says that this is over.
_WAITS: dict[type, tuple[str, ...]] = {
    dist.Work: ("wait", "result", "synchronize"),
    FUTURE: ("wait", "value"),
}
_CALLS_BACK = ("then", "add_done_callback")  # of a future: when its call is over
_ASKS = ((dist.Work, "is_completed"), (FUTURE, "done"))
_CALLS = ("c10d", "_c10d_functional")  # namespaces of torch's operators
_ATTENTION = "_scaled_dot_product"
_BACKWARD_PRODUCTS = 5  # of the two that attention's forward takes: scores again, and two gradients of each

# Operators of products, and which of their tensors is the first factor.
_FIRST_FACTOR = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_int_mm", "_scaled_mm", "_grouped_mm", "_sparse_mm"), 0),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "_addmm_activation", "_sparse_addmm", "sspaddmm"), 1),
    **dict.fromkeys(("_linalg_solve_ex", "linalg_solve_triangular", "triangular_solve"), 0),
}
_OF_ROWS = ("linear", "_linear_pointwise", "_cdist_forward", "_euclidean_dist")  # with each row of the second
_OF_VECTORS = {"mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "addr": 0}  # as many multiply-adds as this one has
_OF_ONE_MATRIX = ("linalg_inv_ex", "linalg_matrix_exp", "cholesky_inverse")
_FUSED = ("_trilinear", "mkldnn_rnn_layer", "_transformer_encoder_layer_fwd", "_native_multi_head_attention")


class Arithmetic(WatchingMode):
    """Keeps what is computed inside `with Arithmetic() as arithmetic:`; read `arithmetic.acts` afterwards.

    Operations are those that torch dispatches, forward and backward alike, but for views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Act] = []

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Add it to what was computed before, if it is no call and no view."""
        if func.namespace in _CALLS or func.is_view:
            return
        touched = [t for t in tree_iter((inputs, out)) if has_bytes(t)]
        num_bytes = sum({id(t): t.nbytes for t in touched}.values())
        flops, ops = flops_of(func._schema.name, operands_of(inputs)), 1
        if self.acts and self.acts[-1].kind == "compute":
            last = self.acts.pop()
            flops, num_bytes, ops = flops + last.flops, num_bytes + last.num_bytes, 1 + last.ops
        self.acts.append(Act("compute", flops, num_bytes, ops))


class Journal(Arithmetic):
    """Keeps a rank's acts inside `with Journal(recorder) as journal:`; read `journal.acts` afterwards.

    Beside its arithmetic these are calls that Python makes through torch.distributed, and each is waited for
    once: by the first that waits for its handle, or is told by it that it is over. DistributedDataParallel
    waits in C++, where none is seen.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._numbers: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()
        self._calls = 0
        self._waited: set[int] = set()
        self._over = threading.local()  # `numbers`: of the calls of whose end this thread is telling
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Journal:
        for name, call in CALLS.items():
            original = getattr(dist.ProcessGroup, name, None)
            if original is not None:
                _replace(self._stack, dist.ProcessGroup, name, self._noting_start(original, call.blocks))
        for kind, names in _WAITS.items():
            for name in names:
                _replace(self._stack, kind, name, self._noting_wait(getattr(kind, name)))
        for kind, name in _ASKS:
            _replace(self._stack, kind, name, self._noting_wait(getattr(kind, name), only_if_true=True))
        _replace(self._stack, dist.Work, "get_future", self._following(dist.Work.get_future))
        for name in _CALLS_BACK:
            _replace(self._stack, FUTURE, name, self._calling_back(getattr(FUTURE, name)))
        _replace(self._stack, FUTURE, "set_result", self._following_results(FUTURE.set_result))
        owner, name = COLLECTS
        _replace(self._stack, owner, name, self._following_all(getattr(owner, name)))
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
                self._numbers[work] = frozenset([self._calls])
            if blocks:
                self.acts.append(Act("wait", number=self._calls))
            self._calls += 1
            return work

        return call

    def _noting_wait(self, original: Callable[..., Any], only_if_true: bool = False) -> Callable[..., Any]:
        """The method of a handle, after which its call is over; only_if_true: if it says so."""

        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            if result or not only_if_true:
                self._note_wait(handle)
            return result

        return wait

    def _note_wait(self, handle: Any) -> None:
        for number in sorted(self._numbers.get(handle, frozenset()) - self._waited):
            self._waited.add(number)
            self.acts.append(Act("wait", number=number))

    def _following(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """What gives a future that is over when a handle is."""
        return lambda handle: self._follow(method(handle), [handle])

    def _calling_back(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """What has a future call something, and may give another that is over after that."""

        def calling_back(future: Any, callback: Callable[..., Any]) -> Any:
            given = method(future, self._telling(self._numbers.get(future, frozenset()), callback))
            return self._follow(given, [future]) if given is not None else None

        return calling_back

    def _telling(self, numbers: frozenset[int], callback: Callable[..., Any]) -> Callable[..., Any]:
        def telling(future: Any) -> Any:
            before, self._over.numbers = self._now_over(), numbers
            try:
                return callback(future)
            finally:
                self._over.numbers = before

        return telling

    def _following_results(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A future of the program's own is over when the calls are whose end has it set."""

        def setting(future: Any, result: Any) -> None:
            self._follow_calls(future, self._now_over() | self._numbers.get(future, frozenset()))
            method(future, result)

        return setting

    def _now_over(self) -> frozenset[int]:
        return getattr(self._over, "numbers", frozenset())

    def _following_all(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What gives a future that is over when all of these are."""

        def following(futures: Any) -> Any:
            given = list(futures)
            return self._follow(function(given), given)

        return following

    def _follow(self, future: Any, handles: Sequence[Any]) -> Any:
        numbers = (self._numbers.get(handle, frozenset()) for handle in handles)
        return self._follow_calls(future, frozenset[int]().union(*numbers))

    def _follow_calls(self, future: Any, numbers: frozenset[int]) -> Any:
        if numbers:
            self._numbers[future] = numbers
        return future


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    original = getattr(owner, name)
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, named_as(original, value))


def operands_of(inputs: Any) -> list[Tensor]:
    """The tensors among an operator's arguments, in order, dense or sparse, and of any class."""
    return [thing for thing in tree_iter(inputs) if isinstance(thing, Tensor)]


def flops_of(name: str, operands: Sequence[Tensor]) -> int:
    """Operations of products, convolutions and attention, a multiply-add as two; 0 for everything else.

    A convolution is taken to have as many places as its input: with a stride it has fewer. Of a sparse tensor
    only the elements that are there count.
    name: as torch's schema has it, "aten::mm". operands: the tensors among the arguments, in order.
    """
    op = name.rpartition("::")[2]
    op = op if op.startswith("_") and op.endswith("__") else op.removesuffix("_")  # in place is as much work
    if op.startswith(_ATTENTION):
        products = _BACKWARD_PRODUCTS if "backward" in op else 2
        query, key = operands[1:3] if "backward" in op else operands[:2]
        return 2 * products * _numel(query) * _shape(key)[-2]
    if op in _FIRST_FACTOR:
        first, second = operands[_FIRST_FACTOR[op] :][:2]
        return 2 * _numel(first) * _shape(second)[-1]
    if op in _OF_ROWS:
        return 2 * _numel(operands[0]) * _shape(operands[1])[-2]
    if op in _OF_VECTORS:
        return 2 * _numel(operands[_OF_VECTORS[op]])
    if op in _OF_ONE_MATRIX:
        return 2 * _numel(operands[0]) * _shape(operands[0])[-1]
    if op in _FUSED:
        rows = _numel(operands[0]) // max(_shape(operands[0])[-1], 1)
        return 2 * rows * sum(_numel(t) for t in operands[1:] if t.dim() > 1)
    if op == "_embedding_bag":  # a sum of rows, or of rows times weights
        weighted = operands[3:] and operands[0].dim() == 2
        return 2 * _numel(operands[1]) * _shape(operands[0])[-1] if weighted else 0
    if op in ("convolution", "_convolution"):
        image, kernel = operands[:2]
        channels = 1 if image.dim() < kernel.dim() else image.shape[1]
        return 2 * _numel(image) // max(channels, 1) * _numel(kernel)
    return 0


def _numel(tensor: Tensor) -> int:
    """How many elements are there, of a sparse tensor those that it has."""
    return dense_parts(tensor)[-1].numel()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Of a nested tensor, its rows one below the other."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    last = max(tensor.size(-1), 1)
    return tensor.numel() // last, last
