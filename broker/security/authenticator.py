"""Authentication of connections: SCRAM-SHA-256 with the store's users, and a pause after each failure."""

from __future__ import annotations

import logging

from ...protocol.auth.scram import MECHANISM, ProofWrong, ScramError, ServerExchange
from ...protocol.errors import AuthenticationFailed, AuthenticationRequired
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
            self.failures += 1
            # Before the connection hears of it: its next attempt must already meet the pause.
            pause_s = self.backoff.record_failure(host)
            log.warning(
                "%s failed to authenticate as %s: %s; the next attempt from this address waits %.1f s",
                host,
                ascii(exchange.name[:NAME_CHARS_LOGGED]),
                error.message,
                pause_s,
            )
            raise
        self.successes += 1
        return user, answer

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
