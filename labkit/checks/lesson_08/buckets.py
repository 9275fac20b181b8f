"""What stage 2 may hold, of a stack of equal layers, and what it leaves in a process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

from labkit.checks.case import Case
from labkit.checks.lesson_08.held import CALL_BYTES, Life, Look, hold_in_process
from labkit.checks.lesson_08.net import calls_of, stack
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes


def make_buckets(net: nn.Module, bucket_bytes: int) -> list[list[str]]:
    """Names of the parameters in each bucket, as the lesson's own function fills them."""
    buckets: list[list[str]] = []
    used = 0
    for name, parameter in reversed([(n, p) for n, p in net.named_parameters() if p.requires_grad]):
        if not buckets or used + nbytes(parameter) > bucket_bytes:
            buckets.append([])
            used = 0
        buckets[-1].append(name)
        used += nbytes(parameter)
    return buckets


def answer_gradients(rank: Rank, sharded: Any) -> None:
    """Answers "grad 0.SHARD"."""
    for number, shard in enumerate(sharded.shards):
        rank.answer(f"grad 0.{number}", shard.grad)


def hold_buckets(rank: Rank) -> None:
    """Fact: process_bytes. Answers: "grad 0.SHARD", of two backwards."""
    hold_in_process(
        rank, partial(_bucket_life, rank), most_in_process(rank.case), partial(answer_gradients, rank)
    )


def _bucket_life(rank: Rank) -> Life[Any]:
    net, x = stack(rank.case, []), rank.inputs["x"].cpu()[-1:]
    every_layer, looking = calls_of(rank.case), list[str]()

    def life(look: Look) -> Any:
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: _look_at_all(look, looking))
        sharded = rank.student.ShardedGradients(net, rank.group, rank.params["bucket_bytes"])
        look("before backward")
        net.calls = every_layer[: len(every_layer) // 2]
        net(x).sum().backward()
        look("after a backward of half of the layers")
        for shard in sharded.shards:
            shard.grad = None
        net.calls = every_layer
        looking.append("in backward")  # whose peak is told where all layers are used
        for number in ("first", "second"):
            net(x).sum().backward()
            look(f"after the {number} backward")
            sharded.gather_weights()
            look(f"after the {number} gather_weights")
        return sharded

    return life


def _look_at_all(look: Look, moments: Iterable[str]) -> None:
    for when in moments:
        look(when)


# -- bytes


def layer_bytes(case: Case) -> int:
    """Of a layer's weights, or their gradients."""
    return 4 * case.params["width"] ** 2


def bucket_bytes_of(case: Case) -> int:
    """Of a bucket that is full."""
    return layer_bytes(case) * int(case.params["layers_a_bucket"])


def most_in_backward(case: Case) -> int:
    """Bytes at the peak: the shards, two buckets, and room for what a backend copies."""
    whole = case.params["layers"] * layer_bytes(case)
    return int(whole // case.ranks + 4.5 * bucket_bytes_of(case))


def most_at_rest(case: Case) -> int:
    """Bytes of the shards' gradients, and a little."""
    return case.params["layers"] * layer_bytes(case) // case.ranks + bucket_bytes_of(case) // 4


def most_in_process(case: Case) -> dict[str, int]:
    """By moment, bytes of the weights and of the shards' gradients; during backward also what is whole
    then.
    """
    weights = case.params["layers"] * layer_bytes(case)
    rest, a_pass = weights + most_at_rest(case), CALL_BYTES * num_buckets(case)
    return {
        "before backward": weights + bucket_bytes_of(case) // 4,
        "after a backward of half of the layers": rest + a_pass,
        "in backward": weights + most_in_backward(case) + 4 * a_pass,
        "after the first backward": rest + 2 * a_pass,
        "after the first gather_weights": rest + 3 * a_pass,
        "after the second backward": rest + 4 * a_pass,
        "after the second gather_weights": rest + 5 * a_pass,
    }


def num_buckets(case: Case) -> int:
    """Of the whole stack."""
    return int(case.params["layers"] // case.params["layers_a_bucket"])
