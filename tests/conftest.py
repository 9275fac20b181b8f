"""Which tests can run on this machine. A test that cannot says why; where it must run, that is a failure.

LABKIT_REQUIRE names what must be there, by marker: `LABKIT_REQUIRE=browser,sandbox,slurm,hub` in CI.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from collected import pytest_sessionfinish  # noqa: F401  a hook
from slurm_cluster import LocalSlurm
from turn import SAMPLE, today

from labkit import doctor
from labkit.hosts import gpu_count

# What takes minutes begins first, so that the workers (`make test`) end at about the same time.
LONGEST_FIRST = (
    *("cluster/", "browser/", "test_slurm", "autograder/test_course"),
    *("test_alternatives", "test_every_lesson", "prove/"),
)
ONE_MACHINE = ("cluster/", "autograder/test_slurm")  # one Slurm, and users with fixed numbers
ALONE = ("browser/test_lessons", "test_every_lesson")  # tests that share nothing with others of their file
DAYS = 14  # `make test` tries a test that is marked days(n) where that is what the number of the day leaves

# A shell's background command ignores interrupts, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRED = frozenset(filter(None, os.environ.get("LABKIT_REQUIRE", "").split(",")))
GPUS_HIDDEN = pytest.StashKey[bool]()
HIDDEN = "hidden from the tests that run at once, as one job at a time has a GPU: `make gpu` runs this one"


def pytest_configure(config: pytest.Config) -> None:
    """Hide a machine's GPUs from tests of ranks on the CPU: those that need one are asked for by `-m gpu`."""
    if gpu_count() and "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        config.stash[GPUS_HIDDEN] = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first."""
    items.sort(key=lambda item: next((i for i, name in enumerate(LONGEST_FIRST) if name in item.nodeid), 9))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several workers, let one run all tests that share a fixture that is dear."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if any(name in nodeid for name in ONE_MACHINE):
                return "one machine"
            return nodeid if any(name in nodeid for name in ALONE) else nodeid.split("::")[0]

    return Together(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    its_days = item.get_closest_marker("days")
    if its_days and SAMPLE in os.environ and _day_of(item, its_days) != today() % DAYS:
        pytest.skip(f"one that `make test` tries every {DAYS} days; pytest runs it")
    for marker in ("gpu", "browser", "sandbox", "apptainer", "slurm", "hub"):
        if item.get_closest_marker(marker) is None:
            continue
        reason = HIDDEN if marker == "gpu" and GPUS_HIDDEN in item.config.stash else _lacks(marker)
        if reason and marker in REQUIRED:
            pytest.fail(f"LABKIT_REQUIRE={marker}, but {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)


def _day_of(item: pytest.Item, its_days: pytest.Mark) -> int:
    """Which of DAYS it is: the mark says it, or where a whole file is marked, the test's name draws it."""
    return int(its_days.args[0]) if its_days.args else crc32(item.nodeid.encode()) % DAYS


@cache
def _lacks(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None."""
    if marker == "browser":
        return None if doctor.find_browser() else "no Chromium (apt-get install chromium)"
    if marker == "sandbox":
        found = doctor.probe_sandbox()[0]
        return None if found.state == "ok" else f"{found.says} ({found.install})"
    if marker == "apptainer":
        return doctor.apptainer_refuses() or None
    if marker == "slurm":
        needed = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(name)]
        return f"no {', '.join(needed)} (apt-get install slurm-wlm munge)" if needed else None
    if marker == "hub":
        return _lacks_of_the_hub()
    return None if doctor.ask_torch().get("gpus") else "no CUDA device"


def _lacks_of_the_hub() -> str | None:
    missing = [name for name in ("jupyterhub", "batchspawner") if find_spec(name) is None]
    if missing:
        return f"no {', '.join(missing)} (pip install -e '.[hub]')"
    beside = Path(sys.executable).parent
    if not shutil.which("configurable-http-proxy", path=f"{beside}:{os.environ['PATH']}"):
        return f"no proxy for JupyterHub (npm install -g --prefix {beside.parent} configurable-http-proxy)"
    return None


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSlurm]:
    """A Slurm of two nodes on this machine, with eight make-believe GPUs each; one for all tests."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm of one's own takes root")
    cluster = LocalSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        left = cluster.stop()
    assert left == []


@pytest.fixture
def no_other_objects() -> Iterator[None]:
    """What the tests before have left would be gone through each time something is weighed, for seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
