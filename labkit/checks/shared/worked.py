"""What a student's function had computed: matrix products, tensors made, operations of torch."""

from __future__ import annotations

from typing import Any

from labkit.record.journal import flops_of, operands_of
from labkit.record.live import has_bytes
from labkit.record.threads import InAllThreads
from labkit.torch_private import WatchingMode, tree_iter


class Worked(InAllThreads, WatchingMode):
    """Counts what is computed inside `with Worked() as worked:`, in other threads too.

    calls: of torch's operations, views too. products: operations of matrix products, a multiply-add as two.
    largest: elements of the largest tensor that was made. made: those of all of them together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.products = self.largest = self.made = 0

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count it."""
        self.calls += 1
        if not func.is_view:
            self.products += flops_of(func._schema.name, operands_of(inputs))
            sizes = [t.numel() for t in tree_iter(out) if has_bytes(t)]
            self.largest, self.made = max([self.largest, *sizes]), self.made + sum(sizes)
