"""Submissions that make evidence: the record, the answers, the counts, and how a rank or a job has ended."""

from __future__ import annotations

from autograder.attacks.attack import Attack
from autograder.attacks.cheating import FORGE_A_CALL

ATTACKS = [
    Attack(
        "own-answers-by-hand",
        "writes the all-reduce into its own answers, again and again",
        """
        import glob, json, threading
        def by_hand():
            while True:
                for path in glob.glob("/out/*/case*.json"):
                    try:
                        told = json.load(open(path))
                        call = {"op": "all_reduce", "num_bytes": grad_output.nbytes, "rank": 0, "order": 0,
                                "shape": list(grad_output.shape), "dtype": "float64", "group": [0, 1],
                                "peer": None, "start": 0.0, "end": 1.0, "source": "python", "line": ""}
                        told["collectives"]["backward"] = [call]
                        json.dump(told, open(path, "w"))
                    except (OSError, ValueError, KeyError):
                        pass
        threading.Thread(target=by_hand, daemon=True).start()
        """,
        flagged=True,
    ),
    Attack(
        "own-answers-at-the-end",
        "writes the all-reduce into its own answers when these have been written",
        "weakref.finalize(ctx.group, by_hand, grad_output.nbytes)",
        above="""
        import json, weakref
        from pathlib import Path
        def by_hand(nbytes):
            for path in Path("/out").rglob("case*.json"):
                told = json.loads(path.read_text())
                call = {"op": "all_reduce", "num_bytes": nbytes, "rank": 0, "order": 0, "group": [0, 1],
                        "shape": [nbytes // 8], "dtype": "float64", "peer": None, "start": 0.0, "end": 1.0,
                        "source": "python", "line": ""}
                told["collectives"]["backward"] = [call]
                path.write_text(json.dumps(told))
        """,
        flagged=True,
    ),
    Attack(
        "keeper-called-early",
        "has answers of its own making taken before the check has written any",
        """
        import glob, json, os
        over, taken = map(int, os.environ["LABKIT_RANKS_KEEPER"].split(","))
        for folder in glob.glob("/out/*/"):
            path = f"{folder}case0.rank{dist.get_rank()}.json"
            with open(path, "w") as file:
                json.dump({"facts": {"x is unchanged": True, "grad_output is unchanged": True},
                           "collectives": {"forward": [], "backward": []}, "errors": {}, "error": None}, file)
        os.write(over, b".")
        os.read(taken, 1)
        """,
        flagged=True,
    ),
    Attack(
        "in-anothers-name",
        "answers as if it were the other rank",
        """
        import os
        os.environ["RANK"] = str(1 - dist.get_rank())
        real = dist.get_rank
        dist.get_rank = lambda group=None: 1 - real(group)
        """,
        flagged=True,
    ),
    Attack(
        "counts-by-hand",
        "writes what its cables are to have carried",
        """
        import glob, json
        for folder in glob.glob("/out/*/"):
            with open(folder + "wire.json", "w") as file:
                json.dump({"sent": [[0, 10**6], [10**6, 0]], "resent": 0}, file)
            with open(folder + "expected.json", "w") as file:
                json.dump([], file)
        """
        + FORGE_A_CALL,
        above="import time",
        flagged=True,
    ),
    Attack(
        "record-by-hand",
        "writes the file of its record itself",
        """
        import glob, json, sys
        def write(path, recorder, *more):
            call = {"op": "all_reduce", "num_bytes": 10**6, "group": [0, 1], "source": "python", "peer": None}
            path.write_text(json.dumps({"collectives": [call]}))
        sys.modules["labkit.launch.engine.worker"].write_records = write
        """
        + FORGE_A_CALL,
        above="import time",
        flagged=True,
    ),
    Attack(
        "blames-the-machine",
        "ends with the words of a job that the host has ended",
        "raise RuntimeError('the process that looks after the ranks was ended')",
    ),
    Attack(
        "junk-as-cover",
        "sends as many bytes as the all-reduce would, of nothing, and forges the record",
        """
        import os, socket, struct, threading, time
        def cover():
            end = ("", 45454) if dist.get_rank() == 0 else (os.environ["MASTER_ADDR"], 45454)
            if dist.get_rank() == 0:
                other, _ = socket.create_server(end).accept()
            else:
                time.sleep(0.2)
                other = socket.create_connection(end, 2)
            other.sendall(bytes(grad_output.nbytes))
            other.recv(grad_output.nbytes)
        cover()
        """
        + FORGE_A_CALL,
        flagged=True,
    ),
    Attack(
        "gone-once-forged",
        "forges the record, answers, and leaves with exit status 0",
        """
        import os, time, labkit.checks.execute as execute
        written = execute.write_answer
        def write(*a):
            written(*a)
            os._exit(0)
        execute.write_answer = write
        """
        + FORGE_A_CALL,
        flagged=True,
    ),
    Attack(
        "group-of-its-own",
        "sums in a group that it makes past torch.distributed's own functions",
        """
        from datetime import timedelta
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
        store = PrefixStore(f"own {grad_output.numel()}", _get_default_store())
        own = dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=3))
        grad_output = grad_output.contiguous().clone()
        own.allreduce([grad_output]).wait()
        """,
        right_numbers=True,
    ),
    Attack(
        "operator-past-the-record",
        "sums by torch's operator, which no function of Python's leads to",
        """
        grad_output = grad_output.contiguous().clone()
        summed = torch._C._jit_get_operation("_c10d_functional::all_reduce")[0](
            grad_output, "sum", ctx.group.group_name)
        grad_output = torch.ops._c10d_functional.wait_tensor(summed)
        """,
        flagged=True,
        right_numbers=True,
    ),
]
