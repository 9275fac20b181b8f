"""Filters of system calls, as the kernel takes them: instructions of its packet filter (seccomp).

One for a sandbox as a whole: calls that give memory which no process has mapped, and which is therefore in
nobody's count. One for each rank: also calls with which it could leave its place or tell another rank
something that does not go over the network.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

UNCOUNTED_MEMORY = ("memfd_create", "memfd_secret", "shmget", "mq_open", "io_uring_setup", "userfaultfd")

MOUNTING = (  # and other ways to a file system of one's own
    *("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree"),
    *("move_mount", "mount_setattr"),
)
OTHER_NAMESPACES = ("unshare", "setns")
KEYS = ("add_key", "request_key", "keyctl")  # the user's, whichever of the user's processes put them there

# To be somewhere else, to look into a process, and everything that two ranks could both touch: locks and
# watches on files, which of a file's pages are cached, how full a file system is.
LEAVING = (
    *(*OTHER_NAMESPACES, *MOUNTING, "name_to_handle_at", "open_by_handle_at"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_open", "pidfd_getfd"),
    *("bpf", "perf_event_open", "io_uring_enter", "io_uring_register"),
)
TELLING = (
    *(*KEYS, "flock", "inotify_init", "inotify_init1", "inotify_add_watch"),
    *("fanotify_init", "fanotify_mark", "statfs", "fstatfs", "mincore", "cachestat", "socketpair"),
    *("shmat", "shmctl", "msgget", "semget", "pidfd_send_signal"),
)
# fcntl's commands for locks, leases and signals to others (asm-generic/fcntl.h).
SHARED_LOCKS = (6, 7, 8, 10, 15, 37, 38, 1024, 1026)
NAMESPACES = 0x7E020000  # CLONE_NEW* of clone()
FAMILIES = (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK (which getaddrinfo and gloo ask for interfaces)

# The kernel's names for the machines (linux/audit.h), and its numbers of these calls (asm/unistd.h).
_MACHINES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "mincore": (27, 232),
    "cachestat": (451, 451),
    "socketpair": (53, 199),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "semget": (64, 190),
    "socket": (41, 198),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
}
_X32 = 0x40000000  # set in the numbers of x86-64's second set of calls
# BPF_LD|W|ABS, BPF_RET|K, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_JMP|JSET|K
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # in struct seccomp_data: arguments' low halves
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


@dataclass(frozen=True)
class Rule:
    """A call that is refused. only: where in the kernel's data the argument stands that decides, how it is
    compared, with what, and whether a match refuses or allows; without it the call is refused whatever its
    arguments.
    """

    call: str
    error: int = errno.EPERM
    argument: int = 0
    compare: int = _EQUAL
    values: Sequence[int] = field(default=())
    match_refuses: bool = True


SANDBOX_RULES = tuple(Rule(call) for call in UNCOUNTED_MEMORY)
RANK_RULES = (
    *SANDBOX_RULES,
    *(Rule(call) for call in (*LEAVING, *TELLING)),
    Rule("clone3", errno.ENOSYS),  # its flags are out of a filter's sight; the C library falls back to clone
    Rule("clone", argument=_FIRST, compare=_ANY_BIT, values=(NAMESPACES,)),
    Rule("fcntl", argument=_SECOND, values=SHARED_LOCKS),
    Rule("socket", argument=_FIRST, values=FAMILIES, match_refuses=False),
)


def filter_of(rules: Sequence[Rule], machine: str = "") -> bytes:
    """The filter for a machine (this one); empty where its numbers are not known.

    Calls in the way of another architecture, such as 32-bit ones, are refused as a whole.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    architecture, column = known
    refused = _instruction(_RETURN, _ERROR | errno.EPERM)
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE),
            _instruction(_EQUAL, architecture, then=1),
            refused,
            _instruction(_LOAD, _NUMBER),
            _instruction(_AT_LEAST, _X32, otherwise=1),
            refused,
            *(step for rule in rules for step in _steps(rule, _NUMBERS[rule.call][column])),
            _instruction(_RETURN, _ALLOW),
        ]
    )


def install(rules: Sequence[Rule]) -> None:
    """Refuse these calls to this process and all it will start, for good. OSError where that cannot be."""
    code = filter_of(rules)
    if not code:
        raise OSError(errno.ENOSYS, f"no numbers of system calls are known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program
    ):
        raise OSError(ctypes.get_errno(), "the filter of system calls was not taken")


def _steps(rule: Rule, number: int | None) -> Iterator[bytes]:
    """Instructions of one rule; the number of the call is loaded before them and after them."""
    if number is None:
        return
    refuse = _instruction(_RETURN, _ERROR | rule.error)
    if not rule.values:
        yield from (_instruction(_EQUAL, number, otherwise=1), refuse)
        return
    count = len(rule.values)
    yield _instruction(_EQUAL, number, otherwise=count + 3)  # over all that follows
    yield _instruction(_LOAD, rule.argument)
    for index, value in enumerate(rule.values):
        yield _instruction(rule.compare, value, then=count - index)  # to the second instruction after these
    allow = _instruction(_RETURN, _ALLOW)
    yield from (allow, refuse) if rule.match_refuses else (refuse, allow)


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """struct sock_filter: operation, instructions to skip if true and if false, operand."""
    return struct.pack("=HBBI", code, then, otherwise, value)
