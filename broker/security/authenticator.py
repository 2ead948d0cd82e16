"""Checks who a connection says it is: SCRAM-SHA-256 against the store's users, with a pause after each failure."""

from __future__ import annotations

import logging

from ...protocol.errors import AuthenticationFailed
from ...protocol.scram import ProofWrong, ScramError, ServerExchange
from .backoff import Backoff
from .users import User, UserTable

log = logging.getLogger(__name__)

WRONG = "the user or the password is wrong"
"""For a user that is not there as well: nobody learns who is."""
FRAME_BYTES_MAX = 4096
"""Largest frame of a connection that has not authenticated yet."""
NAME_CHARS_LOGGED = 64


class Authenticator:
    """Belongs to the event loop. ``failures`` and ``successes`` count since the start."""

    def __init__(self, users: UserTable, backoff: Backoff) -> None:
        self.users = users
        self.backoff = backoff
        self.failures = 0
        self.successes = 0

    def begin(self, client_first: str) -> tuple[ServerExchange, str]:
        """The exchange that a client's first message begins, and the answer to it. Raises ``AuthenticationFailed``
        where it is none."""
        self.users.refresh()
        exchange = ServerExchange(self.users.verifier)
        try:
            return exchange, exchange.first(client_first)
        except ScramError as error:
            raise AuthenticationFailed(str(error)) from None

    def finish(self, exchange: ServerExchange, client_final: str, host: str) -> tuple[User, str]:
        """Who a client's proof proves it to be, and the answer to it; to be called when ``host`` has its turn.

        Raises ``AuthenticationFailed`` where it proves nothing: then the next attempt from there has to wait.
        """
        try:
            user, answer = self._judge(exchange, client_final)
        except AuthenticationFailed as error:
            self.failures += 1
            pause_s = self.backoff.failed(host)
            log.warning(
                "%s did not authenticate as %s: %s; the next attempt from there waits %.1f s",
                host, ascii(exchange.name[:NAME_CHARS_LOGGED]), error.message, pause_s,
            )  # fmt: skip
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
