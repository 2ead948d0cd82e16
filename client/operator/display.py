"""Figures, and names of topics and groups, as people read and type them."""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase

from ...protocol.display import three_digits
from ...protocol.names import is_system_topic, is_valid_name
from ...protocol.storage.delivery import GROUP_TOPIC_PREFIXES, POP_RETRY_SEPARATOR, RETRY_TOPIC_PREFIX
from ..names import NameKind, decode_name, encode_name

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


# ---- Values of rows.


def show_value(value: int | str | bool) -> str:
    """Return a value as in ``broker.toml``, without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_flag(flag: bool) -> str:
    """Return ``yes``, or an empty string."""
    return "yes" if flag else ""


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


def matches(name: str, pattern: str) -> bool:
    """Return whether the name of a topic or group, real or as people see it, matches a pattern such as ``orders.*``."""
    return fnmatchcase(name, pattern) or fnmatchcase(shown_name(name), pattern)


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
