"""A cell on four live ranks: labkit, ipyparallel and nbdistributed, by their magics and by their interfaces.

The magics are what a person waits for: names looked up, output shown, the result drawn. The interfaces are
the round trip alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

RANKS = 4
FIRST, CELL = "counter = 0", "counter = counter + 1\ncounter"


def _shell(extension: str) -> InteractiveShell:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", extension)
    return shell


def ranks_magic() -> Iterator[Callable[[], object]]:
    """`%%ranks`"""
    shell = _shell("labkit")
    shell.run_cell_magic("ranks", str(RANKS), FIRST)
    yield lambda: shell.run_cell_magic("ranks", "", CELL)
    shell.run_line_magic("ranks", "stop")


def px_magic() -> Iterator[Callable[[], object]]:
    """ipyparallel's `%%px`"""
    import ipyparallel as peer

    shell = _shell("ipyparallel")
    with peer.Cluster(n=RANKS, log_level=40) as client:
        client[:].activate()
        shell.run_cell_magic("px", "--block", FIRST)
        yield lambda: shell.run_cell_magic("px", "--block", CELL)


def distributed_magic() -> Iterator[Callable[[], object]]:
    """nbdistributed's `%%distributed`"""
    _own_programs_first()
    shell = _shell("nbdistributed")
    shell.run_line_magic("dist_init", f"-n {RANKS}")
    magics = shell.find_cell_magic("distributed").__self__
    atexit.register(magics._process_manager.shutdown)  # its own %dist_shutdown leaves the workers behind
    _until_ready(lambda: magics._comm_manager.send_to_all("execute", FIRST, timeout=5))
    yield lambda: shell.run_cell_magic("distributed", "", CELL)
    magics._process_manager.shutdown()


def labkit_session() -> Iterator[Callable[[], object]]:
    """`session.run`"""
    import labkit

    with labkit.session(ranks=RANKS) as session:
        session.run(FIRST)
        yield lambda: session.run(CELL)


def ipyparallel() -> Iterator[Callable[[], object]]:
    """A direct view's `execute`"""
    import ipyparallel as peer

    with peer.Cluster(n=RANKS, log_level=40) as client:
        view = client[:]
        view.execute(FIRST, block=True)
        yield lambda: view.execute(CELL, block=True)


def nbdistributed() -> Iterator[Callable[[], object]]:
    """Its communication manager's `send_to_all`"""
    from nbdistributed.communication import CommunicationManager
    from nbdistributed.process_manager import ProcessManager

    _own_programs_first()
    manager = ProcessManager()
    port = manager.start_workers(RANKS)
    atexit.register(manager.shutdown)
    peer = CommunicationManager(RANKS, port)
    _until_ready(lambda: peer.send_to_all("execute", FIRST, timeout=5))
    yield lambda: peer.send_to_all("execute", CELL)
    manager.shutdown()


def session_module() -> Iterator[Callable[[], object]]:
    """`session.push` of a new module of a million parameters"""
    import labkit

    with labkit.session(ranks=RANKS) as session:
        session.run(FIRST)
        yield lambda: session.push({"module": _module()})


def ranks_module() -> Iterator[Callable[[], object]]:
    """A `%%ranks` cell that uses one"""
    shell = _shell("labkit")
    shell.run_cell_magic("ranks", str(RANKS), FIRST)

    def once() -> None:
        shell.push({"module": _module()})
        shell.run_cell_magic("ranks", "", "module;")

    yield once
    shell.run_line_magic("ranks", "stop")


def ipyparallel_module() -> Iterator[Callable[[], object]]:
    """A direct view's `push` of one"""
    import ipyparallel as peer

    with peer.Cluster(n=RANKS, log_level=40) as client:
        view = client[:]
        view.execute("import torch", block=True)
        yield lambda: view.push({"module": _module()}, block=True)


def _module() -> Any:
    import torch

    return torch.nn.utils.skip_init(torch.nn.Linear, 1000, 1000, bias=False)


def _own_programs_first() -> None:
    """nbdistributed starts its workers as `python`."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def _until_ready(ask: Callable[[], object], tries: int = 12) -> None:
    """nbdistributed does not say when its workers are ready."""
    for _ in range(tries):
        with contextlib.suppress(TimeoutError):
            ask()
            return
    raise TimeoutError("nbdistributed's workers do not answer")


MAGICS = (ranks_magic, px_magic, distributed_magic)
MODULES = (session_module, ranks_module, ipyparallel_module)
CLIENTS = (labkit_session, ipyparallel, nbdistributed)
