"""What the network carried against what was recorded: honest runs differ a little, a forged one by more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from autograder.grade.evidence import (
    Baseline,
    Call,
    JobEvidence,
    job_evidence,
    least_bytes,
    most_bytes,
)
from autograder.sandbox.usage import Traffic
from labkit.checks.case import Case
from labkit.checks.files import RunRequest
from labkit.checks.source.submission import Submission

# 00.find-the-deadlock on two ranks: three runs of the reference, as measured. Its large messages fill the
# receiver's buffer now and then, and TCP sends a dozen segments once more.
QUIET = JobEvidence("00.find-the-deadlock", 2, ("a case",), 34, 4_800_528, 400_000, 0, 4_825_788, 0)
RESENT = replace(QUIET, wire=5_426_925, resent=15)
SMALL = JobEvidence("06.copy-to-tensor-parallel", 2, ("a case",), 4, 4_096, 1_024, 0, 40_000, 0)
# 11.ring-attention on two ranks of a machine that was busy with much else: three messages once more, one time
# two full segments. Its large messages are in forward passes that nobody judges.
RING = JobEvidence("11.ring-attention", 2, ("a case",), 32, 16_384, 32_768, 0, 703_066, 0)


def flags(job: JobEvidence, usual: JobEvidence) -> list[str]:
    return [flag.why for flag in Baseline.of([usual]).flags([job])]


@pytest.mark.parametrize(("job", "usual"), [(QUIET, RESENT), (RESENT, QUIET), (RESENT, RESENT)])
def test_what_tcp_sends_again_contradicts_nobody(job: JobEvidence, usual: JobEvidence) -> None:
    assert flags(job, usual) == []


def test_bytes_that_nothing_explains_do() -> None:
    assert "the network carried" in flags(replace(QUIET, wire=RESENT.wire), QUIET)[0]
    assert "the network carried" in flags(replace(QUIET, wire=4_100_000), QUIET)[0]


def test_a_few_segments_of_small_calls_explain_little() -> None:
    assert flags(replace(SMALL, wire=48_000, resent=3), SMALL) == []
    assert flags(replace(SMALL, wire=60_000, resent=3), SMALL)


def test_a_segment_that_is_sent_again_has_the_messages_that_queued() -> None:
    assert flags(replace(RING, wire=801_358, resent=3), RING) == []
    assert flags(replace(RING, wire=834_576, resent=2), RING) == []
    assert flags(replace(RING, wire=801_358, resent=0), RING)


def test_the_largest_message_may_be_one_that_nobody_judges(tmp_path: Path) -> None:
    calls = [Call("send", 32_768, (0, 1), "python", peer=1), Call("send", 512, (0, 1), "python", peer=1)]
    (tmp_path / "rank0.records.json").write_bytes(msgspec.json.encode({"collectives": calls}))
    request = RunRequest("11.ring-attention", [], Submission([]), Submission([]), ranks=1, timeout=1.0)
    assert job_evidence(request, tmp_path, tmp_path, None, None).largest == 32_768


def test_nor_do_very_many_segments() -> None:
    assert flags(replace(QUIET, wire=2 * QUIET.wire, resent=1_000_000), QUIET)


def test_a_baseline_survives_its_file() -> None:
    again = msgspec.json.decode(msgspec.json.encode(Baseline.of([QUIET, RESENT, SMALL])), type=Baseline)
    assert again == Baseline.of([QUIET, RESENT, SMALL])


def test_the_kernels_counters_are_read() -> None:
    devices = "Inter-|   Receive\n face |bytes    packets\n    lo: 1200 7 0 0 0 0 0 0 1200 7 0 0 0 0 0 0\n"
    protocols = (
        "Ip: Forwarding\nIp: 1\nTcp: ActiveOpens RetransSegs InErrs\nTcp: 4 2 0\nUdp: InDatagrams\nUdp: 1\n"
    )
    assert Traffic.of(devices, protocols) - Traffic(200, 3, 1) == Traffic(1000, 4, 1)


# The reference and others on four ranks: an all-reduce of 30 kB on each, and 2 kB beside it.
REDUCED = JobEvidence(
    "06.row-parallel-linear",
    4,
    ("a case",),
    4,
    120_000,
    30_000,
    0,
    186_000,
    0,
    least=180_000,
    most=364_000,
    pairs=((0, 46_500, 0, 0), (0, 0, 46_500, 0), (0, 0, 0, 46_500), (46_500, 0, 0, 0)),
)
OTHER = replace(REDUCED, calls=8, num_bytes=240_000, least=360_000, most=720_000, wire=366_000)


def test_another_record_is_held_against_the_network_too() -> None:
    """More than was carried, or much less, than its calls can have put there."""
    assert flags(OTHER, REDUCED) == []
    assert "on the network, but it carried 186000" in flags(replace(OTHER, wire=186_000), REDUCED)[0]
    assert "but it carried 2000000" in flags(replace(OTHER, wire=2_000_000), REDUCED)[0]


def test_as_many_calls_and_bytes_of_other_kinds_are_another_record() -> None:
    """As a loss that is gathered and added up where the reference all-reduces it."""
    usual = replace(REDUCED, kinds=(("all_reduce", 30_000, 4),))
    gathered = replace(usual, kinds=(("all_gather", 30_000, 4),), least=360_000, most=364_000, wire=366_000)
    assert flags(gathered, usual) == []
    assert "but it carried 186000" in flags(replace(gathered, wire=186_000), usual)[0]
    assert "the network carried" in flags(replace(gathered, kinds=usual.kinds), usual)[0]


@pytest.mark.parametrize(
    ("ranks", "usual", "more", "wire"), [(2, 15_079, 8, 27_104), (3, 109_107, 42, 214_611)]
)
def test_many_small_sums_are_mostly_headers(ranks: int, usual: int, more: int, wire: int) -> None:
    """As measured of 10.slow-program-3: one answer sums once a bucket, another once a parameter."""
    call = Call("all_reduce", 16, tuple(range(ranks)), "python")
    one = replace(QUIET, ranks=ranks, calls=ranks, wire=usual, least=0.0, most=ranks * most_bytes(call))
    many = replace(one, calls=ranks + more, wire=wire, most=one.most + more * most_bytes(call))
    assert flags(many, one) == []
    assert flags(replace(many, wire=2 * wire), one)


def test_calls_that_no_judge_asks_about_count_too() -> None:
    """As in a constructor, where the reference makes none: what is judged is the same."""
    usual = replace(REDUCED, recorded=(4, 120_000))
    more = replace(OTHER, calls=usual.calls, num_bytes=usual.num_bytes, recorded=(8, 240_000))
    assert flags(more, usual) == []
    fewer_and_larger = replace(more, recorded=(2, 240_000))
    assert flags(fewer_and_larger, usual) == []
    assert "but the network carried" in flags(replace(more, recorded=usual.recorded), usual)[0]


def test_a_record_that_is_longer_excuses_no_bytes_that_are_missing() -> None:
    """Who writes calls into both the answers and the record must still have sent what the reference sends."""
    for recorded in ((4, 120_000), (2, 60_000), (400, 120_000)):
        forged = replace(SMALL, recorded=recorded, wire=30_000, least=2_048, most=8_192)
        assert "but the network carried" in flags(forged, replace(SMALL, recorded=(4, 120_000)))[0]


def test_where_no_call_is_judged_fewer_and_larger_ones_are_as_good() -> None:
    """As gradients in one tensor: less goes beside them. The job's own record must still fit its bytes."""
    usual = replace(REDUCED, calls=0, num_bytes=0, largest=0, recorded=(40, 120_000))
    fewer = replace(usual, recorded=(4, 120_000), least=120_000.0, most=130_000.0, wire=140_000, pairs=())
    assert flags(fewer, usual) == []
    assert "but it carried" in flags(replace(fewer, wire=60_000), usual)[0]


def test_more_groups_explain_more_bytes_up_to_a_point() -> None:
    usual = replace(REDUCED, calls=0, num_bytes=0, largest=0, least=0.0, most=0.0, pairs=(), groups=20)
    assert flags(replace(usual, groups=40, wire=2 * usual.wire), usual) == []
    assert flags(replace(usual, wire=2 * usual.wire), usual)
    assert flags(replace(usual, groups=4000, wire=6 * usual.wire), usual)


def test_a_call_that_is_noted_late_went_past_nobody(tmp_path: Path) -> None:
    """gloo makes all-reduces of a reduce-scatter, and the flight recorder may note them after it is over."""
    seen = [Call("reduce_scatter", 800, (0, 1), "python"), Call("all_reduce", 8, (0, 1), "python")]
    late = [Call("all_reduce", 800, (0, 1), "native"), Call("all_reduce", 8, (0, 1), "native")]
    past = [Call("all_reduce", 8, (0, 1), "native"), Call("broadcast", 8, (0, 1), "native")]
    for rank, calls in enumerate(([*seen, *late], [*seen, *late, *past])):
        data = msgspec.json.encode({"collectives": calls, "made_groups": 3})
        (tmp_path / f"rank{rank}.records.json").write_bytes(data)
    request = RunRequest("10.make-it-fast", [], Submission([]), Submission([]), ranks=2, timeout=1.0)
    found = job_evidence(request, tmp_path, tmp_path, None, None)
    assert (found.native, found.recorded, found.groups) == (2, (4, 1616), 6)


def test_cases_that_the_reference_never_ran_together_are_compared_too() -> None:
    """As in a job that is run again without the case that ended it."""
    again = replace(REDUCED, cases=("a case", "another"))
    assert flags(again, REDUCED) == []
    assert "but it carried 6000" in flags(replace(again, wire=6_000), REDUCED)[0]
    assert flags(again, replace(REDUCED, exercise="another exercise", wire=0)) == []


def test_a_record_that_is_not_there_is_a_flag() -> None:
    assert flags(replace(REDUCED, missing=(2,)), REDUCED) == ["on 4 ranks, no record was left by rank 2"]


def test_the_same_bytes_between_other_ranks_are_a_flag() -> None:
    """All through rank 0, as a sum by way of the store is."""
    star = ((0, 31_000, 31_000, 31_000), (31_000, 0, 0, 0), (31_000, 0, 0, 0), (31_000, 0, 0, 0))
    assert "exchanged" in flags(replace(REDUCED, pairs=star), REDUCED)[0]


def test_a_message_must_have_gone_from_its_sender_to_its_receiver() -> None:
    sent = replace(OTHER, messages=((0, 1, 40_000),))
    assert flags(sent, REDUCED) == []
    assert "went that way" in flags(replace(sent, messages=((0, 2, 40_000),)), REDUCED)[0]


def test_an_all_to_all_sends_what_its_parts_say(tmp_path: Path) -> None:
    """Rank 1 keeps 700 of 1000 bytes: whatever is claimed, 300 leave it, straight to ranks 0 and 2."""
    call = Call("all_to_all", 1000, (0, 1, 2), "python", rank=1, sent=(100, 700, 200))
    assert least_bytes(call) == 300
    assert 300 <= most_bytes(call) < 300 + 16 * 100
    assert least_bytes(msgspec.structs.replace(call, sent=())) == pytest.approx(2 / 3 * 1000)
    assert least_bytes(msgspec.structs.replace(call, sent=(-100, 700, 200))) == 200
    (tmp_path / "rank1.records.json").write_bytes(msgspec.json.encode({"collectives": [call]}))
    request = RunRequest("12.all-to-all", [], Submission([]), Submission([]), ranks=3, timeout=1.0)
    found = job_evidence(request, tmp_path, tmp_path, None, None)
    assert found.messages == ((1, 0, 100), (1, 2, 200))
    assert found.missing == (0, 2)


def test_a_reduce_scatter_of_a_list_is_another_record() -> None:
    """It has as many bytes in the record as that of one tensor, and twice as many on the network."""
    call = Call("reduce_scatter", 12_000, (0, 1, 2), "python", rank=0, shape=(3000,))
    in_rows, of_a_list = (msgspec.structs.replace(call, shape=shape) for shape in ((3, 1000), (1000,)))
    assert call.kind == in_rows.kind != of_a_list.kind
    forged = msgspec.structs.replace(call, shape=(2**40,) * 1000)
    assert len(forged.kind[0]) < 1000


@pytest.mark.parametrize(
    ("op", "ranks", "least"),
    [
        ("all_reduce", 4, 1500),
        ("all_gather", 4, 3000),
        ("reduce_scatter", 4, 750),
        ("send", 2, 1000),
        ("recv", 2, 0),
    ],
)
def test_what_a_call_sends_at_the_least(op: str, ranks: int, least: float) -> None:
    """Of 1000 bytes on each rank; Thakur, Rabenseifner and Gropp 2005 give these for the ring."""
    call = Call(op, 1000, tuple(range(ranks)), "python", 1)
    assert least_bytes(call) == least
    assert most_bytes(call) >= least


def answered(folder: Path, num_bytes: str, facts: str = "{}", groups: str = "0") -> JobEvidence:
    """Evidence of a job on one rank that tells of one call."""
    call = f'{{"op": "send", "num_bytes": {num_bytes}, "group": [0, 1], "source": "python", "peer": 1}}'
    text = f'{{"facts": {facts}, "collectives": {{"forward": [{call}]}}}}'
    (folder / "case0.rank0.json").write_text(text)
    records = f'{{"collectives": [{call}], "made_groups": {groups}}}'
    (folder / "rank0.records.json").write_text(records)
    case = Case("a case", 1)
    request = RunRequest("12.all-to-all", [case], Submission([]), Submission([]), ranks=1, timeout=1.0)
    return job_evidence(request, folder, folder, None, None)


def test_a_call_of_more_bytes_than_can_be_is_no_record(tmp_path: Path) -> None:
    for told in ({"num_bytes": "1" + "0" * 400}, {"num_bytes": "1", "groups": "1" + "0" * 400}):
        assert answered(tmp_path, **told).missing == (0,)


def test_a_fact_that_is_no_number_hides_no_call(tmp_path: Path) -> None:
    found = answered(tmp_path, "100", '{"loss": NaN}')
    assert (found.calls, found.num_bytes, found.missing) == (1, 100, ())
