"""The requests of a group's member, as operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack

from ....protocol import commands
from ....protocol.commands import CONSUMER_OFFSET_STRUCT, PHYSICAL_OFFSET_STRUCT
from ....protocol.errors import RemoteProtocolError
from ....protocol.fields import decode_fields
from ....protocol.times import duration_millis
from ...core.consume.batch import EVERYTHING, Batch
from ...core.consume.requests import batch_of
from ...core.rpc.operation import Operation, nothing, operation, pull_operation, unpack_body
from ...core.rpc.session import Answer
from .assignments import Claim, Row
from .options import Options
from .outcome import Failed

HOLD_MS = 15_000
"""Maximum time for which the broker may hold a pull at the end of a queue."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The response to a heartbeat."""

    epoch: int
    interval_seconds: float
    retry_times_max: int
    run: int
    missing: tuple[str, ...]
    rows: list[Row]


def heart_beat(options: Options, epoch: int, owned: Sequence[Sequence[str | int]]) -> Operation[Assignment]:
    """Join the group (epoch 0) or stay in it."""

    def decode(answer: Answer) -> Assignment:
        head = decode_fields(commands.HeartBeatAnswer, answer.fields)
        rows = unpack_body(answer)
        if not isinstance(rows, list) or len(rows) != head.count:
            raise RemoteProtocolError(f"expected an assignment of {head.count} queues, got another body")
        checked = [(str(topic), int(queue), int(at), int(granted)) for topic, queue, at, granted in rows]
        missing = tuple(head.missing.split())
        return Assignment(head.epoch, head.interval_ms / 1000, head.retry_times_max, head.run, missing, checked)

    wanted = [[topic, tags.expression, condition] for topic, (tags, condition) in options.subscriptions.items()]
    return operation(
        commands.HEART_BEAT,
        decode,
        msgpack.packb([wanted, owned]),
        group=options.group,
        member=options.member,
        epoch=epoch,
        mode=options.mode,
        start=options.start,
        start_ms=options.start_ms,
        session_timeout_ms=duration_millis(options.session_timeout),
        orderly=options.orderly,
    )


def leave(options: Options, epoch: int) -> Operation[None]:
    """Leave the group."""
    return operation(commands.UNREGISTER_CLIENT, nothing, group=options.group, member=options.member, epoch=epoch)


def pull(options: Options, epoch: int, claim: Claim, max_count: int, max_bytes: int) -> Operation[Batch]:
    """Pull the next messages of a queue."""
    tags, condition = options.subscriptions.get(claim.topic, (EVERYTHING, ""))

    def decode(answer: Answer) -> Batch:
        return batch_of(answer, claim.topic, claim.queue, tags)

    return pull_operation(
        decode,
        HOLD_MS / 1000,
        claim.position,
        claim.topic,
        claim.queue,
        max_count,
        max_bytes,
        HOLD_MS,
        tags.expression,
        condition,
        options.group,
        options.member,
        epoch,
    )


def commit(options: Options, epoch: int, topic: str, offsets: Mapping[int, int]) -> Operation[None]:
    """Commit the offsets of one topic."""
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, offset) for queue, offset in offsets.items())
    return operation(
        commands.UPDATE_CONSUMER_OFFSET,
        nothing,
        body,
        group=options.group,
        topic=topic,
        count=len(offsets),
        member=options.member,
        epoch=epoch,
    )


def send_back(
    options: Options, epoch: int, failed: Failed, delay_level: int, retry_times_max: int
) -> Operation[commands.SendMessageBackAnswer]:
    """Send messages back for redelivery, or as dead letters."""
    reasons = [failure.reason for failure in failed]
    same = len(set(reasons)) == 1

    def decode(answer: Answer) -> commands.SendMessageBackAnswer:
        return decode_fields(commands.SendMessageBackAnswer, answer.fields)

    body = b"".join(PHYSICAL_OFFSET_STRUCT.pack(failure.message.physical_offset) for failure in failed)
    return operation(
        commands.CONSUMER_SEND_MSG_BACK,
        decode,
        body,
        group=options.group,
        count=len(failed),
        delay_level=delay_level,
        retry_times_max=retry_times_max,
        member=options.member,
        epoch=epoch,
        reason=reasons[0] if same else "",
        reasons="" if same else commands.REASON_SEPARATOR.join(reasons),
    )
