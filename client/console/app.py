"""The console as an ASGI application: routes, sessions, errors."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ... import __version__
from ...protocol.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    ConfigurationError,
    ConnectionFailed,
    FlintError,
    RequestTimeout,
)
from ..core.consume.pages import TopicPage
from ..core.rpc.access import CLIENT_NAME_CHARS_MAX, AccessOptions
from . import render, sessions
from .bodies import Decoders
from .failures import Refused, ShownError, describe
from .options import ConsoleOptions
from .pages import FORM_PAGES, PAGES
from .policy import SecurityPolicy
from .resend_job import ResendJob
from .sampler import Sampler
from .sessions import BrokerClients, ConsoleSession, LoginAttempts, Sessions
from .visit import Forms, Visit, nonce_of

COOKIE = "flintmq_console"
THEME_COOKIE = "flintmq_theme"
THEMES = ("light", "dark")
SWEEP_SECONDS = 30.0
LOGIN_NEEDED_SECONDS = 5.0
"""Seconds for which a broker that asked for a login is not asked again on behalf of visitors without one."""
JOBS_RUNNING_MAX = 4
JOBS_MAX = 100
"""Maximum number of jobs whose outcome is remembered."""
OUTAGE_SECONDS = 2.0
"""Seconds for which pages repeat that the broker does not answer, without trying again: each try takes seconds."""
SAMPLERS_MAX = 100
"""Maximum number of users whose rates are sampled at the same time."""
Page = Callable[[Visit], Awaitable[Response]]


class Console:
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
        self._login_needed_until = 0.0
        self._outage: FlintError | None = None
        self._outage_until = 0.0
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
        """Return the session of a request, or None if there is no login."""
        return self.sessions.find(request.cookies.get(self.cookie, ""))

    def set_cookie(self, response: Response, session: ConsoleSession) -> None:
        """Give the browser its session."""
        response.set_cookie(
            self.cookie, session.id, httponly=True, samesite="strict", secure=self.options.is_encrypted, path="/"
        )

    # ---- answers

    def html(self, template: str, status: int, context: dict[str, Any], request: Request) -> Response:
        """Return a rendered page."""
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

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that finds the session, calls the page and turns errors into pages."""

        async def serve(request: Request) -> Response:
            if self._outage is not None and self._clock() < self._outage_until:
                return self._error_page(request, self._outage)
            session = self.session_of(request)
            if session is None:
                if self._clock() < self._login_needed_until:
                    return self._to_login(request, "")
                session = self.sessions.anonymous(self.address_of(request))
            try:
                visit = Visit(request, self, session)
                try:
                    if not session.user:
                        await self._check_open(session)
                    return await page(visit)
                except (AuthenticationRequired, AuthenticationFailed, ConnectionFailed, RequestTimeout):
                    raise
                except (FlintError, Refused) as error:
                    return await self._failed(visit, page, describe(error))
            except (AuthenticationRequired, AuthenticationFailed) as error:
                self.sessions.end(session)
                self._login_needed_until = self._clock() + LOGIN_NEEDED_SECONDS
                return self._to_login(request, str(error) if session.user else "")
            except (ConnectionFailed, RequestTimeout) as error:
                self._outage, self._outage_until = error, self._clock() + OUTAGE_SECONDS
                return self._error_page(request, error)

        return serve

    async def _failed(self, visit: Visit, page: Page, failure: ShownError) -> Response:
        """Return the page with the form that failed, with what was typed, or else a page with the error alone."""
        visit.failure = failure
        form_page = FORM_PAGES.get(page)
        if form_page is not None and (visit.request.method == "POST" or failure.status == 400):
            with contextlib.suppress(FlintError, Refused):  # the page cannot be shown either: the first error matters
                return await form_page(visit)
        return await visit.page("error.html", failure=failure)

    def _error_page(self, request: Request, error: FlintError) -> Response:
        """Return a page without a bar: the broker, which would fill it, does not answer."""
        failure = describe(error)
        return self.html("plain_error.html", failure.status, {"failure": failure}, request)

    async def _check_open(self, session: ConsoleSession) -> None:
        """Raise unless visitors may use the console without a login: the broker has no users, and only this machine
        can reach the console."""
        await session.status(time.monotonic())  # raises AuthenticationRequired if the broker has users
        try:
            self.options.check_access()
        except ConfigurationError as error:
            raise Refused(403, str(error)) from None

    def _to_login(self, request: Request, reason: str) -> Response:
        if request.method != "GET":
            return RedirectResponse("/login", status_code=303)
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") == "cross-site" and not reason:
            # The browser sends a strict cookie only with requests that begin on this site: load the page once more.
            return self.html("reload.html", 200, {}, request)
        return RedirectResponse(f"/login?next={quote(wanted)}", status_code=303)

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


def make_app(console: Console) -> Starlette:
    """Return the ASGI application of a console."""

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        failure = describe(Refused(error.status_code, "there is no such page"))
        return console.html("plain_error.html", error.status_code, {"failure": failure}, request)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # the browser left before its form was complete

    routes = [
        Route("/static/{path:path}", static_files(render.FOLDER / "static"), methods=["GET"]),
        Route("/login", sessions.endpoint(console), methods=["GET", "POST"]),
        Route("/logout", sessions.logout(console), methods=["POST"]),
        *(Route(path, console.endpoint(page), methods=[method]) for method, path, page in PAGES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(SecurityPolicy, options=console.options)],
        exception_handlers={404: not_found, 405: not_found, ClientDisconnect: gone},
        lifespan=console.lifespan,
    )


def static_files(folder: Path) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of scripts and styles, which are kept in memory: a page needs several of them before it is
    drawn, and a look at the disk takes a thread each. Their URLs contain the release, so browsers may keep them."""
    responses = {
        path.relative_to(folder).as_posix(): (path.read_bytes(), mimetypes.guess_type(path.name)[0])
        for path in folder.rglob("*")
        if path.is_file()
    }

    async def serve(request: Request) -> Response:
        found = responses.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404)
        return Response(found[0], headers={"cache-control": "public, max-age=86400"}, media_type=found[1])

    return serve
