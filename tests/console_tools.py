"""Consoles for tests: in this process with a test client, or as the process that people start."""

from __future__ import annotations

import contextlib
import html
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient

from flintmq.client import Admin
from flintmq.client.console.app import Console, make_app
from flintmq.client.console.policy import ConsoleOptions
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from tests.cli_tools import PROGRAM
from tests.conftest import RawConnection, RunningBroker

ORIGIN = "http://127.0.0.1:10980"
SAME_SITE = {"sec-fetch-site": "same-origin"}
VOID = {"input", "meta", "link", "br", "hr", "img", "path", "polyline", "rect", "line", "circle"}


@contextlib.contextmanager
def console_of(
    running: RunningBroker, clock: Callable[[], float] = time.monotonic, **options: Any
) -> Iterator[TestClient]:
    """Return a client of a console of this broker. It does not follow redirects. ``clock``: seconds of the sessions."""
    console = Console(ConsoleOptions(broker=running.address, tls={}, port=10980, **options), clock)
    with TestClient(make_app(console), base_url=ORIGIN, follow_redirects=False) as client:
        yield client


def log_in(client: TestClient, user: str, password: str, **headers: str) -> Any:
    """Send the login form and return the response; the client keeps the cookie."""
    form = {"user": user, "password": password, "next": "/topics"}
    return client.post("/login", data=form, headers=SAME_SITE | headers)


def requests_of(running: RunningBroker, act: Callable[[], object], **access: Any) -> int:
    """Return how many requests the consoles' connections send to the broker while ``act`` runs. The connections must be
    open already."""

    def sent(admin: Admin) -> dict[int, int]:
        return {each.id: each.frames_in for each in admin.connections() if each.client.startswith("console/")}

    with Admin(running.address, **access) as admin:
        before = sent(admin)
        act()
        # A connection of an earlier test's console may have closed meanwhile.
        return sum(frames - before.get(connection, 0) for connection, frames in sent(admin).items())


def make_topics(connection: RawConnection, count: int) -> None:
    """Create the topics ``t0000``, ``t0001``, …, with a queue each, without waiting for each response."""
    for number in range(count):
        fields = {"topic": f"t{number:04}", "read_queues": 1, "write_queues": 1}
        connection.send(UPDATE_AND_CREATE_TOPIC, fields)
    for _ in range(count):
        connection.receive().raise_for_error()


def text_of(page: str) -> str:
    """Return the text of a page as a person reads it."""
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


def next_page(page: str) -> str:
    """Return the URL of the next page of a list, or an empty string."""
    return page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")


class _Structure(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if any(name.startswith("on") or name == "style" for name, _ in attrs):
            self.faults.append(f"<{tag}> has inline code")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes another element")


def faults_of(page: str) -> list[str]:
    """Return the faults in the structure of a page: unbalanced elements, repeated ids, inline code, more than one
    ``h1``."""
    parser = _Structure()
    parser.feed(page)
    faults = parser.faults + [f"<{tag}> is not closed" for tag in parser.open]
    faults += [f"id {name} is there twice" for name in {*parser.ids} if parser.ids.count(name) > 1]
    if len(re.findall(r"<h1\b", page)) != 1:
        faults.append("there is not one h1")
    return faults


@contextlib.contextmanager
def console_process(running: RunningBroker, *arguments: str) -> Iterator[str]:
    """Run ``flintmq console`` for a broker and yield its URL."""
    command = [*PROGRAM, "-b", running.address, "console", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("console: ").strip().rstrip("/")
        finally:
            process.terminate()
            assert process.wait(60) == 0
