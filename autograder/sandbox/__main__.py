"""Whether the grader can use one kind of sandbox here: `python -m autograder.sandbox KIND` ends with 0, or
with 1 and why not. `labkit doctor` asks it.
"""

from __future__ import annotations

import sys

from autograder.sandbox.choice import FINDERS
from autograder.sandbox.sandbox import Limits, NoSandbox

if __name__ == "__main__":
    try:
        FINDERS[sys.argv[1]](Limits())
    except NoSandbox as obstacle:
        sys.exit(str(obstacle))
