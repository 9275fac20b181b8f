"""The numbers as they come out."""


def corrected_slides() -> dict[str, float]:
    return {
        "gib_of_700e9_bytes": 651.926,
        "gb_of_70b_adamw_mixed": 1120.0,
        "optimizer_bytes_per_parameter_adamw": 12,
        "optimizer_bytes_per_parameter_sgd_momentum": 8,
        "gb_of_236b_adamw_mixed": 3776.0,
        "full_recompute_bytes": 2_000_000,
        "score_term_with_8_ranks": 10.0,
        "h100_dense_bf16_tflops": 989.4,
        "sequences_of_4000_in_4_million_tokens": 1000,
    }
