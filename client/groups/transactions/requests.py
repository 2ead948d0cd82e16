"""The requests of a transactional producer, as operations."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from typing import TypeVar

from ....protocol import commands
from ....protocol.errors import InvalidParameter
from ....protocol.fields import decode_fields
from ....protocol.names import check_name
from ....protocol.storage.delivery import PROPERTY_HALF, PROPERTY_PRODUCER_GROUP
from ....protocol.times import duration_millis
from ...core.admin.transactions import end_half
from ...core.produce.receipts import Receipt
from ...core.rpc.operation import Operation, nothing, operation
from ...core.rpc.session import Answer
from ...core.rpc.timeouts import check_timeout
from ...errors import InvalidArgument, InvalidArgumentType
from ..callables import is_coroutine_function, is_generator_function, name_of
from .outcome import Outcome

T = TypeVar("T")

PRODUCER = "producer"
SESSION_SECONDS = 10.0
"""Time without a heartbeat after which the broker asks another producer of the group."""


def check_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """Return ``check`` if it can be called; else raise ``InvalidArgument``."""
    if not callable(check):
        raise InvalidArgumentType(
            "check must be a function that takes a StoredMessage and returns an Outcome: without it no process could "
            "tell the outcome of a transaction whose sender was killed"
        )
    if is_generator_function(check):
        raise InvalidArgument(f"check {name_of(check)} is a generator function: calling it would run none of its code")
    return check


def check_plain_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """Return ``check`` if a thread can call it; raise ``InvalidArgument`` if it must be awaited."""
    found = check_check(check)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"check {name_of(found)} is a coroutine function (async def), but this producer would never await its "
            "result: use flintmq.client.aio.TransactionProducer, or pass a plain function (def)"
        )
    return found


def check_group(group: object) -> str:
    """Return ``group`` if it is a valid name of a producer group; else raise ``InvalidArgument``."""
    if not isinstance(group, str):
        raise InvalidArgumentType(f"group must be a str, not {type(group).__name__}")
    try:
        return check_name("group", group)
    except InvalidParameter as error:
        raise InvalidArgument(str(error)) from None


def check_session(seconds: object) -> float:
    """Return ``session_timeout`` in seconds; raise ``InvalidArgument`` if it is not valid."""
    checked = check_timeout("session_timeout", seconds)
    if not 1 <= checked <= 300:
        raise InvalidArgument(f"session_timeout is {checked:g}; it must be 1 to 300 seconds")
    return checked


def new_member() -> str:
    """Return a unique member name that tells the host and the process."""
    return f"{socket.gethostname()[:60]}@{os.getpid()}@{uuid.uuid4().hex[:8]}"


def half_common(group: str) -> str:
    """Return the common properties of a frame of half messages."""
    return f"{PROPERTY_HALF}\x01true\x02{PROPERTY_PRODUCER_GROUP}\x01{group}\x02"


def heart_beat(group: str, member: str, session_seconds: float) -> Operation[float]:
    """Register as a producer of the group, or stay registered; the result is the heartbeat interval in seconds."""

    def decode(answer: Answer) -> float:
        return decode_fields(commands.HeartBeatAnswer, answer.fields).interval_ms / 1000

    return operation(
        commands.HEART_BEAT,
        decode,
        group=group,
        member=member,
        kind=PRODUCER,
        session_timeout_ms=duration_millis(session_seconds),
    )


def leave(group: str, member: str) -> Operation[None]:
    """Unregister the producer."""
    return operation(commands.UNREGISTER_CLIENT, nothing, group=group, member=member, kind=PRODUCER)


def end_transaction(group: str, receipt: Receipt, outcome: Outcome) -> Operation[None]:
    """Commit or roll back the transaction of a half message; succeeds if it has already ended that way."""
    return end_half(
        receipt.message_id,
        group,
        commit=outcome is Outcome.COMMIT,
        half_queue_offset=receipt.queue_offset,
        half_physical_offset=receipt.physical_offset,
    )
