"""Submissions that try to break the harness or the machine: bombs, hangs, malformed answers, processes left
behind.
"""

from __future__ import annotations

from autograder.attacks.attack import Attack

ATTACKS = [
    Attack(
        "fork-bomb",
        "forks without end",
        """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "memory-bomb",
        "takes all memory",
        """
        hoard = []
        while True:
            hoard.append(torch.ones(16 * 2**20))
        """,
    ),
    Attack("huge-tensor", "asks for a petabyte", "torch.empty(2**50)"),
    Attack(
        "disk-bomb",
        "fills every place that can be written",
        """
        for folder in ("/out", "/tmp", "/dev/shm"):
            try:
                with open(folder + "/bomb", "wb") as file:
                    while True:
                        file.write(bytes(2**20))
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "file-bomb",
        "makes files without end",
        """
        n = 0
        while True:
            open(f"/out/{dist.get_rank()}-{n}", "w").close()
            n += 1
        """,
        flagged=True,
    ),
    Attack(
        "output-bomb",
        "prints without end",
        """
        while True:
            print("x" * 2**20)
        """,
    ),
    Attack(
        "thread-bomb",
        "starts threads that never end",
        """
        import threading, time
        for _ in range(2000):
            threading.Thread(target=time.sleep, args=(1000,)).start()
        """,
        flagged=True,
    ),
    Attack(
        "endless",
        "never returns",
        """
        while True:
            pass
        """,
    ),
    Attack(
        "hang-on-unseen",
        "waits for ever, but only in cases it has not seen",
        """
        import time
        while tuple(grad_output.shape) != (3, 5):
            time.sleep(1)
        """,
        both=True,
    ),
    Attack(
        "deadlock",
        "one rank waits for a message that nobody sends",
        """
        if dist.get_rank() == 0:
            dist.recv(torch.empty(1), src=1)
        """,
    ),
    Attack(
        "deaf",
        "ignores every signal it can, and sleeps",
        """
        import signal, time
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(1000)
        """,
        flagged=True,
    ),
    Attack("kill-everyone", "kills every process it can reach", "import os; os.kill(-1, 9)", flagged=True),
    Attack(
        "kill-parents",
        "kills the processes that look after the ranks",
        """
        import os
        for pid in range(2, os.getpid()):
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "daemon",
        "leaves a process behind that keeps rewriting answers",
        """
        import glob, os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    for path in glob.glob("/out/*/case*.json"):
                        try:
                            open(path, "w").write("{}")
                        except OSError:
                            pass
                    time.sleep(0.01)
            os._exit(0)
        """,
        flagged=True,
    ),
    Attack(
        "petabyte-header",
        "sends tensors whose header declares 2^40 elements",
        """
        import safetensors.torch
        header = b'{"output":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
        def save(tensors, path, metadata=None):
            open(path, "wb").write(len(header).to_bytes(8, "little") + header)
        safetensors.torch.save_file = save
        """,
        flagged=True,
    ),
    Attack(
        "no-tensors",
        "sends bytes that are no tensors",
        """
        import safetensors.torch
        safetensors.torch.save_file = lambda tensors, path, metadata=None: open(path, "wb").write(b"\\xff" *
        64)
        """,
        flagged=True,
    ),
    Attack(
        "deep-json",
        "reports facts nested a hundred thousand deep",
        """
        import json
        json.dumps = lambda *a, **k: '{"facts": ' + "[" * 100000 + "]" * 100000 + "}"
        """,
        flagged=True,
    ),
    Attack(
        "wrong-json",
        "reports lists where objects belong, and objects where numbers do",
        """
        import json
        json.dumps = lambda *a, **k: (
            '{"facts": {"x is unchanged": {"a": []}}, "collectives": {"forward": 7, "backward": [[1]]},'
            ' "errors": {}, "error": null}'
        )
        """,
        flagged=True,
    ),
    Attack(
        "links",
        "puts links and pipes where its answers are expected",
        """
        import glob, os
        for folder in glob.glob("/out/*/"):
            for name in ("case0.rank0", "case0.rank1", "case1.rank0"):
                os.symlink("/proc/1/environ", folder + name + ".json")
                os.mkfifo(folder + name + ".safetensors")
        os._exit(1)
        """,
        flagged=True,
    ),
]
