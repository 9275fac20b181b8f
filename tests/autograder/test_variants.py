"""Single edits of the references: what becomes of one, what excuses it, and what is kept of a run."""

from __future__ import annotations

import os
import random
import secrets
import time
from dataclasses import replace
from pathlib import Path

import pytest
from turn import SAMPLE

from autograder.selftest import record, survivors
from autograder.selftest.edits import Edit
from autograder.selftest.survivors import Excused, Survivor, SurvivorsError, excused
from autograder.selftest.systematic import run_all, run_sample
from autograder.selftest.variants import Track, Tried, Variant, try_variants, variants
from labkit.checks import registry

EXERCISE = "03.token-weighted-loss"
SUM = "dist.all_reduce(total, group=group)"
# Drawn anew by each run, of exercises drawn anew: measuring the reference takes longer than an edit.
IN_CI, OF = 12, 3
# An edit of one of these takes up to a minute: one of them, and a few.
LONG = (
    *("07.tensor-parallel-block", "08.fully-sharded-module", "08.sharded-checkpoint", "08.sharded-optimizer"),
    *("09.train-3d", "09.choose-plan"),
)
OF_LONG = 2


def variant(was: str, becomes: str) -> Variant:
    return next(v for v in variants(EXERCISE) if was in v.edit.was and becomes in v.edit.becomes)


def changed(old: str, new: str) -> Variant:
    """A variant made by hand from one that replaces nothing else."""
    some = variant(SUM, "pass")
    source = some.edit.source.replace("    pass\n", f"    {SUM}\n", 1)
    assert old in source
    return replace(some, edit=Edit("by hand", old, new, source.replace(old, new)))


@pytest.mark.days
def test_what_becomes_of_a_variant() -> None:
    """A wrong number, an error, ranks that wait for one another for ever, and the reference itself."""
    wait = "if dist.get_rank(group) == 0:\n        dist.barrier(group)\n    "
    wanted = {
        "lost": variant(SUM, "pass"),
        "error": changed(SUM, "dist.no_such_call(total)"),
        "hung": changed(SUM, f"{wait}{SUM}"),
        "survived": changed(SUM, f"{SUM}  # the same"),
    }
    fates = {each.variant: each.fate for each in try_variants(list(wanted.values()), 2)}
    assert {fate: fates[one] for fate, one in wanted.items()} == {fate: fate for fate in wanted}


def explained() -> list[str]:
    """The exercises that were tried whole, and of whose survivors none is without a sentence."""
    tallies = {name: tally for lesson in registry.lessons() for name, tally in record.load(lesson).items()}
    return [name for name, tally in tallies.items() if not record.unexplained(name, tally)]


@pytest.mark.timeout(400)
@pytest.mark.days(4)
def test_a_sample_of_fresh_edits_loses_points() -> None:
    """`make thorough` tries every edit of every exercise, those with open survivors too.

    LABKIT_SAMPLE: a number that draws the sample anew; `run_sample` tells it.
    """
    seed, told = int(os.environ.get(SAMPLE) or secrets.randbelow(2**31)), list[str]()
    long, short = (sorted(set(explained()) & set(LONG)), sorted(set(explained()) - set(LONG)))
    draw = random.Random(seed)
    assert run_sample(draw.sample(short, OF), IN_CI, seed, 2, told.append), "\n".join(told)
    assert run_sample([draw.choice(long)], OF_LONG, seed, 2, told.append), "\n".join(told)


def test_a_survivor_needs_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lesson_03" / survivors.FILE
    file.parent.mkdir()
    monkeypatch.setattr(survivors, "LESSONS", tmp_path)
    entry = f'[[survivor]]\nexercise = "{EXERCISE}"\nwas = "a"\nbecomes = "b"\n'
    for because in ("", 'because = ""', 'because = "equivalent"', "because = 3"):
        excused.cache_clear()
        file.write_text(entry + because)
        with pytest.raises(SurvivorsError, match=r"lesson_03.survivors\.toml"):
            excused("03")
    excused.cache_clear()
    file.write_text(f'{entry}because = "Both are the same number."')
    assert excused("03").covers(EXERCISE, "a", "b")
    assert not excused("03").covers(EXERCISE, "a", "c")
    excused.cache_clear()


@pytest.mark.days
@pytest.mark.parametrize("lesson", registry.lessons())
def test_every_excuse_is_about_an_edit_that_keeps_its_points(lesson: str) -> None:
    """As far as the last whole run knows."""
    ids = [exercise.id for exercise in registry.exercises(lesson)]
    assert {s.exercise for s in excused(lesson).survivors} <= set(ids)
    tallies = record.load(lesson)
    current = {name: tallies.get(name) if record.is_current(name) else None for name in ids}
    assert [line for name in ids for line in record.obsolete(name, current[name])] == []


def test_only_what_changed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    lost, alive = variant(SUM, "pass"), variant(SUM, "None")
    tally = record.keep(EXERCISE, [Tried(lost, "lost", "gradients"), Tried(alive, "survived")])
    assert record.load("03") == {EXERCISE: tally}
    assert record.is_current(EXERCISE)
    monkeypatch.setattr(record, "digest_of", lambda exercise: "other")
    assert not record.is_current(EXERCISE)


def test_a_survivor_fails_the_run_until_it_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    alive = variant(SUM, "None").edit
    record.keep(EXERCISE, [Tried(variant(SUM, "None"), "survived")])
    monkeypatch.setattr(record, "excused", lambda lesson: Excused([]))
    told: list[str] = []
    assert not run_all([EXERCISE], 1, told.append)
    assert any(alive.becomes in line for line in told)
    because = Survivor(EXERCISE, alive.was, alive.becomes, "The group is the world in every case.")
    gone = Survivor(EXERCISE, "x", "y", "This line was there once.")
    monkeypatch.setattr(record, "excused", lambda lesson: Excused([because]))
    assert run_all([EXERCISE], 1, told.append)
    monkeypatch.setattr(record, "excused", lambda lesson: Excused([because, gone]))
    assert not run_all([EXERCISE], 1, told.append)
    assert "is no edit" in told[-1]


@pytest.mark.days(11)
def test_too_slow_is_tried_once_more_with_twice_the_time() -> None:
    """A host that is busy makes no wrong answer of what is only slow; what never ends has hung."""
    track = Track(EXERCISE)
    assert len(track.groups) > 1
    track.groups = track.groups[:1]
    for seconds, deadline, fate in ((6.0, 5.0, "survived"), (1e3, 1.0, "hung")):
        track.deadlines = [deadline]
        asleep = f"import time; time.sleep(0 if hasattr(time, 'slept') else {seconds}); time.slept = True"
        begin = time.monotonic()
        assert track.run(changed(SUM, f"{asleep}\n    {SUM}")).fate == fate
        assert time.monotonic() - begin > min(3 * deadline, deadline + seconds)
