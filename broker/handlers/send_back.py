"""CONSUMER_SEND_MSG_BACK: store messages again that a consumer could not handle."""

from __future__ import annotations

from ...protocol.auth.permissions import CONSUME, TOPIC, Permissions
from ...protocol.commands import PHYSICAL_OFFSET_STRUCT, SendMessageBackAnswer, SendMessageBackRequest
from ...protocol.errors import DelayIllegal, InvalidParameter, MessageNotFound
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ...protocol.names import check_name
from ...protocol.storage.delivery import DELAY_LEVEL_MAX
from ...protocol.storage.record import Record
from ..delivery.groups.retry import send_back, topics_for
from .context import Peer


def consumer_send_msg_back(peer: Peer, frame: Frame) -> None:
    """Store the messages of the request again, all or none; respond once that is acknowledged."""
    request = decode_fields(SendMessageBackRequest, frame.fields)
    check_name("group", request.group)
    if request.delay_level > DELAY_LEVEL_MAX:
        raise DelayIllegal(f"delay_level must be at most {DELAY_LEVEL_MAX}, got {request.delay_level}")
    body = bytes(frame.body)
    if len(body) != request.count * PHYSICAL_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {request.count * PHYSICAL_OFFSET_STRUCT.size} bytes of body for {request.count} physical "
            f"offsets, got {len(body)}"
        )
    reasons = request.reason_of_each()
    physical_offsets = [offset for (offset,) in PHYSICAL_OFFSET_STRUCT.iter_unpack(body)]
    permissions = peer.access.permissions if peer.access is not None else None
    peer.read(
        frame,
        lambda hot: [_record(peer, physical_offset, permissions, hot) for physical_offset in physical_offsets],
        lambda records: _make_topics(peer, frame, request, records, reasons),
    )


def _record(peer: Peer, physical_offset: int, permissions: Permissions | None, hot: bool) -> Record:
    """Return the record at a physical offset. Callable from any thread.

    A record that the user may not consume raises the same error as a missing one, so that the error does not reveal
    which records exist.
    """
    store = peer.broker.store
    record = None
    if physical_offset < store.dispatchable_offset:
        record = store.queries.consumable_record(physical_offset, hot=hot)
    if record is None or not (permissions is None or permissions.allows(CONSUME, TOPIC, record.topic.decode())):
        raise _not_found(physical_offset)
    return record


def _not_found(physical_offset: int) -> MessageNotFound:
    return MessageNotFound(
        f"there is no message at physical offset {physical_offset}: it has expired, its topic was deleted, or it never "
        "existed; nothing was sent back"
    )


def _make_topics(
    peer: Peer, frame: Frame, request: SendMessageBackRequest, records: list[Record], reasons: list[str]
) -> None:
    if request.member:
        for record in records:
            topic = record.topic.decode()
            peer.broker.groups.check_holder(request.group, request.member, request.epoch, topic, record.queue_id)

    peer.broker.groups.check_may_send_back(request.group)
    made = peer.later(frame, lambda: _append(peer, frame, request, records, reasons))
    peer.broker.writer.with_topics(topics_for(request.group), made)


def _append(
    peer: Peer, frame: Frame, request: SendMessageBackRequest, records: list[Record], reasons: list[str]
) -> None:
    broker = peer.broker
    times_max = request.retry_times_max
    if times_max < 0:
        times_max = broker.store.groups.retry_times_max(request.group)
    sent_back = [
        send_back(record, request.group, request.delay_level, times_max, reason, request.member)
        for record, reason in zip(records, reasons, strict=True)
    ]
    end_offset = broker.writer.append([each.record for each in sent_back])
    dead = sum(each.dead for each in sent_back)
    broker.counters.count_sent_back(request.group, len(sent_back) - dead, dead)
    answer = SendMessageBackAnswer(retried=len(sent_back) - dead, dead=dead)
    broker.writer.when_acknowledged(end_offset, peer.later(frame, lambda: peer.answer(frame, answer)))
