"""What the network carried against what was recorded: honest runs differ a little, a forged one by more."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from autograder.grade.evidence import Baseline, JobEvidence
from autograder.sandbox.usage import Traffic

# 00.find-the-deadlock on two ranks: three runs of the reference, as measured. Its large messages fill the
# receiver's buffer now and then, and TCP sends a dozen segments once more.
QUIET = JobEvidence("00.find-the-deadlock", 2, ("a case",), 34, 4_800_528, 400_000, 0, 4_825_788, 0)
RESENT = replace(QUIET, wire=5_426_925, resent=15)
SMALL = JobEvidence("06.copy-to-tensor-parallel", 2, ("a case",), 4, 4_096, 1_024, 0, 40_000, 0)


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
