"""Which transactions are open, which were ended lately, and how far both topics are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ....protocol.errors import BrokerError, TransactionEnded, TransactionGroupWrong, TransactionNotExist
from ....protocol.record import Record
from .records import Half

Done = Callable[[BrokerError | None], None]

ENDED_MAX = 10_000
"""As many ended transactions are remembered; of others the log tells."""

COMMIT, ROLLBACK, PARKED = "commit", "rollback", "parked"
"""How a transaction ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction that is over. ``end_offset``: the log's end behind what says so."""

    transaction_id: str
    group: str
    outcome: str
    end_offset: int = 0

    def error(self) -> TransactionEnded:
        """What whoever wants to end it again gets."""
        said = {COMMIT: "committed", ROLLBACK: "rolled back", PARKED: "parked, because nobody could tell its end"}
        return TransactionEnded(
            f"transaction {self.transaction_id} was {said[self.outcome]} before", outcome=self.outcome
        )

    def check(self, group: str) -> None:
        """Raise where it is of another producer group."""
        check_group(self.transaction_id, self.group, group)


class Ending:
    """A transaction whose end is being written. ``record``: its half message, where that is needed."""

    __slots__ = ("done", "outcome", "record", "transaction")

    def __init__(self, transaction: Open, outcome: str, done: Done) -> None:
        self.transaction = transaction
        self.outcome = outcome
        self.done = [done]
        """Who wants to hear of it; the first one decided how it ends."""
        self.record: Record | None = None

    def failed(self, error: BrokerError) -> None:
        """The transaction stays open."""
        self.transaction.ending = None
        for done in self.done:
            done(error)

    def succeeded(self, ended: Ended) -> None:
        """It is over: the first is done, for the others it was done before."""
        for number, done in enumerate(self.done):
            done(ended.error() if number else None)


class Open:
    """An open transaction. ``half``: its half message as it lies now, because each check writes it again; ``ending``:
    its end is being written."""

    __slots__ = ("ending", "half")

    def __init__(self, half: Half) -> None:
        self.half = half
        self.ending: Ending | None = None

    def check(self, group: str, half_queue_offset: int, half_physical_offset: int) -> None:
        """Raise where who wants to end it does not know it; offsets that are -1 are not compared.

        Of a half message that was written again because of a check the places before are right, too.
        """
        half = self.half
        check_group(half.transaction_id, half.group, group)
        if half.check_times:
            right = half_queue_offset <= half.queue_offset and half_physical_offset <= half.physical_offset
        else:
            right = half_queue_offset in (-1, half.queue_offset) and half_physical_offset in (-1, half.physical_offset)
        if not right:
            raise TransactionNotExist(
                f"transaction {half.transaction_id} has its half message at queue offset {half.queue_offset}, physical "
                f"offset {half.physical_offset}, not at {half_queue_offset} and {half_physical_offset}; nothing was "
                "ended"
            )


def check_group(transaction_id: str, group: str, asking: str) -> None:
    """Raise ``TransactionGroupWrong`` where who asks is of another producer group than the transaction."""
    if asking != group:
        raise TransactionGroupWrong(
            f"transaction {transaction_id} is not of producer group {asking}: only a producer of its own group may end "
            "it; nothing was ended"
        )


class Table:
    """Open transactions by id and by the queue offset of their half message; those are in the order of the queue.

    There is one open transaction of an id: a unique key is of one message, so a second half message is the first one
    once more, and the older one is done.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Open] = {}
        self._by_queue_offset: dict[int, Open] = {}
        self._ended: dict[str, Ended] = {}
        self._notes: deque[tuple[int, int]] = deque()
        """Op records that still matter: their queue offset, and the largest half queue offset in them."""
        self.next_half_offset = 0
        """Behind the last half message."""
        self.next_note_offset = 0
        """Behind the last op record."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Open]:
        """The open ones, the oldest half message first; a copy."""
        return iter(list(self._by_queue_offset.values()))

    def get(self, transaction_id: str) -> Open | None:
        """The open transaction of that id."""
        return self._by_id.get(transaction_id)

    def is_open(self, transaction: Open) -> bool:
        """Whether it is not over."""
        return self._by_id.get(transaction.half.transaction_id) is transaction

    def ended(self, transaction_id: str) -> Ended | None:
        """How the transaction of that id ended, if that is remembered."""
        return self._ended.get(transaction_id)

    def add(self, half: Half) -> tuple[Open, Half | None]:
        """Enter a new half message; with it, the half that it takes the place of, whose end is to be noted."""
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        before = self._by_id.get(half.transaction_id)
        if before is not None:
            replaced = before.half
            self.move(before, half)
            return before, replaced
        transaction = self._by_id[half.transaction_id] = Open(half)
        self._by_queue_offset[half.queue_offset] = transaction
        return transaction, None

    def move(self, transaction: Open, half: Half) -> None:
        """The transaction's half message was written again, at the end of the queue."""
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        del self._by_queue_offset[transaction.half.queue_offset]
        transaction.half = half
        self._by_queue_offset[half.queue_offset] = transaction

    def end(self, transaction: Open, outcome: str, end_offset: int) -> Ended:
        """The transaction is over."""
        half = transaction.half
        del self._by_id[half.transaction_id]
        del self._by_queue_offset[half.queue_offset]
        ended = Ended(half.transaction_id, half.group, outcome, end_offset)
        self.remember(ended)
        return ended

    def remember(self, ended: Ended) -> None:
        """How a transaction ended, until many others have."""
        self._ended[ended.transaction_id] = ended
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def noted(self, note_offset: int, half_queue_offset_max: int) -> None:
        """An op record lies at ``note_offset`` of its queue and speaks of half messages up to that one."""
        self.next_note_offset = max(self.next_note_offset, note_offset + 1)
        self._notes.append((note_offset, half_queue_offset_max))

    def done(self) -> tuple[int, int]:
        """Next offsets of the half and of the op topic: what lies below them is of no more use."""
        half_offset = next(iter(self._by_queue_offset), self.next_half_offset)
        notes = self._notes
        while notes and notes[0][1] < half_offset:
            notes.popleft()
        return half_offset, notes[0][0] if notes else self.next_note_offset
