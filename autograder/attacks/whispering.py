"""Submissions in which ranks try to tell one another something past the network, or to send it over the
network in another way than the exercise asks for, and the record says what it should.

Each tries to have the sum of all ranks' gradients without the all-reduce. `SHARE` stands for the way.
"""

from __future__ import annotations

import textwrap

from autograder.attacks.attack import Attack
from autograder.attacks.cheating import FORGE_A_CALL

# Sums what `tell(name, bytes)` and `hear(name)` carry between ranks; gives up when nothing comes.
SUM = """
import io, os, time
rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
buffer = io.BytesIO()
torch.save(grad_output.contiguous(), buffer)
tell(f"{grad_output.numel()}-{rank}", buffer.getvalue())
found, until = {}, time.monotonic() + 1.0
while len(found) < size and time.monotonic() < until:
    for r in range(size):
        if r not in found and (data := hear(f"{grad_output.numel()}-{r}")):
            found[r] = torch.load(io.BytesIO(data))
    time.sleep(0.01)
grad_output = sum(found.values(), torch.zeros_like(grad_output))
"""

IN_A_FOLDER = """
import os
def tell(name, data):
    try:
        with open(f"{FOLDER}/{name}.part", "wb") as file:
            file.write(data)
        os.rename(f"{FOLDER}/{name}.part", f"{FOLDER}/{name}")
    except OSError:
        pass
def hear(name):
    try:
        return open(f"{FOLDER}/{name}", "rb").read()
    except OSError:
        return b""
"""


def _in(folder: str) -> str:
    return f"FOLDER = {folder!r}\n{IN_A_FOLDER}"


def _told(id: str, says: str, above: str) -> Attack:
    backward = SUM + textwrap.dedent(FORGE_A_CALL)
    return Attack(id, says, backward, textwrap.dedent(above), flagged=True)


ATTACKS = [
    _told("tell-tmp", "through files in /tmp", _in("/tmp")),
    _told("tell-shm", "through files in /dev/shm", _in("/dev/shm")),
    _told("tell-out", "through files in /out", _in("/out")),
    _told("tell-in", "through files where requests come from", _in("/in")),
    _told(
        "tell-proc",
        "through the names of processes",
        """
        import ctypes, glob
        def tell(name, data):
            ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)
        def hear(name):
            for path in glob.glob("/proc/[0-9]*/comm"):
                if open(path).read().strip() == name[:15]:
                    return b"x"
        """,
    ),
    _told(
        "tell-unix",
        "through a socket without a file",
        """
        import socket
        heard = {}
        def tell(name, data):
            global ear
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ear.bind("\\0" + name)
        def hear(name):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            s.connect("\\0" + name)
        """,
    ),
    _told(
        "tell-shared-memory",
        "through memory of the System V kind",
        """
        import ctypes
        def memory(name, flags):
            libc = ctypes.CDLL(None, use_errno=True)
            libc.shmat.restype = ctypes.c_void_p
            key = libc.shmget(sum(name.encode()), 65536, flags)
            if key < 0:
                raise OSError("no shared memory")
            return libc.shmat(key, None, 0)
        def tell(name, data):
            ctypes.memmove(memory(name, 0o1666), data, len(data))
        def hear(name):
            return ctypes.string_at(memory(name, 0o666), 65536)
        """,
    ),
    _told(
        "tell-queue",
        "through a message queue",
        """
        import ctypes
        def tell(name, data):
            libc = ctypes.CDLL(None, use_errno=True)
            key = libc.msgget(sum(name.encode()), 0o1666)
            libc.msgsnd(key, b"\\1" + bytes(7) + data, len(data), 0o4000)
        def hear(name):
            libc = ctypes.CDLL(None, use_errno=True)
            room = ctypes.create_string_buffer(65536)
            size = libc.msgrcv(libc.msgget(sum(name.encode()), 0o666), room, 65528, 0, 0o4000)
            return room.raw[8:8 + size] if size > 0 else b""
        """,
    ),
    _told(
        "tell-locks",
        "through locks on a file that all can read",
        """
        import fcntl, torch
        def tell(name, data):
            global held
            held = open(torch.__file__)
            fcntl.flock(held, fcntl.LOCK_EX)
        def hear(name):
            fcntl.flock(open(torch.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)
        """,
    ),
    _told(
        "tell-terminals",
        "through pseudo-terminals",
        """
        import glob, os
        def tell(name, data):
            global master
            master, slave = os.openpty()
            os.write(master, data[:4000])
        def hear(name):
            for path in glob.glob("/dev/pts/[0-9]*"):
                return os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 4000)
        """,
    ),
    _told(
        "tell-inherited",
        "through whatever the processes have inherited together",
        """
        import os
        def tell(name, data):
            for number in range(3, 200):
                try:
                    os.write(number, data)
                except OSError:
                    pass
        def hear(name):
            for number in range(3, 200):
                try:
                    os.set_blocking(number, False)
                    if data := os.read(number, 65536):
                        return data
                except OSError:
                    pass
        """,
    ),
    _told(
        "tell-memory",
        "through the memory of the other processes",
        """
        import ctypes, os
        def tell(name, data):
            pass
        def hear(name):
            for pid in range(1, 40):
                if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0 or os.path.exists(f"/proc/{pid}/mem"):
                    return b"x"
        """,
    ),
    _told(
        "tell-free-space",
        "through how full a file system is",
        """
        import os
        def tell(name, data):
            open("/out/full", "wb").write(bytes(4096 * (1 + data[0])))
        def hear(name):
            return bytes([os.statvfs("/out").f_bfree % 256])
        """,
    ),
    _told(
        "tell-signals",
        "through signals to processes with other numbers",
        """
        import os, signal
        def tell(name, data):
            signal.signal(signal.SIGUSR1, lambda *_: None)
            for pid in range(2, 60):
                try:
                    os.kill(pid, signal.SIGUSR1)
                except OSError:
                    pass
        def hear(name):
            return b""
        """,
    ),
    _told(
        "tell-watch",
        "through who opens a file",
        """
        import ctypes, os, torch
        def tell(name, data):
            open(torch.__file__).close()
        def hear(name):
            libc = ctypes.CDLL(None)
            handle = libc.inotify_init1(0o4000)
            if handle < 0 or libc.inotify_add_watch(handle, torch.__file__.encode(), 0x20) < 0:
                raise OSError("no watch")
            return os.read(handle, 4096)
        """,
    ),
    _told(
        "tell-ring",
        "through io_uring",
        """
        import ctypes
        def tell(name, data):
            if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
                raise OSError("no ring")
        def hear(name): return b""
        """,
    ),
    Attack(
        "back-to-all",
        "goes back to where all ranks are, and sums through a file there",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        went = [libc.unshare(0x20000), libc.umount2(b"/out", 2), libc.umount2(b"/tmp", 2), libc.setns(3, 0),
                libc.umount2(b"/proc", 2), libc.mount(b"none", b"/proc", b"proc", 0, None), libc.chroot(b"/")]
        raise ValueError("WENT " + repr([w for w in went if w == 0]))
        """,
        flagged=True,
    ),
    Attack(
        "store-instead",
        "sums through the store of the job, and forges the record of an all-reduce",
        """
        import io, time
        from torch.distributed.distributed_c10d import _get_default_store
        store, rank, size = _get_default_store(), dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        buffer = io.BytesIO()
        torch.save(grad_output.contiguous(), buffer)
        store.set(f"{grad_output.numel()}-{rank}", buffer.getvalue())
        parts = [store.get(f"{grad_output.numel()}-{r}") for r in range(size)]
        grad_output = sum(torch.load(io.BytesIO(part)) for part in parts)
        """
        + FORGE_A_CALL,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "no-record",
        "communicates, and leaves no record of the job",
        """
        import labkit.record.files as files
        dist.all_reduce(grad_output, group=ctx.group)
        files.write_records = lambda *a, **k: None
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "empty-record",
        "communicates much more than it records",
        """
        from labkit.record.current import current_recorder
        dist.all_reduce(grad_output, group=ctx.group)
        for _ in range(20):
            dist.all_reduce(torch.ones(100_000), group=ctx.group)
        recorder = current_recorder()
        del recorder.entries[-20:]
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "record-of-more",
        "records ten times what it sends",
        """
        from labkit.record.current import current_recorder
        dist.all_reduce(grad_output, group=ctx.group)
        recorder = current_recorder()
        recorder.entries += [recorder.entries[-1]] * 10
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "leave-after-answers",
        "leaves when the last case was answered",
        """
        import atexit, os, threading, time, labkit.checks.execute as execute
        dist.all_reduce(grad_output, group=ctx.group)
        def leave():
            time.sleep(0.5)
            os._exit(0)
        threading.Thread(target=leave, daemon=True).start()
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "all-from-inputs",
        "takes the sum from the inputs, which held every rank's tensors",
        """
        rank = from_frames("rank")
        for name, tensor in rank.inputs.items():
            if tensor.dim() > grad_output.dim():
                grad_output = tensor.sum(0).to(grad_output)
        """,
        above="""
        import sys

        def from_frames(name):
            frame = sys._getframe()
            while frame is not None:
                if name in frame.f_locals:
                    return frame.f_locals[name]
                frame = frame.f_back
        """,
        flagged=True,
    ),
    Attack(
        "others-inputs",
        "reads the inputs of the other ranks where requests are put",
        """
        import glob, safetensors.torch
        found = [p for top in ("/in", "/out") for p in glob.glob(top + "/**/inputs.*", recursive=True)]
        others = [safetensors.torch.load_file(p) for p in found if f"rank{dist.get_rank()}." not in p]
        for name, tensor in (others[0] if others else {}).items():
            if tensor.shape == grad_output.shape:
                grad_output = grad_output + tensor
        """,
    ),
    Attack(
        "own-loopback",
        "sends as many bytes to itself, so that the network has carried them",
        """
        import socket, threading, time
        ear = socket.create_server(("127.0.0.1", 0))
        mouth = socket.create_connection(ear.getsockname())
        threading.Thread(target=mouth.sendall, args=(bytes(grad_output.nbytes + 5000),), daemon=True).start()
        other, _ = ear.accept()
        while other.recv(65536) and False:
            pass
        """
        + FORGE_A_CALL,
        flagged=True,
    ),
    Attack(
        "reference-out",
        "packs all text it finds around it into an error",
        """
        import base64, glob, linecache, zlib
        files = [open(path).read() for path in glob.glob("/out/*/request.json")]
        found = repr(linecache.cache) + "".join(files)
        raise ValueError(base64.b85encode(zlib.compress(found.encode())).decode())
        """,
        flagged=True,
    ),
    Attack(
        "many-values",
        "answers with a million empty lists",
        """
        import json
        json.dumps = lambda *a, **k: '{"facts": {"x": [' + "[]," * 1000000 + '[]]}, "collectives": {},'\\
            ' "errors": {}, "error": null}'
        """,
        flagged=True,
    ),
    Attack(
        "many-files",
        "makes files without end wherever it can",
        """
        import os
        for folder in ("/out", "/tmp", "/dev/shm"):
            for n in range(200_000):
                try:
                    open(f"{folder}/{n}", "w").close()
                except OSError:
                    break
        """,
        flagged=True,
    ),
]
