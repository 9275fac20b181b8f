"""Values in and out of a session's ranks, by name; tensors, arrays and sequences are treated alike."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from labkit.launch.handover.identity import rank_namespace


class Exchange(ABC):
    """What a session gives its ranks and takes from them. Errors are those of its `run` and `call`."""

    def push(
        self, values: Mapping[str, Any], ranks: Sequence[int] | None = None, timeout: float = 60
    ) -> None:
        """Give values names on every rank (or on those of `ranks`), over what these names had.

        What the ranks have already stays one object, as with values that a cell brings along.
        """
        check_names(values)
        self._give(values, ranks, timeout)

    def pull(
        self, names: str | Sequence[str], ranks: Sequence[int] | None = None, timeout: float = 60
    ) -> list[Any]:
        """The values of a name on every rank (or on those of `ranks`), in their order; a list for several."""
        asked = [names] if isinstance(names, str) else list(names)
        found = self._call(pulled, (asked,), {}, self._chosen(ranks), timeout)
        return [values[0] for values in found] if isinstance(names, str) else found

    def scatter(self, name: str, whole: Any, ranks: Sequence[int] | None = None, timeout: float = 60) -> None:
        """Give each rank its part of a tensor, array or sequence under a name, consecutive and of one length.

        Where the length does not divide, the first parts have one more.
        """
        chosen = self._chosen(ranks)
        for rank, part in zip(chosen, pieces(whole, len(chosen)), strict=True):
            self.push({name: part}, [rank], timeout)

    def gather(self, name: str, ranks: Sequence[int] | None = None, timeout: float = 60) -> Any:
        """The parts that ranks have under a name as one: `scatter` undone."""
        return joined(self.pull(name, ranks, timeout))

    @abstractmethod
    def _give(self, values: Mapping[str, Any], ranks: Sequence[int] | None, timeout: float) -> None:
        """Give values names on the ranks."""

    @abstractmethod
    def _call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        ranks: Sequence[int],
        timeout: float,
    ) -> list[Any]:
        """What a function returns on each of these ranks."""

    @abstractmethod
    def _chosen(self, ranks: Sequence[int] | None) -> Sequence[int]:
        """The numbers of these ranks, in order, or of all. ValueError for one that there is not."""


def pulled(names: Sequence[str]) -> list[Any]:
    """On a rank: the values of its names. NameError for one that it does not have."""
    namespace = rank_namespace()
    missing = [name for name in names if name not in namespace]
    if missing:
        raise NameError(f"name {missing[0]!r} is not defined on this rank")
    return [namespace[name] for name in names]


def pieces(whole: Any, count: int) -> list[Any]:
    """`count` consecutive parts of a tensor, an array or a sequence, whose lengths differ by one at most."""
    try:
        length = len(whole)
        whole[:0]
    except (TypeError, KeyError) as error:  # from Python 3.12 on a slice may be looked up in a dict
        kind = type(whole).__name__
        raise TypeError(f"a tensor, an array or a sequence can be scattered, found {kind}: {error}") from None
    each, more = divmod(length, count)
    starts = [index * each + min(index, more) for index in range(count + 1)]
    parts = [whole[start:stop] for start, stop in pairwise(starts)]
    return [part.clone() if hasattr(part, "untyped_storage") else part for part in parts]


def joined(parts: Sequence[Any]) -> Any:
    """The parts one after another: tensors and arrays along their first dimension, sequences added.

    TypeError for what has no parts: numbers, which would be summed, and tensors without a dimension.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    told = "tensors, arrays and sequences can be gathered; `pull` gives a list of what each rank has"
    for part in parts:
        if not hasattr(part, "__len__") or getattr(part, "shape", None) == ():
            raise TypeError(f"a {type(part).__name__} is no part of a whole: {told}")
    if torch is not None and isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    if numpy is not None and isinstance(parts[0], numpy.ndarray):
        return numpy.concatenate(list(parts))
    whole = parts[0]
    for part in parts[1:]:
        try:
            whole = whole + part
        except TypeError:
            kinds = f"{type(whole).__name__} and {type(part).__name__}"
            raise TypeError(f"parts of kinds {kinds} are no parts of one whole: {told}") from None
    return whole


def check_names(values: object) -> None:
    """TypeError for what is no dict, ValueError for what can be no name of a variable in one."""
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise TypeError(f"expected a dict of names and their values, such as {{'x': x}}, found {kind}")
    for name in values:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{name!r} is no name for a variable of the ranks")
