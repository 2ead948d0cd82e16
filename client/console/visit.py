"""One request of a person: the parameters, the session, and the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...protocol.auth.permissions import ADMIN, BROKER, Permissions
from ...protocol.errors import FlintError
from ..core.consume.pages import MessageSummary
from ..errors import InvalidArgument
from ..operator.display import shown_name
from .bodies import preview
from .failures import Refused, ShownError
from .policy import origin_refusal
from .services import FORM_BYTES_MAX
from .sessions import ConsoleSession

if TYPE_CHECKING:
    from .services import ConsoleServices


PARAMETER_CHARS_MAX = 4_096


class Visit:
    """A request with its session; a page takes it and returns a response.

    ``fields``: those of the submitted form, in their order; ``failure``: why the form that the page shows again failed.
    """

    def __init__(self, request: Request, console: ConsoleServices, session: ConsoleSession) -> None:
        self.request = request
        self.console = console
        self.session = session
        self.admin = session.clients.admin
        self.consumer = session.clients.consumer
        self.fields: list[tuple[str, str]] = []
        self.failure: ShownError | None = None

    # ---- parameters

    def path(self, name: str) -> str:
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

    def part_of(self, rows: Sequence[Any], rows_max: int) -> dict[str, Any]:
        """Return the part of a list that a page shows, by the parameter ``first``, as the pager of its template takes
        it."""
        first = self.number("first", 0, 0, max(0, len(rows) - 1))
        return {"rows": rows[first : first + rows_max], "first": first, "total": len(rows), "rows_max": rows_max}

    async def form(self, bytes_max: int = FORM_BYTES_MAX) -> dict[str, str]:
        """Return the fields of the submitted form. Raises ``Refused`` if it is too large or not a form."""
        self.fields = await self.console.forms.read(self.request, bytes_max)
        return dict(self.fields)

    def preview(self, message: MessageSummary) -> str:
        """Return the beginning of a body for a list; empty if the console shows none."""
        if self.console.options.no_bodies:
            return ""
        return preview(message.body, message.sys_flag, message.has_whole_body)

    # ---- a form that is shown again, because it failed

    def typed(self, name: str, default: object = "", form: str = "") -> str:
        """Return what a person typed into a field if the page shows its form again, else ``default``. ``form``: the
        end of the form's URL, for a page with several."""
        if not self.failed(form):
            return str(default)
        return dict(self.fields).get(name, "")

    def ticked(self, name: str, default: object = False, form: str = "") -> bool:
        """Return whether a checkbox is on: as the person left it if the page shows its form again, else ``default``."""
        return bool(self.typed(name, "1" if default else "", form))

    def failed(self, form: str = "") -> bool:
        """Return whether the page shows a form again, the one whose URL ends so."""
        return self.failure is not None and bool(self.fields) and self.request.url.path.endswith(form)

    def given(self, name: str) -> str:
        """Return a parameter of the URL, or what the failed form has in its place."""
        return self.text(name) or self.typed(name)

    # ---- rights

    @property
    def read_only(self) -> bool:
        return self.console.options.read_only

    def check_writable(self) -> None:
        """Raise ``Refused`` if the console only shows things."""
        if self.read_only:
            raise Refused(403, "this console was started with --read-only; use another one, or the command line")

    def check_own_site(self) -> None:
        """Raise ``Refused`` if the page of another site makes the browser ask: streams and downloads take the console's
        places and the broker's time, although that page cannot read them."""
        headers = self.request.headers
        own = f"{'https' if self.console.options.is_encrypted else 'http'}://{headers.get('host', '')}"
        refusal = origin_refusal({name: headers[name] for name in headers if name != "cookie"}, own)
        # ``none``: a person typed the address or opened a bookmark.
        if refusal is not None and headers.get("sec-fetch-site") != "none":
            raise Refused(403, "another site asked for this; open the console and do it there")

    def may(self, action: str, kind: str = BROKER, name: str = "") -> bool:
        """Return whether the page should offer an action. The broker decides all the same."""
        if self.read_only and action in ("publish", "admin"):
            return False
        rights = self.session.rights
        return rights is None or rights.allows(action, kind, name)

    async def renew_rights(self) -> None:
        """Ask the broker which rights the user has now: before a step that only the console decides."""
        if self.session.user:
            self.session.rights = Permissions((await self.admin.whoami()).grants)

    @property
    def may_change_users(self) -> bool:
        return bool(self.session.user) and self.may(ADMIN)

    # ---- answers

    async def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """Return a page with the bar around it. If the broker does not answer, the bar says so."""
        try:
            condition, trouble = await self.session.status(time.monotonic()), ""
        except FlintError as error:
            condition, trouble = None, str(error)
        if self.failure is not None:
            status = self.failure.status
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
