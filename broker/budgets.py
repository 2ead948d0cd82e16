"""Memory budgets that all connections share: receive buffers, bytes in flight, and responses that are not sent yet.

A class here counts bytes and decides who waits; it knows no socket. Read first: ``send_budget``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..protocol.frames import FrameParser

if TYPE_CHECKING:
    from ..protocol.frames import Frame


# ---- Budget of the bytes that have arrived on all connections and whose requests are not complete.


class InFlightBudget:
    """The bytes in flight, which connections add and subtract, and their bounds."""

    __slots__ = ("bytes", "bytes_end", "bytes_max")

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = 0
        """Number of bytes above which PRODUCE is refused; -1 (always refuse) while the disk is stalled."""
        self.bytes_end = 0
        """Number of bytes above which connections that wait for a flush are no longer read: pending refusals count
        too."""

    def limit(self, bytes_max: int, *, stalled: bool) -> None:
        self.bytes_max = -1 if stalled else bytes_max
        self.bytes_end = bytes_max + bytes_max // 8


# ---- Receive buffers: one buffer that all connections read into, and a bounded amount of memory for partial
# frames.
#
# An idle connection owns no buffer. Each read goes into the shared buffer and is handled there at once; only
# the rest, mostly the beginning of a frame, is copied into a buffer of the connection's own. The sum of these
# buffers is bounded: if it would exceed ``limits.receive_bytes_max``, the connection is not read until others
# have released memory. Connections resume in FIFO order, and the first in line may always complete its frame;
# otherwise none might ever continue. Meanwhile at most ``FLOOR_BYTES`` are read at a time. That is enough for
# small requests, and it is all that a connection can have beyond the bound.

SHARED_BYTES = 256 * 1024
FLOOR_BYTES = 4 * 1024
"""Size of the buffer that a connection may always have."""
ROOM_BYTES = 4 * 1024
"""Maximum number of bytes to read beyond a frame, so that the next frame may arrive with it."""
GROWTH = 4
"""A buffer grows to at most this multiple of the bytes that have arrived: announcing a large frame reserves nothing."""


class Receiver(Protocol):
    """A connection that may wait for memory."""

    parser: SharingParser

    def has_memory(self) -> None:
        """Continue reading: the parser has room again."""


class ReceiveBudget:
    """Receive memory of all connections together. ``call_soon``: that of the loop."""

    def __init__(self, max_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.max_bytes = max_bytes
        self.shared = bytearray(SHARED_BYTES)
        self.readable = memoryview(self.shared)[: max(FLOOR_BYTES, max_bytes)]
        """Part of the shared buffer that one read may fill: less of it while memory is short."""
        self.used_bytes = 0
        """Total size of the connections' own buffers."""
        self._call_soon = call_soon
        self._waiting: dict[Receiver, None] = {}
        self.first: SharingParser | None = None
        """The parser that has waited longest: it may complete its frame regardless of the bound."""
        self._due = False

    def __bool__(self) -> bool:
        """Return whether any connection waits for memory."""
        return bool(self._waiting)

    def take(self, parser: SharingParser, more_bytes: int, *, force: bool = False) -> bool:
        """Reserve ``more_bytes`` for ``parser``; return False if the bound would be exceeded.

        A negative number releases memory. ``force`` reserves it regardless of the bound.
        """
        free = force or parser is self.first or more_bytes <= 0
        if not free and self.used_bytes + more_bytes > self.max_bytes:
            return False
        self.used_bytes += more_bytes
        read_bytes = min(SHARED_BYTES, max(FLOOR_BYTES, self.max_bytes - self.used_bytes))
        if read_bytes != len(self.readable):
            self.readable = memoryview(self.shared)[:read_bytes]
        if more_bytes < 0:
            self._give_on()
        return True

    def done(self, parser: SharingParser) -> None:
        """End the priority of ``parser``, which has completed a frame."""
        if parser is self.first:
            self.first = None
            self._give_on()

    def wait(self, receiver: Receiver) -> None:
        """Call ``receiver.has_memory`` once it can have the memory that it needs."""
        self._waiting[receiver] = None
        self._give_on()

    def forget(self, receiver: Receiver) -> None:
        self._waiting.pop(receiver, None)
        self.done(receiver.parser)

    def _give_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._call_soon(self._give)

    def _give(self) -> None:
        """Resume the connections for which there is memory, in FIFO order."""
        self._due = False
        while self._waiting:
            receiver = next(iter(self._waiting))
            if not receiver.parser.settle():
                # Only one at a time: together they could exceed the bound by any amount.
                if self.first is not None:
                    return
                self.first = receiver.parser
                continue
            del self._waiting[receiver]
            receiver.has_memory()


class SharingParser(FrameParser):
    """A parser that reads into the shared buffer, and owns a buffer only while it has to keep bytes.

    ``settle`` must be called after the connection's frames are handled and before any other connection reads, because
    that read overwrites the shared buffer.
    """

    __slots__ = ("_kept", "_kept_bytes", "_memory", "own_bytes")

    def __init__(self, frame_bytes_max: int, memory: ReceiveBudget) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.keep_bytes = 0
        self.buffer = memory.shared
        self.start = self.end = 0
        self.own_bytes = 0
        """Size of its own buffer; 0 if it has none."""
        self._memory = memory
        self._kept: Frame | None = None
        self._kept_bytes = 0

    def writable(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self.start == self.end:
            if not self.is_settled():
                self.release()
            return self._memory.readable
        return memoryview(self.buffer)[self.end :]

    def keep(self, frame: Frame) -> None:
        """Keep the body of ``frame`` valid until ``let_go``, because the frame is handled again later."""
        self._kept = frame
        # Other connections read into the shared buffer meanwhile. An own buffer stays as it is: see ``settle``.
        if frame.buffer is self._memory.shared:
            self._kept_bytes = frame.body_end - frame.body_at
            self._memory.take(self, self._kept_bytes, force=True)
            frame.buffer = frame.buffer[frame.body_at : frame.body_end]
            frame.body_at, frame.body_end = 0, self._kept_bytes

    def let_go(self) -> None:
        """Release the frame that ``keep`` kept."""
        if self._kept_bytes:
            self._memory.take(self, -self._kept_bytes)
        self._kept = None
        self._kept_bytes = 0

    def release(self) -> None:
        """Release its own buffer; pending bytes are lost."""
        self.start = self.end = 0
        self.buffer = self._memory.shared
        if self.own_bytes:
            self._memory.take(self, -self.own_bytes)
            self.own_bytes = 0

    def is_settled(self) -> bool:
        """Return whether all bytes are handled and no buffer is owned, so that ``settle`` has nothing to do."""
        if self.start != self.end or self.own_bytes:
            return False
        self.start = self.end = 0
        return True

    def settle(self) -> bool:
        """Move pending bytes into a buffer of its own that has room for the rest of their frame.

        Return False if there is no memory for that; then nothing more may be read.
        """
        pending = self.end - self.start
        owns = self.own_bytes > 0
        if owns and self._kept is not None and self._kept.buffer is self.buffer:
            return True  # the buffer still holds a kept frame, and nothing is read until that frame is done
        if not pending:
            self.release()
            return True
        size = self._size_for(pending)
        if owns and self._suffices(size, pending):
            return True
        if self._memory.take(self, size - self.own_bytes, force=size <= FLOOR_BYTES):
            self._move(size, pending)
            return True
        if not owns:  # the pending bytes must leave the shared buffer in any case
            self._memory.take(self, pending, force=True)
            self._move(pending, pending)
        return False

    def _suffices(self, size: int, pending: int) -> bool:
        """Return whether its own buffer can serve in place of one of ``size`` bytes; moves pending bytes to the front
        if that makes it fit."""
        own = self.own_bytes
        # While memory is short, no buffer may be larger than it has to be.
        crowded = self._memory.used_bytes > self._memory.max_bytes
        if own > max(size, FLOOR_BYTES) * (1 if crowded else GROWTH):
            return False  # a large frame is done: shrink
        room = min(ROOM_BYTES, size - pending)
        if own - self.end >= room:
            return True
        if own < size or own - pending < room:
            return False
        self.buffer[:pending] = self.buffer[self.start : self.end]
        self.start, self.end = 0, pending
        return True

    def _move(self, size: int, pending: int) -> None:
        buffer = bytearray(size)
        buffer[:pending] = memoryview(self.buffer)[self.start : self.end]
        self.buffer, self.own_bytes = buffer, size
        self.start, self.end = 0, pending

    def _size_for(self, pending: int) -> int:
        """Return the buffer size needed for the pending bytes and the next read."""
        # The length of the frame has not arrived completely.
        if pending < 4:
            return FLOOR_BYTES
        frame_length = int.from_bytes(self.buffer[self.start : self.start + 4], "big")
        whole = 4 + min(frame_length, self.frame_bytes_max)
        if whole <= pending:
            return pending  # complete frames, which are handled before the next read
        return min(max(GROWTH * pending, FLOOR_BYTES), whole + ROOM_BYTES)


# ---- Budget for responses that the broker has produced and their clients have not read yet.
#
# Each connection may have ``WRITE_BUFFER_BYTES_MAX`` (``net/connection.py``) of unsent bytes; this module bounds their
# sum. While the sum exceeds ``limits.send_bytes_max``, requests of clients that have not drained their responses wait.
# All other clients are served up to 1.5 times the limit, so that slow readers do not block them. The closer the sum is
# to the limit, the smaller are the responses that are read from the store.

SMALL_BYTES = 16 * 1024
"""Unsent bytes of a connection up to this number do not count; while memory is short, it may not have more."""
ANSWER_BYTES_MIN = 64 * 1024
"""Lower bound for the size limit of a response; a client may ask for less."""
TRIED_MAX = 64
"""Maximum number of waiting requests that are retried at a time."""
LOOK_EVERY_S = 0.005
"""Poll interval for drained bytes while any request waits."""


class SendingConnection(Protocol):
    """A connection that may have unsent bytes."""

    def unsent_bytes(self) -> int:
        """Return the current number of unsent bytes."""


class SendBudget:
    """The budget of unsent bytes. Belongs to the event loop.

    ``clock``: monotonic seconds; ``call_later``: that of the loop.
    """

    def __init__(
        self, max_bytes: int, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        """Upper bound for the unsent bytes of all connections: some may have been sent since the last poll."""
        self._clock = clock
        self._call_later = call_later
        self._senders: dict[SendingConnection, int] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._looked_at = 0.0
        self._due = False

    def note(self, sender: SendingConnection, unsent_bytes: int) -> None:
        """Record the number of unsent bytes of ``sender``."""
        counted = unsent_bytes if unsent_bytes > SMALL_BYTES else 0
        self.used_bytes += counted - self._senders.pop(sender, 0)
        if counted:
            self._senders[sender] = counted

    def may_read(self, sender: SendingConnection) -> bool:
        """Return whether a response for ``sender`` may be read from the store now."""
        if not self.is_short():
            return True
        return sender not in self._senders and self.used_bytes < self.max_bytes + self.max_bytes // 2

    def is_short(self) -> bool:
        """Return whether the budget is exhausted, so that slow readers must wait."""
        # At most once at a time of the clock, because a look goes through all connections that count.
        if self.used_bytes >= self.max_bytes and self._clock() != self._looked_at:
            self._look()
        return self.used_bytes >= self.max_bytes

    def answer_bytes(self) -> int:
        """Return the size limit of a response that is read now. Callable from any thread."""
        # An eighth of the rest, since other responses may be read before this one counts.
        return max((self.max_bytes - self.used_bytes) // 8, ANSWER_BYTES_MIN)

    def wait(self, call: Callable[[], None]) -> None:
        """Call ``call`` when there may be memory again; it must check, and wait again if there is none."""
        self._waiting.append(call)
        self._look_later()

    def _look(self) -> None:
        self._looked_at = self._clock()
        for sender in list(self._senders):
            self.note(sender, sender.unsent_bytes())

    def _look_later(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._call_later(LOOK_EVERY_S, self._retry)

    def _retry(self) -> None:
        self._due = False
        self._look()
        # Each at most once: a request that must still wait joins the end of the line.
        for _ in range(min(len(self._waiting), TRIED_MAX)):
            self._waiting.popleft()()
        self._look_later()
