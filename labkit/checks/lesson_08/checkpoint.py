"""Saving in shards: what `save_shards` and `load_shards` must show."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_08.disk import exchange_files, files_of_all, own_disk, watching_temporary_files
from labkit.checks.lesson_08.formulas import HIDES
from labkit.checks.lesson_08.killed import count_operations, stop_in
from labkit.checks.lesson_08.net import FORBIDDEN
from labkit.checks.lesson_08.power import lose_power, note_what_is_on_disk
from labkit.checks.lesson_08.resumed import goes_on, hand_rows, train_inputs, train_save_resume
from labkit.checks.lesson_08.saved import (
    Save,
    hand_shards,
    overlaps,
    part_of,
    saved_inputs,
    saves,
    totals_of,
)
from labkit.checks.lesson_08.tried_saves import checkpoint_cases
from labkit.checks.lesson_08.written import no_more_than_parts, parts_only, tell_files, tells_little
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused, nbytes, same

EMPTY = "nothing-saved"  # a folder
FULL_DISK = 2**20  # bytes; a part is larger
PATIENCE = 1.5  # seconds a rank waits for one that could not write


# -- runs


def _save_and_load(rank: Rank) -> None:
    """All saves of the case; load on as many ranks, the last ones, as it lists. Facts: files, temporary,
    loaded.SIZE. Answers: loaded.SIZE.NAME. Recordings: "save TURN".
    """
    with own_disk() as folder:
        with watching_temporary_files(rank, folder):
            for save in saves(rank.case):
                group = _group(rank, save.members)
                if rank.rank in save.members:
                    with rank.recording(f"save {save.turn}"):
                        _save(rank, folder, save, group)
        dist.barrier(rank.group)
        tell_files(rank, folder.parent)  # what was put beside the folder counts as well
        exchange_files(folder, rank.group)
        for size in rank.params["load_on"]:
            members = _loaders(rank.case, size)
            group = _group(rank, members)
            if rank.rank in members:
                _load(rank, folder, group, f"loaded.{size}")
            dist.barrier(rank.group)


def _loaders(case: Case, size: int) -> range:
    """The last ranks: not those with the same numbers in their group."""
    return range(case.ranks - size, case.ranks)


def _group(rank: Rank, members: range) -> dist.ProcessGroup:
    return rank.group if len(members) == rank.world_size else dist.new_group(list(members))


def _save(rank: Rank, folder: Path, save: Save, group: dist.ProcessGroup) -> None:
    shards = save.tensors(rank.inputs)
    rank.student.save_shards(folder, save.step, shards, totals_of(rank.case), save.extra, group)


def _load(rank: Rank, folder: Path, group: dist.ProcessGroup, name: str) -> None:
    step, shards, extra = rank.student.load_shards(folder, group)
    rank.fact(name, {"step": step, "names": sorted(shards), "extra": extra})
    for key, tensor in shards.items():
        rank.answer(f"{name}.{key}", tensor)
    rank.fact(f"{name} overlaps", overlaps(shards))


def _save_badly(rank: Rank, second: Callable[[Rank, Path, dist.ProcessGroup], None]) -> None:
    """Save; save a step that one rank does not get through, and load; save it once more, as a job does that
    goes on from there, and load. Facts: operations, saving, loaded.SIZE, resumed.SIZE. Answers:
    loaded.SIZE.NAME, resumed.SIZE.NAME. Recordings: "save TURN", but of the last save but one.

    second: the last save but one, in a group whose ranks soon lose patience.
    """
    size = rank.world_size
    with own_disk() as folder:
        for save in saves(rank.case)[:-2]:
            with rank.recording(f"save {save.turn}"):
                save_it = partial(_save, rank, folder, save, rank.group)
                operations = count_operations(folder, _names_count(rank), save_it)
        rank.fact("operations", operations)
        impatient = dist.new_group(list(range(size)), timeout=timedelta(seconds=PATIENCE))
        over = time.monotonic() + PATIENCE + 1.0
        with rank.expect_error("saving"):
            second(rank, folder, impatient)
        time.sleep(max(0.0, over - time.monotonic()))  # whoever waits for the others has given up by then
        with files_of_all(folder, rank.group):
            _load(rank, folder, rank.group, f"loaded.{size}")
        newest = saves(rank.case)[-1]
        with rank.recording(f"save {newest.turn}"):
            _save(rank, folder, newest, rank.group)
        exchange_files(folder, rank.group)
        _load(rank, folder, rank.group, f"resumed.{size}")


def _lose_power(rank: Rank) -> None:
    """Save, lose what the disk was not told to keep of the last save, and load. Facts: files, loaded.SIZE.
    Answers: loaded.SIZE.NAME. Recordings: "save TURN".
    """
    *before, newest = saves(rank.case)
    with own_disk() as folder:
        others = False
        for save in before:
            with rank.recording(f"save {save.turn}"):
                noted = note_what_is_on_disk(folder, partial(_save, rank, folder, save, rank.group))
            others = not noted.named
        with rank.recording(f"save {newest.turn}"):
            noted = note_what_is_on_disk(folder, partial(_save, rank, folder, newest, rank.group), others)
        lose_power(noted, rank.group)
        tell_files(rank, folder.parent)
        exchange_files(folder, rank.group)
        _load(rank, folder, rank.group, f"loaded.{rank.world_size}")


def _fill_the_disk(rank: Rank, folder: Path, group: dist.ProcessGroup) -> None:
    """One rank cannot write."""
    full = contextlib.nullcontext() if rank.rank != rank.params["full_on"] else _little_room()
    with full:
        _save(rank, folder, saves(rank.case)[-2], group)


def _be_killed(rank: Rank, folder: Path, group: dist.ProcessGroup) -> None:
    """One rank is killed in one of the operations that its last save had, or before. Fact: killed."""
    save = partial(_save, rank, folder, saves(rank.case)[-2], group)
    if rank.rank == rank.params.get("never_comes"):
        return
    if rank.rank == rank.params.get("killed"):
        number, part = rank.result.facts["operations"], rank.params.get("killed_at")
        number = number if part is None else 1 + int(part * number)
        stopped = stop_in(folder, _names_count(rank), number, save, 20 * PATIENCE)  # on a busy host
        rank.fact("killed", stopped)
    else:
        save()


def _names_count(rank: Rank) -> bool:
    """Whether it may be killed before it changes a name: the first rank alone, as on a disk that all share
    the first to rename a folder does so for all.
    """
    return rank.rank == 0 and "killed_at" in rank.params


@contextlib.contextmanager
def _little_room() -> Iterator[None]:
    """No file may grow beyond FULL_DISK bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _load_nothing(rank: Rank) -> None:
    """Load from an empty folder; save into one that is not there, given as text. Fact: refusal. Answer:
    made. Fact: extra, which was nothing.
    """
    with own_disk() as disk:
        (disk / EMPTY).mkdir()
        with rank.expect_error("refusal"):
            rank.student.load_shards(disk / EMPTY, rank.group)
        own, totals = torch.ones(2), {"w": 2 * rank.world_size}
        new = str(disk / "a" / "new one")
        rank.student.save_shards(new, 1, {"w": own}, totals, {}, rank.group)
        exchange_files(disk, rank.group)
        _, shards, extra = rank.student.load_shards(new, rank.group)
        rank.answer("made", shards["w"])
        rank.fact("extra", extra)


# -- judges


def comes_back(
    newest: Callable[[Case], Save], told_as: str = "loaded"
) -> Callable[[Evidence], Iterator[Finding]]:
    """On every number of ranks the shards of the newest whole checkpoint, and what went with them."""
    return lambda evidence: _is_back(evidence, newest(evidence.case), told_as)


def _is_back(evidence: Evidence, save: Save, told_as: str = "loaded") -> Iterator[Finding]:
    for size in evidence.case.params["load_on"]:
        for position, rank in enumerate(_loaders(evidence.case, size)):
            answer = evidence.answers[rank]
            fact = answer.facts[f"{told_as}.{size}"]
            names = sorted(totals_of(evidence.case))
            seen = {"step": fact["step"], "names": fact["names"], "extra": fact["extra"]}
            wanted = {"step": save.step, "names": names, "extra": save.extra}
            yield Finding(seen == wanted, f"{wanted} on {size} ranks", str(seen), rank)
            for name, flat in save.tensors(evidence.inputs).items():
                told = f"{name} of step {save.step}, save {save.turn + 1}: shard {position} of {size}"
                part = part_of(flat, position, size)
                yield _same(f"{told}, as saved on {save.ranks}", part, answer, f"{told_as}.{size}.{name}")


def _same(told: str, part: Tensor, answer: RankAnswer, name: str) -> Finding:
    """Of 8-bit floats, with which torch does not reckon, the bytes."""
    if not part.is_floating_point() or part.itemsize > 1:
        return same(told, part, answer, name)
    seen = answer.tensors.get(name)
    alike = seen is not None and seen.dtype == part.dtype
    equal = alike and torch.equal(*(t.view(torch.uint8) for t in (part, seen) if t is not None))
    return Finding(equal, f"{told}: the same bytes of {part.dtype}", f"{seen}", answer.rank)


def own_memory(evidence: Evidence) -> Iterator[Finding]:
    """Who changes a shard that was loaded changes no other."""
    for answer in evidence.answers:
        for shared in (found for name, found in answer.facts.items() if name.endswith(" overlaps")):
            yield Finding(not shared, "shards of which no two share memory", ", ".join(shared), answer.rank)


def last(case: Case) -> Save:
    """The newest save of the step with the highest number."""
    return max(saves(case), key=lambda save: (save.step, save.turn))


def first(case: Case) -> Save:
    """The one that was whole before the disk was full."""
    return saves(case)[0]


def comes_back_whole(evidence: Evidence) -> Iterator[Finding]:
    """One of the checkpoints that were saved, the same on all ranks, and as it was saved: of a step that was
    being saved again the new one, the old one or none, but never parts of both.
    """
    every_save = [list(_is_back(evidence, save)) for save in saves(evidence.case)[:-1]]
    whole = any(all(finding.passed for finding in found) for found in every_save)
    if not whole:
        steps = [answer.facts[f"loaded.{evidence.case.ranks}"]["step"] for answer in evidence.answers]
        fitting = [save.turn for save in saves(evidence.case)[:-1] if save.step in steps]
        yield from every_save[fitting[-1] if fitting else 0]
    yield Finding(True, "a checkpoint that was saved, whole", "")


def older_stay(evidence: Evidence) -> Iterator[Finding]:
    """The disk holds the tensors of each step that was saved."""
    steps = {save.step: save.tensors(evidence.inputs) for save in saves(evidence.case)}
    least = sum(nbytes(flat) for tensors in steps.values() for flat in tensors.values())
    files = [file for answer in evidence.answers for file in answer.facts["files"]]
    held = sum(content for _, _, kind, content in files if kind == "safetensors")
    told = f"{least:,} bytes of tensors on disk at least, of steps {', '.join(map(str, sorted(steps)))}"
    yield Finding(held >= least, told, f"{held:,}")


def saving_failed(evidence: Evidence) -> Iterator[Finding]:
    """The rank that could not write said so."""
    answer = evidence.answers[evidence.case.params["full_on"]]
    seen = answer.facts["saving"]
    said = seen["raised"] or "no error"
    yield Finding(seen["raised"] is not None, "an error on the rank that could not write", said, answer.rank)


def made(evidence: Evidence) -> Iterator[Finding]:
    """What was saved into a new folder came back."""
    for answer in evidence.answers:
        yield same("what was saved into a folder that was not there", torch.ones(2), answer, "made")
        extra = answer.facts["extra"]
        yield Finding(extra == {}, "the extra of that save: {}", str(extra), answer.rank)


_SAVED = Run(_save_and_load, saved_inputs, hand_shards)

SHARDED_CHECKPOINT = Exercise(
    "08.sharded-checkpoint",
    "A checkpoint that other numbers of ranks can read",
    ("save_shards", "load_shards"),
    dict.fromkeys(("same-ranks", "other-ranks", "on-disk", "several"), _SAVED)
    | {
        "full-disk": Run(partial(_save_badly, second=_fill_the_disk), saved_inputs, hand_shards),
        "killed": Run(partial(_save_badly, second=_be_killed), saved_inputs, hand_shards),
        "power": Run(_lose_power, saved_inputs, hand_shards),
        "nothing": Run(_load_nothing),
        "own-parts": Run(train_save_resume, train_inputs, hand_rows),
    },
    checkpoint_cases,
    (
        Property(
            "same-ranks",
            "numbers",
            2,
            "What was saved comes back on as many ranks: every shard, its dtype, the step and `extra`.",
            "only rank 0's shard was written, or a dtype was changed on the way",
            {"same-ranks": every(comes_back(last), own_memory)},
            dict.fromkeys(("other-ranks", "on-disk", "several", "full-disk", "killed", "power"), own_memory),
        ),
        Property(
            "other-ranks",
            "numbers",
            3,
            "It comes back on fewer ranks and on more, cut for them: ranges that span parts, padding at the"
            " end only.",
            "a shard was read from one part only, or what is behind the end is not zero",
            {"other-ranks": comes_back(last)},
        ),
        Property(
            "own-part-only",
            "mechanism",
            2,
            "Each rank writes its own part, without padding, as safetensors.",
            "the whole tensor was gathered and written, or the padding too, or torch.save was used",
            {"on-disk": every(parts_only, tells_little)},
            dict.fromkeys(
                ("same-ranks", "other-ranks", "several", "power"), every(no_more_than_parts, tells_little)
            )
            | dict.fromkeys(("full-disk", "killed"), tells_little),
        ),
        Property(
            "newest",
            "robustness",
            1,
            "Of several checkpoints, which all stay, the one with the highest step is loaded; a step can be"
            " saved again, by fewer ranks too.",
            "names were compared as text (step-9 behind step-100), or parts of an earlier save were read",
            {"several": every(comes_back(last), older_stay)},
        ),
        Property(
            "half-written",
            "robustness",
            3,
            "A checkpoint that one rank could not write, or was killed in, is never taken for a whole one:"
            " the one before is loaded, and the step can be saved once more.",
            "the file that says it is whole was written before all parts were, or is half written itself",
            {
                "full-disk": every(saving_failed, comes_back(first), comes_back(last, "resumed")),
                "killed": every(comes_back_whole, comes_back(last, "resumed")),
            },
        ),
        Property(
            "power-failure",
            "robustness",
            1,
            "What `save_shards` wrote is on the disk when it returns, and parts and the marker's own bytes"
            " before a name says whole.",
            "on_disk is missing, or comes before the file is written or after the marker",
            {"power": comes_back(last)},
        ),
        Property(
            "nothing-there",
            "robustness",
            1,
            "Where there is no checkpoint, loading raises a FileNotFoundError that names the directory; a new"
            " directory is made by saving.",
            "max() of no checkpoints is a ValueError, and a directory is listed before it is made",
            {"nothing": every(is_refused("refusal", "FileNotFoundError", names=lambda case: [EMPTY]), made)},
        ),
        Property(
            "own-parts",
            "numbers",
            3,
            "Stage 3 with your own module, norm, layout and checkpoint goes on as if nothing had happened.",
            "an earlier exercise does not pass yet",
            {"own-parts": goes_on},
        ),
    ),
    builds_on=("08.flat-layout", "08.fully-sharded-module", "08.global-grad-norm"),
    forbids=FORBIDDEN,
    hides=HIDES,
)
