"""The paper's table, line by line: what is whole, what is cut, and the scores."""


def block_activation_bytes(s, b, h, a, t, sequence_parallel=False):
    sbh = s * b * h
    norms_and_dropouts = 4 * sbh + 2 * sbh
    inputs_of_regions = 2 * sbh + 2 * sbh
    inside_attention = 6 * sbh + 2 * sbh
    inside_mlp = 8 * sbh + 8 * sbh
    scores = 5 * a * s * s * b
    whole = norms_and_dropouts + inputs_of_regions
    return (whole / t if sequence_parallel else whole) + (inside_attention + inside_mlp + scores) / t
