"""`%ranks debug`: a debugger on a rank whose cell failed, in a real Jupyter kernel."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from launch_helpers import jobs_of
from waiting import soon

import labkit
from labkit.launch import client

if TYPE_CHECKING:
    from kernel_helpers import Kernel

pytestmark = pytest.mark.timeout(120)
DIST = "import torch.distributed as dist\n"
STUCK = f"{DIST}cause = 17\nif rank: cause / 0\ndist.barrier()"
DIVIDE = """
def divide(a, by):
    parts = [a] * 3
    return a / by
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    pytest.importorskip("jupyter_client.manager", reason="a kernel is needed: pip install labkit[lab]")
    from kernel_helpers import Kernel  # which needs what may be missing

    running = Kernel(tmp_path_factory.mktemp("notebook"))
    running.run("%load_ext labkit")
    yield running
    running.close()


@pytest.mark.days
def test_a_conversation_with_the_rank_that_failed(kernel: Kernel) -> None:
    """In the innermost frame, with the notebook's source, up to the cell and down again."""
    kernel.run(DIVIDE)
    kernel.run("world_size = 2")
    kernel.run("%%ranks {world_size}\nzero = rank - 1\ndivide(3, zero)")
    said = [
        "p by",
        "ll",
        "! by = 2",
        "p a / by",
        "p nothing",
        "u",
        "p zero, rank",
        "w",
        "n",
        "p n",
        "h",
        "d",
        "q",
    ]
    text = re.sub("\n+", "\n", kernel.text("%ranks debug 1", answers=said))
    assert text.startswith("ZeroDivisionError: division by zero\n> In[")
    assert "(3)divide()\n-> return a / by\n(h lists the commands, q leaves)\n0\n" in text
    assert "\tdef divide(a, by):" in text
    assert "\n1.5\n*** NameError: name 'nothing' is not defined\n" in text
    assert "(3)<module>()\n-> divide(3, zero)\n(0, 1)\n" in text
    assert "labkit" not in text
    assert "*** n: the line has failed" in text
    assert "leave the debugger" in text
    assert "rank 0 did not fail with an error: choose one of 1" in kernel.text("%ranks debug 0")
    assert kernel.text("%ranks debug 1 p parts").strip() == "[3, 3, 3]"
    kernel.run("by = 'the notebook has this'\nfailed = 1")
    assert kernel.text("%ranks debug {failed} p f'{by}', '$by'").strip() == "('0', '$by')"
    kernel.run("%%ranks $world_size\nzero = 5")
    assert "no cell has failed on ranks" in kernel.text("%ranks debug 1")


def test_the_others_are_held_until_the_next_cell(kernel: Kernel) -> None:
    """Those that wait for the rank that failed; nobody need be asked; an interrupt stops a command."""
    told = kernel.text(f"%%ranks 2\n{STUCK}")
    assert "rank 0: waiting in barrier" in told
    assert "can be looked at with `%ranks debug`" in told
    time.sleep(1.5)  # longer than ranks that all wait are left alone in a cell
    assert kernel.text("%ranks debug 1 p cause").strip() == "17"
    assert "`%ranks debug 1 w`" in kernel.text("%ranks debug 1")
    assert "can be looked at with `%ranks debug`" in kernel.text("%ranks")
    loop = "print('asked')\n%ranks debug 1 ! while True: pass"
    assert "*** KeyboardInterrupt" in kernel.text(loop, interrupt_when="asked")
    assert kernel.text("%ranks debug 1 p cause + 1").strip() == "18"
    assert kernel.text("%%ranks 2\n'cause' in globals()") == "[ranks 0–1] False"


@pytest.mark.days
def test_a_command_that_never_comes_back_ends_the_held_ranks(kernel: Kernel) -> None:
    kernel.run(f"%%ranks 2\n{STUCK}")
    later = "__import__('threading').Timer(3, print, ['asked']).start()"  # by then the rank has the command
    text = kernel.text(
        f"{later}\n%ranks debug 1 dist.recv(__import__('torch').zeros(1), 0)", interrupt_when="asked"
    )
    assert "The ranks that were held after the failure have ended." in text
    assert "no cell has failed on ranks" in kernel.text("%ranks debug 1")
    assert kernel.text("%%ranks 2\nrank") == "[rank 0] 0\n[rank 1] 1"


@pytest.mark.parametrize("how", ["stopped", "dropped"])
def test_held_ranks_go_with_their_session(how: str) -> None:
    session = labkit.session(ranks=2)
    with pytest.raises(labkit.LaunchError, match="can be looked at"):
        session.run(STUCK)
    assert session.debug(1, "p cause") == "17\n"
    if how == "stopped":
        session.stop()
    del session
    gc.collect()
    assert soon(lambda: not jobs_of(client.engine().directory), within=5)


def test_what_fails_in_the_debugger_is_told() -> None:
    sour = "class Sour(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise Sour"
    with labkit.session(ranks=1) as session:
        with pytest.raises(labkit.LaunchError, match="Sour"):
            session.run(sour)
        assert session.debug(0) == "*** RuntimeError: no text\n"


def test_a_command_that_waits_for_others_ends_a_session_that_lived(kernel: Kernel) -> None:
    """All ranks had answered: the one that now waits alone is told as any deadlock is. It begins at the
    person's own line, though the error comes from deeper."""
    kernel.run(f"%%ranks 2\n{DIST}import json\njson.loads('{{')")
    assert "(4)<module>()\n-> json.loads('{')\n" in kernel.text("%ranks debug 1")
    text = kernel.text("%ranks debug 1 dist.barrier()")
    assert "rank 1 waits in barrier" in text
    assert "The session was replaced" in text
    assert kernel.text("%%ranks 2\nrank") == "[rank 0] 0\n[rank 1] 1"
