"""Transactions: PRODUCE frames with half messages, END_TRANSACTION, and the list of transactions; and staged ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import PUBLISH, TOPIC
from ...protocol.commands import (
    ABORT_PREPARED,
    END_TRANSACTION,
    PREPARED_NAME_CHARS_MAX,
    AbortPreparedAnswer,
    AbortPreparedRequest,
    AttemptInfo,
    CommitPreparedAnswer,
    CommitPreparedRequest,
    CopyingInfo,
    EmptyAnswer,
    EndTransactionRequest,
    GetPreparedRequest,
    GetTransactionsRequest,
    PreparedAnswer,
    TransactionInfo,
    TransactionsAnswer,
)
from ...protocol.errors import InvalidParameter, NoPermission
from ...protocol.fields import decode_fields
from ...protocol.names import check_name
from ...protocol.rows import pack_rows
from ...protocol.storage.delivery import HALF_TOPIC, PROPERTY_REAL_QUEUE, PROPERTY_REAL_TOPIC, TRANSACTION_PARKED_TOPIC
from ...protocol.storage.record import encode_properties
from ..background.loop_work import called_back
from ..delivery.routing import delay_of
from ..delivery.staged import STAGED_CONFIG
from ..delivery.staged import TOPICS as STAGED_TOPICS
from ..delivery.transactions.records import TOPICS, Half, half_frame
from ..requests.request import is_by_hand
from ..store import ProduceBatch, WouldBlock, common_properties
from .msgpack_body import ArrayBody

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ..delivery.routing import HalfRequest
    from ..delivery.staged import Stage, StagedTransactions
    from ..delivery.transactions.service import History, OpenTransaction, TransactionalMessageService
    from ..delivery.writer import RecordWriter
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


# ---- Staged transactions: PRODUCE frames with ``prepare``, COMMIT_PREPARED, ABORT_PREPARED and GET_PREPARED. The wire
# calls a staged transaction *prepared* and a stage *attempt*.

FLUSHES = frozenset({"", "sync", "async"})


def check_staged(request: Request, staged: StagedTransactions, params: ProduceRequest, is_half: bool) -> None:
    """Raise ``InvalidParameter`` if staged messages are half messages or delayed too, ``NoPermission`` if the stage
    has messages for topics that the user may not publish to."""
    if is_half or delay_of(params.common) is not None:
        kind = "half messages" if is_half else "delayed"
        raise InvalidParameter(f"staged messages cannot be {kind}: leave out prepare, or the property")
    _check_name(params.prepare)
    if (may_end := _may_end(request)) is not None:
        _check_may_end(request, staged, params.prepare, may_end)


def append_staged(request: Request, params: ProduceRequest, queue: int) -> Appended | None:
    """Append the frame's messages to PREPARED_TOPIC, all or none. ``queue``: the queue of their topic for the commit.

    They are acknowledged once they are written; the commit flushes them. If PREPARED_TOPIC has to be created first, the
    frame is handled again afterwards; then None.
    """
    broker = request.broker
    if not request.has_topics(STAGED_TOPICS):
        return None
    broker.staged.check_new(params.prepare)
    real = {PROPERTY_REAL_TOPIC: params.topic, PROPERTY_REAL_QUEUE: str(queue)}
    batch = ProduceBatch(
        request.frame.buffer,
        request.frame.body_at,
        request.frame.body_end,
        params.count,
        params.layout,
        common_properties(params.common) + encode_properties(real),
        params.sys_flag,
        params.unique_prefix.encode(),
        params.unique_first,
        params.born_ms,
        request.peer.born_host,
    )
    appended: list[Appended] = []

    def append() -> int:
        # ``stage_messages`` calls this between its note and the entry in the table.
        appended.append(broker.store.append(STAGED_CONFIG, 0, batch))
        return appended[0].queue_offset

    broker.staged.stage_messages(params.prepare, params.topic, queue, params.count, append)
    return appended[0]


async def commit_prepared(request: Request, staged: StagedTransactions) -> None:
    """Commit the messages of stages; respond once all of them are in their topics."""
    params = decode_fields(CommitPreparedRequest, request.frame.fields)
    if params.flush not in FLUSHES:
        raise InvalidParameter(f"flush must be sync, async or empty, not {params.flush!r}")
    wanted = _wanted(params, request.frame.body)
    may_end = _may_end(request)
    if may_end is not None:
        for name, _ in wanted:
            _check_may_end(request, staged, name, may_end)
    result = staged.begin_commit(
        params.series, params.number, wanted, params.drop, sync=params.flush == "sync", may_drop=may_end
    )
    answer = CommitPreparedAnswer(already=result.already, messages=result.messages)
    if result.pending is not None:
        await called_back(result.pending.when_finished)
    request.respond(answer)


def _may_end(request: Request) -> Callable[[Stage], bool] | None:
    """Return a predicate: may the user, who needs to publish to all of its topics, end this stage? None: any."""
    access = request.peer.access
    if access is None:
        return None
    return lambda stage: all(access.allows(PUBLISH, TOPIC, topic) for topic, _ in stage.targets)


def _check_may_end(request: Request, staged: StagedTransactions, name: str, may_end: Callable[[Stage], bool]) -> None:
    stage = staged.table.stages.get(name)
    if stage is not None and not may_end(stage):
        access = request.peer.access
        assert access is not None, "clients without a user may end every stage"
        raise NoPermission(
            f"user {access.name} has no permission to publish to all topics of stage {name}; nothing was done"
        )


async def abort_prepared(request: Request, staged: StagedTransactions, writer: RecordWriter) -> None:
    """Drop the messages of stages; respond once that is stored."""
    params = decode_fields(AbortPreparedRequest, request.frame.fields)
    count, end_offset = staged.abort_stages(params.drop, _may_end(request))
    request.audit(ABORT_PREPARED, f"drop {params.drop}", {"stages": count})
    await writer.acknowledged(end_offset)
    request.respond(AbortPreparedAnswer(count=count))


def get_prepared(request: Request, staged: StagedTransactions) -> None:
    """Return the stages that are not committed, and the commits in progress."""
    params = decode_fields(GetPreparedRequest, request.frame.fields)
    table = staged.table
    sees_all = request.peer.access is None or request.peer.access.sees_all
    may_end = None if sees_all else _may_end(request)
    names = table.names_with_prefix(params.prefix)
    if may_end is not None:
        names = [name for name in names if may_end(table.stages[name])]
    stages = [
        AttemptInfo(
            name,
            (stage := table.stages[name]).messages,
            tuple(sorted({topic for topic, _ in stage.targets})),
            stage.active_ms,
        )
        for name in names[: params.max_count]
    ]
    copying = [
        CopyingInfo(each.scope, each.sequence, each.messages, each.position)
        for each in (table.commits.values() if sees_all else ())
    ]
    answer = PreparedAnswer(count=len(stages), attempts=len(table.stages) if sees_all else len(names))
    request.respond(answer, pack_rows({"attempts": stages, "copying": copying}))


def _wanted(params: CommitPreparedRequest, body: memoryview) -> list[tuple[str, int]]:
    """Return the stages that the body names, each with its number of messages."""
    wanted: dict[str, int] = {}
    if not len(body) and not params.count:
        return []
    rows = ArrayBody(body, f"one msgpack array of {params.count} rows [stage, messages], as count says")
    rows.row(params.count)
    for _ in range(params.count):
        rows.row(2)
        name = _check_name(rows.text())
        if name in wanted:
            raise InvalidParameter(f"stage {name!r} is in the body twice")
        wanted[name] = rows.integer()
    rows.end()
    return list(wanted.items())


def _check_name(name: str) -> str:
    if not 0 < len(name) <= PREPARED_NAME_CHARS_MAX or not name.isascii() or not name.isprintable():
        raise InvalidParameter(
            f"a stage's name must be 1 to {PREPARED_NAME_CHARS_MAX} printable ASCII characters, got {name[:40]!r}"
        )
    return name
