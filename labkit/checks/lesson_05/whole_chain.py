"""05.checkpoint-sequential: a chain of layers in checkpointed segments."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_05 import chain
from labkit.checks.lesson_05.chain import (
    chain_gives,
    leaves_the_list,
    refuses_wrong_segments,
    runs_each_layer_twice,
    runs_first_as_others,
    segments_are_even,
)
from labkit.checks.lesson_05.chain_bytes import builds_one_at_a_time, keeps_boundaries
from labkit.checks.lesson_05.one_call import CHECKPOINT, TORCHS_OWN

DEEP_CHAIN = {"rows": 64, "width": 24, "inner": 256}  # what a layer keeps is ten times what it is given
LARGE_CHAIN = {"rows": 48, "width": 32, "inner": 96}


def chain_case(name: str, kind: str, layers: int, segments: int, seed: int, **params: object) -> Case:
    """A chain of layers in so many segments. frozen: the numbers of layers whose parameters are. bare: those
    of layers that have none. again_at_the_end: those of layers that stand in it twice. pairs: those of
    layers that are an nn.Sequential of two. mixed: whether layers have hooks and are in evaluation mode where
    bytes are measured. made and dtype: as of `checkpoint_case`. handed: the sequence that holds them, one of
    `chain.SEQUENCES`.
    """
    sizes = {"layers": layers, "segments": segments, "rows": 6, "width": 5, "inner": 7, **params}
    return Case(name, 1, sizes, seed, kind=kind, own_parts=kind == "own-parts")


def _chain_cases(seed: int) -> list[Case]:
    return [
        chain_case("7 layers in 3", "values", 7, 3, seed),
        chain_case("5 in 5, one frozen, one an nn.Sequential", "values", 5, 5, seed, frozen=[2], pairs=[1]),
        chain_case("4 layers in 1", "values", 4, 1, seed),
        chain_case("10 layers in 4", "values", 10, 4, seed),
        chain_case("5 large layers in 2", "values", 5, 2, seed, **LARGE_CHAIN),
        chain_case(
            "an nn.ModuleList, two of its layers once more at the end",
            "any-sequence",
            4,
            2,
            seed,
            handed="nn.ModuleList",
            again_at_the_end=[3, 0],
        ),
        chain_case("9 layers in 3, measured", "bytes", 9, 3, seed, **LARGE_CHAIN),
        chain_case("4 mixed layers in 1, measured", "bytes", 4, 1, seed, **LARGE_CHAIN, mixed=True),
        chain_case("16 layers in 4, measured", "bytes", 16, 4, seed, **DEEP_CHAIN, made=True),
        chain_case("segments that cannot be", "refused", 4, 0, seed),
        chain_case("with your own checkpoint", "own-parts", 7, 3, seed),
    ]


CHECKPOINT_SEQUENTIAL = Exercise(
    id="05.checkpoint-sequential",
    title="A chain in segments",
    names=("checkpoint_sequential",),
    runs=chain.RUNS,
    cases=_chain_cases,
    properties=(
        Property(
            "forward-values",
            "numbers",
            1,
            "The result is that of the layers one after the other, in evaluation too, whatever sequence"
            " holds them; what was handed over stays",
            "a segment is left out where lengths are uneven, or runs in another order; a layer that"
            " stands twice runs once",
            {
                "values": every(chain_gives("output", "evaluated", "others", "asked"), leaves_the_list),
                "any-sequence": chain_gives("output"),
            },
        ),
        Property(
            "input-gradients",
            "numbers",
            1,
            "The input's gradient is that of plain autograd",
            "a segment that is handed a detached input stops the gradient there",
            {"values": chain_gives("input_grad")},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            1,
            "Every layer's gradients are those of plain autograd",
            "a function made in a loop sees the loop's last segment, not its own",
            {
                "values": every(chain_gives("grad"), chain.leaves_frozen_alone),
                "any-sequence": chain_gives("grad"),
            },
        ),
        Property(
            "forward-counts",
            "mechanism",
            1,
            "Every layer runs once in forward and once in backward, and its buffers change once",
            "a layer that stands in no segment, or in two; a segment that is no module has no buffers to"
            " put back; a frozen segment that just runs keeps its activations",
            {"values": every(runs_each_layer_twice, runs_first_as_others, chain_gives("buffer"))},
        ),
        Property(
            "even-segments",
            "mechanism",
            2,
            "There are as many segments as asked for, and their lengths differ by at most one",
            "len(layers) // segments leaves a remainder, which one long segment then takes",
            {"values": segments_are_even},
        ),
        Property(
            "saved-bytes",
            "mechanism",
            2,
            "Between forward and backward one input a segment is alive; backward builds one segment at a"
            " time",
            "results of single layers are kept, in a list perhaps",
            {
                "bytes": every(
                    keeps_boundaries, builds_one_at_a_time, chain_gives("output", "input_grad", "grad")
                )
            },
        ),
        Property(
            "wrong-segments",
            "robustness",
            1,
            "0 segments, or more than layers, raises a ValueError that says both numbers",
            "check before the first layer runs",
            {"refused": refuses_wrong_segments},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own checkpoint",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": every(chain_gives("output", "input_grad", "grad"), runs_each_layer_twice)},
        ),
    ),
    builds_on=(CHECKPOINT.id,),
    forbids=TORCHS_OWN,
)
