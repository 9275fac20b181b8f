"""Real GPUs, looked at through the same window as stand-in devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from labkit.devices.surface import replace
from labkit.devices.watched import Transfer, Watched, counted
from labkit.torch_private import TorchDispatchMode

_RESET = "reset_peak_memory_stats"


class RealDevices(Watched):
    """The first `count` GPUs of this host. Transfers are counted in passing; before torch resets a peak it is
    noted.
    """

    stand_in = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._mode = _TransferCounter(self.transfers)
        self._before_resets = [0] * count  # the highest peak of each since `reset_peaks`
        self._stack = contextlib.ExitStack()

    def open(self) -> RealDevices:
        """Count transfers from now on."""
        torch.cuda.init()  # before it there is no peak that could be reset
        self._mode.__enter__()
        for owner in (torch.cuda, torch.cuda.memory):  # from the latter, reset_max_memory_allocated takes it
            replace(self._stack, owner, _RESET, self._noting_peaks(getattr(owner, _RESET)))
        self.reset_peaks()
        return self

    def close(self) -> None:
        """Count no more."""
        self._stack.close()
        self._mode.__exit__(None, None, None)

    def allocated(self, index: int) -> int:
        """Bytes torch holds on GPU `index` now."""
        return torch.cuda.memory_allocated(index)

    def peak(self, index: int) -> int:
        """The most bytes torch has held on GPU `index` since the last `reset_peaks`, also where torch's own
        peak was reset since.
        """
        return max(self._before_resets[index], torch.cuda.max_memory_allocated(index))

    def reset_peaks(self) -> None:
        """Measure peaks from now on."""
        for device in self.devices:
            torch.cuda.reset_peak_memory_stats(device)
        self._before_resets = [0] * len(self.devices)

    def synchronize(self) -> None:
        """Wait until everything queued on every GPU is done."""
        for device in self.devices:
            torch.cuda.synchronize(device)

    def title(self) -> str:
        """What a figure of these devices says they are."""
        return f"{counted(len(self.devices), 'GPU')} ({torch.cuda.get_device_name(0)})"

    def _noting_peaks(self, reset: Callable[..., None]) -> Callable[..., None]:
        def noting(*device: Any, **named: Any) -> None:
            self._before_resets = [self.peak(index) for index in range(len(self.devices))]
            reset(*device, **named)

        return noting


class _TransferCounter(TorchDispatchMode):
    """Writes down every operation that copies a tensor from one device to another."""

    COPIES = ("aten::_to_copy", "aten::copy_")

    def __init__(self, transfers: list[Transfer]) -> None:
        super().__init__()
        self.transfers = transfers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name
        if name in self.COPIES:
            source = args[0] if name == "aten::_to_copy" else args[1]
            if source.device != out.device:
                self._note(source, out, bool(kwargs.get("non_blocking") or args[2:3] == (True,)))
        return out

    def _note(self, source: torch.Tensor, out: torch.Tensor, non_blocking: bool) -> None:
        device = out.device if out.is_cuda else source.device
        stream = torch.cuda.current_stream(device)
        number = 0 if stream == torch.cuda.default_stream(device) else stream.stream_id
        size = source.numel() * source.element_size()
        ends = str(source.device), str(out.device)
        pinned = (source if out.is_cuda else out).is_pinned()
        self.transfers.append(Transfer(*ends, size, tuple(source.shape), number, non_blocking, pinned))
