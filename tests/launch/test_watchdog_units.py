"""The parts of the launcher that need no ranks: who is stuck, what is said, what is shown, what is locked."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pickle import PickleBuffer

import msgspec
import pytest
import torch

from labkit import hosts, processes
from labkit.hosts import gpu_count, place
from labkit.launch import names, render
from labkit.launch.engine import gpu_lock
from labkit.launch.engine.facts import read_facts, write_facts
from labkit.launch.engine.ranks import Ranks
from labkit.launch.failure.deadlock import find_mismatch, is_stuck
from labkit.launch.failure.diagnose import Exit, RankFacts, diagnose, stack_frames
from labkit.launch.failure.words import deadlock, mismatch, ranks
from labkit.launch.handover import results
from labkit.launch.handover.parcels import parcel
from labkit.launch.handover.request import Wanted, end_path, log_path, state_path
from labkit.launch.handover.reserved import reserve, write_reserved
from labkit.launch.here import Here
from labkit.launch.output import Outputs
from labkit.record.state import (
    FAILED,
    MAX_GROUPS,
    RUNNING,
    WAITING,
    State,
    StatePage,
    Wait,
    group_key,
    message_key,
    pack_wait,
)

TIMEOUT = 5.0


def call(op: str, number: int = 1, peer: int = -1, size: int = 16, dtype: str = "float32") -> Wait:
    return Wait(op, "0", number, peer, 0, size, (size // 4,), dtype, (0, 1), "In[2]", 7, "f")


def state(phase: str, wait: Wait | None = None, calls: int = 0, **counts: dict[int, int]) -> State:
    """sends, receives: messages on the world by the other rank."""
    made = {group_key("0"): calls} if calls else {}
    return State(
        phase, 0.0, 1, wait, *(on_world(counts.get(kind, {})) for kind in ("sends", "receives")), made
    )


def on_world(messages: dict[int, int]) -> dict[int, int]:
    return {message_key(group_key("0"), peer): number for peer, number in messages.items()}


def waiting(wait: Wait, calls: int = 0, **counts: dict[int, int]) -> State:
    return state("waiting", wait, calls or (0 if wait.point_to_point else wait.number), **counts)


@pytest.mark.parametrize(
    ("states", "stuck"),
    [
        ([waiting(call("all_reduce")), waiting(call("all_reduce"))], False),  # in progress
        ([waiting(call("all_reduce")), waiting(call("broadcast"))], True),
        ([waiting(call("all_reduce")), waiting(call("all_reduce", size=32))], True),
        ([waiting(call("all_reduce", 3)), state("finished", calls=2)], True),
        ([waiting(call("all_reduce", 3)), state("finished", calls=3)], False),  # the other has made the call
        ([waiting(call("send", peer=1), sends={1: 1}), state("finished")], True),
        ([waiting(call("send", peer=1), sends={1: 1}), state("finished", receives={0: 1})], False),
        ([waiting(call("recv", peer=1)), waiting(call("recv", peer=0))], True),
        (
            [waiting(call("recv", peer=1)), waiting(call("all_reduce"), sends={0: 1})],
            False,
        ),  # isend
        ([state("finished"), state("finished")], False),
    ],
)
def test_only_waits_that_cannot_end_are_a_deadlock(states: list[State], stuck: bool) -> None:
    assert is_stuck(states) is stuck


def test_a_message_on_another_group_is_none_and_is_named() -> None:
    """Rank 1 has sent on a group of its own; rank 0 waits on the world."""
    sent = replace(call("send", peer=0), group="3", members=(1, 0), line=6)
    sender = State("finished", 0.0, 1, sent, {message_key(group_key("3"), 0): 1}, {}, {}, recent=(sent,))
    receiver = waiting(call("recv", peer=1), receives={1: 1})
    assert receiver.wait is not None
    assert is_stuck([receiver, sender])
    found = find_mismatch(0, receiver.wait, [receiver, sender])
    assert found is not None
    assert mismatch(found) == (
        "ranks called send and recv on different groups: "
        "rank 0 recv from rank 1 (tag 0) of float32 (4,) at In[2]:7 on ranks 0 and 1, "
        "rank 1 send to rank 0 (tag 0) of float32 (4,) at In[2]:6 on ranks 1 and 0"
    )
    met = replace(receiver, receives=receiver.receives | {message_key(group_key("3"), 1): 1})
    assert find_mismatch(0, receiver.wait, [met, sender]) is None


def test_nothing_is_claimed_where_not_every_call_was_counted(tmp_path: Path) -> None:
    """Both wait in a call on the last of more groups than the page has room for."""
    states = []
    for rank in range(2):
        page = StatePage(tmp_path / str(rank), create=True)
        for number in range(MAX_GROUPS + 1):
            assert page.read().complete
            page.count_call(group_key(str(number)), 1)
        last = replace(call("all_reduce"), group=str(MAX_GROUPS))
        page.set_call(pack_wait(last), 1)
        page.enter(WAITING)
        page.count_call(group_key("0"), 7)  # who has a place keeps it
        states.append(page.read())
        assert len(states[-1].calls) == MAX_GROUPS
        assert states[-1].calls[group_key("0")] == 7
    assert not any(state.complete for state in states)
    assert not is_stuck(states)


def test_calls_whose_sizes_may_differ_are_no_mismatch() -> None:
    states = [waiting(call("all_to_all")), waiting(call("all_to_all", size=32))]
    assert states[0].wait is not None
    assert find_mismatch(0, states[0].wait, states) is None


def exchange(sent: tuple[int, ...], received: tuple[int, ...]) -> Wait:
    return replace(call("all_to_all"), sent=sent, received=received)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (((4, 8), (4, 12)), "rank 0 sends 8 bytes of float32 to rank 1 in all_to_all, call 1"),
        (((4, 12), (4, 8)), "rank 1 sends 12 bytes of float32 to rank 0 in all_to_all, call 1"),
        (((4, 12), (4, 12)), ""),
        (((8, 12), (4, 12)), "rank 0 sends 8 bytes of float32 to itself in all_to_all, call 1"),
        (((4, 8), ()), ""),  # not known
    ],
)
def test_parts_of_an_all_to_all_are_compared_in_pairs(
    parts: tuple[tuple[int, ...], tuple[int, ...]], words: str
) -> None:
    """Rank 0 sends, and expects, these bytes; rank 1 sends it 12 and expects 12, and keeps 4."""
    mine, other = exchange(*parts), exchange((12, 4), (12, 4))
    found = find_mismatch(0, mine, [waiting(mine), waiting(other)])
    assert (mismatch(found) if found else "").startswith(words)
    assert bool(found) is bool(words)


def test_parts_that_the_page_has_no_room_for_are_not_known(tmp_path: Path) -> None:
    squares = tuple(10**9 + number**2 for number in range(64))
    page = StatePage(tmp_path / "page", create=True)
    page.set_call(pack_wait(exchange(squares, (10**9,) * 64)), 1)
    wait = page.read().wait
    assert wait is not None
    assert (wait.sent, wait.received) == ((), (10**9,) * 64)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (range(512), "ranks 0 to 511"),
        (range(7, 512, 8), "ranks 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103, 111, 119 and 49 more"),
        ((3, 0, 1, 2), "ranks 3, 0, 1 and 2"),
        ((4, 2), "ranks 4 and 2"),
        ((5,), "rank 5"),
        ([number**2 for number in range(300)], "a group of ranks"),  # no room
    ],
)
def test_groups_are_read_whole_or_not_at_all(tmp_path: Path, members: Sequence[int], told: str) -> None:
    page = StatePage(tmp_path / "page", create=True)
    page.set_call(pack_wait(replace(call("all_reduce"), members=tuple(members))), 1)
    wait = page.read().wait
    assert wait is not None
    assert wait.members in (tuple(members), ())
    assert ranks(wait.members) == told


def test_a_shape_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    page = StatePage(tmp_path / "page", create=True)
    for shape, read in (((10**6, 3, 7, 12, 5, 0),) * 2, (tuple(10**6 + n**2 for n in range(9)), ())):
        page.set_call(pack_wait(replace(call("all_reduce"), shape=shape)), 1)
        wait = page.read().wait
        assert wait is not None
        assert wait.shape == read


def test_the_last_of_hundreds_of_ranks_is_missed(tmp_path: Path) -> None:
    """It has finished; all others wait for it, each as its page says."""
    page = StatePage(tmp_path / "page", create=True)
    page.set_call(pack_wait(replace(call("all_reduce"), members=tuple(range(512)))), 1)
    page.count_call(group_key("0"), 1)
    page.enter(WAITING)
    states = [page.read()] * 511 + [state("finished")]
    assert is_stuck(states)
    assert deadlock(states)[1] == "rank 0 waits in all_reduce, but rank 511 has finished"


def test_few_of_hundreds_are_told_one_by_one() -> None:
    waits = replace(call("all_reduce", 2), members=tuple(range(300)))
    states = [waiting(waits), *[waiting(replace(call("barrier"), members=tuple(range(300))))] * 299]
    rank, told, _ = deadlock(states)
    assert rank == 0
    assert told.startswith("rank 0 waits in all_reduce, but rank 1 waits in barrier; rank 2 waits in barrier")
    assert told.endswith("; and 291 more have not made the call")


def test_a_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    page = StatePage(tmp_path / "page", create=True)
    wait = replace(call("recv", 4, peer=1), sent=(1, 2), received=(3, 4))
    page.set_call(pack_wait(wait), 3)
    page.set_call(pack_wait(wait), 4)
    page.enter(WAITING)
    page.count_receive(message_key(group_key("0"), 1), 4)
    page.count_send(message_key(group_key("0"), 511), 9)
    page.count_call(group_key("0"), 5)
    page.set_progress(3, 10, "steps")
    read = StatePage(tmp_path / "page")
    found = read.read()
    assert (found.phase, found.wait) == ("waiting", wait)
    assert (found.receives, found.sends) == (on_world({1: 4}), on_world({511: 9}))
    assert found.calls == {group_key("0"): 5}
    assert read.progress() == (3.0, 10.0, "steps")
    assert msgspec.json.decode(msgspec.json.encode(found), type=State) == found
    before = read.events()
    page.enter(RUNNING)
    assert read.events() == before + 1


def failed(rank: int, when: float, waiting_in_call: bool, line: int = 3) -> RankFacts:
    end = {
        "rank": rank,
        "state": "failed",
        "time": when,
        "waiting": waiting_in_call,
        "type": "ValueError",
        "message": "no",
        "kind": "error",
        "frames": [{"file": "In[2]", "line": line, "function": "f", "source": ""}],
    }
    return RankFacts(rank, state("failed"), end, Exit(1, 0))


def test_the_rank_that_failed_outside_communication_is_the_cause() -> None:
    """Rank 0 noticed first, because its peer was gone; rank 1 is why."""
    diagnosis = diagnose("failed", [failed(0, 1.0, True), failed(1, 2.0, False)], TIMEOUT)
    assert (diagnosis.verdict, diagnosis.rank) == ("error", 1)
    assert [report.state for report in diagnosis.ranks] == ["waiting", "failed"]


def test_who_could_not_meet_the_others_is_not_the_cause_when_one_of_them_died() -> None:
    """Rank 1 met rank 0 and left at once, before rank 0 had met rank 1."""
    alone = failed(0, 1.0, False)
    assert alone.end is not None
    gone = RankFacts(1, state("running"), None, Exit(0, 0))
    diagnosis = diagnose("failed", [replace(alone, end=alone.end | {"joining": True}), gone], TIMEOUT)
    assert (diagnosis.verdict, diagnosis.rank) == ("error", 1)
    assert [report.state for report in diagnosis.ranks] == ["starting", "failed"]


def test_who_could_not_meet_the_others_is_heard_out(tmp_path: Path) -> None:
    """The rank that left may not be gone yet when the agent looks: it is waited for, as one in a call is."""
    ranks = Ranks(tmp_path, 2)
    reserve(end_path(tmp_path, 0))
    with subprocess.Popen(["sleep", "60"]) as alive:
        for joining in (False, True):
            end = {"state": "failed", "waiting": False, "joining": joining}
            write_reserved(end_path(tmp_path, 0), end)
            assert ranks.some_stopped_in_a_call([alive.pid, alive.pid]) == joining
        alive.kill()


def test_who_failed_without_a_word_is_named_before_it_has_left(tmp_path: Path) -> None:
    """Its page says that it failed; the code that ran left it nowhere to say why."""
    for rank, phase in enumerate((RUNNING, FAILED)):
        StatePage(state_path(tmp_path, rank), create=True).enter(phase)
    diagnosis = diagnose("failed", Ranks(tmp_path, 2).facts([None, None]), TIMEOUT)
    assert (diagnosis.verdict, diagnosis.rank) == ("error", 1)
    assert "could not write why" in diagnosis.summary


def test_the_same_error_everywhere_is_told_of_the_lowest_rank() -> None:
    assert diagnose("failed", [failed(0, 2.0, False), failed(1, 1.0, False)], TIMEOUT).rank == 0
    assert diagnose("failed", [failed(0, 2.0, False, line=9), failed(1, 1.0, False)], TIMEOUT).rank == 1


def test_a_kill_for_want_of_memory() -> None:
    killed = RankFacts(0, state("running"), None, Exit(0, 9, out_of_memory=True))
    facts = [killed, RankFacts(1, state("running"), None, None)]
    assert diagnose("failed", facts, TIMEOUT).verdict == "out_of_memory"


def test_who_printed_too_much_is_named() -> None:
    quiet = RankFacts(0, state("running"), None, None, printed=70)
    loud = RankFacts(1, state("running"), None, None, printed=300 << 20)
    diagnosis = diagnose("flood", [quiet, loud], TIMEOUT)
    assert (diagnosis.rank, diagnosis.summary) == (1, "rank 1 printed more than 256 MiB")


def test_facts_survive_their_file(tmp_path: Path) -> None:
    facts = RankFacts(1, waiting(call("send", peer=0), sends={0: 1}), None, Exit(0, 9), "stack")
    write_facts(tmp_path, [facts])
    assert read_facts(tmp_path, 2)[1] == facts


def test_the_users_frames_of_a_stack() -> None:
    stack = f'''Thread 0x1 (most recent call first):
  File "{os.__file__}", line 1 in other

Current thread 0x2 (most recent call first):
  File "{os.__file__}", line 5 in walk
  File "/tmp/ipykernel_1/2.py", line 7 in inner
  File "/tmp/ipykernel_1/2.py", line 9 in outer
'''
    assert [(frame.line, frame.function) for frame in stack_frames(stack)] == [(9, "outer"), (7, "inner")]


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


@pytest.mark.parametrize("room", [True, False])
def test_large_parts_of_a_message_arrive_where_there_is_no_room_too(tmp_path: Path, room: bool) -> None:
    parts = [b"a" * 5, b"", b"b" * 100]
    sent = parcel([PickleBuffer(part) for part in parts], tmp_path if room else tmp_path / "missing")
    assert bool(list(tmp_path.iterdir())) is room
    opened = sent.open()
    assert [bytes(part) for part in opened] == parts
    assert not any(memoryview(part).readonly for part in opened)
    sent.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_is_held_by_one_engine_at_a_time() -> None:
    name = f"test-{os.getpid()}"
    code = f"""
from labkit.launch.engine.gpu_lock import GpuLocks
locks = GpuLocks()
print(repr(locks.take([{name!r}])), flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload]
    assert other.stdout is not None
    assert other.stdout.readline() == "''\n"
    locks = gpu_lock.GpuLocks()
    taken = locks.take(["free", name])
    assert f"GPU {name} is in use by" in taken
    assert f"process {other.pid}" in taken
    other.communicate("\n")
    assert locks.take([name]) == ""
    assert locks.take([name]) == ""  # another job of the same notebook
    locks.give_back([name])
    assert name in locks._sockets
    locks.give_back([name])
    assert name not in locks._sockets


def test_a_gpu_that_many_have_asked_for_is_still_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "_ASKED", 4)
    locks, others, name = gpu_lock.GpuLocks(), gpu_lock.GpuLocks(), f"test-{os.getpid()}"
    assert locks.take([name]) == ""
    told = [others.take([name]) for _ in range(10)]
    locks.give_back([name])
    assert f"process {os.getpid()}" in told[0]
    assert told[-1] == f"GPU {name} is in use by another notebook"


def test_gpus_are_named_alike_for_all() -> None:
    assert gpu_lock.device_names([0, 1, 1], {"CUDA_VISIBLE_DEVICES": "2,3"}) == ["2", "3"]
    assert gpu_lock.device_names([1], {}) == ["1"]
    assert gpu_lock.device_names([], {}) == []


@pytest.mark.parametrize("said", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS"])
def test_jobs_that_count_their_gpus_from_0_do_not_meet(said: str) -> None:
    """Each of two jobs on a machine has the GPUs "0" and "1", and they are four."""
    one, two = ({"CUDA_VISIBLE_DEVICES": "0,1", said: of_job} for of_job in ("1,2", "4,6"))
    assert gpu_lock.device_names([0, 1], one) == ["1", "2"]
    assert gpu_lock.device_names([0, 1], two) == ["4", "6"]
    assert gpu_lock.device_names([0], {"CUDA_VISIBLE_DEVICES": "1", said: "4,6"}) == ["6"]


def test_a_job_that_counts_as_the_machine_does() -> None:
    told = {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
    assert gpu_lock.device_names([0, 1], told) == ["2", "3"]
    assert gpu_lock.device_names([0], {"CUDA_VISIBLE_DEVICES": "GPU-5968838c", "SLURM_JOB_GPUS": "2"}) == [
        "GPU-5968838c"
    ]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("0,1", 2), ("GPU-5968838c,MIG-1", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("0,all,1", 1)],
)
def test_gpus_are_counted_as_cuda_does(monkeypatch: pytest.MonkeyPatch, visible: str, gpus: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == gpus


def test_a_torch_without_cuda_takes_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: False)
    found = place(None, None)
    assert (found.backend, found.devices) == ("gloo", ())
    assert "2 GPUs there, and a torch without CUDA" in found.notes[0]
    with pytest.raises(ValueError, match="torch without CUDA"):
        place(2, "nccl")


def test_whether_torch_has_cuda_is_read_from_its_file() -> None:
    assert hosts.torch_has_cuda() == (torch.version.cuda is not None)


@pytest.mark.parametrize(("said", "threads"), [("", 1), ("3", 3), ("4,2", 4), ("0", 1)])
def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch, said: str, threads: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert place(2, "gloo").threads == threads


def test_threads_that_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="OMP_NUM_THREADS must be a number of threads, found 'many'"):
        place(2, "gloo")


def test_placing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    assert gpu_count() == 2
    assert place(None, None).ranks == 2
    assert place(2, None).backend == "nccl"
    shared = place(4, None)
    assert (shared.backend, shared.devices) == ("gloo", (0, 1, 0, 1))
    assert "4 ranks share 2 GPUs" in shared.notes[0]
    with pytest.raises(ValueError, match="one GPU a rank: 4 ranks, 2 GPUs"):
        place(4, "nccl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert place(None, None) == place(4, "gloo")


def test_a_parameter_comes_back_as_one(tmp_path: Path) -> None:
    """Also one that cannot travel as it is: here it shows a part of a larger storage."""
    layer = torch.nn.Linear(2, 2)
    layer.weight = torch.nn.Parameter(torch.arange(100.0)[:4].view(2, 2))
    results.write(layer, tmp_path / "result", 10**6)
    found = pickle.loads((tmp_path / "result").read_bytes())
    assert [type(parameter) for parameter in found.parameters()] == [torch.nn.Parameter] * 2
    assert torch.equal(found.weight, layer.weight)
    assert found.weight.untyped_storage().nbytes() == 4 * 4


def test_ranks_that_want_no_gpus_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    both, neither = (Here().plan(Wanted(2, gpus=gpus))[0] for gpus in (True, False))
    assert (both.backend, both.devices) == ("nccl", [0, 1])
    assert (neither.backend, neither.devices) == ("gloo", [])
    assert neither.env == {"CUDA_VISIBLE_DEVICES": ""}


def test_gpus_are_counted_where_a_container_shows_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_count(tmp_path) == 0
    listed = tmp_path / "proc/driver/nvidia/gpus"
    for number in range(8):
        (listed / f"0000:0{number}:00.0").mkdir(parents=True)
    assert gpu_count(tmp_path) == 8
    (tmp_path / "dev").mkdir()
    for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    assert gpu_count(tmp_path) == 1


def test_ending_processes_that_do_not_want_to() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    code += "; time.sleep(100)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    began = time.monotonic()
    processes.end([child.pid], grace=0.2)
    assert 0.2 <= time.monotonic() - began < 2
    assert not processes.is_alive(child.pid)
    child.communicate()
