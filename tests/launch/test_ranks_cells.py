"""What cells of a notebook may be made of, on ranks too: in a real Jupyter kernel."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernel_helpers import Kernel

pytest.importorskip("jupyter_client.manager", reason="a kernel is needed: pip install labkit[lab]")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    from kernel_helpers import Kernel  # which needs what may be missing

    running = Kernel(tmp_path_factory.mktemp("notebook"))
    running.run("%load_ext labkit\nimport torch\nx = 3")
    yield running
    running.close()


def html(shown: list[dict[str, Any]]) -> str:
    """The HTML of the last output."""
    found: str = shown[-1]["data"]["text/html"]
    return found


def test_await_at_the_top_of_a_cell(kernel: Kernel) -> None:
    kernel.run("async def slowly(y):\n    import asyncio\n    await asyncio.sleep(0.01)\n    return y * 2")
    assert kernel.text("%%ranks 2\ny = await slowly(x)\nawait slowly(y + rank)") == "[rank 0] 12\n[rank 1] 14"


def test_commands_and_line_magics(kernel: Kernel) -> None:
    assert kernel.text("%%ranks 2\nword = 'there'\n!echo hello {word}, $x") == "[ranks 0–1] hello there, 3"
    assert kernel.text("%%ranks 2\nlines = !echo a; echo b\nlines") == "[ranks 0–1] ['a', 'b']"
    timed = kernel.text("%%ranks 2\n%time total = sum([x, rank])\ntotal")
    assert "wall time:" in timed
    assert timed.endswith("4")
    assert "%prun does not run on ranks" in kernel.text("%%ranks 2\n%prun 1")


def test_cells_for_other_programs(kernel: Kernel) -> None:
    """Each has the cell as it stands, though `x` has a value in Python."""
    loop = "for x in a b; do echo $x ${x}; done"
    bash = f"%%ranks 2\n%%bash\n[[ ab == a* ]] && {loop}"
    assert kernel.text(bash) == "[ranks 0–1] a a\n[ranks 0–1] b b"
    assert kernel.text(f"%%ranks 2\n%%sh -e\n{loop}\nfalse\necho on") == "[ranks 0–1] a a\n[ranks 0–1] b b"
    assert kernel.text("%%ranks 2\n_exit_code") == "[ranks 0–1] 1"
    python = (
        "%%ranks 2\n%%script python3 -B\nimport sys\nx = 'own'\nprint(f'{x}', sys.flags.dont_write_bytecode)"
    )
    assert kernel.text(python) == "[ranks 0–1] own 1"
    assert "%%script: expected the program" in kernel.text("%%ranks 2\n%%script\necho a")


def test_lines_are_counted_as_in_the_cell(kernel: Kernel) -> None:
    assert "], line 5, in <module>\n" in kernel.text("%%ranks 2\n\n\n!true\n1 / 0")


def test_figures_and_rich_values_are_in_the_ranks_tab(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%ranks 2\nimport matplotlib.pyplot as plt\nprint('drawn')\n"
        "plt.plot([1, rank + 2])\nplt.show()\n'last'"
    )
    page = html(shown)
    images = page.split('src="data:image/png;base64,')[1:]
    assert len(images) == 2
    assert all(base64.b64decode(image.partition('"')[0]).startswith(b"\x89PNG") for image in images)
    assert images[0] != images[1]  # a figure for each rank
    assert "<pre>&#39;last&#39;</pre>" in page or "<pre>&#x27;last&#x27;</pre>" in page
    assert page.index("drawn") < page.index("base64")


def test_display_and_values_with_a_form_of_their_own(kernel: Kernel) -> None:
    kernel.run(
        "class Shown:\n    def _repr_html_(self): return '<b>rich</b>'\n"
        "    def __repr__(self): return 'plain'\n"
    )
    shown = kernel.run("%%ranks 2\ndisplay(Shown(), 5)\nShown()")
    assert html(shown).count("<b>rich</b>") == 2
    assert shown[-1]["data"]["text/plain"] == "[ranks 0–1] plain\n[ranks 0–1] 5\n[ranks 0–1] plain"
    left_open = kernel.run("%%ranks 2\nplt.figure();")
    assert "data:image/png" in html(left_open)
    assert kernel.run("%%ranks 2\nplt.get_fignums();") == []


def test_what_was_shown_before_a_cell_failed(kernel: Kernel) -> None:
    """Is shown, and no figure of it comes with the next cell."""
    rich = (
        "class Rich:\n    def _repr_html_(self): return '<b>rich</b>'\n"
        "    def __repr__(self): return 'poor'\n"
    )
    plot = "import matplotlib.pyplot as plt\nplt.figure()\n"
    shown = kernel.run(f"%%ranks 2\n{rich}{plot}print('before')\ndisplay(Rich())\nrank / 0")
    assert html(shown[:-1]).count("<b>rich</b>") == 1
    assert shown[-2]["data"]["text/plain"] == "[ranks 0–1] before\n[ranks 0–1] poor"
    assert "ZeroDivisionError" in "".join(shown[-1]["traceback"])
    assert kernel.run("%%ranks 2\nplt.get_fignums();") == []
    assert "poor" not in str(kernel.run("%%ranks 2\nprint(1)\nrank / 0"))


def test_nobody_can_be_asked_on_a_rank(kernel: Kernel) -> None:
    assert "input() cannot ask anybody on a rank" in kernel.text("%%ranks 2\ninput('name?')")
    assert "breakpoint() has no keyboard on a rank" in kernel.text("%%ranks 2\nbreakpoint()")


def test_variables_of_the_frames_that_failed(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\n1")
    assert "no cell has failed" in kernel.text("%ranks locals")
    kernel.run(
        "def divide(a, by):\n    parts = [a] * 3\n    w = torch.ones(2, requires_grad=True)\n"
        "    return a / by\n"
        "class Bad:\n    def __repr__(self): raise KeyError('no')"
    )
    kernel.run("%%ranks 2\nzero, bad = rank - 1, Bad()\nif bad: divide(x, zero)")
    text = kernel.text("%ranks locals 1")
    assert "On rank 1: ZeroDivisionError: division by zero" in text
    assert "in divide\n    return a / by\n  a = 3\n  by = 0\n  parts = [3, 3, 3]\n" in text
    assert "  w = tensor float32 (2,) on cpu [1.0, 1.0]\n" in text
    assert "  zero = 0\n  bad = (a Bad whose text cannot be had: KeyError)" in text
    assert "rank 0 did not fail with an error: choose one of 1" in kernel.text("%ranks locals 0")


def test_variables_of_a_rank_that_was_replaced(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nimport torch.distributed as dist\ncause = 17\nif rank: cause / 0\ndist.barrier()")
    assert "cause = 17" in kernel.text("%ranks locals")


def test_what_the_ranks_keep_is_said_and_can_be_pushed(kernel: Kernel) -> None:
    kernel.run("rate = 0.1")
    kernel.run("%%ranks 2\nrate = rate * 10")
    kernel.run("rate = 0.5")
    kept = kernel.run("%%ranks 2\nrate")[-1]["data"]
    said = "rate: the ranks have values of their own, other than the notebook's, and keep them; "
    assert kept["text/plain"] == f"{said}`%%ranks --push rate` sends the notebook's\n[ranks 0–1] 1.0"
    assert "rate: the ranks have values of their own" in kept["text/html"]
    assert kernel.text("%%ranks --push rate\nrate") == "[ranks 0–1] 0.5"
    assert "expected names such as model,optimizer" in kernel.text("%%ranks --push a-b\n1")
    assert kernel.text("%%ranks --push nothing\n1").startswith(
        "UsageError: %%ranks: nothing cannot be pushed"
    )


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%%ranks 2 1\n1", "%%ranks 2 1: expected one number of ranks, found '1' behind it"),
        (
            "%ranks restart --seed 3",
            "%ranks restart --seed 3: --seed would be for %%ranks, which runs a cell",
        ),
        ("%ranks --async job", "%ranks --async job: --async would be for %%ranks"),
        ("%%ranks --rank 0 2\n1", "%%ranks --rank 0 2: ranks have commas between them, as --rank 0,2"),
        ("%ranks trace no/where.json", "%ranks trace: no/where.json cannot be written: No such file"),
        (
            "%ranks trace ~not-a-user/x.json",
            "%ranks trace: ~not-a-user/x.json cannot be written: No such file",
        ),
        (
            "%%torchrun --script no/where.py\n1",
            "%%torchrun: the cell cannot be written to no/where.py: No such",
        ),
        ('%%ranks "4\n1', '%%ranks "4: a quotation mark is missing'),
        (
            "%%ranks 2 # two ranks\n1",
            "%%ranks 2 # two ranks: unrecognized arguments: two ranks. There is %%ranks [--nodes NODES] [",
        ),
        ("%%ranks -h\n1", "%%ranks -h: unrecognized arguments: -h. There is %%ranks ["),
        (
            "%%ranks --timeout 0\n1",
            "%%ranks --timeout 0: argument --timeout: expected a number of seconds, more than 0",
        ),
        ("%%ranks --seed x\n1", "%%ranks --seed x: argument --seed: expected a whole number and found 'x'"),
        (
            "%%torchrun 2\n1",
            "%%torchrun 2: unrecognized arguments: 2. There is %%torchrun [--nproc-per-node NPROC_PER_NODE]",
        ),
        ("%%torchrun '2\n1", "%%torchrun '2: a quotation mark is missing"),
        ("%%torchrun --script a.ipynb\n1", "%%torchrun: a.ipynb is no name for a script: expected one that"),
        (
            "%%torchrun --script torch.py\n1",
            "%%torchrun: torch.py would be imported where Python's module torch is meant",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(kernel: Kernel, cell: str, told: str) -> None:
    kernel.run("%%ranks 2\n1")
    assert kernel.text(cell).startswith(f"UsageError: {told}")


def test_a_cell_runs_while_the_notebook_goes_on(kernel: Kernel) -> None:
    text = kernel.text("%%ranks --async job\nimport time\nprint('begun')\ntime.sleep(0.5)\nrank + x")
    assert "job runs: job.result() waits for it" in text
    assert kernel.text("%%ranks\n1").startswith("UsageError: %%ranks: the session runs a cell of another")
    assert kernel.text("%ranks trace x.json").startswith("UsageError: %ranks trace: the session runs a cell")
    assert kernel.text("job.result()") == "[rank 0] begun\n[rank 0] 3\n[rank 1] begun\n[rank 1] 4"
    assert kernel.text("%%ranks\nrank") == "[rank 0] 0\n[rank 1] 1"
    assert "expected a name such as job and found '4'" in kernel.text("%%ranks --async 4\n1")
    assert kernel.text("%%ranks\nrank") == "[rank 0] 0\n[rank 1] 1"
    kernel.run("%%ranks --async job\nlate = 3\nlate / 0")
    kernel.run("job.result()")
    assert "late = 3" in kernel.text("%ranks locals 1")
    assert kernel.text("%%ranks --rank 0,9\n1").startswith("UsageError: %%ranks --rank 9: the session has")


@pytest.mark.days
def test_paths_are_as_in_a_shell(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%ranks 1\n1")
    kernel.run(f"import os\nhome = os.environ['HOME']\nos.environ['HOME'] = {str(tmp_path)!r}")
    kernel.run("%ranks trace ~/step.json")
    kernel.run("%ranks trace '~/a step.json'")
    assert {path.name for path in tmp_path.iterdir()} == {"step.json", "a step.json"}
    kernel.run('%%torchrun --nproc-per-node 1 --script "~/a script.py"\nprint("é")')
    kernel.run("os.environ['HOME'] = home")
    assert (tmp_path / "a script.py").read_text(encoding="utf-8").startswith('print("é")\n# written by %%')


@pytest.mark.days
def test_a_script_that_a_cell_did_not_write_is_kept(kernel: Kernel, tmp_path: Path) -> None:
    """Nor one that was edited after a cell had written it."""
    script = tmp_path / "train_it.py"
    run = f"%%torchrun --nproc-per-node 1 --script {script}\n"
    for text in ("first", "second"):
        assert text in kernel.text(f"{run}print('{text}')")
    script.write_text(script.read_text().replace("second", "edited"))
    told = "is there, and is not as %%torchrun has written it: it stays as it is; --script FILE names another"
    assert told in kernel.text(f"{run}print('third')")
    assert "print('edited')" in script.read_text()
    script.write_text("mine = 3\n")
    assert told in kernel.text(f"{run}print('third')")
    assert script.read_text() == "mine = 3\n"


def test_a_script_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A limit on a file's size stands for a full disk."""
    script = tmp_path / "train_it.py"
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from labkit.scripts import write_script\n"
        "write_script(Path(sys.argv[1]), 'short = 1')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_script(Path(sys.argv[1]), 'x = 1\\n' * 1000)"
    )
    command = [sys.executable, "-B", "-c", program, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stderr
    assert script.read_text().startswith("short = 1\n#")
    assert list(tmp_path.iterdir()) == [script]


def test_ranks_where_the_folder_is_gone_are_refused_in_one_line(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%ranks stop")
    kernel.run(f"import os\nstood = os.getcwd()\nos.mkdir('{tmp_path}/gone')\nos.chdir('{tmp_path}/gone')")
    kernel.run(f"os.rmdir('{tmp_path}/gone')")
    told = kernel.text("%%ranks 2\n1")
    kernel.run("os.chdir(stood)")
    assert told.strip() == (
        "UsageError: %%ranks: the folder that this notebook was started in is gone: go to another with "
        "os.chdir(...)"
    )


def test_ranks_that_cannot_be_had_cost_no_variable(kernel: Kernel) -> None:
    kernel.run("%%ranks 2\nkept = rank + 40")
    assert "UsageError: %%ranks: " in kernel.text("%%ranks 100000\n1")
    assert "nodes must be a whole number from 1, found 0" in kernel.text("%%ranks --nodes 0\n1")
    assert "too few for 3 nodes" in kernel.text("%%ranks 2 --nodes 3\n1")
    assert kernel.text("%%ranks\nkept") == "[rank 0] 40\n[rank 1] 41"
