"""Starts a command and ends it when whoever holds the other end of a pipe is gone, however that happened.

    python keeper.py DESCRIPTOR COMMAND...

The kernel can kill a child with its parent, but not a child that becomes a setuid program.
"""

import os
import subprocess
import sys
from threading import Thread


def end_with(lifeline: int, started: "subprocess.Popen[bytes]") -> None:
    """Kill what was started once nobody holds the pipe's other end."""
    os.read(lifeline, 1)
    started.kill()


def main() -> None:
    """Exit with the command's status."""
    started = subprocess.Popen(sys.argv[2:])
    Thread(target=end_with, args=(int(sys.argv[1]), started), daemon=True).start()
    sys.exit(started.wait())


if __name__ == "__main__":
    main()
