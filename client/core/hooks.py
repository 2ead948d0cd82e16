"""Hooks: what a tracer is told of the messages that the clients of this process send, receive and handle.

Each call of a client looks at ``installed`` once. Without hooks, that is all that they cost.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import ClientClosed

if TYPE_CHECKING:
    from ..message import Message
    from .consume.batch import StoredMessage
    from .produce.packer import BulkProperties
    from .produce.receipts import Receipt
    from .rpc.address import AddressBook

    Messages = Sequence[StoredMessage]


class Side:
    """A client, as hooks see it. ``client_id``: its name, or that of a group's member; ``addresses``: its brokers'.

    ``kept``: what the hooks keep for this client.
    """

    __slots__ = ("addresses", "client_id", "group", "kept")

    def __init__(self, client_id: str, addresses: AddressBook, group: str = "") -> None:
        self.client_id = client_id
        self.addresses = addresses
        self.group = group
        self.kept: dict[object, Any] = {}


class Observation(ABC):
    """One operation, from its beginning to its end. As a context manager it surrounds the code that does it."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(raised)

    @abstractmethod
    def end(self, error: BaseException | None) -> None:
        """Note the end; only the first one counts."""


class Sending(Observation):
    """A call that sends messages. ``messages``: those to send instead of the call's, the same with additional
    properties; ``shared``: those of a ``send_bulk``; ``receipt``: set by the client if the call sends one message."""

    __slots__ = ("messages", "receipt", "shared")

    messages: Sequence[Message]
    shared: BulkProperties
    receipt: Receipt | None


class Hooks(ABC):
    """The hooks of one tracer. A client may hold a lock while it calls them: they return soon, do not raise, and do not
    use the client."""

    @abstractmethod
    def send(self, side: Side, messages: Sequence[Message], record_bytes_max: int, *, several: bool) -> Sending:
        """Begin a call that sends messages. ``several``: of a ``send_many``; ``record_bytes_max``: what the broker
        accepts."""

    @abstractmethod
    def send_bulk(
        self, side: Side, topic: str, bodies: Sequence[bytes], shared: BulkProperties, record_bytes_max: int
    ) -> Sending:
        """Begin a ``send_bulk``. The arguments may still turn out not to be valid."""

    @abstractmethod
    def received(self, side: Side, topic: str, messages: Messages, times_ns: tuple[int, int]) -> None:
        """Note messages that the application gets now. ``times_ns``: when the call began, and when it had them."""

    @abstractmethod
    def not_received(self, side: Side, topic: str, error: BaseException, times_ns: tuple[int, int]) -> None:
        """Note a call that failed to receive messages."""

    @abstractmethod
    def process(self, side: Side, messages: Messages, *, several: bool, pushed: bool) -> Observation:
        """Begin the handling of messages. ``several``: as one batch; ``pushed``: by a listener. As a context manager,
        the handling is that of the calling thread or task; else it ends with the settlement of a delivery: with None,
        or with what a listener would have raised."""


installed: Hooks | None = None
"""The hooks of this process."""


def install(hooks: Hooks | None) -> None:
    """Install the hooks of this process in place of the present ones; None: remove them."""
    global installed
    installed = hooks


class Receiving:
    """A call that receives messages, as a context manager. ``messages``: those that it returns."""

    __slots__ = ("_began_ns", "_hooks", "_side", "_topic", "messages")

    def __init__(self, hooks: Hooks, side: Side, topic: str = "") -> None:
        self.messages: Messages = ()
        self._hooks = hooks
        self._side = side
        self._topic = topic
        self._began_ns = time.time_ns()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        times_ns = self._began_ns, time.time_ns()
        if raised is not None:
            if isinstance(raised, ClientClosed) or not isinstance(raised, Exception):
                return  # to be closed or cancelled is how a wait for messages ends
            self._hooks.not_received(self._side, self._topic, raised, times_ns)
        elif self.messages:
            self._hooks.received(self._side, self._topic, self.messages, times_ns)


def handed_out(
    hooks: Hooks, side: Side, topic: str, messages: list[StoredMessage], began_ns: int
) -> Generator[StoredMessage, None, None]:
    """Yield the messages, and note those that the application has taken when it takes no more."""
    times_ns = began_ns, time.time_ns()
    count = 0
    try:
        for message in messages:
            count += 1
            yield message
    finally:
        hooks.received(side, topic, messages[:count], times_ns)
