"""What each exercise of lesson 05 must show: a function run again in backward, and a chain of them."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Property
from labkit.checks.lesson_05.chain import chain_inputs, chain_on_rank, judge_chain
from labkit.checks.lesson_05.recomputing import checkpoint_inputs, checkpoint_on_rank, judge_checkpoint
from labkit.checks.old_form import Exercise, mechanism, numbers, robustness
from labkit.checks.shared.formula import Row, formula_exercise, refusal_case, values_case

TORCHS_OWN = (
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential",
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.utils.checkpoint.create_selective_checkpoint_contexts",
)
CHECKPOINT_ID = "05.checkpoint"
VALUES = ("forward-values", "input-gradients", "parameter-gradients")


def checkpoint_case(
    name: str, function: str, seed: int, properties: tuple[str, ...], ranks: int = 1, **params: object
) -> Case:
    """One function to be checkpointed: a name in `recomputing.FUNCTIONS`."""
    sizes = {"rows": 6, "width": 5, "inner": 7, **params}
    return Case(name, ranks, {"function": function, **sizes}, seed, properties)


def _checkpoint_cases(seed: int) -> list[Case]:
    return [
        checkpoint_case("an MLP", "mlp", seed, VALUES),
        checkpoint_case(
            "an MLP, measured", "mlp", seed, ("forward-counts", "saved-bytes"), rows=48, width=32, inner=160
        ),
        checkpoint_case("dropout", "dropout", seed, ("random-state",)),
        checkpoint_case("bfloat16 autocast", "autocast", seed, ("autocast",)),
        checkpoint_case("an input without gradient", "mlp", seed, ("no-input-gradient",), input_grad=False),
        checkpoint_case("two results, the first used", "several", seed, ("several-arguments",)),
        checkpoint_case("two results, the second used", "several", seed, ("several-arguments",), result=1),
        checkpoint_case("one inside another", "nested", seed, ("nested",)),
        checkpoint_case("batch normalisation", "batchnorm", seed, ("buffers-once",)),
        checkpoint_case("an error inside", "raises", seed, ("state-after-error",)),
        checkpoint_case("a sum over ranks", "all-reduce", seed, ("on-ranks",), ranks=2),
    ]


def chain_case(
    name: str, kind: str, ranks: int, layers: int, segments: int, seed: int, **params: object
) -> Case:
    """A chain of layers in so many segments."""
    shown = {
        "values": (*VALUES, "forward-counts", "even-segments"),
        "bytes": ("saved-bytes",),
        "refused": ("wrong-segments",),
    }
    sizes = {"rows": 6, "width": 5, "inner": 7, **params}
    own = kind == "own-parts"
    properties = ("own-parts",) if own else shown[kind]
    return Case(
        name,
        ranks,
        {"kind": kind, "layers": layers, "segments": segments, **sizes},
        seed,
        properties,
        own_parts=own,
    )


def _chain_cases(seed: int) -> list[Case]:
    return [
        chain_case("7 layers in 3", "values", 1, 7, 3, seed),
        chain_case("5 layers in 5", "values", 1, 5, 5, seed),
        chain_case("4 layers in 1", "values", 1, 4, 1, seed),
        chain_case("11 layers in 4", "values", 1, 11, 4, seed),
        chain_case("9 layers in 3, measured", "bytes", 1, 9, 3, seed, rows=48, width=32, inner=96),
        chain_case("segments that cannot be", "refused", 1, 4, 0, seed),
        chain_case("with your own checkpoint", "own-parts", 1, 7, 3, seed),
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
    ]
    return [values_case("least-peak", rows, seed)]


def _checkpoint_properties() -> tuple[Property, ...]:
    return (
        numbers("forward-values", 1, "The result is that of calling the function"),
        numbers(
            "input-gradients",
            2,
            "The input's gradient is that of plain autograd",
            "a detached input needs requires_grad_() before the function is run again, and its "
            ".grad is what you return",
        ),
        numbers(
            "parameter-gradients",
            2,
            "The parameters' gradients are those of plain autograd",
            "backward has to go through the second run; torch.autograd.grad for the inputs alone "
            "leaves them out",
        ),
        numbers(
            "random-state",
            2,
            "The second run draws the same random numbers, and the stream goes on as if there had been none",
            "the generator's state is not taken before the first run, or not put back after the second",
        ),
        numbers(
            "autocast",
            1,
            "The second run computes in the same types as the first, outside the autocast block too",
            "backward runs outside `with torch.autocast(...)`: keep its state and enter it again",
        ),
        mechanism(
            "forward-counts",
            2,
            "The function runs once in forward and once in backward",
            "it is run again in forward, or for each gradient",
        ),
        mechanism(
            "saved-bytes",
            3,
            "Between forward and backward only the inputs and the result are alive",
            "the first run was not under torch.no_grad(), or its graph or results are kept in ctx",
        ),
        mechanism(
            "nested",
            1,
            "A checkpoint inside a checkpoint runs at most three times, with the same gradients",
            "the inner function must be checkpointed again in the second run of the outer one",
        ),
        robustness(
            "no-input-gradient",
            1,
            "Parameters get gradients also when no input asks for one",
            "an autograd function none of whose inputs requires grad is left out of the graph: "
            "hand it one that does",
        ),
        robustness(
            "several-arguments",
            1,
            "Several arguments, tensors or not, and several results of which one is unused",
            "backward returns one value an argument, None for what has no gradient; an unused "
            "result's gradient may be None",
        ),
        robustness(
            "buffers-once",
            1,
            "A module's buffers change once, not twice",
            "batch normalisation updates its averages in each run: put the buffers back after the second",
        ),
        robustness(
            "state-after-error",
            1,
            "When the second run raises, the error comes through and the random stream is put back",
            "use a `with` block (torch.random.fork_rng) rather than setting the state back at the end",
        ),
        robustness(
            "on-ranks",
            1,
            "A function that communicates does so once in forward and once more in backward, on each rank",
            "each rank must run the function again exactly once, or the others wait for it",
        ),
    )


def _chain_properties() -> tuple[Property, ...]:
    return (
        numbers("forward-values", 1, "The result is that of the layers one after the other"),
        numbers("input-gradients", 1, "The input's gradient is that of plain autograd"),
        numbers("parameter-gradients", 1, "Every layer's gradients are those of plain autograd"),
        mechanism(
            "forward-counts",
            1,
            "Every layer runs once in forward and once in backward",
            "a layer that stands in no segment, or in two",
        ),
        mechanism(
            "even-segments",
            2,
            "There are as many segments as asked for, and their lengths differ by at most one",
            "len(layers) // segments leaves a remainder, which one long segment then takes",
        ),
        mechanism(
            "saved-bytes",
            2,
            "Between forward and backward one input a segment is alive",
            "results of single layers are kept, in a list perhaps",
        ),
        robustness(
            "wrong-segments",
            1,
            "0 segments, or more than layers, raises a ValueError that says both numbers",
            "check before the first layer runs",
        ),
        robustness("own-parts", 1, "It works with your own checkpoint"),
    )


EXERCISES = [
    Exercise(
        id=CHECKPOINT_ID,
        title="Forget, and run it again",
        names=("checkpoint",),
        properties=_checkpoint_properties(),
        cases=_checkpoint_cases,
        inputs=checkpoint_inputs,
        on_rank=checkpoint_on_rank,
        judge=judge_checkpoint,
        forbids=TORCHS_OWN,
    ),
    Exercise(
        id="05.checkpoint-sequential",
        title="A chain in segments",
        names=("checkpoint_sequential",),
        properties=_chain_properties(),
        cases=_chain_cases,
        inputs=chain_inputs,
        on_rank=chain_on_rank,
        judge=judge_chain,
        builds_on=(CHECKPOINT_ID,),
        forbids=TORCHS_OWN,
    ),
    formula_exercise(
        "05.saved-activation-bytes",
        "What a checkpointed chain holds",
        "saved_activation_bytes",
        [
            numbers(
                "peak",
                3,
                "The most that a chain holds during backward, in bytes",
                "while a segment is run again, only the boundaries before it still wait; try each segment",
            ),
            robustness("no-segments", 1, "A chain without segments is refused with a ValueError"),
        ],
        _memory_cases,
    ),
    formula_exercise(
        "05.best-segment-count",
        "How many segments",
        "best_segment_count",
        [
            numbers(
                "least-peak",
                3,
                "The number of segments with the lowest peak, the smallest if several have it",
                "the square root is where a smooth curve is lowest; segments are whole: compare them all",
            ),
        ],
        _best_cases,
    ),
]
