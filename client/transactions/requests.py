"""What a transactional producer asks of its broker, as operations."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from typing import TypeVar

from ...protocol import commands
from ...protocol.delivery import PROPERTY_HALF, PROPERTY_PRODUCER_GROUP
from ...protocol.errors import InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.names import check_name
from ..core.callables import is_coroutine_function, is_generator_function, name_of
from ..core.operations import Operation, nothing, operation
from ..core.receipts import Receipt
from ..core.session import Answer
from ..core.timeouts import check_timeout
from ..core.transactions import end_transaction
from ..errors import InvalidArgument, InvalidArgumentType
from .outcome import Outcome

T = TypeVar("T")

PRODUCER = "producer"
SESSION_SECONDS = 10.0
"""After so long without a heartbeat the broker asks another producer of the group."""


def check_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """``check`` if it can be called."""
    if not callable(check):
        raise InvalidArgumentType(
            "check must be a function that takes a StoredMessage and returns an Outcome: without it nobody could tell "
            "how a transaction ended whose sender was killed"
        )
    if is_generator_function(check):
        raise InvalidArgument(f"check {name_of(check)} is a generator function: a call would run nothing of it")
    return check


def check_plain_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """Return ``check`` if a thread can call it; raise ``InvalidArgument`` if it is to be awaited."""
    found = check_check(check)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"check {name_of(found)} is a coroutine function (async def), and this producer would never await what it "
            "returns: use flintmq.client.aio.TransactionProducer, or give a plain function (def)"
        )
    return found


def check_group(group: object) -> str:
    """``group`` if a producer group may have that name."""
    if not isinstance(group, str):
        raise InvalidArgumentType(f"group must be a str, not {type(group).__name__}")
    try:
        return check_name("group", group)
    except InvalidParameter as error:
        raise InvalidArgument(str(error)) from None


def check_session(seconds: object) -> float:
    """``session_timeout`` in seconds."""
    checked = check_timeout("session_timeout", seconds)
    if not 1 <= checked <= 300:
        raise InvalidArgument(f"session_timeout is {checked:g}; it must be 1 to 300 seconds")
    return checked


def new_member() -> str:
    """A name that no other producer has, and that says where it is."""
    return f"{socket.gethostname()[:60]}@{os.getpid()}@{uuid.uuid4().hex[:8]}"


def half_common(group: str) -> str:
    """The common properties of a frame with half messages."""
    return f"{PROPERTY_HALF}\x01true\x02{PROPERTY_PRODUCER_GROUP}\x01{group}\x02"


def heart_beat(group: str, member: str, session_seconds: float) -> Operation[float]:
    """Become known as a producer of the group, or stay so; the result is how often to say so, in seconds."""

    def decode(answer: Answer) -> float:
        return decode_fields(commands.HeartBeatAnswer, answer.fields).interval_ms / 1000

    return operation(
        commands.HEART_BEAT, decode,
        group=group, member=member, kind=PRODUCER, session_timeout_ms=int(session_seconds * 1000),
    )  # fmt: skip


def leave(group: str, member: str) -> Operation[None]:
    """Be asked no more."""
    return operation(commands.UNREGISTER_CLIENT, nothing, group=group, member=member, kind=PRODUCER)


def end(group: str, receipt: Receipt, outcome: Outcome) -> Operation[None]:
    """Commit or roll back the transaction of a half message; fine where it ended so before."""
    return end_transaction(
        receipt.message_id,
        group,
        commit=outcome is Outcome.COMMIT,
        half_queue_offset=receipt.queue_offset,
        half_physical_offset=receipt.physical_offset,
    )
