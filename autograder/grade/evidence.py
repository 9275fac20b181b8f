"""Compares what the ranks say they have sent with what the kernel counted on their cables.

The record is made in the process in which the student's code runs, and proves nothing by itself. The counts
are the kernel's, taken where no rank reaches them. So each job's record is held against them: the calls it
tells of must have been carried, and nothing much beside them. A record that is missing, that tells of more
than was carried, or of less, costs the points that rest on it until a person has looked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from autograder.grade.scan import Flag
from autograder.sandbox.usage import Traffic
from autograder.sandbox.within.mesh import Counted
from autograder.sandbox.within.salvage import tail
from labkit.checks.files import RunRequest
from labkit.record.exchange import leaving_bytes

TOLERANCE = 0.12  # two runs of the same code differ by 2%: acknowledgements, polling of the store
SLACK = 1500  # bytes, on all cables together
HEADERS = 66  # bytes of a segment beside its data
# Headers that an all-reduce sends for each other rank, however small it is: four messages around the ring,
# each of which is announced, asked for and acknowledged. Measured: 5.5 a message with 2 ranks, 4.7 with 5.
IN_SEGMENTS = 24
SEGMENT = 65483  # bytes of data, the most that TCP sends at once on a loopback
IN_A_SEGMENT = 4  # of the largest messages, where they queue: a ring's keys and values, and their gradients
MOST_RESENT = 0.5  # of the reference's bytes: what is sent again explains no more than that
MOST_GROUPS = 4.0  # times the reference's: groups beyond that explain no more bytes
LARGEST_RECORDS = 8 * 2**20
MOST_DIMENSIONS = 64  # torch's own limit
# No call of ours has more bytes, and sums of such numbers stay numbers that can be calculated with.
Size = Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**20)]


class Call(msgspec.Struct):
    """One call in a record, as far as it matters here. Anything else in the file is passed over unread."""

    op: str
    num_bytes: Size
    group: tuple[int, ...]
    source: str
    peer: int | None = None
    rank: int = -1
    sent: tuple[Size, ...] = ()
    shape: tuple[Size, ...] = ()

    @property
    def kind(self) -> tuple[str, int]:
        """The operation and its bytes. A reduce-scatter of a list is another kind than that of one tensor:
        gloo makes it from all-reduces, with twice the traffic.
        """
        if self.op == "reduce_scatter":
            return f"{self.op} of tensors of {math.prod(self.shape[:MOST_DIMENSIONS])}", self.num_bytes
        return self.op, self.num_bytes

    @property
    def leaving(self) -> int:
        """Of an all-to-all that says what it sends to whom: the bytes that leave the rank."""
        return leaving_bytes(self.rank, self.group, [max(0, size) for size in self.sent])


class _Records(msgspec.Struct):
    collectives: list[Call]
    made_groups: Count = 0


class _Answer(msgspec.Struct):
    collectives: dict[str, list[Call]]


@dataclass(frozen=True)
class JobEvidence:
    """One job that ran to its end.

    calls, num_bytes: of what the judge goes by, in all ranks; kinds: (operation, bytes, how many) of the
    same; native: calls the hooks did not see; recorded: calls and bytes of all that Python called, wherever
    in a case; largest: bytes of the largest of these, as TCP sends any again; groups: how many were made,
    counted on each rank; least, most: bytes that such calls can have put on the network; wire: bytes that
    were on it; resent: segments sent again, as happens on a loopback too when a receiver is full; pairs:
    bytes from rank to rank, empty where that is not counted; missing: ranks whose record is not there or
    cannot be read.
    """

    exercise: str
    ranks: int
    cases: tuple[str, ...]
    calls: int
    num_bytes: int
    largest: int
    native: int
    wire: int
    resent: int
    least: float = 0.0
    most: float = 0.0
    pairs: tuple[tuple[int, ...], ...] = ()
    missing: tuple[int, ...] = ()
    messages: tuple[
        tuple[int, int, int], ...
    ] = ()  # (from, to, bytes) of what goes straight from rank to rank
    recorded: tuple[int, int] = (0, 0)
    groups: int = 0
    kinds: tuple[tuple[str, int, int], ...] = ()

    def records_more(self, usual: JobEvidence) -> bool:
        """Whether its ranks say they sent as many bytes as those of `usual`, in other calls or in more."""
        differ = (self.recorded, self.groups) != (usual.recorded, usual.groups)
        return differ and self.recorded[1] >= usual.recorded[1]

    @property
    def key(self) -> str:
        """What tells this kind of job from others: exercise, ranks and names of cases."""
        return json.dumps([self.exercise, self.ranks, self.cases])


@dataclass
class Baseline:
    """What the reference's jobs sent, by job."""

    jobs: dict[str, JobEvidence] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Sequence[JobEvidence]) -> Baseline:
        """What these jobs of the reference show, by kind of job."""
        return cls({job.key: job for job in jobs})

    def flags(self, jobs: Sequence[JobEvidence]) -> list[Flag]:
        """What disagrees, or is not there, for a person to look at."""
        return [flag for job in jobs for flag in self._about(job)]

    def _about(self, job: JobEvidence) -> list[Flag]:
        where = f"on {job.ranks} ranks"
        if job.missing:
            return [Flag(f"{where}, no record was left by rank {', '.join(map(str, job.missing))}")]
        usual = self.jobs.get(job.key)
        if usual is not None:
            return list(_disagreements(job, usual, where))
        return list(_beyond(job, self._beside_calls(job), where))

    def _beside_calls(self, job: JobEvidence) -> float:
        """Bytes that these cases put on the network beside their calls, in the reference's jobs."""
        of_a_case = {
            case: max(0.0, usual.wire - usual.least) / len(usual.cases)
            for usual in self.jobs.values()
            if (usual.exercise, usual.ranks) == (job.exercise, job.ranks)
            for case in usual.cases
        }
        most = max(of_a_case.values(), default=0.0)
        return most + sum(of_a_case.get(case, most) for case in job.cases)


def _disagreements(job: JobEvidence, usual: JobEvidence, where: str) -> Iterable[Flag]:
    """What a job with the reference's cases shows that the reference's did not."""
    if job.native > usual.native:
        yield Flag(f"{job.native} calls {where} went past the recorder (the reference: {usual.native})")
    claims, usual_claims = ((j.calls, j.num_bytes, j.kinds) for j in (job, usual))
    if claims != usual_claims or not usual.calls:
        # Other calls put other bytes on the network, as many as they may be. And where nothing is judged by
        # the record, one may communicate in other calls than the reference does.
        yield from _beyond(job, _beside(job, usual), where)
    elif _apart(job, usual) > TOLERANCE * usual.wire + SLACK:
        yield Flag(
            f"{where}, {job.calls} calls were recorded as in the reference, but the network carried "
            f"{job.wire} bytes where the reference's carried {usual.wire}"
        )
    elif told := _other_pairs(job, usual):
        yield Flag(f"{where}, {job.calls} calls were recorded as in the reference, but {told}")
    elif job.records_more(usual):
        yield from _beyond(job, _beside(job, usual), where)


def _beside(job: JobEvidence, usual: JobEvidence) -> float:
    """Bytes that are no calls', such as the ranks' meeting: the reference's, and more for more groups."""
    times = job.groups / usual.groups if usual.groups else 1.0
    return max(0.0, usual.wire - usual.least) * min(max(1.0, times), MOST_GROUPS)


def _beyond(job: JobEvidence, beside: float, where: str) -> Iterable[Flag]:
    """Where the bytes on the network cannot be those of the recorded calls. beside: bytes of everything else,
    such as the ranks' meeting.
    """
    again = job.resent * (SEGMENT + HEADERS)
    lowest = (1 - TOLERANCE) * job.least - SLACK
    highest = (1 + TOLERANCE) * (job.most + beside) + min(again, MOST_RESENT * job.most) + SLACK
    if not lowest <= job.wire <= highest:
        yield Flag(
            f"{where}, {job.calls} calls were recorded, which put {job.least:.0f} to "
            f"{job.most + beside:.0f} bytes on the network, but it carried {job.wire}"
        )
    for sender, receiver, num_bytes in job.messages if job.pairs else ():
        if job.pairs[sender][receiver] < (1 - TOLERANCE) * num_bytes:
            yield Flag(
                f"{where}, messages of {num_bytes} bytes from rank {sender} to {receiver} were recorded, "
                f"but {job.pairs[sender][receiver]} went that way"
            )


def _apart(job: JobEvidence, usual: JobEvidence) -> float:
    """Bytes by which two jobs' traffic differs, whatever it was that TCP sent again; of one that records more
    than the usual one, bytes that it lacks.
    """
    if job.records_more(usual):
        return usual.wire - job.wire
    more, less = (job, usual) if job.wire > usual.wire else (usual, job)
    again = more.resent * (min(SEGMENT, IN_A_SEGMENT * usual.largest) + HEADERS)
    return more.wire - min(again, MOST_RESENT * usual.wire) - less.wire


def _other_pairs(job: JobEvidence, usual: JobEvidence) -> str:
    """A pair of ranks that exchanged another part of the traffic than in the reference; empty when none."""
    if not job.pairs or not usual.pairs or job.resent or usual.resent:
        return ""
    for one in range(job.ranks):
        for other in range(one):
            seen, told = (j.pairs[one][other] + j.pairs[other][one] for j in (job, usual))
            apart = told - seen if job.records_more(usual) else abs(seen - told)
            if apart > 2 * TOLERANCE * told + SLACK:
                return (
                    f"ranks {other} and {one} exchanged {seen} bytes where the reference's exchanged {told}"
                )
    return ""


def job_evidence(
    request: RunRequest, answers: Path, job: Path, counted: Counted | None, traffic: Traffic | None
) -> JobEvidence:
    """Evidence of a job. answers: the grader's own copy of what the ranks wrote; job: the job's folder,
    theirs. counted: what their cables carried; traffic: of the sandbox as a whole, where they have none.
    """
    of_ranks = {
        rank: [_claimed(answers, case, rank) for case in range(len(request.cases))]
        for rank in range(request.ranks)
    }
    claimed = [call for cases in of_ranks.values() for calls in cases for call in calls or ()]
    records = {rank: _recorded(job, rank) for rank in range(request.ranks)}
    recorded = {rank: found.collectives if found else None for rank, found in records.items()}
    everything = [call for calls in recorded.values() for call in calls or ()]
    from_python = [call for call in everything if call.source == "python"]
    return JobEvidence(
        exercise=request.exercise,
        ranks=request.ranks,
        cases=tuple(case.name for case in request.cases),
        calls=len(claimed),
        num_bytes=sum(call.num_bytes for call in claimed),
        largest=max((call.num_bytes for call in [*claimed, *from_python]), default=0),
        native=sum(_past_the_hooks(calls or ()) for calls in recorded.values()),
        wire=sum(map(sum, counted.sent)) if counted else traffic.bytes if traffic else 0,
        resent=counted.resent if counted else traffic.resent if traffic else 0,
        least=max(sum(map(least_bytes, calls)) for calls in (everything, claimed)),
        most=sum(map(most_bytes, everything)),
        pairs=tuple(map(tuple, counted.sent)) if counted else (),
        missing=tuple(r for r, calls in recorded.items() if calls is None or None in of_ranks[r]),
        messages=_messages(recorded),
        recorded=(len(from_python), sum(call.num_bytes for call in from_python)),
        groups=sum(found.made_groups for found in records.values() if found),
        kinds=_kinds(claimed),
    )


def _kinds(calls: Iterable[Call]) -> tuple[tuple[str, int, int], ...]:
    found = Counter(call.kind for call in calls)
    return tuple((op, num_bytes, times) for (op, num_bytes), times in sorted(found.items()))


def _past_the_hooks(calls: Sequence[Call]) -> int:
    """Of a rank's calls, those that C++ started. On a busy machine torch's flight recorder may note a call so
    late that it seems to be one of them: `labkit.checks.shared.beside.calls_of` passes over the same twins.
    """
    seen = Counter((call.op, call.num_bytes) for call in calls if call.source == "python")
    seen += Counter({("all_reduce", size): n for (op, size), n in seen.items() if op == "reduce_scatter"})
    return (Counter((call.op, call.num_bytes) for call in calls if call.source == "native") - seen).total()


def least_bytes(call: Call) -> float:
    """What a rank must send at the least for a call: the optimal algorithm's part of each rank."""
    size, others = max(0, call.num_bytes), max(0, len(call.group) - 1)
    part = others / (others + 1)
    if call.op == "all_to_all" and call.sent:
        return call.leaving
    match call.op:
        case "all_reduce":
            return 2 * part * size
        case "all_gather":
            return others * size
        case "reduce_scatter" | "all_to_all" | "broadcast" | "reduce" | "gather":
            return part * size
        case "send":
            return size
    return 0.0


def most_bytes(call: Call) -> float:
    """What a rank sends at the most, with the algorithms that gloo has: a reduce-scatter may be a whole
    all-reduce, and trees send what they have to each of the others.
    """
    size, others = max(0, call.num_bytes), max(0, len(call.group) - 1)
    if call.op == "all_to_all" and call.sent:
        return call.leaving + 8 * HEADERS * max(1, others)
    match call.op:
        case "recv":
            return 0.0
        case "send":
            return size + 3 * HEADERS  # announced, sent and acknowledged
    headers = IN_SEGMENTS if call.op in ("all_reduce", "reduce_scatter") else 8
    return max(2.0, others) * size + headers * HEADERS * max(1, others)


def _messages(recorded: dict[int, list[Call] | None]) -> tuple[tuple[int, int, int], ...]:
    found: Counter[tuple[int, int]] = Counter()
    for rank, calls in recorded.items():
        for peer, num_bytes in (way for call in calls or () for way in _straight(call)):
            if peer != rank and 0 <= peer < len(recorded):
                found[rank, peer] += max(0, num_bytes)
    return tuple((*pair, num_bytes) for pair, num_bytes in sorted(found.items()))


def _straight(call: Call) -> list[tuple[int, int]]:
    """(to, bytes) of what a rank sends straight to another: a message, or a part of an all-to-all."""
    if call.op == "send" and call.peer is not None:
        return [(call.peer, call.num_bytes)]
    return list(zip(call.group, call.sent, strict=False)) if call.op == "all_to_all" else []


def _claimed(answers: Path, case: int, rank: int) -> list[Call] | None:
    """The calls in a rank's answer to a case, what the judge goes by: none where there is no answer, None
    where they are no record.
    """
    try:
        data = json.loads((answers / f"case{case}.rank{rank}.json").read_bytes())  # facts may be NaN
        windows = msgspec.convert(data, type=_Answer).collectives
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError):
        return None
    return [call for window in windows.values() for call in window]


def _recorded(job: Path, rank: int) -> _Records | None:
    """All that a rank recorded in the job; None where there is no such record."""
    try:
        text = tail(job, f"rank{rank}.records.json", LARGEST_RECORDS)
        return msgspec.json.decode(text, type=_Records)
    except (ValueError, RecursionError):
        return None
