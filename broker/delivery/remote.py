"""The other end of a connection, as delivery sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...protocol.commands import Command
from ...protocol.frames import Frame

Answered = Callable[[Frame | None], None]
"""Called with the answer to a request of the broker, or with None where the connection went before it came."""


class Remote(Protocol):
    """A client that may be asked and told things. All methods are for the event loop."""

    client: str
    """How it introduced itself."""
    address: tuple[str, int]
    lost: bool
    """The connection is gone."""

    def may_publish(self, topic: str) -> bool:
        """Whether its user may publish to the topic, and so may see messages on their way there."""

    def tell(self, command: Command, request: Any, body: bytes = b"") -> None:
        """Send a one-way request; nothing where the connection is gone."""

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Send a request; ``answered`` is called once."""

    def when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call when the connection goes; at once where it is gone. Returns what takes that back.

        Raises ``InvalidParameter`` where too many want to know it already.
        """
