"""Committing what attempts prepared, or dropping it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from ...protocol import commands
from ...protocol.fields import decode_fields
from ..errors import InvalidArgument, InvalidArgumentType
from .operations import Operation, operation
from .outgoing import check_flush
from .session import Answer

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

    def decode(answer: Answer) -> Committed:
        fields = decode_fields(commands.CommitPreparedAnswer, answer.fields)
        return Committed(fields.already, fields.messages)

    return operation(
        commands.COMMIT_PREPARED,
        decode,
        msgpack.packb([[check_attempt(name), messages] for name, messages in attempts.items()]),
        hold_seconds=sum(attempts.values()) / COPIED_A_SECOND_MIN,
        series=series,
        number=number,
        count=len(attempts),
        drop=drop or "",
        flush=check_flush(flush),
    )


def abort_prepared(drop: str) -> Operation[int]:
    """Drop the attempts that begin so; the result is how many there were."""

    def decode(answer: Answer) -> int:
        return decode_fields(commands.AbortPreparedAnswer, answer.fields).count

    return operation(commands.ABORT_PREPARED, decode, drop=drop)
