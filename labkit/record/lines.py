"""Which line of the caller's own code is running, found without importing anything."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

_FOLDERS = [
    Path(__file__).parents[1],  # labkit
    *(Path(sysconfig.get_paths()[kind]) for kind in ("stdlib", "purelib", "platlib")),
]
# Through links too, as code that was imported that way has them: a home may be one.
_LIBRARIES = tuple({f"{path}/" for folder in _FOLDERS for path in (folder.absolute(), folder.resolve())})


def is_library_file(filename: str) -> bool:
    """Whether a file belongs to Python, an installed package or labkit, rather than to the user."""
    if filename.startswith(("<frozen", "<__array_function__", "<string>", "<eval_with_key>")):
        return True
    return filename.startswith(_LIBRARIES) or "/site-packages/" in filename


class LineFinder:
    """Finds the innermost frame that is the user's own. Remembers the answer for each code object."""

    def __init__(self) -> None:
        self._known: dict[CodeType, bool] = {}

    def __call__(self, depth: int = 1) -> tuple[str, int, str]:
        """File, line number and function name of the user's frame; ("", 0, "") when there is none."""
        frame: FrameType | None = sys._getframe(depth + 1)
        known = self._known
        while frame is not None:
            code = frame.f_code
            users = known.get(code)
            if users is None:
                users = known[code] = not is_library_file(code.co_filename)
            if users:
                return code.co_filename, frame.f_lineno, code.co_name
            frame = frame.f_back
        return "", 0, ""
