"""The magics in a real Jupyter kernel: what cells show, and what interrupt, restart and shutdown leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit import processes

manager = pytest.importorskip("jupyter_client.manager", reason="a kernel is needed: pip install labkit[lab]")
pytestmark = pytest.mark.timeout(120)


class Kernel:
    """A Jupyter kernel, and what its cells show."""

    def __init__(self, directory: Path) -> None:
        self.manager = manager.KernelManager()
        self.manager.start_kernel(cwd=str(directory))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, source: str, interrupt_when: str = "") -> list[dict[str, Any]]:
        """The outputs of a cell as a notebook would save them; `interrupt_when` an output has this text."""
        shown: list[dict[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            nonlocal interrupt_when
            kind, content = message["msg_type"], message["content"]
            if kind == "update_display_data":
                shown[:] = [o for o in shown if o.get("transient") != content["transient"]]
            if kind in ("display_data", "update_display_data", "execute_result", "stream", "error"):
                shown.append({"kind": kind, **content})
            if interrupt_when and kind != "execute_input" and interrupt_when in str(content):
                interrupt_when = ""
                self.manager.interrupt_kernel()

        self.client.execute_interactive(source, timeout=60, output_hook=hook, allow_stdin=False)
        return shown

    def text(self, source: str, **options: Any) -> str:
        """The same as one text: plain representations, streams and tracebacks."""
        parts = []
        for output in self.run(source, **options):
            parts.append(output.get("text") or "\n".join(output.get("traceback", [])))
            parts.append(output.get("data", {}).get("text/plain", ""))
        return "\n".join(part for part in parts if part)

    def engine_directory(self) -> str:
        return self.text("from labkit.launch import client\nprint(client.engine().directory)").strip()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    running = Kernel(tmp_path_factory.mktemp("notebook"))
    running.run("%load_ext labkit\nimport torch\nimport torch.distributed as dist\nimport labkit")
    yield running
    directory = running.engine_directory()
    running.close()
    assert _gone(directory)


def _gone(directory: str) -> bool:
    until = time.monotonic() + 4
    while time.monotonic() < until:
        if not processes.marked(directory) and not Path(directory).exists():
            return True
        time.sleep(0.05)
    return False


def test_loading_the_extension_starts_the_engine_and_never_wakes_cuda(kernel: Kernel) -> None:
    assert (
        kernel.text("print(client.running_engine() is not None)") in ("True\n", "")
        or kernel.engine_directory()
    )
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
    assert "], line 3, in f\n    raise ValueError('no')" in text
    assert "In[" in text
    assert "site-packages" not in text
    text = kernel.text("%%ranks 2\n1 / 0")
    assert "], line 2, in <module>\n    1 / 0" in text


def test_progress_is_drawn_once(kernel: Kernel) -> None:
    source = "def f():\n    import time\n    for i in labkit.progress(4, 'steps'):\n        time.sleep(0.3)\n"
    shown = kernel.run(source + "job = labkit.launch(f, ranks=2)")
    assert len(shown) == 1


def test_torchrun_shows_its_command(kernel: Kernel) -> None:
    text = kernel.text("%%torchrun --nproc-per-node 1\nimport os\nprint('rank', os.environ['RANK'])")
    assert "-m torch.distributed.run --standalone --nproc-per-node 1 torchrun_cell.py" in text
    assert "rank 0" in text


def test_wrong_use_of_the_magic(kernel: Kernel) -> None:
    assert "expected how many ranks" in kernel.text("%%ranks four\n1")
    assert "expected status, stop or restart" in kernel.text("%ranks begin")
    assert "no rank 7" in kernel.text("%%ranks 2 --rank 7\n1")


def test_interrupting_a_launch(kernel: Kernel) -> None:
    source = "def f():\n    print('ready')\n    import time\n    time.sleep(1000)\nlabkit.launch(f, ranks=2)"
    began = time.monotonic()
    text = kernel.text(source, interrupt_when="ready")
    assert "the job was interrupted" in text
    assert time.monotonic() - began < 10
    assert "5" in kernel.text("labkit.launch(lambda: 5, ranks=2)")


def test_interrupting_a_cell_keeps_its_variables(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nkept = 11")
    text = kernel.text("%%ranks\nimport time\nprint('ready')\ntime.sleep(1000)", interrupt_when="ready")
    assert "the cell was interrupted" in text
    assert "rank 0: running, at In[" in text
    assert "11" in kernel.text("%%ranks\nkept")


def test_a_restart_leaves_nothing_and_the_new_kernel_works(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nx = 1")
    directory = kernel.engine_directory()
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    assert _gone(directory)
    assert kernel.text("import labkit\nlabkit.launch(lambda: 5, ranks=2).results") == "[5, 5]"
