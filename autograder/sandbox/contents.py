"""What a confined program sees of this machine: all of it read-only, in the order it is laid down in."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import labkit
from autograder.sandbox.sandbox import COURSE, GRADER, IN, OUT


@dataclass(frozen=True)
class Shown:
    """A file or folder of ours, and where it is seen."""

    source: str
    at: str


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    to: str
    at: str


@dataclass(frozen=True)
class Emptied:
    """A folder that is seen empty, whatever was laid down there before."""

    at: str


Piece = Shown | Link | Emptied


def contents(requests: Path, hide: Sequence[str]) -> Iterator[Piece]:
    """Everything a sandbox shows. hide: files and folders of labkit that must not be seen."""
    yield from _system()
    yield Shown(str(requests), IN)
    yield from _course(hide)


def _system() -> Iterator[Piece]:
    """Libraries and the interpreter, where they are outside; no shell and no tools."""
    for directory in ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/etc/ld.so.cache"):
        path = Path(directory)
        if path.is_symlink():
            yield Link(os.readlink(path), directory)
        elif path.exists():
            yield Shown(directory, directory)
    for prefix in dict.fromkeys(map(os.path.abspath, (sys.base_prefix, sys.prefix))):
        if prefix != "/usr":
            yield Shown(prefix, prefix)
            continue
        yield from _interpreter()
        if Path("/usr/local/lib").exists():
            yield Shown("/usr/local/lib", "/usr/local/lib")


def _python() -> str:
    """This interpreter by a path without `..`, which leads through folders that are not there inside."""
    return os.path.abspath(sys.executable)


def _interpreter() -> Iterator[Piece]:
    """The system's, also under the names that an environment's own link to it goes through."""
    program = os.path.realpath(sys.executable)
    yield Shown(program, program)
    path = _python()
    while os.path.islink(path):
        path = os.path.normpath(Path(path).parent / os.readlink(path))
        if path != program and not Path(path).is_relative_to(sys.prefix):
            yield Shown(program, path)


def _course(hide: Sequence[str]) -> Iterator[Piece]:
    """labkit without what is hidden, and the few files of this package that run inside."""
    package = Path(labkit.__file__).parent
    yield Shown(str(package), f"{COURSE}/labkit")
    yield from _hidden(package, f"{COURSE}/labkit", hide)
    if _is_installed(package):
        yield from _hidden(package, str(package), hide)
    here, grader = Path(__file__).parent, Path(__file__).parents[1]
    yield Shown(str(here / "inside.py"), f"{GRADER}/inside.py")
    yield Shown(str(here / "within"), f"{GRADER}/autograder/sandbox/within")
    if _is_installed(grader):
        yield Emptied(str(grader))


def _is_installed(package: Path) -> bool:
    """Whether it stands among the packages that a sandbox shows, and is seen there too."""
    return any(package.is_relative_to(piece.source) for piece in _system() if isinstance(piece, Shown))


def _hidden(package: Path, at: str, hide: Sequence[str]) -> Iterator[Piece]:
    """Files and folders of labkit made empty where they are seen, and what Python has compiled of them."""
    for name in hide:
        path = package / name
        if path.is_file():
            yield Shown(str(package / "py.typed"), f"{at}/{name}")  # an empty file
        elif path.is_dir():
            yield Emptied(f"{at}/{name}")
    for folder in dict.fromkeys(Path(name).parent for name in hide if (package / name).is_file()):
        compiled = package / folder / "__pycache__"
        with contextlib.suppress(OSError):
            compiled.mkdir(exist_ok=True)  # else it could appear later, while a sandbox shows the folder
        if compiled.is_dir():
            yield Emptied(os.path.normpath(f"{at}/{folder}/__pycache__"))


def program(limits: str, ranks: str) -> list[str]:
    """The command that runs inside. ranks: "apart", each in a place of its own, or "together"."""
    return [_python(), "-s", "-E", "-B", f"{GRADER}/inside.py", IN, OUT, COURSE, limits, ranks]
