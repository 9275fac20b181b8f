"""What goes into a language model, seen where a table of embeddings is looked up: whatever the model is, and
whoever made a copy of it.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from torch import Tensor

from labkit.checks.shared.worked import Worked
from labkit.torch_private import tree_iter

LOOKING_UP = {"aten::embedding", "aten::index", "aten::index_select"}


class LookedUp(Worked):
    """Counts work, and notes what is looked up in tables of this shape.

    rows: the ids, row by row. together: the most rows in one lookup. moments: when the first and the last of
    them were looked up (time.monotonic()); empty where none was.
    """

    def __init__(self, table: tuple[int, int]) -> None:
        super().__init__()
        self._table = table
        self.rows: list[list[int]] = []
        self.together = 0
        self.moments: list[float] = []

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count it, and note it if it is a lookup."""
        super().computed(func, inputs, out)
        if func._schema.name in LOOKING_UP:
            tensors = [value for value in tree_iter(inputs) if isinstance(value, Tensor)]
            if tuple(tensors[0].shape) == self._table:
                self.moments = [*self.moments[:1], monotonic()]
                for ids in tensors[1:]:
                    rows = rows_of(ids)
                    self.rows.extend(rows)
                    self.together = max(self.together, len(rows))


def rows_of(ids: Tensor) -> list[list[int]]:
    """Those that are not empty."""
    return [row for row in ids.unsqueeze(0).flatten(0, -2).tolist() if row]
