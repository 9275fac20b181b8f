"""Backwards in the order of the forwards, as the text allows."""

from labkit.theory.schedule import Action


def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    return [Action(kind, stage, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
