"""Options and loop for showing messages, shared by ``pull``, ``tail`` and ``query``."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ...protocol.commands import TOPICS_STATS_MAX
from ...protocol.display import escape
from ...protocol.errors import FilterIllegal
from ..core.consume.batch import StoredMessage
from ..errors import CorruptMessage
from ..operator.display import plural, show_rate, show_seconds, shown_name
from .command import note
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from .formats import DIRECTIVES, Format
from .messages import MessagePrinter
from .params import FORMAT
from .settings import BrokerChoice

if TYPE_CHECKING:
    from ...protocol.commands import TopicTotals
    from ..sync.admin import Admin

FORMAT_HELP = (
    "Template for each message: "
    + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in DIRECTIVES.items())
    + "; %%, \\n, \\t, \\xNN."
)

FILTER_HELP = "Only messages whose properties meet this condition: \"amount > 5 AND region IN ('eu', 'us')\"."
TAG_HELP = "Only messages with this tag, or with one of several: 'a || b'."
POINTED_CHARS = 72
"""Number of characters of a filter that an error shows around the wrong place."""


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format`` and ``--raw``; the function gets them as one argument ``style``."""

    @functools.wraps(function)
    def with_style(*args: Any, template: Format | None, raw: bool, **others: Any) -> Any:
        return function(*args, style=MessageStyle(template, raw), **others)

    decorated = click.option("--raw", is_flag=True, help="Print bodies unchanged, including control characters.")(
        with_style
    )
    return click.option("--format", "template", type=FORMAT, metavar="FORMAT", help=FORMAT_HELP)(decorated)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--tag`` and ``--filter``; the function gets them as one argument ``wanted``."""

    @functools.wraps(function)
    def with_filter(*args: Any, tag: str | None, condition: str | None, **others: Any) -> Any:
        return function(*args, wanted=MessageFilter(tag, condition), **others)

    decorated = click.option("--filter", "condition", metavar="CONDITION", help=FILTER_HELP)(with_filter)
    return click.option("-t", "--tag", help=TAG_HELP)(decorated)


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """Form in which messages are printed: a template, raw bodies, or (neither) the form of the output."""

    template: Format | None
    raw: bool

    def printer(self, settings: BrokerChoice, *, follow: bool = False) -> MessagePrinter:
        """Return a printer; ``follow``: more messages may arrive, so every one is printed at once."""
        return MessagePrinter(settings.output, template=self.template, raw=self.raw, follow=follow)


DEFAULT_STYLE = MessageStyle(None, raw=False)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tag and property filter of the messages to show; None: no restriction."""

    tag: str | None
    condition: str | None

    def nothing_found(self, topic: str) -> str:
        """Return a line for the user: the requested part of a topic has no message, or none that matches."""
        asked = [f"with the tag {self.tag}"] if self.tag else []
        asked += [f"matching the filter {self.condition}"] if self.condition else []
        return escape(f"found no message of topic {shown_name(topic)} there{' ' if asked else ''}{' and '.join(asked)}")


def show_messages(
    settings: BrokerChoice,
    messages: Iterable[StoredMessage],
    printer: MessagePrinter,
    *,
    count: int | None = None,
    condition: str | None = None,
    nothing: str = "",
) -> int:
    """Print messages until there are no more, ``count`` are printed, or Ctrl-C; return the exit code.

    A damaged message is reported on standard error and skipped; the exit code is then ``EXIT_ERROR``. ``condition``:
    the filter, for the error if the broker refuses it. ``nothing``: line for standard error if there is no message.
    """
    began, shown, code = time.monotonic(), 0, EXIT_OK
    try:
        for message in messages:
            shown += 1
            try:
                printer.show(message)
            except CorruptMessage as error:
                click.echo(f"flintmq: {describe(error)[0]}", err=True)
                code = EXIT_ERROR
            if shown == count:
                break
    except FilterIllegal as error:
        for line in pointed_at(condition or "", error.column):
            error.add_note(line)
        raise
    except KeyboardInterrupt:
        seconds = time.monotonic() - began
        settings.output.flush()
        if sys.stderr.isatty():
            note(settings, "")  # after the ^C that the terminal shows
        note(settings, f"{plural(shown, 'message')} in {show_seconds(seconds)}, {show_rate(shown / seconds)}")
        return EXIT_INTERRUPTED
    if nothing and not shown:
        note(settings, nothing)
    return code


def pointed_at(condition: str, column: int) -> list[str]:
    """Return two lines: the part of ``condition`` around a column (counted from 1), and a mark below the column. Empty
    if there is no such column."""
    if not 0 < column <= len(condition) + 1:
        return []
    line = "".join(letter if letter.isprintable() else " " for letter in condition)
    begin = max(0, column - POINTED_CHARS // 2)
    return [line[begin : begin + POINTED_CHARS], " " * (column - 1 - begin) + "^"]


# ---- Topics as ``topic list`` and ``top`` show them: the figures of all, and those that users created.


def matches(name: str, pattern: str) -> bool:
    """Return whether the name of a topic or group, real or as people see it, matches a pattern such as ``orders.*``."""
    return fnmatchcase(name, pattern) or fnmatchcase(shown_name(name), pattern)


def all_topics_stats(admin: Admin) -> dict[str, TopicTotals]:
    """Return the figures of all topics by name; takes a request for each thousand."""
    found: dict[str, TopicTotals] = {}
    page = admin.topics_stats()
    while page:
        found |= {totals.topic: totals for totals in page if totals.queues}
        page = admin.topics_stats(page[-1].topic) if len(page) == TOPICS_STATS_MAX else []
    return found
