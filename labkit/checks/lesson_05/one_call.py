"""05.checkpoint: one function, forgotten and run again in backward."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_05 import recomputing
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

TORCHS_OWN = (
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential",
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.utils.checkpoint.create_selective_checkpoint_contexts",
)
MEASURED: dict[str, Any] = {"rows": 96, "width": 48, "inner": 160}
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
    recipe's. called: the form that the function has, one of `subjects.CALLED`. backwards: of so many calls
    that come before them, in which order.
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
        checkpoint_case("dropout, two calls and then their backwards", "dropout", seed, backwards=[0, 1]),
        checkpoint_case("dropout, one inside another", "nested-dropout", seed),
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
        checkpoint_case("x among the results", "handed-back", seed, result=BOTH),
        checkpoint_case("one inside another", "nested", seed),
        checkpoint_case("one inside another, for two results", "nested-both", seed, result=BOTH),
        checkpoint_case("batch normalisation", "buffers", seed),
        checkpoint_case("batch normalisation twice in a row", "buffers", seed, in_a_row=2),
        checkpoint_case("batch normalisation of many rows", "buffers", seed, **MEASURED),
        checkpoint_case("batch normalisation in evaluation", "buffers", seed, training=False),
        checkpoint_case("an error inside", "raises", seed),
        checkpoint_case("a sum over ranks", "ranks", seed, ranks=2),
    ]


CHECKPOINT = Exercise(
    id="05.checkpoint",
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
            "The second run draws the same random numbers, and the stream goes on as if there had been none",
            "the generator's state is not taken before the first run, or not put back after the second; or"
            " it is kept where another call finds it",
            {
                **dict.fromkeys(
                    ("dropout", "own-dropout", "nested-dropout"),
                    as_plain("output", "input_grad", "grad", "next_random"),
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
            "the first run was not under torch.no_grad(), its graph or results are kept in ctx, inputs are"
            " copied, or what is kept waits somewhere else than in ctx for a backward that never comes",
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
                "nested-both": every(as_plain("output", "input_grad", "grad"), inner_runs_thrice),
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
            " gradient may be None; a result that is an argument has no grad_fn",
            {
                **dict.fromkeys(
                    ("several", "shared", "one", "handed-back"),
                    as_plain("output", "results", "input_grad", "grad"),
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
            "A function that communicates does so once in forward and once more in backward, on each rank",
            "each rank must run the function again exactly once, or the others wait for it",
            {"ranks": every(as_plain("output", "input_grad", "grad"), sends_twice)},
        ),
    ),
    forbids=TORCHS_OWN,
)
