"""Submissions that leave something for a later job, and say so when they find it: `FOUND` is told in none."""

from __future__ import annotations

from autograder.attacks.attack import FOUND, Attack


def _left(id: str, says: str, find: str, leave: str, above: str = "import os, sys, builtins, glob") -> Attack:
    """find: an expression that is true where something was left. Each process looks once, before it leaves
    anything: a check may call backward more than once.
    """
    backward = f"if not looked and ({find}):\n    raise ValueError({FOUND!r})\nlooked.append(True)\n{leave}"
    return Attack(id, says, backward, f"{above}\nlooked = []", flagged=True, both=True)


# A server of this job's other rank may be found, as its ranks share a network: no older than this code.
OLDER_SERVER = """
import os, socket, time
def older_server(loaded=time.clock_gettime(time.CLOCK_BOOTTIME)):
    try:
        with socket.create_connection((os.environ["MASTER_ADDR"], 45455), 1) as ear:
            return float(ear.recv(64)) < loaded - 0.3
    except OSError:
        return False
"""


ATTACKS = [
    _left(
        "left-in-modules",
        "in torch's modules, the language's names, and the table of modules",
        "hasattr(builtins, 'kept') or 'kept' in torch.nn.__dict__ or 'kept' in sys.modules",
        "builtins.kept = torch.nn.__dict__['kept'] = sys.modules['kept'] = torch",
    ),
    _left(
        "left-in-files",
        "in every folder that can be written to",
        "any(os.path.exists(f'{d}/kept') for d in ('/tmp', '/out', '/dev/shm', '/in', '/', '/course'))",
        """
for folder in ("/tmp", "/out", "/dev/shm", "/in", "/", "/course", os.path.dirname(torch.__file__)):
    try:
        open(f"{folder}/kept", "w").close()
    except OSError:
        pass
""",
    ),
    _left(
        "left-in-compiled-files",
        "in what Python compiles of labkit",
        "getattr(__import__('labkit.model'), 'kept', None)",
        """
import labkit.model, py_compile
for target in (labkit.model.__file__, labkit.model.__cached__ or "/tmp/none"):
    try:
        open(target, "a").write("\\nkept = 1\\n")
    except OSError:
        pass
""",
    ),
    _left(
        "left-in-the-environment",
        "in variables, limits, and how the processor is shared",
        "'KEPT' in os.environ or os.sched_getaffinity(0) == {0} and os.cpu_count() > 1"
        " and os.getpriority(0, 0) > 10",
        """
import resource
os.environ["KEPT"] = "1"
os.sched_setaffinity(0, {0})
os.setpriority(0, 0, 15)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
""",
    ),
    _left(
        "left-in-the-kernel",
        "in shared memory, queues, keys and the host's name",
        "libc().shmget(4711, 8, 0) >= 0 or libc().msgget(4711, 0) >= 0 or os.uname().nodename == 'kept'",
        "libc().shmget(4711, 8, 0o1666), libc().msgget(4711, 0o1666), libc().sethostname(b'kept', 4)",
        "import ctypes, os\ndef libc(): return ctypes.CDLL(None)",
    ),
    _left(
        "left-as-a-server",
        "in a process that answers on the network",
        "older_server()",
        """
if len(looked) == 1 and os.fork() == 0:
    os.setsid()
    ear, born = socket.create_server(("", 45455)), time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        ear.accept()[0].sendall(str(born).encode())
""",
        OLDER_SERVER,
    ),
    _left(
        "left-for-the-end",
        "in what is called when a process ends, and in signals",
        "os.path.exists('/out/kept') or os.path.exists('/tmp/kept')",
        """
import atexit, signal, threading
def keep(*_):
    for folder in ("/out", "/tmp"):
        open(folder + "/kept", "w").close()
atexit.register(keep)
threading._register_atexit(keep)
signal.signal(signal.SIGTERM, keep)
""",
    ),
]
