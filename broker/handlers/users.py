"""User administration over the network: AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_LIST_USER.

The broker changes the same file as ``flintmq user --store``, under the same lock, in a reader thread. A client sends
salted verifiers, never a password.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from ...protocol.auth.permissions import GRANTS_MAX, Permissions
from ...protocol.auth.scram import MECHANISM, parse_access_key
from ...protocol.auth.users import (
    UserFile,
    Users,
    check_user_name,
    is_admin,
    parse_verifier,
    user_named,
    with_access_key,
    with_grants,
    with_password,
    with_user,
    without_access_key,
    without_grants,
    without_user,
)
from ...protocol.commands import (
    AUTH,
    USER_BODY_BYTES_MAX,
    AccessKeyInfo,
    AuthAnswer,
    AuthRequest,
    CreateUserRequest,
    DeleteUserRequest,
    EmptyAnswer,
    ListUsersRequest,
    RowsAnswer,
    UpdateUserRequest,
    UserInfo,
)
from ...protocol.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigurationError,
    InvalidParameter,
    ServiceNotAvailable,
)
from ...protocol.fields import decode_fields
from ...protocol.rows import pack_rows
from ..addresses import format_address
from ..background.loop_work import called_back
from ..requests.connected_client import ConnectedClient
from ..security.audit import Author

if TYPE_CHECKING:
    from ...protocol.auth.permissions import Grant
    from ...protocol.auth.scram import AccessKey, ServerExchange
    from ...protocol.frames import Frame
    from ..requests.request import Request
    from ..security.audit import AuditLog
    from ..security.users import Authenticator

log = logging.getLogger(__name__)

T = TypeVar("T")
Edit = Callable[[Users], Users]
UsersChanged = Callable[[ConnectedClient], None]


def auth_list_user(request: Request, authenticator: Authenticator | None) -> None:
    """Return the users, their grants and the names of their access keys, without what passwords could be guessed from,
    and without secrets."""
    params = decode_fields(ListUsersRequest, request.frame.fields)
    by_name = {user.name: user for user in _required(authenticator).users}
    if params.user:
        by_name = {params.user: _checked(lambda: user_named(Users(by_name), params.user))}
    rows = [
        UserInfo(
            name,
            Permissions.parse(user.permissions, name).grants,
            [AccessKeyInfo(each.key, each.created_ms) for each in user.access_keys],
        )
        for name, user in sorted(by_name.items())
    ]
    request.respond(RowsAnswer(count=len(rows)), pack_rows(rows))


async def auth_create_user(request: Request, authenticator: Authenticator | None, users_changed: UsersChanged) -> None:
    """Add a user; respond once it can connect."""
    name = decode_fields(CreateUserRequest, request.frame.fields).user
    body = _body(request.frame, {"scram", "grants"})
    _checked(lambda: check_user_name(name))
    verifier = _checked(lambda: parse_verifier(_map(body, "scram"), f"user {name!r}"))
    grants = _grants(body.get("grants", []), name)
    await _change(
        request, _required(authenticator), users_changed, lambda users: with_user(users, name, verifier, grants)
    )


async def auth_update_user(request: Request, authenticator: Authenticator | None, users_changed: UsersChanged) -> None:
    """Change a user's password, grants or access keys; respond once the change is in effect."""
    name = decode_fields(UpdateUserRequest, request.frame.fields).user
    body = _body(request.frame, {"scram", "revoke", "grant", "access_key", "remove_access_key"})
    if not body:
        raise InvalidParameter(
            "the body contains no change: pass scram, revoke, grant, access_key or remove_access_key"
        )
    edits: list[Edit] = []
    if "scram" in body:
        verifier = _checked(lambda: parse_verifier(_map(body, "scram"), f"user {name!r}"))
        edits.append(lambda users: with_password(users, name, verifier))
    # Before what is granted, so that one request can replace all grants.
    if "revoke" in body:
        revoked = None if body["revoke"] is None else _grants(body["revoke"], name)
        edits.append(lambda users: without_grants(users, name, revoked))
    if "grant" in body:
        granted = _grants(body["grant"], name)
        edits.append(lambda users: with_grants(users, name, granted))
    edits += _key_edits(name, body)

    def edit(users: Users) -> Users:
        for each in edits:
            users = each(users)
        return users

    await _change(request, _required(authenticator), users_changed, edit)


def _key_edits(name: str, body: dict[str, Any]) -> list[Edit]:
    """Return the changes of a user's access keys that a body asks for."""
    edits: list[Edit] = []
    if "remove_access_key" in body:
        removed = body["remove_access_key"]
        if type(removed) is not str:
            raise InvalidParameter("remove_access_key must be the name of an access key")
        edits.append(lambda users: without_access_key(users, name, removed))
    if "access_key" in body:
        added: AccessKey = _checked(lambda: parse_access_key(_map(body, "access_key"), "access_key"))
        edits.append(lambda users: with_access_key(users, name, added))
    return edits


async def auth_delete_user(request: Request, authenticator: Authenticator | None, users_changed: UsersChanged) -> None:
    """Remove a user; respond once it can no longer connect. The broker closes its connections."""
    name = decode_fields(DeleteUserRequest, request.frame.fields).user
    await _change(request, _required(authenticator), users_changed, lambda users: without_user(users, name))


def _required(authenticator: Authenticator | None) -> Authenticator:
    if authenticator is None:
        raise InvalidParameter(
            'this broker does not use authentication (security.auth = "off"), so it cannot check who may change '
            "users: use flintmq user --store DIR on the machine of the store"
        )
    return authenticator


async def _change(request: Request, authenticator: Authenticator, users_changed: UsersChanged, edit: Edit) -> None:
    """Change the users' file in a reader thread, and respond once the broker applies it."""

    def keep_an_administrator(users: Users) -> Users:
        # Under the file's lock: each of two changes at once could remove the other's administrator.
        after = edit(users)
        if any(map(is_admin, users.by_name.values())) and not any(map(is_admin, after.by_name.values())):
            raise ConfigurationError(
                "no user with full access would be left; grant --admin to another user first, or use "
                "flintmq user --store DIR on the machine of the store"
            )
        return after

    store = authenticator.users.store
    try:
        await request.in_reader(lambda: UserFile(store).change(keep_an_administrator))
    except ConfigurationError as error:
        raise InvalidParameter(f"{error}; nothing was changed") from None
    except BrokerError:
        raise
    except Exception as error:
        log.error("cannot change the users", exc_info=error)
        raise ServiceNotAvailable(f"cannot change the users: {error}; see the broker's log for details") from error
    await request.replicated()
    # The response first, because the change may close this very connection.
    request.respond(EmptyAnswer())
    users_changed(request.peer)


def _checked(call: Callable[[], T]) -> T:
    """Return the result of ``call``; a ``ConfigurationError`` that it raises becomes ``InvalidParameter``."""
    try:
        return call()
    except ConfigurationError as error:
        raise InvalidParameter(f"{error}; nothing was changed") from None


def _body(frame: Frame, known: set[str]) -> dict[str, Any]:
    if len(frame.body) > USER_BODY_BYTES_MAX:
        raise InvalidParameter(f"the body has {len(frame.body)} bytes; the maximum is {USER_BODY_BYTES_MAX}")
    try:
        body = msgpack.unpackb(frame.body, max_array_len=GRANTS_MAX, max_map_len=8, max_bin_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidParameter(f"the body is not one msgpack map of a user: {error}") from None
    if type(body) is not dict or not body.keys() <= known:
        raise InvalidParameter(f"the body must be one msgpack map with any of {', '.join(sorted(known))}")
    return body


def _map(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if type(value) is not dict:
        raise InvalidParameter(f"the body must contain {name}, a map")
    return value


def _grants(raw: Any, name: str) -> tuple[Grant, ...]:
    return _checked(lambda: Permissions.parse(raw, name)).grants


# ---- AUTH: authenticate the client, in two steps.


async def auth(request: Request, authenticator: Authenticator | None, audit: AuditLog) -> None:
    """Handle one step of the authentication; after the second one the connection may send other requests.

    After a failure the broker responds, perhaps delayed, and closes the connection: another attempt needs another
    connection.
    """
    if authenticator is None:
        raise InvalidParameter(
            "this broker does not use authentication: leave out user and password, or set security.auth at the broker"
        )
    params = decode_fields(AuthRequest, request.frame.fields)
    if (user := request.peer.user) is not None:
        raise InvalidParameter(
            f"the connection is already authenticated as user {user.name!r}; open another one for another user"
        )
    # Taken away first, because an exchange allows a single proof.
    exchange, request.peer.exchange = request.peer.exchange, None
    if exchange is None:
        _begin(request, authenticator, params)
    else:
        await _finish(request, authenticator, audit, exchange, params.message)


def _begin(request: Request, authenticator: Authenticator, params: AuthRequest) -> None:
    if params.mechanism != MECHANISM:
        request.refuse(AuthenticationFailed(f"unknown mechanism {params.mechanism!r}; use {MECHANISM}"))
        return
    try:
        request.peer.exchange, answer = authenticator.begin(params.message)
    except AuthenticationFailed as error:
        request.refuse(error)
        return
    request.respond(AuthAnswer(message=answer))


async def _finish(
    request: Request, authenticator: Authenticator, audit: AuditLog, exchange: ServerExchange, client_final: str
) -> None:
    host, name = request.peer.address[0], exchange.name
    # Right and wrong proofs wait alike, so that the time to the response does not tell them apart.
    if authenticator.backoff.must_wait(host, name):
        await request.in_order(_turn(request, authenticator, host, name))
    try:
        user, answer = authenticator.finish(exchange, client_final, host)
    except AuthenticationFailed as error:
        audit.write(
            AUTH.name,
            f"user {name}",
            author=Author(address=format_address(*request.peer.address), client=request.peer.client),
            outcome=error.name,
            reason=error.message,
        )
        request.refuse(error)
        return
    request.source.admit(user)
    request.respond(AuthAnswer(message=answer, done=True))
    authenticator.backoff.record_success(host, name)


async def _turn(request: Request, authenticator: Authenticator, host: str, name: str) -> None:
    """Wait for the end of the pause, or of the connection: then its turn is that of the next client."""

    def wait(done: Callable[[], None]) -> None:
        leave = authenticator.backoff.wait(host, name, done)

        def lost() -> None:
            leave()
            done()

        request.peer.when_lost(lost)

    await called_back(wait)
