"""A machine of stand-in devices: what is where, what is queued, and how values go from one to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.devices.ledger import Ledger
from labkit.devices.placement import HOST, Home, Placement
from labkit.devices.queues import LateCopy, Queue, Queues, Timeline
from labkit.devices.watched import Transfer
from labkit.devices.watcher import Watcher
from labkit.torch_private import storage_key

SETTINGS = 64  # numbers that may go one by one, as a loss or a scale does, before they count as what they are


class Machine:
    """Stand-in devices, each with `bytes_each` bytes; what of torch is replaced asks and tells it.

    late_copies: whether copies that nobody waited for hold NaN.  host_link: bytes a second between the host
    and a device; None: copies take no time.  transfers: where each copy is written down.  timeline: where
    work and waits are written down, a new one by default.
    """

    def __init__(
        self,
        devices: list[torch.device],
        bytes_each: int,
        late_copies: bool,
        host_link: float | None,
        transfers: list[Transfer],
        timeline: Timeline | None = None,
    ) -> None:
        self.devices, self.transfers = devices, transfers
        self.late_copies, self.host_link = late_copies, host_link
        self.ledgers = [Ledger(index, bytes_each) for index in range(len(devices))]
        self.placement = Placement(self.ledgers)
        self.queues = Queues(devices, timeline)
        self.watcher = Watcher(self.placement, self.queues, self.copy_into, self.read)
        self._alone = 0

    def index_of(self, device: Any = None) -> int:
        """The index of a device given in any form torch takes; of the current one for None."""
        return self.queues.index_of(device)

    def home_of(self, device: Any) -> Home:
        """The index of a stand-in device; HOST for any other device."""
        if isinstance(device, int):
            return self.index_of(device)
        return self.index_of(device) if torch.device(device).type == "cuda" else HOST

    def move(self, x: Tensor, home: Home, non_blocking: bool = False, **how: Any) -> Tensor:
        """A copy of `x` on another device, without a gradient of its own."""
        if home is not HOST:
            self.ledgers[home].require(x.numel() * x.element_size())
        with self.watcher.pause():
            made = torch.empty_like(x.detach(), **how)
        if home is HOST and non_blocking:
            self.placement.pin(made)
        return self.copy_into(self.placement.put(made, home), x, non_blocking)

    def copy_into(self, destination: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy values across devices, in the order of the streams, and write the transfer down."""
        to, come_from = self.placement.home(destination), self.placement.home(source)
        queue = self.queues.current(come_from if to is HOST else to)
        pinned = self.placement.is_pinned(destination if to is HOST else source)
        self._note(queue, destination, source, non_blocking, pinned)
        if to is not HOST and come_from is not HOST:
            self._between_devices(self.queues.current(come_from), self.queues.current(to))
            self._copy(destination, source)
            return destination
        num_bytes = source.numel() * source.element_size()
        self._takes_time(queue, num_bytes, "to host" if to is HOST else "to device")
        if non_blocking and pinned and self.late_copies:
            self._copy_late(queue, destination, source, to)
        else:
            queue.reach()
            if not non_blocking:
                queue.finish()  # first: what is copied may be on its way to the host
            self._copy(destination, source)
        return destination

    def bring(self, values: Tensor, home: int) -> Tensor:
        """What the host made of numbers of its own, on a device: a copy, which the host need not wait for."""
        num_bytes, queue = values.numel() * values.element_size(), self.queues.current(home)
        self.ledgers[home].require(num_bytes)
        with self.watcher.pause():
            made = self.placement.put(values.clone(), home)
        if not self.is_setting(values.numel()):
            where = Transfer(
                "cpu", str(made.device), num_bytes, tuple(values.shape), queue.number, False, False
            )
            self.transfers.append(where)
            self._takes_time(queue, num_bytes, "to device")
        return made

    def read(self, x: Tensor) -> None:
        """The host gets all values of a tensor on a device, as a list: a copy that it waits for."""
        home = self.placement.home(x)
        if home is HOST or self.watcher.paused:
            return
        queue, num_bytes = self.queues.current(home), x.numel() * x.element_size()
        if not self.is_setting(x.numel()):
            where = Transfer(str(x.device), "cpu", num_bytes, tuple(x.shape), queue.number, False, False)
            self.transfers.append(where)
            self._takes_time(queue, num_bytes, "to host")
        queue.finish()

    def _takes_time(self, queue: Queue, num_bytes: int, name: str) -> None:
        if self.host_link is not None:
            queue.add(num_bytes / self.host_link, name, "communication")

    def is_setting(self, numbers: int) -> bool:
        """Whether what goes from or to the host now is a single number, of which there were few."""
        self._alone += numbers == 1
        return numbers == 1 and self._alone <= SETTINGS

    def _copy(self, destination: Tensor, source: Tensor) -> None:
        with self.watcher.pause(), torch.no_grad():
            destination.data.copy_(source.detach())

    def _copy_late(self, queue: Queue, destination: Tensor, source: Tensor, to: Home) -> None:
        if to is HOST:
            queue.reach()
        queue.timeline.goes_on()
        memory = storage_key(source.untyped_storage())
        first = [copy for copy in queue.to_host if copy.memory == memory]
        with self.watcher.pause(), torch.no_grad():
            kept = source.detach().clone() if to is HOST else source.detach()
            destination.data.fill_(float("nan") if destination.dtype.is_floating_point else 0)

        def carry_out() -> None:
            for copy in first:  # what came to the host before, on this stream, and is copied from there
                copy.arrive()
            self._copy(destination, kept)

        copy = LateCopy(queue.device, queue.number, storage_key(destination.untyped_storage()), carry_out)
        if to is HOST:
            queue.to_host.append(copy)
        else:  # comes after the copies to the device before it and reads none: they may be under way
            queue.to_device = [*(one for one in queue.to_device if not one.has_arrived), copy]

    def _between_devices(self, one: Queue, other: Queue) -> None:
        """A copy between devices comes after all that is queued on both, and before what follows."""
        for queue in (one, other):
            queue.reach()
        one.wait_for(other.before)
        other.wait_for(one.before)
        moment = max(one.free_at, other.free_at)
        one.not_before(moment)
        other.not_before(moment)

    def _note(
        self, queue: Queue, destination: Tensor, source: Tensor, non_blocking: bool, pinned: bool
    ) -> None:
        num_bytes = source.numel() * source.element_size()
        ends = str(source.device), str(destination.device)
        self.transfers.append(
            Transfer(*ends, num_bytes, tuple(source.shape), queue.number, bool(non_blocking), pinned)
        )
