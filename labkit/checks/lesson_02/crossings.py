"""What crosses between devices in each pass over a row of layers, and where the layers work: with judges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import JSON
from labkit.checks.exercise import Finding
from labkit.checks.lesson_02.plain_model import (
    GRAPH_OF,
    IN_EVALUATION,
    BesidePlain,
)
from labkit.checks.lesson_02.small_layers import (
    activation_bytes,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEP_OF, nbytes

Copy = tuple[str, str, int]  # from, to, bytes
AFTERWARDS = "forward in inference, after training"
FROM_HOST = {AFTERWARDS, *STEP_OF.values(), *GRAPH_OF.values()}  # passes whose input is on the host
WITH_A_LOSS = {of["forward"] for of in (IN_EVALUATION, STEP_OF, GRAPH_OF)}  # these take a target along


class Passes:
    """Notes, as the fact `passes`, what is copied between devices in each pass, and on which devices layers
    were called one after the other, by their inputs: none where they are not called as modules.
    """

    def __init__(self, rank: Rank, gpus: devices.StandIns, layers: Sequence[nn.Module]) -> None:
        self._rank, self._gpus, self._layers = rank, gpus, list(dict.fromkeys(layers))
        self._noted: list[JSON] = []

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Note what happens inside as the pass of this name."""
        worked_on: list[JSON] = []

        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            worked_on.append(str(given[0].device))

        hooks = [layer.register_forward_pre_hook(note) for layer in self._layers]
        try:
            with self._gpus.recording() as copies:
                yield
        finally:
            for hook in hooks:
                hook.remove()
        told: list[JSON] = [[t.source, t.destination, t.num_bytes] for t in copies]
        self._noted.append({"name": name, "copies": told, "worked on": worked_on})
        self._rank.fact("passes", self._noted)


# -- judges


def works_where_told(evidence: BesidePlain) -> Iterator[Finding]:
    """In every pass each place in the row works on the device it was given, one that a layer has a second
    time too.
    """
    expected = evidence.case.params["devices"]
    for name, _, seen in _noted(evidence):
        if name.startswith("forward") and len(seen) == len(expected):
            told = f"{name}: layers that work on {', '.join(expected)}, in this order"
            yield Finding(seen == expected, told, f"on {', '.join(seen)}")


def crosses_once(evidence: BesidePlain) -> Iterator[Finding]:
    """In every pass an activation crosses where the device changes, its gradient comes back the same way."""
    noted = _noted(evidence)
    for phase in ("forward", "backward"):
        if phase not in {name for name, *_ in noted}:
            yield Finding(
                False, f"{phase}: {_in_words(_crossings(evidence, phase)[0])}", "a pass without end"
            )
    for name, seen, _ in noted:
        right = _crossings(evidence, name)
        yield Finding(seen in right, f"{name}: {_in_words(right[0])}", f"{name}: {_in_words(seen)}")
    last, facts = evidence.case.params["devices"][-1], evidence.answers[0].facts
    for when in ("output", "evaluated"):
        where = facts[f"{when} device"]
        yield Finding(where == last, f"the output on {last}", f"on {where}")


def _noted(evidence: BesidePlain) -> list[tuple[str, list[Copy], list[str]]]:
    """The name, the copies and the places of work of each pass."""
    passes = evidence.answers[0].facts["passes"]
    return [(one["name"], [(a, b, n) for a, b, n in one["copies"]], one["worked on"]) for one in passes]


def _crossings(evidence: BesidePlain, name: str) -> list[list[Copy]]:
    """What may cross in a pass. Where x does not ask for a gradient, none has to go back to where it was;
    whether it is made to ask is another judge's.
    """
    case, inputs = evidence.case, evidence.inputs
    stops = ["cpu" if name in FROM_HOST else case.params.get("x_on", "cpu"), *case.params["devices"]]
    sizes = activation_bytes(case, inputs)
    forward = [(a, b, n) for a, b, n in zip(stops, stops[1:], sizes, strict=False) if a != b]
    if name.startswith("forward"):
        target = [("cpu", stops[-1], nbytes(inputs["target0"]))] if stops[-1] != "cpu" else []
        return [[*forward, *(target if name in WITH_A_LOSS else [])]]
    backward = [(b, a, n) for a, b, n in reversed(forward)]
    if stops[0] == stops[1] or (name == "backward" and inputs["x"].is_floating_point()):
        return [backward]
    return [backward[:-1], backward] if inputs["x"].is_floating_point() else [backward[:-1]]


def _in_words(copies: Sequence[Copy]) -> str:
    return ", ".join(f"{a} to {b} ({size:,} bytes)" for a, b, size in copies) or "no copies"
