"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: translated into FlintMQ's PRODUCE, which then does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ....protocol.commands import LAYOUT_ROWS, ProduceRequest
from ....protocol.errors import GroupNotExist, MessageIllegal
from ....protocol.frames import REQUEST
from ....protocol.names import check_name
from ....protocol.storage.delivery import (
    PROPERTY_TIMER_RECALLED,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_of_retries,
)
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import PROPERTY_DELAY, PROPERTY_UNIQ_KEY
from ...delivery.groups.retry import topics_for
from ...handlers.produce import append_frame
from ...store import LAYOUT_BATCH, LAYOUT_BODY, count_batch
from ..recall import recall_handle
from ..resends import answer_resend
from ..sends import decode_send, join_properties, sequence_of, settle_delay, settle_half, split_properties

if TYPE_CHECKING:
    from ...config import Settings
    from ...requests.intake import Intake
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest
    from ..sends import SendFields


def send_message(request: RemotingRequest, gateway: RemotingGateway, intake: Intake, settings: Settings) -> None:
    """Append one message, or the messages of a batch; answer when they are as safe as the flush policy demands."""
    received = request.received
    send = decode_send(received.code, received.version, request.ext)
    request.default_topic, request.default_queues = send.default_topic, send.default_queues
    if send.batch:
        append_frame(request, intake, settings, _batch_params(request, gateway, send))
    elif send.topic.startswith(RETRY_TOPIC_PREFIX):
        _send_retry(request, gateway, intake, settings, send)
    else:
        _send_one(request, gateway, intake, settings, send)


def _send_one(
    request: RemotingRequest, gateway: RemotingGateway, intake: Intake, settings: Settings, send: SendFields
) -> None:
    # Delivery would take the message for a recall whose handle has been checked.
    if f"{PROPERTY_TIMER_RECALLED}\x01" in send.properties:
        raise MessageIllegal(
            f"{PROPERTY_TIMER_RECALLED} is set by brokers only; to take a timed message back, call recallMessage with "
            "the handle of its send"
        )
    properties = split_properties(send.properties)
    is_half = settle_half(properties, send.group, send.reconsume_times)
    params = _params(request, gateway, intake.delays.now_ms(), send, properties)
    if is_half:
        _as_row(request, params, properties, send)
    # No client resends a one-way send, because it has no answer that could be lost.
    sequence = sequence_of(request.unique_key) if request.frame.kind == REQUEST else None
    if sequence is not None:
        # A client keeps the key when it sends a message again, so the broker can store it once.
        params.unique_prefix, params.unique_first = sequence
        before = intake.sequences.find(params.unique_prefix, params.topic, params.unique_first, 1)
        if before is not None:
            answer_resend(request, intake, settings, params, before)
            return
    append_frame(request, intake, settings, params)


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


def _send_retry(
    request: RemotingRequest, gateway: RemotingGateway, intake: Intake, settings: Settings, send: SendFields
) -> None:
    """Append a message that a consumer sends again by itself, or make it a dead letter after its last attempt.

    The broker does not look for earlier copies: each attempt of a message has the same key.
    """
    store, group = intake.store, group_of_retries(check_name("topic", send.topic))
    if not store.groups.has(group):
        raise GroupNotExist(
            f"subscription group not exist, {group}: no client of it has connected, and no command created it"
        )
    missing = [
        config
        for config in topics_for(group)
        if config.name in intake.topic_changes.pending or store.topics.get(config.name) is None
    ]
    if missing:
        request.suspend()
        intake.writer.with_topics(missing, request.resume)
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
    append_frame(request, intake, settings, _params(request, gateway, intake.delays.now_ms(), send, properties))
    intake.counters.count_sent_back(group, 0 if dead else 1, 1 if dead else 0)


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
