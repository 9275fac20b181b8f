"""What stand-in devices replace in torch.cuda, torch.autocast and torch.accelerator while they are open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from labkit.devices.session import StandIns
from labkit.devices.streams import Event, Stream


def replace_cuda(session: StandIns, stack: contextlib.ExitStack) -> None:
    """Put the replacements in place; closing `stack` takes them out again."""
    from labkit.devices.surface import replace

    functions = _devices(session) | _memory(session) | _streams(session) | _random(session)
    for name, value in functions.items():
        replace(stack, torch.cuda, name, value)
    replace(stack, torch.autocast, "__init__", _autocast_init(torch.autocast.__init__))
    # As in a build of torch for CPUs. One for CUDA asks the driver, which is not there, whenever Adam steps.
    replace(stack, torch.accelerator, "current_accelerator", lambda check_available=False: None)


def _devices(session: StandIns) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: len(session.devices),
        "current_device": lambda: session.current_device,
        "set_device": lambda device: setattr(session, "current_device", session.index_of(device)),
        "device": partial(_DeviceContext, session),
        "get_device_name": lambda device=None: "stand-in device",
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="stand-in device", total_memory=session.ledgers[session.index_of(device)].capacity
        ),
        "get_device_capability": lambda device=None: (0, 0),
        "can_device_access_peer": lambda device, peer: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
    }


def _memory(session: StandIns) -> dict[str, Callable[..., Any]]:
    def ledger(device: Any = None) -> Any:
        return session.ledgers[session.index_of(device)]

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


def _streams(session: StandIns) -> dict[str, Any]:
    def stream_of(queue: Any) -> Stream:
        return Stream(session, queue=queue)

    @contextlib.contextmanager
    def use_stream(stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        with stream:
            yield

    def set_stream(stream: Stream) -> None:
        session.enter_queue(stream.queue)

    return {
        "Stream": lambda device=None, priority=0: Stream(session, device),
        "Event": partial(Event, session),
        "stream": use_stream,
        "set_stream": set_stream,
        "current_stream": lambda device=None: stream_of(session.queue(session.index_of(device))),
        "default_stream": lambda device=None: stream_of(session.default_queue(session.index_of(device))),
        "synchronize": lambda device=None: session.finish(session.index_of(device)),
    }


def _random(session: StandIns) -> dict[str, Callable[..., Any]]:
    """All devices draw from the CPU's generator."""
    return {
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * len(session.devices),
        "manual_seed": lambda seed: None,  # torch.manual_seed has done it
        "manual_seed_all": lambda seed: None,
    }


class _DeviceContext:
    """Stands in for torch.cuda.device: the device is the current one inside."""

    def __init__(self, session: StandIns, device: Any) -> None:
        self.session = session
        self.index = session.current_device if device is None else session.index_of(device)

    def __enter__(self) -> None:
        self.before, self.session.current_device = self.session.current_device, self.index

    def __exit__(self, *_: object) -> None:
        self.session.current_device = self.before


def _autocast_init(before: Callable[..., None]) -> Callable[..., None]:
    """torch.autocast("cuda") as torch.autocast("cpu"), with the dtype CUDA would choose."""

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, **how: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        before(self, device_type, dtype, enabled, **how)

    return init
