"""What a GPT that is cut over ranks sends, with whole and with divided tokens."""

from __future__ import annotations

from collections.abc import Callable

from labkit.checks.lesson_07.block import block_calls
from labkit.checks.lesson_07.modes import sends_at_most
from labkit.checks.lesson_07.modules import config_of
from labkit.checks.shared.beside import Call
from labkit.checks.shared.places import groups_of
from labkit.checks.shared.split import SplitEvidence, dtype_of
from labkit.checks.shared.split_judges import sends


def calls_of_model(phase: str) -> Callable[[SplitEvidence], list[Call]]:
    """The blocks' calls, the embedding's sum forward and the head's backward."""

    def calls(evidence: SplitEvidence) -> list[Call]:
        of_blocks = block_calls(phase, config_of(evidence.case).num_layers)
        return [*of_blocks(evidence), ("all_reduce", _bytes_of_x(evidence))]

    return calls


def calls_if_divided(phase: str) -> Callable[[SplitEvidence], list[Call]]:
    """With divided tokens: the blocks' calls, a scatter behind the table and a gather for the head; in
    backward both the other way round, and the gather of what the head did not keep.
    """

    def calls(evidence: SplitEvidence) -> list[Call]:
        of_blocks = block_calls(phase, config_of(evidence.case).num_layers)
        whole, size = _bytes_of_x(evidence), len(groups_of(evidence.case)[0])
        gathers = [("all_gather", whole // size)] * (1 if phase == "forward" else 2)
        return [*of_blocks(evidence), ("reduce_scatter", whole), *gathers]

    return calls


def whole_parameters(evidence: SplitEvidence) -> int:
    """Bytes of the gradients of what is whole on every rank, or of a few numbers a token, if that is more:
    with divided tokens they are summed, one by one or together.
    """
    config, params = config_of(evidence.case), evidence.case.params
    vectors = config.max_sequence + 6 * config.num_layers + 2  # positions; norms, biases; the last norm
    return max(numbers_a_token(evidence), dtype_of(evidence.case).itemsize * vectors * params["hidden"])


def positions_alone(evidence: SplitEvidence) -> int:
    """Bytes of the gradient of positions, which ranks may hand on in any way."""
    config = config_of(evidence.case)
    return dtype_of(evidence.case).itemsize * config.max_sequence * config.hidden


def _bytes_of_x(evidence: SplitEvidence) -> int:
    itemsize = dtype_of(evidence.case).itemsize
    return itemsize * evidence.inputs["ids"][0].numel() * evidence.case.params["hidden"]


def numbers_a_token(evidence: SplitEvidence) -> int:
    """Bytes of a few numbers for each token: the loss."""
    return 5 * 8 * evidence.inputs["ids"][0].numel()


SENDS = sends(calls_of_model("forward"), calls_of_model("backward"), ignore=numbers_a_token)
NO_OTHERS = sends_at_most(calls_of_model("forward"), calls_of_model("backward"), ignore=numbers_a_token)
NO_OTHERS_DIVIDED = sends_at_most(
    calls_if_divided("forward"),
    calls_if_divided("backward"),
    ignore=whole_parameters,
    spare=positions_alone,
)
