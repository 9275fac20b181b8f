"""What labkit takes from inside torch.distributed: its calls and operators, groups, and flight recorder."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import Store, distributed_c10d

_SINCE_GLOO = hasattr(c10d, "_dump_fr_trace_json")  # the flight recorder knows other backends than NCCL
ENABLE_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE" if _SINCE_GLOO else "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}


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
