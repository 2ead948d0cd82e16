"""Exit codes and errors of the commands in this package."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from ...protocol.escaping import escape

EXIT_REFUSED = 2
"""The tool could not do its work: an invalid argument, a store in use, an error of the disk."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as 128 + SIGINT."""


def tool_command(work: Callable[..., int]) -> Callable[..., None]:
    """Wrap a command: turn errors into one line and an exit code. ``work`` returns the exit code."""

    @functools.wraps(work)
    def run(**arguments: Any) -> None:
        from ...protocol.errors import FlintError

        try:
            code = work(**arguments)
        except KeyboardInterrupt:
            click.echo("flintmq-broker: interrupted", err=True)
            code = EXIT_INTERRUPTED
        except (FlintError, OSError) as error:
            for line in (str(error), *getattr(error, "__notes__", ())):
                click.echo(f"flintmq-broker: {escape(line)}", err=True)
            code = EXIT_REFUSED
        sys.exit(code)

    return run
