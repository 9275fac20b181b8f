"""The magics in a real Jupyter kernel: what cells show, and what interrupt, restart and shutdown leave."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launch_helpers import gone

if TYPE_CHECKING:
    from kernel_helpers import Kernel

pytest.importorskip("jupyter_client.manager", reason="a kernel is needed: pip install labkit[lab]")
pytestmark = pytest.mark.timeout(120)

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    from kernel_helpers import Kernel  # which needs what may be missing

    running = Kernel(tmp_path_factory.mktemp("notebook"))
    running.run("%load_ext labkit\nimport torch\nimport torch.distributed as dist\nimport labkit")
    yield running
    directory = running.engine_directory()
    running.close()
    assert gone(Path(directory), within=4)


def test_loading_the_extension_starts_the_engine_and_never_wakes_cuda(kernel: Kernel) -> None:
    kernel.run("from labkit.launch import client")
    assert kernel.text("print(client.running_engine() is not None)").strip() == "True"
    assert kernel.text("print(torch.cuda.is_initialized())").strip() == "False"


def test_a_launch_shows_tabs_and_a_summary(kernel: Kernel) -> None:
    shown = kernel.run(
        "def f():\n    print('hello', dist.get_rank())\n    return 5\njob = labkit.launch(f, ranks=2)\njob"
    )
    assert [o["kind"] for o in shown] in (
        ["display_data", "execute_result"],
        ["update_display_data", "execute_result"],
    )
    tabs, summary = (o["data"]["text/html"] for o in shown)
    assert "hello 0" in tabs
    assert "hello 1" in tabs
    assert "ranks 0–1" in summary  # both returned 5: one tab
    assert "hello" not in summary  # shown once


def test_a_cell_on_ranks_sees_the_notebooks_functions(kernel: Kernel) -> None:
    kernel.run("scale = 3\ndef scaled(x):\n    return x * scale")
    shown = kernel.run("%%ranks 2\nx = torch.ones(2) * rank\ndist.all_reduce(x)\nprint('ok')\nscaled(x)")
    assert shown[-1]["data"]["text/plain"] == "[ranks 0–1] ok\n[ranks 0–1] tensor([3., 3.])"
    assert kernel.text("%%ranks --rank 1\nrank, x.sum().item()") == "[rank 1] (1, 2.0)"
    assert "alive" in kernel.text("%ranks")


def test_errors_name_the_cell(kernel: Kernel) -> None:
    text = kernel.text(
        "def f():\n    if dist.get_rank():\n        raise ValueError('no')\nlabkit.launch(f, ranks=2)"
    )
    assert "RankError: rank 1 failed: ValueError: no" in text
    assert "], line 3, in f\n" in text
    assert "--> raise ValueError('no')" in text
    assert "In[" in text
    assert "site-packages" not in text
    text = kernel.text("%%ranks 2\n1 / 0")
    assert "], line 2, in <module>\n" in text


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("labkit.launch(lambda: 1, ranks=0)", "ValueError: ranks must be a whole number from 1 to"),
        ("labkit.session(backend='mpi')", "ValueError: backend must be 'gloo' or 'nccl', found 'mpi'"),
        ("labkit.check('00.nope', 1)", "UnknownExercise: no exercise '00.nope'; lesson 00 has"),
        ("from labkit.show import draw_timeline; draw_timeline([1])", "TypeError: expected a job, as"),
        ("from labkit.show.target import target; target('nope')", "LookupError: expected the name of a"),
    ],
)
def test_what_is_refused_shows_the_line_that_asked_and_no_other(kernel: Kernel, call: str, told: str) -> None:
    text = _COLOUR.sub("", kernel.text(f"asked = 1\n{call}"))
    assert f"\n{told}" in text
    assert call.rpartition("; ")[2] in text
    assert "File " not in text
    assert len(text.partition(told)[0].splitlines()) < 8


def test_a_mistake_in_labkit_shows_where_it_is(kernel: Kernel) -> None:
    """Nothing was refused in words here."""
    text = _COLOUR.sub("", kernel.text("from labkit import hosts\nhosts.threads_said(None)"))
    assert "labkit/hosts.py" in text
    assert "AttributeError: 'NoneType' object" in text


def test_a_call_of_the_students_own_keeps_all_its_lines(kernel: Kernel) -> None:
    kernel.run("def mine():\n    return labkit.launch(lambda: 1, ranks=0)")
    text = _COLOUR.sub("", kernel.text("mine()"))
    assert "in mine()" in text
    assert "labkit.launch(lambda: 1, ranks=0)" in text
    assert "File " not in text


def test_progress_is_drawn_once(kernel: Kernel) -> None:
    source = "def f():\n    import time\n    for i in labkit.progress(4, 'steps'):\n        time.sleep(0.3)\n"
    shown = kernel.run(source + "job = labkit.launch(f, ranks=2)")
    assert len(shown) == 1


@pytest.mark.days
def test_torchrun_shows_its_command(kernel: Kernel) -> None:
    text = kernel.text("%%torchrun --nproc-per-node 1\nimport os\nprint('rank', os.environ['RANK'])")
    assert "-m torch.distributed.run --standalone --nproc-per-node 1 torchrun_cell.py" in text
    assert "rank 0" in text


@pytest.mark.days
def test_interrupting_torchrun(kernel: Kernel) -> None:
    cell = "%%torchrun --nproc-per-node 1\nimport time\nprint('ready', flush=True)\ntime.sleep(1000)"
    text = kernel.text(cell, interrupt_when="ready")
    assert "torchrun was interrupted" in text
    assert "KeyboardInterrupt" not in text


def test_wrong_use_of_the_magic(kernel: Kernel) -> None:
    assert "expected how many ranks" in kernel.text("%%ranks four\n1")
    assert "expected how many ranks" in kernel.text("%%ranks ²\n1")
    assert "expected how many ranks" in kernel.text("%%torchrun --nproc-per-node 0\n1")
    assert "expected status, stop, restart" in kernel.text("%ranks begin")
    assert "expected status, stop, restart" in kernel.text("%ranks locals ²")
    assert "--rank 7: the session has ranks 0 to 1" in kernel.text("%%ranks 2 --rank 7\n1")


def test_interrupting_a_launch(kernel: Kernel) -> None:
    source = "def f():\n    print('ready')\n    import time\n    time.sleep(1000)\nlabkit.launch(f, ranks=2)"
    began = time.monotonic()
    text = kernel.text(source, interrupt_when="ready")
    assert "the job was interrupted" in text
    assert time.monotonic() - began < 10
    assert "5" in kernel.text("labkit.launch(lambda: 5, ranks=2)")


def test_a_check_says_what_it_waits_for(kernel: Kernel) -> None:
    """A loop that does not end is ended at the cases' deadline, which nobody would wait for in the dark."""
    source = (
        "def bus_bandwidth(**given):\n    while True: pass\nlabkit.check('00.bus-bandwidth', bus_bandwidth)"
    )
    shown = kernel.run(source, interrupt_when="s so far; on 1 rank for")
    assert [output["kind"] for output in shown] == ["update_display_data", "error"]
    assert shown[0]["data"]["text/plain"].startswith("00.bus-bandwidth: ")
    assert "so far" not in shown[0]["data"]["text/plain"]
    assert shown[1]["ename"] == "JobCancelled"


def test_interrupting_a_cell_keeps_its_variables(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nkept = 11")
    text = kernel.text("%%ranks\nimport time\nprint('ready')\ntime.sleep(1000)", interrupt_when="ready")
    assert "the cell was interrupted" in text
    assert "rank 0: running, at In[" in text
    assert "11" in kernel.text("%%ranks\nkept")


def test_edited_modules_reach_the_ranks_where_the_notebook_reloads_them(kernel: Kernel) -> None:
    kernel.run("%load_ext autoreload\n%autoreload 2\nfrom pathlib import Path\nmine = Path('edited.py')")
    kernel.run(
        "mine.write_text('class Box:\\n  def get(self): return 1\\ndef f(): return 1\\n')\n"
        "import edited\nfrom edited import f\nbox = edited.Box()"
    )
    use = "%%ranks 2\nedited.f(), f(), box.get(), edited.Box().get()"
    assert kernel.text(use) == "[ranks 0–1] (1, 1, 1, 1)"
    kernel.run("mine.write_text('class Box:\\n  def get(self): return 22\\ndef f(): return 22\\n')")
    assert kernel.text(use) == "[ranks 0–1] (22, 22, 22, 22)"
    kernel.run("%autoreload 0\nmine.write_text('def f(): return 333\\n')")
    assert kernel.text(use) == "[ranks 0–1] (22, 22, 22, 22)"


@pytest.mark.days
def test_the_extension_is_reloaded_and_unloaded(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nx = 1")
    directory = kernel.engine_directory()
    assert "labkit has ended the 2 ranks" in kernel.text("%reload_ext labkit")
    assert gone(Path(directory), within=4)
    assert kernel.text("%%ranks 2\n'x' in globals()") == "[ranks 0–1] False"
    directory = kernel.engine_directory()
    kernel.run("%unload_ext labkit")
    assert gone(Path(directory), within=4)
    assert "`%%ranks` not found" in kernel.text("%%ranks 2\n1")
    kernel.run("%load_ext labkit")
    assert kernel.text("%%ranks 2\n1 + 1") == "[ranks 0–1] 2"


@pytest.mark.days
def test_a_restart_leaves_nothing_and_the_new_kernel_works(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nx = 1")
    directory = kernel.engine_directory()
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    assert gone(Path(directory), within=4)
    assert kernel.text("import labkit\nlabkit.launch(lambda: 5, ranks=2).results") == "[5, 5]"
