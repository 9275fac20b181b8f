"""Everything first, and then without the experts that a token does not visit."""


def matrices(h: int, width: int) -> int:
    return 3 * h * width


def count_parameters(config, attention: int) -> tuple[int, int]:
    m, h, layers = config.mixture, config.hidden, config.num_layers
    routed = layers - m.dense_layers
    every_layer = layers * (attention + h + h)
    mlps = m.dense_layers * matrices(h, config.ffn)
    experts = routed * (m.num_experts + m.shared_experts) * matrices(h, m.expert_ffn)
    routers = routed * m.num_experts * h
    total = every_layer + mlps + experts + routers + config.vocabulary * h * 2 + h
    idle = routed * (m.num_experts - m.active_experts) * matrices(h, m.expert_ffn)
    return total, total - idle


def expert_flops(config, tokens: int) -> int:
    m = config.mixture
    touched = (m.active_experts + m.shared_experts) * matrices(config.hidden, m.expert_ffn)
    return 2 * (touched + config.hidden * m.num_experts) * tokens


def dispatch_bytes(config, tokens: int, ranks: int, element: int = 2) -> float:
    experts = config.mixture.num_experts if config.mixture else 0
    if not experts or experts % ranks:
        raise ValueError(f"{experts} experts on {ranks} ranks")
    row = config.hidden * element
    return tokens * config.mixture.active_experts * row * 2 * (1 - 1 / ranks)
