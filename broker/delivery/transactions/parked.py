"""Delivery of parked messages, for an operator who found out that the transaction is to be committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....protocol.errors import SystemBusy
from .records import check_destination, committed
from .table import COMMIT, Ended

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..writer import RecordWriter
    from .records import Half
    from .table import OpenTransactions

RETRY_AFTER_MS = 100


class ParkedMessages:
    """Writer of parked messages to the topics that they were sent to, each at most once."""

    def __init__(self, writer: RecordWriter, table: OpenTransactions) -> None:
        self._writer = writer
        self._table = table
        self._writing: set[str] = set()

    async def deliver(self, half: Half, record: Record) -> None:
        """Commit the parked ``record``; return when that may be acknowledged.

        Raises if its topic or queue is gone, or if it is already being delivered.
        """
        transaction_id = half.transaction_id
        if transaction_id in self._writing:
            raise SystemBusy(f"transaction {transaction_id} is being committed already", retry_after_ms=RETRY_AFTER_MS)
        check_destination(half, self._writer.store)
        end_offset = self._writer.append_records([committed(half, record)])
        # While this request waits for its flush, another one for the same message must not append it again.
        self._writing.add(transaction_id)
        try:
            await self._writer.acknowledged(end_offset)
        finally:
            self._writing.discard(transaction_id)
        self._table.remember_end(Ended(transaction_id, half.group, COMMIT, end_offset))
