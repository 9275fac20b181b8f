"""How evenly experts are visited, and which ranks send how many rows to which."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from labkit.show.style import INK, Picture, expect_some, lettering, new_figure, rank_color

MOST_LABELS = 16  # below the bars; of more experts, each second, third, ... has one


def draw_visits(visits: Sequence[int], owners: Sequence[int]) -> Picture:
    """A bar for each expert, as high as it has visits, in the colour of its rank; dashed: the even share.

    visits, owners: of each expert, its visits and its rank. ValueError for an expert without either.
    """
    expect_some(visits, "expert")
    if len(visits) != len(owners):
        raise ValueError(f"expected visits and a rank for each expert, got {len(visits)} and {len(owners)}")
    figure, (axes,) = new_figure(height=2.6)
    even = sum(visits) / len(visits)
    axes.bar(
        range(len(visits)),
        visits,
        color=[rank_color(owner) for owner in owners],
        edgecolor=INK,
        linewidth=0.6,
    )
    axes.axhline(even, linestyle="--", linewidth=1.2, color=INK)
    labelled = range(0, len(visits), -(-len(visits) // MOST_LABELS))
    axes.set_xticks(labelled, [f"{expert}\nrank {owners[expert]}" for expert in labelled])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("expert", fontsize=9)
    axes.set_ylabel("visits", fontsize=9)
    told = ", ".join(f"expert {e} {count}" for e, count in enumerate(visits))
    return Picture(figure, f"Visits: {told}; an even share is {even:g}.")


def draw_dispatch(rows: Sequence[Sequence[int]]) -> Picture:
    """A box for each pair of ranks with the rows that go from one to the other, as wide as there are many.

    rows: [from][to]. The colour is the rank they go to.
    """
    expect_some(rows, "rank that sends rows")
    figure, (axes,) = new_figure(height=0.5 + 0.45 * len(rows))
    widest = max(1, *(sum(counts) for counts in rows))
    for sender, counts in enumerate(rows):
        start = 0
        for receiver, count in enumerate(counts):
            color = rank_color(receiver)
            axes.add_patch(
                Rectangle((start, sender + 0.1), count, 0.8, facecolor=color, edgecolor=INK, linewidth=0.6)
            )
            if 25 * count > widest:  # no room for letters in a narrower box
                middle = start + count / 2, sender + 0.5
                axes.text(
                    *middle,
                    f"{count}\nto {receiver}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    **lettering(color),
                )
            start += count
    axes.set(xlim=(0, widest), ylim=(len(rows), 0))
    axes.set_yticks(
        [sender + 0.5 for sender in range(len(rows))], [f"from rank {s}" for s in range(len(rows))]
    )
    axes.tick_params(length=0)
    axes.set_xlabel("rows", fontsize=9)
    told = "; ".join(f"from rank {s}: {', '.join(map(str, counts))}" for s, counts in enumerate(rows))
    return Picture(figure, f"Rows to ranks 0 to {len(rows) - 1}, {told}.")
