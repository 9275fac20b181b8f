"""The memory calculator on a page without a kernel: the same controls, and the theory in the browser.

Brython runs `labkit.theory` as it is; what it needs is loaded when a control is first moved.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ipywidgets as widgets

import labkit
from autograder.site import answer
from labkit.show.calculator import LEFT, MemoryCalculator

LABKIT = Path(labkit.__file__).parent
BROWSER = Path(answer.__file__)


def calculator_html(start: Mapping[str, Any]) -> str:
    """Controls and the answer to where they start."""
    calculator = MemoryCalculator(**start)
    columns: list[list[str]] = [[], []]
    for name, control in calculator.controls.items():
        columns[name not in LEFT].append(_control(name, control))
    fields = "".join(f"<div>{''.join(column)}</div>" for column in columns)
    shown = answer.answer_html(calculator.settings)
    return (
        f'<div class="calculator"><form autocomplete="off">{fields}</form>'
        f'<div class="calculator-answer" aria-live="polite">{shown}</div></div>'
    )


def _control(name: str, control: Any) -> str:
    """One labelled control. A slider's values are in `data-values`, and its position is among them."""
    if isinstance(control, widgets.Checkbox):
        state = " checked" if control.value else ""
        box = f'<input type="checkbox" name="{name}"{state}>'
        return f"<label><span></span>{box} {escape(control.description)}</label>"
    told = f"<span>{escape(control.description)}</span>"
    if isinstance(control, widgets.Dropdown):
        options = "".join(
            f"<option{' selected' if option == control.value else ''}>{escape(option)}</option>"
            for option in control.options
        )
        return f'<label>{told}<select name="{name}">{options}</select></label>'
    values, at = list(control.options), list(control.options).index(control.value)
    slider = (
        f'<input type="range" name="{name}" min="0" max="{len(values) - 1}" value="{at}"'
        f' data-values="{escape(json.dumps(values))}" aria-valuetext="{control.value}">'
    )
    return f"<label>{told}{slider}<output>{control.value}</output></label>"


def write_browser_python(folder: Path) -> None:
    """Write what the page loads: Brython, and as `python.js` our modules with all that they import."""
    spec = find_spec("brython")
    assert spec is not None
    assert spec.origin is not None
    brython = Path(spec.origin).with_name("data")
    shutil.copy2(brython / "brython.js", folder)
    ours = dict(_our_modules())
    standard = _standard_modules(brython / "brython_stdlib.js")
    wanted = [name for module in ours.values() for name in module[2] if name not in ours]
    modules = {**_with_what_they_import(wanted, standard), **ours}
    text = f"__BRYTHON__.use_VFS = true;\n__BRYTHON__.update_VFS({json.dumps(modules)})\n"
    (folder / "python.js").write_text(text, encoding="utf-8")


def _our_modules() -> Iterator[tuple[str, list[Any]]]:
    """As Brython has modules: kind, source, what it imports, and 1 for a package."""
    for package in ("labkit", "labkit.theory"):
        yield package, [".py", "", [], 1]
    left, done = [BROWSER.stem], set[str]()
    while left:
        name = left.pop()
        if name not in done:
            done.add(name)
            source = _source_of(name)
            imports = _imports(source)
            left += [found for found in imports if found.startswith("labkit.")]
            yield name, [".py", source, imports]


def _source_of(name: str) -> str:
    below = name.removeprefix("labkit.").replace(".", "/")
    path = LABKIT / f"{below}.py" if name.startswith("labkit.") else BROWSER
    return path.read_text(encoding="utf-8")


def _imports(source: str) -> list[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return sorted(found)


def _standard_modules(path: Path) -> dict[str, list[Any]]:
    """Brython's standard library: a script that holds one JSON object."""
    text = path.read_text(encoding="utf-8")
    modules: dict[str, Any]
    modules, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index("var scripts")))
    return {name: module for name, module in modules.items() if isinstance(module, list)}


def _with_what_they_import(wanted: Iterable[str], known: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Those of the wanted modules that are known, and all that they import in turn."""
    found: dict[str, list[Any]] = {}
    left = list(wanted)
    while left:
        name = left.pop()
        if name in known and name not in found:
            found[name] = known[name]
            left += [*(known[name][2] if len(known[name]) > 2 else []), name.rpartition(".")[0]]
    return found
