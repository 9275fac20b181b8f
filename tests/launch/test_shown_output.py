"""What ranks printed, as it is read from their logs and shown in a notebook: no ranks are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.launch import names, render
from labkit.launch.handover.request import log_path
from labkit.launch.output import Outputs


def test_names_of_ranks_and_folding() -> None:
    assert render.rank_names([0, 1, 2, 5]) == "ranks 0–2, 5"
    assert render.rank_names([3]) == "rank 3"
    assert render.fold({0: "a", 1: "b", 2: "a"}) == [([0, 2], "a"), ([1], "b")]


def test_output_is_escaped_and_cleaned() -> None:
    html = render.output_html({0: "<script>alert(1)</script>", 1: "\x1b[31mred\x1b[0m\n10%\r20%\n"})
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "red\n20%" in html
    assert "10%" not in html


def test_tabs_of_one_page_do_not_share_names() -> None:
    ids = [part.split('"')[0] for part in render.tabs({0: "a"}).split('id="')[1:]]
    again = [part.split('"')[0] for part in render.tabs({0: "a"}).split('id="')[1:]]
    assert ids
    assert not set(ids) & set(again)
    assert "<b>rank 0</b>" in render.tabs({0: "a", 1: "b"})  # what is left where styles are stripped


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """As on a network disk that is stale: it can be opened still."""
    log_path(tmp_path, 0).mkdir()
    outputs = Outputs(tmp_path, 1)
    outputs.read()
    assert outputs.texts() == [""]


def test_a_long_output_is_cut_with_a_note() -> None:
    text = render.clean("\n".join(map(str, range(1000))))
    assert text.startswith("[... 800 lines above are not shown]")
    assert text.endswith("999")


def test_a_remark_of_gloo_is_not_output(tmp_path: Path) -> None:
    log_path(tmp_path, 0).write_text(
        "mine\n[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
        "[Gloo] is mine too\n"
    )
    outputs = Outputs(tmp_path, 1)
    outputs.read()
    assert outputs.texts() == ["mine\n[Gloo] is mine too\n"]
    outputs.close()


def test_output_is_read_once_and_in_order(tmp_path: Path) -> None:
    log = log_path(tmp_path, 0)
    outputs = Outputs(tmp_path, 1)
    positions = [0]
    for part in ("one\n", "two ä\n"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(part)
        outputs.read()
        assert outputs.since(positions) == [part]
    assert outputs.texts() == ["one\ntwo ä\n"]
    outputs.close()


def test_a_character_that_comes_in_two_pieces_is_one(tmp_path: Path) -> None:
    """Also for who begins to look in between; what is cut short for good is told when no more can come."""
    outputs, positions, later = Outputs(tmp_path, 1), [0], [0]
    told = []
    with open(log_path(tmp_path, 0), "wb", buffering=0) as log:
        for byte in "aä€😀".encode() + b"\xff\xe2\x82":
            log.write(bytes([byte]))
            outputs.read()
            if byte == 0x82 and later == [0]:
                later = outputs.positions()
            told += outputs.since(positions)
    assert "".join(told) == "aä€😀\N{REPLACEMENT CHARACTER}"
    outputs.close()
    assert outputs.since(positions) == ["\N{REPLACEMENT CHARACTER}"]
    assert outputs.since(later) == ["€😀" + 2 * "\N{REPLACEMENT CHARACTER}"]


def test_a_character_across_what_is_kept_is_one(tmp_path: Path) -> None:
    """The first half mebibyte of an output is kept apart from the rest."""
    log_path(tmp_path, 0).write_bytes(b"-" * ((512 << 10) - 1) + "€".encode()[:2])
    outputs, positions = Outputs(tmp_path, 1), [0]
    outputs.read()
    assert outputs.since(positions) == ["-" * ((512 << 10) - 1)]
    with open(log_path(tmp_path, 0), "ab") as log:
        log.write("€".encode()[2:])
    outputs.read()
    assert outputs.since(positions) == ["€"]
    outputs.close()


def test_places_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names.readable_text(f"at {tmp_path}/a/b.py:3, and /else/c.py:4") == "at a/b.py:3, and /else/c.py:4"
