"""From the 34 of one GPU."""


def block_activation_bytes(s, b, h, a, t, sequence_parallel=False):
    everything = s * b * h * (34 + 5 * a * s / h)
    outside = 10 * s * b * h
    return everything / t if sequence_parallel else (everything - outside) / t + outside
