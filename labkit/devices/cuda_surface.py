"""What stand-in devices replace in torch.cuda, torch.autocast and torch.accelerator while they are open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from labkit.devices.machine import Machine
from labkit.devices.streams import Stream, kinds_of
from labkit.devices.surface import replace


def replace_cuda(machine: Machine, stack: contextlib.ExitStack) -> None:
    """Put the replacements in place; closing `stack` takes them out again."""
    functions = _devices(machine) | _memory(machine) | _streams(machine) | _random(machine)
    for name, value in functions.items():
        replace(stack, torch.cuda, name, value)
    replace(stack, torch.autocast, "__init__", _autocast_init(torch.autocast.__init__))
    # As in a build of torch for CPUs. One for CUDA asks the driver, which is not there, whenever Adam steps.
    replace(stack, torch.accelerator, "current_accelerator", lambda check_available=False: None)


def _devices(machine: Machine) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: len(machine.devices),
        "current_device": lambda: machine.queues.current_device,
        "set_device": lambda device: setattr(machine.queues, "current_device", machine.index_of(device)),
        "device": partial(_DeviceContext, machine),
        "get_device_name": lambda device=None: "stand-in device",
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="stand-in device", total_memory=machine.ledgers[machine.index_of(device)].capacity
        ),
        "get_device_capability": lambda device=None: (0, 0),
        "can_device_access_peer": lambda device, peer: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
    }


def _memory(machine: Machine) -> dict[str, Callable[..., Any]]:
    def ledger(device: Any = None) -> Any:
        return machine.ledgers[machine.index_of(device)]

    def statistics(device: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": ledger(device).allocated,
            "allocated_bytes.all.peak": ledger(device).peak,
        }

    return {
        "memory_allocated": lambda device=None: ledger(device).allocated,
        "max_memory_allocated": lambda device=None: ledger(device).peak,
        "memory_reserved": lambda device=None: ledger(device).allocated,
        "max_memory_reserved": lambda device=None: ledger(device).peak,
        "reset_peak_memory_stats": lambda device=None: ledger(device).reset_peak(),
        "reset_max_memory_allocated": lambda device=None: ledger(device).reset_peak(),
        "mem_get_info": lambda device=None: (ledger(device).free, ledger(device).capacity),
        "memory_stats": statistics,
        "empty_cache": lambda: None,
    }


def _streams(machine: Machine) -> dict[str, Any]:
    kind, event = kinds_of(machine.queues)

    def stream_of(queue: Any) -> Stream:
        return kind(queue=queue)

    @contextlib.contextmanager
    def use_stream(stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        with stream:
            yield

    def set_stream(stream: Stream) -> None:
        machine.queues.enter(stream._labkit_queue)

    return {
        "Stream": kind,
        "Event": event,
        "stream": use_stream,
        "set_stream": set_stream,
        "current_stream": lambda device=None: stream_of(machine.queues.current(machine.index_of(device))),
        "default_stream": lambda device=None: stream_of(machine.queues.default(machine.index_of(device))),
        "synchronize": lambda device=None: machine.queues.finish(machine.index_of(device)),
    }


def _random(machine: Machine) -> dict[str, Callable[..., Any]]:
    """All devices draw from the CPU's generator."""
    return {
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * len(machine.devices),
        "manual_seed": lambda seed: None,  # torch.manual_seed has done it
        "manual_seed_all": lambda seed: None,
    }


class _DeviceContext:
    """Stands in for torch.cuda.device: the device is the current one inside."""

    def __init__(self, machine: Machine, device: Any) -> None:
        self._labkit_queues = machine.queues
        self._labkit_index = (
            self._labkit_queues.current_device if device is None else machine.index_of(device)
        )

    def __enter__(self) -> None:
        self._labkit_before, self._labkit_queues.current_device = (
            self._labkit_queues.current_device,
            self._labkit_index,
        )

    def __exit__(self, *_: object) -> None:
        self._labkit_queues.current_device = self._labkit_before


def _autocast_init(before: Callable[..., None]) -> Callable[..., None]:
    """torch.autocast("cuda") as torch.autocast("cpu"), with the dtype CUDA would choose."""

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, **how: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        before(self, device_type, dtype, enabled, **how)

    return init
