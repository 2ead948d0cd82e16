"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: translated into FlintMQ's PRODUCE, which then does the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgpack

from ....protocol.commands import LAYOUT_ROWS, ProduceRequest
from ....protocol.errors import (
    BrokerFailure,
    GroupNotExist,
    InvalidParameter,
    MessageIllegal,
    MessageNotFound,
    NoPermission,
    TopicNotExist,
)
from ....protocol.frames import REQUEST
from ....protocol.names import check_client_group, check_name, is_system_topic
from ....protocol.remoting import codes
from ....protocol.remoting.command import JSON_HEADER, REGION, encode_json, encode_send_answer
from ....protocol.storage.delivery import (
    DEAD_LETTER_LEVEL,
    DELAY_LEVEL_MAX,
    PROPERTY_TIMER_RECALLED,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_of_retries,
)
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import PROPERTY_DELAY, PROPERTY_UNIQ_KEY, decode_host, offset_ids
from ...addresses import format_address
from ...delivery.redelivery import FailedMessages, RetryPolicy, topics_for
from ...delivery.routing import DAY_MS, route_recall
from ...handlers.pop import consumed_by
from ...handlers.produce import NATIVE, Duplicate, SendContext, append_frame, append_waiting, check_load
from ...store import LAYOUT_BATCH, LAYOUT_BODY, Places, TopicConfig, count_batch
from ..gateway import RemotingClient
from ..handles import RecallRefused, recall_handle, split_recall_handle
from ..name_server import PERM_INHERIT
from ..request import RemotingRequest
from ..sends import (
    DEFAULT_TOPIC,
    DEFAULT_TOPIC_QUEUES,
    PROPERTY_REGION,
    PROPERTY_TRACE,
    decode_send,
    join_properties,
    sequence_of,
    settle_delay,
    settle_half,
    split_properties,
)

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...delivery.deduplication import StoredBefore
    from ...delivery.groups.clients import ProducerGroups
    from ...delivery.redelivery import RetryService
    from ...requests.broker import Broker
    from ...requests.request import Request
    from ...store import MessageStore, ProduceBatch
    from ..gateway import RemotingGateway
    from ..sends import SendFields

PERM_READ_WRITE = 6
MESSAGES_OF_CLIENTS = frozenset({"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})
"""System topics that RocketMQ's own tools and traces send to; its brokers have them from the start."""


@dataclass(slots=True)
class RemotingSend(SendContext):
    """A send of a RocketMQ client: what its message and its answer have beyond FlintMQ's PRODUCE.

    ``passed_times``: properties with a delivery time that has passed; ``unique_key`` and ``recall_handle`` are told by
    the answer.
    """

    default_topic: str
    default_queues: int
    flag: int = 0
    reconsume_times: int = 0
    passed_times: str = ""
    unique_key: str = ""
    recall_handle: str = ""

    def encode_stored(
        self, request: Request, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray
    ) -> bytes:
        """Return the encoded answer, with the offset ids of the messages separated by commas."""
        assert isinstance(request, RemotingRequest), "sends of the gateway"
        ids = offset_ids(request.broker.store.commitlog.store_host, physical_offsets)
        if request.received.header_type == JSON_HEADER and not self.recall_handle:
            number = request.received.request_id
            return encode_send_answer(number, ids, queue, queue_offset, encode_json(self.unique_key))
        fields = {
            "msgId": ids,
            "queueId": str(queue),
            "queueOffset": str(queue_offset),
            "transactionId": self.unique_key,
            PROPERTY_REGION: REGION,
            PROPERTY_TRACE: "true",
        }
        if self.recall_handle:
            fields["recallHandle"] = self.recall_handle
        return request.head(codes.SUCCESS, fields, 0)

    def batch(self, request: Request, params: ProduceRequest, common: bytes) -> ProduceBatch:
        """Return the messages as the store takes them. Those of a batch that have no key get one."""
        batch = NATIVE.batch(request, params, common + self.passed_times.encode())
        batch.flag, batch.reconsume_times = self.flag, self.reconsume_times
        if params.layout == LAYOUT_BATCH:
            assert isinstance(request, RemotingRequest), "sends of the gateway"
            keys = request.gateway.unique_keys
            batch.unique_prefix, batch.unique_first = keys.prefix.encode(), keys.take(params.count)
        return batch

    def queues_to_write(self, topic: TopicConfig) -> int:
        """Return how many queues a client may choose from: also those that are only read while the topic shrinks."""
        return max(topic.write_queues, topic.read_queues)

    def new_topic(self, broker: Broker, name: str) -> TopicConfig:
        """Return the topic to create, which inherits from the send's default topic. Raises if that is not allowed."""
        if is_system_topic(name) and name not in MESSAGES_OF_CLIENTS:
            raise NoPermission(f"topic {name} is a system topic of the broker; produce to another topic")
        queues, perm = 0, 0
        if broker.auto_create:
            default = broker.store.topics.get(self.default_topic)
            if default is not None and default.perm & PERM_INHERIT:
                # The new topic is a default for no other one.
                queues, perm = default.write_queues, default.perm & ~PERM_INHERIT
            elif self.default_topic == DEFAULT_TOPIC:
                queues, perm = DEFAULT_TOPIC_QUEUES, PERM_READ_WRITE
        if not perm:
            raise TopicNotExist(
                f"topic[{name}] not exist, apply first please! Create it (mqadmin updateTopic, or flintmq topic "
                f"create), or let sends create it: topics.auto_create, and {DEFAULT_TOPIC} as their default topic"
            )
        # As in RocketMQ, a client may ask for fewer queues than its default topic has, not for more.
        queues = min(self.default_queues, queues)
        if queues < 1:
            raise InvalidParameter(
                f"topic {name} cannot be created with {self.default_queues} queues; set defaultTopicQueueNums to 1 or "
                "more"
            )
        return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)


class _Recall(SendContext):
    """The recall of the message with ``unique_key``."""

    def __init__(self, unique_key: str) -> None:
        self._unique_key = unique_key

    def encode_stored(
        self, request: Request, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray
    ) -> bytes:
        assert isinstance(request, RemotingRequest), "recalls of the gateway"
        return request.head(codes.SUCCESS, {"msgId": self._unique_key, PROPERTY_REGION: REGION}, 0)


def send_message(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Append one message, or the messages of a batch; answer when they are as safe as the flush policy demands."""
    received = request.received
    send = decode_send(received.code, received.version, request.ext)
    context = RemotingSend(send.default_topic, send.default_queues, reconsume_times=send.reconsume_times)
    if send.batch:
        append_frame(request, _batch_params(request, gateway, send, context), context)
    elif send.topic.startswith(RETRY_TOPIC_PREFIX):
        _send_retry(request, gateway, send, context)
    else:
        _send_one(request, gateway, send, context)


def _send_one(request: RemotingRequest, gateway: RemotingGateway, send: SendFields, context: RemotingSend) -> None:
    # Delivery would take the message for a recall whose handle has been checked.
    broker = request.broker
    if f"{PROPERTY_TIMER_RECALLED}\x01" in send.properties:
        raise MessageIllegal(
            f"{PROPERTY_TIMER_RECALLED} is set by brokers only; to take a timed message back, call recallMessage with "
            "the handle of its send"
        )
    properties = split_properties(send.properties)
    is_half = settle_half(properties, send.group, send.reconsume_times)
    params = _params(gateway, broker.delays.now_ms(), send, properties, context)
    if is_half:
        _as_row(request, params, properties, send)
    # No client resends a one-way send, because it has no answer that could be lost.
    sequence = sequence_of(context.unique_key) if request.frame.kind == REQUEST else None
    if sequence is not None:
        # A client keeps the key when it sends a message again, so the broker can store it once.
        params.unique_prefix, params.unique_first = sequence
        before = broker.sequences.find(params.unique_prefix, params.topic, params.unique_first, 1)
        if before is not None:
            answer_resend(request, params, before, context)
            return
    append_frame(request, params, context)


def _params(
    gateway: RemotingGateway, now_ms: int, send: SendFields, properties: dict[str, str], context: RemotingSend
) -> ProduceRequest:
    """Return the header of one message as FlintMQ's PRODUCE has it; what PRODUCE lacks is put into the context."""
    deliver_ms, context.passed_times = settle_delay(properties, now_ms)
    key = properties.get(PROPERTY_UNIQ_KEY)
    if key is None:
        key = properties[PROPERTY_UNIQ_KEY] = gateway.unique_keys.next_key()
    context.unique_key = key
    context.recall_handle = recall_handle(send.topic, gateway.broker_name, deliver_ms, key) if deliver_ms else ""
    context.flag = send.flag
    return ProduceRequest(
        topic=send.topic,
        count=1,
        queue=send.queue,
        layout=LAYOUT_BODY,
        common=gateway.stamps.of(properties) + join_properties(properties),
        sys_flag=send.sys_flag,
        born_ms=send.born_ms,
    )


def _as_row(request: RemotingRequest, params: ProduceRequest, properties: dict[str, str], send: SendFields) -> None:
    """Let the message be a row with its key, as half messages must be: their ids are added to the rows."""
    key = properties.pop(PROPERTY_UNIQ_KEY)
    params.common = join_properties(properties)
    params.layout = LAYOUT_ROWS
    row = (bytes(request.received.body), {PROPERTY_UNIQ_KEY: key}, send.sys_flag, send.flag)
    request.translate(bytearray(msgpack.packb(row, unicode_errors="surrogatepass")))


def _send_retry(request: RemotingRequest, gateway: RemotingGateway, send: SendFields, context: RemotingSend) -> None:
    """Append a message that a consumer sends again by itself, or make it a dead letter after its last attempt.

    The broker does not look for earlier copies: each attempt of a message has the same key.
    """
    broker = request.broker
    store, group = broker.store, group_of_retries(check_name("topic", send.topic))
    if not store.groups.has(group):
        raise GroupNotExist(
            f"subscription group not exist, {group}: no client of it has connected, and no command created it"
        )
    if not request.has_topics(topics_for(group)):
        return
    properties = split_properties(send.properties)
    # It is called for its changes of the properties alone.
    settle_half(properties, send.group, send.reconsume_times)
    dead = send.reconsume_times > store.groups.retry_times_max(group, send.max_reconsume_times)
    if dead:
        properties[PROPERTY_DELAY] = "0"
        send = send._replace(topic=dead_letter_topic(group), queue=0)
    append_frame(request, _params(gateway, broker.delays.now_ms(), send, properties, context), context)
    broker.counters.count_sent_back(group, 0 if dead else 1, 1 if dead else 0)


def _batch_params(
    request: RemotingRequest, gateway: RemotingGateway, send: SendFields, context: RemotingSend
) -> ProduceRequest:
    """Return the header of a batch as FlintMQ's PRODUCE has it. Raises if its messages cannot be appended together."""
    if send.topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageIllegal(f"batch request does not support retry group {send.topic}; send the messages one by one")
    if send.sys_flag & SysFlag.COMPRESSED:
        raise MessageIllegal("a batch that is compressed as a whole is not supported; compress its messages, or none")
    frame = request.frame
    context.unique_key = split_properties(send.properties).get(PROPERTY_UNIQ_KEY, "")
    return ProduceRequest(
        topic=send.topic,
        count=count_batch(frame.buffer, frame.body_at, frame.body_end),
        queue=send.queue,
        layout=LAYOUT_BATCH,
        common=gateway.stamps.always,
        sys_flag=send.sys_flag,
        born_ms=send.born_ms,
    )


# ---- CONSUMER_SEND_MSG_BACK: a consumer could not handle a message, so the broker stores it again for its
# group.

_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1


async def consumer_send_msg_back(request: RemotingRequest, store: MessageStore, retries: RetryService) -> None:
    """Store a message again for a group: for a later delivery, or as a dead letter after too many of them.

    A negative delay level makes it a dead letter at once, and one above the last level counts as the last. The id of
    the first message is found in its properties, not taken from the request.
    """
    ext = request.ext
    group = check_client_group(ext.text("group"))
    physical_offset = ext.integer("offset", low=-(2**63))
    delay_level = ext.integer("delayLevel", 0, low=_I32_MIN, high=_I32_MAX)
    times_max = ext.integer("maxReconsumeTimes", -1, low=_I32_MIN, high=_I32_MAX)
    if physical_offset < 0:
        raise InvalidParameter(f"offset is a position in the CommitLog and must not be negative, got {physical_offset}")
    if not store.groups.has(group):
        raise GroupNotExist(
            f"subscription group not exist, {group}: its clients send heartbeats first, which create it"
        )
    if not store.groups.has_retries(group):
        request.reply()
        return
    level = DEAD_LETTER_LEVEL if delay_level < 0 else min(delay_level, DELAY_LEVEL_MAX)
    messages = FailedMessages(group, (physical_offset,), RetryPolicy(level, times_max), ("",))
    await retries.redeliver(request, messages, consumed_by(request))
    request.reply()


# ---- RECALL_MESSAGE: a timed message that a producer takes back is never delivered.

RECALL_BODY = b"0"
"""Body of a recall's record, as RocketMQ writes it: the properties say everything."""


def recall_message(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Append the recall of a timed message; answer when it is as safe as the flush policy demands.

    As with RocketMQ, a recall of a message that the broker does not have succeeds: only delivery looks for the message.
    """
    broker = request.broker
    topic = request.ext.text("topic")
    check_load(request)
    if broker.store.topics.get(topic) is None:
        raise TopicNotExist(f"recall failed, the topic[{topic}] not exist; pass the topic that the message was sent to")
    handle = split_recall_handle(request.ext.text("recallHandle", ""))
    if handle.topic != topic:
        raise RecallRefused(
            f"recall failed, topic not match: the handle is of a message of topic {handle.topic:.200}, not of {topic}; "
            "pass the topic that the message was sent to"
        )
    if handle.broker != gateway.broker_name:
        raise RecallRefused(
            f"recall failed, broker service not available: the message is at broker {handle.broker:.200}, and this is "
            f"{gateway.broker_name}; send the recall to {handle.broker:.200}"
        )
    now_ms, max_days = broker.delays.now_ms(), broker.settings.delivery.delay_max_days
    if handle.deliver_ms <= now_ms:
        raise RecallRefused(
            "recall failed, timestamp invalid: the time of the message has come, so it is delivered; consumers must "
            "handle it"
        )
    if handle.deliver_ms > now_ms + max_days * DAY_MS:
        raise RecallRefused(
            f"recall failed, timestamp invalid: no message is delivered later than in {max_days} days "
            "(delivery.delay_max_days); pass the handle of the answer to the send, unchanged"
        )
    request.translate(bytearray(RECALL_BODY))
    params = ProduceRequest(topic=topic, count=1, queue=0, layout=LAYOUT_BODY, born_ms=now_ms)
    route = route_recall(topic, handle.unique_key, handle.deliver_ms)
    append_waiting(request, params, 0, route, _Recall(handle.unique_key))


# ---- SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2: replies to requests, passed on to the client that waits
# for them.

ANSWER_S = 10.0
"""Time that the asking client has to accept the reply."""
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
"""Time at which the broker passed a reply on, ms since 1970."""


async def send_reply_message(
    request: RemotingRequest, gateway: RemotingGateway, producer_groups: ProducerGroups, store: MessageStore
) -> None:
    """Pass a reply on to the client that it names; respond when that client has it. The reply is not stored."""
    send = decode_send(request.received.code, request.received.version, request.ext)
    if check_name("topic", send.topic) != gateway.reply_topic:
        raise TopicNotExist(
            f"topic[{send.topic}] is not the topic of replies of cluster {gateway.cluster}; send replies to "
            f"{gateway.reply_topic}"
        )
    properties = split_properties(send.properties)
    client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
    if client_id is None:
        raise MessageIllegal(
            f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null; it names the asking client"
        )
    asker = producer_groups.find(client_id)
    if not isinstance(asker, RemotingClient) or asker.lost:
        raise MessageNotFound(
            f"push reply message fail, channel of <{client_id}> not found. The client that asked is not connected"
        )
    if not asker.may_be_sent():
        # RocketMQ's words, in which the blank is missing.
        raise BrokerFailure(f"push reply message to {client_id}fail. The client does not read what it is sent")
    request.deferred.check_may_wait()
    fields = _fields(request, store, send, properties)
    body = bytes(request.received.body)
    try:
        answer = await asker.asked(codes.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body, ANSWER_S)
        failure = "" if answer.code == codes.SUCCESS else f"it answered with code {answer.code}"
    except ConnectionError:
        failure = "its connection was lost"
    except TimeoutError:
        failure = f"it did not answer in {ANSWER_S:.0f} s"
    if failure:
        raise BrokerFailure(f"push reply message to {client_id}fail. {failure}")
    fields = {
        "msgId": "0",
        "queueId": str(max(send.queue, 0)),
        "queueOffset": "0",
        PROPERTY_REGION: REGION,
        PROPERTY_TRACE: "true",
    }
    request.reply(fields)


def _fields(
    request: RemotingRequest, store: MessageStore, send: SendFields, properties: dict[str, str]
) -> dict[str, str]:
    now_ms = store.clock.now_ms()
    properties[PROPERTY_PUSH_REPLY_TIME] = str(now_ms)
    return {
        "bornHost": format_address(*request.peer.address),
        "storeHost": format_address(*decode_host(store.commitlog.store_host)),
        "storeTimestamp": str(now_ms),
        "producerGroup": send.group,
        "topic": send.topic,
        "defaultTopic": send.default_topic,
        "defaultTopicQueueNums": str(send.default_queues),
        "queueId": str(send.queue),
        "sysFlag": str(send.sys_flag),
        "bornTimestamp": str(send.born_ms),
        "flag": str(send.flag),
        "properties": join_properties(properties),
        "reconsumeTimes": str(send.reconsume_times),
        "unitMode": "false",
    }


# ---- Messages whose key is that of a message stored before: sent again by the client, or on purpose by the program.
#
# A RocketMQ client gives each message a key, and keeps it when it sends the message again after a lost answer. A
# program that sends one ``Message`` object twice sends the same key, too, and wants two messages. Two things tell them
# apart: an answer is lost with its connection, so the first message came by an earlier one; and its content is the
# same.

_NOWHERE = Places(b"", 0, 0, 0)


class _Resend(Duplicate):
    """A message whose key is known. If it is another message, it is appended like a first one."""

    def __init__(
        self, request: RemotingRequest, params: ProduceRequest, before: StoredBefore, send: SendContext
    ) -> None:
        super().__init__(request, params, before, send)
        self._log_begin = request.log_begin
        self._body = bytes(request.received.body)
        self._stored: Record | None = None

    def places(self, *, hot: bool) -> Places:
        """Return the place of the stored message, and note its record. Callable from any thread."""
        try:
            places = super().places(hot=hot)
        except MessageNotFound:
            # Without the first message there is nothing to compare, and this one is appended.
            return _NOWHERE
        # A send of one message has one offset.
        physical_offset = int.from_bytes(places.physical_offsets, "big")
        self._stored = self._broker.store.log_reads.record_at(physical_offset, hot=hot)
        return places

    def answer(self, places: Places) -> None:
        """Send the first answer again; if the message is another one, append it."""
        stored = self._stored
        if stored is not None and stored.physical_offset < self._log_begin and stored.body == self._body:
            self._broker.counters.duplicates += 1
            super().answer(places)
        else:
            # Without the prefix, so that its key is not looked up again.
            append_frame(self._request, replace(self._params, unique_prefix=""), self._send)


def answer_resend(request: RemotingRequest, params: ProduceRequest, before: StoredBefore, send: SendContext) -> None:
    """Answer a message whose key is that of a message stored at ``before``, after storing it if it is another one."""
    _Resend(request, params, before, send).begin()
