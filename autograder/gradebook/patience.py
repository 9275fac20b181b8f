"""How long it may take to set a student's text: some take an afternoon, and the class waits behind them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

OF_A_TEXT = 4.0  # seconds of a core for one cell; an honest one of the most characters there may be takes two
OF_A_PAGE = 10.0  # for all cells of a page together


class _TooLong(BaseException):
    """The time is up. No Exception, which what sets a text may catch."""


class Patience:
    """So many seconds of a core for what is set on one page."""

    def __init__(self) -> None:
        self._left = OF_A_PAGE

    def set(self, text: str, work: Callable[[], str], plain: Callable[[str], str]) -> str:
        """What `work` makes of a text; where that takes too long, `plain` of it.

        Signals end it, which regular expressions look for as they run. They come to the main thread: in
        another one nothing ends it.
        """
        if self._left <= 0:
            return plain(text)
        if threading.current_thread() is not threading.main_thread():
            return work()
        before, began = signal.signal(signal.SIGPROF, _end), time.process_time()
        most = used = min(OF_A_TEXT, self._left)
        try:
            signal.setitimer(signal.ITIMER_PROF, most)
            made = work()
            used = time.process_time() - began
            return made
        except _TooLong:
            return plain(text)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            self._left -= min(used, most)


def _end(number: int, frame: FrameType | None) -> None:
    raise _TooLong
