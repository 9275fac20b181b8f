"""What stand-in devices replace in torch while they are open: the ways to name, make and move a tensor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.devices.machine import Machine
from labkit.devices.messages import not_for_numpy
from labkit.devices.placement import HOST, Home
from labkit.torch_private import (
    DeviceContext,
    TensorBase,
    TensorProperty,
    device_constructors,
    function_modes,
    parse_to,
)

Base: Any = TensorBase
LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "new_tensor")


def replace_torch(machine: Machine, stack: contextlib.ExitStack) -> None:
    """Put the replacements in place; closing `stack` takes them out again."""
    _replace_tensor_methods(machine, stack)
    _replace_constructors(machine, stack)


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until `stack` closes."""
    own = vars(owner)
    stack.callback(setattr, owner, name, own[name]) if name in own else stack.callback(delattr, owner, name)
    setattr(owner, name, value)


class ToCopy(torch.autograd.Function):
    """A copy to another device whose gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, machine: Machine, home: Home, non_blocking: bool, how: Any) -> Tensor:
        ctx._labkit_machine, ctx.source = machine, machine.placement.home(x)
        return machine.move(x, home, non_blocking, **how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _moved(ctx._labkit_machine, grad, ctx.source, False, {}), None, None, None, None


def _moved(machine: Machine, x: Tensor, home: Home, non_blocking: bool, how: Any) -> Tensor:
    if machine.placement.home(x) == home:
        return x
    if x.requires_grad and torch.is_grad_enabled():
        moved: Tensor = ToCopy.apply(x, machine, home, non_blocking, how)
        return moved
    return machine.move(x, home, non_blocking, **how)


def _replace_tensor_methods(machine: Machine, stack: contextlib.ExitStack) -> None:
    for name, value in (_moving(machine) | _telling(machine) | _reading(machine)).items():
        replace(stack, Tensor, name, value)
    _replace_storage_methods(machine, stack)


def _moving(machine: Machine) -> dict[str, Any]:
    """The methods that copy a tensor to another device."""

    def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        args, copy = _without_copy(args, kwargs)
        device, dtype, non_blocking, memory_format = _read_to(machine, args, kwargs)
        how = {} if memory_format is None else {"memory_format": memory_format}
        if _is_elsewhere(device):
            return Base.to(x, device, dtype or x.dtype, non_blocking, copy, **how)
        home = machine.placement.home(x) if device is None else machine.home_of(device)
        stays = home == machine.placement.home(x)
        y = Base.to(x, dtype or x.dtype, False, copy and stays, **(how if stays else {}))
        return _moved(machine, y, home, non_blocking, how)

    def cuda(x: Tensor, device: Any = None, non_blocking: bool = False, **how: Any) -> Tensor:
        return _moved(machine, x, machine.index_of(device), non_blocking, how)

    def cpu(x: Tensor, **how: Any) -> Tensor:
        return _moved(machine, x, HOST, False, how)

    def copy_(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(source, Tensor) and source.requires_grad and torch.is_grad_enabled():
            source = _moved(machine, source, machine.placement.home(x), non_blocking, {})
        return Base.copy_(x, source, non_blocking)

    return {"to": to, "cuda": cuda, "cpu": cpu, "copy_": copy_, "record_stream": lambda x, stream: None}


def _telling(machine: Machine) -> dict[str, Any]:
    """The attributes that tell where a tensor is, and the rule that its gradient is there too."""
    home = machine.placement.home

    def device(x: Tensor) -> Any:
        index = home(x)
        return Base.device.__get__(x) if index is HOST else machine.devices[index]

    def set_grad(x: Tensor, grad: Tensor | None) -> None:
        if grad is not None and home(grad) != home(x):
            raise RuntimeError("assigned grad has data located on a different device")
        Base.grad.__set__(x, grad)

    return {
        "device": TensorProperty(device),
        "is_cuda": TensorProperty(lambda x: home(x) is not HOST or Base.is_cuda.__get__(x)),
        "is_cpu": TensorProperty(lambda x: home(x) is HOST and Base.is_cpu.__get__(x)),
        "get_device": lambda x: -1 if home(x) is HOST else home(x),
        "grad": TensorProperty(lambda x: Base.grad.__get__(x), set_grad, lambda x: Base.grad.__delete__(x)),
    }


def _reading(machine: Machine) -> dict[str, Any]:
    """What only a tensor on the host can do: be a NumPy array, be pinned; and what the host waits for, as it
    needs all values: a list, a text.
    """
    placement, array_before, text_before = machine.placement, Tensor.__array__, Tensor.__repr__
    reduce_before = Tensor.__reduce_ex__

    def wait_for(x: Tensor) -> None:
        home = placement.home(x)
        if home is not HOST and not machine.watcher.paused:
            machine.queues.current(home).finish()

    def tolist(x: Tensor) -> Any:
        machine.read(x)
        return Base.tolist(x)

    def reduce_ex(x: Tensor, protocol: Any) -> Any:
        machine.read(x)
        return reduce_before(x, protocol)

    def as_text(x: Tensor, **how: Any) -> str:
        wait_for(x)
        with machine.watcher.pause():
            return text_before(x, **how)

    def numpy(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if placement.home(x) is not HOST:
            raise not_for_numpy(x.device)
        return Base.numpy(x, *args, **kwargs)

    def as_array(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if placement.home(x) is not HOST:
            raise not_for_numpy(x.device)
        return array_before(x, *args, **kwargs)

    def pin_memory(x: Tensor, *_: Any) -> Tensor:
        if placement.home(x) is not HOST:
            kind = x.type().split(".")[-1]
            raise RuntimeError(f"cannot pin 'torch.cuda.{kind}' only dense CPU tensors can be pinned")
        return x if placement.is_pinned(x) else placement.pin(x.clone())

    return {
        "numpy": numpy,
        "__array__": as_array,
        "tolist": tolist,
        "__reduce_ex__": reduce_ex,
        "__repr__": as_text,
        "pin_memory": pin_memory,
        "is_pinned": lambda x, *_: placement.is_pinned(x),
    }


def _without_copy(args: Any, kwargs: Any) -> tuple[Any, bool]:
    """The arguments of `Tensor.to` without `copy`, and that: it is the last, after a device and a dtype, or
    after a dtype or a tensor that stands for both. It is taken out of `kwargs`.
    """
    place = 2 if args and isinstance(args[0], Tensor | torch.dtype) else 3
    return args[:place], bool(kwargs.pop("copy", args[place] if len(args) > place else False))


def _read_to(machine: Machine, args: Any, kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format) of the arguments of `Tensor.to`, in any of its forms."""
    first = args[0] if args else kwargs.get("other", kwargs.get("device"))
    if isinstance(first, Tensor):
        rest = [torch.uint8, *args[1:]]  # the dtype only holds the place
        kwargs = {k: v for k, v in kwargs.items() if k != "other"}
        _, _, non_blocking, memory_format = parse_to(*rest, **kwargs)
        return first.device, first.dtype, non_blocking, memory_format
    if isinstance(first, int) and not isinstance(first, bool):
        named = torch.device("cuda", first)
        args, kwargs = (named, *args[1:]) if args else args, {**kwargs, **({} if args else {"device": named})}
    return parse_to(*args, **kwargs)


def _replace_storage_methods(machine: Machine, stack: contextlib.ExitStack) -> None:
    """Storages are copied by deepcopy and emptied by hand; both must stay in the ledger."""
    Storage = torch.UntypedStorage
    resize_before, clone_before = Storage.resize_, Storage.clone

    def seen(storage: Any) -> Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def resize_(storage: Any, size: int) -> Any:
        with machine.watcher.pause():
            view = seen(storage)
        resize_before(storage, size)
        machine.placement.put(view, machine.placement.home(view))
        return storage

    def clone(storage: Any) -> Any:
        copied = clone_before(storage)
        with machine.watcher.pause():
            machine.placement.put(seen(copied), machine.placement.home(seen(storage)))
        return copied

    def reading(method: Callable[..., Any]) -> Callable[..., Any]:
        def read(storage: Any, *where: Any) -> Any:
            with machine.watcher.pause():
                values = seen(storage)
            one = bool(where) and isinstance(where[0], int)
            machine.read(values.new_empty(1) if one else values)
            return method(storage, *where)

        return read

    replace(stack, Storage, "resize_", resize_)
    replace(stack, Storage, "clone", clone)
    for name in ("tolist", "__getitem__", "__reduce__"):
        replace(stack, Storage, name, reading(getattr(Storage, name)))


def _replace_constructors(machine: Machine, stack: contextlib.ExitStack) -> None:
    for function in device_constructors():
        name = getattr(function, "__name__", "")
        if getattr(torch, name, None) is function:
            replace(stack, torch, name, _constructor(machine, getattr(torch, name)))
    for name in ("as_tensor", "asarray"):
        replace(stack, torch, name, _converter(machine, getattr(torch, name)))
    replace(stack, torch, "tensor", _copier(machine, torch.tensor))
    for name in LIKE:
        replace(stack, torch, name, _from_a_tensor(machine, getattr(torch, name), inherits=True))
    for name in NEW:
        inherits = name != "new_tensor"  # values from Python: torch makes them without telling the watcher
        replace(stack, Tensor, name, _from_a_tensor(machine, getattr(Base, name), inherits))


def _constructor(machine: Machine, function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.zeros and its kind: from sizes or values, on a named or the default device."""

    @functools.wraps(function)
    def make(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
        device = _default_device() if device is None else device
        if _is_elsewhere(device):
            return function(*args, device=device, **kwargs)
        home = HOST if device is None else machine.home_of(device)
        return _place(machine, lambda: function(*args, device="cpu", **kwargs), home, pin_memory)

    return make


def _converter(machine: Machine, make: Callable[..., Any]) -> Callable[..., Any]:
    """torch.as_tensor: a tensor stays where it is, unless a device is named."""

    @functools.wraps(make)
    def convert(data: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        if not isinstance(data, Tensor):
            return _from_values(machine, partial(make, data, dtype=dtype, **kwargs), device)
        return data.to(data.device if device is None else device, dtype or data.dtype)

    return convert


def _copier(machine: Machine, make: Callable[..., Any]) -> Callable[..., Any]:
    """torch.tensor: always a copy; of a tensor, where that is unless a device is named."""

    @functools.wraps(make)
    def copy(
        data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kwargs: Any
    ) -> Any:
        if not isinstance(data, Tensor):
            made = _from_values(machine, partial(make, data, dtype=dtype, **kwargs), device)
            return made.requires_grad_(requires_grad)
        where = data.device if device is None else device
        return data.detach().to(where, dtype or data.dtype, copy=True).requires_grad_(requires_grad)

    return copy


def _from_values(machine: Machine, make: Callable[..., Any], device: Any) -> Any:
    """A tensor of Python's numbers or NumPy's: made on the host, and copied to the device that is meant."""
    device = _default_device() if device is None else device
    if device is None or _is_elsewhere(device):
        return make(device=device)
    home = machine.home_of(device)
    return make(device=device) if home is HOST else _brought(machine, make(device="cpu"), home)


def _brought(machine: Machine, made: Tensor, home: int) -> Tensor:
    """What was made on the host, on a device."""
    return machine.bring(made.detach(), home).requires_grad_(made.requires_grad)


def _from_a_tensor(machine: Machine, function: Callable[..., Any], inherits: bool) -> Callable[..., Any]:
    """torch.zeros_like, Tensor.new_zeros: where the given tensor is, unless a device is named."""

    @functools.wraps(function)
    def make(x: Tensor, *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
        if device is None and inherits and not pin_memory:
            return function(x, *args, **kwargs)
        if _is_elsewhere(device):
            return function(x, *args, device=device, **kwargs)
        home = machine.placement.home(x) if device is None else machine.home_of(device)
        with machine.watcher.pause():
            if inherits or home is HOST:
                return _place(machine, lambda: function(x, *args, **kwargs), home, pin_memory)
            made = _place(machine, lambda: function(x, *args, **kwargs), HOST, pin_memory)
        return _brought(machine, made, home)

    return make


def _place(machine: Machine, make: Callable[[], Any], home: Home, pin_memory: bool) -> Any:
    """Make a tensor and write down where it is."""
    machine.watcher.making.append(home)
    try:
        made = make()
    finally:
        machine.watcher.making.pop()
    if isinstance(made, Tensor):
        machine.placement.put(made, home)
    if pin_memory and home is HOST:
        machine.placement.pin(made)
    return made


def _default_device() -> Any:
    """The device of the innermost `with torch.device(...)`, or of torch.set_default_device; None without."""
    modes = function_modes()
    return next((mode.device for mode in reversed(modes) if isinstance(mode, DeviceContext)), None)


def _is_elsewhere(device: Any) -> bool:
    """Whether a device is named that is neither the host nor a stand-in, such as "meta"."""
    known = ("cuda", "cpu")
    return device is not None and not isinstance(device, int) and torch.device(device).type not in known
