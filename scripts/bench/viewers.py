"""Viewers of the console: people who look at it at the same time, some at a live view, the others at the overview; and
a real browser, which measures the times of a page."""

from __future__ import annotations

import http.client
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from flintmq.client import Message, Producer
from flintmq.protocol.auth.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.auth.users import User, UserFile, Users

from .load import BODY_BYTES, TOPIC
from .measure import BenchFailed, Skipped

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USERS = 5
VIEWERS = 20
"""Each is a session of its own. A user has at most four live views."""
PASSWORD = "correct horse"  # noqa: S105 - of a store that lives for one run
REFRESH_SECONDS = 3.0
"""Seconds between two requests of a page that refreshes itself, as in the console's script."""
SEND_EVERY_SECONDS = 0.002
ANSWER_SECONDS_MAX = 30.0
STREAM_SECONDS_MAX = 15.0
"""Seconds within which a live view of a topic that gets messages shows something."""


def user_name(number: int) -> str:
    return f"viewer-{number % USERS}"


def create_users(store: Path) -> None:
    """Write users who may do everything into an empty store."""
    (store / "config").mkdir(parents=True, exist_ok=True)
    verifier = make_verifier(PASSWORD, ITERATIONS_MIN)
    may_all = ({"actions": ["admin"], "broker": True},)

    def edit(users: Users) -> Users:
        return Users({user_name(number): User(user_name(number), verifier, may_all) for number in range(USERS)})

    UserFile(store).change(edit)


def witness(address: str, stop: Event, result: Connection) -> None:
    """Send one message after another to ``TOPIC`` as one of the users; report the seconds of each."""
    taken: list[float] = []
    with Producer(address, user=user_name(0), password=PASSWORD) as producer:
        producer.send(Message(TOPIC, bytes(BODY_BYTES)))
        result.send("ready")
        while not stop.wait(SEND_EVERY_SECONDS):
            began = time.perf_counter()
            producer.send(Message(TOPIC, bytes(BODY_BYTES)))
            taken.append(time.perf_counter() - began)
    result.send(taken)


@dataclass
class Audience:
    """State that the viewers' threads share. ``seated``: released once by each viewer that sees its page."""

    url: str
    ending: threading.Event = field(default_factory=threading.Event)
    seated: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    failures: list[str] = field(default_factory=list)


@contextmanager
def viewers(url: str) -> Iterator[None]:
    """Let half of the viewers follow the live view of ``TOPIC`` and the others refresh the overview, until the context
    ends. Raises ``BenchFailed`` if one of them does not see its page."""
    audience = Audience(url)
    threads = [threading.Thread(target=_look, args=(audience, number), daemon=True) for number in range(VIEWERS)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            if not audience.seated.acquire(timeout=ANSWER_SECONDS_MAX):
                raise BenchFailed(f"not all {VIEWERS} viewers see their pages: {audience.failures[:1]}")
        yield
    finally:
        audience.ending.set()
        for thread in threads:
            thread.join(ANSWER_SECONDS_MAX)
    if audience.failures:
        raise BenchFailed(f"{len(audience.failures)} of {VIEWERS} viewers failed; the first: {audience.failures[0]}")


def _look(audience: Audience, number: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(audience.url).netloc, timeout=STREAM_SECONDS_MAX)
    try:
        headers = {"cookie": _log_in(connection, number)}
        if number < VIEWERS // 2:
            stream = _get(connection, f"/topics/{TOPIC}/live/stream", headers)
            audience.seated.release()
            while not audience.ending.is_set():
                if not stream.readline():
                    raise BenchFailed("the live view ended")
        else:
            _get(connection, "/", headers).read()
            audience.seated.release()
            audience.ending.wait(REFRESH_SECONDS * number / VIEWERS)  # people do not open their pages all at once
            while not audience.ending.wait(REFRESH_SECONDS):
                connection.close()  # the server may have closed it meanwhile; a browser opens another one, too
                _get(connection, "/", headers).read()
    except (BenchFailed, OSError, http.client.HTTPException) as error:
        if not audience.ending.is_set():  # at the end no client sends, so a live view is quiet
            audience.failures.append(str(error) or type(error).__name__)
    finally:
        connection.close()


def _log_in(connection: http.client.HTTPConnection, number: int) -> str:
    """Log in and return the cookie of the session."""
    form = urlencode({"user": user_name(number), "password": PASSWORD, "next": "/"})
    kind = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    for _ in range(int(ANSWER_SECONDS_MAX)):
        connection.request("POST", "/login", form, kind)
        response = connection.getresponse()
        response.read()
        if cookie := response.getheader("set-cookie"):
            return cookie.partition(";")[0]
        time.sleep(1)  # the console tries four logins at a time
    raise BenchFailed(f"{user_name(number)} could not log in: {response.status}")


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    if response.status != 200:
        raise BenchFailed(f"{path} has the status {response.status}")
    return response


# ---- A real browser.

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
