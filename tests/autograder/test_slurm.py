"""Grading over a job array of a real local Slurm: the same records, the same gradebook."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import F_ID, LESSON, hand_in, notebook, solution
from nbgrader.api import Gradebook

from autograder.course import init_course
from autograder.records import load_all
from labkit.checks import registry

pytestmark = [pytest.mark.sandbox, pytest.mark.slurm, pytest.mark.timeout(400)]

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmctldPort={port0}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=8 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=8 RealMemory=4000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=10 State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of two nodes on this machine; its configuration file."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm of one's own takes root")
    root = tmp_path_factory.mktemp("slurm")
    (root / "state").mkdir()
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for one in (a, b, c):
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (a, b, c)]
    values = {
        "host": socket.gethostname(),
        "root": root,
        "port0": ports[0],
        "port1": ports[1],
        "port2": ports[2],
    }
    (root / "slurm.conf").write_text(CONFIG.format(**values))
    munge = None if Path("/run/munge/munge.socket.2").exists() else start_munge()
    environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
    daemons = [["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in daemons
    ]
    try:
        wait_until_idle(environment, root)
        yield root / "slurm.conf"
    finally:
        for process in [*started, *([munge] if munge else [])]:
            process.terminate()
        for process in [*started, *([munge] if munge else [])]:
            process.wait(20)


def start_munge() -> subprocess.Popen[bytes]:
    """munged in the foreground, with a key if the machine has none."""
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge", "/etc/munge"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    key = Path("/etc/munge/munge.key")
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
    Path("/run/munge").chmod(0o755)
    return subprocess.Popen(
        ["munged", "--foreground", "--force"], user="munge", group="munge", stderr=subprocess.DEVNULL
    )


def wait_until_idle(environment: dict[str, str], root: Path) -> None:
    deadline = time.monotonic() + 40
    seen = ""
    while time.monotonic() < deadline:
        seen = subprocess.run(
            ["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True
        ).stdout
        if seen.strip() == "idle 2":
            return
        time.sleep(0.2)
    log = root / "slurmctld.log"
    pytest.fail(f"the nodes are {seen!r}; {log.read_text()[-2000:] if log.exists() else 'no log'}")


def test_an_array_gives_the_same_grades(slurm: Path, tmp_path: Path) -> None:
    init_course(tmp_path)
    for number in range(8):
        answer = solution(F_ID) if number % 2 else "x = 1"
        hand_in(tmp_path, f"student{number}", notebook(answer, f"# {number}"))
    command = [sys.executable, "-m", "autograder", "grade", "06", "--course", str(tmp_path), "--jobs", "1"]
    done = subprocess.run(
        [*command, "--executor", "slurm", "--no-feedback"],
        env={**os.environ, "SLURM_CONF": str(slurm)}, capture_output=True, text=True, timeout=350,
    )  # fmt: skip
    logs = [path.read_text() for path in (tmp_path / "records" / LESSON / "slurm").glob("*.log")]
    assert done.returncode == 0, (done.stderr, logs)
    assert len(logs) == 2, "two tasks of four submissions each"
    assert all("student" in log for log in logs)
    most = registry.exercise(F_ID).max_points
    expected = {f"student{n}": most * (n % 2) for n in range(8)}
    assert {r.student: r.points for r in load_all(tmp_path, LESSON)} == expected
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        assert {s: gradebook.find_submission(LESSON, s).score for s in expected} == expected


def test_without_slurm_it_says_so(tmp_path: Path) -> None:
    from autograder.course import Course
    from autograder.grading import Conditions
    from autograder.sandbox import Sandbox
    from autograder.slurm import SlurmFailed, grade_on_slurm

    init_course(tmp_path)
    path = os.environ["PATH"]
    course = Course(tmp_path)
    os.environ["PATH"] = "/nowhere"
    try:
        with pytest.raises(SlurmFailed, match="no sbatch"):
            grade_on_slurm(course, Conditions(LESSON, 1, Sandbox("")), 1, False)
    finally:
        os.environ["PATH"] = path
