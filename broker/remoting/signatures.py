"""Authentication of RocketMQ's clients: each request is signed with the access key of a user."""

from __future__ import annotations

import logging
import secrets

from ...protocol.errors import AuthenticationFailed, AuthenticationRequired
from ...protocol.remoting.command import RemotingFrame
from ...protocol.remoting.signature import ACCESS_KEY, is_signed
from ..addresses import format_address
from ..security.audit import Author
from ..security.users import NAME_CHARS_LOGGED, Authenticator, User
from .request import RemotingRequest, RemotingSource

log = logging.getLogger(__name__)

NO_KEY = (
    "this broker has users, and the request carries no AccessKey: give the client an access key (an AclClientRPCHook, "
    "or credentials in its settings); `flintmq user key add USER` makes one"
)
_NO_ONES_SECRET = secrets.token_bytes(40)


class SignatureCheck:
    """The check of one connection's requests. ``access_key``: the key that its last accepted request was signed with.

    A request with another key waits its turn after failed attempts with it from the same address, like a login. After a
    failure the connection stays open, because only then every client shows the reason to its program; what it sends
    before its next turn is refused without a look at the signature.
    """

    __slots__ = ("_authenticator", "_connection", "_failed", "access_key")

    def __init__(self, connection: RemotingSource, authenticator: Authenticator) -> None:
        self._connection = connection
        self._authenticator = authenticator
        self._failed = False
        self.access_key = ""

    def knows(self, frame: RemotingFrame) -> None:
        """Raise ``AuthenticationRequired`` or ``AuthenticationFailed`` if a frame has no access key that exists.

        Called for a frame whose header alone has arrived, before memory is spent on its body.
        """
        key = _key_of(frame)
        if self._authenticator.users.with_access_key(key) is None:
            raise AuthenticationFailed(_wrong(key))

    def passes(self, frame: RemotingFrame) -> bool:
        """Return whether the frame may be handled now; if not, it waits, and is handled or refused later.

        Raises ``AuthenticationRequired`` if it has no access key, ``AuthenticationFailed`` if its signature is wrong,
        and ``SystemBusy`` if too many attempts wait.
        """
        key = _key_of(frame)
        connection, backoff = self._connection, self._authenticator.backoff
        if key == self.access_key:
            # A key that was right on this connection needs no turn; a wrong signature with it is a failed attempt.
            if self._signer(frame, key) is not None:
                return True
        else:
            host = connection.peer.address[0]
            if backoff.must_wait(host, key):
                if self._failed:
                    raise AuthenticationFailed(_wrong(key))
                cancel = backoff.wait(host, key, lambda: connection.proceed(frame, lambda: self._turn(frame)))
                connection.peer.when_lost(cancel)
                connection.suspend()
                return False
            # The key may have been added a moment ago.
            self._authenticator.users.refresh()
        self._judge(frame, key)
        return True

    def _turn(self, frame: RemotingFrame) -> None:
        """Judge a frame that has waited, and handle or refuse it."""
        try:
            self._judge(frame, _key_of(frame))
        except AuthenticationFailed as error:
            RemotingRequest(self._connection, frame).fail(error)
        else:
            # Its key is the known one by now, so it need not wait again.
            self._connection.handle(frame)

    def _judge(self, frame: RemotingFrame, key: str) -> None:
        """Admit the user that has signed the frame. Raises ``AuthenticationFailed``, which is logged and audited."""
        user = self._signer(frame, key)
        connection, authenticator = self._connection, self._authenticator
        host = connection.peer.address[0]
        self._failed = user is None
        if user is None:
            error = AuthenticationFailed(_wrong(key))
            authenticator.record_failure(host, key, error.message)
            connection.broker.audit.write(
                "AUTH",
                f"access key {key[:NAME_CHARS_LOGGED]}",
                author=Author(address=format_address(*connection.peer.address), client=connection.peer.client),
                outcome=error.name,
                reason=error.message,
            )
            raise error
        self.access_key = key
        connection.admit(user)
        authenticator.successes += 1
        authenticator.backoff.record_success(host, key)

    def _signer(self, frame: RemotingFrame, key: str) -> User | None:
        """Return the user that has signed the frame; None if the key or the signature is wrong, which takes as long."""
        found = self._authenticator.users.with_access_key(key)
        secret = _NO_ONES_SECRET if found is None else found[1].secret.encode()
        right = is_signed(frame.fields, frame.body, frame.version, secret)
        return found[0] if found is not None and right else None


def _key_of(frame: RemotingFrame) -> str:
    key: str = frame.fields.get(ACCESS_KEY, "")
    if not key:
        raise AuthenticationRequired(NO_KEY)
    return key


def _wrong(key: str) -> str:
    return (
        f"access key {key[:NAME_CHARS_LOGGED]!r} is unknown, or its signature is wrong: compare the client's access "
        "key and secret key with those that `flintmq user key add USER` printed"
    )
