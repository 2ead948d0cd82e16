"""Users: the list, one user with its rights and access keys, and every change of them. Only for administrators."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from ....protocol.auth.permissions import ACTIONS, ADMIN, BROKER, Grant, Permissions
from ....protocol.commands import AccessKeyInfo, UserInfo
from ....protocol.display import escape
from ....protocol.errors import ConfigurationError
from ....protocol.rows import Display
from ...errors import InvalidArgument
from ...operator.rights import RIGHTS, generate_password, grant_of, password_warning
from ..failures import Refused
from ..render import columns_of
from ..sessions import ConsoleSession
from ..visit import Visit, check_typed

ROWS_MAX = 100
KEY_COLUMNS = columns_of(AccessKeyInfo, "key created_at remove", remove=Display("remove"))
GRANTS_SHOWN_MAX = 3
"""Maximum number of grants of a user that the list names."""


def _check(visit: Visit) -> None:
    """Raise ``Refused`` if this console or this broker has no users to administer."""
    visit.check_writable()
    if not visit.session.user:
        raise Refused(
            404, "the broker has no users, so everyone who reaches it may do everything (its setting security.auth)"
        )


async def user_list(visit: Visit) -> Response:
    _check(visit)
    wanted = visit.text("q")
    users = await visit.admin.users()
    found = [each for each in users if wanted.lower() in each.user.lower()]
    return await visit.page(
        "users.html",
        **visit.part_of(found, ROWS_MAX),
        wanted=wanted,
        grants_max=GRANTS_SHOWN_MAX,
        has_all=has_all,
        actions_of=actions_of,
    )


def has_all(user: UserInfo) -> bool:
    return any(each.kind == BROKER and ADMIN in each.actions for each in user.grants)


def actions_of(grant: Grant) -> list[str]:
    """Return the actions of a grant in the order in which they are shown."""
    return [action for action in ACTIONS if action in grant.actions]


async def user_detail(visit: Visit) -> Response:
    """Return one user: its grants and access keys, and the forms that change it."""
    _check(visit)
    (user,) = await visit.admin.users(visit.path("user"))
    return await visit.page(
        "user.html",
        shown=user,
        **visit.part_of(sorted(user.grants, key=lambda each: each.on), ROWS_MAX),
        has_all=has_all(user),
        actions_of=actions_of,
        key_columns=KEY_COLUMNS,
        rights=RIGHTS,
        is_self=user.user == visit.session.user,
    )


# ---- changes


def _page_of(user: str) -> str:
    return f"/users/{quote(user, safe='')}"


async def create(visit: Visit) -> Response:
    _check(visit)
    form = await visit.form()
    user = form.get("user", "").strip()
    typed = form.get("password", "")
    password = typed or generate_password()
    await visit.admin.create_user(user, password, [grant_of("admin", "", False, "")] if form.get("admin") else [])
    return await _outcome(
        visit, user, f"User {user} is added", "" if typed else password, warning=password_warning(password)
    )


async def change_password(visit: Visit) -> Response:
    """Give a user another password; the broker closes the connections of the user."""
    _check(visit)
    user, form = visit.path("user"), await visit.form()
    check_typed(form, user, "the user")
    typed = form.get("password", "")
    password = typed or generate_password()
    await visit.admin.change_user(user, password=password)
    session = visit.session
    if user == session.user:  # the broker has closed the connections of this session, too
        visit.console.sessions.end(session)
        session = await visit.console.sessions.login(user, password, session.address)
        visit = Visit(visit.request, visit.console, session)
    done = f"User {user} has another password, and its connections are closed"
    response = await _outcome(visit, user, done, "" if typed else password, warning=password_warning(password))
    visit.console.set_cookie(response, session)
    return response


async def _outcome(visit: Visit, user: str, done: str, secret: str, *, key: str = "", warning: str = "") -> Response:
    """Return a page with the outcome of a change and, once, the secret that the console made. It is the response
    itself: a notice for the next page might be shown in another tab."""
    return await visit.page("user_secret.html", changed=user, done=done, secret=secret, key=key, warning=warning)


async def grant(visit: Visit) -> Response:
    _check(visit)
    user, form = visit.path("user"), await visit.form()
    right, name = form.get("right", ""), form.get("name", "").strip()
    if right not in RIGHTS:
        raise InvalidArgument("choose a right from the list")
    is_prefix = form.get("prefix") == "1"
    if RIGHTS[right].kind != BROKER and not name and not is_prefix:
        raise InvalidArgument(f"type the name of the {RIGHTS[right].kind}; nothing was granted")
    added = grant_of(right, name, is_prefix, f"{RIGHTS[right].kind} {escape(name)}")
    await visit.admin.change_user(user, grant=[added])
    return await _changed(visit, user, f"{user} may {', '.join(actions_of(added))} on {added}")


async def revoke(visit: Visit) -> Response:
    _check(visit)
    user, form = visit.path("user"), await visit.form()
    taken = _named_grant(form)
    await visit.admin.change_user(user, revoke=[taken])
    return await _changed(visit, user, f"{user} may no longer {', '.join(actions_of(taken))} on {taken}")


def _named_grant(form: dict[str, str]) -> Grant:
    """Return the action on an object that a form of the page names. Raises ``InvalidArgument``."""
    kind, name = form.get("kind", ""), form.get("name", "")
    key = f"{kind}Prefix" if form.get("prefix") == "1" else kind
    try:
        (found,) = Permissions.parse(
            [{"actions": [form.get("action", "")], key: True if kind == BROKER else name}], "the form"
        ).grants
    except ConfigurationError as error:
        raise InvalidArgument(f"{error}; nothing was revoked") from None
    return found


async def _changed(visit: Visit, user: str, text: str) -> Response:
    if user == visit.session.user:
        visit.session.rights = Permissions((await visit.admin.whoami()).grants)
    return visit.done(text, _page_of(user) if visit.may(ADMIN) else "/me")


async def add_key(visit: Visit) -> Response:
    """Add a random access key to a user, and show its secret once."""
    _check(visit)
    user = visit.path("user")
    made = await visit.admin.add_access_key(user)
    return await _outcome(visit, user, f"User {user} has another access key", made.secret, key=made.key)


async def remove_key(visit: Visit) -> Response:
    _check(visit)
    user, form = visit.path("user"), await visit.form()
    key = form.get("key", "")
    await visit.admin.remove_access_key(user, key)
    return visit.done(f"access key {key} of user {user} is removed", _page_of(user))


async def delete(visit: Visit) -> Response:
    """Delete a user whose name was typed."""
    _check(visit)
    user, form = visit.path("user"), await visit.form()
    check_typed(form, user, "the user")
    await visit.admin.delete_user(user)
    if user == visit.session.user:
        visit.console.sessions.end(visit.session)
    return visit.done(f"user {user} is deleted, and its connections are closed", "/users")


# ---- The person's own page: the user's rights, and the user's sessions at this console.


async def me(visit: Visit) -> Response:
    own = await visit.admin.whoami()
    if own.user:
        visit.session.rights = Permissions(own.grants)  # they may have changed since the login
    sessions = visit.console.sessions
    return await visit.page(
        "me.html",
        own=own,
        grants=[(str(each), [action for action in ACTIONS if action in each.actions]) for each in own.grants],
        sessions=sessions.of_user(visit.session.user),
        ages=sessions.ages,
        mark=_mark,
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
