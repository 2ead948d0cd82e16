"""The person's own page: the user's rights, and the user's sessions at this console."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from starlette.responses import RedirectResponse, Response

from ....protocol.auth.permissions import ACTIONS, Permissions
from ..failures import Refused
from ..sessions import ConsoleSession
from ..visit import Visit


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session of the user. ``mark``: names it in forms; ``age_seconds``: since the login; ``idle_seconds``: since
    the last page."""

    mark: str
    address: str
    age_seconds: float
    idle_seconds: float
    is_this: bool


async def me(visit: Visit) -> Response:
    """Return the rights and sessions of the user."""
    own = await visit.admin.whoami()
    if own.user:
        visit.session.rights = Permissions(own.grants)  # they may have changed since the login
    sessions = visit.console.sessions
    return await visit.page(
        "me.html",
        own=own,
        grants=[(str(each), [action for action in ACTIONS if action in each.actions]) for each in own.grants],
        sessions=[
            SessionRow(_mark(each), each.address, *sessions.ages(each), each is visit.session)
            for each in sessions.of_user(visit.session.user)
        ],
    )


async def end_session(visit: Visit) -> Response:
    """End one session of the user. A console that refuses changes to the broker allows this too."""
    form = await visit.form()
    sessions = visit.console.sessions
    found = next((each for each in sessions.of_user(visit.session.user) if _mark(each) == form.get("mark")), None)
    if found is None:
        raise Refused(404, "this session has ended already")
    sessions.end(found)
    if found is visit.session:
        return RedirectResponse("/login", status_code=303)
    return visit.done(f"the session from {found.address} has ended", "/me")


def _mark(session: ConsoleSession) -> str:
    """Return a name for a session that, unlike its id, may be in a page: with the id anyone could take it over."""
    return hashlib.sha256(session.id.encode()).hexdigest()[:24]
