"""Consumers that acknowledge one by one: POP_MESSAGE, ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME,
NOTIFICATION and POLLING_INFO."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ....protocol.commands.groups import RECEIPTS_MAX
from ....protocol.errors import InvalidParameter, MessageIllegal, QueueNotExist, TopicNotExist
from ....protocol.names import check_client_group
from ....protocol.remoting import codes
from ....protocol.storage.delivery import PROPERTY_RECORD_CRC, RETRY_TOPIC_PREFIX, pop_retry_topic
from ....protocol.storage.record import decode_record, encode_properties
from ...delivery.groups.clients import ClientSubscription
from ...delivery.pop.service import ALL_QUEUES, WaitEnd
from ...delivery.pop.table import QueueKey, Take
from ...handlers.groups import SUBSCRIPTION_CHARS_MAX
from ...handlers.pop import POP_COUNT_MAX, Pop, PopParams, check_may_pop, hold, queues_to_visit, run_woken
from ...store import WouldBlock
from .. import rules
from ..handles import (
    OF_RETRY_TOPIC,
    ORDERED_REVIVE_QUEUE,
    PROPERTY_POP_CK,
    REVIVE_QUEUE,
    handle_of,
    message_offset_info,
    order_count_info,
    parse_receipt,
    queue_of,
    start_offset_info,
)
from .clients import TAG, tags_and_filter

if TYPE_CHECKING:
    from ...delivery.pop.service import PopService
    from ...handlers.pop import Popped
    from ...requests.broker import Broker
    from ...store import MessageStore
    from ..handles import PopReceipt
    from ..json_fields import JsonFields
    from ..request import RemotingRequest

POLL_MS_MAX = 5 * 60_000
"""Longest time for which a request waits; a client that asks for more asks again."""
INVISIBLE_MS_MAX = 30 * 24 * 3600 * 1000
INIT_FROM_FIRST = 0
_BITS_CHARS_MAX = 1_668
"""Longest text of the bits of one row of a batch: they span 10,000 offsets."""
_QUEUE_MAX = 2**31 - 1


def pop_message(request: RemotingRequest, broker: Broker, pops: PopService) -> None:
    """Answer a pop with messages, at once or when some arrive."""
    wanted = _params(request, broker, pops)
    broker.groups.ensure_group(wanted.group)

    def done(params: PopParams, popped: Popped, full: bool) -> None:
        _respond(request, params, popped, full=full)

    Pop(request, broker, pops, wanted, done).start()


def _params(request: RemotingRequest, broker: Broker, pops: PopService) -> PopParams:
    ext = request.ext
    count = ext.integer("maxMsgNums", low=1, high=_QUEUE_MAX)
    if count > POP_COUNT_MAX:
        raise InvalidParameter(f"a pop asks for {count} messages; at most {POP_COUNT_MAX} are possible")
    topic = ext.text("topic")
    expression = ext.text("exp", "*")
    if len(expression) > SUBSCRIPTION_CHARS_MAX:
        raise InvalidParameter(f"exp has {len(expression):,} characters; the maximum is {SUBSCRIPTION_CHARS_MAX:,}")
    tags, condition = tags_and_filter(ClientSubscription(topic, expression or "*", ext.text("expType", TAG) or TAG))
    return PopParams(
        group=check_client_group(ext.text("consumerGroup")),
        topic=topic,
        queue=_queue(request, broker.store),
        count=count,
        invisible_ms=ext.integer("invisibleTime", high=INVISIBLE_MS_MAX),
        wait_ms=_wait_ms(request, pops.now_ms()),
        tags=tags,
        filter=condition,
        from_first=ext.integer("initMode", INIT_FROM_FIRST) == INIT_FROM_FIRST,
        ordered=ext.flag("order"),
        attempt=ext.text("attemptId", "")[:255],
        # For ``restNum``: the remaining messages are counted only if the client is told.
        tells_rest=True,
    )


def _queue(request: RemotingRequest, store: MessageStore) -> int:
    """Return the queue of a request, ``ALL_QUEUES`` if it names none. Raises if the topic lacks it."""
    topic, queue = request.ext.text("topic"), request.ext.integer("queueId", low=-(2**31), high=_QUEUE_MAX)
    config = store.topics.get(topic)
    if config is None:
        raise TopicNotExist(f"topic[{topic}] not exist, apply first please!")
    if queue >= config.read_queues:
        raise QueueNotExist(
            f"queueId[{queue}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queues}]"
        )
    return max(queue, ALL_QUEUES)


def _wait_ms(request: RemotingRequest, now_ms: int) -> int:
    """Return how long a request may wait: until ``pollTime`` after ``bornTime``, by the broker's clock.

    Clients that do not want to wait send -1.
    """
    poll_ms = min(max(request.ext.integer("pollTime", 0, low=-1), 0), POLL_MS_MAX)
    born_ms = request.ext.integer("bornTime", 0) or now_ms
    return min(max(born_ms + poll_ms - now_ms, 0), poll_ms)


def _respond(request: RemotingRequest, params: PopParams, popped: Popped, *, full: bool) -> None:
    revive_queue = ORDERED_REVIVE_QUEUE if params.ordered else REVIVE_QUEUE
    fields = {
        "popTime": str(popped.pop_ms),
        "invisibleTime": str(params.invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(popped.rest),
        "startOffsetInfo": start_offset_info(popped.queues),
        "msgOffsetInfo": message_offset_info(popped.queues),
    }
    if params.ordered:
        fields["orderCountInfo"] = order_count_info(popped.queues)
    if not popped.count:
        code = codes.POLLING_FULL if full else codes.POLLING_TIMEOUT
        request.reply(fields, code=code, remark="NO_MESSAGE_IN_QUEUE")
        return
    size = sum(len(record) for each in popped.queues for record in each.records)
    request.gateway.figures.count_pulled(params.topic, params.group, popped.count, size)
    parts: list[bytes | memoryview] = []
    for each in popped.queues:
        if each.topic == params.topic:
            parts += each.records
            continue
        # Retried messages come as messages of the topic that the client asked for, and carry their handles themselves.
        for offset, record in zip(each.offsets, each.records, strict=True):
            handle = handle_of(
                each,
                offset,
                pop_ms=popped.pop_ms,
                invisible_ms=params.invisible_ms,
                revive_queue=revive_queue,
                broker=request.gateway.broker_name,
            )
            parts.append(_as_message_of(params.topic, handle, record))
    request.reply(fields, b"".join(parts), remark="FOUND")


def _as_message_of(topic: str, handle: str, record: memoryview) -> bytes:
    """Return the record of a retry topic as a message of the topic that it was sent to, with its receipt handle."""
    found = decode_record(record, check_crc=False)
    properties = found.property_map()
    # This checksum is of the record as it is stored.
    properties.pop(PROPERTY_RECORD_CRC, None)
    properties[PROPERTY_POP_CK] = handle
    return replace(found, topic=topic.encode(), properties=encode_properties(properties)).encode()


# ---- settling ----


def ack_message(request: RemotingRequest, pops: PopService, store: MessageStore) -> None:
    key, offset, receipt = _popped(request, store)
    if pops.settle(key, offset, receipt.pop_ms):
        request.reply()
    else:
        _no_message(request, key, offset)


def _popped(request: RemotingRequest, store: MessageStore) -> tuple[QueueKey, int, PopReceipt]:
    """Return queue, offset and receipt of the message that a request is about. Raises if the topic lacks the queue."""
    ext = request.ext
    key = QueueKey(ext.text("consumerGroup"), ext.text("topic"), ext.integer("queueId", low=-(2**31), high=_QUEUE_MAX))
    receipt = parse_receipt(ext.text("extraInfo"))
    # RocketMQ's older clients do not know this mark, and name the topic that they popped.
    if receipt.mark == OF_RETRY_TOPIC and not key.topic.startswith(RETRY_TOPIC_PREFIX):
        key = key._replace(topic=pop_retry_topic(key.group, key.topic))
    config = store.topics.get(key.topic)
    if config is None:
        raise TopicNotExist(f"topic[{key.topic}] not exist, apply first please!")
    if not 0 <= key.queue < config.read_queues:
        raise MessageIllegal(
            f"queueId[{key.queue}] is illegal, topic:[{key.topic}] topicConfig.readQueueNums:[{config.read_queues}]"
        )
    return key, ext.integer("offset", low=-(2**63)), receipt


def _no_message(request: RemotingRequest, key: QueueKey, offset: int) -> None:
    request.reply(
        code=codes.NO_MESSAGE,
        remark=f"message {offset} of queue {key.queue} of {key.topic} is not in flight with this receipt: it was "
        "acknowledged, or its time was over and it is delivered again",
    )


def batch_ack_message(request: RemotingRequest, pops: PopService) -> None:
    """Settle several messages. Those that are not in flight any more are left out."""
    rows = request.json_body().objects("acks", RECEIPTS_MAX)
    if not rows:
        request.reply(code=codes.NO_MESSAGE, remark="the batch has no acknowledgement")
        return
    acks = [_batch_ack(row) for row in rows]
    # Before a list of them is made: a few bytes name many messages.
    if (count := sum(ack.bits.bit_count() for ack in acks)) > RECEIPTS_MAX:
        raise InvalidParameter(
            f"the batch acknowledges {count:,} messages; the maximum is {RECEIPTS_MAX:,}: send several; nothing was "
            "acknowledged"
        )
    # All of them are checked before one is settled.
    for ack in acks:
        rules.check(request, Need((CONSUME,), GROUP, ack.key.group), Need((CONSUME,), TOPIC, ack.topic))
    if any(pops.settle_all([(ack.key, offset, ack.pop_ms) for ack in acks for offset in ack.offsets()])):
        request.reply()
    else:
        request.reply(code=codes.NO_MESSAGE, remark="none of the messages is in flight with these receipts")


class _BatchAck(NamedTuple):
    """A row of a batch: messages of one queue that were popped at the same time. ``topic``: as the client knows it.

    ``bits``: bit 0 stands for the message at the offset ``first``, bit 1 for the next one.
    """

    key: QueueKey
    topic: str
    pop_ms: int
    first: int
    bits: int

    def offsets(self) -> Iterator[int]:
        """Return the offsets of the messages."""
        bits = self.bits
        while bits:
            lowest = bits & -bits
            yield self.first + lowest.bit_length() - 1
            bits ^= lowest


def _batch_ack(row: JsonFields) -> _BatchAck:
    """Return a row of a batch. Raises ``InvalidParameter``."""
    group, topic, mark = row.text("c"), row.text("t"), row.text("r")
    first, queue, pop_ms = row.integer("so", low=0), row.integer("q", low=0), row.integer("pt", low=0)
    try:
        blob = base64.b64decode(row.text("b", chars_max=_BITS_CHARS_MAX), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidParameter(f"{row.what}: b is not base64: {error}; nothing was acknowledged") from None
    # The order of Java's ``BitSet.toByteArray``: the lowest bit of the first byte is the first offset.
    return _BatchAck(queue_of(group, topic, mark, queue), topic, pop_ms, first, int.from_bytes(blob, "little"))


def change_message_invisibletime(request: RemotingRequest, pops: PopService, store: MessageStore) -> None:
    """Give a message in flight another end of its time, sooner or later."""
    key, offset, receipt = _popped(request, store)
    invisible_ms = request.ext.integer("invisibleTime", high=INVISIBLE_MS_MAX)
    renewed = pops.renew(key, offset, receipt.pop_ms, invisible_ms)
    if renewed is None:
        _no_message(request, key, offset)
        return
    fields = {
        "popTime": str(renewed.pop_ms),
        "invisibleTime": str(renewed.visible_ms - renewed.pop_ms),
        "reviveQid": str(receipt.revive_queue),
    }
    request.reply(fields)


# ---- waiting without taking ----


def notification(request: RemotingRequest, broker: Broker, pops: PopService) -> None:
    """Say whether there are messages for the group; wait for some."""
    ext = request.ext
    params = PopParams(
        group=check_client_group(ext.text("consumerGroup")),
        topic=ext.text("topic"),
        queue=_queue(request, broker.store),
        count=1,
        invisible_ms=0,
        wait_ms=_wait_ms(request, pops.now_ms()),
        ordered=ext.flag("order"),
        attempt=ext.text("attemptId", "")[:255],
    )
    check_may_pop(request, broker, params.group, params.topic)
    request.release_frame()
    deadline = broker.loop.time() + params.wait_ms / 1000
    broker.dispatch.is_done()  # called because it dispatches what is due
    _notify(request, broker, pops, params, deadline, last=params.wait_ms <= 0)


def _notify(
    request: RemotingRequest, broker: Broker, pops: PopService, params: PopParams, deadline: float, *, last: bool
) -> None:
    # Again, because the topic, the group or the user's rights may have changed during the wait.
    check_may_pop(request, broker, params.group, params.topic)
    has_messages, full = _has_messages(broker.store, pops, params), False
    if not has_messages and not last:

        def woken(reason: WaitEnd) -> None:
            last = reason is not WaitEnd.WOKEN
            run_woken(request, lambda: _notify(request, broker, pops, params, deadline, last=last))

        if hold(request, broker.dispatch, pops.watches, params, deadline, woken):
            return
        full = True
    request.reply({"hasMsg": str(has_messages).lower(), "pollingFull": str(full).lower()})


def _has_messages(store: MessageStore, pops: PopService, params: PopParams) -> bool:
    """Return whether a pop would find messages, unless its filter wants none of them."""
    table = pops.table
    take = Take(pops.now_ms(), 0, ordered=params.ordered, attempt=params.attempt)
    for topic, queue in queues_to_visit(store, params):
        key = QueueKey(params.group, topic, queue)
        if table.blocked_until(key, take) is not None:
            continue
        start = table.start(key)
        try:
            first = store.queue_reads.min_offset(topic, queue, hot=True) if start is None else start
        except WouldBlock:
            return True  # a pop finds out
        if store.queue_reads.max_offset(topic, queue) > first:
            return True
    return False


def polling_info(request: RemotingRequest, pops: PopService) -> None:
    group, topic = request.ext.text("consumerGroup"), request.ext.text("topic")
    request.reply({"pollingNum": str(pops.waits.count(group, topic))})
