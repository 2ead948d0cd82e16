"""One request of a person: the parameters, the session, and the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...protocol.auth.permissions import ADMIN, BROKER
from ...protocol.errors import FlintError
from ..errors import InvalidArgument
from ..operator.names import shown_name
from .favourites import favourites_of
from .policy import NONCE
from .sessions import ConsoleSession

if TYPE_CHECKING:
    from .app import Console

FORM_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of a form: a message of 4 MiB takes up to three times that as form data."""
FORM_FIELDS_MAX = 2_000
PARAMETER_CHARS_MAX = 4_096


class Refused(Exception):
    """Error: the console does not do that. ``status``: of the HTTP response; the message is for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Visit:
    """A request with its session; a page takes it and returns a response."""

    def __init__(self, request: Request, console: Console, session: ConsoleSession) -> None:
        self.request = request
        self.console = console
        self.session = session
        self.admin = session.clients.admin
        self.consumer = session.clients.consumer

    # ---- parameters

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL without white space around it."""
        value = self.request.query_params.get(name, default).strip()
        if len(value) > PARAMETER_CHARS_MAX:
            raise InvalidArgument(f"{name} has {len(value):,} characters; at most {PARAMETER_CHARS_MAX:,} are allowed")
        return value

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number of the URL. Raises ``InvalidArgument`` outside of ``low`` to ``high``."""
        return whole_number(name, self.text(name), default, low, high)

    async def form(self) -> dict[str, str]:
        """Return the fields of a submitted form. Raises ``Refused`` if it is too large or not a form."""
        return dict(await form_fields(self.request))

    # ---- rights

    @property
    def read_only(self) -> bool:
        """Predicate: does the console refuse every change?"""
        return self.console.options.read_only

    def check_writable(self) -> None:
        """Raise ``Refused`` if the console only shows things."""
        if self.read_only:
            raise Refused(403, "this console was started with --read-only; use another one, or the command line")

    def may(self, action: str, kind: str = BROKER, name: str = "") -> bool:
        """Return whether the page should offer an action. The broker decides all the same."""
        if self.read_only and action in ("publish", "admin"):
            return False
        rights = self.session.rights
        return rights is None or rights.allows(action, kind, name)

    @property
    def may_change_users(self) -> bool:
        """Predicate: should the page offer the administration of users?"""
        return bool(self.session.user) and self.may(ADMIN)

    def is_favourite(self, topic: str) -> bool:
        """Return whether a topic is a favourite of this browser."""
        return topic in favourites_of(self.request)

    # ---- answers

    async def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """Return a page with the bar around it. If the broker does not answer, the bar says so."""
        try:
            condition, trouble = await self.session.status(time.monotonic()), ""
        except FlintError as error:
            condition, trouble = None, str(error)
        notices = [*self.session.notices]
        self.session.notices.clear()
        return self.console.html(
            template,
            status,
            {
                "visit": self,
                "user": self.session.user,
                "condition": condition,
                "trouble": trouble,
                "notices": notices,
                **context,
            },
            self.request,
        )

    def done(self, text: str, location: str) -> Response:
        """Return a redirect to a page that shows the outcome of a change."""
        self.session.notices.append(("done", text))
        return RedirectResponse(location, status_code=303)


async def form_fields(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a submitted form in their order. Raises ``Refused`` if it is too large or not a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "expected a form (application/x-www-form-urlencoded)")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > FORM_BYTES_MAX:
            raise Refused(413, f"the form is larger than {FORM_BYTES_MAX:,} bytes")
        chunks.append(chunk)
    try:
        text = b"".join(chunks).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX)
    except ValueError as error:
        raise Refused(400, f"the form is malformed: {error}") from None


def nonce_of(request: Request) -> str:
    """Return the nonce that the page's scripts carry."""
    return str(getattr(request.state, NONCE))


def whole_number(name: str, text: str, default: int, low: int, high: int) -> int:
    """Return the number that a person typed, or ``default`` for nothing. Raises ``InvalidArgument``."""
    if not text:
        return default
    digits = text.removeprefix("-").replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(text.replace(",", "")) <= high):
        raise InvalidArgument(f"{name} is {text[:40]!r}; it must be a whole number from {low:,} to {high:,}")
    return int(text.replace(",", ""))


def check_typed(form: Mapping[str, str], name: str, what: str) -> None:
    """Raise ``InvalidArgument`` unless the person typed the name of the object that is lost. ``what``: its kind."""
    if form.get("name", "").strip() not in (name, shown_name(name)):
        raise InvalidArgument(f"nothing was changed: to confirm it, type the name of {what}, {shown_name(name)}")


def chosen(options: Mapping[str, str], value: str) -> str:
    """Return ``value`` if it is one of the options, else the first option."""
    return value if value in options else next(iter(options))
