"""How many tensors of one rank's tokens, times their size."""


def context_bytes(way, sequence, heads, kv_heads, head_size, ranks, backward=False, element=2):
    def share(what: str, number: int) -> float:
        if number % ranks != 0:
            raise ValueError(f"{ranks} ranks do not divide {number} {what}")
        return number / ranks

    head = share("tokens", sequence) * head_size * element
    match way:
        case "ring":
            steps = ranks - 1
            home = min(1, steps)
            return 2 * kv_heads * head * (2 * steps + home if backward else steps)
        case "ulysses":
            for_each = 2 * share("heads", heads) + 2 * share("key-value heads", kv_heads)
            return for_each * head * (ranks - 1)
        case _:
            raise ValueError(f"no way called {way}")
