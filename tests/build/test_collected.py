"""`make test` runs once more what failed: a file that could not be collected must not be forgotten then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import collected
import pytest

GOOD, BAD = "def test_it():\n    assert {}\n", "import nothing_of_this_name\n"


@pytest.mark.days
@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"test_one.py": GOOD.format(True)}, pytest.ExitCode.OK),
        ({"test_one.py": GOOD.format(False)}, pytest.ExitCode.TESTS_FAILED),
        ({"test_one.py": GOOD.format(False), "test_two.py": BAD}, pytest.ExitCode.INTERRUPTED),
    ],
)
def test_a_file_that_cannot_be_collected_ends_the_run(
    tmp_path: Path, files: dict[str, str], status: pytest.ExitCode
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tests = str(Path(collected.__file__).parent)
    code = f"import sys; sys.path.insert(0, {tests!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    pytest_ = [sys.executable, "-c", code, "-p", "collected", "-n", "2", "-q", "--rootdir", str(tmp_path)]
    command = [*pytest_, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
