"""Submissions that borrow a way to the record, or to the answers of the checks, from what Python and its
libraries have besides: code objects, descriptors, the package that a module says it is in, and functions that
look attributes up, or import, by a text.
"""

from __future__ import annotations

from autograder.attacks.attack import Attack
from autograder.attacks.detouring import BY_LOOKING, QUIET_MODULE, TOLD_AS_ONE, quietly

ATTACKS = [
    quietly(
        "record-by-code-of-a-generator",
        "has a generator's code with another name in it, and makes a function of that",
        BY_LOOKING,
        """
        def holder(thing):
            yield thing.place
        def look(thing, name):
            code = holder(None).gi_code.replace(co_names=(name,))
            return next(type(holder)(code, {})(thing))
        """,
    ),
    quietly(
        "record-by-compile-renamed",
        "compiles a text by another name, and makes a function of that",
        BY_LOOKING,
        """
        make = compile
        def look(thing, name):
            return type(look)(make("lambda thing: thing." + name, "m", "eval"), {})()(thing)
        """,
    ),
    Attack(
        "record-by-descriptor",
        "takes what gives a function's table of names out of its class, and asks it by a name that is made",
        f"""
        dot, tail, two = ".", "recorder", "_" * 2
        {BY_LOOKING.strip().replace(chr(10), chr(10) + " " * 8)}
        {TOLD_AS_ONE.strip().replace(chr(10), chr(10) + " " * 8)}
        """,
        """
        def look(thing, name):
            two = "_" * 2
            entries = getattr(type(thing), two + "dict" + two)
            return getattr(entries[name], two + "get" + two)(thing)
        """,
    ),
    quietly(
        "record-by-saying-where-it-is",
        "says that it is a module of labkit, and imports what stands beside it",
        'recorder = look(current, "current_" + tail)()\n__package__',
        """
        __package__ = "labkit"
        def look(thing, name):
            return getattr(thing, name)
        from .record import current
        """,
    ),
    quietly(
        "record-by-another-name-of-its-own",
        "says that it is called like a module of labkit, and imports what stands beside that",
        'from .record import current\nrecorder = look(current, "current_" + tail)()\n__name__',
        """
        __name__ = "labkit.mine"
        def look(thing, name):
            return getattr(thing, name)
        """,
    ),
    quietly(
        "record-by-drawing",
        "has what draws figures import a module, as one that draws",
        f"""
        home = backend_registry.load_backend_module("module://" + {QUIET_MODULE})
        recorder = getattr(home, "current_" + tail)()
        """,
        "from matplotlib.backends.registry import backend_registry",
    ),
    quietly(
        "record-by-quantising",
        "has what quantises models look up attributes",
        BY_LOOKING,
        "from torch.ao.quantization.utils import getattr_from_fqn as look",
    ),
    quietly(
        "record-by-a-strangers-import",
        "has a library that is there for something else import by a text",
        f"recorder = import_string({QUIET_MODULE} + ':current_' + tail)()",
        "from werkzeug.utils import import_string",
    ),
]
