"""Users for tests of what one person may do to another, without touching the machine's own.

They exist in a mount namespace whose /etc/passwd and /etc/group have them besides all others. In it everybody
can also enter the folders of this Python and this repository, wherever these are (often below /root). It ends
with the process that holds it, and so do its users.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_UID = 61100  # Debian leaves 60000 to 64999 to packages that ask for an id; none there by then


@dataclass(frozen=True)
class People:
    """homes: each user's home folder, which is nobody else's.  root: a folder that everybody may enter."""

    root: Path
    homes: dict[str, Path]
    namespace: str

    def command(self, user: str, words: Sequence[str], cwd: Path | None = None) -> list[str]:
        """What runs `words` as this user, or as root, among the people, in `cwd` or the user's home."""
        inside = ["nsenter", f"--mount={self.namespace}", "env", "-C", str(cwd or self.home(user))]
        if user == "root":
            return [*inside, *words]
        uid = str(FIRST_UID + list(self.homes).index(user))
        become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
        return [*inside, "-i", *(f"{k}={v}" for k, v in self.environment(user).items()), *become, *words]

    def home(self, user: str) -> Path:
        return self.homes.get(user, self.root)

    def environment(self, user: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.home(user)), "USER": user, "LOGNAME": user, "PATH": path, "LANG": "C.UTF-8"}

    def run(
        self, user: str, *words: str, cwd: Path | None = None, check: bool = True, seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user; by default it must succeed."""
        done = subprocess.run(self.command(user, words, cwd), capture_output=True, text=True, timeout=seconds)
        assert not check or done.returncode == 0, f"{user}: {shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done


@contextmanager
def people(*names: str) -> Iterator[People]:
    """Users with these names and homes of their own. Takes root; skips the test without."""
    if os.geteuid() != 0 or not shutil.which("nsenter"):
        pytest.skip("users of one's own take root, and nsenter (apt-get install util-linux)")
    root = Path(tempfile.mkdtemp(prefix="labkit-people-", dir="/tmp"))
    root.chmod(0o755)
    holder = None
    try:
        homes = {name: root / "home" / name for name in names}
        lines = {"passwd": Path("/etc/passwd").read_text(), "group": Path("/etc/group").read_text()}
        for uid, (name, home) in enumerate(homes.items(), FIRST_UID):
            assert uid not in {user.pw_uid for user in pwd.getpwall()}, f"user id {uid} is taken"
            home.mkdir(parents=True, mode=0o700)
            os.chown(home, uid, uid)
            lines["passwd"] += f"{name}:x:{uid}:{uid}::{home}:/bin/bash\n"
            lines["group"] += f"{name}:x:{uid}:\n"
        for name, text in lines.items():
            (root / name).write_text(text)
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _mounts(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", "the namespace could not be made"
        yield People(root, homes, f"/proc/{holder.pid}/ns/mnt")
    finally:
        if holder:
            holder.communicate(timeout=10)  # the end of its input ends it
        shutil.rmtree(root, ignore_errors=True)


def _mounts(root: Path) -> str:
    """A shell script that mounts what the people see, and then waits for the end of its input."""
    lines = [f"mount --bind {root / name} /etc/{name}" for name in ("passwd", "group")]
    wanted = {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(wanted):
        above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        if above:
            closed.setdefault(above[0], []).append(path)
    for folder, paths in closed.items():
        held = {path: root / f"held{number}" for number, path in enumerate(paths)}
        for path, place in held.items():
            place.mkdir()
            lines.append(f"mount --bind {shlex.quote(str(path))} {place}")
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}")
        for path, place in held.items():
            quoted = shlex.quote(str(path))
            lines += [f"mkdir -p {quoted}", f"mount --bind {place} {quoted}", f"umount {place}"]
    return "\n".join([*lines, "echo ready", "exec cat"])
