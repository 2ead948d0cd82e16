"""Connection attempts to several addresses, the first that answers wins."""

from __future__ import annotations

from ...protocol.errors import BrokerError, ConnectionFailed, FlintError
from ..connection_log import ConnectionLog
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address, AddressBook
from ..core.rpc.connection_errors import no_address_answered
from ..core.rpc.retry import detached
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from .connection import Connection
from .deadlines import Watch
from .runtime import ClientRuntime
from .timed_waits import Waits


class Dialer:
    """Connects to the first of several addresses that answers, beginning with the one that answered last."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        access: ClientAccess,
        log: ConnectionLog,
        life: ClientRuntime,
        watch: Watch,
        waits: Waits,
    ) -> None:
        self.log = log
        self._addresses = AddressBook(addresses)
        self._access = access
        self._life = life
        self._watch = watch
        self._waits = waits

    def mark_failed(self, address: Address) -> None:
        """Mark an address whose connection failed, so that the next address is tried first."""
        self._addresses.mark_failed(address)

    async def dial(self, timeout: float) -> Connection:
        """Return a new connection, made within ``timeout`` seconds.

        Raises ``ConnectionFailed`` with every address and its error, or the broker's refusal.
        """
        deadline = self._watch.now() + timeout
        failures: list[FlintError] = []
        for address in self._addresses.in_turn():
            left = deadline - self._watch.now()
            if left <= 0 and failures:
                break
            try:
                seconds = max(0.001, min(left, CONNECT_SECONDS_MAX))
                connection = await Connection.open(address, seconds, self._access, self._life, self._watch, self._waits)
            except (ConnectionFailed, BrokerError) as error:
                failures.append(detached(error))
            else:
                self._addresses.mark_answered(address)
                self.log.connected(address)
                return connection
        raise self.log.unreachable(no_address_answered(failures))
