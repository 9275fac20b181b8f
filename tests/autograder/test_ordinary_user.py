"""The attacks once more, by a grader who is an ordinary user of the machine. As root, which CI is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from turn import EVERYTHING

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(500)]

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534
SOME = (
    "tell-tmp",
    "store-instead",
    "keeper-called-early",
    "back-to-all",
    "fork-bomb",
    "disk-bomb",
    "after_all",
)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that is that user's own, where everybody may look."""
    path = Path(tempfile.mkdtemp(prefix="ordinary-"))
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def as_nobody(command: Sequence[str], home: Path, hold: Path) -> list[str]:
    """The command run by a user with no rights, for whom this interpreter and repository can be reached even
    below a folder of root's own: in mounts that nobody else sees.
    """
    needed = {Path(path).resolve() for path in (REPOSITORY, sys.prefix, sys.base_prefix)}
    lines = ["set -e"]
    for number, top in enumerate(sorted({_closed(path) for path in needed} - {None}, key=str)):
        kept = hold / str(number)
        kept.mkdir()
        lines += [f"mount --bind {_q(top)} {_q(kept)}", f"mount -t tmpfs -o mode=755 none {_q(top)}"]
        for path in sorted(needed):
            if path.is_relative_to(str(top)):
                inside = kept / path.relative_to(str(top))
                lines += [f"mkdir -p {_q(path)}", f"mount --bind {_q(inside)} {_q(path)}"]
    lines.append(f"cd {_q(REPOSITORY)}; export HOME={_q(home)} TMPDIR={_q(home)} {EVERYTHING}=1")
    lines.append(f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs "$@"')
    return ["unshare", "-m", "sh", "-c", "\n".join(lines), "sh", *command]


def _closed(path: Path) -> Path | None:
    """The outermost folder on the way to a path that others may not go through."""
    return next((top for top in [*reversed(path.parents), path] if not top.stat().st_mode & 1), None)


def _q(path: Path | None) -> str:
    return shlex.quote(str(path))


@pytest.mark.days(12)
def test_attacks_as_an_ordinary_user(home: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("these tests are run by an ordinary user already")
    if not (shutil.which("setpriv") and shutil.which("unshare")):
        pytest.skip("no setpriv and unshare (apt-get install util-linux)")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    confines = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    tried = subprocess.run(as_nobody(confines, home, tmp_path / "first"), capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"ordinary users have no user namespaces here: {tried.stderr.strip()}")
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/autograder/test_attacks.py",
    ]
    command = as_nobody([*tests, "-k", " or ".join(SOME)], home, tmp_path / "second")
    done = subprocess.run(command, capture_output=True, text=True, timeout=450)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{len(SOME)} passed" in done.stdout
