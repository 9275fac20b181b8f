"""Letters on coloured blocks can be read on a light page, and on a dark one, which turns light and dark."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from labkit.show.schedule import COLORS
from labkit.show.style import ENOUGH, INK, KINDS, RANKS, STATES, VERMILION, contrast, lettering

Color = tuple[float, float, float]


def on_a_dark_page(color: str) -> Color:
    """What `theme.css` makes of it: CSS's invert(1) and hue-rotate(180deg), by the matrix of the standard."""
    red, green, blue = (1 - part for part in to_rgb(color))
    gray = 0.213 * red + 0.715 * green + 0.072 * blue
    turned = [2 * gray - part for part in (red, green, blue)]
    return tuple(min(1.0, max(0.0, part)) for part in turned)  # type: ignore[return-value]


@pytest.mark.parametrize("color", sorted({*KINDS.values(), *STATES.values(), *COLORS.values()}))
def test_letters_on_a_block_can_be_read(color: str) -> None:
    look = lettering(color)
    behind = look["bbox"]["facecolor"] if "bbox" in look else color
    assert contrast(look["color"], behind) >= ENOUGH
    assert contrast(on_a_dark_page(look["color"]), on_a_dark_page(behind)) >= ENOUGH


@pytest.mark.parametrize("color", RANKS)
def test_letters_on_a_ranks_block_can_be_read(color: str) -> None:
    assert contrast(INK, color) >= ENOUGH
    assert contrast(on_a_dark_page(INK), on_a_dark_page(color)) >= ENOUGH


def test_letters_in_vermilion_can_be_read() -> None:
    assert contrast(VERMILION, "white") >= ENOUGH
    assert contrast(on_a_dark_page(VERMILION), "black") >= ENOUGH


def test_contrast_is_that_of_the_standard() -> None:
    """WCAG's own extremes, and its example of the lightest grey that passes on white."""
    assert contrast("white", "black") == pytest.approx(21)
    assert contrast("#767676", "white") == pytest.approx(4.54, abs=0.005)
