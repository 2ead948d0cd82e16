"""Reading messages onto the screen: what ``pull``, ``tail`` and ``query`` share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..core.stored import StoredMessage
from ..errors import CorruptMessage
from .command import note
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from .formats import DIRECTIVES
from .messages import MessagePrinter
from .params import FORMAT
from .settings import Settings
from .units import plural, show_rate, show_seconds

FORMAT_HELP = (
    "What to print of each message: "
    + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in DIRECTIVES.items())
    + "; %%, \\n, \\t, \\xNN."
)


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--format`` and ``--raw``."""
    function = click.option("--raw", is_flag=True, help="Bodies as they are, control characters too.")(function)
    return click.option("--format", "template", type=FORMAT, metavar="FORMAT", help=FORMAT_HELP)(function)


def show_messages(
    settings: Settings,
    messages: Iterable[StoredMessage],
    printer: MessagePrinter,
    *,
    count: int | None = None,
) -> int:
    """Print messages until there are no more, ``count`` are printed, or Ctrl-C; the exit code.

    A damaged message is told on standard error and passed over; then the exit code says so.
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
    except KeyboardInterrupt:
        seconds = time.monotonic() - began
        settings.output.flush()
        new_line = "\n" if sys.stderr.isatty() else ""  # behind the terminal's ^C
        note(settings, f"{new_line}{plural(shown, 'message')} in {show_seconds(seconds)}, {show_rate(shown / seconds)}")
        return EXIT_INTERRUPTED
    return code
