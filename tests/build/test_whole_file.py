"""Files that are there whole or not at all, and files of settings."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from labkit.settings import SettingsError, read_settings, settings_like
from labkit.whole_file import write_whole


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on a file's size stands for a full disk: part of it could be written."""
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from labkit.whole_file import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_whole(Path(sys.argv[1]), b'x' * 5000)"
    )
    (tmp_path / "kept").write_text("as it was")
    command = [sys.executable, "-B", "-c", program, str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"kept": "as it was"}


def test_a_folder_in_its_place_is_told_and_left(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", b"x")
    assert os.listdir(tmp_path) == ["taken"]


def test_threads_that_write_one_file_at_once(tmp_path: Path) -> None:
    texts = [bytes([65 + number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_whole(tmp_path / "one", texts[number % 8]), range(200)))
    assert (tmp_path / "one").read_bytes() in texts
    assert os.listdir(tmp_path) == ["one"]


class Names(msgspec.Struct):
    """One setting."""

    name: str = ""


def test_settings_are_utf8_with_and_without_a_mark(tmp_path: Path) -> None:
    """As TOML says, whatever the locale says; editors on Windows begin a file with the mark."""
    text = 'name = "Gödel"\n'
    for number, data in enumerate((text.encode(), text.encode("utf-8-sig"))):
        (tmp_path / f"{number}.toml").write_bytes(data)
        assert read_settings(tmp_path / f"{number}.toml", Names).name == "Gödel"
    program = (
        "import sys; from pathlib import Path; from labkit.settings import settings_like\n"
        "print(ascii(settings_like(Path(sys.argv[1]))().a.name))"
    )
    (tmp_path / "like.toml").write_text(f"[a]\n{text}", encoding="utf-8")
    command = [sys.executable, "-X", "utf8=0", "-c", program, str(tmp_path / "like.toml")]
    in_latin = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=in_latin)
    assert done.stdout.strip() == ascii("Gödel"), done.stderr


def test_each_kind_of_setting_has_words(tmp_path: Path) -> None:
    """Those of TOML: what is expected is told, not a KeyError."""
    like, wrong = tmp_path / "like.toml", tmp_path / "wrong.toml"
    like.write_text("[a]\nshare = 0.5\nday = 2026-01-01\nlist = []\n")
    wrong.write_text('[a]\nshare = "half"\nday = "today"\nlist = 3\n')
    with pytest.raises(SettingsError) as told:
        read_settings(wrong, settings_like(like))
    assert told.value.problems == [
        "a.share: expected a number, found 'half'",
        "a.day: expected another kind of value, found 'today'",
        "a.list: expected a list, found 3",
    ]
