"""A seccomp filter for bubblewrap, which takes one as the kernel does: as instructions of its packet filter.

It refuses the calls that give memory which no process has mapped, and which is therefore in nobody's count.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence

UNCOUNTED_MEMORY = ("memfd_create", "memfd_secret", "shmget", "mq_open")

# The kernel's names for the machine (linux/audit.h), and its numbers of these calls (asm/unistd.h).
_ARCHITECTURES: Mapping[str, tuple[int, Sequence[int]]] = {
    "x86_64": (0xC000003E, (319, 447, 29, 240)),
    "aarch64": (0xC00000B7, (279, 447, 194, 180)),
}
_X32 = 0x40000000  # set in the numbers of x86-64's second set of calls
_LOAD, _RETURN, _EQUAL, _AT_LEAST = 0x20, 0x06, 0x15, 0x35  # BPF_LD|W|ABS, BPF_RET|K, BPF_JMP|JEQ|K, JGE|K
_NUMBER, _ARCHITECTURE = 0, 4  # where they are in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def uncounted_memory_refused(machine: str = "") -> bytes:
    """The filter for a machine (this one); empty where the numbers are not known.

    Calls in the way of another architecture, such as 32-bit ones, are refused as a whole.
    """
    known = _ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return b""
    architecture, numbers = known
    refused = len(numbers) + 2  # instructions from the first comparison to the last one, which refuses
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE),
            _instruction(_EQUAL, architecture, otherwise=refused + 1),
            _instruction(_LOAD, _NUMBER),
            _instruction(_AT_LEAST, _X32, then=refused - 1),
            *(_instruction(_EQUAL, n, then=refused - 2 - i) for i, n in enumerate(numbers)),
            _instruction(_RETURN, _ALLOW),
            _instruction(_RETURN, _REFUSE),
        ]
    )


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """struct sock_filter: operation, instructions to skip if true and if false, operand."""
    return struct.pack("=HBBI", code, then, otherwise, value)
