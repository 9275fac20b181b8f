"""Copies in 2 or 4 bytes, counted."""

FP32, BF16 = 4, 2
PARTS = {
    "adamw-fp32": ([FP32], [FP32], [FP32, FP32]),
    "adamw-mixed": ([BF16], [BF16], [FP32, FP32, FP32]),
    "adamw-mixed-fp32-gradients": ([BF16], [FP32], [FP32, FP32, FP32]),
    "adamw-mixed-both-gradients": ([BF16], [BF16, FP32], [FP32, FP32, FP32]),
    "adamw-no-master": ([BF16], [BF16], [FP32, FP32]),
    "sgd-momentum-mixed": ([BF16], [BF16], [FP32, FP32]),
    "sgd-mixed": ([BF16], [BF16], [FP32]),
}


def training_state_bytes(num_params: int, recipe: str) -> dict[str, int]:
    try:
        copies = PARTS[recipe]
    except KeyError:
        raise ValueError(f"no recipe {recipe}: choose one of {sorted(PARTS)}") from None
    names = ("weights", "gradients", "optimizer")
    return {name: num_params * sum(each) for name, each in zip(names, copies, strict=True)}
