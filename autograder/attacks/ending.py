"""Submissions that end, or are ended, in ways that might be taken for the machine, or for a success."""

from __future__ import annotations

from autograder.attacks.attack import Attack


def _signal(name: str) -> Attack:
    return Attack(
        f"signals-itself-{name}",
        f"sends SIG{name.upper()} to its own process",
        f"import os, signal, time; os.kill(os.getpid(), signal.SIG{name.upper()}); time.sleep(0.5)",
        flagged=True,
    )


def _exit(status: int) -> Attack:
    return Attack(
        f"exit-{status}",
        f"leaves with exit status {status}, as programs that were ended do",
        f"import os; os._exit({status})",
        flagged=True,
    )


ATTACKS = [
    *map(
        _signal, ("int", "term", "hup", "quit", "segv", "bus", "usr1", "usr2", "stop", "pipe", "xcpu", "xfsz")
    ),
    *map(_exit, (1, 3, 75, 124, 137, 143, 255)),
    Attack("keyboard-interrupt", "raises what a person's interrupt raises", "raise KeyboardInterrupt"),
    Attack("generator-exit", "raises what ends generators", "raise GeneratorExit"),
    Attack(
        "cancelled", "raises a cancellation", "raise asyncio.CancelledError", "import asyncio", flagged=True
    ),
    Attack(
        "machines-errors",
        "raises the errors that a failing machine does",
        "raise OSError(errno.ENOSPC, 'No space left on device', '/out')",
        "import errno",
    ),
    Attack("out-of-memory-by-word", "raises MemoryError with memory left", "raise MemoryError"),
    Attack(
        "type-without-a-name",
        "raises an error whose type has no name to tell",
        "raise Nameless()",
        """
        class Meta(type):
            @property
            def __name__(cls):
                raise SystemExit(0)
        class Nameless(Exception, metaclass=Meta):
            pass
        """,
    ),
    Attack(
        "no-traceback",
        "raises an error that takes its traceback away",
        "raise Bare()",
        """
        class Bare(Exception):
            def with_traceback(self, trace):
                raise KeyboardInterrupt
            @property
            def __cause__(self):
                raise KeyboardInterrupt
        """,
    ),
    Attack(
        "closes-everything",
        "closes all that its process has open",
        "import os; os.closerange(0, 4096)",
        flagged=True,
    ),
    Attack(
        "removes-its-folder",
        "removes its request, its record and its answers",
        "import shutil; shutil.rmtree('/out', ignore_errors=True)",
        flagged=True,
    ),
    Attack(
        "locks-its-folder",
        "takes everybody's rights to its answers away",
        """
        import glob, os
        for path in (*glob.glob("/out/*/*"), *glob.glob("/out/*"), "/out"):
            try:
                os.chmod(path, 0)
            except OSError:
                pass
        """,
        flagged=True,
    ),
    Attack(
        "no-room-of-its-own",
        "forbids itself to write a byte",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        flagged=True,
    ),
    Attack(
        "no-files-of-its-own",
        "forbids itself to open a file",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        flagged=True,
    ),
    Attack(
        "reports-for-others",
        "tells the job that the other ranks have reported, and goes",
        """
        from torch.distributed.distributed_c10d import _get_default_store
        for case in range(4):
            for rank in range(8):
                _get_default_store().set(f"labkit: case {case}, rank {rank}", "")
        raise ValueError("gone")
        """,
        flagged=True,
    ),
    Attack(
        "forgets-the-store",
        "removes all it finds in the store of the job",
        """
        from torch.distributed import distributed_c10d
        store = distributed_c10d._get_default_store()
        for key in store.list_keys() if hasattr(store, "list_keys") else ():
            store.delete_key(key)
        """,
        flagged=True,
    ),
    Attack("destroys-groups", "ends all process groups", "dist.destroy_process_group()"),
    Attack(
        "one-barrier-more",
        "one rank waits in a barrier that the others do not come to",
        "dist.barrier() if dist.get_rank() else None",
    ),
    Attack(
        "no-device",
        "has everything made from now on be without data",
        "torch.set_default_device('meta')",
    ),
    Attack(
        "meta-answer",
        "answers with a tensor that has no data",
        "grad_output = grad_output.to('meta')",
    ),
    Attack(
        "sparse-answer",
        "answers with a tensor whose zeros are not there",
        "grad_output = grad_output.to_sparse()",
    ),
    Attack(
        "answer-changed-later",
        "answers, and has a thread write the same memory again and again",
        """
        kept = grad_output.clone()
        def rewrite():
            while True:
                kept.mul_(2)
        threading.Thread(target=rewrite, daemon=True).start()
        grad_output = kept
        """,
        "import threading",
        flagged=True,
    ),
    Attack(
        "hook-on-every-tensor",
        "has a hook take what autograd keeps from now on",
        "torch.autograd.graph.saved_tensors_hooks(lambda t: None, lambda t: torch.zeros(1)).__enter__()",
    ),
]
