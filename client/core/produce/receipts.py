"""Receipts: a producer's knowledge of an acknowledged message, and the error of a call that got none for some."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar, overload

from ....protocol.commands import PHYSICAL_OFFSET_STRUCT
from ....protocol.errors import FlintError
from ....protocol.storage.record import unique_key
from ....protocol.times import from_millis
from ...delay import deliver_ms_of

T = TypeVar("T")
_SHOWN_FAILURES = 3


class Receipt(NamedTuple):
    """The location of one acknowledged message. ``stored_ms``: store time, ms since 1970 UTC; ``deliver_ms``: delivery
    time of a delayed message, None if it has no delay or was due at once."""

    message_id: str
    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    stored_ms: int
    deliver_ms: int | None = None

    @property
    def stored_at(self) -> datetime:
        """Store time as an aware datetime."""
        return from_millis(self.stored_ms)

    @property
    def deliver_at(self) -> datetime | None:
        """Delivery time as an aware datetime, None if the message is delivered at once."""
        return None if self.deliver_ms is None else from_millis(self.deliver_ms)


class Acknowledged:
    """A stored frame: the data from which its messages' receipts are made on demand."""

    __slots__ = (
        "_deliver_ms",
        "_first",
        "_physical_offsets",
        "_prefix",
        "_queue",
        "_queue_offset",
        "_stored_ms",
        "_topic",
    )

    def __init__(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        stored_ms: int,
        prefix: str,
        first: int,
        physical_offsets: bytes,
        common: str = "",
    ) -> None:
        self._deliver_ms = deliver_ms_of(common, stored_ms) if common else None
        self._topic = topic
        self._queue = queue
        self._queue_offset = queue_offset
        self._stored_ms = stored_ms
        self._prefix = prefix
        self._first = first
        self._physical_offsets = physical_offsets

    def receipt(self, position: int) -> Receipt:
        """Return the receipt of the frame's message ``position``, counted from 0."""
        return Receipt(
            unique_key(self._prefix, self._first + position),
            self._topic,
            self._queue,
            self._queue_offset + position,
            PHYSICAL_OFFSET_STRUCT.unpack_from(self._physical_offsets, 8 * position)[0],
            self._stored_ms,
            self._deliver_ms,
        )


class FrameOutcome(NamedTuple):
    """The outcome of one frame of a call; ``indexes``: its messages' indexes in the call, ascending."""

    indexes: Sequence[int]
    outcome: Acknowledged | FlintError


class _Outcomes:
    """Finds a message's frame and position in it by the message's index in the call."""

    def __init__(self, parts: list[FrameOutcome]) -> None:
        self.parts = parts
        self.count = sum(len(part.indexes) for part in parts)
        self._starts: list[int] | None = None
        self._places: list[tuple[int, int]] | None = None
        # A call to one destination: its frames are consecutive ranges, and a search by halving finds a message's frame.
        if all(type(part.indexes) is range for part in parts):
            parts.sort(key=lambda part: part.indexes[0])
            self._starts = [part.indexes[0] for part in parts]

    def find(self, index: int) -> tuple[Acknowledged | FlintError, int]:
        if self._starts is not None:
            part = self.parts[bisect_right(self._starts, index) - 1]
            return part.outcome, index - part.indexes[0]
        if self._places is None:
            places = [(0, 0)] * self.count
            for number, part in enumerate(self.parts):
                for position, place in enumerate(part.indexes):
                    places[place] = (number, position)
            self._places = places
        number, position = self._places[index]
        return self.parts[number].outcome, position


class _LazySequence(Sequence[T]):
    """A sequence over outcomes whose items ``_at`` makes on demand."""

    __slots__ = ("_outcomes",)

    def __init__(self, outcomes: _Outcomes) -> None:
        self._outcomes = outcomes

    @abstractmethod
    def _at(self, index: int) -> T: ...

    def __len__(self) -> int:
        return self._outcomes.count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        return self._at(_place(index, len(self)))

    def __iter__(self) -> Iterator[T]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # unhashable, as a list is

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"


class Receipts(_LazySequence[Receipt]):
    """The receipts of a call, in the order of its messages; each is made on demand."""

    __slots__ = ()

    def _at(self, index: int) -> Receipt:
        outcome, position = self._outcomes.find(index)
        assert isinstance(outcome, Acknowledged)
        return outcome.receipt(position)


class PartialReceipts(_LazySequence[Receipt | None]):
    """The receipts of a call in which some messages failed: None in their places."""

    __slots__ = ()

    def _at(self, index: int) -> Receipt | None:
        outcome, position = self._outcomes.find(index)
        return outcome.receipt(position) if isinstance(outcome, Acknowledged) else None


def _place(index: int, count: int) -> int:
    place = index + count if index < 0 else index
    if not 0 <= place < count:
        raise IndexError(f"receipt {index} of {count}")
    return place


def settle(parts: list[FrameOutcome], fail: Callable[[dict[int, FlintError], PartialReceipts], FlintError]) -> Receipts:
    """Return the receipts of a call when every frame has an outcome; raise the error from ``fail`` if one failed."""
    outcomes = _Outcomes(parts)
    errors: dict[int, FlintError] = {}
    for part in outcomes.parts:
        if not isinstance(part.outcome, Acknowledged):
            errors.update(dict.fromkeys(part.indexes, part.outcome))
    if errors:
        raise fail(errors, PartialReceipts(outcomes))
    return Receipts(outcomes)


class DeliveryFailed(FlintError):
    """Some messages of a ``send_many``, ``send_bulk`` or ``flush`` were not acknowledged.

    ``errors``: each failure, by the message's index in the call (for ``flush``: numbered in the order of failure).
    ``receipts``: as the call would have returned them, with None for a message that was not acknowledged. A message
    that failed with a timeout or a lost connection may still be stored: only its acknowledgement is missing.
    """

    def __init__(self, errors: Mapping[int, FlintError], receipts: Sequence[Receipt | None]) -> None:
        super().__init__(_describe_failures(errors, len(receipts)))
        self.errors = errors
        self.receipts = receipts

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.receipts)

    @property
    def failed(self) -> list[int]:
        """Indexes of the messages that were not acknowledged, in ascending order."""
        return sorted(self.errors)

    @property
    def retriable(self) -> bool:
        """True if resending the failed messages can succeed."""
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
    """Group ``errors`` into ranges ``(first, last, error)`` of adjacent messages that failed for the same reason."""
    runs: list[tuple[int, int, FlintError]] = []
    for index in sorted(errors):
        error = errors[index]
        if runs and runs[-1][1] == index - 1 and (runs[-1][2] is error or str(runs[-1][2]) == str(error)):
            runs[-1] = (runs[-1][0], index, runs[-1][2])
        else:
            runs.append((index, index, error))
    return runs
