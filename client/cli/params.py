"""Types of arguments: positions, times, sizes, and names that the shell completes from the broker.

Completion never reports an error and never takes long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ...protocol.errors import FlintError
from ...protocol.fields import I64_MAX
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ...protocol.times import SECONDS_MAX
from ..operator.display import real_name, shown_name
from .settings import COMMON, BrokerChoice

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..sync.admin import Admin

Completed: TypeAlias = "Iterable[CompletionItem]"
Complete: TypeAlias = "Callable[[click.Context, str], Completed]"
"""Function that returns the completions of the beginning of a word."""


class TextType(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """A type of text.

    ``parse``: function that returns the value that a text spells, or raises ``ValueError`` with the usage error.
    """

    def __init__(self, name: str, parse: Callable[[str], Any] = str, complete: Complete | None = None) -> None:
        self.name = name
        self.parse = parse
        self._complete = complete

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [] if self._complete is None else list(self._complete(ctx, incomplete))


class NumberType(click.IntRange):
    """A whole number in a range, shown as ``N`` in help texts."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return super().convert(number, param, ctx)


class RealType(click.FloatRange):
    """A number in a range; neither an infinity nor NaN."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}", param, ctx)
        return super().convert(number, param, ctx)


# ---- Completion.

POSITION_EXAMPLES = {
    "earliest": "the first messages",
    "latest": "the present end",
    "-10": "the last ten",
    "0=17": "offset 17 of queue 0",
}
TIME_EXAMPLES = {"@-15m": "a quarter of an hour ago", "@-1h": "an hour ago", "@-1d": "a day ago", "@now": "now"}
"""Completions for a time. They begin with ``@`` so that no shell or command takes them for an option."""
COMPLETION_SECONDS = 0.5
"""Seconds to wait for the broker; without a response, nothing is completed."""
_PLAIN = re.compile(r"[a-zA-Z0-9_.@:/%+-]+")
"""Decoded names that a shell takes literally: it does not quote completions."""


def _examples(forms: dict[str, str]) -> Complete:
    def complete(ctx: click.Context, incomplete: str) -> Completed:
        return [_item(form, meaning) for form, meaning in forms.items() if form.startswith(incomplete)]

    return complete


def _item(value: str, meaning: str | None = None) -> CompletionItem:
    from click.shell_completion import CompletionItem

    return CompletionItem(value, help=meaning)


def _from_broker(ask: Callable[[Admin, str], Completed]) -> Complete:
    """Return a completion that asks the broker of the command line, and knows nothing if that fails."""

    def complete(ctx: click.Context, incomplete: str) -> Completed:
        settings = BrokerChoice(may_ask=False)
        context: click.Context | None = ctx
        while context is not None:  # the option nearest to the word overrides
            for name in COMMON:
                if getattr(settings, name) is None:
                    setattr(settings, name, context.params.get(name))
            context = context.parent
        settings.timeout = COMPLETION_SECONDS
        settings.quiet = True
        try:
            with settings.admin() as admin:
                return list(ask(admin, incomplete))
        except (FlintError, OSError):
            return []

    return complete


def _beginning(incomplete: str, *names: str) -> Iterator[str]:
    """Yield the names that begin with ``incomplete``: real ones, or else as people see them."""
    for name in names:
        if name.startswith(incomplete):
            yield name
        elif (shown := shown_name(name)).startswith(incomplete) and _PLAIN.fullmatch(shown):
            yield shown


@_from_broker
def complete_topics(admin: Admin, incomplete: str) -> Completed:
    """Return topics; the broker's own ones only if something has been typed."""
    topics = admin.topics(system=True)
    return map(_item, _beginning(incomplete, *(name for name, info in topics.items() if incomplete or not info.system)))


@_from_broker
def complete_groups(admin: Admin, incomplete: str) -> Completed:
    return [_item(name, info.state) for info in admin.groups() for name in _beginning(incomplete, info.group)]


@_from_broker
def complete_dead_letter_groups(admin: Admin, incomplete: str) -> Completed:
    """Return groups that have or had dead letters."""
    prefix = DEAD_LETTER_TOPIC_PREFIX
    groups = [topic.removeprefix(prefix) for topic in sorted(admin.topics()) if topic.startswith(prefix)]
    return map(_item, _beginning(incomplete, *groups))


@_from_broker
def complete_settings(admin: Admin, incomplete: str) -> Completed:
    return [_item(row.name, f"now {row.value}") for row in admin.settings() if row.name.startswith(incomplete)]


@_from_broker
def complete_changes(admin: Admin, incomplete: str) -> Completed:
    """Return ``NAME=`` of settings that can be changed."""
    found = (row for row in admin.settings() if row.hot and row.name.startswith(incomplete))
    return [_item(f"{row.name}=", f"now {row.value}") for row in found]


def complete_contexts(ctx: click.Context, incomplete: str) -> Completed:
    """Return contexts of the user."""
    from .contexts import Contexts

    try:
        brokers = Contexts.load().brokers
    except FlintError:
        return []
    return [_item(name, broker) for name, broker in sorted(brokers.items()) if name.startswith(incomplete)]


# ---- Parsing. These functions raise ``ValueError`` with the usage error.

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)[bB]?")
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
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|min|m|h|d)?")
_SPAN_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_OFFSETS = re.compile(r"([0-9]{1,18})?(:)?([0-9]{1,18})?")
_PERMISSIONS = {"rw": 6, "wr": 6, "r": 4, "w": 2, "none": 0}


def _position(text: str) -> Any:
    from ..operator.positions import parse_position

    return parse_position(text)


def _time(text: str) -> Any:
    """Return an aware datetime; the ``@`` before it may be missing."""
    from ..operator.positions import parse_time

    return parse_time(text.removeprefix("@"))


def _bytes(text: str) -> int:
    """Return the bytes of a size: ``512``, ``64k``, ``1.5MB``, ``1Gi``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2] not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; use bytes, or a unit: 64k, 1.5MB, 1Gi")
    size = float(found[1]) * _SIZE_UNITS[found[2]]
    if size > I64_MAX:
        raise ValueError(f"{text!r:.60} is more than {I64_MAX:,} bytes")
    return int(size)


def _retention_bytes(text: str) -> int:
    """Return the bytes of a size, or 0 for ``none``: no limit."""
    return 0 if text.strip().lower() == "none" else _bytes(text)


def _seconds(text: str) -> float:
    """Return the seconds of a duration: ``0.5``, ``10ms``, ``2min``."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; use seconds, or a unit: 10ms, 2min, 1h")
    seconds = float(found[1]) * _SPAN_UNITS[found[2] or ""]
    if seconds > SECONDS_MAX:
        raise ValueError(f"{text!r:.60} is longer than {SECONDS_MAX:,.0f} seconds")
    return seconds


def _retention_hours(text: str) -> int:
    """Return the hours of ``24h`` or ``7d``, -1 for ``forever``, 0 for ``default``."""
    named = {"forever": -1, "default": 0}.get(text.strip().lower())
    if named is not None:
        return named
    found = re.fullmatch(r"([1-9]\d{0,5})\s*(h|d|w)", text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not a retention; use whole hours, days or weeks (24h, 7d, 2w), forever or default"
        )
    return int(found[1]) * {"h": 1, "d": 24, "w": 168}[found[2]]


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not a property; use NAME=VALUE")
    return name, value


def _permission(text: str) -> int:
    """Return the bits of a topic's permission: 4 to read, 2 to write."""
    if text not in _PERMISSIONS:
        raise ValueError(f"{text!r} is not a permission; use rw, r, w or none")
    return _PERMISSIONS[text]


def show_permission(perm: int) -> str:
    """Return the text of a permission: ``rw`` for 6."""
    return ("r" if perm & 4 else "") + ("w" if perm & 2 else "") or "none"


def _offsets(text: str) -> tuple[int, int | None]:
    """Return the first offset and the end (exclusive) of ``17``, ``17:20``, ``17:`` or ``:20``; the end None means that
    of the queue."""
    found = _OFFSETS.fullmatch(text.strip())
    first, last = (int(found[1] or 0), int(found[3]) if found[3] else None) if found else (0, -1)
    if found is None or (not found[2] and not found[1]) or (last is not None and last <= first):
        raise ValueError(f"{text!r} is not a range of offsets; use 17, 17:20 (17 to 19), 17: or :20")
    return first, last if found[2] else first + 1


def _group(text: str) -> str:
    return real_name(text, "group")


# ---- The types.

POSITION = TextType("position", _position, _examples(POSITION_EXAMPLES | TIME_EXAMPLES))
TIME = TextType("time", _time, _examples(TIME_EXAMPLES))
SIZE = TextType("size", _bytes)
SPAN = TextType("span", _seconds)
PROPERTY = TextType("property", _property)
PERMISSION = TextType("permission", _permission)
RETENTION = TextType("retention", _retention_hours)
RETENTION_BYTES = TextType("size", _retention_bytes)
OFFSETS = TextType("offsets", _offsets)
TOPIC = TextType("topic", real_name, complete_topics)
"""The name of a topic, real or as people see it; the value is the real one. The same holds for groups."""
TOPIC_PATTERN = TextType("topic", complete=complete_topics)
GROUP = TextType("group", _group, complete_groups)
GROUP_PATTERN = TextType("group", complete=complete_groups)
DEAD_LETTER_GROUP = TextType("group", _group, complete_dead_letter_groups)
SETTING = TextType("setting", complete=complete_settings)
CHANGE = TextType("setting", complete=complete_changes)
"""NAME=VALUE of a setting to change."""
CONTEXT = TextType("context", complete=complete_contexts)
QUEUE = NumberType(0, 65_535)
COUNT = NumberType(1)
