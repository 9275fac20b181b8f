"""What the cells of a solved lesson showed when they ran, kept until the lesson or labkit changes.

Runs are kept beside what is built and not in the repository: the lessons' outputs are some ten megabytes of
pictures that nobody can review, and what is in a repository can be older than the code it is shown with.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

import labkit
from labkit.build.course import instructor_notebook
from labkit.build.markup import Lesson
from labkit.whole_file import write_whole

Outputs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Cell id -> what the cell showed."""

CELL_SECONDS = 300
LESSON_SECONDS = 1800
"""On two cores with little else to do a lesson takes 14 to 72 s; on a busy machine many times that."""
SHOWN_WITH = (".py", ".html", ".css", ".json")
NOT_SHOWN = ("build", "doctor", "prove", "slurm")  # rooms of labkit that no lesson's cell comes to


class RunError(Exception):
    """A lesson's solved notebook did not run to its end; the message says in which cell, and why."""


@dataclass(frozen=True)
class RunStore:
    """Runs by lesson in a folder; of each lesson the last. seconds: that one run may take."""

    folder: Path
    seconds: float = LESSON_SECONDS

    def outputs(self, lesson: Lesson, ran: Callable[[int, int], None]) -> Outputs:
        """What the lesson's cells show, run now if they have not been since something changed.

        ran: told after each cell how many of how many have run. Raises RunError.
        """
        solved = instructor_notebook(lesson)
        kept = self.folder / f"{lesson.name}-{_digest(solved)}.json"
        if not kept.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            found = run_cells(lesson.name, solved, self.folder, self.seconds, ran)
            for old in self.folder.glob(f"{lesson.name}-*.json"):
                old.unlink()
            write_whole(kept, json.dumps(found).encode())
        outputs: Outputs = json.loads(kept.read_text(encoding="utf-8"))
        return outputs


def run_cells(
    name: str, solved: NotebookNode, folder: Path, seconds: float, ran: Callable[[int, int], None]
) -> Outputs:
    """Run all cells in a kernel of this environment that works in `folder`, in `seconds` all together."""
    until = time.monotonic() + seconds

    def left(_: NotebookNode) -> float:
        return min(CELL_SECONDS, max(0.1, until - time.monotonic()))

    def told(cell: NotebookNode, cell_index: int, **_: object) -> None:
        ran(cell_index + 1, len(solved.cells))

    with tempfile.TemporaryDirectory(prefix="labkit-run-") as private:
        # Sockets in a private folder: a port could be reached by all who are on the machine.
        manager = {"transport": "ipc", "connection_file": f"{private}/kernel.json"}
        client = NotebookClient(
            solved,
            timeout_func=left,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            config=Config(KernelManager=manager),
            on_cell_complete=told,
        )
        try:
            client.execute()
        except CellTimeoutError as problem:
            spent = "all its cells" if time.monotonic() >= until else "one cell"
            raise RunError(_too_slow(name, spent, seconds, problem)) from problem
        except (CellExecutionError, DeadKernelError) as problem:
            raise RunError(f"{name}, solved, does not run: {problem}") from problem
    return {cell.id: cell.outputs for cell in solved.cells if cell.cell_type == "code" and cell.outputs}


def _too_slow(name: str, spent: str, seconds: float, problem: CellTimeoutError) -> str:
    most = CELL_SECONDS if spent == "one cell" else seconds
    told = f"{name}, solved, takes more than the {most:g} s that {spent} may"
    return (
        f"{told}: build the site when the machine has nothing else to do, or see what became slow\n{problem}"
    )


def _digest(solved: NotebookNode) -> str:
    """Of all that decides what is shown: the cells, what they use of labkit, and torch's version."""
    found = hashlib.sha256(torch.__version__.encode())
    for cell in solved.cells:
        found.update(f"{cell.id}\n{cell.source}\n".encode())
    house = Path(labkit.__file__).parent
    for path in sorted(path for path in house.rglob("*") if path.suffix in SHOWN_WITH):
        name = path.relative_to(house)
        if name.parts[0] not in NOT_SHOWN:
            found.update(f"{name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
