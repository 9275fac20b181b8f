"""What leaves the rank, one message after the other."""


def context_bytes(way, sequence, heads, kv_heads, head_size, ranks, backward=False, element=2):
    if sequence % ranks or way not in ("ring", "ulysses"):
        raise ValueError(f"{way} on {ranks} ranks, {sequence} tokens")
    of_a_head = sequence // ranks * head_size * element
    if way == "ring":
        sent = 0
        for step in range(ranks):
            if step < ranks - 1:
                sent += 2 * kv_heads * of_a_head
            if backward and ranks > 1:
                sent += 2 * kv_heads * of_a_head
        return sent
    if heads % ranks or kv_heads % ranks:
        raise ValueError(f"{heads} and {kv_heads} heads on {ranks} ranks")
    sent = 0
    for number in (heads, kv_heads, kv_heads, heads):
        for _ in range(ranks - 1):
            sent += number // ranks * of_a_head
    return sent
