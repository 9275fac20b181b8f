"""The files that `%%torchrun` writes its cells to, and never another that somebody has under that name."""

from __future__ import annotations

import re
import zlib
from importlib.util import find_spec
from pathlib import Path

from labkit.whole_file import write_whole

# The last line of such a file, with a checksum of those before: one that was edited since is somebody's work.
_MARK = b"# written by %%%%torchrun (%08x)\n"
_MARKED = re.compile(rb"(.*\n)(# written by %%torchrun \([0-9a-f]{8}\)\n)", re.DOTALL)


def write_script(path: Path, cell: str) -> None:
    """Write a cell to `path`, whole or not at all; its lines have the numbers that they have in the cell.

    Raises ValueError where what is there is not what a cell was written to, or nothing of that name should
    be, and OSError where it cannot be written.
    """
    if path.suffix != ".py":
        raise ValueError(f"{path} is no name for a script: expected one that ends in .py")
    if path.exists() and not path.is_dir() and not _is_ours(path.read_bytes()):
        raise ValueError(f"{path} is there, and is not as %%torchrun has written it: it stays as it is")
    if module := _module_hidden_by(path):
        raise ValueError(f"{path} would be imported where Python's module {module} is meant")
    text = cell.removesuffix("\n").encode() + b"\n"
    write_whole(path, text + _MARK % zlib.crc32(text))


def _is_ours(data: bytes) -> bool:
    found = _MARKED.fullmatch(data)
    return found is not None and found[2] == _MARK % zlib.crc32(found[1])


def _module_hidden_by(path: Path) -> str:
    """The module that a script of this name would be taken for; "" where there is none but in its folder."""
    name = path.stem
    spec = find_spec(name) if name.isidentifier() and name != "__main__" else None
    if spec is None or spec.origin is None:
        return ""
    beside = path.resolve(), path.resolve().with_suffix("") / "__init__.py"
    return "" if Path(spec.origin).resolve() in beside else name
