"""Layer by layer; bytes from the rows that stay."""


def count_parameters(config, attention):
    h, m = config.hidden, config.mixture
    total = active = h + 2 * config.vocabulary * h
    for layer in range(config.num_layers):
        total += attention + 2 * h
        active += attention + 2 * h
        if m is None or layer < m.dense_layers:
            total += 3 * h * config.ffn
            active += 3 * h * config.ffn
            continue
        total += h * m.num_experts + (m.num_experts + m.shared_experts) * 3 * h * m.expert_ffn
        active += h * m.num_experts + (m.active_experts + m.shared_experts) * 3 * h * m.expert_ffn
    return total, active


def expert_flops(config, tokens):
    m, h = config.mixture, config.hidden
    router = 2 * tokens * h * m.num_experts
    rows = tokens * (m.active_experts + m.shared_experts)
    return router + 3 * (2 * rows * h * m.expert_ffn)


def dispatch_bytes(config, tokens, ranks, element=2):
    m = config.mixture
    if m is None or m.num_experts % ranks:
        raise ValueError("needs experts that the ranks divide evenly")
    rows = tokens * m.active_experts
    away = rows - rows / ranks
    return away * config.hidden * element + away * config.hidden * element
