"""The common base of consumers and admins: addresses, connections, closing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar, Unpack

from ..core.client_guard import Guard
from ..core.rpc.access import AccessOptions, access_for
from ..core.rpc.address import parse_addresses
from ..core.rpc.operation import Operation, described
from ..core.rpc.timeouts import TIMEOUT_SECONDS, check_timeout
from ..endpoint import ConnectionLog
from .rpc import Caller, Dialer

P = ParamSpec("P")
T = TypeVar("T")


class Client:
    """A client in which every call has a connection to itself. Connects on first use.

    ``user``, ``password``, ``tls`` …: credentials and encryption, if the broker requires them; see ``AccessOptions``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._guard = Guard(type(self).__name__)
        dialer = Dialer(parse_addresses(addresses), access_for(self, access), ConnectionLog(type(self).__name__))
        self._caller = self._primary = Caller(dialer, self._guard, check_timeout("timeout", timeout))

    def close(self) -> None:
        """Disconnect; calls in progress fail with ``ClientClosed``. Idempotent."""
        if not self._guard.closed:
            self._guard.closed = True
            for caller in {self._caller, self._primary}:
                caller.pool.close()

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def blocking_method(
    make: Callable[P, Operation[T]], *, of_primary: bool = False
) -> Callable[Concatenate[Client, P], T]:
    """Return the method that performs the operation that ``make`` makes, and returns its result. ``of_primary``: also
    if the client reads from any member of a replica set, only the primary may answer."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation, caller = make(*args, **kwargs), self._primary if of_primary else self._caller
        return caller.call(operation, caller.deadline(operation.timeout))

    return described(method, make)
