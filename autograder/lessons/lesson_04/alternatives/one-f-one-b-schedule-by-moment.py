"""Every action has a moment at which its stage does it, and the list is sorted by that."""


def one_f_one_b_schedule(stage, num_stages, num_micro_batches):
    count = range(num_micro_batches)
    return in_turn(
        [Action("forward", stage, i) for i in count],
        [Action("backward", stage, i) for i in count],
        num_stages - stage - 1,
    )


def in_turn(forwards, backwards, warm_up):
    warm_up = min(warm_up, len(forwards))
    moments = [(i if i < warm_up else 2 * i - warm_up, 0, i, a) for i, a in enumerate(forwards)]
    pairs = len(forwards) - warm_up
    after = warm_up + 2 * pairs
    for i, action in enumerate(backwards):
        moments.append((warm_up + 2 * i + 1 if i < pairs else after + i, 1, i, action))
    return [moment[-1] for moment in sorted(moments, key=lambda moment: moment[:3])]
