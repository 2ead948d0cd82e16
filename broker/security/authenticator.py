"""Authentication of connections: SCRAM-SHA-256 with the store's users, and a pause after each failure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...protocol.auth.scram import MECHANISM, ProofWrong, ScramError, ServerExchange
from ...protocol.errors import AuthenticationFailed, AuthenticationRequired

if TYPE_CHECKING:
    from .backoff import LoginBackoff
    from .users import User, UserTable

log = logging.getLogger(__name__)

WRONG = "the user or the password is wrong"
"""The same message for an unknown user, so that no client can find out which users exist."""
FRAME_BYTES_MAX = 4096
"""Maximum size of a frame before authentication."""
NAME_CHARS_LOGGED = 64


def not_authenticated() -> AuthenticationRequired:
    """Return the error of a request other than HELLO and AUTH on a connection that has not authenticated."""
    return AuthenticationRequired(
        "this broker requires authentication, and the connection has not authenticated: send AUTH with "
        f"{MECHANISM} after HELLO; give the client a user and a password"
    )


class Authenticator:
    """The authentication of one broker. Runs on the event loop. ``failures``, ``successes``: counts since the start."""

    def __init__(self, users: UserTable, backoff: LoginBackoff) -> None:
        self.users = users
        self.backoff = backoff
        self.failures = 0
        self.successes = 0

    def begin(self, client_first: str) -> tuple[ServerExchange, str]:
        """Begin an exchange with the client's first message. Return (the exchange, the response).

        Raises ``AuthenticationFailed`` if the message is malformed.
        """
        # A user that was just added can authenticate at once.
        self.users.refresh()
        exchange = ServerExchange(self.users.verifier)
        try:
            return exchange, exchange.first(client_first)
        except ScramError as error:
            raise AuthenticationFailed(str(error)) from None

    def finish(self, exchange: ServerExchange, client_final: str, host: str) -> tuple[User, str]:
        """Check a client's proof, when the backoff gives ``host`` its turn. Return (the user, the response).

        Raises ``AuthenticationFailed`` if the proof is wrong; then the next attempt from this address has to wait.
        """
        try:
            user, answer = self._judge(exchange, client_final)
        except AuthenticationFailed as error:
            # Before the connection hears of it: its next attempt must already meet the pause.
            self.record_failure(host, exchange.name, error.message)
            raise
        self.successes += 1
        return user, answer

    def record_failure(self, host: str, name: str, reason: str) -> None:
        """Note a failed attempt of ``host`` as the user, or with the access key, ``name``; the next one has to wait."""
        self.failures += 1
        pause_s = self.backoff.record_failure(host)
        log.warning(
            "%s failed to authenticate as %s: %s; the next attempt from this address waits %.1f s",
            host,
            ascii(name[:NAME_CHARS_LOGGED]),
            reason,
            pause_s,
        )

    def _judge(self, exchange: ServerExchange, client_final: str) -> tuple[User, str]:
        try:
            answer = exchange.final(client_final)
        except ProofWrong:
            raise AuthenticationFailed(WRONG) from None
        except ScramError as error:
            raise AuthenticationFailed(str(error)) from None
        user = self.users.get(exchange.name)
        if user is None or user.verifier != exchange.verifier:  # changed since the exchange began
            raise AuthenticationFailed(WRONG)
        return user, answer
