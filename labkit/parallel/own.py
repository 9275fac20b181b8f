"""The parts that somebody built, from the notebooks of lessons 03, 04 and 07."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from labkit.checks.source.notebook import read_cells
from labkit.checks.source.submission import collect
from labkit.parallel.parts import Parts, library_parts

NAMES = {  # field -> the lesson that builds it, and its name there
    "block": ("07", "TensorParallelBlock"),
    "embedding": ("07", "VocabParallelEmbedding"),
    "cross_entropy": ("07", "vocab_parallel_cross_entropy"),
    "streams": ("07", "RandomStreams"),
    "schedule": ("04", "one_f_one_b_schedule"),
    "run_schedule": ("04", "run_schedule"),
    "average_gradients": ("03", "average_gradients"),
}


def own_parts(notebooks: Mapping[str, str | Path]) -> Parts:
    """Those of somebody's notebooks, and the library's for lessons that are not named.

    notebooks: lesson ("03", "04", "07") -> path of its notebook, as it was saved. ValueError names what a
    notebook lacks, or a lesson that has no part here.
    """
    known = sorted({lesson for lesson, _ in NAMES.values()})
    if unknown := sorted(set(notebooks) - set(known)):
        raise ValueError(f"lesson {unknown[0]} has no part here; lessons {', '.join(known)} have")
    loaded = {lesson: _definitions(lesson, Path(path)) for lesson, path in notebooks.items()}
    found = dict(vars(library_parts()))
    for field, (lesson, name) in NAMES.items():
        if lesson in loaded:
            found[field] = getattr(loaded[lesson], name)
    return Parts(**found)


def _definitions(lesson: str, notebook: Path) -> ModuleType:
    names = [name for number, name in NAMES.values() if number == lesson]
    module = collect(read_cells(notebook), lesson, names).load()
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise ValueError(f"{notebook} does not define {', '.join(missing)}")
    return module
