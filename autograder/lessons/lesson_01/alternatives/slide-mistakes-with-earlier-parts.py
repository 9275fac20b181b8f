"""What earlier exercises compute is computed by them."""


def corrected_slides() -> dict[str, float]:
    def in_gb(billions: int) -> float:
        return sum(training_state_bytes(billions * 10**9, "adamw-mixed").values()) / 1e9

    def optimizer(recipe: str) -> int:
        return training_state_bytes(1, recipe)["optimizer"]

    return {
        "gib_of_700e9_bytes": 700 * 10**9 / 1024**3,
        "gb_of_70b_adamw_mixed": in_gb(70),
        "gb_of_236b_adamw_mixed": in_gb(236),
        "optimizer_bytes_per_parameter_adamw": optimizer("adamw-mixed"),
        "optimizer_bytes_per_parameter_sgd_momentum": optimizer("sgd-momentum-mixed"),
        "full_recompute_bytes": 2 * 10**6,
        "score_term_with_8_ranks": 5 * 64 * 2048 / 8192 / 8,
        "h100_dense_bf16_tflops": 989.4,
        "sequences_of_4000_in_4_million_tokens": 4e6 / 4e3,
    }
