def rank_bytes(numels: Sequence[int], recipe: Recipe, stage: int, world_size: int) -> dict[str, int]:
    if stage not in range(4):
        raise ValueError(f"no stage {stage}")
    if world_size < 1:
        raise ValueError(f"{world_size} ranks")
    cut = [(n + world_size - 1) // world_size for n in numels]
    one = (sum(numels) + world_size - 1) // world_size
    weights = [sum(numels), one * world_size, sum(cut) * world_size, sum(cut)][stage]
    gradients = [sum(numels), sum(numels), sum(cut), sum(cut)][stage]
    optimizer = [sum(numels), one, sum(cut), sum(cut)][stage]
    working = 0
    for i in range(len(cut)) if stage > 1 else ():
        units = cut[i] + (cut[i - 1] if i > 0 else 0) if stage == 3 else 0
        working = max(working, world_size * (units * recipe.weights + cut[i] * recipe.gradients))
    return {
        "weights": weights * recipe.weights,
        "gradients": gradients * recipe.gradients,
        "optimizer": optimizer * recipe.optimizer,
        "working": working,
    }
