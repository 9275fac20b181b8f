"""Answers are read as data, whatever a rank has written."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from labkit.checks.case import Case, RankAnswer, StudentError
from labkit.checks.files import (
    BadAnswer,
    Limits,
    RunRequest,
    read_answers,
    read_request,
    write_answer,
    write_request,
)
from labkit.checks.source.submission import Cell, collect

CASE = Case("plain", ranks=1, params={"rows": 3}, seed=4, kind="values")


@pytest.fixture
def request_of_one() -> RunRequest:
    submission = collect([Cell("cell 1", "def made(): return 1")], "06.made", ["made"])
    return RunRequest("06.made", [CASE], submission, submission, ranks=1, timeout=5)


def answer(**tensors: torch.Tensor) -> RankAnswer:
    call = {"op": "all_reduce", "num_bytes": 8}
    return RankAnswer(
        0, tensors, {"count": 2}, {"forward": [call]}, {"a": StudentError("ValueError", "no", "cell 1")}
    )


def test_requests_come_back_as_they_were(tmp_path, request_of_one):
    inputs = {"plain": {"x": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T}}
    write_request(request_of_one, {"plain": [inputs["plain"]]}, tmp_path)
    read, tensors = read_request(tmp_path, 0)
    assert read.cases == [CASE]
    assert read.submission.load().made() == 1
    assert torch.equal(tensors["plain"]["x"], inputs["plain"]["x"])


def test_answers_come_back_as_they_were(tmp_path, request_of_one):
    write_answer(tmp_path, 0, 0, answer(out=torch.ones(2, 0), y=torch.tensor(float("nan"))), None)
    found = read_answers(tmp_path, request_of_one, 0)
    assert found is not None
    assert not found.errors
    assert found.answers[0].facts == {"count": 2}
    assert found.answers[0].collectives["forward"][0]["op"] == "all_reduce"
    assert found.answers[0].tensors["out"].shape == (2, 0)
    assert str(found.answers[0].errors["a"]) == "ValueError: no (cell 1)"


def test_a_case_without_every_rank_is_not_there(tmp_path, request_of_one):
    request_of_one.ranks = 2
    write_answer(tmp_path, 0, 0, answer(), None)
    assert read_answers(tmp_path, request_of_one, 0) is None


def test_a_fact_that_is_not_data_is_refused_on_the_rank(tmp_path):
    report = answer()
    report.facts["f"] = object()
    with pytest.raises(TypeError, match="found object"):
        write_answer(tmp_path, 0, 0, report, None)
    assert not (tmp_path / "case0.rank0.json").exists()


def spoil_json(path):
    path.write_text("{")


def spoil_shape(path):
    path.write_text(json.dumps({"facts": [1], "collectives": 3, "errors": None, "error": None}))


def spoil_error(path):
    path.write_text(json.dumps({"facts": {}, "collectives": {}, "errors": {}, "error": {"__class__": "x"}}))


def link_away(path):
    path.unlink()
    path.symlink_to("/etc/passwd")


def become_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def become_a_directory(path):
    path.unlink()
    path.mkdir()


def declare_too_much(path):
    tensors = path.with_suffix(".safetensors")
    header = json.dumps({"x": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}}).encode()
    tensors.write_bytes(len(header).to_bytes(8, "little") + header)


def overlap(path):
    header = json.dumps({k: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for k in "ab"}).encode()
    path.with_suffix(".safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")


def deep(path):
    path.write_text("[" * 200_000)


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_json,
        spoil_shape,
        spoil_error,
        link_away,
        become_a_pipe,
        become_a_directory,
        declare_too_much,
        overlap,
        deep,
    ],
)
def test_what_is_not_an_answer_is_refused(tmp_path, request_of_one, spoil):
    write_answer(tmp_path, 0, 0, answer(x=torch.ones(3)), None)
    spoil(tmp_path / "case0.rank0.json")
    with pytest.raises(BadAnswer):
        read_answers(tmp_path, request_of_one, 0)


def test_what_is_too_large_is_not_read(tmp_path, request_of_one):
    write_answer(tmp_path, 0, 0, answer(x=torch.ones(1000)), None)
    with pytest.raises(BadAnswer, match="more than 100 bytes"):
        read_answers(tmp_path, request_of_one, 0, Limits(file_bytes=100))
    save_file({str(i): torch.ones(1) for i in range(5)}, tmp_path / "case0.rank0.safetensors")
    with pytest.raises(BadAnswer, match="at most 4"):
        read_answers(tmp_path, request_of_one, 0, Limits(tensors=4))
