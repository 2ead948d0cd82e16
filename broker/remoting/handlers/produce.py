"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: translated into FlintMQ's PRODUCE, which then does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ....protocol.commands import LAYOUT_ROWS, ProduceRequest
from ....protocol.errors import (
    BrokerFailure,
    GroupNotExist,
    InvalidParameter,
    MessageIllegal,
    MessageNotFound,
    TopicNotExist,
)
from ....protocol.frames import REQUEST
from ....protocol.names import check_client_group, check_name
from ....protocol.remoting import codes
from ....protocol.remoting.command import REGION
from ....protocol.storage.delivery import (
    DEAD_LETTER_LEVEL,
    DELAY_LEVEL_MAX,
    PROPERTY_TIMER_RECALLED,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_of_retries,
)
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import PROPERTY_DELAY, PROPERTY_UNIQ_KEY, decode_host
from ...addresses import format_address
from ...delivery.groups.retry import SendBack, topics_for
from ...delivery.routing import DAY_MS, route_recall
from ...handlers.produce import append_frame, append_waiting, check_load
from ...handlers.send_back import consumed_by
from ...store import LAYOUT_BATCH, LAYOUT_BODY, count_batch
from ..gateway import RemotingClient
from ..handles import RecallRefused, recall_handle, split_recall_handle
from ..resends import answer_resend
from ..sends import (
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
    from ...delivery.groups.producer_groups import ProducerGroups
    from ...delivery.groups.retry import RetryService
    from ...requests.broker import Broker
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest
    from ..sends import SendFields


def send_message(request: RemotingRequest, gateway: RemotingGateway, broker: Broker) -> None:
    """Append one message, or the messages of a batch; answer when they are as safe as the flush policy demands."""
    received = request.received
    send = decode_send(received.code, received.version, request.ext)
    request.default_topic, request.default_queues = send.default_topic, send.default_queues
    if send.batch:
        append_frame(request, broker, _batch_params(request, gateway, send))
    elif send.topic.startswith(RETRY_TOPIC_PREFIX):
        _send_retry(request, gateway, broker, send)
    else:
        _send_one(request, gateway, broker, send)


def _send_one(request: RemotingRequest, gateway: RemotingGateway, broker: Broker, send: SendFields) -> None:
    # Delivery would take the message for a recall whose handle has been checked.
    if f"{PROPERTY_TIMER_RECALLED}\x01" in send.properties:
        raise MessageIllegal(
            f"{PROPERTY_TIMER_RECALLED} is set by brokers only; to take a timed message back, call recallMessage with "
            "the handle of its send"
        )
    properties = split_properties(send.properties)
    is_half = settle_half(properties, send.group, send.reconsume_times)
    params = _params(request, gateway, broker.delays.now_ms(), send, properties)
    if is_half:
        _as_row(request, params, properties, send)
    # No client resends a one-way send, because it has no answer that could be lost.
    sequence = sequence_of(request.unique_key) if request.frame.kind == REQUEST else None
    if sequence is not None:
        # A client keeps the key when it sends a message again, so the broker can store it once.
        params.unique_prefix, params.unique_first = sequence
        before = broker.sequences.find(params.unique_prefix, params.topic, params.unique_first, 1)
        if before is not None:
            answer_resend(request, broker, params, before)
            return
    append_frame(request, broker, params)


def _params(
    request: RemotingRequest, gateway: RemotingGateway, now_ms: int, send: SendFields, properties: dict[str, str]
) -> ProduceRequest:
    """Return the header of one message as FlintMQ's PRODUCE has it; what PRODUCE lacks is put into the request."""
    deliver_ms, request.passed_times = settle_delay(properties, now_ms)
    key = properties.get(PROPERTY_UNIQ_KEY)
    if key is None:
        key = properties[PROPERTY_UNIQ_KEY] = gateway.unique_keys.next_key()
    request.unique_key = key
    request.recall_handle = recall_handle(send.topic, gateway.broker_name, deliver_ms, key) if deliver_ms else ""
    request.flag, request.reconsume_times = send.flag, send.reconsume_times
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


def _send_retry(request: RemotingRequest, gateway: RemotingGateway, broker: Broker, send: SendFields) -> None:
    """Append a message that a consumer sends again by itself, or make it a dead letter after its last attempt.

    The broker does not look for earlier copies: each attempt of a message has the same key.
    """
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
    times_max = send.max_reconsume_times
    if times_max < 0:
        times_max = store.groups.retry_times_max(group)
    dead = send.reconsume_times > times_max
    if dead:
        properties[PROPERTY_DELAY] = "0"
        send = send._replace(topic=dead_letter_topic(group), queue=0)
    append_frame(request, broker, _params(request, gateway, broker.delays.now_ms(), send, properties))
    broker.counters.count_sent_back(group, 0 if dead else 1, 1 if dead else 0)


def _batch_params(request: RemotingRequest, gateway: RemotingGateway, send: SendFields) -> ProduceRequest:
    """Return the header of a batch as FlintMQ's PRODUCE has it. Raises if its messages cannot be appended together."""
    if send.topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageIllegal(f"batch request does not support retry group {send.topic}; send the messages one by one")
    if send.sys_flag & SysFlag.COMPRESSED:
        raise MessageIllegal("a batch that is compressed as a whole is not supported; compress its messages, or none")
    frame = request.frame
    request.unique_key = split_properties(send.properties).get(PROPERTY_UNIQ_KEY, "")
    request.reconsume_times = send.reconsume_times
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
    messages = SendBack(group, (physical_offset,), level, times_max, ("",))
    await retries.store_again(request, messages, consumed_by(request))
    request.reply()


# ---- RECALL_MESSAGE: a timed message that a producer takes back is never delivered.

RECALL_BODY = b"0"
"""Body of a recall's record, as RocketMQ writes it: the properties say everything."""


def recall_message(request: RemotingRequest, gateway: RemotingGateway, broker: Broker) -> None:
    """Append the recall of a timed message; answer when it is as safe as the flush policy demands.

    As with RocketMQ, a recall of a message that the broker does not have succeeds: only delivery looks for the message.
    """
    topic = request.ext.text("topic")
    check_load(request, broker)
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
    request.recalled = handle.unique_key
    request.translate(bytearray(RECALL_BODY))
    params = ProduceRequest(topic=topic, count=1, queue=0, layout=LAYOUT_BODY, born_ms=now_ms)
    append_waiting(request, broker, params, 0, route_recall(topic, handle.unique_key, handle.deliver_ms))


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
    """Return the fields of PUSH_REPLY_MESSAGE_TO_CLIENT."""
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
