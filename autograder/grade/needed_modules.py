"""Modules that an answer may need: every other one is told where it is imported or used."""

from __future__ import annotations

# What an answer may need besides torch's public names; every other module is flagged when it is imported.
NEEDED = {
    *("__future__", "abc", "array", "bisect", "calendar", "cmath", "collections", "contextlib", "copy"),
    *("dataclasses", "datetime", "decimal", "enum", "errno", "fractions", "functools", "glob", "graphlib"),
    *("hashlib", "heapq", "io", "itertools", "json", "keyword", "logging", "math", "numbers", "numpy"),
    *("operator", "pathlib", "posixpath", "pprint", "queue", "random", "re", "secrets", "statistics"),
    *("string", "struct", "tempfile", "textwrap", "time", "torch", "types", "typing", "typing_extensions"),
    *("uuid", "warnings", "weakref", "zlib"),
    *("labkit", "matplotlib", "safetensors", "scipy", "tqdm"),
}
# Of these an answer may need what stands here and, with a dot at the end, all below. Elsewhere in them are
# functions that look attributes up by a text (`torch.ao`), import by one, or start programs.
IN_PART = {
    "torch": (
        *("torch.nn.modules.", "torch.nn.utils.", "torch.optim.", "torch.autograd.", "torch.cuda."),
        *("torch.amp.", "torch.cpu.", "torch.func.", "torch.sparse.", "torch.nested."),
        "torch.distributions.",
        *("torch.distributed.tensor.", "torch.distributed.algorithms.", "torch.profiler.", "torch.signal."),
        *("torch.nn", "torch.nn.attention", "torch.nn.attention.flex_attention", "torch.nn.functional"),
        *("torch.nn.grad", "torch.nn.init", "torch.nn.parameter", "torch.nn.parallel", "torch.nn.utils"),
        *("torch.nn.parallel.distributed", "torch.nn.modules", "torch.optim", "torch.autograd", "torch.cuda"),
        *("torch.accelerator", "torch.amp", "torch.cpu", "torch.mps", "torch.xpu", "torch.func"),
        *("torch.compiler", "torch.distributions", "torch.fft", "torch.functional", "torch.futures"),
        *("torch.linalg", "torch.nested", "torch.profiler", "torch.quasirandom", "torch.random"),
        *("torch.return_types", "torch.signal", "torch.sparse", "torch.special", "torch.storage"),
        *("torch.testing", "torch.types", "torch.version", "torch.torch_version"),
        *("torch.backends", "torch.backends.cpu", "torch.backends.cuda", "torch.backends.cudnn"),
        *("torch.backends.mkl", "torch.backends.mkldnn", "torch.backends.mps", "torch.backends.openmp"),
        *("torch.backends.opt_einsum", "torch.distributed", "torch.distributed.algorithms"),
        *("torch.distributed.autograd", "torch.distributed.constants", "torch.distributed.device_mesh"),
        *("torch.distributed.distributed_c10d", "torch.distributed.nn", "torch.distributed.nn.functional"),
        *("torch.distributed.tensor", "torch.distributed.utils"),
        *("torch.utils", "torch.utils.checkpoint", "torch.utils.dlpack", "torch.utils.flop_counter"),
        *("torch.utils.hooks", "torch.utils.weak", "torch.utils.data", "torch.utils.data.dataloader"),
        *("torch.utils.data.dataset", "torch.utils.data.distributed", "torch.utils.data.sampler"),
    ),
    "matplotlib": (
        *("matplotlib.pyplot", "matplotlib.ticker", "matplotlib.colors", "matplotlib.cm"),
        *("matplotlib.patches", "matplotlib.lines", "matplotlib.dates"),
    ),
    "numpy": (
        *("numpy.random.", "numpy.linalg.", "numpy.fft.", "numpy.polynomial.", "numpy.ma."),
        *("numpy.random", "numpy.linalg", "numpy.fft", "numpy.polynomial", "numpy.ma", "numpy.typing"),
        *("numpy.char", "numpy.strings", "numpy.dtypes", "numpy.exceptions", "numpy.emath", "numpy.lib"),
        *("numpy.version", "numpy.matrixlib"),
    ),
}
# Modules of labkit that exercises use; with a dot at the end, and all in them.
OF_LABKIT = (
    *("labkit.show.", "labkit.theory.", "labkit.show", "labkit.theory", "labkit.devices", "labkit.launch"),
    *("labkit.model", "labkit.parallel", "labkit.parallel.block", "labkit.parallel.own"),
    *("labkit.parallel.streams", "labkit.pipeline", "labkit.tensor_parallel", "labkit.whole_file"),
)
