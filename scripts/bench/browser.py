"""Times of a page in a real browser, as the browser itself measures them."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .measure import Skipped

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
).split()
LOADS = 10
_FIRST_PAINT = """new Promise(done => new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") done(entry.startTime);
}).observe({type: "paint", buffered: true}))"""
_SHOWN = """addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  window.shownAt = performance.now();
})))"""
"""Notes when the first frame after the load is drawn, in the page itself: the way of a question to the browser and back
is not the page's."""
_SHOWN_AT = """new Promise(done => {
  const ask = () => (window.shownAt ? done(window.shownAt) : setTimeout(ask));
  ask();
})"""


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield Debian's Chromium. Raises ``Skipped`` if it or Playwright is not installed."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise Skipped("the figures of the browser: the extra `browser` is not installed") from None
    if shutil.which(CHROMIUM) is None:
        raise Skipped(f"the figures of the browser: there is no {CHROMIUM} (Debian's package chromium)")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield made
        finally:
            made.close()


def paint_ms(browser: Browser, url: str) -> float:
    """Return the median time from the navigation to the first contentful paint with an empty cache in ms."""
    return statistics.median(_load(browser, url, _FIRST_PAINT) for _ in range(LOADS))


def shown_ms(browser: Browser, url: str) -> float:
    """Return the median time from the navigation until the whole page is loaded and drawn in ms."""
    return statistics.median(_load(browser, url, _SHOWN_AT) for _ in range(LOADS))


def _load(browser: Browser, url: str, figure: str) -> float:
    context = browser.new_context()  # an empty cache
    try:
        page = context.new_page()
        page.add_init_script(_SHOWN)
        page.goto(url)
        return float(page.evaluate(figure))
    finally:
        context.close()
