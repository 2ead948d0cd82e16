"""What the requests of one console share: its sessions, forms, samplers, jobs and templates."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ... import __version__
from ..core.consume.pages import TopicPage
from ..core.rpc.access import CLIENT_NAME_CHARS_MAX, AccessOptions
from . import render
from .bodies import Decoders
from .failures import Refused
from .policy import ConsoleOptions, nonce_of
from .resend_job import ResendJob
from .sampler import Sampler
from .sessions import BrokerClients, ConsoleSession, LoginAttempts, Sessions

FORM_BYTES_MAX = 64 * 1024
"""Maximum size of most forms."""
OFFSETS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the form with the offsets of all queues of a topic."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of the form with a message: one of 4 MiB takes up to three times that as form data."""
FIELDS_MAX = 200
LARGE_FORMS_MAX = 4
"""Maximum number of forms over ``FORM_BYTES_MAX`` that are read at the same time."""
_DECODED_AT_ONCE = 64 * 1024


class Forms:
    """Reads the forms of all visitors, so that those in progress have a bound together."""

    def __init__(self) -> None:
        self._large = 0

    async def read(self, request: Request, bytes_max: int = FORM_BYTES_MAX) -> list[tuple[str, str]]:
        """Return the fields of a submitted form in their order. Raises ``Refused`` if it is too large or not a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(415, "expected a form (application/x-www-form-urlencoded)")
        data, is_large = bytearray(), False
        try:
            async for chunk in request.stream():
                if len(data) + len(chunk) > bytes_max:
                    raise Refused(413, f"the form is larger than {bytes_max:,} bytes")
                data += chunk
                if not is_large and len(data) > FORM_BYTES_MAX:
                    if self._large >= LARGE_FORMS_MAX:
                        raise Refused(429, f"{self._large} large forms are being read already; try again in a moment")
                    self._large, is_large = self._large + 1, True
            # On a thread, a large one does not hold up the pages of others.
            return await asyncio.to_thread(parse_form, data) if is_large else parse_form(data)
        except ValueError as error:
            raise Refused(400, f"the form is malformed: {error}") from None
        finally:
            self._large -= is_large


def parse_form(data: bytes | bytearray) -> list[tuple[str, str]]:
    """Return the fields of a form in their order. Raises ``ValueError``.

    Unlike ``parse_qsl``, it needs little more memory than the form itself, whatever the form is made of.
    """
    if not data.isascii():
        raise ValueError("it has bytes that are not ASCII")
    if data.count(b"&") >= FIELDS_MAX:
        raise ValueError(f"it has more than {FIELDS_MAX} fields")
    fields = []
    for pair in data.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            fields.append((_decoded(name), _decoded(value)))
    return fields


def _decoded(part: bytes | bytearray) -> str:
    part = part.replace(b"+", b" ")
    if b"%" not in part:
        return part.decode("ascii")
    whole, at = bytearray(), 0
    while at < len(part):
        end = at + _DECODED_AT_ONCE
        # An escape has three characters; one that begins just before the end belongs to the next piece.
        cut = part.find(b"%", end - 2, end)
        end = cut if cut >= 0 and end < len(part) else end
        whole += unquote_to_bytes(bytes(part[at:end]))
        at = end
    return whole.decode("utf-8")


COOKIE = "flintmq_console"
THEME_COOKIE = "flintmq_theme"
THEMES = ("light", "dark")
SWEEP_SECONDS = 30.0
JOBS_RUNNING_MAX = 4
JOBS_MAX = 100
"""Maximum number of jobs whose outcome is remembered."""
SAMPLERS_MAX = 100
"""Maximum number of users whose rates are sampled at the same time."""


class ConsoleServices:
    """Everything that the requests of one console process share."""

    def __init__(self, options: ConsoleOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.sessions = Sessions(self._open_clients, clock)
        self.attempts = LoginAttempts(clock)
        self.forms = Forms()
        self.ending = asyncio.Event()
        """Set when the console stops: live streams end, which uvicorn would otherwise wait for."""
        self.streams: dict[str, int] = {}
        """Number of live streams by user."""
        self.looks: dict[tuple[str, str, int], tuple[float, TopicPage]] = {}
        """The newest page of a topic's messages, and when it was looked at, by user, topic and queue (-1: all)."""
        self.jobs: dict[str, ResendJob] = {}
        """The newest job of each group whose dead letters were sent again."""
        self.decoders = Decoders()
        self._threads: set[asyncio.Future[None]] = set()
        self._clock = clock
        self._templates: Environment = render.environment()
        self._samplers: dict[str, Sampler] = {}

    @property
    def cookie(self) -> str:
        """Name of the session's cookie. It has the port, because browsers send a cookie to every port of its host: two
        consoles of a host must not end each other's sessions. With HTTPS, the prefix keeps other hosts and plain HTTP
        from setting it."""
        name = f"{COOKIE}_{self.options.port}"
        return f"__Host-{name}" if self.options.is_encrypted else name

    def _open_clients(self, user: str, password: str, address: str) -> BrokerClients:
        name = f"console/{__version__} for {address}"[:CLIENT_NAME_CHARS_MAX]
        access: AccessOptions = {**self.options.tls, "client_name": name}
        if user:
            access |= {"user": user, "password": password}
        return BrokerClients(self.options.broker, access)

    def sampler(self, session: ConsoleSession) -> Sampler:
        """Return the sampler that all sessions of one user share, and keep it running."""
        sampler = self._samplers.get(session.user)
        if sampler is None:
            if len(self._samplers) >= SAMPLERS_MAX:
                self._samplers.pop(next(iter(self._samplers))).stop()
            sampler = self._samplers[session.user] = Sampler(self._clock)
        sampler.watch(session)
        return sampler

    def start(self, group: str, job: ResendJob) -> None:
        """Run a job in a thread. Raises ``Refused`` if too many run already."""
        if len(self._threads) >= JOBS_RUNNING_MAX:
            raise Refused(429, f"{len(self._threads)} groups are being sent again already; wait until one is done")
        while len(self.jobs) >= JOBS_MAX:
            # There is one: at most ``JOBS_RUNNING_MAX`` are not over.
            self.jobs.pop(next(name for name, each in self.jobs.items() if each.is_over))
        # Removed first, so that the new job is the last of the dict: those before it are forgotten earlier.
        self.jobs.pop(group, None)
        self.jobs[group] = job
        thread = asyncio.ensure_future(asyncio.to_thread(job.run))
        self._threads.add(thread)
        thread.add_done_callback(self._threads.discard)

    # ---- who asks

    def address_of(self, request: Request) -> str:
        """Return the browser's address; behind a proxy, the one that the proxy saw."""
        if self.options.behind_proxy and (forwarded := request.headers.get("x-forwarded-for")):
            # The proxy has added the last address; those before it are what the browser claimed.
            last = forwarded.rpartition(",")[2].strip()[:64]
            # Some proxies add the port, which is another one each time.
            return last.rpartition(":")[0] if last.count(":") == 1 else last.removeprefix("[").partition("]")[0]
        return request.client.host if request.client else "unknown"

    def session_of(self, request: Request) -> ConsoleSession | None:
        return self.sessions.find(request.cookies.get(self.cookie, ""))

    def set_cookie(self, response: Response, session: ConsoleSession) -> None:
        response.set_cookie(
            self.cookie, session.id, httponly=True, samesite="strict", secure=self.options.is_encrypted, path="/"
        )

    # ---- answers

    def html(self, template: str, status: int, context: dict[str, Any], request: Request) -> Response:
        text = self._templates.get_template(template).render(
            options=self.options,
            version=__version__,
            theme=theme if (theme := request.cookies.get(THEME_COOKIE)) in THEMES else "",
            path=request.url.path,
            url=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            nonce=nonce_of(request),
            now=datetime.now(UTC),
            **context,
        )
        return HTMLResponse(text, status)

    # ---- life

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Sweep sessions while the console runs, and end them when it stops."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            # Everything that uses the sessions' clients ends before the sessions do.
            self.ending.set()
            sweeper.cancel()
            for sampler in self._samplers.values():
                sampler.stop()
            for job in self.jobs.values():
                job.stop()
            await asyncio.gather(*self._threads)
            await self.sessions.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sessions.sweep()
