"""The requests of a consumer of a work queue, as operations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ....protocol import commands
from ....protocol.commands import RECEIPT_STRUCT
from ....protocol.errors import RemoteProtocolError
from ....protocol.fields import decode_fields
from ....protocol.times import duration_millis
from ...core.consume.batch import EVERYTHING, Records
from ...core.rpc.operation import Operation, check_body, operation
from ...core.rpc.session import Answer
from .options import Options
from .requests import HOLD_MS
from .work_deliveries import Lease

POP_BYTES_MAX = 1 << 20


def pop(options: Options, topic: str, start: str, max_count: int) -> Operation[list[Lease]]:
    """Lease messages of a topic; with ``max_count`` 0, only check whether this is allowed."""
    tags, condition = options.subscriptions.get(topic, (EVERYTHING, ""))

    def decode(answer: Answer) -> list[Lease]:
        head = decode_fields(commands.PopMessageAnswer, answer.fields)
        if head.retried > head.count:
            raise RemoteProtocolError(f"{head.retried} of {head.count} messages are from the retry topic")
        own = head.count - head.retried
        return [
            Lease(message.detached(), topic, head.pop_ms, retry=number >= own)
            for number, message in enumerate(Records(answer.body, head.count).messages(topic))
        ]

    return operation(
        commands.POP_MESSAGE,
        decode,
        hold_seconds=HOLD_MS / 1000,
        group=options.group,
        topic=topic,
        max_count=max_count,
        max_bytes=min(options.prefetch_bytes, POP_BYTES_MAX),
        lease_ms=duration_millis(options.lease),
        wait_ms=HOLD_MS if max_count else 0,
        tags=tags.expression,
        filter=condition,
        start=start,
        start_ms=options.start_ms,
    )


def _receipts(leases: Sequence[Lease]) -> bytes:
    pack = RECEIPT_STRUCT.pack
    return b"".join([pack(lease.retry, lease.queue, lease.offset, lease.pop_ms) for lease in leases])


def ack(options: Options, topic: str, leases: Sequence[Lease]) -> Operation[bytes]:
    """Settle messages as handled; returns a byte for each, 1 if its lease was valid."""
    decode = partial(_valid, leases)
    return operation(
        commands.ACK_MESSAGE, decode, _receipts(leases), group=options.group, topic=topic, count=len(leases)
    )


def renew(options: Options, topic: str, leases: Sequence[Lease], lease_ms: int) -> Operation[bytes]:
    """Let leases end ``lease_ms`` from now, 0: give the messages back; returns a byte for each, 1 if it was valid."""
    return operation(
        commands.CHANGE_MESSAGE_INVISIBLETIME,
        partial(_valid, leases),
        _receipts(leases),
        group=options.group,
        topic=topic,
        count=len(leases),
        lease_ms=lease_ms,
    )


def send_back(
    options: Options, topic: str, leases: Sequence[Lease], delay_level: int, reasons: Sequence[str]
) -> Operation[tuple[bytes, int, int]]:
    """Have messages redelivered later, or make them dead letters; returns a byte for each, 1 if its lease was valid,
    and the numbers of messages that are redelivered and of dead letters."""
    same = len(set(reasons)) == 1

    def decode(answer: Answer) -> tuple[bytes, int, int]:
        head = decode_fields(commands.SendMessageBackAnswer, answer.fields)
        return _valid(leases, answer), head.retried, head.dead

    return operation(
        commands.CONSUMER_SEND_MSG_BACK,
        decode,
        _receipts(leases),
        group=options.group,
        topic=topic,
        count=len(leases),
        delay_level=delay_level,
        retry_times_max=options.retry_times_max,
        member=options.member,
        reason=reasons[0] if same else "",
        reasons="" if same else commands.REASON_SEPARATOR.join(reasons),
    )


def _valid(leases: Sequence[Lease], answer: Answer) -> bytes:
    check_body(answer, len(leases))
    return bytes(answer.body)
