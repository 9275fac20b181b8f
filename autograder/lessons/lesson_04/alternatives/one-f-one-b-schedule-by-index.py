"""Which action stands at each place, by arithmetic."""

from labkit.theory.schedule import Action


def one_f_one_b_schedule(stage, num_stages, num_micro_batches):
    return in_turn(
        [Action("forward", stage, i) for i in range(num_micro_batches)],
        [Action("backward", stage, i) for i in range(num_micro_batches)],
        min(num_micro_batches, num_stages - 1 - stage),
    )


def in_turn(forwards, backwards, warm_up):
    warm_up = min(warm_up, len(forwards))
    pairs = len(forwards) - warm_up
    result = list(forwards[:warm_up])
    for i in range(pairs):
        result.extend((forwards[warm_up + i], backwards[i]))
    result.extend(backwards[pairs:])
    return result
