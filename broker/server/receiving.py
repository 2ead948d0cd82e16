"""Memory for what clients send: one buffer that every connection reads into, and bounded memory for what must stay.

A connection that waits for its client owns no buffer. What it reads goes into the one that all share, and is handled
there at once; only what is left of that, mostly the begin of a frame, is copied into a buffer of its own. The sum of
those is bounded: where it would grow above ``limits.receive_bytes_max``, a connection is not read until others have
given some back. They go on in the order in which they came, and the first of them may always have its frame whole, or
none might ever get on. Then no more than ``FLOOR_BYTES`` is read at a time, which is enough for small requests and is
all that a connection can have beyond the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...protocol.frames import Frame, FrameParser

SHARED_BYTES = 256 * 1024
FLOOR_BYTES = 4 * 1024
"""A connection may always keep this much."""
ROOM_BYTES = 4 * 1024
"""Read this much beyond a frame at most: what follows it may come along."""
GROWTH = 4
"""A buffer grows to at most so many times what has arrived, so that an announced length alone costs nothing."""


class Receiver(Protocol):
    """Who waits for memory."""

    parser: SharingParser

    def has_memory(self) -> None:
        """Its parser has room for more: read on."""


class ReceiveMemory:
    """The memory of all connections together. ``call_soon``: the loop's."""

    def __init__(self, max_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.max_bytes = max_bytes
        self.shared = bytearray(SHARED_BYTES)
        self.used_bytes = 0
        """What the connections' own buffers take."""
        self._call_soon = call_soon
        self._waiting: dict[Receiver, None] = {}
        self._first: SharingParser | None = None
        """Has waited longest, and may have its frame whole, whatever is used."""
        self._due = False

    def __bool__(self) -> bool:
        """Whether somebody waits for memory."""
        return bool(self._waiting)

    def read_bytes(self) -> int:
        """How much may be read at once."""
        return min(SHARED_BYTES, max(FLOOR_BYTES, self.max_bytes - self.used_bytes))

    def take(self, parser: SharingParser, more_bytes: int, *, force: bool = False) -> bool:
        """Whether ``parser`` may have so much more; then it has. Negative: it gives some back."""
        free = force or parser is self._first or more_bytes <= 0
        if not free and self.used_bytes + more_bytes > self.max_bytes:
            return False
        self.used_bytes += more_bytes
        if more_bytes < 0:
            self._give_on()
        return True

    def done(self, parser: SharingParser) -> None:
        """``parser`` has had a frame whole: it is as all others again."""
        if parser is self._first:
            self._first = None
            self._give_on()

    def wait(self, receiver: Receiver) -> None:
        """Tell ``receiver`` when it can have what it needs."""
        self._waiting[receiver] = None
        self._give_on()

    def forget(self, receiver: Receiver) -> None:
        """``receiver`` is gone."""
        self._waiting.pop(receiver, None)
        self.done(receiver.parser)

    def _give_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._call_soon(self._give)

    def _give(self) -> None:
        """Let those read on for whom there is room, in their order."""
        self._due = False
        while self._waiting:
            receiver = next(iter(self._waiting))
            if not receiver.parser.settle():
                if self._first is not None:
                    return
                self._first = receiver.parser
                continue
            del self._waiting[receiver]
            receiver.has_memory()


class SharingParser(FrameParser):
    """A parser that reads into the shared buffer, and owns one only while something of it has to stay.

    ``settle`` has to be called whenever the connection's frames were handled, before anybody else reads.
    """

    __slots__ = ("_kept", "_kept_bytes", "_memory", "own_bytes")

    def __init__(self, frame_bytes_max: int, memory: ReceiveMemory) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.keep_bytes = 0
        self.buffer = memory.shared
        self.start = self.end = 0
        self.own_bytes = 0
        """Size of its own buffer; 0: it has none."""
        self._memory = memory
        self._kept: Frame | None = None
        self._kept_bytes = 0

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self.start == self.end:
            self.release()
            return memoryview(self.buffer)[: self._memory.read_bytes()]
        return memoryview(self.buffer)[self.end :]

    def keep(self, frame: Frame) -> None:
        """``frame`` is handled once more, later: its body must stay until ``let_go``."""
        self._kept = frame
        if frame.buffer is self._memory.shared:
            self._kept_bytes = frame.body_end - frame.body_at
            self._memory.take(self, self._kept_bytes, force=True)
            frame.buffer = frame.buffer[frame.body_at : frame.body_end]
            frame.body_at, frame.body_end = 0, self._kept_bytes

    def let_go(self) -> None:
        """The frame that was kept is done."""
        if self._kept_bytes:
            self._memory.take(self, -self._kept_bytes)
        self._kept = None
        self._kept_bytes = 0

    def release(self) -> None:
        """Give back what it owns; what is pending is lost."""
        self.start = self.end = 0
        self.buffer = self._memory.shared
        if self.own_bytes:
            self._memory.take(self, -self.own_bytes)
            self.own_bytes = 0

    def settle(self) -> bool:
        """Have what is pending in a buffer of its own, with room for the rest of the frame that it begins.

        False where there is no memory for that: then nothing more may be read.
        """
        pending = self.end - self.start
        owns = self.own_bytes > 0
        if owns and self._kept is not None and self._kept.buffer is self.buffer:
            return True  # a frame in front is still needed, and nothing is read until it is done
        if not pending:
            self.release()
            return True
        size = self._size_for(pending)
        if owns and self._suffices(size, pending):
            return True
        if self._memory.take(self, size - self.own_bytes, force=size <= FLOOR_BYTES):
            self._move(size, pending)
            return True
        if not owns:
            self._memory.take(self, pending, force=True)
            self._move(pending, pending)
        return False

    def _suffices(self, size: int, pending: int) -> bool:
        """Whether its buffer will do where one of ``size`` would be right; what is pending is moved to its front where
        it has to be."""
        own = self.own_bytes
        crowded = self._memory.used_bytes > self._memory.max_bytes
        if own > max(size, FLOOR_BYTES) * (1 if crowded else GROWTH):
            return False  # a large frame is over
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
        """How large a buffer has to be for what is pending and what comes next."""
        if pending < 4:
            return FLOOR_BYTES
        frame_length = int.from_bytes(self.buffer[self.start : self.start + 4], "big")
        whole = 4 + min(frame_length, self.frame_bytes_max)
        if whole <= pending:
            return pending  # they are handled before anything is read
        return min(max(GROWTH * pending, FLOOR_BYTES), whole + ROOM_BYTES)
