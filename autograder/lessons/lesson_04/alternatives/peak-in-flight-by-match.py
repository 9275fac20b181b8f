"""One formula a schedule."""


def peak_in_flight(
    schedule: str, rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int = 1
) -> int:
    match schedule:
        case "gpipe":
            most = num_micro_batches
        case "1f1b":
            most = num_ranks - rank
        case "interleaved":
            most = num_ranks * (num_chunks + 1) - 2 * rank - 1
    return min(num_chunks * num_micro_batches, most)
