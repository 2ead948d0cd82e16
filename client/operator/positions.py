"""Parser of the positions and times that ``--from``, ``--until`` and ``--to`` take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from ...protocol.display import three_digits
from ...protocol.errors import OffsetOutOfRange
from ...protocol.fields import I64_MAX
from ...protocol.names import is_system_topic, is_valid_name
from ...protocol.storage.delivery import GROUP_TOPIC_PREFIXES, POP_RETRY_SEPARATOR, RETRY_TOPIC_PREFIX
from ..core.consume.positions import EARLIEST, ENDS, End, Position
from ..core.topics import QueueStats
from ..errors import InvalidArgument
from ..names import NameKind, decode_name, encode_name

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


# ---- Figures formatted for people. ``output.py`` gives programs plain numbers.

_UNKNOWN = "–"
_TO_THE_SECOND = len("2026-11-21 11:00:00")


def show_count(count: float | None) -> str:
    """Return ``1234567`` as ``1,234,567``."""
    return _UNKNOWN if count is None else f"{count:,.0f}"


def show_rate(per_second: float | None) -> str:
    """Return events per second: ``1234567`` as ``1.23 M/s``, ``12.345`` as ``12.3/s``."""
    if per_second is None:
        return _UNKNOWN
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        # Three digits would round what is above to 1,000 of the smaller unit.
        if per_second >= limit * 0.9995:
            value = per_second / (1e3 if unit == " k" else limit)
            return f"{value:.{three_digits(value)}f}{unit}/s"
    return f"{per_second:,.0f}/s" if per_second >= 100 or per_second == int(per_second) else f"{per_second:.1f}/s"


def show_seconds(seconds: float | None) -> str:
    """Return a duration: ``850 µs``, ``12.3 ms``, ``4.20 s``, ``3 min 20 s``, ``2 h 5 min``, ``6 d 3 h``, ``120 d``."""
    if seconds is None or seconds < 0:
        return _UNKNOWN
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{three_digits(seconds * 1e3)}f} ms"
    if seconds < 59.95:
        return f"{seconds:.{three_digits(seconds)}f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size if whole < 100 * size else 0
            return f"{whole // size:,} {unit} {rest} {smaller_unit}" if rest else f"{whole // size:,} {unit}"
    raise AssertionError("at least a minute")


def show_moment(moment: datetime | None) -> str:
    """Return a local time with milliseconds, for tables: ``2026-11-21 11:00:00.123``."""
    if moment is None:
        return _UNKNOWN
    return moment.astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")


def show_second(moment: datetime | None) -> str:
    """Return a local time to the second: ``2026-11-21 11:00:00``."""
    return _UNKNOWN if moment is None else show_moment(moment)[:_TO_THE_SECOND]


def plural(count: int, noun: str, several: str = "") -> str:
    """Return ``1 message``, ``2,000 messages``. ``several``: the plural if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


# ---- Names of topics and groups as people read and type them: decoded where ``encode_name`` made them.
#
# The functions are inverse. People see a decoded name only if it breaks RocketMQ's rule and has no white
# space and no control characters. So what they see never stands for two names, and what they type is a real
# name if it is valid.


def shown_name(name: str) -> str:
    """Return the name to show for a real one: ``orders.v1`` for ``orders%2Ev1``, ``%DLQ%a@b`` for ``%DLQ%a%40b``."""
    prefix, parts = _split(name)
    shown = [_shown_part(part) for part in parts]
    # There the sign separates group and topic.
    if prefix == RETRY_TOPIC_PREFIX and any(POP_RETRY_SEPARATOR in part for part in shown):
        return name
    return prefix + POP_RETRY_SEPARATOR.join(shown)


def real_name(shown: str, kind: NameKind = "topic") -> str:
    """Return the real name for one that a person typed, who may have typed either.

    A name with white space or control characters is returned as it is: it must be a mistake, and the broker refuses it.
    Raises ``InvalidArgument`` if the name is too long once encoded.
    """
    prefix, parts = _split(shown)
    real = [encode_name(part, kind) if _is_for_people(part) else part for part in parts]
    return prefix + POP_RETRY_SEPARATOR.join(real)


def is_called(name: str, text: str) -> bool:
    """Return whether ``text`` is in a name, real or as people see it, in upper or lower case."""
    return text.lower() in name.lower() or text.lower() in shown_name(name).lower()


def is_group_topic(name: str) -> bool:
    """Return whether the topic is a group's retry topic or dead-letter topic."""
    return name.startswith(GROUP_TOPIC_PREFIXES)


def is_own(name: str) -> bool:
    """Return whether the broker created the topic, for itself or for a group."""
    return is_system_topic(name) or is_group_topic(name)


def _is_for_people(name: str) -> bool:
    """Return whether people read and type this name in place of the encoded one."""
    return bool(name) and name.isprintable() and " " not in name and not is_valid_name(name)


def _shown_part(name: str) -> str:
    decoded = decode_name(name)
    return decoded if _is_for_people(decoded) and not decoded.startswith(GROUP_TOPIC_PREFIXES) else name


def _split(name: str) -> tuple[str, list[str]]:
    """Return the prefix of a group's own topic, which is never encoded, and the names that follow it: two in the retry
    topic of a group that pops."""
    prefix = next((prefix for prefix in GROUP_TOPIC_PREFIXES if name.startswith(prefix)), "")
    rest = name[len(prefix) :]
    both = prefix == RETRY_TOPIC_PREFIX and rest.count(POP_RETRY_SEPARATOR) == 1
    return prefix, rest.split(POP_RETRY_SEPARATOR) if both else [rest]
