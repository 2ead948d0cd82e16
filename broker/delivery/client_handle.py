"""The client at the other end of a connection, as delivery sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...protocol.frames import Frame

if TYPE_CHECKING:
    from ...protocol.commands import Command

T = TypeVar("T")
Answered = Callable[[Frame | None], None]
"""Called with the response to a request of the broker, or with None if the connection was lost before it came."""


class ClientHandle(Protocol):
    """A connected client to which the broker sends requests. All methods are for the event loop."""

    client: str
    """Name with which the client introduced itself."""
    address: tuple[str, int]
    lost: bool
    """True after the connection was lost."""

    @property
    def user_name(self) -> str:
        """Name of its user; empty on a broker without users."""

    def may_publish(self, topic: str, group: str = "") -> bool:
        """Return whether its user may publish to the topic, as a producer of ``group`` if one is given, and so may see
        messages on their way there."""

    def may_be_sent(self) -> bool:
        """Return whether the client reads what it is sent; for one that does not, more would only fill memory."""

    def tell(self, command: Command, request: Any, body: bytes = b"") -> None:
        """Send a one-way request; do nothing if the connection is lost."""

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Send a request; ``answered`` is called exactly once."""

    def when_lost(self, call: Callable[[], None], kept_bytes: int = 0) -> Callable[[], None]:
        """Call ``call`` when the connection is lost, or at once if it already is. Return a function that cancels this.

        ``kept_bytes``: memory of what is kept for the client until then. Raises ``InvalidParameter`` if the connection
        already has too many such callbacks, or if too much is kept for it.
        """


class Requester(Protocol):
    """Who asks a service for something: what it waits for counts towards the bounds of its connection. The waits raise
    ``SystemBusy`` if too many of its requests wait, and end the request if its client is gone."""

    async def dispatched(self) -> None:
        """Wait until everything acknowledged by now is visible."""

    async def written(self) -> None:
        """Wait until everything written by now is acknowledged and visible. Raises the error of a failed flush."""

    async def read(self, read: Callable[[bool], T], /) -> T:
        """Return ``read(True)``, which must not wait for the disk; if that would block, ``read(False)`` of a thread."""

    async def saved(self) -> None:
        """Wait until what groups must not forget is on disk and would survive a failover. Raises the error if it cannot
        be written."""

    def audit(self, command: Command, target: str, before: Any = None, after: Any = None) -> None:
        """Record a change of ``target``. ``before``, ``after``: JSON values; None if it did not exist."""
