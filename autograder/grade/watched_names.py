"""Names that no exercise needs, and that lead to the check's own objects or past what is counted."""

from __future__ import annotations

import re

CONNECTS, STARTS, RUNS_DATA = "opens connections", "starts programs or processes", "runs code from data"
BESIDE, FRAMES = "runs beside the check", "walks frames"
BY_NAME, OPERATORS = "imports by name", "changes what torch's functions do"
MODULES = {
    **dict.fromkeys(("socket", "urllib", "http", "requests", "ssl"), CONNECTS),
    **dict.fromkeys(("subprocess", "multiprocessing", "pty"), STARTS),
    **dict.fromkeys(("pickle", "marshal", "shelve", "code", "codeop", "runpy", "copyreg"), RUNS_DATA),
    **dict.fromkeys(("timeit", "profile", "cProfile", "doctest", "dill", "cloudpickle", "joblib"), RUNS_DATA),
    **dict.fromkeys(("typing.get_type_hints", "typing.ForwardRef", "numpy.testing", "numpy.f2py"), RUNS_DATA),
    **dict.fromkeys(("torch.fx", "torch.package", "torch.hub", "torch.serialization"), RUNS_DATA),
    **dict.fromkeys(("torch.utils.cpp_extension", "torch.ops.load_library", "torch.classes"), "calls into C"),
    "torch.jit": RUNS_DATA,
    "torch.utils.data": STARTS,
    **dict.fromkeys(("torch.multiprocessing", "torch.distributed.elastic", "torch.distributed.run"), STARTS),
    **dict.fromkeys(("threading", "_thread", "asyncio", "concurrent", "atexit", "signal"), BESIDE),
    **dict.fromkeys(("inspect", "traceback", "dis", "faulthandler"), FRAMES),
    "ctypes": "calls into C",
    "cffi": "calls into C",
    "mmap": "maps memory",
    "gc": "walks all objects",
    "sys": "the interpreter's own state",
    "builtins": "changes the language",
    **dict.fromkeys(("importlib", "pkgutil", "zipimport", "pydoc", "logging.config"), BY_NAME),
    "string.Formatter": "looks up attributes by text",
    **dict.fromkeys(("linecache", "tracemalloc", "bdb", "pdb", "trace"), "the interpreter's own state"),
    **dict.fromkeys(("torch.library", "torch.overrides", "torch.utils._python_dispatch"), OPERATORS),
    "numpy.ctypeslib": "calls into C",
    "numpy.lib.stride_tricks": "reads memory",
    "torch.distributed.rpc": CONNECTS,
    "os": "the operating system",
    "resource": "the operating system",
    "shutil": "works on files",
    "unittest": "patches objects",
    "IPython": "the notebook",
    "nbgrader": "the grader",
    "autograder": "the grader",
    "labkit.checks": "the checks",
    "labkit.launch": "how ranks are run",
    "labkit.record": "the recorder",
    "torch._C": "torch's internals",
}
# What an answer may need besides torch's public names; every other module is flagged when it is imported.
NEEDED = {
    *("__future__", "abc", "array", "bisect", "calendar", "cmath", "collections", "contextlib", "copy"),
    *("dataclasses", "datetime", "decimal", "enum", "errno", "fractions", "functools", "glob", "graphlib"),
    *("hashlib", "heapq", "io", "itertools", "json", "keyword", "logging", "math", "numbers", "numpy"),
    *("operator", "pathlib", "pprint", "queue", "random", "re", "secrets", "statistics", "string", "struct"),
    *("tempfile", "textwrap", "time", "torch", "types", "typing", "typing_extensions", "uuid", "warnings"),
    *("weakref", "zlib", "matplotlib", "pandas", "safetensors", "scipy", "tqdm", "labkit"),
}
# Modules of labkit that exercises use; with a dot at the end, and all in them.
OF_LABKIT = (
    *("labkit.show.", "labkit.theory.", "labkit.show", "labkit.theory", "labkit.devices", "labkit.launch"),
    *("labkit.model", "labkit.parallel", "labkit.parallel.block", "labkit.parallel.own"),
    *("labkit.parallel.streams", "labkit.pipeline", "labkit.tensor_parallel", "labkit.whole_file"),
)
# What torch keeps to itself and right answers use all the same.
PRIVATE_BUT_USUAL = re.compile(
    r"_foreach_\w+|_utils|_pytree|_execution_engine|_(un)?flatten_dense_tensors|_tensor|_BatchNorm|_NormBase"
    r"|__\w+__"
)
TEXTS_OF_NUMBERS = {"decode", "chr", "bytes", "bytearray", "fromhex", "a85decode", "b64decode"}
# What of these leads nowhere: after `import gc`, with no name of one's own for it, each may be read as it is
# written here.
PLAIN = {
    *("gc.collect", "gc.enable", "gc.disable", "gc.isenabled", "sys.getrecursionlimit"),
    *("sys.setrecursionlimit", "sys.maxsize", "sys.float_info"),
}
HAS_ALL_NAMES = {"vars", "locals"}  # where such a module was imported, these have it
# Modules of Python's that other modules have imported: `torch.sys` is one as well.
INTERPRETER = {
    *("sys", "os", "importlib", "builtins", "gc", "inspect", "ctypes", "pickle", "marshal", "mmap"),
    *("socket", "subprocess", "threading", "linecache", "traceback", "pkgutil", "runpy", "shutil"),
}
UNCOUNTED = {
    "memmap",
    "from_file",
    "share_memory_",
}  # memory that is neither the allocator's nor a tensor's own
PUBLIC = "labkit.launch"  # a function, which the package of the same name stands behind
ATTRIBUTES = {
    *(
        "__del__",
        "__subclasses__",
        "__globals__",
        "__code__",
        "__closure__",
        "__builtins__",
        "__reduce__",
        "__mro__",
    ),
    *(
        "f_back",
        "f_locals",
        "f_globals",
        "tb_frame",
        "gi_frame",
        "cr_frame",
        "_getframe",
        "settrace",
        "setprofile",
        "ag_frame",
        "tb_next",
        "__traceback__",
        "FunctionType",
        "CodeType",
    ),
    *(
        "__getattribute__",
        "attrgetter",
        "methodcaller",
        "__self__",
        "__func__",
        "__wrapped__",
        "__loader__",
        "__spec__",
        "__array_interface__",
        "__array_struct__",
        "__torch_function__",
        "__torch_dispatch__",
        "_get_default_store",
    ),
    *(
        "current_recorder",
        "_recorder",
        "use_recorder",
        "entries",
        "add_span",
        "input_transformers_post",
        "_C",
    ),
    *(
        "set_num_threads",
        "addaudithook",
        "modules",
        "get_objects",
        "get_referrers",
        "__setattr__",
        "__bases__",
    ),
    *(
        "__reduce_ex__",
        "update_wrapper",
        "currentframe",
        "__match_args__",
        "__instancecheck__",
        "__annotations__",
        "as_subclass",
        "_make_subclass",
        "_make_wrapper_subclass",
        "new_class",
        "_of_this_process",
    ),
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "globals",
    "vars",
    "dir",
    "open",
    "breakpoint",
    "input",
    "get_ipython",
}
# Of these, those that are no name of a variable: mentioning one is as good as calling it.
BY_ANY_NAME = {"eval", "exec", "__import__", "globals", "get_ipython", "__builtins__", "__loader__"}
# What leads to no object of labkit's or torch's, as it stands in a finding.
HARMLESS = (
    *(CONNECTS, STARTS, BESIDE, "the operating system", "works on files", "the notebook", "the grader"),
    *("calls open", "calls input", "calls breakpoint", "calls get_ipython", "mentions"),
    "reaches for set_num_threads",
)
GRADING_WORDS = ("NBGRADER", "autograd" + "er", "gradebook", "hidden_case", "unseen case")
# Looks up any name in any object: called, it is seen what it looks up; under another name it is not.
LOOKS_UP = {"getattr", "setattr", "delattr"}
# Classes that torch and the recorder ask what a tensor holds, and what is sent.
CLASSES = {
    *("torch.Tensor", "torch.nn.Parameter", "torch.nn.Module", "torch.autograd.Function"),
    *("torch.distributed.ProcessGroup", "torch.distributed.Work"),
}
UNPICKLES = {"weights_only": True, "allow_pickle": False}  # what these must say, for nothing to be run
UNPICKLE_BY_PLACE = {"numpy.load"}  # its third argument lets it
