"""Transactions: PRODUCE frames with half messages, END_TRANSACTION, and the list of transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import PUBLISH, TOPIC
from ...protocol.commands import (
    END_TRANSACTION,
    EmptyAnswer,
    EndTransactionRequest,
    GetTransactionsRequest,
    TransactionInfo,
    TransactionsAnswer,
)
from ...protocol.errors import NoPermission
from ...protocol.fields import decode_fields
from ...protocol.names import check_name
from ...protocol.rows import pack_rows
from ...protocol.storage.delivery import HALF_TOPIC, TRANSACTION_PARKED_TOPIC
from ..background.loop_work import called_back
from ..delivery.transactions.records import TOPICS, Half, half_frame
from ..requests.request import is_by_hand
from ..store import ProduceBatch, WouldBlock

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ..delivery.routing import HalfRequest
    from ..delivery.transactions.service import History, OpenTransaction, TransactionalMessageService
    from ..requests.request import Request
    from ..security.users import UserRights
    from ..store import Appended, MessageStore

Page = tuple[list[TransactionInfo], int]
"""Transactions of one page, and the offset of the next page (-1: there is none)."""


def append_half_messages(request: Request, params: ProduceRequest, half: HalfRequest, queue: int) -> Appended | None:
    """Append the frame's messages to the half topic and open their transactions; all or none.

    ``queue``: the queue of the request's topic that they will go to. The response contains the offsets of the half
    messages. If the half topic has to be created first, the frame is handled again afterwards; then None.
    """
    broker = request.broker
    if not request.has_topics(TOPICS):
        return None
    topic = broker.store.topics.existing(HALF_TOPIC)

    # Both refuse the whole frame, before anything of it is written.
    made = half_frame(params, half, queue, request.frame.body)
    broker.transactions.check_new_ids(made.transaction_ids)
    born_ms = params.born_ms
    appended = broker.store.append(
        topic,
        0,
        ProduceBatch(
            buffer=made.body,
            body_at=0,
            body_end=len(made.body),
            count=params.count,
            layout=params.layout,
            common=made.common,
            sys_flag=params.sys_flag,
            unique_prefix=params.unique_prefix.encode(),
            unique_first=params.unique_first,
            born_ms=born_ms,
            born_host=request.peer.born_host,
        ),
    )

    # Each message opens a transaction of its own.
    physical_offsets = struct.unpack(f">{params.count}q", appended.physical_offsets)
    broker.transactions.add_halves(
        Half(
            transaction_id,
            half.group,
            params.topic,
            queue,
            queue_offset=appended.queue_offset + index,
            physical_offset=physical_offset,
            born_ms=born_ms or appended.store_ms,
            store_ms=appended.store_ms,
        )
        for index, (transaction_id, physical_offset) in enumerate(
            zip(made.transaction_ids, physical_offsets, strict=True)
        )
    )
    return appended


async def end_transaction(request: Request, transactions: TransactionalMessageService) -> None:
    """Commit or roll back a transaction; respond once that is acknowledged."""
    params = decode_fields(EndTransactionRequest, request.frame.fields)
    check_name("group", params.group)
    check_topic = partial(_check_publish, request.peer.access) if request.peer.access is not None else None
    by_hand = is_by_hand(request.frame)

    await called_back(lambda done: transactions.end_transaction(params, done, check_topic))
    if by_hand:
        outcome = "commit" if params.commit else "rollback"
        request.audit(END_TRANSACTION, f"group {params.group}, transaction {params.transaction_id}", None, outcome)
    request.respond(EmptyAnswer())


def _check_publish(access: UserRights, topic: str) -> None:
    """Raise if the user may not publish to the topic of the transaction that it wants to end."""
    if not access.allows(PUBLISH, TOPIC, topic):
        raise NoPermission(f"user {access.name} has no permission to publish to the topic of this transaction")


async def get_transactions(request: Request, transactions: TransactionalMessageService, store: MessageStore) -> None:
    """Return open or parked transactions, one page at a time: as they are on disk, which is what a crash leaves."""
    params = decode_fields(GetTransactionsRequest, request.frame.fields)
    sees = _seen_by(request.peer.access)

    def read(hot: bool) -> tuple[Page, int]:
        if hot:
            raise WouldBlock  # the history is in the log, so reading it may have to wait for the disk
        history = transactions.history
        page = _parked_page(history, params) if params.parked else ([], -1)
        return page, history.parked_count()

    await request.dispatched()
    (rows, next_offset), parked = await request.read(read)
    # Here and not in ``read``, because the table belongs to the loop.
    on_disk = transactions.table.on_disk(store.dispatchable_offset)
    if params.parked:
        rows = [row for row in rows if sees(row.topic)]
    else:
        rows, next_offset = _open_page(on_disk, params, sees)
    open_count = len(on_disk)
    if request.peer.access is not None and not request.peer.access.sees_all:
        open_count = sum(sees(transaction.half.topic) for transaction in on_disk)
        parked = len(rows) if params.parked else 0
    request.respond(
        TransactionsAnswer(count=len(rows), next_offset=next_offset, open=open_count, parked=parked), pack_rows(rows)
    )


def _seen_by(access: UserRights | None) -> Callable[[str], bool]:
    """Return a predicate: may the user see transactions of this topic?"""
    if access is None or access.sees_all:
        return lambda topic: True
    return partial(access.sees, TOPIC)


def _open_page(table: Sequence[OpenTransaction], params: GetTransactionsRequest, sees: Callable[[str], bool]) -> Page:
    rows: list[TransactionInfo] = []
    for transaction in table:
        half = transaction.half
        if half.queue_offset < params.from_offset or not sees(half.topic):
            continue
        if len(rows) == params.max_count:
            return rows, half.queue_offset
        rows.append(_row(half, delivered=False))
    return rows, -1


def _parked_page(history: History, params: GetTransactionsRequest) -> Page:
    records, next_offset, more = history.read_parked(params.from_offset, params.max_count)
    halves = [half for record in records if (half := Half.of(record, TRANSACTION_PARKED_TOPIC)) is not None]
    return [_row(half, delivered=history.is_delivered(half)) for half in halves], next_offset if more else -1


def _row(half: Half, *, delivered: bool) -> TransactionInfo:
    return TransactionInfo(
        half.transaction_id,
        half.topic,
        half.queue,
        half.group,
        half.born_ms,
        half.store_ms,
        half.check_times,
        half.queue_offset,
        half.physical_offset,
        delivered,
    )
