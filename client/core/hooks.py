"""Hooks: what a tracer is told of the messages that the clients of this process send, receive and handle.

The classes here note nothing. They are ``active`` without a tracer, on the way of each message, so they do little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from ..message import Message
    from .consume.batch import Batch, StoredMessage
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


class Observation:
    """One operation, from its beginning to its end. As a context manager it surrounds the code that does it."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(raised)

    def end(self, error: BaseException | None) -> None:
        """Note the end; only the first one counts."""


class SendingOne(Observation):
    """A call that sends one message."""

    __slots__ = ()

    def end(self, error: BaseException | None, receipt: Receipt | None = None) -> None:
        """Note the end; only the first one counts. ``receipt``: of the message, if it is stored."""


class Sending(SendingOne):
    """A call that sends messages. ``messages``: those to send instead of the call's, the same with additional
    properties; ``shared``: those of a ``send_bulk``."""

    __slots__ = ("messages", "shared")

    def __init__(self, messages: list[Message], shared: BulkProperties) -> None:
        self.messages = messages
        self.shared = shared


class Handed(Protocol):
    """A delivery that the application settles. ``handling``: set if its handling is observed."""

    handling: Observation | None

    @property
    def message(self) -> StoredMessage: ...


HandedT = TypeVar("HandedT", bound=Handed)


class Receiving(Observation):
    """A call that receives messages. Its methods return what they are given."""

    __slots__ = ()

    def batch(self, batch: Batch) -> Batch:
        """Note the messages of a batch."""
        return batch

    def deliveries(self, found: list[HandedT]) -> list[HandedT]:
        """Note the messages of deliveries, and begin their handling, which ends with their settlement or loss."""
        return found


_NOTHING = Observation()
_NOTHING_SENT = SendingOne()
_NOTHING_RECEIVED = Receiving()
_NOTHING_SHARED: BulkProperties = {}


class Hooks:
    """The hooks of one tracer. A client may hold a lock while it calls them: they return soon, do not raise, and do not
    use the client."""

    def send(self, side: Side, message: Message, record_bytes_max: int) -> tuple[Message, SendingOne]:
        """Begin a call that sends one message; returns the message to send instead, the same with additional
        properties. ``record_bytes_max``: what the broker accepts."""
        return message, _NOTHING_SENT

    def send_many(self, side: Side, messages: list[Message], record_bytes_max: int) -> Sending:
        """Begin a ``send_many``."""
        return Sending(messages, _NOTHING_SHARED)

    def send_bulk(
        self, side: Side, topic: str, bodies: Sequence[bytes], shared: BulkProperties, record_bytes_max: int
    ) -> Sending:
        """Begin a ``send_bulk``. The arguments may still turn out not to be valid."""
        return Sending([], shared)

    def receiving(self, side: Side, topic: str = "") -> Receiving:
        """Begin a call that receives messages."""
        return _NOTHING_RECEIVED

    def handed_out(
        self, side: Side, topic: str, messages: list[StoredMessage], began_ns: int
    ) -> Iterable[StoredMessage]:
        """Return the messages for the application, and note those that it has taken when it takes no more.
        ``began_ns``: when it began to wait for them."""
        return messages

    def process(self, side: Side, messages: Messages, *, several: bool, pushed: bool) -> Observation:
        """Begin the handling of messages. ``several``: as one batch; ``pushed``: by a listener. As a context manager,
        the handling is that of the calling thread or task; else it ends with the settlement of a delivery: with None,
        or with what a listener would have raised."""
        return _NOTHING


active = Hooks()
"""The hooks of this process."""


def install(hooks: Hooks | None) -> None:
    """Install the hooks of this process in place of the present ones; None: remove them."""
    global active
    active = hooks or Hooks()
