"""Appended from the front and from the back."""

from labkit.theory.schedule import Action


def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    actions: list[Action] = []
    for i in range(num_micro_batches):
        actions.append(Action(kind="forward", stage=stage, micro_batch=i))
    while num_micro_batches:
        num_micro_batches -= 1
        actions.append(Action(kind="backward", stage=stage, micro_batch=num_micro_batches))
    return actions
