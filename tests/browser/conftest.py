"""A real browser, a real console process and a real broker, shared by the tests of a module."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest
import pytest_asyncio

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.protocol.commands import HELLO
from tests.conftest import Brokers, RawConnection, RunningBroker
from tests.console_tools import console_process
from tests.dead_letter_tools import bury
from tests.security_tools import PASSWORD, broker_with_users

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
EVIL = "<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Return a broker with something on every page of the console."""
    brokers = Brokers(tmp_path_factory.mktemp("browser"))
    made = brokers.start(settings={"store.message_bytes_max": 4 * 1024 * 1024, "store.commitlog_file_bytes": 64 << 20})
    with (
        Admin(made.address) as admin,
        Producer(made.address, compress_over=None) as producer,
        Consumer(made.address) as consumer,
    ):
        for number in range(12):
            admin.create_topic(f"service-{number:02}", 2)
        admin.create_topic("orders", 4)
        for number in range(120):
            body = {"id": number, "amount": number * 1.5, "customer": {"id": f"c-{number % 7}", "city": "Zürich"}}
            producer.send(
                Message(
                    "orders",
                    json.dumps(body, ensure_ascii=False).encode(),
                    keys=[f"o-{number}", f"c-{number % 7}"],
                    tags=("eu", "us", "asia")[number % 3],
                    properties={"amount": str(number)},
                )
            )
        producer.send(Message("orders", EVIL.encode(), keys=[EVIL], properties={EVIL: EVIL}))
        rows = [{"n": number, "text": "lorem ipsum " * 3} for number in range(9_000)]
        producer.send(Message("orders", json.dumps(rows).encode(), keys="large"))
        consumer.commit("billing", "orders", {0: 5, 1: 20, 2: 0, 3: 30})
        with socket.create_connection((made.host, made.port), timeout=60) as sock:
            connection = RawConnection(sock)
            connection.call(HELLO, {"protocol": 1, "client": "test"}).raise_for_error()
            messages = [Message("orders", b'{"id": %d}' % number, keys=f"dead-{number}") for number in range(3)]
            bury(made, connection, "billing", messages, reason="KeyError: 'customer'")
    yield made
    brokers.stop_all()


@pytest.fixture(scope="module")
def guarded_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a console of a broker with users: ``ops``, who may do everything, and ``shop``."""
    grants: dict[str, list[dict[str, Any]]] = {
        "ops": [{"actions": ["admin"], "broker": True}],
        "shop": [{"actions": ["publish", "query"], "topic": "orders"}, {"actions": ["consume"], "groupPrefix": "bill"}],
    }
    with broker_with_users(tmp_path_factory.mktemp("guarded"), grants, {}) as guarded:
        with Admin(guarded.address, user="ops", password=PASSWORD) as admin:
            admin.add_access_key("shop")
        with console_process(guarded) as url:
            yield url


@pytest.fixture(scope="module")
def console(running: RunningBroker) -> Iterator[str]:
    with console_process(running) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Return Debian's Chromium."""
    playwright = pytest.importorskip("playwright.async_api", reason="the extra `browser` is not installed")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"there is no Chromium at {CHROMIUM} (Debian's package chromium)")
    async with playwright.async_playwright() as started:
        made = await started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        await made.close()


class Tab:
    """A page that collects everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self._log(message))

    def _log(self, message: Any) -> None:
        # The browser logs every response of 400 and above, which some tests ask for.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)


async def axe_findings(tab: Tab, url: str) -> list[str]:
    """Open a page and return what axe finds wrong in it by the rules of WCAG 2.2 AA, and in its contrasts in the dark.
    The tab must have ``bypass_csp``, because the policy would stop axe, too."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="the extra `browser` is not installed")
    # A row that has just arrived fades in, and axe would look at a colour in between.
    await tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    await tab.page.goto(url)
    found = []
    runs: list[tuple[Literal["light", "dark"], dict[str, Any]]] = [
        ("light", {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}),
        ("dark", {"type": "rule", "values": ["color-contrast"]}),
    ]
    for scheme, only in runs:
        await tab.page.emulate_media(color_scheme=scheme)
        results = await axe.Axe().run(tab.page, options={"runOnly": only})
        found += [
            f"{url}, {scheme}: {violation['id']}: {node['html'][:150]} {node['failureSummary']}"
            for violation in results.response["violations"]
            for node in violation["nodes"][:3]
        ]
    return found


WIDTHS = (320, 700, 768, 900, 1024, 1200, 1400)
"""Widths of a phone, of tablets, of half a screen and of whole ones, in pixels."""
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll('main .scroll, main table')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && !each.querySelector('.plot'))
  .map((each) => `${each.tagName} ${each.ariaLabel ?? ''} ${each.scrollWidth} > ${each.clientWidth}`)"""
SQUEEZED = """() => [...document.querySelectorAll('main td.preview')]
  .filter((each) => each.textContent.trim().length > 20 && each.clientWidth < 120)
  .map((each) => `${each.clientWidth} pixels for ${each.textContent.trim().slice(0, 40)}`)"""


async def misfits(tab: Tab, urls: Iterable[str]) -> list[str]:
    """Open pages and return what is wrong: errors, violations of the policy, and what does not fit into one of
    ``WIDTHS``: pages and tables that scroll sideways, and texts in narrow columns."""
    await tab.page.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => console.error('CSP ' + event.violatedDirective))"
    )
    found = []
    for url in urls:
        await tab.page.set_viewport_size({"width": 1280, "height": 800})
        await tab.page.goto(url)
        await tab.page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        for width in WIDTHS:
            await tab.page.set_viewport_size({"width": width, "height": 800})
            for script in (TOO_WIDE, SQUEEZED):
                found += [f"{url} at {width}: {each}" for each in await tab.page.evaluate(script)]
        found += [f"{url}: {fault}" for fault in tab.faults]
        tab.faults.clear()
    return found


async def open_tab(browser: Browser, **options: Any) -> Tab:
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)
    return Tab(await context.new_page())
