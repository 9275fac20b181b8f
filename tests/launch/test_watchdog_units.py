"""The parts of the launcher that need no ranks: who is stuck, what is said of it, what is left of a job."""

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

from labkit import processes
from labkit.launch.engine.facts import read_facts, write_facts
from labkit.launch.engine.ranks import Ranks
from labkit.launch.failure.deadlock import find_mismatch, is_stuck
from labkit.launch.failure.diagnose import Exit, RankFacts, diagnose, stack_frames
from labkit.launch.failure.words import deadlock, mismatch, ranks
from labkit.launch.handover import results
from labkit.launch.handover.parcels import parcel
from labkit.launch.handover.request import end_path, state_path
from labkit.launch.handover.reserved import read_reserved, reserve, write_reserved
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


@pytest.mark.parametrize("room", [64, 8])
def test_what_there_is_no_room_for_is_cut(tmp_path: Path, room: int) -> None:
    """A limit on a file's size, in KiB, stands for a full disk: so much could be written."""
    code = f"""
import resource, signal, sys
from pathlib import Path
from labkit.launch.handover.reserved import write_reserved
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room << 10}, {room << 10}))
about = {{"verdict": "infrastructure", "rank": 3, "errors": [["caused by", "\u00e4" * 8000]] * 200}}
write_reserved(Path(sys.argv[1]), about)
"""
    file = tmp_path / "file"
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=60)
    told = read_reserved(file)
    assert told is not None
    assert (told["verdict"], told["rank"]) == ("infrastructure", 3)
    assert told["errors"][0][0] == "caused by"
    assert 0 < len(told["errors"][0][1]) < 8000
    assert file.stat().st_size <= room << 10


def test_what_there_is_room_for_is_written_whole(tmp_path: Path) -> None:
    about = {"errors": ["a" * 8000] * 200}
    write_reserved(tmp_path / "file", about)
    assert read_reserved(tmp_path / "file") == about


def test_the_users_frames_of_a_stack() -> None:
    stack = f'''Thread 0x1 (most recent call first):
  File "{os.__file__}", line 1 in other

Current thread 0x2 (most recent call first):
  File "{os.__file__}", line 5 in walk
  File "/tmp/ipykernel_1/2.py", line 7 in inner
  File "/tmp/ipykernel_1/2.py", line 9 in outer
'''
    assert [(frame.line, frame.function) for frame in stack_frames(stack)] == [(9, "outer"), (7, "inner")]


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


def test_a_parameter_comes_back_as_one(tmp_path: Path) -> None:
    """Also one that cannot travel as it is: here it shows a part of a larger storage."""
    layer = torch.nn.Linear(2, 2)
    layer.weight = torch.nn.Parameter(torch.arange(100.0)[:4].view(2, 2))
    results.write(layer, tmp_path / "result", 10**6)
    found = pickle.loads((tmp_path / "result").read_bytes())
    assert [type(parameter) for parameter in found.parameters()] == [torch.nn.Parameter] * 2
    assert torch.equal(found.weight, layer.weight)
    assert found.weight.untyped_storage().nbytes() == 4 * 4


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
