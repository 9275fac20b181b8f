"""What is taken from a folder student code wrote to: regular files by name, bounded, checked."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.sandbox.within.salvage import Refused, check_tensors, tail, take


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    path.mkdir()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    path.mkdir()
    return path


def test_takes_what_is_expected_and_nothing_else(folder: Path, target: Path) -> None:
    (folder / "a.json").write_text("{}")
    (folder / "unexpected.json").write_text("{}")
    assert take(folder, ["a.json", "absent.json"], target, 100) == {}
    assert [p.name for p in target.iterdir()] == ["a.json"]


def test_links_pipes_and_folders_are_refused(folder: Path, target: Path) -> None:
    (folder / "link.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    refused = take(folder, ["link.json", "pipe.json", "folder.json"], target, 10**6)
    assert set(refused) == {"link.json", "pipe.json", "folder.json"}
    assert list(target.iterdir()) == []


def test_a_linked_folder_is_refused(folder: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert take(tmp_path / "link", ["a.json"], target, 100)


def test_all_files_together_are_bounded(folder: Path, target: Path) -> None:
    for name in ("a.json", "b.json"):
        (folder / name).write_text("x" * 60)
    assert list(take(folder, ["a.json", "b.json"], target, 100)) == ["b.json"]


def test_what_there_is_no_room_for_is_not_left_in_part(folder: Path, target: Path) -> None:
    (folder / "a.json").write_text("x" * 5000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            take(folder, ["a.json"], target, 10**6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(target.iterdir()) == []


def test_the_end_of_a_log(folder: Path) -> None:
    (folder / "log").write_text("x" * 1000 + "end")
    assert tail(folder, "log", 10) == "x" * 7 + "end"
    assert tail(folder, "nothing", 10) == ""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_true_tensors_pass(dtype: torch.dtype) -> None:
    tensors = {
        "a": torch.zeros(3, 4, dtype=dtype),
        "empty": torch.zeros(0, dtype=dtype),
        "one": torch.ones((), dtype=dtype),
    }
    check_tensors(safetensors.torch.save(tensors))


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}',
        b'{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F64","shape":[-1],"data_offsets":[0,-8]}}',
        b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[8,0]}}',
        b'{"a":{"dtype":"OBJ","shape":[1],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F64","shape":[true],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F64","shape":"1","data_offsets":[0,8]}}',
        b'{"a":[1,2,3]}',
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_false_headers_are_refused(header: bytes) -> None:
    with pytest.raises(Refused):
        check_tensors(struct.pack("<Q", len(header)) + header + bytes(8))


@given(st.binary(max_size=200))
def test_no_bytes_get_past_that_cannot_be_loaded(data: bytes) -> None:
    """Property: whatever passes the check, safetensors loads, without more memory than the file has."""
    try:
        check_tensors(data)
    except Refused:
        return
    loaded = safetensors.torch.load(data)
    assert sum(tensor.nbytes for tensor in loaded.values()) <= len(data)
