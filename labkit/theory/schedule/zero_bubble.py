"""Zero-bubble schedules: the backward in two halves, the second of which fills the bubble.

Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 2. To read and to draw; no exercise
asks for them.
"""

from __future__ import annotations

from labkit.theory.schedule.actions import Action


def zb_h1(num_stages: int, num_micro_batches: int) -> list[list[Action]]:
    """1F1B's order with each W put off by as many micro-batches as the stage's number.

    Bubble (p-1)(T_F + T_B - T_W), with T_B the input half; no more memory than 1F1B's first stage has
    (Table 2).
    """
    return [_list(stage, num_micro_batches, num_stages - stage, stage) for stage in range(num_stages)]


def zb_h2(num_stages: int, num_micro_batches: int) -> list[list[Action]]:
    """More forwards before the first backward: no bubble inside a rank when T_F = T_B = T_W.

    Bubble (p-1)(T_F + T_B - 2 T_W); up to 2p-1 micro-batches in flight (Table 2).
    """
    return [_list(s, num_micro_batches, 2 * (num_stages - s) - 1, 2 * s) for s in range(num_stages)]


def _list(stage: int, num_micro_batches: int, warm_up: int, put_off: int) -> list[Action]:
    """`warm_up` forwards, then I, W and F in turn, with W `put_off` micro-batches behind I."""
    forwards, actions = min(warm_up, num_micro_batches), []
    actions += [Action("forward", stage, m) for m in range(forwards)]
    for m in range(num_micro_batches):
        actions.append(Action("input_backward", stage, m))
        if m >= put_off:
            actions.append(Action("weight_backward", stage, m - put_off))
        if forwards < num_micro_batches:
            actions.append(Action("forward", stage, forwards))
            forwards += 1
    left = range(max(0, num_micro_batches - put_off), num_micro_batches)
    return actions + [Action("weight_backward", stage, m) for m in left]
