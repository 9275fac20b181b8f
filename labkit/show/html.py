"""HTML from the templates in the folder beside this file. What is filled in is escaped.

A template says `|safe` of what another has made, and of nothing else. Jinja is imported when something is
first shown, so that importing labkit does not bring it to ranks.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, **values: Any) -> str:
    """A template of this room, by its name without ".html", with `values` filled in."""
    return _environment().get_template(f"{template}.html").render(values).strip()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {"code": _code, "short": _short}
    return environment


def _code(text: str) -> Markup:
    """A sentence of ours, with `names` set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _short(number: float) -> str:
    """4.0 -> '4', 0.5 -> '0.5'."""
    return f"{number:g}"
