def rank_bytes(numels: Sequence[int], recipe: Recipe, stage: int, world_size: int) -> dict[str, int]:
    if stage < 0 or stage > 3:
        raise ValueError("stage")
    if world_size <= 0:
        raise ValueError("ranks")

    def padded(n: int) -> int:
        return n + (world_size - n % world_size) % world_size

    total = sum(numels)
    found = {"weights": total, "gradients": total, "optimizer": total, "working": 0}
    if stage == 1:
        found["weights"], found["optimizer"] = padded(total), padded(total) // world_size
    if stage >= 2:
        flat = sum(padded(n) for n in numels)
        found["gradients"] = found["optimizer"] = flat // world_size
        found["weights"] = flat if stage == 2 else flat // world_size
    found["weights"] *= recipe.weights
    found["gradients"] *= recipe.gradients
    found["optimizer"] *= recipe.optimizer
    if stage >= 2:
        for index, n in enumerate(numels):
            now = padded(n) * recipe.gradients
            if stage == 3:
                now += padded(n) * recipe.weights
                now += padded(numels[index - 1]) * recipe.weights if index else 0
            found["working"] = max(found["working"], now)
    return found
