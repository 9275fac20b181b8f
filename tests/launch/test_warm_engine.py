"""What makes a launch quick: ranks find all they need imported, and allocate apart from what they share."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.launch.engine.reloading import Reloader
from labkit.launch.handover.request import CONTROL, Request
from labkit.record.state import ControlPage

pytestmark = pytest.mark.timeout(60)

# An engine's process without its notebook: it runs one job and says what that imported, agent and rank alike.
ENGINE = """
import os, sys
from pathlib import Path
from labkit.launch.engine import forkserver

forkserver.warm_up()
forkserver.import_the_rest()
from labkit.launch.engine.agent import fork_job

os.environ["KNOWN"] = " ".join(sys.modules)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(fork_job(Path(sys.argv[1])), 0)[1]))
"""
# What the rank calls. Its process is a fork of the agent's, so it has the agent's modules too.
TARGET = """
import json, os, sys
from pathlib import Path

def tell(directory):
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(2, requires_grad=True).sum().detach())
    new = set(sys.modules) - set(os.environ["KNOWN"].split()) - {__name__}
    (Path(directory) / "imported").write_text(json.dumps(sorted(new)))
"""


@pytest.mark.days
def test_nothing_is_imported_after_the_fork(tmp_path: Path) -> None:
    (tmp_path / "called_by_the_rank.py").write_text(TARGET)
    request = Request(
        1, "gloo", 30, "called_by_the_rank:tell", cwd=str(tmp_path), sys_path=[str(tmp_path), *sys.path]
    )
    request.write(tmp_path)
    ControlPage(tmp_path / CONTROL).close()
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(tmp_path)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "imported").read_text()) == []


FILL = """
import ctypes, sys
from labkit.launch.engine.heap import fill_gaps

held = [bytes(size) for size in range(600, 3000, 8) for _ in range(20)]
del held[::2]  # gaps of all these sizes
libc = ctypes.CDLL(None)
libc.sbrk.restype, libc.malloc.restype = ctypes.c_void_p, ctypes.c_void_p
end = libc.sbrk(0)
inside = sum(libc.malloc(size) < end for size in range(600, 3000, 8))
taken = fill_gaps()
print(inside, taken, sum(libc.malloc(size) < end for size in range(600, 3000, 8)))
"""


def test_what_is_allocated_later_lies_behind_all_that_was_there() -> None:
    told = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True).stdout
    before, taken, after = map(int, told.split())
    assert before > 200, "there must have been gaps"
    assert taken > 1 << 20
    assert after == 0


def test_modules_are_seen_whenever_they_were_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    reloader = Reloader()
    reloader.look()
    for name in ("edited_first", "edited_second"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
        importlib.import_module(name)
    reloader.look()
    del sys.modules["edited_second"]  # the newest goes, and another comes
    (tmp_path / "edited_third.py").write_text("value = 1\n")
    importlib.import_module("edited_third")
    reloader.look()
    for name in ("edited_first", "edited_third"):
        (tmp_path / f"{name}.py").write_text("value = 22\n")
    reloader.reload()
    assert [sys.modules.pop(name).value for name in ("edited_first", "edited_third")] == [22, 22]
