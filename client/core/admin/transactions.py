"""Transactions as an operator sees them, and the operation that ends one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ....protocol import commands
from ....protocol.errors import RemoteProtocolError, TransactionEnded, error_from_answer
from ....protocol.fields import decode_fields
from ..rpc.operation import Operation, nothing, operation, unpack_body
from ..rpc.session import Answer
from ..times import from_millis


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """An open or parked transaction. ``checks``: number of checks sent to producers of ``group``; ``born_ms``: when its
    message was created, ``stored_ms``: when the half message was last written, ms since 1970 UTC;
    ``half_queue_offset``, ``half_physical_offset``: the location of the half message, or of a parked message;
    ``delivered``: a parked message was committed later."""

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
        """Time at which its message was created."""
        return from_millis(self.born_ms)


@dataclass(frozen=True, slots=True)
class Transactions:
    """One page of transactions. ``next_offset``: where the next page begins, -1 on the last page; ``open``, ``parked``:
    total numbers."""

    rows: Sequence[TransactionInfo]
    next_offset: int
    open: int
    parked: int


def transactions(
    *, parked: bool = False, from_offset: int = 0, max_count: int = 100, timeout: float | None = None
) -> Operation[Transactions]:
    """Return a page of the open transactions, oldest first, or (``parked``) of those whose messages the broker has
    set aside because no producer could tell how they ended. ``from_offset``: ``next_offset`` of the previous
    page."""

    def decode(answer: Answer) -> Transactions:
        head = decode_fields(commands.TransactionsAnswer, answer.fields)
        rows = unpack_body(answer)
        if not isinstance(rows, list) or len(rows) != head.count:
            raise RemoteProtocolError(f"expected {head.count} transactions, got another body")
        return Transactions([_info(row) for row in rows], head.next_offset, head.open, head.parked)

    return operation(
        commands.GET_TRANSACTIONS, decode, timeout=timeout, parked=parked, from_offset=from_offset, max_count=max_count
    )


def _info(row: dict[str, Any]) -> TransactionInfo:
    return TransactionInfo(**{name: row[name] for name in TransactionInfo.__dataclass_fields__})


class EndTransaction(Operation[None]):
    """END_TRANSACTION; succeeds if the transaction has already ended with the wanted outcome."""

    __slots__ = ()

    def result(self, answer: Answer) -> None:
        """Raise the error of the response, unless it says that the transaction has already ended as requested."""
        if answer.code == TransactionEnded.code:
            error = error_from_answer(answer.code, answer.fields)
            wanted = "commit" if self.fields["commit"] else "rollback"
            if error.details.get("outcome") == wanted:
                return
            raise error
        super().result(answer)


def end_transaction(transaction_id: str, group: str, *, commit: bool, timeout: float | None = None) -> Operation[None]:
    """Commit an open transaction of a producer group, or roll it back, in place of its producer; a commit also
    delivers parked messages. Succeeds if the transaction has already ended that way; otherwise raises
    ``TransactionEnded``, ``TransactionNotExist`` or ``TransactionGroupWrong``."""
    return replace(end_half(transaction_id, group, commit=commit, parked=True), timeout=timeout)


def end_half(
    transaction_id: str,
    group: str,
    *,
    commit: bool,
    half_queue_offset: int = -1,
    half_physical_offset: int = -1,
    parked: bool = False,
) -> Operation[None]:
    """End the transaction of a half message; the broker compares the offsets if they are given. ``parked``: accept also
    a parked one."""
    made = operation(
        commands.END_TRANSACTION,
        nothing,
        transaction_id=transaction_id,
        group=group,
        commit=commit,
        half_queue_offset=half_queue_offset,
        half_physical_offset=half_physical_offset,
        parked=parked,
    )
    return EndTransaction(made.command, made.fields, made.decode)
