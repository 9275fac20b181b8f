"""Who computes which part of causal attention when the tokens of a sequence are on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from labkit.show.style import INK, Picture, expect_some, new_figure, rank_color


def draw_pairs(owners: Sequence[int]) -> Picture:
    """Chunks of queries against chunks of keys, each pair in the colour of the rank that has the queries.

    owners: the rank of each chunk, in the order of the sequence. White: every key is in the future. A corner
    is cut off on the diagonal, where only half of the pair is seen.
    """
    expect_some(owners, "chunk")
    figure, (axes,) = new_figure(height=3.0, width=4.2)
    for i, owner in enumerate(owners):
        for j in range(i + 1):
            box = Rectangle((j, i), 1, 1, facecolor=rank_color(owner), edgecolor="white", alpha=0.85)
            axes.add_patch(box)
        axes.fill([i, i + 1, i + 1], [i, i, i + 1], facecolor="white")
    axes.set(xlim=(0, len(owners)), ylim=(len(owners), 0), aspect="equal")
    middles = [i + 0.5 for i in range(len(owners))]
    axes.set_xticks(middles, [str(i) for i in range(len(owners))])
    axes.set_yticks(middles, [f"{i}, rank {owner}" for i, owner in enumerate(owners)])
    axes.tick_params(length=0, colors=INK)
    axes.set_xlabel("chunk of keys", fontsize=9)
    axes.set_ylabel("chunk of queries", fontsize=9)
    return Picture(figure, f"Causal attention in chunks, pairs to compute: {', '.join(_work(owners))}.")


def _work(owners: Sequence[int]) -> list[str]:
    """How many pairs each rank computes."""
    return [
        f"rank {rank} {sum(i + 1 for i, owner in enumerate(owners) if owner == rank)}"
        for rank in sorted(set(owners))
    ]


def draw_exchange(heads: int, ranks: int) -> Picture:
    """Who has which heads of which tokens before Ulysses' all-to-all, and after it.

    Rows are heads, columns the ranks' pieces of the sequence; each place has the colour of its rank.
    ValueError where the ranks do not divide the heads.
    """
    if ranks < 1 or heads < 1 or heads % ranks:
        raise ValueError(
            f"expected a number of ranks that divides the heads, got {heads} heads, {ranks} ranks"
        )
    figure, plots = new_figure(height=2.4, width=6.0, columns=2, sharey=True)
    owners = {
        "each rank: its tokens, all heads": lambda head, piece: piece,
        "each rank: all tokens, its heads": lambda head, piece: head * ranks // heads,
    }
    for axes, (title, owner) in zip(plots, owners.items(), strict=True):
        for head in range(heads):
            for piece in range(ranks):
                color = rank_color(owner(head, piece))
                axes.add_patch(Rectangle((piece, head), 1, 1, facecolor=color, edgecolor="white", alpha=0.85))
        axes.set(xlim=(0, ranks), ylim=(heads, 0))
        axes.set_xticks([i + 0.5 for i in range(ranks)], [str(i) for i in range(ranks)])
        axes.set_yticks([i + 0.5 for i in range(heads)], [str(i) for i in range(heads)])
        axes.tick_params(length=0, colors=INK)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("piece of the sequence", fontsize=9)
    plots[0].set_ylabel("head", fontsize=9)
    told = f"{heads} heads on {ranks} ranks: columns by rank before the exchange, rows by rank after it"
    return Picture(figure, f"{told}; a rank has {heads // ranks} heads of all tokens then.")
