"""What real and stand-in devices have in common: how they are opened, and what went from one to another."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from labkit.devices.ledger import readable


@dataclass(frozen=True)
class Transfer:
    """One tensor copied from one device to another. pinned: whether its memory on the host is."""

    source: str
    destination: str
    num_bytes: int
    shape: tuple[int, ...]
    stream: int  # of the device; 0 is the default stream
    non_blocking: bool
    pinned: bool


class Watched(ABC):
    """Devices whose memory and transfers are known. For `with`, or open and close."""

    def __init__(self, count: int) -> None:
        self.devices = [torch.device("cuda", index) for index in range(count)]
        self.transfers: list[Transfer] = []

    @abstractmethod
    def open(self) -> Self:
        """Watch from now on."""

    @abstractmethod
    def close(self) -> None:
        """Watch no more."""

    @abstractmethod
    def allocated(self, index: int) -> int:
        """Bytes that device `index` holds now."""

    @abstractmethod
    def peak(self, index: int) -> int:
        """The most bytes that device `index` has held since the last `reset_peaks`, also where torch's own
        peak was reset since.
        """

    @abstractmethod
    def reset_peaks(self) -> None:
        """Measure peaks from now on."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything queued on every device is done."""

    @abstractmethod
    def title(self) -> str:
        """How many devices these are, and of what kind."""

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Transfer]]:
        """A list that holds, when the block has ended, the transfers made inside it."""
        found: list[Transfer] = []
        start = len(self.transfers)
        try:
            yield found
        finally:
            found.extend(self.transfers[start:])

    def __repr__(self) -> str:
        used = [
            f"  {device}: {readable(self.allocated(index))} in use, at most {readable(self.peak(index))}"
            for index, device in enumerate(self.devices)
        ]
        return "\n".join([self.title(), *used, *(f"  {row}" for row in _traffic(self.transfers))])


def _traffic(transfers: Sequence[Transfer]) -> list[str]:
    """One line a pair of devices: how many tensors went from one to the other, and their bytes."""
    pairs = sorted({(t.source, t.destination) for t in transfers})
    rows = []
    for source, destination in pairs:
        sizes = [t.num_bytes for t in transfers if (t.source, t.destination) == (source, destination)]
        rows.append(f"{source} -> {destination}: {counted(len(sizes), 'transfer')}, {readable(sum(sizes))}")
    return rows


def counted(number: int, what: str) -> str:
    """1 transfer, 2 transfers."""
    return f"{number} {what}" + ("" if number == 1 else "s")
