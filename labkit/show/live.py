"""Controls in a running notebook, and below them an answer that follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML, DisplayHandle, display

LOOK: Mapping[str, Any] = {"style": {"description_width": "115px"}, "layout": {"width": "360px"}}


def checked_start(start: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to begin with; TypeError lists the names there are."""
    unknown = set(given) - set(start)
    if unknown:
        raise TypeError(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(start)}")
    return {**start, **given}


def menu(start: Mapping[str, Any], name: str, text: str, options: list[Any]) -> widgets.Dropdown:
    """A menu that begins with the setting `name` of `start`. text: beside it. ValueError lists options."""
    return widgets.Dropdown(options=options, value=_one_of(options, start, name), description=text, **LOOK)


def slider(start: Mapping[str, Any], name: str, text: str, options: list[int]) -> widgets.SelectionSlider:
    """A slider over the options that begins with the setting `name` of `start`. text: beside it. ValueError
    lists the options.
    """
    value = _one_of(options, start, name)
    return widgets.SelectionSlider(options=options, value=value, description=text, **LOOK)


def _one_of(options: list[Any], start: Mapping[str, Any], name: str) -> Any:
    """The setting to begin with. An option may be a pair, of what is shown and its value."""
    values = [option[1] if isinstance(option, tuple) else option for option in options]
    if start[name] not in values:
        there_are = ", ".join(map(str, values))
        raise ValueError(f"expected {name} to be one of {there_are}; found {start[name]!r}")
    return start[name]


class Live:
    """Controls by name, and `answer(settings)` as HTML.

    The answer is an output of its own below the controls: a notebook that is saved or printed keeps the last.
    """

    def __init__(
        self,
        controls: Mapping[str, widgets.ValueWidget],
        left: tuple[str, ...],
        answer: Callable[[Mapping[str, Any]], str],
    ):
        """left: names of the controls in the left one of two columns."""
        self.controls = controls
        columns = [[controls[name] for name in left], [c for name, c in controls.items() if name not in left]]
        boxes = [widgets.VBox(column) for column in columns]
        self.sliders = widgets.HBox(boxes, layout={"flex_flow": "row wrap"})
        self._answer = answer
        self._shown: list[DisplayHandle] = []
        for control in controls.values():
            control.observe(self._redraw, names="value")

    @property
    def settings(self) -> dict[str, Any]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def html(self) -> str:
        """The answer to the settings as they are."""
        return self._answer(self.settings)

    def _redraw(self, change: object = None) -> None:
        for shown in self._shown:
            shown.update(HTML(self.html))

    def _ipython_display_(self) -> None:
        """The controls, and below them the answer as an output that outlives them."""
        display(self.sliders)
        handle = display(HTML(self.html), display_id=True)
        if handle is not None:
            self._shown.append(handle)
