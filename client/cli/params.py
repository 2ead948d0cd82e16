"""Types of arguments: positions, times, formats, sizes, and names with live completion."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import click

from ...protocol.fields import I64_MAX
from ...protocol.times import SECONDS_MAX

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)[bB]?")
_OFFSETS = re.compile(r"([0-9]{1,18})?(:)?([0-9]{1,18})?")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|min|m|h|d)?")
_SIZE_UNITS = {
    "": 1,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "ki": 2**10,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_SPAN_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PERMISSIONS = {"rw": 6, "wr": 6, "r": 4, "w": 2, "none": 0}


class _Checked(click.ParamType, ABC):  # type: ignore[type-arg] # generic since click 8.4
    """Base class of types whose ``parse`` raises ``ValueError``; its message becomes the usage error."""

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Return the value that ``text`` spells; raise ``ValueError`` with the usage error if it spells none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NumberType(click.IntRange):
    """A whole number in a range, shown as ``N`` in help texts."""

    name = "n"


class RealType(click.FloatRange):
    """A number in a range; neither an infinity nor NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number in the range {self._describe_range()}", param, ctx)
        return number


POSITION_EXAMPLES = {
    "earliest": "the first messages",
    "latest": "the present end",
    "-10": "the last ten",
    "0=17": "offset 17 of queue 0",
}
TIME_EXAMPLES = {"@-15m": "a quarter of an hour ago", "@-1h": "an hour ago", "@-1d": "a day ago", "@now": "now"}
"""Completions for a time. They begin with ``@`` so that no shell or command takes them for an option."""


def _examples(forms: dict[str, str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(form, help=meaning) for form, meaning in forms.items() if form.startswith(incomplete)]


class PositionType(_Checked):
    """A position in a topic (``positions.py`` parses it); completed with examples of its forms."""

    name = "position"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the forms that begin with ``incomplete``."""
        return _examples(POSITION_EXAMPLES | TIME_EXAMPLES, incomplete)

    def parse(self, text: str) -> Any:
        """Return the position."""
        from ..operator.positions import parse_position

        return parse_position(text)


class TimeType(_Checked):
    """A time, with or without ``@``; completed with examples of its forms."""

    name = "time"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the forms that begin with ``incomplete``."""
        return _examples(TIME_EXAMPLES, incomplete)

    def parse(self, text: str) -> Any:
        """Return the time as an aware datetime."""
        from ..operator.positions import parse_time

        return parse_time(text.removeprefix("@"))


class FormatType(_Checked):
    """A format template for ``--format``."""

    name = "format"

    def parse(self, text: str) -> Any:
        """Return the parsed format."""
        from .formats import Format

        return Format(text)


class SizeType(_Checked):
    """A size in bytes: ``512``, ``64k``, ``1.5MB``, ``1Gi``."""

    name = "size"

    def parse(self, text: str) -> int:
        """Return the number of bytes."""
        found = _SIZE.fullmatch(text.strip())
        if found is None or found[2] not in _SIZE_UNITS:
            raise ValueError(f"{text!r} is not a size; use bytes, or a unit: 64k, 1.5MB, 1Gi")
        size = float(found[1]) * _SIZE_UNITS[found[2]]
        if size > I64_MAX:
            raise ValueError(f"{text!r:.60} is more than {I64_MAX:,} bytes")
        return int(size)


class SpanType(_Checked):
    """A duration in seconds: ``0.5``, ``10ms``, ``2min``."""

    name = "span"

    def parse(self, text: str) -> float:
        """Return the number of seconds."""
        found = _SPAN.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a duration; use seconds, or a unit: 10ms, 2min, 1h")
        seconds = float(found[1]) * _SPAN_UNITS[found[2] or ""]
        if seconds > SECONDS_MAX:
            raise ValueError(f"{text!r:.60} is longer than {SECONDS_MAX:,.0f} seconds")
        return seconds


class PropertyType(_Checked):
    """A property, ``NAME=VALUE``."""

    name = "property"

    def parse(self, text: str) -> tuple[str, str]:
        """Return name and value."""
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{text!r} is not a property; use NAME=VALUE")
        return name, value


class PermissionType(_Checked):
    """A topic's permission: ``rw``, ``r``, ``w``, ``none``."""

    name = "permission"

    def parse(self, text: str) -> int:
        """Return the bits: 4 to read, 2 to write."""
        if text not in _PERMISSIONS:
            raise ValueError(f"{text!r} is not a permission; use rw, r, w or none")
        return _PERMISSIONS[text]


class RetentionType(_Checked):
    """A topic's retention in hours: ``24h``, ``7d``, ``forever`` (-1), ``default`` (0)."""

    name = "retention"

    def parse(self, text: str) -> int:
        """Return the number of hours."""
        named = {"forever": -1, "default": 0}.get(text.strip().lower())
        if named is not None:
            return named
        found = re.fullmatch(r"([1-9]\d{0,5})\s*(h|d|w)", text.strip())
        if found is None:
            raise ValueError(
                f"{text!r} is not a retention; use whole hours, days or weeks (24h, 7d, 2w), forever or default"
            )
        return int(found[1]) * {"h": 1, "d": 24, "w": 168}[found[2]]


class RetentionBytesType(SizeType):
    """Maximum bytes that a topic keeps: a size, or ``none`` (0)."""

    def parse(self, text: str) -> int:
        """Return the number of bytes."""
        return 0 if text.strip().lower() == "none" else super().parse(text)


class TopicType(_Checked):
    """A topic's name, real or as people see it; completed from the broker."""

    name = "topic"

    def parse(self, text: str) -> str:
        """Return the real name."""
        from ..operator.display import real_name

        return real_name(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the topics that begin with ``incomplete``."""
        from .completions import complete_topics

        return complete_topics(ctx, incomplete)


class TopicPatternType(TopicType):
    """A pattern for names of topics, real or as people see them; completed from the broker."""

    def parse(self, text: str) -> str:
        """Return the pattern unchanged."""
        return text


class GroupType(_Checked):
    """A consumer group's name, real or as people see it; completed from the broker."""

    name = "group"

    def parse(self, text: str) -> str:
        """Return the real name."""
        from ..operator.display import real_name

        return real_name(text, "group")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the groups that begin with ``incomplete``."""
        from .completions import complete_groups

        return complete_groups(ctx, incomplete)


class GroupPatternType(GroupType):
    """A pattern for names of groups, real or as people see them; completed from the broker."""

    def parse(self, text: str) -> str:
        """Return the pattern unchanged."""
        return text


class DeadLetterGroupType(GroupType):
    """A group with dead letters; completed with the groups that have a dead-letter topic."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the groups that begin with ``incomplete``."""
        from .completions import complete_dead_letter_groups

        return complete_dead_letter_groups(ctx, incomplete)


class OffsetsType(_Checked):
    """A range of queue offsets: ``17``, ``17:20`` (20 excluded), ``17:``, ``:20``."""

    name = "offsets"

    def parse(self, text: str) -> tuple[int, int | None]:
        """Return the first offset and the end (exclusive); the end None means that of the queue."""
        found = _OFFSETS.fullmatch(text.strip())
        first, last = (int(found[1] or 0), int(found[3]) if found[3] else None) if found else (0, -1)
        if found is None or (not found[2] and not found[1]) or (last is not None and last <= first):
            raise ValueError(f"{text!r} is not a range of offsets; use 17, 17:20 (17 to 19), 17: or :20")
        return first, last if found[2] else first + 1


class SettingType(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The name of a broker setting, or NAME=VALUE with ``to_set``; completed from the broker."""

    name = "setting"

    def __init__(self, *, to_set: bool = False) -> None:
        self._to_set = to_set

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the settings that begin with ``incomplete``."""
        from .completions import complete_settings

        return complete_settings(ctx, incomplete, to_set=self._to_set)


class ContextType(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """A context's name; completed with the existing ones."""

    name = "context"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the contexts that begin with ``incomplete``."""
        from .completions import complete_contexts

        return complete_contexts(incomplete)


def show_permission(perm: int) -> str:
    """Return the text of a permission: ``rw`` for 6."""
    return ("r" if perm & 4 else "") + ("w" if perm & 2 else "") or "none"


POSITION, TIME, FORMAT, SIZE, SPAN = PositionType(), TimeType(), FormatType(), SizeType(), SpanType()
PROPERTY, PERMISSION, TOPIC, GROUP, CONTEXT = PropertyType(), PermissionType(), TopicType(), GroupType(), ContextType()
RETENTION, RETENTION_BYTES = RetentionType(), RetentionBytesType()
TOPIC_PATTERN, GROUP_PATTERN = TopicPatternType(), GroupPatternType()
DEAD_LETTER_GROUP, OFFSETS = DeadLetterGroupType(), OffsetsType()
QUEUE = NumberType(0, 65_535)
COUNT = NumberType(1)
