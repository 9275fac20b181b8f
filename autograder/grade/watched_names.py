"""Names that no exercise needs, and that lead to the check's own objects or past what is counted."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

CONNECTS, STARTS, RUNS_DATA = "opens connections", "starts programs or processes", "runs code from data"
LOADS = "starts processes that load data"
BESIDE, FRAMES = "runs beside the check", "walks frames"
BY_NAME, OPERATORS = "imports by name", "changes what torch's functions do"
STATE, LANGUAGE, OBJECTS = "the interpreter's own state", "changes the language", "walks all objects"
INTO_C, MEMORY = "calls into C", "reads memory"
UNRECORDED = "sends past what is recorded"
BY_TEXT, INTO_ANOTHER = "looks up attributes by text", "puts names into another module"
AFTER = "runs when the answer has been written"
PICKLED_ELSEWHERE = "runs code from data that another rank sends"
BESIDE_IT = "what a submission is loaded beside"  # where it is graded, and nowhere else
_HOW = ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")  # ways of os.exec and os.spawn
MODULES = {
    **dict.fromkeys(("socket", "urllib", "http", "requests", "ssl"), CONNECTS),
    **dict.fromkeys(("subprocess", "multiprocessing", "pty"), STARTS),
    **dict.fromkeys(("pickle", "marshal", "shelve", "code", "codeop", "runpy", "copyreg"), RUNS_DATA),
    **dict.fromkeys(("timeit", "profile", "cProfile", "doctest", "dill", "cloudpickle", "joblib"), RUNS_DATA),
    **dict.fromkeys(("typing.get_type_hints", "typing.ForwardRef", "numpy.testing", "numpy.f2py"), RUNS_DATA),
    **dict.fromkeys(("typing_extensions.get_type_hints", "typing_extensions.ForwardRef"), RUNS_DATA),
    **dict.fromkeys(("typing_extensions.evaluate_forward_ref", "typing.evaluate_forward_ref"), RUNS_DATA),
    **dict.fromkeys(("typing_extensions.get_annotations", "annotationlib", "numpy.lib.format"), RUNS_DATA),
    **dict.fromkeys(("numpy.lib.npyio", "pandas.read_pickle", "pandas.eval", "pandas.io"), RUNS_DATA),
    **dict.fromkeys(("torch.distributed.checkpoint", "torch.utils.benchmark", "torch.storage"), RUNS_DATA),
    **dict.fromkeys(("torch.distributed.nn.jit", "torch.export", "torch.distributed.rpc.api"), RUNS_DATA),
    **dict.fromkeys(("torch.utils.model_zoo", "torch.utils.show_pickle"), RUNS_DATA),
    **dict.fromkeys(("torch.fx", "torch.package", "torch.hub", "torch.serialization"), RUNS_DATA),
    **dict.fromkeys(("torch.utils.cpp_extension", "torch.ops.load_library", "torch.classes"), INTO_C),
    **dict.fromkeys(("torch.ops.c10d", "torch.ops._c10d_functional"), UNRECORDED),
    **dict.fromkeys(("torch.ops._c10d_functional_autograd", "torch.ops.symm_mem"), UNRECORDED),
    "torch.jit": RUNS_DATA,
    "torch.utils.data": LOADS,
    **dict.fromkeys(("os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn"), STARTS),
    **dict.fromkeys(("os.posix_spawnp", "os.startfile"), STARTS),
    **dict.fromkeys((f"os.{way}{how}" for way in ("exec", "spawn") for how in _HOW), STARTS),
    **dict.fromkeys(("torch.multiprocessing", "torch.distributed.elastic", "torch.distributed.run"), STARTS),
    **dict.fromkeys(("threading", "_thread", "asyncio", "concurrent", "signal"), BESIDE),
    "logging.handlers": BESIDE,
    **dict.fromkeys(("inspect", "traceback", "dis", "faulthandler"), FRAMES),
    "ctypes": INTO_C,
    "cffi": INTO_C,
    "mmap": "maps memory",
    "gc": OBJECTS,
    "sys": STATE,
    "builtins": LANGUAGE,
    **dict.fromkeys(("importlib", "pkgutil", "zipimport", "pydoc", "logging.config"), BY_NAME),
    "string.Formatter": BY_TEXT,
    "weakref.WeakMethod": BY_TEXT,
    **dict.fromkeys(("atexit", "weakref.finalize", "weakref.KeyedRef"), AFTER),
    "enum.global_enum": INTO_ANOTHER,
    **dict.fromkeys(
        (f"torch.distributed.{name}" for name in ("fsdp", "pipelining", "optim")), PICKLED_ELSEWHERE
    ),
    "torch.distributed.collective_utils": PICKLED_ELSEWHERE,
    **dict.fromkeys(("torch.utils.model_dump", "torch.utils.bundled_inputs"), RUNS_DATA),
    "torch.compiler.load_cache_artifacts": RUNS_DATA,
    **dict.fromkeys(("reference", "notebook", "inside"), BESIDE_IT),
    "scipy.io": RUNS_DATA,
    # A setting of matplotlib's, and what it draws with, are imported and called by a text.
    **dict.fromkeys(
        (
            f"matplotlib.{home}{name}"
            for home in ("", "pyplot.")
            for name in (
                *("rcParams", "rcParamsDefault", "rcParamsOrig", "RcParams", "rc", "rc_context", "rc_file"),
                *("rc_params", "style", "switch_backend", "backend_registry", "FigureManagerBase"),
            )
        ),
        BY_NAME,
    ),
    "scipy.LowLevelCallable": INTO_C,
    **dict.fromkeys(("torch.utils.collect_env", "torch.utils.hipify"), STARTS),
    "torch.utils.backend_registration": OPERATORS,
    **dict.fromkeys(("linecache", "tracemalloc", "bdb", "pdb", "trace"), STATE),
    **dict.fromkeys(("torch.library", "torch.overrides", "torch.utils._python_dispatch"), OPERATORS),
    "numpy.ctypeslib": INTO_C,
    "numpy.lib.stride_tricks": MEMORY,
    "torch.distributed.rpc": CONNECTS,
    "os": "the operating system",
    "resource": "the operating system",
    "shutil": "works on files",
    "unittest": "patches objects",
    **dict.fromkeys(
        ("IPython.display", "IPython.core.display", "IPython.core.display_functions", "IPython.lib.display"),
        "the notebook",
    ),
    "IPython": RUNS_DATA,
    "nbgrader": "the grader",
    "autograder": "the grader",
    "labkit.checks": "the checks",
    "labkit.launch": "how ranks are run",
    "labkit.record": "the recorder",
    "torch._C": "torch's internals",
}
# What libraries keep to themselves and right answers use all the same: of torch, of named tuples and enums.
PRIVATE_BUT_USUAL = re.compile(
    r"_foreach_\w+|_utils|_pytree|_execution_engine|_(un)?flatten_dense_tensors|_tensor|_BatchNorm|_NormBase"
    r"|_replace|_asdict|_make|_fields|_[a-z]\w*[a-z0-9]_|__\w+__|_"
)
# Of torch.utils._pytree, what maps trees; other names of it import by text or look up attributes by it.
OF_PYTREE = re.compile(r"tree_\w+|register_pytree_node|PyTree|TreeSpec|LeafSpec|KeyPath")
TEXTS_OF_NUMBERS = {"decode", "chr", "bytes", "bytearray", "fromhex", "a85decode", "b64decode"}
# What of these leads nowhere: after `import gc`, with no name of one's own for it, each may be read as it is
# written here.
PLAIN = {
    *("gc.collect", "gc.enable", "gc.disable", "gc.isenabled", "sys.getrecursionlimit"),
    *("sys.setrecursionlimit", "sys.maxsize", "sys.float_info"),
}
PARTLY = {name.partition(".")[0] for name in PLAIN}  # modules of which it matters what is used
# Which of autograd's passes is under way, which torch tells nowhere else: who may be used in several asks it.
ONLY_ASKED = {"torch._C._current_graph_task_id"}
HAS_ALL_NAMES = {"vars", "locals"}  # where such a module was imported, these have it
# Modules of Python's that other modules have imported: `torch.sys` is one as well.
INTERPRETER = {
    *("sys", "os", "importlib", "builtins", "gc", "inspect", "ctypes", "pickle", "marshal", "mmap"),
    *("socket", "subprocess", "threading", "linecache", "traceback", "pkgutil", "runpy", "shutil"),
}
UNCOUNTED = {
    "to_dlpack",
    "memmap",
    "from_file",
    "share_memory",
    "share_memory_",
}  # memory that is neither the allocator's nor a tensor's own, and the way to it past torch
PUBLIC = "labkit.launch"  # a function, which the package of the same name stands behind
ATTRIBUTES = {
    # What a stand-in device's streams and copies have beside torch's own names: by it their time is told.
    *("_labkit_queue", "_labkit_queues", "_labkit_machine", "_labkit_moment", "_labkit_before"),
    # The entries of a class give what they are for of any object; a module's hooks may be the checks' own.
    *("__get__", "__set__", "__delete__", "__objclass__", "mro"),
    "boxed",  # a process group as torch's operators take it, whose messages are in no record
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
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
        "get_group_store",
        "TCPStore",
        "FileStore",
        "HashStore",
        "PrefixStore",
        "rendezvous",
        "__path__",
        "__dlpack__",
        "__dlpack_device__",
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
        "_evaluate",
        "_convert_",
        "__getattr__",
        "__dataclass_fields__",
        "_old_targets",
    ),
    # What functions are made of, and libraries' own ways to look attributes up by a text.
    *("gi_code", "cr_code", "ag_code", "f_code", "co_code", "co_consts", "co_names"),
    *("wrapper_getattr", "wrapper_setattr"),
}
OFTEN_DEFINED = {
    "__getattr__"
}  # of ATTRIBUTES: a class may have one, and ask the one of what it is a kind of
# What a module says that it is: by these `from .` finds out where it stands, and checks whose a class is.
OF_A_MODULE = {"__name__", "__package__", "__path__", "__module__"}
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
HARMLESS_CALLS = {"open", "input", "get_ipython"}
RUN_TEXT = CALLS - HARMLESS_CALLS - {"dir"}  # or give all names there are
# Of these, those that are no name of a variable: mentioning one is as good as calling it.
BY_ANY_NAME = {"eval", "exec", "__import__", "globals", "get_ipython", "__builtins__", "__loader__"}
# What leads to no object of labkit's or torch's, as it stands in a finding.
HARMLESS = (
    *(
        CONNECTS,
        STARTS,
        LOADS,
        BESIDE,
        "the operating system",
        "works on files",
        "the notebook",
    ),
    *("calls open", "calls input", "calls get_ipython", "mentions"),
    "reaches for set_num_threads",
)
GRADING_WORDS = ("NBGRADER", "autograd" + "er", "gradebook", "hidden_case", "unseen case")
# Looks up any name in any object: called, it is seen what it looks up; under another name it is not.
LOOKS_UP = {"getattr", "setattr", "delattr"}
RENAMED = {"compile", "breakpoint"}  # called by another name, what runs is not seen
# Classes that torch and the recorder ask what a tensor holds, and what is sent.
CLASSES = {
    *("torch.Tensor", "torch.nn.Parameter", "torch.nn.Module", "torch.autograd.Function"),
    *("torch.distributed.ProcessGroup", "torch.distributed.Work"),
}
# What these must say, for nothing to be run.
UNPICKLES = {"weights_only": True, "allow_pickle": False, "pickle_module": None}


@dataclass(frozen=True)
class Usual:
    """How a function is called where it does what it is known for. otherwise: what it does called in another
    way. places: how many arguments it has by their places; without: those it has not by name; literal:
    whether those after the first are written out; entered: whether `with` is all that its value is for.
    """

    otherwise: str
    places: int = 99
    without: Collection[str] = ()
    literal: bool = False
    entered: bool = False


PICKLED = "reads what was pickled"
USUAL = {
    **dict.fromkeys(("numpy.load", "torch.load"), Usual(PICKLED, 2)),
    "functools.wraps": Usual(BY_TEXT, 1, ("assigned", "updated", "**")),
    "dataclasses.make_dataclass": Usual(RUNS_DATA, 2, ("fields", "namespace", "**"), literal=True),
    **dict.fromkeys(
        ("contextlib.redirect_stdout", "contextlib.redirect_stderr"), Usual(BY_TEXT, entered=True)
    ),
    **dict.fromkeys(("weakref.ref", "weakref.proxy"), Usual(AFTER, 1)),
}
# What has others look names up, or run texts or functions: not to be called by another name.
NOT_HANDED_ON = {*USUAL, "torch.compile"}
COPIES = {"copy.copy", "copy.deepcopy"}
DISPATCHES = {"functools.singledispatch", "functools.singledispatchmethod"}
FIELDS, FIELD = "dataclasses.fields", "dataclasses.field"
# Collectives whose bytes are unpickled where they arrive: a rank that sends others runs code there.
OF_OBJECTS = re.compile(r"\w+_object(_list)?")
# Exercises that are solved with such, as far as every rank makes the same call.
SENDS_OBJECTS = {"00.find-the-deadlock", "08.sharded-checkpoint", "10.slow-program-3", "12.all-to-all"}
# What is kept in a file is in no check's count: `KEPT_IN_FILES`, where an exercise writes none.
KEPT_IN_FILES = "keeps data in a file, by"
FILE_FUNCTIONS = {
    *("torch.save", "safetensors.torch.save_file", "safetensors.numpy.save_file"),
    *("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt"),
    *("io.open", "io.FileIO", "logging.FileHandler", "logging.basicConfig"),
    *("labkit.whole_file.write_whole", "safetensors.serialize_file", "safetensors.torch.save_model"),
    *(f"os.{name}" for name in ("write", "pwrite", "writev", "pwritev", "fdopen", "open", "dup", "dup2")),
    *(f"os.{name}" for name in ("sendfile", "splice", "copy_file_range", "pipe", "pipe2", "memfd_create")),
}
FILE_METHODS = {"write_bytes", "write_text", "tofile", "symlink_to", "hardlink_to"}
FILE_METHODS |= {"export_chrome_trace", "export_stacks", "export_memory_timeline"}
WRITES_FILES = {"08.sharded-checkpoint"}
RUN_TEXT |= {"__builtins__", "__loader__"}
# Attributes from which one gets to any module that is loaded, or that have a text or data run.
LEADS_ANYWHERE = {
    *("__subclasses__", "__globals__", "__builtins__", "__reduce__", "__reduce_ex__", "__self__"),
    *("f_back", "f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame"),
    *("_getframe", "_current_frames", "currentframe", "settrace", "setprofile", "addaudithook", "modules"),
    *("FunctionType", "CodeType", "__code__", "__loader__", "__spec__", "_evaluate", "_convert_"),
    *("get_objects", "get_referrers", "__getattribute__", "attrgetter", "methodcaller", "__match_args__"),
    *("__instancecheck__", "__annotations__", "__array_interface__", "__array_struct__", "__path__"),
    *("__getattr__", "__dataclass_fields__", "_old_targets", "__module__", "__del__"),
    *("__get__", "__set__", "__delete__", "__objclass__"),
    *("gi_code", "cr_code", "ag_code", "f_code", "co_code", "co_consts", "co_names"),
    *("wrapper_getattr", "wrapper_setattr", *OF_A_MODULE),
}
# Methods by which what was answered and what is held are read: one that a tensor is given itself comes first.
READ_BY = {
    *("full_tensor", "detach", "untyped_storage", "storage_offset", "data_ptr", "element_size", "clone"),
    *("cpu", "contiguous", "is_contiguous", "is_floating_point", "tolist"),
}
# What gives a tensor, which nobody calls: it may be kept under any of these names.
STATES = {f"torch.{home}get_rng_state" for home in ("", "random.", "cuda.", "cuda.random.")}
# Methods of tensors and of their storages by which numbers leave torch: how often, checks count.
READ_OUT = {
    *("numpy", "tolist", "__dlpack__", "apply_", "map_", "map2_", "item", "__getitem__"),
    *("__float__", "__int__", "__index__", "__complex__", "__bool__", "data_ptr", "untyped_storage"),
    *("__reduce__", "__reduce_ex__"),
}
# What leads to the checks, or to any module, as it stands in a finding.
ANYWHERE = (
    *(f"({why}" for why in (RUNS_DATA, FRAMES, BY_NAME, STATE, LANGUAGE, OBJECTS, INTO_C, MEMORY, STARTS)),
    *("(maps memory", "(the checks", f"({BY_TEXT}", "keeps to itself", f"({INTO_ANOTHER}", f"({AFTER}"),
    *(f"({PICKLED_ELSEWHERE}", "not followed"),
    *("runs code from data", "puts together", "put together", "by a name that is made", "another name"),
    *("beside what is imported", "which no exercise needs", "(patches objects", "(the grader"),
    f"({BESIDE_IT}",
)
