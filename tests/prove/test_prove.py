"""Parts run for real, also those that hang, die or are interrupted: nothing is lost, nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit import hosts
from labkit.hosts import gpu_count
from labkit.processes import is_alive
from labkit.prove import collectives
from labkit.prove.part import PARTS, Part
from labkit.prove.running import UnknownPart, chosen, prove

pytestmark = pytest.mark.timeout(240)
LINE = "dict(part='p', name='{}', state='passed', says='so')"
FINDS = "import json, sys; open(sys.argv[-1], 'a').write(json.dumps(" + LINE + ") + '\\n')"
HANGS = (
    FINDS.format("before")
    + "; import subprocess, time; child = subprocess.Popen(['sleep', '1000']); print(child.pid, flush=True); "
)


def part(code: str, seconds: float = 60, gpu: bool = False) -> Part:
    return Part("p", "whether it works", (sys.executable, "-c", code), seconds, gpu)


def told(_: str) -> None: ...


def test_a_result_is_in_both_reports(tmp_path: Path) -> None:
    proof = prove([part(FINDS.format("one | two"))], tmp_path, told)
    assert proof.holds
    assert "| one \\| two | passed | so |" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["counts"] == {"passed": 1}


def test_a_result_is_told_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """A part may take minutes, and what it found first is worth reading then."""
    lines: list[tuple[float, str]] = []
    code = FINDS.format("early") + "; import time; time.sleep(3)"
    prove([part(code)], tmp_path, lambda line: lines.append((time.monotonic(), line)))
    assert ["early" in line for _, line in lines] == [False, True]
    assert time.monotonic() - lines[1][0] > 1.5


def test_a_part_that_dies_keeps_what_it_found(tmp_path: Path) -> None:
    proof = prove([part(FINDS.format("before") + "; raise SystemExit('no more')")], tmp_path, told)
    assert [(r.name, r.state) for r in proof.results] == [("before", "passed"), ("exit", "failed")]
    assert "no more" in proof.results[1].says
    assert not proof.holds


def test_a_part_that_finds_nothing_fails(tmp_path: Path) -> None:
    proof = prove([part("pass")], tmp_path, told)
    assert [(r.name, r.state) for r in proof.results] == [("all", "failed")]


@pytest.mark.days
def test_a_part_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    hangs = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    began = time.monotonic()
    proof = prove(
        [part(hangs + HANGS + "time.sleep(1000)", seconds=3), part(FINDS.format("next"))], tmp_path, told
    )
    assert time.monotonic() - began < 60
    assert [(r.name, r.state) for r in proof.results] == [
        ("before", "passed"),
        ("deadline", "failed"),
        ("next", "passed"),
    ]


def test_without_a_gpu_a_part_that_needs_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    proof = prove([part("raise SystemExit(1)", gpu=True)], tmp_path, told)
    assert [(r.state, "no GPU" in r.says) for r in proof.results] == [("skipped", True)]


def test_gpus_that_this_torch_cannot_use_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA on a node with GPUs: what can run runs, on the CPU, and the rest says why not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: False)
    proof = prove([part("raise SystemExit(1)", gpu=True)], tmp_path, told)
    assert [(r.state, "2 GPUs there, and a torch without CUDA" in r.says) for r in proof.results] == [
        ("skipped", True)
    ]
    assert [place[2:] for place in collectives._places()] == [("gloo", "cpu")]


def test_an_unknown_part_names_the_known() -> None:
    with pytest.raises(UnknownPart, match=r"machine, ranks.*found nothing"):
        chosen(PARTS, ["ranks", "nothing"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupt_ends_the_part_and_writes_the_report(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
import sys
from pathlib import Path
from labkit.prove.part import Part
from labkit.prove.command import run
part = Part("p", "asks", (sys.executable, "-c", {HANGS + "time.sleep(1000)"!r}), 900)
sys.exit(run([part], [], Path({str(tmp_path)!r})))
"""
    command = ["env", "--default-signal=HUP", f"TMPDIR={tmp_path}", sys.executable, "-c", program]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    child = _pid_in(tmp_path / "p.log")
    own = psutil.Process(child).parent()
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert own is not None
        own.wait(30)  # it was the part's own process, and goes with us
        os.kill(child, signal.SIGKILL)
        return
    assert process.returncode == 130
    assert b"interrupted" in said
    assert "**Interrupted**" in (tmp_path / "report.md").read_text()
    assert "before" in (tmp_path / "report.md").read_text()
    assert not is_alive(child)


def _pid_in(log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists() and (text := log.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.05)
    raise AssertionError("the part did not start")


@pytest.mark.days
@pytest.mark.skipif(gpu_count() > 0, reason="what a host without a GPU says")
def test_the_command_on_this_host(tmp_path: Path) -> None:
    """All parts for everybody, for real: ranks and links run on the CPU, and what needs a GPU says so."""
    command = [sys.executable, "-m", "labkit.cli", "doctor", "--prove", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    report = json.loads((tmp_path / "report.json").read_text())
    states = {(r["part"], r["state"]) for r in report["results"]}
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p for p, s in states if s == "skipped"} == {"machine", "bandwidth", "memory"}
    assert {("ranks", "passed"), ("collectives", "passed"), ("links", "measured")} <= states
    fitted = next(r for r in report["results"] if r["name"] == "gloo, fitted")
    assert 0 < fitted["numbers"]["beta_seconds_per_byte"] < 1e-6
