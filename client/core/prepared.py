"""Committing what attempts prepared, or dropping it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgpack

from ...protocol import commands
from ...protocol.errors import RemoteProtocolError
from ...protocol.fields import decode_fields
from ..errors import InvalidArgument, InvalidArgumentType
from .operations import Operation, operation, unpack_body
from .outgoing import check_flush
from .session import Answer
from .times import from_millis


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """What an attempt has prepared: ``messages`` for these ``topics``, the last of them at ``active_ms``, ms since 1970
    UTC."""

    attempt: str
    messages: int
    topics: tuple[str, ...]
    active_ms: int

    @property
    def active_at(self) -> datetime:
        """When its last messages came."""
        return from_millis(self.active_ms)


@dataclass(frozen=True, slots=True)
class CopyingInfo:
    """A transaction that is committed, of whose ``messages`` so many are ``copied`` to their topics."""

    series: str
    number: int
    messages: int
    copied: int


@dataclass(frozen=True, slots=True)
class PreparedInfo:
    """``attempts``: those that were asked for; ``open``: how many there are in all; ``copying``: transactions that are
    committed and on their way."""

    attempts: Sequence[AttemptInfo]
    open: int
    copying: Sequence[CopyingInfo]


COPIED_A_SECOND_MIN = 50_000
"""The broker answers when all messages are copied: it gets as much more time as that may take."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction is committed. ``already``: by another request before, so that this one did nothing; ``messages``:
    how many this one committed."""

    already: bool
    messages: int


def check_attempt(prepare: Any) -> str:
    """``prepare=`` as PRODUCE has it: empty for None, which sends messages instead of preparing them."""
    if prepare is None:
        return ""
    if type(prepare) is not str:
        raise InvalidArgumentType(f"prepare must be a str, not {type(prepare).__name__}")
    if not 0 < len(prepare) <= commands.PREPARED_NAME_CHARS_MAX or not (prepare.isascii() and prepare.isprintable()):
        raise InvalidArgument(
            f"prepare is {prepare[:40]!r}; the name of an attempt is 1 to {commands.PREPARED_NAME_CHARS_MAX} printable "
            "ASCII characters"
        )
    return prepare


def commit_prepared(
    series: str, number: int, attempts: Mapping[str, int], drop: str | None, flush: str | None
) -> Operation[Committed]:
    """Commit attempts, each with how many messages it prepared, as transaction ``number`` of ``series``."""

    for name, messages in attempts.items():
        check_attempt(name)
        if type(messages) is not int or messages < 0:
            raise InvalidArgument(f"attempts[{name!r}] is {messages!r}; it must be how many messages it prepared")

    def decode(answer: Answer) -> Committed:
        fields = decode_fields(commands.CommitPreparedAnswer, answer.fields)
        return Committed(fields.already, fields.messages)

    return operation(
        commands.COMMIT_PREPARED,
        decode,
        msgpack.packb(list(attempts.items())),
        hold_seconds=sum(attempts.values()) / COPIED_A_SECOND_MIN,
        series=series,
        number=number,
        count=len(attempts),
        drop=drop or "",
        flush=check_flush(flush),
    )


def prepared(prefix: str, max_count: int) -> Operation[PreparedInfo]:
    """What attempts have prepared whose names begin so, and what is being copied."""

    def decode(answer: Answer) -> PreparedInfo:
        head = decode_fields(commands.PreparedAnswer, answer.fields)
        tables = unpack_body(answer)
        if not isinstance(tables, dict):
            raise RemoteProtocolError(f"prepared messages as {type(tables).__name__}")
        return PreparedInfo(
            [
                AttemptInfo(row["attempt"], row["messages"], tuple(row["topics"]), row["active_ms"])
                for row in tables["attempts"]
            ],
            head.attempts,
            [CopyingInfo(row["series"], row["number"], row["messages"], row["copied"]) for row in tables["copying"]],
        )

    return operation(commands.GET_PREPARED, decode, prefix=prefix, max_count=max_count)


def abort_prepared(drop: str) -> Operation[int]:
    """Drop the attempts that begin so; the result is how many there were."""

    def decode(answer: Answer) -> int:
        return decode_fields(commands.AbortPreparedAnswer, answer.fields).count

    return operation(commands.ABORT_PREPARED, decode, drop=drop)
