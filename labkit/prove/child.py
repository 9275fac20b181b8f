"""The process of a part: `python -m labkit.prove.child NAME MODULE FILE`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from labkit.prove.result import Results


def main(name: str, module: str, path: str) -> int:
    """Run the part; an error in it is a result too."""
    results = Results(name, Path(path))
    try:
        importlib.import_module(module).main(results)
    except Exception as error:
        results.add("the part itself", "failed", f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
