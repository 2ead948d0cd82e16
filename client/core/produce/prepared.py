"""Operations on prepared messages (staged transactions): commit, drop and list attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ....protocol import commands
from ....protocol.errors import RemoteProtocolError
from ....protocol.fields import decode_fields
from ...errors import InvalidArgument, InvalidArgumentType
from ..rpc.operation import Operation, operation, pack_body, unpack_body
from ..rpc.session import Answer
from ..times import from_millis
from .grouping import Flush, check_flush


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """The messages that an attempt has prepared: their number, their ``topics``, and when the last of them arrived, in
    ms since 1970 UTC."""

    attempt: str
    messages: int
    topics: tuple[str, ...]
    active_ms: int

    @property
    def active_at(self) -> datetime:
        """Time at which its last messages arrived."""
        return from_millis(self.active_ms)


@dataclass(frozen=True, slots=True)
class CopyingInfo:
    """A committed transaction; ``copied`` of its ``messages`` have been copied to their topics."""

    series: str
    number: int
    messages: int
    copied: int


@dataclass(frozen=True, slots=True)
class PreparedInfo:
    """``attempts``: the requested ones; ``open``: total number of attempts; ``copying``: committed transactions whose
    messages are being copied."""

    attempts: Sequence[AttemptInfo]
    open: int
    copying: Sequence[CopyingInfo]


COPIED_A_SECOND_MIN = 50_000
"""The broker responds to a commit after copying all messages: allow it as much additional time as this rate gives."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit. ``already``: an earlier request had committed the transaction, so this one did nothing;
    ``messages``: number of messages that this request committed."""

    already: bool
    messages: int


def check_attempt(prepare: Any) -> str:
    """Return ``prepare=`` in PRODUCE's form: empty for None, which sends messages instead of preparing them."""
    if prepare is None:
        return ""
    if type(prepare) is not str:
        raise InvalidArgumentType(f"prepare must be a str, not {type(prepare).__name__}")
    if not 0 < len(prepare) <= commands.PREPARED_NAME_CHARS_MAX or not (prepare.isascii() and prepare.isprintable()):
        raise InvalidArgument(
            f"prepare is {prepare[:40]!r}; an attempt's name must be 1 to {commands.PREPARED_NAME_CHARS_MAX} printable "
            "ASCII characters"
        )
    return prepare


def commit_prepared(
    series: str,
    number: int,
    attempts: Mapping[str, int],
    *,
    drop: str | None = None,
    flush: Flush | None = None,
    timeout: float | None = None,
) -> Operation[Committed]:
    """Commit messages that were sent with ``prepare=``, all or none, as transaction ``number`` of ``series``.

    ``attempts``: number of prepared messages by the attempt's name; ``drop``: also drop the other attempts whose
    names begin with this. A transaction is committed only once, however often this is called: a number that is not
    above the last committed one of its series counts as already committed. Raises ``PreparedIncomplete`` if an
    attempt is not complete, and ``TopicNotExist`` or ``QueueNotExist`` if the destination of some messages is
    missing; nothing is committed then.
    """
    for name, messages in attempts.items():
        check_attempt(name)
        if type(messages) is not int or messages < 0:
            raise InvalidArgument(f"attempts[{name!r}] is {messages!r}; it must be the number of its messages")

    def decode(answer: Answer) -> Committed:
        fields = decode_fields(commands.CommitPreparedAnswer, answer.fields)
        return Committed(fields.already, fields.messages)

    return operation(
        commands.COMMIT_PREPARED,
        decode,
        pack_body(list(attempts.items())),
        hold_seconds=sum(attempts.values()) / COPIED_A_SECOND_MIN,
        timeout=timeout,
        series=series,
        number=number,
        count=len(attempts),
        drop=drop or "",
        flush=check_flush(flush),
    )


def prepared(prefix: str = "", *, max_count: int = 100, timeout: float | None = None) -> Operation[PreparedInfo]:
    """Return the uncommitted attempts whose names begin with ``prefix``, those that have been idle longest first,
    and the committed transactions that are still being copied."""

    def decode(answer: Answer) -> PreparedInfo:
        head = decode_fields(commands.PreparedAnswer, answer.fields)
        tables = unpack_body(answer)
        if not isinstance(tables, dict):
            raise RemoteProtocolError(f"expected prepared messages as a map, got {type(tables).__name__}")
        return PreparedInfo(
            [
                AttemptInfo(row["attempt"], row["messages"], tuple(row["topics"]), row["active_ms"])
                for row in tables["attempts"]
            ],
            head.attempts,
            [CopyingInfo(row["series"], row["number"], row["messages"], row["copied"]) for row in tables["copying"]],
        )

    return operation(commands.GET_PREPARED, decode, timeout=timeout, prefix=prefix, max_count=max_count)


def abort_prepared(drop: str, *, timeout: float | None = None) -> Operation[int]:
    """Drop the attempts whose names begin with ``drop``; returns how many there were."""

    def decode(answer: Answer) -> int:
        return decode_fields(commands.AbortPreparedAnswer, answer.fields).count

    return operation(commands.ABORT_PREPARED, decode, timeout=timeout, drop=drop)
