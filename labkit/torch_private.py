"""All that labkit takes from inside torch, where releases differ. CONTRIBUTING.md says which are supported.

A new release of torch is looked at here: nothing else in labkit uses a name that torch keeps to itself.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import Store, distributed_c10d
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode, _push_mode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter as tree_iter

_SINCE_GLOO = hasattr(c10d, "_dump_fr_trace_json")  # the flight recorder knows other backends than NCCL
ENABLE_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE" if _SINCE_GLOO else "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}


# What a process imports when it first needs it, hundreds of modules, and the fork server once for all ranks.
IMPORTED_BY_BACKWARD = ("torch.fx.experimental.symbolic_shapes", "torch.nested._internal.nested_tensor")
IMPORTED_BY_OPTIMIZERS = "torch._dynamo"


class WatchingMode(TorchDispatchMode):
    """A dispatch mode that sees what torch computes, in the operations that do the work: what tensors that
    wrap others (a DTensor) ask of those, and what inference mode leaves in one piece.

    Never compiled: so it need not import torch's compiler to say so, which takes seconds on every rank.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # the wrapper's own turn, which comes back here with what it wraps
        if torch.is_inference_mode_enabled():
            taken_apart = self._taken_apart(func, args, given)
            if taken_apart is not NotImplemented:
                return taken_apart
        out = func(*args, **given)
        self.computed(func, (args, given), out)
        return out

    def _taken_apart(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        TorchDispatchMode.__enter__(self)  # of a mode that does more when it is opened, no more than this
        try:
            return func.decompose(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """torch has done `func` (an operator of its dispatcher), outside this mode."""
        raise NotImplementedError


@contextmanager
def modes_of_thread(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """Inside, this thread has these modes, the last one innermost. They are not entered: that changes what
    torch knows of all threads.
    """
    for mode in modes:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


@dataclass(frozen=True)
class Call:
    """How a method of torch's ProcessGroup is read: the collective, and where its input and peer are."""

    op: str
    input: int  # position of the input tensors among the arguments
    name: str  # the same as a keyword
    peer: int | None = None
    blocks: bool = False  # until it is over, instead of giving something to wait for


# Every spelling from 2.8 to 2.15; a release has some of them.
CALLS: dict[str, Call] = {
    "allreduce": Call("all_reduce", 0, "tensors"),
    "allreduce_coalesced": Call("all_reduce", 0, "tensors"),
    "allgather": Call("all_gather", 1, "input_tensors"),
    "_allgather_base": Call("all_gather", 1, "input"),
    "all_gather_single": Call("all_gather", 1, "input"),
    "allgather_coalesced": Call("all_gather", 1, "input_list"),
    "allgather_into_tensor_coalesced": Call("all_gather", 1, "inputs"),
    "all_gather_single_coalesced": Call("all_gather", 1, "inputs"),
    "reduce_scatter": Call("reduce_scatter", 1, "input_tensors"),
    "_reduce_scatter_base": Call("reduce_scatter", 1, "inputTensor"),
    "reduce_scatter_single": Call("reduce_scatter", 1, "input"),
    "reduce_scatter_tensor_coalesced": Call("reduce_scatter", 1, "inputs"),
    "reduce_scatter_single_coalesced": Call("reduce_scatter", 1, "inputs"),
    "broadcast": Call("broadcast", 0, "tensors"),
    "reduce": Call("reduce", 0, "tensors"),
    "gather": Call("gather", 1, "input_tensors"),
    "scatter": Call("scatter", 1, "input_tensors"),
    "alltoall": Call("all_to_all", 1, "input_tensors"),
    "alltoall_base": Call("all_to_all", 1, "input"),
    "all_to_all_single": Call("all_to_all", 1, "input"),
    "send": Call("send", 0, "tensors", peer=1),
    "recv": Call("recv", 0, "tensors", peer=1),
    "recv_anysource": Call("recv", 0, "tensors"),
    "barrier": Call("barrier", 99, ""),
    "monitored_barrier": Call("barrier", 99, "", blocks=True),
}

# The flight recorder's names ("gloo:all_reduce", "nccl:_all_gather_base") to ours.
NATIVE_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "barrier": "barrier",
    "all_barrier": "barrier",
}

# Where the operators of torch.distributed have what they do.
_KERNELS = ("CompositeExplicitAutograd", "CPU", "CUDA", "SparseCPU", "SparseCUDA")
_KEPT: list[torch.library.Library] = []
BACKEND: Any = c10d.Backend  # what a ProcessGroup has for each kind of device, and hands its calls to
FUTURE: Any = torch._C.Future  # what a handle of a call gives; torch.futures.Future is a kind of it
COLLECTS = (torch._C, "_collect_all")  # by which torch.futures.collect_all and wait_all make one of several
_SEND, _RECV, _WAIT = BACKEND.send, BACKEND.recv, dist.Work.wait  # as they are before any change

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def dtype_name(native: str) -> str:
    """As torch spells it in Python: Float is float32; a name not known here is returned in lower case."""
    return _DTYPES.get(native, native.lower())


def dtype_bytes(name: str) -> int:
    """Bytes of one element; 0 for a dtype that torch does not know."""
    dtype = getattr(torch, name, None)
    return dtype.itemsize if isinstance(dtype, torch.dtype) else 0


def collective_operators(operations: Collection[str]) -> list[str]:
    """The dispatcher's operators ("c10d::allreduce_") that do one of these operations ("all_reduce")."""
    return [name for name in torch._C._dispatch_get_all_op_names() if _operation_of(name) in operations]


def _operation_of(operator: str) -> str:
    """What an operator of torch.distributed's does, in the words of CALLS; empty for any other's."""
    space, _, name = operator.partition("::")
    name = name.partition(".")[0].rstrip("_")
    if space == "c10d":
        return CALLS[name].op if name in CALLS else ""
    if "c10d_functional" not in space:
        return ""
    return re.sub(r"(_into_tensor|_tensor|_single|_out)?(_coalesced|_out)*$", "", name)


def replace_operator(name: str, by: Callable[..., Any]) -> None:
    """Have an operator do something else for good, whatever leads to it: Python, TorchScript, or C++."""
    space, _, operator = name.partition("::")
    library = torch.library.Library(space, "IMPL")
    _KEPT.append(library)  # else it is undone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it replaces something
        for key in _KERNELS:
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
                library.impl(operator, by, key)


def flight_recorder_entries() -> list[dict[str, Any]]:
    """Every collective that C++ started on this rank, oldest first; empty where torch cannot tell.

    Fields used: profiling_name, process_group (name, description), input_sizes, input_dtypes,
    time_created_ns.
    """
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            entries: list[dict[str, Any]] = json.loads(dump()).get("entries", [])
        except (RuntimeError, ValueError, TypeError):
            continue
        if entries:
            return entries
    return []


def agreed_options(args: tuple[Any, ...], kwargs: Mapping[str, Any], members: Sequence[int]) -> str:
    """What a collective's options say that must be the same on all ranks: "", "max", "from rank 1" ..."""
    options: Any = kwargs.get("opts", args[-1] if args else None)
    kind: Any = type(options)
    rooted, reducing = _options_of(kind)
    told = _reduction_name(options.reduceOp.op) if reducing else ""
    root = options.rootRank if rooted else -1
    if 0 <= root < len(members):
        told += f", root rank {members[root]}" if told else f"root rank {members[root]}"
    return told


@functools.cache
def _options_of(kind: type) -> tuple[bool, bool]:
    """Whether such options have a root, and a reduction: to ask each time takes as long as all the rest."""
    return hasattr(kind, "rootRank"), hasattr(kind, "reduceOp")


@functools.cache
def _reduction_name(operation: Any) -> str:
    """max for ReduceOp.MAX; torch goes through all of them to find it."""
    name: str = operation.name
    return name.lower()


def watch_new_groups(watching: Callable[[Sequence[int] | None, bool], AbstractContextManager[None]]) -> None:
    """Have every making of a group happen inside `watching(ranks, only_they)`; ranks: in the group's order.
    only_they: nobody else takes part in it.
    """
    original = distributed_c10d._new_group_with_tag

    def watched(ranks: Iterable[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        ranks = None if ranks is None else list(ranks)  # an iterator's can be read once
        members = None if ranks is None else [int(rank) for rank in ranks]  # NumPy's are ranks too
        if members is not None and kwargs.get("sort_ranks", True):
            members.sort()
        with watching(members, bool(kwargs.get("use_local_synchronization"))):
            return original(ranks, *args, **kwargs)

    distributed_c10d._new_group_with_tag = watched


def watch_connected(connected: Callable[[dist.ProcessGroup], None]) -> None:
    """Have `connected(group)` called by each member of a group as soon as its ranks are connected, the group
    of all ranks too, before the group is given to anybody.
    """
    original = distributed_c10d._new_process_group_helper

    def watched(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if isinstance(made[0], dist.ProcessGroup):
            connected(made[0])
        return made

    distributed_c10d._new_process_group_helper = watched


@dataclass(frozen=True)
class GlooTalk:
    """Point to point over a group's gloo, beneath all that watches, records or forbids calls."""

    backend: Any

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> GlooTalk | None:
        """None for a group that has no gloo."""
        cpu = torch.device("cpu")
        if cpu not in group._device_types:
            return None
        backend = group._get_backend(cpu)
        return cls(backend) if backend.name() == "gloo" else None

    def say(self, tensor: torch.Tensor, to: int, tag: int) -> dist.Work:
        return _SEND(self.backend, [tensor], to, tag)

    def hear(self, tensor: torch.Tensor, of: int, tag: int) -> dist.Work:
        return _RECV(self.backend, [tensor], of, tag)

    def wait(self, work: dist.Work, at_most: timedelta) -> None:
        """RuntimeError when it takes longer, or the other one is gone."""
        _WAIT(work, at_most)


def members_of_group(group_name: str) -> tuple[int, ...]:
    """Global ranks of the group that torch calls `group_name`; () for one that no longer exists."""
    world = distributed_c10d._world
    for group, ranks in world.pg_group_ranks.items():
        if world.pg_names.get(group) == group_name:
            return tuple(sorted(ranks))
    return ()


def groups_made() -> set[dist.ProcessGroup]:
    """The groups that this rank has, that of all ranks among them."""
    return set(distributed_c10d._world.pg_map)


def end_groups_but(kept: Collection[dist.ProcessGroup]) -> None:
    """End all others: each has threads and connections. Nobody may be waiting in one of them any more."""
    for group in groups_made() - set(kept):
        dist.destroy_process_group(group)


def job_store() -> Store:
    """The store that all ranks of the default group share."""
    store: Store = distributed_c10d._get_default_store()
    return store


TensorBase: Any = torch._C.TensorBase  # what torch.Tensor inherits its methods from
OpOverload = torch._ops.OpOverload


class TensorProperty(property):
    """A property laid over an attribute of torch.Tensor.

    torch's _dynamo, which optimizers import, asks in older releases which class each of these comes from.
    """

    __objclass__ = torch.Tensor


def device_constructors() -> Iterable[Callable[..., Any]]:
    """The functions of torch that make tensors and take `device=`."""
    return _device_constructors()


def function_modes() -> list[Any]:
    """The TorchFunctionModes that are open, the innermost last."""
    return list(_get_current_function_mode_stack())


def parse_to(*args: Any, **kwargs: Any) -> Any:
    """What the arguments of `Tensor.to` mean: (device, dtype, non_blocking, memory_format)."""
    return torch._C._nn._parse_to(*args, **kwargs)


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current CUDA stream busy."""
    torch.cuda._sleep(cycles)


def storage_key(storage: torch.UntypedStorage) -> int:
    """A number that a storage has for itself, the same through all tensors that show it."""
    return storage._cdata


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor has been changed in place, through whatever shows its memory."""
    return tensor._version


def part_of_this_rank(tensor: torch.Tensor) -> torch.Tensor:
    """What holds the bytes: of a DTensor, as FSDP's parameters are, this rank's own part."""
    own: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return own


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and, last, the values of a sparse tensor, coalesced or not; of any other, itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def quieten_elastic() -> None:
    """Have torch's agent not log that ranks failed: each failure is told once, by the diagnosis.

    A new level is told to every logger of the process; so a fork should find it set.
    """
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    if logger.level != logging.ERROR:
        logger.setLevel(logging.ERROR)


class QuietAgent(LocalElasticAgent):
    """torch's elastic agent, with `look` in place of its own look at the workers, and without what a job here
    has no use for: logs (ranks write their own), metrics, and a wait for agents of other nodes."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec, _NoLogs(), start_method="fork")
        quieten_elastic()

    def look(self, pids: list[int]) -> RunResult:
        """How the workers with these process ids, in order of their ranks, are; called again and again."""
        raise NotImplementedError

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._pcontext is not None
        return self.look([pid for _, pid in sorted(self._pcontext.pids().items())])

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """torch's own asks the name server for this machine's full name ten times a job; nobody reads it."""
        return Event(f"torchelastic.worker.status.{state}", source=source)

    def _exit_barrier(self) -> None:
        """torch's own waits for the agents of other nodes; ours do so when they have reported."""


class _NoLogs(LogsSpecs):
    """Ranks write their own logs: the agent redirects and follows nothing, which would take threads."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nowhere = dict.fromkeys(range(len(envs)), "")
        for environment in envs.values():
            environment["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(stdouts=nowhere, stderrs=dict(nowhere), error_files=dict(nowhere))

    @property
    def root_log_dir(self) -> str:
        return os.devnull
