"""Layer after layer, each counted for itself."""


def count_parameters(config, attention: int) -> tuple[int, int]:
    mixture, h = config.mixture, config.hidden
    total = active = 2 * config.vocabulary * h + h
    for layer in range(config.num_layers):
        both = attention + 2 * h
        if layer < mixture.dense_layers:
            both += 3 * h * config.ffn
            total, active = total + both, active + both
            continue
        expert = 3 * h * mixture.expert_ffn
        both += h * mixture.num_experts
        total += both + expert * (mixture.num_experts + mixture.shared_experts)
        active += both + expert * (mixture.active_experts + mixture.shared_experts)
    return total, active


def expert_flops(config, tokens: int) -> float:
    mixture = config.mixture
    router = 2.0 * tokens * config.hidden * mixture.num_experts
    one = 3 * 2.0 * tokens * config.hidden * mixture.expert_ffn
    return router + mixture.active_experts * one + mixture.shared_experts * one


def dispatch_bytes(config, tokens: int, ranks: int, element: int = 2) -> float:
    if config.mixture is None:
        raise ValueError(f"{config.name} has no experts")
    if ranks <= 0 or config.mixture.num_experts % ranks != 0:
        raise ValueError(f"{config.mixture.num_experts} experts cannot be spread evenly over {ranks} ranks")
    whole = tokens * config.mixture.active_experts * config.hidden * element
    return 2 * (whole - whole / ranks)
