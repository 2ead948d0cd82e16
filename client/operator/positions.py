"""Parser of the positions and times that ``--from``, ``--until`` and ``--to`` take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from ...protocol.commands import QueueStats
from ...protocol.errors import OffsetOutOfRange
from ...protocol.fields import I64_MAX
from ..core.consume.positions import EARLIEST, ENDS, End, Position
from ..errors import InvalidArgument

TIME_FORMS = (
    "2026-11-21T10:00 (local time; or with Z or +01:00), 2026-11-21, 10:00 (today), -15m, +5m, now, or ms since 1970"
)
OFFSET_FORMS = "an offset, 0=17,1=5 (queue=offset), or a time: @12:00, -15m, 2026-11-21T10:00"
POSITION_FORMS = f"earliest, latest, -10 (the last ten), {OFFSET_FORMS}"

_RELATIVE = re.compile(r"([+-])([0-9]{1,9})(ms|s|m|h|d|w)")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_CLOCK_OR_QUEUE = re.compile(r"[0-9]{1,2}:[0-9]{2}")
_BY_QUEUE = re.compile(r"[0-9]{1,5}[:=][0-9]{1,18}(,[0-9]{1,5}[:=][0-9]{1,18})*")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_SECONDS_DIGITS = 10
_MILLIS_DIGITS = 13


@dataclass(frozen=True, slots=True)
class EveryQueue:
    """The same offset in every queue."""

    offset: int


Typed: TypeAlias = End | int | datetime | dict[int, int] | EveryQueue
"""``"earliest"``, ``"latest"``, −n, an aware datetime, offsets by queue, or one offset for all queues."""


def is_before_now(text: str) -> bool:
    """Return whether ``text`` is a time such as ``-1h``, which looks like an option."""
    return text.startswith("-") and _RELATIVE.fullmatch(text) is not None


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """Return the time that ``text`` names, as an aware datetime. Raises ``ValueError`` that lists the valid forms."""
    now = now or datetime.now(UTC)
    stripped = text.strip()
    try:
        moment = _parse_time(stripped, now)
    except (OverflowError, ValueError, OSError):
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is not a time; use {TIME_FORMS}")
    return moment


def _parse_time(text: str, now: datetime) -> datetime | None:
    if text == "now":
        return now
    if found := _RELATIVE.fullmatch(text):
        span = int(found[2]) * _UNITS[found[3]]
        return now - span if found[1] == "-" else now + span
    if text.isascii() and text.isdigit() and len(text) in (_SECONDS_DIGITS, _MILLIS_DIGITS):
        millis = int(text) * (1000 if len(text) == _SECONDS_DIGITS else 1)
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    if _CLOCK.fullmatch(text):
        today = now.astimezone().date().isoformat()
        # ``fromisoformat`` wants two digits for the hour.
        text = f"{today}T{text.rjust(5, '0') if text.count(':') == 1 else text.rjust(8, '0')}"
    if not text[:4].isdigit() or "-" not in text[:8]:
        return None  # fromisoformat would parse plain digits as a date
    moment = datetime.fromisoformat(text)
    return moment.astimezone() if moment.tzinfo is None else moment


def parse_position(text: str, now: datetime | None = None) -> Typed:
    """Return the position that ``text`` names. Raises ``ValueError`` that lists the valid forms."""
    stripped = text.strip()
    if stripped in ENDS:
        return ENDS[stripped]
    if stripped.startswith("@"):
        return parse_time(stripped[1:], now)
    if re.fullmatch(r"-[0-9]{1,18}", stripped) and int(stripped):
        return int(stripped)
    # Before the times: a bare number is an offset, also one of 10 or 13 digits.
    if re.fullmatch(r"[0-9]{1,18}", stripped):
        return EveryQueue(int(stripped))
    if _CLOCK_OR_QUEUE.fullmatch(stripped):
        queue, _, offset = stripped.partition(":")
        raise ValueError(
            f"{text!r} may be a time or an offset in a queue: use @{stripped} for the time, "
            f"{int(queue)}={int(offset)} for offset {int(offset)} of queue {int(queue)}"
        )
    if _BY_QUEUE.fullmatch(stripped):
        pairs = [re.split("[:=]", pair) for pair in stripped.split(",")]
        offsets = {int(queue): int(offset) for queue, offset in pairs}
        if len(offsets) != len(pairs):
            raise ValueError(f"{text!r} names a queue twice")
        return offsets
    try:
        return parse_time(stripped, now)
    except ValueError:
        raise ValueError(f"{text!r} is not a position; use {POSITION_FORMS}") from None


def start_of(position: Typed, topic: str, stats: list[QueueStats]) -> Position:
    """Return where to start reading a topic.

    One offset for all queues starts at the end of a queue that is shorter. Raises ``OffsetOutOfRange`` if all queues
    are shorter.
    """
    if isinstance(position, EveryQueue):
        check_reached(position.offset, topic, stats)
        return {queue.queue: min(max(position.offset, queue.min_offset), queue.max_offset) for queue in stats}
    if isinstance(position, dict):
        check_queues(position, topic, stats)
        # Of queues that are not named, only what comes from here on is read.
        return {queue.queue: position.get(queue.queue, queue.max_offset) for queue in stats}
    return position


def end_of(position: Typed | None, topic: str, stats: list[QueueStats]) -> Position | None:
    """Return where to stop reading a topic (exclusive); None: never."""
    if isinstance(position, EveryQueue):
        return {queue.queue: position.offset for queue in stats}
    if isinstance(position, dict):
        check_queues(position, topic, stats)
        return position
    return position


def offsets_to_commit(to: End | dict[int, int] | EveryQueue, topic: str, stats: list[QueueStats]) -> dict[int, int]:
    """Return the offsets by queue that a group commits to continue at ``to``; if ``to`` names queues, only those.

    Raises ``OffsetOutOfRange`` for an offset that no queue holds, ``InvalidArgument`` for a queue that does not exist.
    """
    if isinstance(to, EveryQueue):
        check_reached(to.offset, topic, stats)
        return {queue.queue: min(max(to.offset, queue.min_offset), queue.max_offset) for queue in stats}
    if isinstance(to, dict):
        check_queues(to, topic, stats)
        for queue in stats:
            check_held(to.get(queue.queue, queue.max_offset), topic, queue)
        return to
    return {queue.queue: queue.min_offset if ENDS[to] == EARLIEST else queue.max_offset for queue in stats}


def check_reached(offset: int, topic: str, stats: list[QueueStats]) -> None:
    """Raise ``OffsetOutOfRange`` if no queue of the topic has the offset."""
    if any(queue.min_offset <= offset <= queue.max_offset for queue in stats):
        return
    low = min((queue.min_offset for queue in stats), default=0)
    high = max((queue.max_offset for queue in stats), default=0)
    perhaps_time = (
        f"; to use it as a time, write @{offset}" if len(str(offset)) in (_SECONDS_DIGITS, _MILLIS_DIGITS) else ""
    )
    raise OffsetOutOfRange(
        f"no queue of topic {topic!r} has offset {offset}; its {len(stats)} queues hold {low} to {high}{perhaps_time}",
        min_offset=low,
        max_offset=min(high, I64_MAX),
    )


def check_queues(offsets: dict[int, int], topic: str, stats: list[QueueStats]) -> None:
    """Raise ``InvalidArgument`` if ``offsets`` names a queue that the topic does not have."""
    for queue in offsets:
        if queue not in {row.queue for row in stats}:
            raise InvalidArgument(f"topic {topic!r} has the queues 0 to {len(stats) - 1}, not {queue}")


def check_committable(offset: int, topic: str, queue: QueueStats) -> None:
    """Raise ``InvalidArgument`` for an offset that no group can have committed. Its message may have expired."""
    if not 0 <= offset <= queue.max_offset:
        raise InvalidArgument(
            f"offset {offset} cannot be committed for queue {queue.queue} of topic {topic!r}: its next message will "
            f"have offset {queue.max_offset}"
        )


def check_held(offset: int, topic: str, queue: QueueStats) -> None:
    """Raise ``OffsetOutOfRange`` if a queue does not hold ``offset`` yet or any longer."""
    if not queue.min_offset <= offset <= queue.max_offset:
        raise OffsetOutOfRange(
            f"offset {offset} is not in queue {queue.queue} of topic {topic!r}, which holds "
            f"{queue.min_offset} to {queue.max_offset}",
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
        )
