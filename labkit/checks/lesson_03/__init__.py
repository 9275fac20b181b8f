"""What each exercise of lesson 03 must show: replicas, gradients, buckets, overlap, tokens."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Property, no_inputs
from labkit.checks.lesson_03.net import net_inputs
from labkit.checks.lesson_03.overlap import (
    accumulate_on_rank,
    judge_accumulate,
    judge_overlap,
    overlap_on_rank,
)
from labkit.checks.lesson_03.plain import (
    buckets_on_rank,
    indices_on_rank,
    judge_buckets,
    judge_indices,
    judge_loss,
    loss_inputs,
    loss_on_rank,
)
from labkit.checks.lesson_03.replicas import (
    average_on_rank,
    broadcast_on_rank,
    judge_average,
    judge_broadcast,
)
from labkit.checks.old_form import Exercise, mechanism, numbers, robustness

TORCHS_OWN = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed._composable.replicate.replicate",
)
OVERLAP_ID = "03.overlapped-data-parallel"
PAIRS = [[0, 3], [1, 2]]


def net_case(name: str, kind: str, ranks: int, seed: int, properties: tuple[str, ...], **params: Any) -> Case:
    """Replicas of the small net, one a rank. groups: None for one group of all ranks."""
    sizes = {"kind": kind, "rows": 5, "width": 3, "inner": 7, "bucket_bytes": 400, **params}
    return Case(name, ranks, sizes, seed, properties, own_parts=kind == "own-parts")


def indices_case(name: str, samples: int, world: int, seed: int, refused: bool = False) -> Case:
    """Indices of all ranks of a world, asked for in one process."""
    shown = ("wrong-rank",) if refused else ("equal-shares", "every-sample", "shuffled", "reproducible")
    kind = "refused" if refused else "values"
    return Case(name, 1, {"kind": kind, "samples": samples, "world": world}, seed, shown)


def buckets_case(
    name: str, parameters: list[tuple[list[int], str, bool]], bucket_bytes: int, seed: int
) -> Case:
    """Parameters as (shape, dtype, requires_grad)."""
    specs = [[list(shape), dtype, asks] for shape, dtype, asks in parameters]
    return Case(name, 1, {"parameters": specs, "bucket_bytes": bucket_bytes}, seed)


def tokens_case(name: str, kind: str, tokens: list[int], seed: int, **params: Any) -> Case:
    """So many tokens on each rank."""
    shown = {
        "values": ("gradients", "loss-value", "communication"),
        "empty": ("no-tokens",),
        "subgroup": ("subgroup",),
    }
    return Case(name, len(tokens), {"kind": kind, "tokens": tokens, **params}, seed, shown[kind])


def _indices_cases(seed: int) -> list[Case]:
    return [
        indices_case("24 samples on 4 ranks", 24, 4, seed),
        indices_case("23 samples on 4 ranks", 23, 4, seed),
        indices_case("3 samples on 5 ranks", 3, 5, seed),
        indices_case("17 samples on 1 rank", 17, 1, seed),
        indices_case("ranks that cannot be", 8, 2, seed, refused=True),
    ]


STATE = ("parameters", "buffers", "in-place", "communication")
TRAINED = ("gradients", "trained-weights", "communication")
WRAPPED = ("replicas", "gradients", "trained-weights")
TIMED = ("all-reduces", "overlap")


def _broadcast_cases(seed: int) -> list[Case]:
    return [
        net_case("two ranks", "values", 2, seed, STATE),
        net_case("four ranks", "values", 4, seed, STATE, width=2, inner=5),
        net_case("two groups of two", "subgroup", 4, seed, ("subgroup",), groups=PAIRS),
    ]


def _average_cases(seed: int) -> list[Case]:
    return [
        net_case("two ranks", "values", 2, seed, TRAINED),
        net_case("four ranks", "values", 4, seed, TRAINED, rows=3),
        net_case("a layer one rank does not use", "unused", 2, seed, ("unused-parameter",), aside=[1]),
        net_case("a layer nobody uses", "unused", 2, seed, ("unused-parameter",), aside=[]),
        net_case("two groups of two", "subgroup", 4, seed, ("subgroup",), groups=PAIRS),
        net_case("one rank", "values", 1, seed, TRAINED[:2]),
    ]


def _buckets_cases(seed: int) -> list[Case]:
    d, f = "float64", "float32"
    plain = [([4, 3], d, True), ([4], d, True), ([5, 4], d, True), ([5], d, True), ([2, 5], d, True)]
    return [
        buckets_case("five parameters", plain, 240, seed),
        buckets_case(
            "one larger than a bucket", [([3], f, True), ([100], f, True), ([2], f, True)], 64, seed
        ),
        buckets_case(
            "some frozen", [([4], d, True), ([4], d, False), ([4], d, True), ([4], d, False)], 64, seed
        ),
        buckets_case(
            "two dtypes", [([4], f, True), ([4], d, True), ([4], d, True), ([4], f, True)], 1000, seed
        ),
        buckets_case("none", [], 64, seed),
    ]


def _overlap_cases(seed: int) -> list[Case]:
    return [
        net_case("two ranks", "values", 2, seed, WRAPPED),
        net_case("two ranks, timed", "many", 2, seed, TIMED, rows=64, width=24, inner=40, bucket_bytes=9000),
        net_case("four ranks", "values", 4, seed, WRAPPED, bucket_bytes=1),
        net_case("accumulating", "no-sync", 2, seed, ("no-sync",)),
        net_case("a layer one rank does not use", "unused", 2, seed, ("unused-parameter",), aside=[1]),
        net_case(
            "different ranks, small buckets",
            "unused",
            4,
            seed,
            ("unused-parameter",),
            aside=[2],
            bucket_bytes=60,
        ),
        net_case("two groups of two", "subgroup", 4, seed, ("subgroup",), groups=PAIRS),
        net_case("one rank", "values", 1, seed, WRAPPED),
    ]


def _tokens_cases(seed: int) -> list[Case]:
    return [
        tokens_case("3 and 8 tokens", "values", [3, 8], seed),
        tokens_case("1, 6, 2 and 9 tokens", "values", [1, 6, 2, 9], seed),
        tokens_case("a rank without tokens", "empty", [0, 5], seed),
        tokens_case("no tokens at all", "empty", [0, 0], seed),
        tokens_case("two groups of two", "subgroup", [2, 7, 3, 4], seed, groups=PAIRS),
    ]


def _accumulate_cases(seed: int) -> list[Case]:
    shown = ("gradients", "loss", "communication")
    return [
        net_case("three micro-batches", "values", 2, seed, shown),
        net_case("three micro-batches on four ranks", "values", 4, seed, shown, rows=2),
        net_case("5, 2 and 3 rows", "uneven", 2, seed, ("uneven-micro-batches",), sizes=[5, 2, 3]),
        net_case("one micro-batch", "uneven", 2, seed, ("uneven-micro-batches",), sizes=[4]),
        net_case("with your own wrapper", "own-parts", 2, seed, ("own-parts",)),
    ]


SUBGROUP_CAUSE = "group= is missing in a call, or src=0 where the group's first rank is meant (group_src=0)"

INDICES = (
    numbers(
        "equal-shares",
        1,
        "Every rank gets the same number of samples",
        "n // world_size drops the rest; fill up by starting over",
    ),
    numbers(
        "every-sample",
        2,
        "Together the ranks visit every sample, and only the filling-up twice",
        "each rank shuffled on its own, so shares overlap",
    ),
    mechanism(
        "shuffled",
        1,
        "The order changes with the epoch and the seed",
        "the epoch is not part of the generator's seed",
    ),
    mechanism(
        "reproducible",
        1,
        "The same epoch and seed give the same order everywhere, silently, with a generator of your own",
        "use a torch.Generator of your own",
    ),
    robustness("wrong-rank", 1, "A rank outside the world raises a ValueError"),
)
BROADCAST = (
    numbers("parameters", 2, "All ranks end with the first rank's parameters"),
    numbers(
        "buffers",
        1,
        "All ranks end with the first rank's buffers",
        "module.parameters() leaves running averages and counters out",
    ),
    mechanism(
        "in-place",
        1,
        "Every tensor stays where it was, with requires_grad as it was",
        "an optimizer made before holds the old tensors: copy into them",
    ),
    mechanism(
        "communication",
        1,
        "Broadcasts only, each tensor once",
        "a parameter with two names is sent twice, or all_gather was used",
    ),
    robustness("subgroup", 1, "It works in a group that is not all ranks", SUBGROUP_CAUSE),
)
AVERAGE = (
    numbers(
        "gradients",
        3,
        "Every gradient is the mean over the ranks",
        "a sum without dividing by the group's size",
    ),
    numbers("trained-weights", 1, "Two steps of SGD are those of one process with all rows"),
    mechanism(
        "communication", 2, "One all_reduce for each gradient", "parameters are averaged instead, or gathered"
    ),
    robustness(
        "unused-parameter",
        2,
        "A parameter that some ranks did not use is averaged too",
        "skipping `grad is None` on one rank leaves the others waiting: use zeros",
    ),
    robustness("subgroup", 1, "It works in a group that is not all ranks", SUBGROUP_CAUSE),
)
BUCKETS = (
    numbers("every-parameter", 1, "Every trainable parameter is in exactly one bucket"),
    mechanism("reverse-order", 1, "Buckets follow backward: the last parameter comes first"),
    mechanism(
        "bucket-bytes",
        2,
        "Each bucket is filled until the next parameter would exceed the bytes",
        "bytes are numel * element_size; a bucket of one parameter may be larger",
    ),
    robustness("one-dtype", 1, "A bucket holds one dtype: its gradients become one flat tensor"),
)
OVERLAP = (
    numbers("replicas", 1, "At the start every rank has the first rank's parameters and buffers"),
    numbers(
        "gradients",
        3,
        "After backward every gradient is the mean over the ranks",
        "a handle was not waited for, or a flat bucket was cut at the wrong offsets",
    ),
    numbers(
        "trained-weights",
        1,
        "Two steps of SGD are those of one process with all rows",
        "counters of ready gradients are not reset for the second backward",
    ),
    mechanism(
        "all-reduces",
        2,
        "One all_reduce a bucket; the gradients' bytes once",
        "bucket_bytes taken as a number of elements, or one all_reduce a parameter",
    ),
    mechanism(
        "overlap",
        3,
        "The first all_reduce starts before the last gradient is ready, and is waited for at the end",
        "all is reduced after backward; or async_op=True is missing",
    ),
    robustness(
        "no-sync",
        2,
        "Inside no_sync nothing is sent, and an exception in it changes nothing for later",
        "use try/finally, and reset the ready counters",
    ),
    robustness(
        "unused-parameter",
        2,
        "A parameter that some ranks do not use neither hangs nor falsifies",
        "buckets go in the same order on every rank, those that never fill at the end of backward",
    ),
    robustness("subgroup", 1, "It works in a group that is not all ranks", SUBGROUP_CAUSE),
)
TOKENS = (
    numbers(
        "gradients",
        3,
        "Averaged over the ranks, the gradient is that of the mean over all tokens",
        "a mean of means gives few tokens too much weight; averaging divides by the world size again",
    ),
    numbers("loss-value", 1, "Averaged over the ranks, the loss is the mean over all tokens"),
    mechanism("communication", 1, "One number is sent, once"),
    robustness("no-tokens", 1, "Ranks without tokens give zeros, not NaN"),
    robustness("subgroup", 1, "It works in a group that is not all ranks", SUBGROUP_CAUSE),
)
ACCUMULATE = (
    numbers(
        "gradients",
        3,
        "The gradients are those of one large batch",
        "each loss must count with its share of the rows",
    ),
    numbers("loss", 1, "The result is the mean loss over this rank's rows"),
    mechanism(
        "communication",
        2,
        "Gradients are sent once a step, whatever the number of micro-batches",
        "model.no_sync() around all but the last backward",
    ),
    robustness(
        "uneven-micro-batches",
        1,
        "Micro-batches may differ in size, and there may be just one",
        "dividing by their number is right only when they are equal",
    ),
    robustness("own-parts", 1, "It works with your own OverlappedDataParallel"),
)


def _exercise(
    exercise_id: str, title: str, name: str, properties: tuple[Property, ...], *parts: Any, **more: Any
) -> Exercise:
    cases, inputs, on_rank, judge = parts
    return Exercise(
        exercise_id, title, (name,), properties, cases, inputs, on_rank, judge, forbids=TORCHS_OWN, **more
    )


EXERCISES = [
    _exercise(
        "03.shard-indices",
        "Who reads what",
        "shard_indices",
        INDICES,
        _indices_cases,
        no_inputs,
        indices_on_rank,
        judge_indices,
    ),
    _exercise(
        "03.broadcast-module",
        "The same start",
        "broadcast_module",
        BROADCAST,
        _broadcast_cases,
        net_inputs,
        broadcast_on_rank,
        judge_broadcast,
    ),
    _exercise(
        "03.average-gradients",
        "Naive data parallelism",
        "average_gradients",
        AVERAGE,
        _average_cases,
        net_inputs,
        average_on_rank,
        judge_average,
    ),
    _exercise(
        "03.assign-buckets",
        "Buckets",
        "assign_buckets",
        BUCKETS,
        _buckets_cases,
        no_inputs,
        buckets_on_rank,
        judge_buckets,
    ),
    _exercise(
        *(OVERLAP_ID, "Communication during backward", "OverlappedDataParallel", OVERLAP),
        *(_overlap_cases, net_inputs, overlap_on_rank, judge_overlap),
        builds_on=("03.broadcast-module", "03.assign-buckets"),
    ),
    _exercise(
        "03.token-weighted-loss",
        "Unequal numbers of tokens",
        "token_weighted_loss",
        TOKENS,
        _tokens_cases,
        loss_inputs,
        loss_on_rank,
        judge_loss,
    ),
    _exercise(
        *("03.accumulate-gradients", "Accumulation", "accumulate_gradients", ACCUMULATE),
        *(_accumulate_cases, net_inputs, accumulate_on_rank, judge_accumulate),
        builds_on=(OVERLAP_ID,),
    ),
]
