"""AUTH: authenticate the client, in two steps."""

from __future__ import annotations

from ...protocol.auth.scram import MECHANISM, ServerExchange
from ...protocol.commands import AUTH, AuthAnswer, AuthRequest
from ...protocol.errors import AuthenticationFailed, InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ..addresses import format_address
from ..security.audit import Author
from ..security.authenticator import Authenticator
from .context import Peer


def auth(peer: Peer, frame: Frame) -> None:
    """Handle one step of the authentication; after the second one the connection may send other requests.

    After a failure the broker responds, perhaps delayed, and closes the connection: another attempt needs another
    connection.
    """
    authenticator = peer.broker.authenticator
    if authenticator is None:
        raise InvalidParameter(
            "this broker does not use authentication: leave out user and password, or set security.auth at the broker"
        )
    request = decode_fields(AuthRequest, frame.fields)
    if peer.user is not None:
        raise InvalidParameter(
            f"the connection is already authenticated as user {peer.user.name!r}; open another one for another user"
        )
    exchange, peer.exchange = peer.exchange, None
    if exchange is None:
        _begin(peer, frame, authenticator, request)
    else:
        _finish(peer, frame, authenticator, exchange, request.message)


def _begin(peer: Peer, frame: Frame, authenticator: Authenticator, request: AuthRequest) -> None:
    if request.mechanism != MECHANISM:
        peer.refuse(frame, AuthenticationFailed(f"unknown mechanism {request.mechanism!r}; use {MECHANISM}"))
        return
    try:
        peer.exchange, answer = authenticator.begin(request.message)
    except AuthenticationFailed as error:
        peer.refuse(frame, error)
        return
    peer.answer(frame, AuthAnswer(message=answer))


def _finish(
    peer: Peer, frame: Frame, authenticator: Authenticator, exchange: ServerExchange, client_final: str
) -> None:
    host = peer.address[0]

    def judge() -> None:
        try:
            user, answer = authenticator.finish(exchange, client_final, host)
        except AuthenticationFailed as error:
            peer.broker.audit.write(
                AUTH.name,
                f"user {exchange.name}",
                author=Author(address=format_address(*peer.address), client=peer.client),
                outcome=error.name,
                reason=error.message,
            )
            peer.refuse(frame, error)
            return
        peer.admit(user)
        peer.answer(frame, AuthAnswer(message=answer, done=True))
        authenticator.backoff.succeeded(host)

    # Right and wrong proofs wait alike, so that the time to the response does not tell them apart.
    if authenticator.backoff.must_wait(host):
        peer.when_lost(authenticator.backoff.wait(host, lambda: peer.proceed(frame, judge)))
        peer.suspend()
    else:
        judge()
