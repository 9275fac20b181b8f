"""What the tests of figures share."""

from __future__ import annotations

from matplotlib.text import Text

from labkit.show import Picture


def texts(picture: Picture) -> list[str]:
    """All that is written in a picture's axes."""
    return [text.get_text() for axes in picture.figure.axes for text in axes.findobj(Text)]
