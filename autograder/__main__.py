"""The `autograder` command, also as `python -m autograder`."""

from __future__ import annotations

import signal

from autograder.cli import main


def run() -> None:
    """Run the command. A job's end (Slurm's SIGTERM) and a closed terminal clean up as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup a closed terminal ends nothing
            signal.signal(number, signal.default_int_handler)
    main()


if __name__ == "__main__":
    run()
