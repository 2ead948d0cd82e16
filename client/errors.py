"""Errors that only a client raises. Broker errors are in ``flintmq.protocol.errors``; the client exports both."""

from __future__ import annotations

from typing import ClassVar

from ..protocol.errors import ConfigurationError, ConnectionFailed, FlintError
from ..protocol.storage.record import CorruptRecord


class InvalidMessage(FlintError, ValueError):
    """A message cannot be sent as it is. The broker has not seen it; if a broker refuses a message, it raises
    ``MessageIllegal`` instead."""


class InvalidMessageType(InvalidMessage, TypeError):
    """A part of a message has a type that cannot be sent, such as a ``str`` for a body."""


class InvalidArgument(FlintError, ValueError):
    """An argument of a call is not valid; the error text names it and says what is. The broker has not seen the call;
    if a broker refuses a request, it raises ``InvalidParameter`` instead."""


class InvalidArgumentType(InvalidArgument, TypeError):
    """An argument of a call has the wrong type."""


class InvalidAddress(InvalidArgument, ConfigurationError):
    """A broker's address is malformed, or a list of addresses has an empty, repeated or superfluous one."""


class CompressionUnavailable(ConfigurationError):
    """A body needs a compression library that is not installed; the error text says what to install."""


class ClientClosed(FlintError):
    """The client was closed; create a new one."""


class ForkedClient(FlintError):
    """The client was created before a fork and is used in the child process, but its connections belong to the
    parent."""


class WrongLoop(FlintError):
    """An asyncio client is used outside the event loop in which it was first used, or after that loop was closed."""


class TlsFailed(ConnectionFailed):
    """TLS could not be established, and only a change of settings can help: the certificate is untrusted, expired or
    for another host, or one side does not speak TLS. The client does not retry."""

    retriable: ClassVar[bool] = False


class ListenerTimeout(FlintError):
    """A consumer was closed before all listeners had returned, or before all its deliveries were settled; the broker
    redelivers their messages to other members."""


class DeliveryLost(FlintError):
    """A delivery cannot be settled any more: its queue went to another member, it was open for longer than
    ``listener_timeout``, or its consumer has ended. The message is handled again, by this or another member."""


class ClientFailed(FlintError):
    """A background task or thread of a client ended with an error: ``cause``, also ``__cause__``.

    All pending calls and every later call raise it. Create a new client. Messages that had not been acknowledged may or
    may not be stored.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.cause)


class CorruptMessage(CorruptRecord):
    """A stored message fails its checksum: its bytes are damaged. The other messages of its batch can still be read.

    ``topic``, ``queue``, ``queue_offset`` and ``physical_offset`` identify the message; ``reason`` is the failed check.
    """

    def __init__(self, reason: str, *, topic: str, queue: int, queue_offset: int, physical_offset: int) -> None:
        super().__init__(
            f"message at offset {queue_offset} of queue {queue} of topic {topic!r} (physical offset {physical_offset}) "
            f"is damaged: {reason}; skip it by pulling from offset {queue_offset + 1}"
        )
        self.reason = reason
        self.topic = topic
        self.queue = queue
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt_message, (self.reason, self.topic, self.queue, self.queue_offset, self.physical_offset)


def _corrupt_message(reason: str, topic: str, queue: int, queue_offset: int, physical_offset: int) -> CorruptMessage:
    return CorruptMessage(reason, topic=topic, queue=queue, queue_offset=queue_offset, physical_offset=physical_offset)
