"""What a recipe's name says, part by part."""


def training_state_bytes(num_params: int, recipe: str) -> dict[str, int]:
    known = (
        "adamw-fp32",
        "adamw-mixed",
        "adamw-mixed-fp32-gradients",
        "adamw-mixed-both-gradients",
        "adamw-no-master",
        "sgd-momentum-mixed",
        "sgd-mixed",
    )
    if recipe not in known:
        raise ValueError("expected one of " + ", ".join(known) + f", got {recipe}")
    weights = 4 if recipe.endswith("-fp32") else 2
    gradients = {"fp32-gradients": 4, "both-gradients": 6}.get(recipe.removeprefix("adamw-mixed-"), weights)
    master = 4 if "mixed" in recipe else 0
    moments = 8 if recipe.startswith("adamw") else 4 if "momentum" in recipe else 0
    return {
        "weights": weights * num_params,
        "gradients": gradients * num_params,
        "optimizer": (master + moments) * num_params,
    }
