"""Options and loop for showing messages, shared by ``pull``, ``tail`` and ``query``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from ...protocol.errors import FilterIllegal
from ...protocol.escaping import escape
from ..core.consume.stored import StoredMessage
from ..errors import CorruptMessage
from .command import note
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from .formats import DIRECTIVES
from .messages import MessagePrinter
from .params import FORMAT
from .settings import BrokerChoice
from .units import plural, show_rate, show_seconds

FORMAT_HELP = (
    "Template for each message: "
    + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in DIRECTIVES.items())
    + "; %%, \\n, \\t, \\xNN."
)

FILTER_HELP = "Only messages whose properties meet this condition: \"amount > 5 AND region IN ('eu', 'us')\"."
POINTED_CHARS = 72
"""Number of characters of a filter that an error shows around the wrong place."""


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format`` and ``--raw``."""
    function = click.option("--raw", is_flag=True, help="Print bodies unchanged, including control characters.")(
        function
    )
    return click.option("--format", "template", type=FORMAT, metavar="FORMAT", help=FORMAT_HELP)(function)


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
        new_line = "\n" if sys.stderr.isatty() else ""  # after the ^C that the terminal shows
        note(settings, f"{new_line}{plural(shown, 'message')} in {show_seconds(seconds)}, {show_rate(shown / seconds)}")
        return EXIT_INTERRUPTED
    if nothing and not shown:
        note(settings, nothing)
    return code


def nothing_found(topic: str, tag: str | None, condition: str | None) -> str:
    """Return a line for the user: the requested part of a topic has no message, or none that matches."""
    asked = [*([f"with the tag {tag}"] if tag else []), *([f"matching the filter {condition}"] if condition else [])]
    return escape(f"found no message of topic {topic} there{' ' if asked else ''}{' and '.join(asked)}")


def pointed_at(condition: str, column: int) -> list[str]:
    """Return two lines: the part of ``condition`` around a column (counted from 1), and a mark below the column. Empty
    if there is no such column."""
    if not 0 < column <= len(condition) + 1:
        return []
    line = "".join(letter if letter.isprintable() else " " for letter in condition)
    begin = max(0, column - POINTED_CHARS // 2)
    return [line[begin : begin + POINTED_CHARS], " " * (column - 1 - begin) + "^"]
