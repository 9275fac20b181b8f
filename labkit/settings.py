"""Settings in TOML files as checked values. All that is wrong with a file is told in one round.

What there is to set is a msgspec Struct, and nothing else lists it: its fields are the names, their types
what is taken (msgspec's `Meta` gives limits, and a description where the type's own words would not do), and
`__post_init__` may raise ValueError where two settings do not go together.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import copy
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

Kind = TypeVar("Kind", bound=msgspec.Struct)


class SettingsError(ValueError):
    """A file that cannot be used; `problems` has one sentence for each thing that is wrong with it."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(f"{path}: " + "; ".join(problems))
        self.problems = problems


def read_settings(path: Path, kind: type[Kind]) -> Kind:
    """Read and check a TOML file. SettingsError has all that is wrong with it; FileNotFoundError passes."""
    try:
        data = _toml(path)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(path, [f"it cannot be read as TOML: {error}"]) from None
    problems: list[str] = []
    settings: Kind = _struct(data, kind, "", problems)
    if problems:
        raise SettingsError(path, problems)
    return settings


def settings_like(path: Path) -> type[msgspec.Struct]:
    """The type of files that have what this one has: its tables and names, each value's kind and default."""
    tables = _toml(path)
    made = {name: _table_like(name, values) for name, values in tables.items()}
    fields = [(name, kind, msgspec.field(default_factory=kind)) for name, kind in made.items()]
    return msgspec.defstruct("Settings", fields)


def _toml(path: Path) -> dict[str, Any]:
    """What a TOML file says: UTF-8, whatever the locale is; editors on Windows begin it with a mark."""
    return tomllib.loads(path.read_text(encoding="utf-8-sig"))


def _table_like(name: str, values: Mapping[str, Any]) -> type[msgspec.Struct]:
    kinds: dict[type, Any] = {list: list[str | int], dict: dict[str, str]}
    fields = [
        (
            key.replace("-", "_"),
            kinds.get(type(value), type(value)),
            msgspec.field(default_factory=partial(copy, value), name=key),
        )
        for key, value in values.items()
    ]
    return msgspec.defstruct(name, fields)


def _struct(data: Any, kind: type[msgspec.Struct], where: str, problems: list[str]) -> Any:
    """`data` as a struct, with None for what is missing; what is wrong goes to `problems`."""
    if not isinstance(data, dict):
        problems.append(f"{where.rstrip(', .')}: expected a table, found {data!r}")
        return None
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    unknown = [name for name in data if name not in fields]
    problems += [f"{where}{name}: not a setting; {_instead(name, list(fields))}" for name in unknown]
    values: dict[str, Any] = {}
    for name, one in fields.items():
        if name in data:
            found = _value(data[name], one.type, f"{where}{name}", problems)
            values |= {one.name: found} if found is not None or one.required else {}
        elif one.required:
            problems.append(f"{where}{name}: is missing; expected {_words(one.type)}")
            values[one.name] = None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append(f"{where}{error}")
        return None


def _value(data: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """One setting; None when it is not what it should be."""
    match inspect.type_info(kind):
        case inspect.StructType(cls=inner):
            return _struct(data, inner, f"{where}.", problems)
        case inspect.VarTupleType(item_type=inspect.StructType(cls=inner)) if isinstance(data, list):
            return tuple(_struct(one, inner, f"{where} {n}, ", problems) for n, one in enumerate(data, 1))
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        problems.append(f"{where}: expected {_words(kind)}, found {data!r}")
        return None


def _instead(name: str, known: list[str]) -> str:
    near = [one for one in known if one.startswith(name)] or get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _words(kind: Any) -> str:
    """What a setting takes, for a person."""
    match inspect.type_info(kind):
        case inspect.Metadata(extra_json_schema={"description": str(words)}):
            return words
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.VarTupleType(item_type=inspect.StructType()):
            return "a list of tables"
        case inspect.IntType(ge=0):
            return "a whole number, 0 or more"
        case info:
            return _PLAIN.get(type(info), "another kind of value")


_PLAIN: Mapping[type, str] = {
    inspect.StrType: "text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list of texts",
    inspect.DictType: "a table",
    inspect.StructType: "a table",
}
