"""How many numbers of tensors go where no operation of torch is seen: into lists, to NumPy, into bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from torch import Tensor

METHODS = ("numpy", "tolist", "__dlpack__")  # numpy.asarray comes by the first
BYTES = (
    "data_ptr",
    "untyped_storage",
    "__reduce_ex__",
)  # by these files, pickles and safetensors are written


class Leaving:
    """numbers: of the tensors that were taken apart."""

    def __init__(self) -> None:
        self.numbers = 0

    def counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which adds what its tensor has."""

        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.numbers += tensor.numel()
            return method(tensor, *args, **kwargs)

        return counted


@contextlib.contextmanager
def numbers_leaving() -> Iterator[Leaving]:
    """Counts inside the block."""
    leaving = Leaving()
    with contextlib.ExitStack() as stack:
        for name in (*METHODS, *BYTES):
            counted = leaving.counting(getattr(Tensor, name))
            stack.enter_context(patch.object(Tensor, name, counted))
        yield leaving
