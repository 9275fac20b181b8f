"""What srun starts, once on each node: `python -m labkit.launch.nodes.node DIRECTORY`.

It forks the agent, holds the nodes' store, and passes on to agent and ranks what the notebook orders. It ends
with the agent's exit status. When Slurm's own process of the step is gone, all that it started ends too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from labkit import processes
from labkit.launch.engine.forkserver import warm_up
from labkit.launch.handover.request import Request
from labkit.launch.nodes.beats import Beat
from labkit.launch.nodes.files import Orders, Report, control_path
from labkit.record.state import ControlPage
from labkit.slurm.commands import node_address

_LISTEN_EVERY = 0.2  # seconds between two looks at the orders
_PATIENCE = 8.0  # seconds the agent gets to end the job in an orderly way


class _Node:
    def __init__(self, directory: Path, report: Report, parent: int, follow_stdin: bool) -> None:
        """parent: Slurm's own process of the step."""
        self._directory, self._report = directory, report
        self._control = ControlPage(control_path(directory, report.number))
        self._orders = Orders(directory)
        self._beat = Beat(directory, report.number)
        self._parent, self._stdin = parent, follow_stdin
        self._kill_at = float("inf")

    def run(self) -> int:
        """The agent's exit status."""
        # before any import that starts threads, and before the nodes' meeting does
        from labkit.launch.nodes.agent import FAILED, fork_node, tell
        from labkit.launch.nodes.meeting import meet

        address = node_address(self._report.node)
        agent, mouth = fork_node(self._directory, self._report, address)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._terminated)
        nodes = Request.read(self._directory).nodes
        try:
            store, met = meet(self._directory, self._report.number, nodes, address)
        except Exception as error:
            print(f"labkit: the nodes did not find each other: {error}", file=sys.stderr, flush=True)
            processes.send(agent, signal.SIGKILL)
            return FAILED
        tell(mouth, met)
        code = self._attend(agent)
        del store  # until here: other nodes may still have talked to it
        return code

    def _attend(self, agent: int) -> int:
        """Wait for the agent, and do as the notebook says meanwhile."""
        while True:
            pid, status = os.waitpid(agent, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if os.getppid() != self._parent or time.monotonic() > self._kill_at:
                processes.send(agent, signal.SIGKILL)
            self._beat.go_on()
            for order in self._orders.new():
                self._obey(order)
            self._listen()

    def _listen(self) -> None:
        """Let some time pass. The end of standard input is that of the notebook, whose srun this is."""
        if not self._stdin:
            time.sleep(_LISTEN_EVERY)
        elif select.select([0], [], [], _LISTEN_EVERY)[0] and not os.read(0, 4096):
            self._stdin = False
            self._stop("cancelled")

    def _obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "stop":
            self._stop(order["reason"])
        elif order["do"] == "deadline":
            seconds = order["seconds"]
            self._control.set_deadline(time.monotonic() + seconds if seconds else 0.0, seconds)
        elif order["do"] == "interrupt":
            for pid in order["pids"].get(self._report.node, ()):
                processes.send(pid, signal.SIGINT)

    def _stop(self, reason: str) -> None:
        self._control.stop(reason)
        self._kill_at = min(self._kill_at, time.monotonic() + _PATIENCE)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """Slurm ends the job: so do we."""
        self._stop("cancelled")


def main() -> None:
    """`node DIRECTORY [--follow-stdin]`"""
    parent = os.getppid()  # at once: until the nodes have met it may be gone, and another one this one's
    environment = os.environ
    directory, number = Path(sys.argv[1]), int(environment["SLURM_NODEID"])
    step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    report = Report(number, environment["SLURMD_NODENAME"], step)
    report.write(directory)
    warm_up()
    code = _Node(directory, report, parent, number == 0 and "--follow-stdin" in sys.argv).run()
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)  # threads of the store are not waited for


if __name__ == "__main__":
    main()
