"""What is checkpointed: functions and their arguments, from tensors that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs

Call = Callable[..., Any]
BOTH = -1


@dataclass
class Subject:
    """A function to be checkpointed, its arguments, the module whose parameters it uses, and what backward
    gets.

    given: what gradients are read from; args: what the function is called with, the same, or what is made of
    it. in_a_row: how often it is called, each time with what it gave before. backwards: the numbers of calls
    that do not hear of each other, in the order of their backwards. counted: the module whose runs are
    counted.
    """

    function: Call
    given: tuple[Any, ...]
    args: tuple[Any, ...]
    module: nn.Module
    grad_output: Tensor
    result: int  # which of several results backward starts from, or `BOTH` of the first two
    autocast: torch.dtype | None
    counted: nn.Module
    in_a_row: int = 1
    backwards: Sequence[int] = (0,)

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs that ask for gradients."""
        return [arg for arg in self.given if isinstance(arg, Tensor) and arg.requires_grad]

    def of(self, given: tuple[Any, ...]) -> Subject:
        """The same with other arguments, which are made of these where its own are made."""
        made = any(arg is not own for arg, own in zip(self.args, self.given, strict=True))
        return replace(self, given=given, args=_made_of(given) if made else given)


class Several(nn.Module):
    """Results from a float tensor, nothing, another tensor, ids, and a plain number: two that gradients go
    through, one without a graph, and whole numbers.
    """

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.table = nn.Embedding(inner, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: None, y: Tensor, ids: Tensor, scale: float) -> tuple[Tensor, ...]:
        if mask is not None:
            raise TypeError(f"expected None in the place of the mask, found {type(mask).__name__}")
        first = torch.tanh(self.mix(x + self.table(ids))) * scale
        return first, self.mix(y) * scale, x.detach() * scale, ids + 1


class WithNumber(Several):
    """The same, and a result without dimensions that nobody uses: where nobody says otherwise, backward from
    such a one begins at 1.
    """

    def forward(self, *args: Any) -> tuple[Tensor, ...]:
        results = super().forward(*args)
        return *results, results[0].square().mean()


class _One(nn.Sequential):
    """A tuple of one result."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (super().forward(x),)


class _HandedBack(nn.Sequential):
    """A result, x itself, and one without a graph."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return super().forward(x), x, 0.5 * x.detach()


class _TwoEnds(nn.Sequential):
    """What the last layer makes of what the others give, a mean of that, and a result without a graph."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        *first, last = self.children()
        return two_ends(last, nn.Sequential(*first)(x), x)


class _Noise(nn.Dropout):
    """Dropout in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.p, training=True)


class _Dropping(nn.Sequential):
    """Dropout of what its layers give, for which no module of it stands."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.4, self.training)


class _InFull(nn.Linear):
    """A layer that autocast is kept out of."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(self.weight.dtype))


class _Seen(nn.Module):
    """x as it is, and a sum of all x in a buffer that no state dict has."""

    def __init__(self, width: int):
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(x.sum(0))
        return x


class _BeforeIt(nn.Module):
    """The sum of each row and those before it, by a mask that is a buffer: 512 rows, 256 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(512, 512, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        return self.mask[:rows, :rows].to(x.dtype) @ x


def one_end(last: nn.Module, middle: Tensor, x: Tensor) -> Tensor:
    """What the last layer makes of the others' result."""
    end: Tensor = last(middle)
    return end


def two_ends(last: nn.Module, middle: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The results of `_TwoEnds`: two that hang on `middle`."""
    return last(middle), middle.mean(-1, keepdim=True), x.detach()


def _made_of(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a model hands on: no leaf, but the result of an operation. Parameters stay what they are."""
    made = {id(arg): arg * 1.0 for arg in given if type(arg) is Tensor and arg.requires_grad}
    return tuple(made.get(id(arg), arg) for arg in given)


def _in_a_function(module: nn.Module) -> Call:
    return lambda *args: module(*args)


CALLED: Mapping[str, Callable[[nn.Module], Call]] = {
    "module": lambda module: module,
    "method": lambda module: module.__call__,
    "function": _in_a_function,
    "partial": partial(partial),
}


def _mlp(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def with_dropout(width: int, inner: int) -> nn.Module:
    """The MLP with dropout in two places, in one of them in evaluation too."""
    first, gelu, last = _mlp(width, inner).children()
    return nn.Sequential(first, nn.Dropout(0.4), gelu, last, _Noise(0.2))


def with_its_own_dropout(width: int, inner: int) -> nn.Module:
    """The MLP with dropout at its end, by a function."""
    return _Dropping(*_mlp(width, inner).children())


def in_part_in_full(width: int, inner: int) -> nn.Module:
    """The MLP, whose last layer no autocast reaches."""
    first, gelu, _ = _mlp(width, inner).children()
    return nn.Sequential(first, gelu, _InFull(inner, width))


def with_batch_norm(width: int, inner: int) -> nn.Module:
    """With batch normalisation, and a buffer that no state dict has."""
    first, _, last = _mlp(width, inner).children()
    return nn.Sequential(first, nn.BatchNorm1d(inner), _Seen(inner), nn.Tanh(), last)


def with_deep_batch_norm(width: int, inner: int) -> nn.Module:
    """The same, three modules deep."""
    first, *buffered, tanh, last = with_batch_norm(width, inner).children()
    return nn.Sequential(first, nn.Sequential(nn.Sequential(*buffered)), tanh, last)


def with_mask(width: int, inner: int) -> nn.Module:
    """The MLP behind a large buffer that stays as it is."""
    return nn.Sequential(_BeforeIt(), *_mlp(width, inner).children())


def one_result(width: int, inner: int) -> nn.Module:
    """The MLP, whose result is a tuple of one."""
    return _One(*_mlp(width, inner).children())


def with_two_ends(width: int, inner: int) -> nn.Module:
    """The MLP, with two results of its first layers."""
    return _TwoEnds(*_mlp(width, inner).children())


def with_x_handed_back(width: int, inner: int) -> nn.Module:
    """The MLP, among whose results is x itself."""
    return _HandedBack(*_mlp(width, inner).children())


def _x(handed: Inputs) -> tuple[Any, ...]:
    return (handed["x"].clone().requires_grad_(),)


def x_as_data(handed: Inputs) -> tuple[Any, ...]:
    """x, which asks for no gradient."""
    return (handed["x"].clone(),)


def several_arguments(handed: Inputs) -> tuple[Any, ...]:
    """What `Several` is given, a parameter among it."""
    return (*_x(handed), None, nn.Parameter(handed["y"].clone()), handed["ids"], 0.5)


def one_for_two(handed: Inputs) -> tuple[Any, ...]:
    """The same, with one tensor in two places."""
    (x,) = _x(handed)
    return x, None, x, handed["ids"], 0.5


def view_of_x(handed: Inputs) -> tuple[Any, ...]:
    """x in memory of another order."""
    return (handed["x"].T.contiguous().T.requires_grad_(),)


@dataclass(frozen=True)
class Recipe:
    """What a kind of case checkpoints: a module of (width, inner), and how it is called.

    ones: backward starts from them, and whoever always does so loses nothing here.
    """

    module: Callable[[int, int], nn.Module] = _mlp
    args: Callable[[Inputs], tuple[Any, ...]] = _x
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    ones: bool = False

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """Parameters "full.NAME" of the module; x, y, ids and grad_output with one entry a rank."""

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=self._dtype(case))

        shape = (case.ranks, case.params["rows"], case.params["width"])
        found = {
            f"full.{name}": draw(*parameter.shape) / parameter.shape[-1] ** 0.5
            for name, parameter in self._empty(case).named_parameters()
        }
        found |= {name: draw(*shape) for name in ("x", "y", "grad_output")}
        return found | {"ids": torch.randint(case.params["inner"], shape[:2], generator=generator)}

    def subject(self, case: Case, handed: Inputs) -> Subject:
        """The function with fresh tensors, of what one rank is handed."""
        module = self._empty(case).to(self._dtype(case)).train(case.params.get("training", True))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(handed[f"full.{name}"])
        for name in case.params.get("frozen", ()):
            module.get_parameter(name).requires_grad_(False)
        given, result = self.args(handed), case.params.get("result", 0)
        args = _made_of(given) if case.params.get("made") else given
        in_a_row, backwards = case.params.get("in_a_row", 1), case.params.get("backwards", (0,))
        function = CALLED[case.params.get("called", "module")](module)
        grad_output = handed["grad_output"]
        if self.ones or case.params.get("zeros"):
            grad_output = torch.full_like(grad_output, float(self.ones))
        return Subject(
            function, given, args, module, grad_output, result, self.autocast, module, in_a_row, backwards
        )

    def _dtype(self, case: Case) -> torch.dtype:
        """The case's, if it names one."""
        named = case.params.get("dtype")
        found: torch.dtype = getattr(torch, named) if named else self.dtype
        return found

    def _empty(self, case: Case) -> nn.Module:
        return self.module(case.params["width"], case.params["inner"])
