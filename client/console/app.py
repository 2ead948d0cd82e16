"""The console as an ASGI application: routes, logins, errors."""

from __future__ import annotations

import contextlib
import mimetypes
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...protocol.auth.users import NAME_CHARS_MAX
from ...protocol.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    ConfigurationError,
    ConnectionFailed,
    FlintError,
    RequestTimeout,
)
from ..errors import InvalidArgument
from .failures import Refused, ShownError, describe
from .pages import PAGES, Page
from .policy import ConsoleOptions, SecurityPolicy
from .render import FOLDER
from .services import ConsoleServices
from .sessions import ConsoleSession
from .visit import Visit

LOGIN_NEEDED_SECONDS = 5.0
"""Seconds for which a broker that asked for a login is not asked again on behalf of visitors without one."""
OUTAGE_SECONDS = 2.0
"""Seconds for which pages repeat that the broker does not answer, without trying again: each try takes seconds."""
Endpoint = Callable[[Request], Awaitable[Response]]


class Console(ConsoleServices):
    """The console's pages and errors."""

    def __init__(self, options: ConsoleOptions, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options, clock)
        self._login_needed_until = 0.0
        self._outage: FlintError | None = None
        self._outage_until = 0.0

    def endpoint(self, page: Page, form_page: Page | None = None) -> Endpoint:
        """Return the endpoint that finds the session, calls the page and turns errors into pages. ``form_page``: the
        page with the form that ``page`` takes."""

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
                    return await self._failed(visit, form_page, describe(error))
            except (AuthenticationRequired, AuthenticationFailed) as error:
                self.sessions.end(session)
                self._login_needed_until = self._clock() + LOGIN_NEEDED_SECONDS
                return self._to_login(request, str(error) if session.user else "")
            except (ConnectionFailed, RequestTimeout) as error:
                self._outage, self._outage_until = error, self._clock() + OUTAGE_SECONDS
                return self._error_page(request, error)

        return serve

    async def _failed(self, visit: Visit, form_page: Page | None, failure: ShownError) -> Response:
        """Return the page with the form that failed, with what was typed, or else a page with the error alone."""
        visit.failure = failure
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


def make_app(console: Console) -> Starlette:
    """Return the ASGI application of a console."""

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        failure = describe(Refused(error.status_code, "there is no such page"))
        return console.html("plain_error.html", error.status_code, {"failure": failure}, request)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # the browser left before its form was complete

    routes = [
        Route("/static/{path:path}", static_files(FOLDER / "static"), methods=["GET"]),
        Route("/login", login(console), methods=["GET", "POST"]),
        Route("/logout", logout(console), methods=["POST"]),
        *(Route(path, console.endpoint(page, form), methods=[method]) for method, path, page, form in PAGES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(SecurityPolicy, options=console.options)],
        exception_handlers={404: not_found, 405: not_found, ClientDisconnect: gone},
        lifespan=console.lifespan,
    )


def static_files(folder: Path) -> Endpoint:
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


# ---- Login and logout. The console has no users of its own: the broker checks the password.


def login(console: ConsoleServices) -> Endpoint:
    """Return the endpoint of the login form."""

    async def serve(request: Request) -> Response:
        wanted = _own_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return console.html("login.html", 200, {"wanted": wanted, "error": "", "user": ""}, request)
        address = console.address_of(request)
        user = ""
        try:
            fields = dict(await console.forms.read(request))
            user, wanted = fields.get("user", "").strip(), _own_path(fields.get("next", "/"))
            session = await _attempt(console, user, fields.get("password", ""), address)
        except (FlintError, Refused) as error:
            context = {"wanted": wanted, "error": str(error), "user": user}
            status = 403 if isinstance(error, AuthenticationFailed) else describe(error).status
            return console.html("login.html", status, context, request)
        if (earlier := console.session_of(request)) is not None:
            console.sessions.end(earlier)
        response = RedirectResponse(wanted, status_code=303)
        console.set_cookie(response, session)
        return response

    return serve


async def _attempt(console: ConsoleServices, user: str, password: str, address: str) -> ConsoleSession:
    if not user or not password:
        raise InvalidArgument("type the name and the password of a user of the broker (flintmq user add creates one)")
    if len(user) > NAME_CHARS_MAX:
        raise InvalidArgument(f"the name has {len(user):,} characters; at most {NAME_CHARS_MAX} are allowed")
    with console.attempts.attempt(address, user):
        return await console.sessions.login(user, password, address)


def logout(console: ConsoleServices) -> Endpoint:
    async def serve(request: Request) -> Response:
        session = console.session_of(request)
        if session is not None:
            console.sessions.end(session)
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(
            console.cookie, path="/", secure=console.options.is_encrypted, httponly=True, samesite="strict"
        )
        return response

    return serve


def _own_path(text: str) -> str:
    """Return a path of this console, or the first page for anything else: a login must not lead to another site."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if is_own and text.isprintable() and "\\" not in text else "/"
