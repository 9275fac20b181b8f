"""What each exercise of lesson 05 must show: a function run again in backward, and a chain of them."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_05 import chain, recomputing
from labkit.checks.lesson_05.chain import (
    chain_gives,
    leaves_the_list,
    refuses_wrong_segments,
    runs_each_layer_twice,
    runs_first_as_others,
    segments_are_even,
)
from labkit.checks.lesson_05.chain_bytes import builds_one_at_a_time, keeps_boundaries
from labkit.checks.lesson_05.judges import (
    as_plain,
    called_as_it_is,
    in_the_same_types,
    inner_runs_thrice,
    keeps_its_ends,
    keeps_no_more,
    measured_as_plain,
    restores_after_error,
    runs_twice,
    runs_twice_at_all,
    sends_twice,
)
from labkit.checks.lesson_05.subjects import BOTH
from labkit.checks.shared.formula import Row, formula_exercise, refusal_case, values_case

TORCHS_OWN = (
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential",
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.utils.checkpoint.create_selective_checkpoint_contexts",
)
CHECKPOINT_ID = "05.checkpoint"
MEASURED: dict[str, Any] = {"rows": 96, "width": 48, "inner": 160}
DEEP_CHAIN = {"rows": 64, "width": 24, "inner": 256}  # what a layer keeps is ten times what it is given
LARGE_CHAIN = {"rows": 48, "width": 32, "inner": 96}
MEASUREMENTS = ("measured", "measured-data", "measured-buffer")
OTHER_MEASUREMENTS = (
    "measured-view",
    "measured-dropout",
    "measured-autocast",
    "measured-several",
    "measured-averages",
)
OF_ANOTHER: dict[str, Any] = {"made": True, "dtype": "float32", **MEASURED}


def checkpoint_case(name: str, kind: str, seed: int, ranks: int = 1, **params: object) -> Case:
    """One function to be checkpointed: a kind of `recomputing.RUNS`. zeros: the gradient that backward starts
    from is 0. made: x is no leaf, but the result of an operation. dtype: the name of another than the
    recipe's. called: the form that the function has, one of `subjects.CALLED`.
    """
    sizes = {"rows": 6, "width": 5, "inner": 7, **params}
    return Case(name, ranks, sizes, seed, kind=kind)


def _checkpoint_cases(seed: int) -> list[Case]:
    return [
        checkpoint_case("an MLP", "values", seed),
        checkpoint_case("an MLP, measured", "measured", seed, **MEASURED),
        checkpoint_case("in evaluation, measured", "measured", seed, training=False, **OF_ANOTHER),
        checkpoint_case("data, measured", "measured-data", seed, called="function", **MEASURED),
        checkpoint_case("dropout, measured", "measured-dropout", seed, **OF_ANOTHER),
        checkpoint_case("several arguments, measured", "measured-several", seed, result=BOTH, **MEASURED),
        checkpoint_case("batch normalisation, measured", "measured-averages", seed, made=True, **MEASURED),
        checkpoint_case("a plain function, measured", "measured", seed, called="function", **OF_ANOTHER),
        checkpoint_case("one inside another, measured", "measured-nested", seed, **MEASURED),
        checkpoint_case("on two ranks, measured", "measured", seed, ranks=2, **MEASURED),
        checkpoint_case("a large MLP", "values", seed, **MEASURED),
        checkpoint_case("under no_grad", "no-grad", seed),
        checkpoint_case("x in another order", "view", seed),
        checkpoint_case("a layer of it frozen", "values", seed, frozen=["0.weight", "2.bias"]),
        checkpoint_case("the same one twice in a row", "values", seed, in_a_row=2),
        checkpoint_case("dropout", "dropout", seed),
        checkpoint_case(
            "a function with dropout, twice in a row", "dropout", seed, in_a_row=2, called="method"
        ),
        checkpoint_case("dropout in a large MLP", "dropout", seed, **MEASURED),
        checkpoint_case("dropout in evaluation", "dropout", seed, training=False),
        checkpoint_case("bfloat16 autocast", "autocast", seed),
        checkpoint_case("float16 autocast", "half", seed),
        checkpoint_case("float32 without autocast", "single", seed),
        checkpoint_case("backward in another autocast", "types", seed),
        checkpoint_case("an input without gradient", "data", seed),
        checkpoint_case("two results, the first used", "several", seed),
        checkpoint_case("two results, the second used", "several", seed, result=1),
        checkpoint_case("two large results, both used", "several", seed, result=BOTH, **MEASURED),
        checkpoint_case("one tensor in two places", "shared", seed),
        checkpoint_case("a tuple of one", "one", seed),
        checkpoint_case("one inside another", "nested", seed),
        checkpoint_case("batch normalisation", "buffers", seed),
        checkpoint_case("batch normalisation twice in a row", "buffers", seed, in_a_row=2),
        checkpoint_case("batch normalisation of many rows", "buffers", seed, **MEASURED),
        checkpoint_case("batch normalisation in evaluation", "buffers", seed, training=False),
        checkpoint_case("an error inside", "raises", seed),
        checkpoint_case("a sum over ranks", "ranks", seed, ranks=2),
    ]


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
        chain_case("11 layers in 4", "values", 11, 4, seed),
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


def memory_row(lengths: list[int], boundary_bytes: int, layer_bytes: int, value: int) -> Row:
    """Arguments of saved_activation_bytes, and its value."""
    return {"lengths": lengths, "boundary_bytes": boundary_bytes, "layer_bytes": layer_bytes}, value


def best_row(num_layers: int, boundary_bytes: int, layer_bytes: int, value: int) -> Row:
    """Arguments of best_segment_count, and its value."""
    return {"num_layers": num_layers, "boundary_bytes": boundary_bytes, "layer_bytes": layer_bytes}, value


def _memory_cases(seed: int) -> list[Case]:
    rows = [
        memory_row([3, 2, 2], 10, 70, 210),
        memory_row([5], 8, 100, 500),
        memory_row([1, 1, 1, 1], 4096, 36864, 49152),
        memory_row([2, 3], 6, 11, 39),
        memory_row([1, 4, 1], 5, 7, 33),
        memory_row([2, 1, 1], 10, 12, 32),
        memory_row([3, 2, 2, 1], 10, 12, 44),
        memory_row([3, 2, 2], 2_345_678_901, 12_345_678_907, 37_037_036_721),
    ]
    empty = {"lengths": [], "boundary_bytes": 1, "layer_bytes": 1}
    return [values_case("peak", rows, seed), refusal_case("no-segments", [empty], seed)]


def _best_cases(seed: int) -> list[Case]:
    rows = [
        best_row(16, 10, 10, 3),
        best_row(64, 1, 17, 40),
        best_row(64, 1000, 17, 1),
        best_row(1, 8, 8, 1),
        best_row(12, 2, 34, 12),
        best_row(7, 100, 101, 3),
        best_row(30, 5, 60, 21),
        best_row(7, 2**31 + 1, 2**31 + 3, 3),
        best_row(500, 3, 1000, 417),
    ]
    return [values_case("least-peak", rows, seed)]


EXERCISES = [
    Exercise(
        id=CHECKPOINT_ID,
        title="Forget, and run it again",
        names=("checkpoint",),
        runs=recomputing.RUNS,
        cases=_checkpoint_cases,
        properties=(
            Property(
                "forward-values",
                "numbers",
                1,
                "The result is that of calling the function, under no_grad too",
                "arguments are converted, or a tuple of results is changed on the way",
                {"values": as_plain("output"), "no-grad": called_as_it_is},
            ),
            Property(
                "input-gradients",
                "numbers",
                2,
                "The input's gradient is that of plain autograd",
                "a detached input needs requires_grad_() before the function is run again, and its .grad"
                " is what you return",
                {
                    **dict.fromkeys(("values", "view"), as_plain("input_grad")),
                    "measured-view": measured_as_plain,
                },
            ),
            Property(
                "parameter-gradients",
                "numbers",
                2,
                "The parameters' gradients are those of plain autograd",
                "backward has to go through the second run; torch.autograd.grad for the inputs alone"
                " leaves them out",
                {"values": as_plain("grad")},
            ),
            Property(
                "random-state",
                "numbers",
                2,
                "The second run draws the same random numbers, and the stream goes on as if there had been"
                " none",
                "the generator's state is not taken before the first run, or not put back after the second",
                {
                    **dict.fromkeys(
                        ("dropout", "own-dropout"), as_plain("output", "input_grad", "grad", "next_random")
                    ),
                    "measured-dropout": measured_as_plain,
                },
            ),
            Property(
                "autocast",
                "numbers",
                1,
                "The second run computes in the same types as the first, outside the autocast block too",
                "backward runs outside `with torch.autocast(...)`: keep its state and enter it again",
                {
                    **dict.fromkeys(("autocast", "half", "single"), as_plain("output", "input_grad", "grad")),
                    "types": in_the_same_types,
                    "measured-autocast": measured_as_plain,
                },
            ),
            Property(
                "forward-counts",
                "mechanism",
                3,
                "The function runs once in forward and once in backward",
                "it is run again in forward, or for each gradient",
                dict.fromkeys(MEASUREMENTS, runs_twice),
                dict.fromkeys(OTHER_MEASUREMENTS, runs_twice_at_all),
            ),
            Property(
                "saved-bytes",
                "mechanism",
                5,
                "Between forward and backward only the inputs and the result are alive, afterwards nothing",
                "the first run was not under torch.no_grad(), its graph or results are kept in ctx, or inputs"
                " are copied",
                dict.fromkeys(MEASUREMENTS, keeps_its_ends),
                dict.fromkeys((*OTHER_MEASUREMENTS, "measured-nested"), keeps_no_more),
            ),
            Property(
                "nested",
                "mechanism",
                1,
                "A checkpoint inside a checkpoint runs three times, with the same gradients",
                "the inner function must be checkpointed again in the second run of the outer one",
                {
                    "nested": every(as_plain("output", "input_grad", "grad"), inner_runs_thrice),
                    "measured-nested": every(measured_as_plain, inner_runs_thrice),
                },
            ),
            Property(
                "no-input-gradient",
                "robustness",
                1,
                "Parameters get gradients also when no input asks for one",
                "an autograd function none of whose inputs requires grad is left out of the graph: hand it"
                " one that does",
                {"data": as_plain("output", "grad")},
            ),
            Property(
                "several-arguments",
                "robustness",
                1,
                "Several arguments, tensors or not, and several results of which one is unused",
                "backward returns one value an argument, None for what has no gradient; an unused result's"
                " gradient may be None",
                {
                    **dict.fromkeys(
                        ("several", "shared", "one"), as_plain("output", "results", "input_grad", "grad")
                    ),
                    "measured-several": measured_as_plain,
                },
            ),
            Property(
                "buffers-once",
                "robustness",
                1,
                "A module's buffers change once, not twice",
                "batch normalisation updates its averages in each run: put the buffers back after the second",
                {
                    **dict.fromkeys(("buffers", "deep-buffers"), as_plain("buffer", "grad")),
                    "measured-averages": measured_as_plain,
                },
            ),
            Property(
                "state-after-error",
                "robustness",
                1,
                "When the second run raises, the error comes through and the random stream is put back",
                "use a `with` block (torch.random.fork_rng) rather than setting the state back at the end",
                {"raises": restores_after_error},
            ),
            Property(
                "on-ranks",
                "robustness",
                1,
                "A function that communicates does so once in forward and once more in backward, on each"
                " rank",
                "each rank must run the function again exactly once, or the others wait for it",
                {"ranks": every(as_plain("output", "input_grad", "grad"), sends_twice)},
            ),
        ),
        forbids=TORCHS_OWN,
    ),
    Exercise(
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
        builds_on=(CHECKPOINT_ID,),
        forbids=TORCHS_OWN,
    ),
    formula_exercise(
        "05.saved-activation-bytes",
        "What a checkpointed chain holds",
        "saved_activation_bytes",
        [
            Property(
                "peak",
                "numbers",
                3,
                "The most that a chain holds during backward, in bytes",
                "while a segment is run again, only the boundaries before it still wait; try each segment",
            ),
            Property(
                "no-segments",
                "robustness",
                1,
                "A chain without segments is refused with a ValueError",
                "max() of nothing raises a ValueError of its own, but a sum gives 0: look first",
            ),
        ],
        _memory_cases,
    ),
    formula_exercise(
        "05.best-segment-count",
        "How many segments",
        "best_segment_count",
        [
            Property(
                "least-peak",
                "numbers",
                3,
                "The number of segments with the lowest peak, the smallest if several have it",
                "the square root is where a smooth curve is lowest; segments are whole: compare them all",
            ),
        ],
        _best_cases,
    ),
]
