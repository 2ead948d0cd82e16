"""The common base of clients: addresses, the connection, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from ..core.rpc.access import AccessOptions, access_for
from ..core.rpc.address import parse_addresses
from ..core.rpc.operation import Operation, described
from ..core.rpc.timeouts import TIMEOUT_SECONDS, check_timeout
from ..endpoint import ConnectionLog
from ..errors import ClientClosed
from .rpc import Caller, Dialer
from .runtime import ClientRuntime

P = ParamSpec("P")
T = TypeVar("T")


class Base:
    """The parts of every client. A client belongs to the event loop in which it is first used."""

    def __init__(self, addresses: str | Iterable[str] | None, timeout: float, access: AccessOptions) -> None:
        self._life = ClientRuntime(type(self).__name__)
        log = ConnectionLog(type(self).__name__)
        self._dialer = Dialer(parse_addresses(addresses), access_for(self, access), log, self._life)
        self._caller = self._primary = Caller(self._dialer, self._life, timeout)

    async def __aenter__(self) -> Self:
        self._life.enter()
        return self

    async def _disconnect(self) -> None:
        """End all tasks and connections, and wait until they have ended."""
        self._life.end()
        self._life.fail_waits(ClientClosed(f"this {type(self).__name__} was closed; make a new one"))
        try:
            await self._life.end_tasks()
        finally:
            ends = [connection.closed for connection in self._life.connections]
            for connection in list(self._life.connections):
                connection.abort()
        if ends:
            await asyncio.wait(ends)
        await asyncio.sleep(0)  # let the loop close a connection that was still being made


class Client(Base):
    """A client whose calls share one connection. Connects on first use.

    ``user``, ``password``, ``tls`` …: credentials and encryption, if the broker requires them; see ``AccessOptions``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(addresses, check_timeout("timeout", timeout), access)

    async def close(self) -> None:
        """Disconnect; calls in progress fail with ``ClientClosed``. Idempotent."""
        if self._life.closed:
            return
        if self._life.forked or not self._life.used:
            self._life.end()
            return
        self._life.check_loop()
        await self._disconnect()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def async_method(
    make: Callable[P, Operation[T]], *, of_primary: bool = False
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """Return the method that performs the operation that ``make`` makes; awaiting it returns the result.
    ``of_primary``: even if the client reads from any member of a replica set, only the primary may answer."""

    async def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation, caller = make(*args, **kwargs), self._primary if of_primary else self._caller
        return await caller.call(operation, caller.deadline(operation.timeout))

    return described(method, make)
