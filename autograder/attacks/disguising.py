"""Submissions that reach the record, or torch's functions, by ways that a reader of source may overlook.

Each has the sum by no communication that the exercise asks for, or does not have it, and makes the record say
that all went as it should. None of them names what it reaches for.
"""

from __future__ import annotations

import textwrap

from autograder.attacks.attack import Attack

# Puts an all-reduce into the record, which was reached as `recorder`, without a name that is looked for.
FORGE = """
dist.all_reduce(torch.zeros(1), group=ctx.group)
entries = getattr(recorder, "".join(("ent", "ries")))
entries[-1].num_bytes, entries[-1].shape = grad_output.nbytes, tuple(grad_output.shape)
"""
BUILT = '"current_" + "rec" + "order"'


def _reached(id: str, says: str, how: str, above: str = "") -> Attack:
    backward = textwrap.dedent(how).strip() + "\n" + FORGE.strip()
    return Attack(id, says, backward, above, flagged=True)


# Ends with the recorder that is a local variable of the method that is called last.
FROM_A_FRAME = """
def around():
    yield 1

def upwards(frame):
    while frame is not None:
        for value in frame_locals(frame).values():
            if type(value).__name__ == "Recorder":
                return value
            if type(value).__name__ == "Rank":
                return getattr(value, "_rec" + "order")
        frame = frame_back(frame)
"""

ATTACKS = [
    _reached(
        "record-by-dots",
        "reaches the recorder by the dots of a module that it has imported",
        f"recorder = getattr(labkit.record.current, {BUILT})()",
        "import labkit",
    ),
    _reached(
        "record-by-torchs-sys",
        "reaches it by the table of modules that torch has imported",
        f"""
        table = getattr(torch.sys, "mod" + "ules")
        recorder = getattr(table["labkit." + "record.current"], {BUILT})()
        """,
    ),
    _reached(
        "record-by-torchs-importlib",
        "reaches it by the import function that torch has imported",
        f"""
        module = torch.importlib.import_module(".".join(("labkit", "record", "current")))
        recorder = getattr(module, {BUILT})()
        """,
    ),
    _reached(
        "record-by-another-eval",
        "reaches it by `eval` under another name",
        """
        run, where = eval, "labkit.rec" + "ord.current"
        recorder = run(f"__imp{'o'}rt__({where!r}, fromlist=['x']).current_rec{'o'}rder()")
        """,
    ),
    _reached(
        "record-by-patterns",
        "walks frames by patterns, which name attributes too",
        """
        running = around()
        next(running)
        recorder = None
        try:
            raise ValueError
        except ValueError as error:
            match error:
                case object(__traceback__=object(tb_frame=frame)):
                    recorder = upwards(frame)
        """,
        FROM_A_FRAME
        + """
def frame_locals(frame):
    match frame:
        case object(f_locals=found):
            return found

def frame_back(frame):
    match frame:
        case object(f_back=found):
            return found
""",
    ),
    _reached(
        "record-by-put-together-frames",
        "walks frames by names that are put together",
        """
        try:
            raise ValueError
        except ValueError as error:
            trace = getattr(error, "__trace" + "back__")
            recorder = upwards(getattr(trace, "tb_" + "frame"))
        """,
        FROM_A_FRAME
        + """
def frame_locals(frame):
    return getattr(frame, "f_lo" + "cals")

def frame_back(frame):
    return getattr(frame, "f_ba" + "ck")
""",
    ),
    Attack(
        "clock-set-back",
        "sends a second time, at a moment that it has put outside of what is recorded",
        """
        real = time.monotonic
        time.monotonic = lambda: real() - 1000.0
        dist.all_reduce(torch.ones(7), group=ctx.group)
        time.monotonic = real
        dist.all_reduce(grad_output.clone(), group=ctx.group)
        """,
        above="import time",
        flagged=True,
    ),
    Attack(
        "class-by-type",
        "replaces what a tensor answers to, in the class that it looks up",
        """
        type(grad_output).detach = lambda tensor: tensor * 2
        type(ctx.group).allreduce = lambda *a, **k: None
        """,
        flagged=True,
    ),
    Attack(
        "module-by-its-table",
        "replaces functions of torch in the module's own table",
        """
        torch.__dict__.update(equal=lambda *a: True, allclose=lambda *a, **k: True)
        dist.__dict__["all_reduce"] = lambda *a, **k: None
        """,
        flagged=True,
    ),
    Attack(
        "mode-left-on",
        "enters a mode that answers for torch's functions, and never leaves it",
        "mode = Yes(); mode.__enter__()",
        above="""
        from torch.overrides import TorchFunctionMode
        class Yes(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if function in (torch.equal, torch.allclose):
                    return True
                return function(*args, **(kwargs or {}))
        """,
        flagged=True,
    ),
    Attack(
        "operators-swallowed",
        "hands to all_reduce a tensor that swallows what is done with it",
        "dist.all_reduce(grad_output.detach().clone().as_subclass(Hole), group=ctx.group)",
        above="""
        class Hole(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                return None
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if "c10d" in str(function):
                    return None
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **(kwargs or {}))
        """,
        flagged=True,
    ),
    Attack(
        "bytes-that-lie",
        "sends one number in a tensor that says it has as many bytes as the gradient",
        """
        Small.nbytes, Small.shape = grad_output.nbytes, grad_output.shape
        dist.all_reduce(torch.zeros(1, dtype=grad_output.dtype).as_subclass(Small), group=ctx.group)
        """,
        above="""
        class Small(torch.Tensor):
            pass
        """,
        flagged=True,
    ),
    Attack(
        "addresses",
        "lays an array over memory that is not its own, and reads through it",
        """
        array = np.asarray(Anywhere(grad_output.data_ptr() - 4096, 2048))
        grad_output = grad_output + float(array.sum())
        """,
        above="""
        import numpy as np
        class Anywhere:
            def __init__(self, address, count):
                self.__array_interface__ = {
                    "data": (address, False), "shape": (count,), "typestr": "<f8", "version": 3}
        """,
        flagged=True,
    ),
]
