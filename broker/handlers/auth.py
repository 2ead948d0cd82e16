"""AUTH: authenticate the client, in two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.auth.scram import MECHANISM
from ...protocol.commands import AUTH, AuthAnswer, AuthRequest
from ...protocol.errors import AuthenticationFailed, InvalidParameter
from ...protocol.fields import decode_fields
from ..addresses import format_address
from ..security.audit import Author

if TYPE_CHECKING:
    from ...protocol.auth.scram import ServerExchange
    from ..requests.request import Request
    from ..security.audit import AuditLog
    from ..security.authenticator import Authenticator


def auth(request: Request, authenticator: Authenticator | None, audit: AuditLog) -> None:
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
        _finish(request, authenticator, audit, exchange, params.message)


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


def _finish(
    request: Request, authenticator: Authenticator, audit: AuditLog, exchange: ServerExchange, client_final: str
) -> None:
    host = request.peer.address[0]

    def judge() -> None:
        try:
            user, answer = authenticator.finish(exchange, client_final, host)
        except AuthenticationFailed as error:
            audit.write(
                AUTH.name,
                f"user {exchange.name}",
                author=Author(address=format_address(*request.peer.address), client=request.peer.client),
                outcome=error.name,
                reason=error.message,
            )
            request.refuse(error)
            return
        request.source.admit(user)
        request.respond(AuthAnswer(message=answer, done=True))
        authenticator.backoff.record_success(host)

    # Right and wrong proofs wait alike, so that the time to the response does not tell them apart.
    if authenticator.backoff.must_wait(host):
        request.peer.when_lost(authenticator.backoff.wait(host, lambda: request.proceed(judge)))
        request.suspend()
    else:
        judge()
