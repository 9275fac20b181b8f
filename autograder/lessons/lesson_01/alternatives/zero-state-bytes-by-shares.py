"""The share of each part that a rank keeps."""


def zero_state_bytes(
    num_params: int, recipe: str, stage: int, data_parallel: int, largest_layer: int
) -> dict[str, float]:
    order = ["optimizer", "gradients", "weights"]
    sharded = set(order[:stage]) if data_parallel > 1 else set()
    whole = training_state_bytes(num_params, recipe)
    layer = training_state_bytes(largest_layer, recipe)
    result = {part: size / data_parallel if part in sharded else float(size) for part, size in whole.items()}
    result["working"] = float(sum(layer[part] for part in sharded - {"optimizer"}))
    return result
