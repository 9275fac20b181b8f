"""What labkit takes from inside torch, where releases differ: modes that watch, types, and tensors.

A new release of torch is looked at here, and in the files beside this one whose names begin alike: nothing
else in labkit uses a name that torch keeps to itself. CONTRIBUTING.md says which releases are supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode, _push_mode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter as tree_iter

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
