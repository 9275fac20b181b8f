"""Two queues, and a count of what is in flight."""

from collections import deque

from labkit.theory.schedule import Action


def one_f_one_b_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    numbers = range(num_micro_batches)
    forwards, backwards = ([Action(kind, stage, i) for i in numbers] for kind in ("forward", "backward"))
    return in_turn(forwards, backwards, num_stages - 1 - stage)


def in_turn(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    to_do, to_undo, done = deque(forwards), deque(backwards), []
    while to_do and len(done) < warm_up:
        done.append(to_do.popleft())
    while to_do:
        done.append(to_do.popleft())
        if to_undo:
            done.append(to_undo.popleft())
    return done + list(to_undo)
