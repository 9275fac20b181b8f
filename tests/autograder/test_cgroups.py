"""A sandbox in a control group of its own: what a kernel with version 2 is told, and what any kernel with a
hierarchy of version 2 does. That memory is then limited shows only where `memory` is in that hierarchy.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autograder.sandbox import choice
from autograder.sandbox.apptainer import Apptainer
from autograder.sandbox.bubblewrap import Bubblewrap
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.confined import Confined
from autograder.sandbox.sandbox import MIB, OF_OURS, CouldNotStart, Limits
from labkit import cgroups, doctor
from labkit.cgroups import CHOICE, Group, NoGroup, divisible_group, make_group, own_groups

MOUNTS = """\
22 1 0:20 / / rw - ext4 /dev/sda rw
31 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 22 0:29 {shown} {at} rw,nosuid shared:9 - cgroup2 cgroup2 rw
"""


def hierarchy() -> Path:
    """Where version 2 is mounted here, if this process may make groups in it."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line and os.access(line.split()[4], os.W_OK):
            return Path(line.split()[4])
    pytest.skip("no hierarchy of control groups of version 2 that this user may write to")


@pytest.fixture
def group() -> Group:
    """One without limits, where the controllers are of version 1."""
    path = hierarchy() / f"labkit-test-{os.getpid()}"
    path.mkdir()
    return Group(path)


def test_the_kernel_is_told_of_the_limits(tmp_path: Path) -> None:
    """In a folder with the names of a group that is handed on."""
    made = make_group(tmp_path, 3 * MIB, 70)
    assert made.path.parent == tmp_path
    told = {path.name: path.read_text() for path in made.path.iterdir()}
    assert told == {
        "memory.max": str(3 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "70",
    }
    assert not made.out_of_memory()
    (made.path / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert made.out_of_memory()


def test_a_sandbox_has_its_limits_from_the_group_it_is_given(tmp_path: Path) -> None:
    sandbox = replace(find_sandbox(Limits(memory=MIB, processes=9)), groups=tmp_path)
    made = sandbox.new_group()
    assert made is not None
    assert (made.path / "memory.max").read_text() == str(MIB)
    assert (made.path / "pids.max").read_text() == str(9 + OF_OURS)


@pytest.mark.parametrize(
    ("own", "shown", "tried"),
    [
        ("/user.slice/job", "/", ["user.slice/job", "user.slice", "."]),
        ("/docker/7/job", "/docker/7", ["job", "."]),
    ],
)
def test_its_own_group_is_tried_first_and_then_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, shown: str, tried: list[str]
) -> None:
    """As they are mounted: a container shows a part of the hierarchy."""
    monkeypatch.delenv(CHOICE, raising=False)
    (tmp_path / "cgroup").write_text(f"4:memory:/elsewhere\n0::{own}\n")
    (tmp_path / "mounts").write_text(MOUNTS.format(shown=shown, at=tmp_path / "at"))
    for name in tried[:-1]:
        (tmp_path / "at" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "at" / name / "cgroup.subtree_control").write_text("cpu pids\n")
    with pytest.raises(NoGroup) as refusal:
        divisible_group(tmp_path / "cgroup", tmp_path / "mounts")
    assert str(refusal.value) == f"{tmp_path / 'at' / tried[0]} hands on no memory"


def handed_on(tmp_path: Path, own: str) -> tuple[Path, Path]:
    """Files like /proc/self/cgroup and mountinfo, and folders with the names of groups that are handed on."""
    (tmp_path / "cgroup").write_text(f"0::/{own}\n")
    (tmp_path / "mounts").write_text(MOUNTS.format(shown="/", at=tmp_path / "at"))
    for path in (tmp_path / "at" / own, *(tmp_path / "at" / own).parents[: len(Path(own).parts)]):
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.subtree_control").write_text("memory pids\n")
    return tmp_path / "cgroup", tmp_path / "mounts"


def test_the_first_group_that_can_be_divided_is_taken_and_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a second trial would say may be another thing. In such a folder each trial leaves one behind."""
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr(cgroups, "SECONDS", 0.0)
    assert divisible_group(*handed_on(tmp_path, "slice/job")) == tmp_path / "at/slice/job"
    assert [made.parent.name for made in tmp_path.rglob("labkit-*")] == ["job"]


def test_a_trial_that_does_not_end_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time at all is too short for any program."""
    handed_on(tmp_path, "job")
    monkeypatch.setenv(CHOICE, str(tmp_path / "at/job"))
    monkeypatch.setattr(cgroups, "SECONDS", 0.0)
    monkeypatch.setattr(cgroups, "TRIAL_SECONDS", 0.0)
    with pytest.raises(NoGroup, match=r"no program could be run in a group of it: .* timed out"):
        divisible_group()
    assert choice._groups.__wrapped__() is None
    assert [finding.state for finding in doctor.probe_limits()] == ["note"]


def test_a_kernel_without_groups_is_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is not even a file that would tell of them; nor is a folder that has gone a failure of ours."""
    monkeypatch.delenv(CHOICE, raising=False)
    with pytest.raises(NoGroup, match="no control groups of version 2"):
        divisible_group(tmp_path / "none", tmp_path / "none")
    with pytest.raises(NoGroup, match=r"gone: no group can be made in it: No such file"):
        make_group(tmp_path / "gone", 2**30, 100)


def test_the_groups_of_version_1_are_those_of_one_controller(tmp_path: Path) -> None:
    """As Slurm makes them there: a job's, and in it a step's."""
    (tmp_path / "cgroup").write_text("5:cpu,cpuacct:/other\n4:memory:/slurm/job_5/step_0\n0::/\n")
    (tmp_path / "mounts").write_text(MOUNTS.format(shown="/", at=tmp_path))
    found = own_groups(tmp_path / "cgroup", tmp_path / "mounts", "memory")
    root = "/sys/fs/cgroup/memory"
    assert [str(path) for path in found] == [
        f"{root}/slurm/job_5/step_0",
        f"{root}/slurm/job_5",
        f"{root}/slurm",
        root,
    ]
    assert list(own_groups(tmp_path / "cgroup", tmp_path / "mounts", "pids")) == []


def test_a_group_that_is_named_is_the_only_one_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, str(tmp_path / "absent"))
    with pytest.raises(NoGroup, match=r"absent cannot be divided: .*No such file"):
        divisible_group()
    (finding,) = doctor.probe_limits()
    assert (finding.topic, finding.state) == ("limits", "note")
    assert "counted by looking" in finding.says
    assert "Delegate=yes" in finding.install


def test_all_that_was_started_in_a_group_ends_with_it(group: Group) -> None:
    """What has left its parent and its session too."""
    script = "setsid sh -c 'sleep 300 & echo $!; exec sleep 300' & wait"
    started = subprocess.Popen(group.entering(["sh", "-c", script]), stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    inner = Path(f"/proc/{int(started.stdout.readline())}")
    assert (inner / "cgroup").read_text().splitlines()[-1].endswith(f"/{group.path.name}")
    group.end()
    started.wait(10)
    until = time.monotonic() + 5
    while inner.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not inner.exists()
    assert not group.path.exists()
    group.end()


SAYS_ANOTHER_THING = """\
#!/bin/sh
for fd in $(ls /proc/$$/fd); do
    [ "$fd" -gt 2 ] && [ -p "/proc/$$/fd/$fd" ] && echo "{}" > "/proc/$$/fd/$fd"
done
exec sleep 300
"""


def test_nothing_is_left_of_a_start_that_fails(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is a program: an answer that nobody expects stands for whatever ends the wait for one."""
    monkeypatch.setattr(Bubblewrap, "new_group", lambda self: group)
    (tmp_path / "bwrap").write_text(SAYS_ANOTHER_THING)
    (tmp_path / "bwrap").chmod(0o755)
    before = psutil.Process().children()
    with pytest.raises(KeyError, match="child-pid"):
        Bubblewrap(bwrap=str(tmp_path / "bwrap")).start(tmp_path, ())
    assert psutil.Process().children() == before
    assert not group.path.exists()


def test_no_group_is_left_of_a_program_that_cannot_be_started(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that is longer than the kernel takes is one reason."""
    monkeypatch.setattr(Bubblewrap, "new_group", lambda self: group)
    with pytest.raises(OSError, match="too long"):
        Bubblewrap(bwrap="b" * 2**18).start(tmp_path, ())
    assert not group.path.exists()


def test_nothing_is_left_where_apptainer_gets_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(CouldNotStart, match="no control group could be made"):
        Apptainer(apptainer="/nowhere", groups=tmp_path / "absent").start(tmp_path, ())
    assert os.listdir("/proc/self/fd") == before
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.timeout(120)
def test_a_sandbox_is_in_its_group_as_a_whole(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bubblewrap, "new_group", lambda self: group)
    with Confined(find_sandbox(kind="bubblewrap"), tmp_path) as confined:
        within = (group.path / "cgroup.procs").read_text().split()
        assert str(confined.pid) in within
        assert len(within) >= 3
    assert not group.path.exists()
