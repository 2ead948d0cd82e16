"""Connection attempts to several addresses, one after the other."""

from __future__ import annotations

from dataclasses import replace

from ...protocol.commands import READ_FROM_ANY
from ...protocol.errors import BrokerError, ConnectionFailed, FlintError
from ..connection_log import ConnectionLog
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address
from ..core.rpc.address_book import AddressBook
from ..core.rpc.connection_errors import no_address_answered
from ..core.rpc.retry import detached
from .connection import Connection
from .deadlines import Watch
from .runtime import ClientRuntime
from .timed_waits import Waits


class Dialer:
    """Connects to the first of several addresses whose broker serves clients: in a replica set, to the primary, unless
    ``access`` says that any member may answer."""

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
        self._given = addresses
        self.addresses = AddressBook(addresses)
        self._access = access
        self._life = life
        self._watch = watch
        self._waits = waits

    def of_any_member(self) -> Dialer:
        """Return a dialer to the same addresses that accepts followers."""
        access = replace(self._access, read_from=READ_FROM_ANY)
        return Dialer(self._given, access, self.log, self._life, self._watch, self._waits)

    def mark_failed(self, address: Address, error: FlintError) -> None:
        """Mark an address whose connection failed, so that another address is tried first."""
        self.addresses.mark_failed(address, error)

    async def dial(self, timeout: float) -> Connection:
        """Return a new connection, made within ``timeout`` seconds.

        Raises ``ConnectionFailed`` with every address and its error, or the broker's refusal.
        """
        deadline = self._watch.now() + timeout
        failures: dict[Address, FlintError] = {}
        while (attempt := self.addresses.next_attempt(failures, deadline - self._watch.now())) is not None:
            address, seconds = attempt
            try:
                connection = await Connection.open(address, seconds, self._access, self._life, self._watch, self._waits)
            except (ConnectionFailed, BrokerError) as error:
                failures[address] = detached(error)
                self.addresses.mark_failed(address, error, failures)
            else:
                self.addresses.mark_answered(address)
                self.log.connected(address)
                return connection
        raise self.log.unreachable(no_address_answered(failures))
