"""GPUs, real or stood in for.

    with labkit.devices.stand_in(4, bytes_each=64 * 2**20) as gpus:
        model = nn.Linear(512, 512).to("cuda:3")

Inside, torch has devices `cuda:0` to `cuda:3`, and code written for GPUs runs as it is. What a program can
get wrong about devices, it gets wrong here:

- mixing devices in one operation raises CUDA's error, in CUDA's words;
- each device has a ledger of its own memory: every tensor's bytes are taken when it is made and given back
  when the last tensor that shares them is gone, `torch.cuda.max_memory_allocated` tells the peak, and a full
  ledger raises torch.OutOfMemoryError;
- every copy from one device to another is written down: from where, to where, how many bytes, which stream;
  so is a tensor that is read into a list, or made of one on a device, from two numbers on;
- a copy asked for with `non_blocking=True` holds NaN until its stream was waited for;
- work of a stated duration (`busy`) is queued on a device and returns at once, as kernels do.

What is not imitated: speed (values are computed at once, on the CPU, and take the time they take there);
the kernels themselves (rounding, random numbers and the choice of operations are the CPU's, and
`torch.autocast("cuda")` follows the CPU's lists); the memory that kernels use inside; fragmentation and the
caching of freed blocks, so that a copy never lands in memory that another stream still reads; the check that
a hand-written `autograd.Function` returns each gradient on its input's device; sparse tensors, which are
refused; `torch.Generator("cuda")`,
what `torch.save` remembers of devices, `torch.accelerator`, CUDA graphs, `torch.compile` and threads.

Where a host has enough GPUs, `use` leaves torch alone and answers the same questions about the real ones.
"""

from __future__ import annotations

import torch

from labkit.devices.kernels import FixedTime, busy
from labkit.devices.ledger import rounded
from labkit.devices.queues import Busy
from labkit.devices.real import RealDevices
from labkit.devices.session import StandIns
from labkit.devices.watched import Transfer

__all__ = [
    "Busy",
    "FixedTime",
    "RealDevices",
    "StandIns",
    "Transfer",
    "busy",
    "rounded",
    "stand_in",
    "use",
]


def stand_in(
    count: int, bytes_each: int, late_copies: bool = True, host_link: float | None = None
) -> StandIns:
    """Stand-in devices, on any host. To be entered with `with`, or opened with `.open()`.

    count: how many; they are cuda:0 to cuda:{count-1}. bytes_each: the memory of each, in bytes.
    late_copies: whether copies with `non_blocking=True` hold NaN until they were waited for.
    host_link: bytes a second between the host and a device; None: copies take no time.
    """
    return StandIns(count, bytes_each, late_copies, host_link)


def use(count: int, bytes_each: int) -> StandIns | RealDevices:
    """`count` devices: this host's GPUs where it has as many, stand-ins of `bytes_each` bytes elsewhere."""
    if torch.cuda.device_count() >= count:
        return RealDevices(count)
    return StandIns(count, bytes_each)
