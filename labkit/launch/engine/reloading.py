"""Edited modules on ranks that stay: imported again where the notebook does so itself (`%autoreload`)."""

from __future__ import annotations

import importlib
import os
import sys
from itertools import takewhile
from types import ModuleType

from labkit.record.lines import is_library_file


class Reloader:
    """Remembers how old the files of the person's own modules were when they were imported.

    Those that are there when it is made are the engine's, which imports no person's: to look at these
    thousands costs a rank a copy of every page that it shares with the engine, 20 ms in its first cell.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._newest: str | None = next(reversed(sys.modules))  # which was imported last, when last looked

    def look(self) -> None:
        """Note the modules that have been imported since the last time.

        They stand behind those that were there. To go through all of them, thousands, after each cell took
        longer than everything else that a rank does for a short one.
        """
        try:
            new = list(takewhile(lambda name: name != self._newest, reversed(sys.modules)))
        except RuntimeError:  # another thread of the person's imports at this moment
            new = [*sys.modules][::-1]
        for name in new:
            if name not in self._seen and name != "__main__":
                self._seen[name] = _age(sys.modules.get(name))
        self._newest = new[0] if new else self._newest

    def reload(self) -> None:
        """Import modules again whose files have changed; functions, classes and instances of them follow."""
        for name, age in list(self._seen.items()):
            module = sys.modules.get(name)
            now = _age(module) if module is not None and age else 0
            if module is not None and now not in (0, age):
                self._seen[name] = now
                # the notebook's own way, which it has imported too; half a second, for the first edit
                from IPython.extensions.autoreload import superreload

                superreload(module, importlib.reload)


def _age(module: ModuleType | None) -> int:
    """When the module's file was last written, in nanoseconds; 0 of what is not the person's own."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or is_library_file(file):
        return 0
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
