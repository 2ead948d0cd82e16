"""Login and logout. The console has no users of its own: the broker checks the password."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...protocol.auth.users import NAME_CHARS_MAX
from ...protocol.errors import AuthenticationFailed, FlintError
from ..errors import InvalidArgument
from .failures import Refused, describe
from .services import ConsoleServices
from .sessions import ConsoleSession

Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(console: ConsoleServices) -> Endpoint:
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
    """Return the endpoint that ends a session."""

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
