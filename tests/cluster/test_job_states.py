"""What is made of what Slurm says of a waiting job; a folder that jobs cannot have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from people import REPOSITORY, people

from labkit.slurm.commands import JobState, SlurmError
from labkit.slurm.shared import shared_root


@pytest.mark.parametrize(
    "reason",
    [
        *("QOSMaxGRESPerJob", "QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerNode", "QOSMaxCpuMinutesPerJobLimit"),
        *("QOSMaxWallDurationPerJobLimit", "AssocMaxNodePerJobLimit", "AssocMaxGRESPerJob"),
        *("AssocMaxWallDurationPerJobLimit", "QOSMinGRES", "QOSMinCpuNotSatisfied", "MaxMemPerLimit"),
        *("PartitionTimeLimit", "QOSNotAllowed"),
    ],
)
def test_a_limit_of_one_job_never_passes(reason: str) -> None:
    """By their names in https://slurm.schedmd.com/job_reason_codes.html and in Slurm 22.05's library."""
    assert JobState("PENDING", reason).hopeless
    assert not JobState("RUNNING", reason).hopeless


@pytest.mark.parametrize(
    "reason",
    [
        *("Priority", "Resources", "QOSMaxGRESPerUser", "QOSMaxJobsPerUserLimit", "QOSGrpGRES"),
        *("AssocGrpCpuLimit", "AssocMaxJobsLimit", "QOSGrpCPUMinutesLimit", "MaxGRESPerAccount"),
    ],
)
def test_a_limit_of_all_jobs_together_passes(reason: str) -> None:
    assert not JobState("PENDING", reason).hopeless


def test_who_has_the_limits_is_told() -> None:
    told = JobState("PENDING", "QOSMaxGRESPerJob").why_hopeless()
    assert told.startswith("Slurm would never start the job (QOSMaxGRESPerJob)")
    assert "`sacctmgr show qos`" in told


def test_it_is_told_also_where_slurm_does_not_say_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    told = JobState("PENDING", "PartitionTimeLimit").why_hopeless()
    assert told == "Slurm would never start the job (PartitionTimeLimit)"


def test_a_shared_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path / "file" / "shared"))
    with pytest.raises(
        SlurmError, match=r"file/shared cannot be used \(Not a directory\).*LABKIT_SHARED names"
    ):
        shared_root()


def test_a_shared_folder_of_somebody_else() -> None:
    program = (
        "from labkit.slurm.lab_files import folder\n"
        "from labkit.slurm.commands import SlurmError\n"
        "try: print(folder())\nexcept SlurmError as error: print(error)"
    )
    with people("ada") as house:
        closed, opened = house.root / "closed", house.root / "opened"
        for path, mode in ((closed, 0o755), (opened, 0o777)):
            path.mkdir()
            path.chmod(mode)
        for path, says in ((closed, "this user may not write there"), (opened, "Operation not permitted")):
            (path / "lab").mkdir()
            words = ["env", f"LABKIT_SHARED={path}", sys.executable, "-c", program]
            told = house.run("ada", *words, cwd=REPOSITORY).stdout
            assert f"cannot be used ({says}): jobs need a folder of your own" in told
