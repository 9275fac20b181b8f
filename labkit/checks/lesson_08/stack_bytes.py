"""What a rank may hold of a stack of equal layers whose weights are sharded, by moment."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.lesson_08.circumstances import adds_up
from labkit.checks.lesson_08.held import CALL_BYTES
from labkit.checks.lesson_08.net import calls_of
from labkit.checks.shared.split import dtype_of


def unit_bytes(case: Case) -> int:
    """Of a unit's gradients, or of the masters of its weights."""
    return 4 * _numel(case)


def whole_bytes(case: Case) -> int:
    """Of a unit's weights, while they are whole."""
    return dtype_of(case).itemsize * _numel(case)


def _numel(case: Case) -> int:
    """Numbers of a unit's weights: the ranks divide those of each."""
    width = int(case.params["width"])
    return width * (width + 1) if case.params.get("bias") else width**2


def share(case: Case) -> int:
    """Bytes of a rank's shards."""
    return case.params["layers"] * unit_bytes(case) // case.ranks


def share_of_gradients(case: Case) -> int:
    """Bytes of the gradients of a rank's shards."""
    return trained(case) * unit_bytes(case) // case.ranks


def trained(case: Case) -> int:
    """Units that are not frozen."""
    return case.params["layers"] - len(case.params.get("frozen", ()))


RESTS = (
    "at_rest", "after_forward", "after_backward", "after_full_weights", "after_evaluation",
    "after_an_error_in_evaluation", "after_an_error", "after_the_next",
)  # fmt: skip
"""When a rank rests."""


def most_at_rest(case: Case) -> dict[str, int]:
    """Bytes of its shards whenever a rank rests, after backward of their gradients too, which may have been
    there before.
    """
    with_gradients = share(case) + share_of_gradients(case)
    return dict.fromkeys(RESTS, share(case)) | {
        "after_forward": with_gradients if adds_up(case) else share(case),
        "after_backward": with_gradients,
    }


def room(case: Case) -> int:
    """Bytes beside weights and gradients, fewer than a unit's: what passes from layer to layer, which counts
    where Python keeps it, and half a unit for what a module or a backend makes.
    """
    passing = 4 * int(case.params["width"]) * int(case.params["layers"])
    return passing + whole_bytes(case) // 2


def most_in_process(case: Case) -> dict[str, int]:
    """By moment, bytes of the shards and of their gradients, and a little; while units are at work also what
    is whole then, and in forward a backend's copies of what is under way.
    """
    peaks, copies = most_at_peaks(case), (2 + case.params["prefetch"]) * unit_bytes(case)
    shards, a_pass = share(case) + room(case), CALL_BYTES * case.params["layers"]
    both = shards + share(case)
    return {
        "before a step": shards,
        "in the first forward": peaks["forward_peak"] + copies + a_pass,
        "after the first forward": shards + a_pass,
        "in the first backward": peaks["backward_peak"] + 3 * a_pass,
        "after the first backward": both + 3 * a_pass,
        "in the second forward": peaks["forward_peak"] + share(case) + copies + 4 * a_pass,
        "after the second forward": both + 4 * a_pass,
        "in the second backward": peaks["backward_peak"] + 6 * a_pass,
        "after the second backward": both + 6 * a_pass,
        "after full_weights": both + 7 * a_pass,
    }


def most_at_peaks(case: Case) -> dict[str, int]:
    """Of each peak: a unit whole in forward, and those fetched ahead, beside gradients that were there
    before; in backward also gradients of two, and room for what a backend copies. The gradient of a unit
    that is called again waits for its last one. Shards of another dtype are rounded for what is under way.
    """
    whole, unit = 1 + case.params["prefetch"], unit_bytes(case)
    waiting = len(calls_of(case)) - len(set(calls_of(case)))
    rounded = 0 if whole_bytes(case) == unit else whole_bytes(case) // case.ranks
    forward = share(case) + whole * (whole_bytes(case) + rounded) + room(case)
    gradients = share_of_gradients(case)
    return {
        "forward_peak": forward + (gradients if adds_up(case) else 0),
        "backward_peak": forward + gradients + (4 + waiting) * unit,
        "evaluation_peak": forward,
    }
