"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE: how transactions end, and that one is asked about again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ....protocol.commands import EndTransactionRequest
from ....protocol.errors import InvalidParameter, MessageNotFound, NoPermission, TransactionEnded, TransactionNotExist
from ....protocol.names import check_name
from ....protocol.storage.delivery import HALF_TOPIC, TRANSACTION_PARKED_TOPIC
from ....protocol.storage.record import parse_offset_id
from ...background.loop_work import called_back
from ...delivery.transactions.records import TOPICS, Half, checked_again
from ...delivery.transactions.service import COMMIT, ROLLBACK

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...delivery.transactions.service import TransactionalMessageService
    from ...delivery.writer import RecordWriter
    from ...store import MessageStore
    from ..request import RemotingRequest

COMMITTED, ROLLED_BACK = 8, 12
"""Values of ``commitOrRollback``, of which any other one means that the producer does not know yet."""


async def end_transaction(
    request: RemotingRequest, transactions: TransactionalMessageService, store: MessageStore
) -> None:
    """Commit or roll back the transaction of the half message at the offsets in the request."""
    ext = request.ext
    decision = ext.integer("commitOrRollback", low=-(2**31), high=2**31 - 1)
    group = check_name("group", ext.text("producerGroup"))
    queue_offset, physical_offset = ext.integer("tranStateTableOffset"), ext.integer("commitLogOffset")
    if decision not in (COMMITTED, ROLLED_BACK):
        request.reply()
        return
    params = EndTransactionRequest(
        group=group,
        transaction_id=ext.text("transactionId", ""),
        commit=decision == COMMITTED,
        half_queue_offset=queue_offset,
        half_physical_offset=physical_offset,
    )

    # The offsets tell the transaction, as for RocketMQ's brokers; if a check has moved the half message, the key does.
    transaction = transactions.table.at(queue_offset)
    if transaction is not None:
        params.transaction_id = transaction.half.transaction_id
    elif not params.transaction_id:
        params.transaction_id = await request.read(lambda hot: _id_of(store, physical_offset, hot))
    try:
        await called_back(lambda done: transactions.end_transaction(params, done, _topic_check(request)))
    except TransactionEnded as error:
        # A producer that lost the answer ends the transaction again, and must not learn of a failure.
        if error.details.get("outcome") != (COMMIT if params.commit else ROLLBACK):
            raise
    request.reply()


def _topic_check(request: RemotingRequest) -> Callable[[str], None]:
    def check(topic: str) -> None:
        if not request.peer.may_publish(topic):
            raise NoPermission("the user has no permission to publish to the topic of this transaction")

    return check


def _id_of(store: MessageStore, physical_offset: int, hot: bool) -> str:
    """Return the id of the half message at an offset. Callable from any thread. Raises ``TransactionNotExist``."""
    record = None
    # With sync flush, a record above this offset may not be on disk yet, and could still be lost.
    if physical_offset < store.dispatchable_offset:
        record = store.log_reads.record_at(physical_offset, hot=hot)
    half = Half.of(record) if record is not None else None
    if half is None:
        raise TransactionNotExist(
            f"Find prepared transaction message failed: there is no half message at physical offset {physical_offset}; "
            "its message was not delivered, send it again"
        )
    return half.transaction_id


async def resume_check_half_message(
    request: RemotingRequest, transactions: TransactionalMessageService, store: MessageStore, writer: RecordWriter
) -> None:
    """Open the transaction of a parked half message again, so that its producers are asked about it."""
    text = request.ext.text("msgId")
    parsed = parse_offset_id(text)
    if parsed is None:
        raise InvalidParameter(f"msgId must be the id of a half message, 32 or 56 hex digits, not {text[:60]!r}")
    physical_offset = parsed[1]

    def read(hot: bool) -> tuple[Record, Half]:
        record = None
        if physical_offset < store.dispatchable_offset:
            record = store.log_reads.record_at(physical_offset, hot=hot)
        half = None
        if record is not None:
            half = Half.of(record) or Half.of(record, TRANSACTION_PARKED_TOPIC)
        if record is None or half is None:
            raise MessageNotFound(f"there is no half message with the id {text}")
        if record.topic == TRANSACTION_PARKED_TOPIC.encode() and transactions.history.is_delivered(half):
            raise TransactionEnded(f"transaction {half.transaction_id} was already committed", outcome=COMMIT)
        return record, half

    record, half = await request.read(read)
    if transactions.table.get(half.transaction_id) is not None:
        request.reply()  # its producers are asked anyway
        return
    if record.topic == HALF_TOPIC.encode():
        raise TransactionNotExist(
            f"transaction {half.transaction_id} is not open; if it is parked, pass the id of its message in "
            f"{TRANSACTION_PARKED_TOPIC}"
        )
    await writer.topics_exist(TOPICS)
    # Its checks are counted from 0 again.
    again = replace(checked_again(record, 0), topic=HALF_TOPIC.encode(), queue_id=0)
    end_offset = writer.append_records([again])
    reopened = Half.of(again)
    assert reopened is not None, "the record is a half message in the half topic"
    transactions.add_halves([reopened])
    request.audit_change(f"group {reopened.group}, transaction {reopened.transaction_id}")
    await writer.acknowledged(end_offset)
    request.reply()
