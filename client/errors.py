"""Errors that only a client raises. Those of brokers are in ``flintmq.protocol.errors``; the client exports both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ..protocol.errors import ConfigurationError, ConnectionFailed, FlintError
from ..protocol.record import CorruptRecord

if TYPE_CHECKING:
    from .core.receipts import Receipt

_SHOWN_FAILURES = 3


class InvalidMessage(FlintError, ValueError):
    """A message cannot be sent as it is. No broker saw it: one that refuses a message raises ``MessageIllegal``."""


class InvalidMessageType(InvalidMessage, TypeError):
    """A part of a message has a type that cannot be sent, such as a ``str`` for a body."""


class InvalidArgument(FlintError, ValueError):
    """An argument of a call cannot be used; the message names it and says what is valid. No broker saw it: one that
    refuses a request raises ``InvalidParameter``."""


class InvalidArgumentType(InvalidArgument, TypeError):
    """An argument of a call has the wrong type."""


class CompressionUnavailable(ConfigurationError):
    """A body needs a compression library that is not installed here; the message says what to install."""


class ClientClosed(FlintError):
    """The client was closed; make a new one."""


class ForkedClient(FlintError):
    """The client was made before a fork and is used in the child process, where its connections are the parent's."""


class WrongLoop(FlintError):
    """An asyncio client is used outside of the event loop in which it was first used, or after that loop ended."""


class TlsFailed(ConnectionFailed):
    """No TLS came about, for a reason that only other settings can cure: a certificate that is not trusted, has expired
    or is for another host, or a side that speaks none. Nothing is tried again."""

    retriable: ClassVar[bool] = False


class ListenerTimeout(FlintError):
    """A consumer was closed, and listeners had not come back in time: what they had is tried again by others."""


class ClientFailed(FlintError):
    """A background task or thread of a client ended with an error: ``cause``, also ``__cause__``.

    Everything that waited and every later call raises it. Make a new client; whether messages that waited for their
    acknowledgement are stored is not known.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause

    def __reduce__(self) -> tuple[object, ...]:
        return ClientFailed, (str(self), self.cause)


class CorruptMessage(CorruptRecord):
    """A stored message does not check: its bytes are damaged. The others of its batch can still be read.

    ``topic``, ``queue``, ``queue_offset`` and ``physical_offset`` say which one; ``reason`` what does not hold.
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


class DeliveryFailed(FlintError):
    """Some messages of a ``send_many``, ``send_bulk`` or ``flush`` were not acknowledged.

    ``errors``: why, by the message's index in the call (for ``flush``: numbered in the order in which they failed).
    ``receipts``: as the call would have returned them, with None for a message that was not acknowledged. A message
    that failed with a timeout or a lost connection may have been stored all the same: only its answer is missing.
    """

    def __init__(self, errors: Mapping[int, FlintError], receipts: Sequence[Receipt | None]) -> None:
        super().__init__(_describe_failures(errors, len(receipts)))
        self.errors = errors
        self.receipts = receipts

    def __reduce__(self) -> tuple[object, ...]:
        return DeliveryFailed, (self.errors, self.receipts)

    @property
    def failed(self) -> list[int]:
        """Indexes of the messages that were not acknowledged, ascending."""
        return sorted(self.errors)

    @property
    def retriable(self) -> bool:
        """Whether sending the failed messages again can succeed."""
        return all(getattr(error, "retriable", False) for error in self.errors.values())


def _describe_failures(errors: Mapping[int, FlintError], count: int) -> str:
    ranges = _runs(errors)
    shown = "; ".join(
        f"{f'message {first}' if first == last else f'messages {first} to {last}'}: {type(error).__name__}: {error}"
        for first, last, error in ranges[:_SHOWN_FAILURES]
    )
    more = f"; and {len(ranges) - _SHOWN_FAILURES} more reasons or ranges" if len(ranges) > _SHOWN_FAILURES else ""
    return f"{len(errors)} of {count} messages were not acknowledged: {shown}{more}"


def _runs(errors: Mapping[int, FlintError]) -> list[tuple[int, int, FlintError]]:
    """``errors`` as ranges ``(first, last, error)`` of neighbours that failed for the same reason."""
    runs: list[tuple[int, int, FlintError]] = []
    for index in sorted(errors):
        error = errors[index]
        if runs and runs[-1][1] == index - 1 and (runs[-1][2] is error or str(runs[-1][2]) == str(error)):
            runs[-1] = (runs[-1][0], index, runs[-1][2])
        else:
            runs.append((index, index, error))
    return runs
