"""What a value or figure of a rank looks like in a notebook: HTML, with images in it. Without IPython."""

from __future__ import annotations

import base64
import html
import io
import sys
from collections.abc import Iterator
from typing import Any

_IMAGES = {"png": "image/png", "jpeg": "image/jpeg"}


def rich(value: Any) -> str:
    """The value as HTML, by the methods that IPython knows; "" for a value that is text alone."""
    for form in _forms(value):
        if form:
            return form
    return ""


def _forms(value: Any) -> Iterator[str]:
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return
    bundle = _ask(value, "_repr_mimebundle_")
    data = bundle[0] if isinstance(bundle, tuple) and bundle else bundle
    data = data if isinstance(data, dict) else {}
    yield _text(data.get("text/html"))
    yield _text(_ask(value, "_repr_html_"))
    yield _text(data.get("image/svg+xml")) or _text(_ask(value, "_repr_svg_"))
    for kind, mime in _IMAGES.items():
        yield _image(data.get(mime) or _ask(value, f"_repr_{kind}_"), mime)
    yield _figure(value)


def _ask(value: Any, method: str) -> Any:
    try:
        return getattr(value, method)()
    except Exception:  # it has none, or its own fails: the value is shown another way
        return None


def _text(form: Any) -> str:
    """Some methods add what they know of the form; and an object may answer to every name, as a mock does."""
    form = form[0] if isinstance(form, tuple) and form else form
    return form if isinstance(form, str) else ""


def _image(data: Any, mime: str) -> str:
    if isinstance(data, tuple) and data:
        data = data[0]
    if not data or not isinstance(data, str | bytes):
        return ""
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else "".join(data.split())
    return f'<img src="data:{mime};base64,{text}" alt="{html.escape("an image of this rank")}">'


def _figure(value: Any) -> str:
    """A figure of matplotlib, if it is one."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(value, module.Figure):
        return ""
    file = io.BytesIO()
    value.savefig(file, format="png", bbox_inches="tight")
    return _image(file.getvalue(), "image/png")


def open_figures() -> list[Any]:
    """The figures that pyplot has open, which it then forgets, as at the end of a notebook's cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    forget_figures()
    return figures


def forget_figures() -> None:
    """Have pyplot forget the figures that it has open."""
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")
