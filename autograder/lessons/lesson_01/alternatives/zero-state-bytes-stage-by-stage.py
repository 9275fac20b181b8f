"""Each stage divides one part more; one rank alone shards nothing."""


def zero_state_bytes(
    num_params: int, recipe: str, stage: int, data_parallel: int, largest_layer: int
) -> dict[str, float]:
    state: dict[str, float] = dict(training_state_bytes(num_params, recipe))
    layer = training_state_bytes(largest_layer, recipe)
    working = 0.0
    if stage >= 1:
        state["optimizer"] /= data_parallel
    if stage >= 2:
        state["gradients"] /= data_parallel
        working += layer["gradients"] if data_parallel > 1 else 0
    if stage == 3:
        state["weights"] /= data_parallel
        working += layer["weights"] if data_parallel > 1 else 0
    state["working"] = working
    return state
