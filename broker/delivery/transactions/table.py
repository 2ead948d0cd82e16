"""Open transactions, recently ended ones, and the progress of both topics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....protocol.errors import TransactionEnded, TransactionGroupWrong, TransactionNotExist

if TYPE_CHECKING:
    from ....protocol.errors import BrokerError
    from ....protocol.storage.record import Record
    from ..client_handle import ClientHandle
    from ..writer import Done
    from .records import Half

ENDED_MAX = 10_000
"""Maximum number of ended transactions in memory; the log has the others."""

COMMIT, ROLLBACK, PARKED = "commit", "rollback", "parked"
"""Outcomes of a transaction."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended transaction. ``end_offset``: end of the log after the records of its end."""

    transaction_id: str
    group: str
    outcome: str
    end_offset: int = 0

    def error(self) -> TransactionEnded:
        """Return the error for a client that tries to end it again."""
        ends = {COMMIT: "committed", ROLLBACK: "rolled back", PARKED: "parked, because no producer could tell its end"}
        return TransactionEnded(
            f"transaction {self.transaction_id} was already {ends[self.outcome]}", outcome=self.outcome
        )

    def check_group(self, group: str) -> None:
        """Raise if it belongs to another producer group."""
        check_group(self.transaction_id, self.group, group)


class Ending:
    """A transaction whose end is being written. ``record``: its half message, if the outcome needs it."""

    __slots__ = ("callbacks", "outcome", "record", "transaction")

    def __init__(self, transaction: OpenTransaction, outcome: str, done: Done) -> None:
        self.transaction = transaction
        self.outcome = outcome
        self.callbacks = [done]
        """Callbacks of all callers that tried to end it; the first one decided the outcome."""
        self.record: Record | None = None

    def report_failure(self, error: BrokerError) -> None:
        """Report the error to all callers; the transaction stays open."""
        self.transaction.ending = None
        for done in self.callbacks:
            done(error)

    def report_success(self, ended: Ended) -> None:
        """Report success to the first caller; the others learn that the transaction was already ended."""
        for number, done in enumerate(self.callbacks):
            done(ended.error() if number else None)


class OpenTransaction:
    """An open transaction. ``half``: the newest copy of its half message, since each check appends it again;
    ``ending``: set while its end is being written; ``runs_in``: the producer that had it open at the last check, if it
    said so."""

    __slots__ = ("ending", "half", "runs_in")

    def __init__(self, half: Half) -> None:
        self.half = half
        self.ending: Ending | None = None
        self.runs_in: ClientHandle | None = None

    def check_request(self, group: str, half_queue_offset: int, half_physical_offset: int) -> None:
        """Raise if the caller's group or offsets do not match; offsets of -1 are not compared.

        If a check appended the half message again, its earlier offsets match too.
        """
        half = self.half
        check_group(half.transaction_id, half.group, group)
        if half.check_times:
            # An offset of -1 passes, too.
            right = half_queue_offset <= half.queue_offset and half_physical_offset <= half.physical_offset
        else:
            right = half_queue_offset in (-1, half.queue_offset) and half_physical_offset in (-1, half.physical_offset)
        if not right:
            raise TransactionNotExist(
                f"the half message of transaction {half.transaction_id} is at queue offset {half.queue_offset}, "
                f"physical offset {half.physical_offset}; got {half_queue_offset} and {half_physical_offset}; nothing "
                "was ended"
            )


def check_group(transaction_id: str, group: str, asking: str) -> None:
    """Raise ``TransactionGroupWrong`` if the caller's producer group is not the transaction's."""
    if asking != group:
        raise TransactionGroupWrong(
            f"transaction {transaction_id} does not belong to producer group {asking}; only a producer of its own "
            "group may end it; nothing was ended"
        )


class OpenTransactions:
    """Open transactions by id and by the queue offset of their half message, in the order of the queue.

    An id has one open transaction: a unique key names one message, so a second half message with the same key is a copy
    of the first one and replaces it.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, OpenTransaction] = {}
        self._by_queue_offset: dict[int, OpenTransaction] = {}
        self._ended: dict[str, Ended] = {}
        self._unconfirmed: dict[str, OpenTransaction] = {}
        """Transactions by id whose end is written and not acknowledged yet."""
        self._notes: deque[tuple[int, int]] = deque()
        """Op records that are still needed: their queue offset, and the largest half queue offset in them."""
        self.next_half_offset = 0
        """Queue offset after the last half message."""
        self.next_note_offset = 0
        """Queue offset after the last op record."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Iterate over a copy of the open transactions, the oldest half message first."""
        return iter(list(self._by_queue_offset.values()))

    def on_disk(self, end_offset: int) -> list[OpenTransaction]:
        """Return the transactions that are open in the log below ``end_offset``, the oldest half message first.

        ``end_offset``: the end of what is acknowledged.
        """
        begun = [each for each in self if each.half.check_times or each.half.physical_offset < end_offset]
        if not self._unconfirmed:
            return begun
        return sorted([*self._unconfirmed.values(), *begun], key=lambda each: each.half.queue_offset)

    def get(self, transaction_id: str) -> OpenTransaction | None:
        """Return the open transaction with this id, or None."""
        return self._by_id.get(transaction_id)

    def at(self, queue_offset: int) -> OpenTransaction | None:
        """Return the open transaction whose half message is at a queue offset of the half topic, or None."""
        return self._by_queue_offset.get(queue_offset)

    def is_open(self, transaction: OpenTransaction) -> bool:
        """Return whether the transaction is still open."""
        return self._by_id.get(transaction.half.transaction_id) is transaction

    def find_ended(self, transaction_id: str) -> Ended | None:
        """Return how the transaction with this id ended, if that is still in memory."""
        return self._ended.get(transaction_id)

    def add_half(self, half: Half) -> tuple[OpenTransaction, Half | None]:
        """Enter a new half message. Return (its transaction, the half message that it replaces).

        The caller must write a note for a replaced half message.
        """
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        before = self._by_id.get(half.transaction_id)
        if before is not None:
            replaced = before.half
            self.move_half(before, half)
            return before, replaced
        transaction = self._by_id[half.transaction_id] = OpenTransaction(half)
        self._by_queue_offset[half.queue_offset] = transaction
        return transaction, None

    def move_half(self, transaction: OpenTransaction, half: Half) -> None:
        """Enter the new offsets of a half message that was appended again."""
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        # Out and in again, so that the dict stays in the order of queue offsets.
        del self._by_queue_offset[transaction.half.queue_offset]
        transaction.half = half
        self._by_queue_offset[half.queue_offset] = transaction

    def end_transaction(self, transaction: OpenTransaction, outcome: str, end_offset: int) -> Ended:
        """Enter the end of a transaction; ``confirm_end`` follows when it is acknowledged."""
        half = transaction.half
        del self._by_id[half.transaction_id]
        del self._by_queue_offset[half.queue_offset]
        self._unconfirmed[half.transaction_id] = transaction
        ended = Ended(half.transaction_id, half.group, outcome, end_offset)
        self.remember_end(ended)
        return ended

    def confirm_end(self, transaction_id: str) -> None:
        """Note that the end of a transaction is acknowledged."""
        self._unconfirmed.pop(transaction_id, None)

    def remember_end(self, ended: Ended) -> None:
        """Remember how a transaction ended; forget the oldest one if there are too many."""
        self._ended[ended.transaction_id] = ended
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def add_note(self, note_offset: int, half_queue_offset_max: int) -> None:
        """Enter an op record, at ``note_offset`` of its queue, that mentions half messages up to the given one."""
        self.next_note_offset = max(self.next_note_offset, note_offset + 1)
        self._notes.append((note_offset, half_queue_offset_max))

    def finished_offsets(self) -> tuple[int, int]:
        """Return the next offsets of the half and of the op topic: records below them are no longer needed."""
        # Half messages enter with growing queue offsets, so the first key belongs to the oldest open transaction.
        half_offset = next(iter(self._by_queue_offset), self.next_half_offset)

        # A start reads no half message below ``half_offset``, so it needs no note that mentions only those.
        notes = self._notes
        while notes and notes[0][1] < half_offset:
            notes.popleft()
        return half_offset, notes[0][0] if notes else self.next_note_offset
