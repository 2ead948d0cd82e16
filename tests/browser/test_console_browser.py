"""The console in a real browser: both themes, a narrow screen, the keyboard alone, and nothing that axe finds."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client import Message, Producer
from tests.browser.conftest import Tab, axe_findings, misfits, open_tab
from tests.conftest import RunningBroker
from tests.security_tools import PASSWORD

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PATHS = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders?key=o-7",
    "/topics/orders?filter=amount+%3E",
    "/topics/orders/1/3",
    "/topics/orders/queues",
    "/topics/orders/readers",
    "/topics/orders/config",
    "/topics/orders/send?replay=1:3",
    "/topics/orders/live",
    "/topics/nowhere",
    "/groups",
    "/groups/billing",
    "/groups/billing/reset?topic=orders&to=earliest",
    "/dlq",
    "/dlq/billing",
    "/waiting",
    "/store",
    "/clients",
    "/settings",
    "/me",
    "/search?q=ord",
    "/login",
    "/nowhere",
]
FLOOD_RATE = 100_000
FLOOD_SECONDS = 30
BULK = 10_000
HEAP_BYTES_MAX = 50_000_000
IMAGES = os.environ.get("FLINTMQ_IMAGES")
"""Folder for screenshots; without it none are made."""


ADMIN_PATHS = ["/users", "/users/shop", "/users/nobody", "/clients", "/clients/{own}", "/me"]
"""Pages of the console of a broker with users."""


async def logged_in(browser: Browser, console: str, **options: Any) -> Tab:
    """Return a tab in which ``ops`` is logged in."""
    tab = await open_tab(browser, **options)
    await tab.page.goto(f"{console}/login")
    await tab.page.fill("[name=user]", "ops")
    await tab.page.fill("[name=password]", PASSWORD)
    await tab.page.keyboard.press("Enter")
    await tab.page.wait_for_url(f"{console}/")
    return tab


async def pages_of_administrators(tab: Tab, console: str) -> list[str]:
    """Return the URLs of ``ADMIN_PATHS``; that of a connection is the console's own."""
    await tab.page.goto(f"{console}/clients")
    own = await tab.page.get_attribute("tbody a[data-dialog]", "href")
    return [console + path.replace("/clients/{own}", own or "") for path in ADMIN_PATHS]


async def test_every_page_is_free_of_errors_and_fits_every_width(
    browser: Browser, console: str, guarded_console: str
) -> None:
    tab, admin = await open_tab(browser), await logged_in(browser, guarded_console)
    found = await misfits(tab, [console + path for path in [*PATHS, "/topics/orders?field=customer.city"]])
    found += await misfits(admin, await pages_of_administrators(admin, guarded_console))
    await tab.page.context.close()
    await admin.page.context.close()
    assert found == [], "\n".join(found)


async def test_axe_finds_nothing(browser: Browser, console: str, guarded_console: str) -> None:
    tab = await open_tab(browser, bypass_csp=True)
    admin = await logged_in(browser, guarded_console, bypass_csp=True)
    found = [each for path in PATHS for each in await axe_findings(tab, console + path)]
    for url in await pages_of_administrators(admin, guarded_console):
        found += await axe_findings(admin, url)
    await tab.page.context.close()
    await admin.page.context.close()
    assert found == [], "\n".join(found)


async def test_axe_runs(browser: Browser, console: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="the extra `browser` is not installed")
    tab = await open_tab(browser, bypass_csp=True)
    await tab.page.goto(f"{console}/login")
    await tab.page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    results = await axe.Axe().run(tab.page, options={"runOnly": ["wcag2a"]})
    await tab.page.context.close()
    assert [violation["id"] for violation in results.response["violations"]] == ["image-alt"]


CLOSE_AND_HELP = """() => new Promise((done) => {
  const dialog = document.querySelector('#dialog');
  dialog.addEventListener('close', () => setTimeout(done), { once: true });
  dialog.close();
  document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '?', bubbles: true }));
})"""
"""Closes the dialog and shows the keys before the event that it was closed."""


async def test_the_keyboard_is_enough(browser: Browser, console: str) -> None:
    tab = await open_tab(browser)
    page = tab.page
    await page.goto(f"{console}/topics")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("/")
    await page.keyboard.type("orders o-17")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/topics/orders?key=o-17")
    await page.keyboard.press("j")
    assert await page.evaluate("document.activeElement.closest('tr') !== null")
    link = await page.evaluate("document.activeElement.href")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog[open] #dialog-title")
    assert await page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    assert '"id": 17' in await page.inner_text("dialog pre")
    await page.keyboard.press("Escape")
    await page.wait_for_selector("dialog:not([open])", state="attached")
    assert await page.evaluate("document.activeElement.href") == link
    await page.keyboard.press("?")
    await page.evaluate(CLOSE_AND_HELP)
    await page.wait_for_selector("dialog[open] >> text=use these keys")
    await page.click("text=use these keys")
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")  # the keys are off now
    assert await page.evaluate("document.activeElement.id") != "search"
    await page.evaluate("localStorage.removeItem('keys')")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await page.wait_for_url("**/dlq")
    assert tab.faults == []
    await page.context.close()


async def test_everything_but_live_works_without_javascript(browser: Browser, console: str) -> None:
    tab = await open_tab(browser, java_script_enabled=False)
    page = tab.page
    await page.goto(f"{console}/topics/orders")
    await page.fill("[name=key]", "o-17")
    await page.click("text=Show >> nth=-1")
    await page.click("tbody th a")
    assert '"id": 17' in await page.inner_text("pre")
    await page.goto(f"{console}/topics/orders/send")
    await page.fill("[name=body]", "without a script")
    await page.click("main button:has-text('Send')")
    assert "stored at" in await page.inner_text("[role=status]")
    await page.context.close()


async def test_a_refresh_changes_figures_and_keeps_the_focus(
    browser: Browser, console: str, running: RunningBroker
) -> None:
    tab = await open_tab(browser)
    page = tab.page
    await page.goto(f"{console}/topics?q=service-03")
    await page.check("#live")
    await page.focus("tbody th a")
    with Producer(running.address) as producer:
        producer.send_many([Message("service-03", b"x")] * 41)
    await page.wait_for_selector("td:text-is('41')", timeout=15_000)
    assert await page.evaluate("document.activeElement.textContent") == "service-03"
    assert tab.faults == []
    await page.context.close()


async def test_the_theme_and_the_zone_are_the_persons(browser: Browser, console: str) -> None:
    tab = await open_tab(browser, timezone_id="Asia/Tokyo", color_scheme="light")
    page = tab.page
    await page.goto(f"{console}/topics/orders/0/0")
    shown, utc = await page.inner_text("dd time >> nth=0"), await page.get_attribute("dd time >> nth=0", "title")
    assert utc is not None
    assert int(shown[11:13]) == (int(utc[11:13]) + 9) % 24
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.click("#theme")  # light
    await page.click("#theme")  # dark
    await page.reload()
    assert await page.inner_text("#theme") == "Theme: dark"
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    await page.context.close()


async def test_a_large_body_does_not_freeze_the_page(browser: Browser, console: str) -> None:
    tab = await open_tab(browser)
    page = tab.page
    await page.goto(f"{console}/topics/orders?key=large")
    await page.wait_for_selector("#help")
    await page.click("tbody th a")
    await page.wait_for_selector("dialog[open] pre")
    assert await page.evaluate("document.querySelectorAll('dialog pre .part').length") > 10
    assert "the first 64 KiB" in await page.inner_text("dialog")
    assert await page.evaluate("document.querySelector('dialog pre').textContent.length") < 300_000
    await page.context.close()


async def test_a_filter_is_checked_while_a_person_types_it(browser: Browser, console: str) -> None:
    tab = await open_tab(browser)
    page = tab.page
    for path in ("/topics/orders", "/topics/orders/live"):
        await page.goto(console + path)
        await page.focus("[name=filter]")
        await page.keyboard.type("amount > <b>")
        await page.wait_for_selector("#filter-check pre")
        assert await page.inner_text("#filter-check pre") == "amount > <b>\n         ^"
        assert await page.get_attribute("[name=filter]", "aria-invalid") == "true"
        await page.fill("[name=filter]", "amount > 5")
        await page.wait_for_selector("#filter-check pre", state="detached")
        assert await page.get_attribute("[name=filter]", "aria-invalid") is None
    assert tab.faults == []
    await page.context.close()


async def test_a_user_is_added_and_gets_a_right_by_the_keyboard_alone(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console)
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("u")
    await page.wait_for_url("**/users")
    await page.focus("summary")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("new")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Its password is shown only here")
    await page.goto(f"{guarded_console}/users/new")
    await page.focus("[name=right]")
    await page.keyboard.type("consume on a topic")
    await page.keyboard.press("Tab")
    await page.keyboard.type("orders")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=new may consume on topic orders")
    assert "consume on topic orders" in await page.inner_text("tbody")
    assert tab.faults == []
    await page.context.close()


async def test_a_user_is_changed_and_deleted_without_javascript(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console, java_script_enabled=False)
    page = tab.page
    await page.goto(f"{guarded_console}/users")
    await page.click("summary")
    await page.fill("[name=user]", "brief")
    await page.click("button:has-text('Add')")
    await page.click("text=rights and keys of the user")
    await page.click("summary:has-text('Delete')")
    await page.fill("[action$=delete] [name=name]", "brief")
    await page.click("text=Delete this user")
    assert "user brief is deleted" in await page.inner_text("[role=status]")
    await page.context.close()


async def test_a_connection_is_closed_by_the_keyboard_in_a_dialog(browser: Browser, guarded_console: str) -> None:
    tab = await logged_in(browser, guarded_console)
    page = tab.page
    await page.goto(f"{guarded_console}/clients")
    await page.focus("tbody tr:last-child a[data-dialog]")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog[open] #dialog-title")
    await page.focus("dialog button.danger")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("[role=status]:has-text('is closed; its client may connect again')")
    assert tab.faults == []
    await page.context.close()


async def test_a_flood_leaves_the_live_view_small(browser: Browser, console: str, running: RunningBroker) -> None:
    tab = await open_tab(browser)
    page = tab.page
    await page.goto(f"{console}/topics/service-05/live")
    await page.wait_for_selector("#live-state:has-text('live')")
    with flood(running, "service-05", 0):
        await page.wait_for_selector("#live-rows tr:nth-child(500)", timeout=60_000)
        for _ in range(10):
            await page.wait_for_timeout(200)
            assert await page.evaluate("document.querySelectorAll('#live-rows tr').length") <= 500
        await page.wait_for_selector("#live-state:has-text('skipped')")
        await page.keyboard.press("p")
        await page.wait_for_selector("#live-state:has-text('paused')")
    shown = await page.inner_text("#live-state")
    await page.wait_for_timeout(500)
    assert await page.inner_text("#live-state") == shown  # nothing arrives while it is paused
    assert tab.faults == []
    await page.context.close()


@pytest.mark.long(seconds=35)
async def test_half_a_minute_of_a_flood_leaves_the_page_small_and_quick(
    browser: Browser, console: str, running: RunningBroker
) -> None:
    tab = await open_tab(browser)
    page = tab.page
    await page.goto(f"{console}/topics/service-06/live")
    await page.wait_for_selector("#live-state:has-text('live')")
    devtools = await page.context.new_cdp_session(page)
    nodes, heaps, slow = [], [], []
    with flood(running, "service-06", FLOOD_RATE) as sent:
        began = time.monotonic()
        while time.monotonic() - began < FLOOD_SECONDS:
            await page.wait_for_timeout(1000)
            clicked = time.monotonic()
            await page.click("#speak")  # a person can use the page meanwhile
            slow.append(time.monotonic() - clicked)
            assert await page.evaluate("document.querySelectorAll('#live-rows tr').length") <= 500
            if int(time.monotonic() - began) % 5 == 0:
                await devtools.send("HeapProfiler.collectGarbage")
                counters = await devtools.send("Memory.getDOMCounters")
                nodes.append(counters["nodes"])
                heaps.append((await devtools.send("Runtime.getHeapUsage"))["usedSize"])
    state = await page.inner_text("#live-state")
    shown, skipped = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:shown|skipped)", state))
    assert shown > 500
    assert skipped > sum(sent) / 3
    assert max(slow) < 3.0, slow
    # The first rows need memory that stays; after a third of the time nothing piles up any more.
    third = len(nodes) // 3
    assert max(nodes[third:]) < 1.5 * nodes[third], nodes
    assert max(heaps) < HEAP_BYTES_MAX, heaps
    assert tab.faults == []
    await page.context.close()


@contextlib.contextmanager
def flood(running: RunningBroker, topic: str, rate: int) -> Iterator[list[int]]:
    """Send to a topic until the context ends; yield the number of messages of each bulk so far. ``rate``: messages a
    second, 0: as fast as possible."""
    ending, sent = threading.Event(), list[int]()

    def send() -> None:
        with Producer(running.address, flush="async") as producer:
            due = time.monotonic()
            while not ending.is_set():
                producer.send_bulk(topic, [b"x" * 100] * BULK)
                sent.append(BULK)
                due += BULK / rate if rate else 0.0
                time.sleep(max(0.0, due - time.monotonic()) if rate else 0.0)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        ending.set()
        sender.join()


@pytest.mark.skipif(not IMAGES, reason="set FLINTMQ_IMAGES to a folder to make the screenshots of the documents")
async def test_screenshots(browser: Browser, console: str) -> None:
    assert IMAGES
    for name, path in (
        ("messages", "/topics/orders?count=50"),
        ("dead-letters", "/dlq/billing"),
        ("group", "/groups/billing"),
    ):
        for kind, width, scheme in (("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 360, "light")):
            tab = await open_tab(browser, color_scheme=scheme, viewport={"width": width, "height": 760})
            await tab.page.goto(console + path)
            await tab.page.screenshot(path=Path(IMAGES) / f"console-{name}-{kind}.png")
            await tab.page.context.close()
