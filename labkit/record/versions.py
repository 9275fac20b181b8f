"""What differs between torch releases, for the recorder. Tested with 2.13; written for 2.6 and up."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

_SINCE_GLOO = hasattr(c10d, "_dump_fr_trace_json")  # the flight recorder knows other backends than NCCL
ENABLE_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE" if _SINCE_GLOO else "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}


@dataclass(frozen=True)
class Call:
    """How a method of torch's ProcessGroup is read: the collective, and where its input and peer are."""

    op: str
    input: int  # position of the input tensors among the arguments
    name: str  # the same as a keyword
    peer: int | None = None


# Every spelling from 2.6 to 2.13; a release has some of them.
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
    "monitored_barrier": Call("barrier", 99, ""),
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
