"""What the browser's tests share: one Chromium for the tests of a file, and a page for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_page import browser
from playwright.sync_api import BrowserContext, Page


@pytest.fixture(scope="module")
def chromium() -> Iterator[BrowserContext]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: BrowserContext) -> Iterator[Page]:
    with chromium.new_page() as opened:
        yield opened
