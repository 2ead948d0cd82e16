"""CONSUMER_SEND_MSG_BACK: store again the messages that a consumer could not handle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.auth.permissions import CONSUME, TOPIC
from ...protocol.commands import PHYSICAL_OFFSET_STRUCT, SendMessageBackAnswer, SendMessageBackRequest
from ...protocol.errors import DelayIllegal, InvalidParameter, MessageNotFound
from ...protocol.fields import decode_fields
from ...protocol.names import check_name
from ...protocol.storage.delivery import DELAY_LEVEL_MAX
from ..delivery.groups.retry import send_back, topics_for
from ..delivery.pop.redelivery import ReturnRule
from .pop import give_back, receipts_in

if TYPE_CHECKING:
    from ...protocol.auth.permissions import Permissions
    from ...protocol.storage.record import Record
    from ..delivery.groups.coordinator import GroupCoordinator
    from ..delivery.pop.service import PopService
    from ..delivery.writer import RecordWriter
    from ..requests.counters import Counters
    from ..requests.request import Request
    from ..store import MessageStore


@dataclass(frozen=True, slots=True)
class SendBack:
    """Messages that a consumer of a group could not handle. ``reasons``: one for each of ``physical_offsets``.

    ``delay_level``: as ``retry.send_back``; ``times_max``: number of redeliveries before a message becomes a dead
    letter, negative for the group's own; ``member`` and ``epoch``: the member of the group that sends them, "" if it
    is none.
    """

    group: str
    physical_offsets: Sequence[int]
    delay_level: int
    times_max: int
    reasons: Sequence[str]
    member: str = ""
    epoch: int = 0


class SendBackParts(NamedTuple):
    """The parts of the broker that store messages again."""

    store: MessageStore
    groups: GroupCoordinator
    writer: RecordWriter
    counters: Counters


def consumer_send_msg_back(
    request: Request,
    store: MessageStore,
    groups: GroupCoordinator,
    writer: RecordWriter,
    counters: Counters,
    pops: PopService,
) -> None:
    """Store the messages of the request again, all or none; respond once that is acknowledged."""
    params = decode_fields(SendMessageBackRequest, request.frame.fields)
    check_name("group", params.group)
    if params.delay_level > DELAY_LEVEL_MAX:
        raise DelayIllegal(f"delay_level must be at most {DELAY_LEVEL_MAX}, got {params.delay_level}")
    # Only popped messages come with their topic: the body has receipts instead of offsets.
    if params.topic:
        give_back_popped(request, pops, params)
        return
    body = bytes(request.frame.body)
    if len(body) != params.count * PHYSICAL_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {params.count * PHYSICAL_OFFSET_STRUCT.size} bytes of body for {params.count} physical "
            f"offsets, got {len(body)}"
        )
    physical_offsets = [offset for (offset,) in PHYSICAL_OFFSET_STRUCT.iter_unpack(body)]
    store_again(
        request,
        SendBackParts(store, groups, writer, counters),
        SendBack(
            params.group,
            physical_offsets,
            params.delay_level,
            params.retry_times_max,
            params.reason_of_each(),
            params.member,
            params.epoch,
        ),
    )


def give_back_popped(request: Request, pops: PopService, params: SendMessageBackRequest) -> None:
    """Store popped messages again, those whose receipts are valid; respond once that is on disk."""
    receipts = receipts_in(request, pops, params.group, params.topic, params.count)
    rule = ReturnRule(params.delay_level, params.retry_times_max, params.member)

    def answer(valid: bytes, retried: int, dead: int) -> None:
        request.respond(SendMessageBackAnswer(retried=retried, dead=dead), valid)

    give_back(request, pops, receipts, params.reason_of_each(), rule, answer)


def store_again(request: Request, parts: SendBackParts, messages: SendBack) -> None:
    """Store messages that were sent back, all or none; respond once that is acknowledged."""
    store, groups, writer, counters = parts
    permissions = request.peer.access.permissions if request.peer.access is not None else None

    def make_topics(records: list[Record]) -> None:
        # Only now, because the records tell which queues the member must hold.
        if messages.member:
            for record in records:
                topic = record.topic.decode()
                groups.check_holder(messages.group, messages.member, messages.epoch, topic, record.queue_id)
        groups.check_may_send_back(messages.group)
        writer.with_topics(topics_for(messages.group), request.later(lambda: append(records)))

    def append(records: list[Record]) -> None:
        times_max = messages.times_max
        if times_max < 0:
            times_max = store.groups.retry_times_max(messages.group)
        sent_back = [
            send_back(record, messages.group, messages.delay_level, times_max, reason, messages.member)
            for record, reason in zip(records, messages.reasons, strict=True)
        ]
        end_offset = writer.append_records([each.record for each in sent_back])
        dead = sum(each.dead for each in sent_back)
        counters.count_sent_back(messages.group, len(sent_back) - dead, dead)
        answer = SendMessageBackAnswer(retried=len(sent_back) - dead, dead=dead)
        writer.when_acknowledged(end_offset, request.later(lambda: request.respond(answer)))

    offsets = messages.physical_offsets
    request.read_then(lambda hot: [_record(store, offset, permissions, hot) for offset in offsets], make_topics)


def _record(store: MessageStore, physical_offset: int, permissions: Permissions | None, hot: bool) -> Record:
    """Return the record at a physical offset. Callable from any thread.

    A record that the user may not consume raises the same error as a missing one, so that the error does not reveal
    which records exist.
    """
    record = None
    # With sync flush, a record beyond this may still be lost in a crash.
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
