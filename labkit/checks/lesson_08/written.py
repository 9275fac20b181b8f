"""What saving in shards leaves on the disk, and what ranks tell each other meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from labkit.checks.case import JSON
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.disk import header_of_safetensors
from labkit.checks.lesson_08.saved import owned_by, saves
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, nbytes

SMALL = 4096  # bytes of a file that are looked at
AGREEMENTS = 2**15  # bytes, for names, counts and tries; a rank's share of what is saved is far more


def tell_files(rank: Rank, disk: Path) -> None:
    """Fact: files, of all that this rank wrote below `disk`."""
    rank.fact("files", [_described(p, disk) for p in sorted(disk.rglob("*")) if p.is_file()])


def _described(path: Path, folder: Path) -> JSON:
    """Where below `folder`, bytes, kind, and bytes without the header of safetensors."""
    with path.open("rb") as file:
        head = file.read(SMALL)
    header, size = header_of_safetensors(path), path.stat().st_size
    kind = "safetensors" if header is not None else "text" if _is_text(head) else "other"
    return [str(path.relative_to(folder)), size, kind, size - (header or 0)]


def _is_text(head: bytes) -> bool:
    """JSON or a word or two; pickles and numbers have bytes below 32."""
    return all(byte >= 32 or byte in b"\t\r\n" for byte in head)


def parts_only(evidence: Evidence) -> Iterator[Finding]:
    """Each rank has written its own part; the files together hold the tensors and nothing more, none is
    larger than a rank's share, and none is written by two ranks.
    """
    case = evidence.case
    whole = sum(flat.numel() * flat.element_size() for flat in evidence.inputs.values())
    share = whole / case.ranks / len(saves(case))  # every save is of as much, and stays
    files = {tuple(f) for answer in evidence.answers for f in answer.facts["files"]}
    tensors = [f for f in files if f[2] == "safetensors"]
    times = Counter(f[0] for answer in evidence.answers for f in answer.facts["files"])
    twice = sorted(name for name, count in times.items() if count > 1)
    yield Finding(not twice, "no file that two ranks write", ", ".join(twice))
    yield from _little_beside(evidence)
    for answer in evidence.answers:
        own = sum(nbytes(owned_by(flat, answer.rank, case.ranks)) for flat in evidence.inputs.values())
        written = sum(content for _, _, kind, content in answer.facts["files"] if kind == "safetensors")
        told = f"{own:,} bytes of tensors, its own part"
        yield Finding(written == own, told, f"{written:,} written by this rank", answer.rank)
    total = sum(content for *_, content in tensors)
    told = f"{whole:,} bytes of tensors on disk, no padding"
    yield Finding(total == whole, told, f"{total:,} in {len(tensors)} files")
    largest = max((size for _, size, *_ in tensors), default=0)
    told = f"no file above a rank's share, {share:,.0f} bytes and a header"
    yield Finding(largest <= share + 2048, told, f"{largest:,}")


def no_more_than_parts(evidence: Evidence) -> Iterator[Finding]:
    """Also of little, and where fewer ranks save: none writes more than its own parts of all saves."""
    yield from _little_beside(evidence)
    for answer in evidence.answers:
        own = sum(
            nbytes(owned_by(flat, answer.rank - save.first, save.ranks))
            for save in saves(evidence.case)
            for flat in save.tensors(evidence.inputs).values()
            if answer.rank in save.members
        )
        written = sum(content for _, _, kind, content in answer.facts["files"] if kind == "safetensors")
        told = f"at most {own:,} bytes of tensors, its own part of all saves"
        yield Finding(written <= own, told, f"{written:,} written by this rank", answer.rank)


def _little_beside(evidence: Evidence) -> Iterator[Finding]:
    """Parts are safetensors; what is written beside them is text about them, not the tensors once more."""
    most = AGREEMENTS * len(saves(evidence.case))
    for answer in evidence.answers:
        temporary = answer.facts.get("temporary", False)
        told = "nothing written outside of the directory, not for a moment"
        yield Finding(not temporary, told, "a file in the folder for temporary ones", answer.rank)
        odd = [name for name, _, kind, _ in answer.facts["files"] if kind == "other"]
        told = "safetensors and text files only"
        yield Finding(not odd, told, f"also {', '.join(odd)}", answer.rank)
        text = sum(size for _, size, kind, _ in answer.facts["files"] if kind == "text")
        told = f"at most {most:,} bytes of text, about the tensors"
        yield Finding(text <= most, told, f"{text:,} written by this rank", answer.rank)


def tells_little(evidence: Evidence) -> Iterator[Finding]:
    """What ranks tell each other while they save is names and counts, not the tensors."""
    for answer in evidence.answers:
        for save in saves(evidence.case):
            phase = f"save {save.turn}"
            calls = calls_of(answer, phase)
            told = f"{phase}: at most {AGREEMENTS:,} bytes sent, as ranks agree on something"
            sent = sum(num_bytes for _, num_bytes in calls)
            yield Finding(sent <= AGREEMENTS, told, calls_text(calls), answer.rank)
