"""Submissions that take what no process's own memory shows, or make whoever reads their answers take it."""

from __future__ import annotations

from autograder.attacks.attack import Attack

ATTACKS = [
    Attack(
        "sockets",
        "fills the buffers of connections to itself",
        """
        import socket
        ear, kept = socket.create_server(("127.0.0.1", 0), backlog=1000), []
        while True:
            mouth = socket.create_connection(ear.getsockname())
            mouth.setblocking(False)
            kept += [mouth, ear.accept()[0]]
            try:
                while True:
                    mouth.send(bytes(2**20))
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "sockets-of-children",
        "fills the buffers of connections in many processes",
        """
        import os, socket, time
        for _ in range(20):
            os.fork()
            kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(200)]
        time.sleep(100)
        """,
        flagged=True,
    ),
    Attack(
        "pipes",
        "fills pipes",
        """
        import fcntl, os
        kept = []
        while True:
            kept.append(os.pipe())
            try:
                fcntl.fcntl(kept[-1][1], 1031, 2**20)
            except OSError:
                pass
            os.set_blocking(kept[-1][1], False)
            try:
                while True:
                    os.write(kept[-1][1], bytes(65536))
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "shared-mappings",
        "takes memory that its processes share, and no file holds",
        """
        import mmap
        kept = []
        while True:
            kept.append(mmap.mmap(-1, 2**28))
            kept[-1][:] = bytes(2**28)
        """,
        flagged=True,
    ),
    Attack(
        "zero-device",
        "takes shared memory by mapping /dev/zero",
        """
        import mmap, os
        kept = []
        while True:
            kept.append(mmap.mmap(os.open("/dev/zero", os.O_RDWR), 2**28))
            kept[-1][:] = bytes(2**28)
        """,
        flagged=True,
    ),
    Attack(
        "nameless-files",
        "takes memory by files that have no name",
        """
        import ctypes, os, tempfile
        kept = [tempfile.TemporaryFile(dir=folder) for folder in ("/tmp", "/out", "/dev/shm")]
        number = ctypes.CDLL(None).memfd_create(b"m", 0)
        kept += [os.fdopen(number, "wb")] if number >= 0 else []
        for file in kept:
            try:
                while True:
                    file.write(bytes(2**20))
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "sparse-answers",
        "leaves answers of a terabyte that hold nothing",
        """
        import glob, os
        for folder in glob.glob("/out/*/"):
            for ending in ("json", "safetensors"):
                try:
                    os.truncate(os.open(f"{folder}case0.rank{dist.get_rank()}.{ending}", 0o102), 2**40)
                except OSError:
                    pass
        os._exit(0)
        """,
        flagged=True,
    ),
    Attack(
        "many-tensors",
        "answers with a hundred thousand tensors",
        """
        import safetensors.torch
        real = safetensors.torch.save_file
        def save(tensors, path, metadata=None):
            real({f"{n}": torch.zeros(0) for n in range(100_000)}, path)
        safetensors.torch.save_file = save
        """,
        flagged=True,
    ),
    Attack(
        "flood-of-errors",
        "writes warnings and log lines without end",
        """
        import logging, sys, warnings
        while True:
            warnings.warn("x" * 2**16)
            logging.error("y" * 2**16)
            sys.stderr.write("z" * 2**16)
        """,
        flagged=True,
    ),
    Attack(
        "slow-words",
        "raises an error that takes for ever to tell",
        "raise Slow()",
        above="""
        class Slow(Exception):
            def __str__(self):
                while True:
                    pass
            __repr__ = __str__
        """,
    ),
    Attack(
        "endless-causes",
        "raises an error with a hundred thousand causes",
        """
        last = None
        for n in range(100_000):
            error = ValueError("x" * 50)
            error.__cause__ = last
            last = error
        raise last
        """,
    ),
    Attack(
        "hang-at-the-end",
        "never ends once its cases are over",
        """
        import atexit, time
        atexit.register(time.sleep, 1000)
        """,
        flagged=True,
    ),
    Attack(
        "clones",
        "starts processes past Python",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        while True:
            libc.syscall(57)
        """,
        flagged=True,
    ),
    Attack(
        "huge-number",
        "answers with a number of a million digits",
        """
        import json
        rest = '}, "collectives": {}, "errors": {}, "error": null}'
        json.dumps = lambda *a, **k: '{"facts": {"x is unchanged": ' + "9" * 900_000 + rest
        """,
        flagged=True,
    ),
]
