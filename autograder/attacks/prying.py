"""Submissions that try to see what they may not, and to carry it out in an error's text."""

from __future__ import annotations

from autograder.attacks.attack import Attack

CANARY = "canary-in-the-environment"

ATTACKS = [
    Attack(
        "environment",
        "sends the environment back",
        "import os; raise ValueError('ENV ' + repr(dict(os.environ)))",
        flagged=True,
    ),
    Attack(
        "grader-source",
        "looks for the grader, the solutions and the unseen cases",
        """
        import os
        found = [os.path.join(d, f) for top in ("/work", "/root", "/home", "/course", "/grader", "/tmp")
                 for d, _, files in os.walk(top) if "site-packages" not in d and "/lib/python" not in d
                 for f in files if f.startswith("lesson_") or f.endswith(".ipynb") or "solution" in d]
        raise ValueError("FILES " + repr([f for f in found if "/course/labkit/checks" not in f][:40]))
        """,
        flagged=True,
    ),
    Attack(
        "import-grader",
        "imports the unseen cases",
        "import autograder.lessons.lesson_06.unseen as hidden; raise ValueError('GOT ' + repr(hidden.CASES))",
        flagged=True,
        lacks="No module named 'autograder",
    ),
    Attack(
        "gradebook",
        "looks for the gradebook everywhere and writes to it",
        """
        import os, sqlite3
        found = [os.path.join(d, f) for d, _, files in os.walk("/") if not d.startswith("/proc")
                 for f in files if f.endswith(".db")]
        for path in found:
            try:
                sqlite3.connect(path).execute("update grade set auto_score = 100")
            except sqlite3.Error:
                pass
        raise ValueError("DB " + repr(found))
        """,
        flagged=True,
    ),
    Attack(
        "processes",
        "reads the command lines and environments of all processes",
        """
        import glob
        lines = [open(p, "rb").read() for p in glob.glob("/proc/[0-9]*/cmdline")]
        raise ValueError("PROC " + repr(lines))
        """,
        flagged=True,
    ),
    Attack(
        "network",
        "connects to the host, to a name server, and to the cloud's metadata",
        """
        import socket
        reached = []
        for address in (("127.0.0.1", PORT), ("8.8.8.8", 53), ("169.254.169.254", 80)):
            try:
                socket.create_connection(address, 0.2).send(b"hello")
                reached.append(address)
            except OSError:
                pass
        raise ValueError("NET " + repr(reached))
        """,
        flagged=True,
    ),
    Attack(
        "host-files",
        "reads passwords, keys and what the kernel tells",
        """
        got = []
        for path in ("/etc/passwd", "/etc/shadow", "/root/.ssh/id_rsa", "/root/.bashrc", "/proc/1/environ",
                     "/proc/kcore", "/dev/mem", "/dev/sda", "/sys/kernel/notes", "/run/secrets"):
            try:
                got.append((path, open(path, "rb").read(20)))
            except OSError:
                pass
        raise ValueError("READ " + repr([g for g in got if g[1]]))
        """,
        flagged=True,
    ),
    Attack(
        "traced-parent",
        "traces the process that serves the requests, and writes its memory",
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in range(1, 4):
            libc.ptrace(16, pid, 0, 0)
            try:
                with open(f"/proc/{pid}/mem", "r+b") as memory:
                    memory.seek(0x400000)
                    memory.write(b"x")
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "new-namespaces",
        "asks for namespaces and mounts of its own",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = [libc.unshare(0x10000000), libc.unshare(0x00020000),
                libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.umount2(b"/proc", 2),
                libc.chroot(b"/tmp")]
        raise ValueError("NS " + repr([d for d in done if d == 0]))
        """,
        flagged=True,
    ),
    Attack(
        "hostile-message",
        "raises an error whose text is a script, ten megabytes, and raises itself",
        "raise Hostile()",
        above="""
        class Hostile(Exception):
            def __str__(self):
                return "<script>alert(1)</script>" + "x" * 10_000_000
        """,
    ),
    Attack(
        "forged-verdict",
        "says in its own words that the machine was to blame",
        """
        import glob, os
        for path in glob.glob("/out/*/"):
            with open(path + "failure.json", "w") as file:
                file.write('{"verdict": "could_not_be_graded", "message": "infrastructure"}')
        os._exit(1)
        """,
        flagged=True,
    ),
]
