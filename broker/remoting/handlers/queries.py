"""Queries for messages: by physical offset, by key or unique key, and the units of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import GROUP
from ....protocol.errors import InvalidParameter
from ....protocol.remoting import codes
from ....protocol.storage.layout import UNIT, UNIT_BYTES
from ...handlers.query import shown_to
from ...handlers.readable import check_has_messages
from ...store import KeySearch, QueryResult, WouldBlock
from ...store.read.queries import LATEST_MS, QUERY_PAGE_MAX
from ..rules import sees
from .consumer_groups import subscription_row
from .routes import reply_json

if TYPE_CHECKING:
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

UNIQUE_KEY_COUNT_MAX = 32
"""Maximum number of messages in the answer to a query by unique key (``defaultQueryMaxNum``)."""
KEY_CHARS_MAX = 4_096
UNITS_MAX = 1_024
"""Maximum number of units in one answer."""
UNITS_HOT_MAX = 64
_SIZE_BYTES = 4


def view_message_by_id(request: RemotingRequest, store: MessageStore) -> None:
    """Return the record at a physical offset, which is the second half of a message's offset id."""
    ext = request.ext
    physical_offset, topic = ext.integer("offset", low=-(2**63)), ext.text("topic", "")
    may_show = shown_to(request)

    def read(hot: bool) -> bytearray | None:
        below = store.dispatchable_offset
        return store.queries.visible_at(physical_offset, topic, hot=hot, visible_below=below, may_show=may_show)

    def done(record: bytearray | None) -> None:
        if record is None:
            request.reply(
                code=codes.SYSTEM_ERROR,
                remark=f"can not find message by the offset, {physical_offset}: none begins there, it is damaged, it "
                "was removed with its topic or by retention, or it is not delivered yet",
            )
            return
        request.reply({}, record)

    request.after_dispatch(lambda: request.read(read, done))


def query_message(request: RemotingRequest, store: MessageStore) -> None:
    """Return the messages of a topic with a key, newest first: one of KEYS, or the unique key."""
    ext = request.ext
    topic, key = ext.text("topic"), ext.text("key")
    if not key or len(key) > KEY_CHARS_MAX:
        raise InvalidParameter(f"field key must have 1 to {KEY_CHARS_MAX:,} characters, not {len(key):,}")
    begin_ms, end_ms = (
        ext.integer("beginTimestamp", 0, low=-(2**63)),
        ext.integer("endTimestamp", LATEST_MS, low=-(2**63)),
    )
    unique = ext.flag("_UNIQUE_KEY_QUERY")
    if unique:
        count = UNIQUE_KEY_COUNT_MAX
    else:
        count = min(ext.integer("maxNum", high=2**31 - 1), QUERY_PAGE_MAX)
    check_has_messages(store.topics, topic)
    search = KeySearch(topic, key, max(begin_ms, 0), min(end_ms, LATEST_MS), count, unique=unique)

    def done(found: QueryResult) -> None:
        # The sizes that precede the records are for FlintMQ's own clients.
        body = memoryview(found.body)[_SIZE_BYTES * found.count :]
        fields = {
            "indexLastUpdateTimestamp": str(store.index.end_ms),
            "indexLastUpdatePhyoffset": str(store.index.end_physical_offset),
        }
        if found.count:
            request.reply(fields, body)
            return
        remark = "can not find message, maybe time range not correct"
        if found.damaged:
            remark = f"{found.damaged} messages with this key are damaged; `flintmq-broker verify` says what helps"
        request.reply(fields, code=codes.QUERY_NOT_FOUND, remark=remark)

    if count == 0 or search.begin_ms > search.end_ms:
        done(QueryResult(0, "", 0, bytearray()))
        return
    request.after_dispatch(lambda: request.read(lambda hot: store.query(search, hot=hot), done))


def _subscription_of(request: RemotingRequest, gateway: RemotingGateway, group: str, topic: str) -> dict[str, Any]:
    """Return what a group's live clients want of a topic, for the answer to QUERY_CONSUME_QUEUE."""
    if not group:
        return {}
    clients = gateway.consumers.groups.get(group) if sees(request, GROUP, group) else None
    found = clients.subscriptions.get(topic) if clients is not None else None
    if found is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    # The compiled filter of an SQL92 condition, which has no equal here.
    return {"filterData": "null", "subscriptionData": subscription_row(found)}


def query_consume_queue(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return units of a queue: where the log has each message, its size, and the code of its tag.

    With them comes the subscription of the live clients of ``consumerGroup``, if the request names one.
    """
    ext = request.ext
    topic, queue_id = ext.text("topic"), ext.integer("queueId", high=2**31 - 1)
    index, count = ext.integer("index", low=-(2**63)), min(ext.integer("count", high=2**31 - 1), UNITS_MAX)
    check_has_messages(store.topics, topic)
    wanted = _subscription_of(request, gateway, ext.text("consumerGroup", ""), topic)

    def read(hot: bool) -> dict[str, Any]:
        if hot and count > UNITS_HOT_MAX:
            raise WouldBlock
        queue = store.queue_reads.queue(topic, queue_id)
        low = store.queue_reads.min_offset(topic, queue_id, hot=hot)
        high = store.queue_reads.max_offset(topic, queue_id)
        rows = []
        if queue is not None and low <= index < high:
            blob = queue.read_units(index, min(count, high - index), hot=hot)
            blob = blob[: len(blob) - len(blob) % UNIT_BYTES]
            rows = [
                {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": tags_code}
                for physical, size, tags_code in UNIT.unpack_all(blob)
            ]
        return {"maxQueueIndex": high, "minQueueIndex": low, "queueData": rows, **wanted}

    request.after_dispatch(lambda: request.read(read, lambda found: reply_json(request, found)))
