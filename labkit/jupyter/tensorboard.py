"""Runs TensorBoard on a port that is this person's, at an address that nobody else on the node can guess."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from labkit.jupyter.behind_jupyter import jupyter_around
from labkit.jupyter.lab import CannotStart, free_port, host_in_url, is_remote, own_port, tunnel
from labkit.processes import ending_signals_do

# Above the well-known ports, and below those that Linux gives to outgoing connections (from 32768).
PORTS = (16000, 31999)
_RACES = 20


def run(*, logdir: Path, port: int | None = None, ip: str = "127.0.0.1") -> int:
    """Show the runs below `logdir` until Ctrl-C. Returns the exit status, 0.

    port: the first one tried, a taken one is passed over; None means this person's own (`own_port`).
    ip: address to listen on.
    Raises CannotStart when TensorBoard, the folder or a free port is not there.
    """
    if find_spec("tensorboard") is None:
        raise CannotStart('TensorBoard is not installed here; run `pip install -e ".[tensorboard]"`')
    if not logdir.is_dir():
        raise CannotStart(f"no folder {logdir}; give the one that SummaryWriter was given")
    ended = threading.Event()
    with ending_signals_do(lambda *_: ended.set()):
        secret = secrets.token_urlsafe(16)
        port = _serve(logdir, ip, own_port(PORTS, os.getuid()) if port is None else port, f"/{secret}")
        print(announcement(ip, port, secret, logdir, os.environ, socket.gethostname()), flush=True)
        ended.wait()
    return 0


def announcement(
    ip: str, port: int, secret: str, logdir: Path, environment: Mapping[str, str], host: str
) -> str:
    """What to open: through Jupyter where it can pass the page on, by ssh from a remote node, or at once."""
    lines = ["", f"TensorBoard shows {logdir}", ""]
    jupyter = jupyter_around(environment)
    if jupyter:
        address = f"{jupyter.address}proxy/{port}/{secret}/"
        lines += ["In the browser that has this JupyterLab:", "", f"    {address}", ""]
    if is_remote(environment):
        lines += ["On your own machine, in a terminal that stays open:", ""]
        lines += [f"    {tunnel(ip, port, environment, host)}", "", "then in your browser:", ""]
        lines += [f"    http://127.0.0.1:{port}/{secret}/", ""]
    elif not jupyter:
        lines += [f"    http://{host_in_url(ip)}:{port}/{secret}/", ""]
    last = "Who has this address sees the page: there is no password. Ctrl-C ends it."
    return "\n".join([*lines, last, ""])


def _serve(logdir: Path, ip: str, first: int, prefix: str) -> int:
    """Start TensorBoard in threads of this process, on the first free port from `first`; returns the port."""
    from tensorboard.program import TensorBoard, TensorBoardPortInUseError, TensorBoardServerException

    for _ in range(_RACES):
        port = free_port(ip, first)
        program = TensorBoard()
        # load_fast would start a second server, from which everybody on the node reads without the address.
        program.configure(
            logdir=str(logdir.resolve()), host=ip, port=port, path_prefix=prefix, load_fast="false"
        )
        try:
            program.launch()
            return port
        except TensorBoardPortInUseError:  # somebody was quicker
            first = port + 1
        except TensorBoardServerException as error:
            raise CannotStart(f"TensorBoard cannot listen on {ip}, port {port}: {error}") from error
    raise CannotStart(f"others took each free port up to {first} first; give one with --port")
