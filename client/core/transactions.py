"""Transactions as an operator sees them, and ending one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...protocol import commands
from ...protocol.errors import RemoteProtocolError, TransactionEnded, error_from_answer
from ...protocol.fields import decode_fields
from .operations import Operation, operation, unpack_body
from .session import Answer
from .times import from_millis


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction that is open, or was parked. ``checks``: how often producers of ``group`` were asked; ``born_ms``:
    when its message was made, ``stored_ms``: when the half message was last written, ms since 1970 UTC;
    ``half_queue_offset``, ``half_physical_offset``: where that lies, of a parked one where its message was put;
    ``delivered``: whether a parked one was committed after all."""

    id: str
    topic: str
    queue: int
    group: str
    born_ms: int
    stored_ms: int
    checks: int
    half_queue_offset: int
    half_physical_offset: int
    delivered: bool

    @property
    def born_at(self) -> datetime:
        """When its message was made."""
        return from_millis(self.born_ms)


@dataclass(frozen=True, slots=True)
class Transactions:
    """One page of transactions. ``next_offset``: where the next page begins, -1 where there is none; ``open``,
    ``parked``: how many there are in all."""

    rows: Sequence[TransactionInfo]
    next_offset: int
    open: int
    parked: int


def transactions(parked: bool, from_offset: int, max_count: int) -> Operation[Transactions]:
    """One page of the transactions that are open, or were parked; the oldest first."""

    def decode(answer: Answer) -> Transactions:
        head = decode_fields(commands.TransactionsAnswer, answer.fields)
        rows = unpack_body(answer)
        if not isinstance(rows, list) or len(rows) != head.count:
            raise RemoteProtocolError(f"{head.count} transactions that are not there")
        return Transactions([_info(row) for row in rows], head.next_offset, head.open, head.parked)

    return operation(commands.GET_TRANSACTIONS, decode, parked=parked, from_offset=from_offset, max_count=max_count)


def _info(row: dict[str, Any]) -> TransactionInfo:
    return TransactionInfo(**{name: row[name] for name in TransactionInfo.__dataclass_fields__})


class EndTransaction(Operation[None]):
    """END_TRANSACTION; that it ended so before is what was wanted."""

    __slots__ = ()

    def result(self, answer: Answer) -> None:
        """Raises the error that the answer carries, unless it says that the transaction ended as asked for."""
        if answer.code == TransactionEnded.code:
            error = error_from_answer(answer.code, answer.fields)
            wanted = "commit" if self.fields["commit"] else "rollback"
            if error.details.get("outcome") == wanted:
                return
            raise error
        super().result(answer)


def end_transaction(
    transaction_id: str,
    group: str,
    *,
    commit: bool,
    half_queue_offset: int = -1,
    half_physical_offset: int = -1,
    parked: bool = False,
) -> Operation[None]:
    """Commit a transaction, or roll it back; the offsets are compared where they are known. ``parked``: also one that
    was parked."""
    made = operation(
        commands.END_TRANSACTION,
        lambda answer: None,
        transaction_id=transaction_id,
        group=group,
        commit=commit,
        half_queue_offset=half_queue_offset,
        half_physical_offset=half_physical_offset,
        parked=parked,
    )
    return EndTransaction(made.command, made.fields, made.decode)
