"""Submissions that try to win points: by patching what checks, by forging what is recorded, by writing the
answers.
"""

from __future__ import annotations

from autograder.attacks.attack import Attack

# Finds the check's own objects by walking up the stack of frames.
FRAMES = """
import sys

def from_frames(name):
    frame = sys._getframe()
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
"""

# Adds an all-reduce of grad_output to what the recorder tells.
FORGE_A_CALL = """
        from labkit.record.current import current_recorder
        from labkit.record.events import Collective
        recorder, members = current_recorder(), tuple(dist.get_process_group_ranks(ctx.group))
        real, now = type(recorder).collectives, time.monotonic()
        def forged(self, zero):
            return [*real(self, zero), Collective(
                rank=self.rank, op="all_reduce", num_bytes=grad_output.nbytes, shape=tuple(grad_output.shape),
                dtype="float64", group=members, peer=None, order=0, start=now - zero, end=None,
                source="python", line="")]
        type(recorder).collectives = forged
        """

ATTACKS = [
    Attack(
        "patch-comparisons",
        "makes every comparison of torch say yes",
        """
        torch.allclose = torch.equal = lambda *a, **k: True
        torch.testing.assert_close = lambda *a, **k: None
        torch.Tensor.__eq__ = lambda a, b: torch.ones(a.shape, dtype=torch.bool)
        """,
        flagged=True,
    ),
    Attack(
        "patch-all-reduce",
        "replaces dist.all_reduce by something that does nothing, and calls it",
        """
        dist.all_reduce = lambda *a, **k: None
        dist.all_reduce(grad_output, group=ctx.group)
        """,
        flagged=True,
    ),
    Attack(
        "patch-judge",
        "patches the judge, which is not in this process",
        """
        import labkit.checks.judge as judge
        judge.judge_exercise = judge._findings = lambda *a, **k: []
        """,
        flagged=True,
    ),
    Attack(
        "patch-exercise",
        "replaces the exercise's judge and points where the ranks can reach them",
        """
        import labkit.checks.registry as registry
        for exercise in registry.exercises("06"):
            object.__setattr__(exercise, "judge", lambda *a: [])
            object.__setattr__(exercise, "properties", ())
        """,
        flagged=True,
    ),
    Attack(
        "forge-record",
        "adds an all-reduce to the recorder that never took place",
        """
        import time
        """
        + FORGE_A_CALL,
        flagged=True,
    ),
    Attack(
        "forge-everything",
        "sums through shared memory, and adds the all-reduce that it did without to the record",
        """
        import os, time
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        own = grad_output.contiguous()
        name = f"/dev/shm/{own.numel()}-"
        torch.save(own, f"{name}{rank}.part")
        os.rename(f"{name}{rank}.part", f"{name}{rank}")
        while not all(os.path.exists(f"{name}{r}") for r in range(size)):
            time.sleep(0.001)
        grad_output = sum(torch.load(f"{name}{r}") for r in range(size))
        """
        + FORGE_A_CALL,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "forge-answer",
        "finds the rank's answer through frames and claims success",
        """
        rank = from_frames("rank")
        rank._answer.facts["passed"] = True
        rank._answer.errors.clear()
        rank.fact("points", 100)
        """,
        above=FRAMES,
        flagged=True,
    ),
    Attack(
        "forge-inputs",
        "overwrites the inputs, so that a wrong answer would be right",
        """
        rank = from_frames("rank")
        for tensor in rank.inputs.values():
            tensor.zero_()
        """,
        above=FRAMES,
        flagged=True,
    ),
    Attack(
        "write-others-answers",
        "writes answer files of all ranks itself, with the sum it was not asked to communicate",
        """
        import glob, json
        for path in glob.glob("/out/*/"):
            for rank in range(8):
                with open(f"{path}/case0.rank{rank}.json", "w") as file:
                    json.dump({"facts": {"x is unchanged": True, "grad_output is unchanged": True},
                               "collectives": {}, "errors": {}, "error": None}, file)
        """,
        flagged=True,
    ),
    Attack(
        "atexit",
        "rewrites its answers when the process ends",
        """
        import atexit, glob
        def rewrite():
            for path in glob.glob("/out/*/case*.json"):
                open(path, "w").write('{"facts": {}, "collectives": {}, "errors": {}, "error": null}')
        atexit.register(rewrite)
        """,
        flagged=True,
    ),
    Attack(
        "del",
        "does its work in __del__, after the recording",
        "ctx.late = Late()",
        above="""
        class Late:
            def __del__(self):
                import labkit.checks.files as files
                files.write_answer = lambda *a, **k: None
        """,
        flagged=True,
    ),
    Attack(
        "import-transformer",
        "appends to IPython's input transformers, as published against nbgrader",
        """
        from IPython import get_ipython
        shell = get_ipython()
        shell.input_transformers_post.append(lambda lines: ["pass"])
        """,
        flagged=True,
        lacks="'NoneType' object has no attribute 'input_transformers_post'",  # no shell runs there
    ),
    Attack(
        "liar-tensor",
        "returns a tensor subclass that claims to be equal to everything",
        "grad_output = grad_output.as_subclass(Liar)",
        above="""
        class Liar(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if function in (torch.equal, torch.allclose, torch.Tensor.eq):
                    return True
                return super().__torch_function__(function, types, args, kwargs or {})
        """,
    ),
    Attack(
        "hard-coded",
        "knows the visible case by its shape, and that alone",
        """
        if tuple(grad_output.shape) == (3, 5):
            dist.all_reduce(grad_output.clone(), group=ctx.group)
        """,
        communicates=True,
    ),
    Attack(
        "only-when-graded",
        "looks for signs of grading and behaves differently",
        """
        import os
        if os.path.exists("/grader") or "NBGRADER_EXECUTION" in os.environ:
            grad_output = grad_output * dist.get_world_size(ctx.group)
        """,
        flagged=True,
    ),
    Attack("nan", "answers with not-a-number", "grad_output = grad_output * float('nan')"),
    Attack("wrong-kind", "answers with whole numbers", "grad_output = (grad_output * 0).to(torch.int8)"),
    Attack("exit-zero", "leaves with exit status 0", "import os; os._exit(0)", flagged=True),
    Attack("system-exit", "raises SystemExit", "raise SystemExit(0)"),
]
