"""``flintmq TOPIC``: send the lines that are piped in, or follow the topic if there are none."""

from __future__ import annotations

import copy
import os
import shlex
import stat
import sys
from typing import Any, NoReturn

import click

from ...protocol.display import escape
from ...protocol.errors import ConnectionFailed
from .command import CliCommand, looks_like_command, refuse_command
from .settings import BrokerChoice


def stdin_has_lines() -> bool:
    """Return whether standard input is a pipe or a file: neither a terminal nor ``/dev/null``."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return False
    return not stat.S_ISCHR(mode)


def automatic(ctx: click.Context, word: str, known: list[str]) -> click.Command:
    """Return ``send`` or ``tail`` for a word that is not a command.

    The returned command refuses a word that looks like a command, unless a topic of that name exists: a typing
    mistake must not create a topic.
    """
    if stdin_has_lines():
        from .commands.send import send as chosen
    else:
        from .commands.reads import tail as chosen
    # A copy: the command, called by its own name, must not get this check.
    made: CliCommand = copy.copy(chosen)
    made.context_settings = {**chosen.context_settings, "allow_extra_args": True}
    call = chosen.callback
    assert call is not None

    def checked(*args: Any, **kwargs: Any) -> Any:
        if extra := click.get_current_context().args:
            _refuse_extra(ctx, word, known, extra)
        if looks_like_command(word, known) and not _is_topic(ctx, word, known):
            refuse_command(ctx, word, known, f" and no such topic (flintmq send {word} creates one)")
        return call(*args, **kwargs)

    made.callback = checked
    return made


def _refuse_extra(ctx: click.Context, word: str, known: list[str], extra: list[str]) -> NoReturn:
    """Raise ``UsageError`` for a word with further arguments, which can only be meant as a command."""
    if looks_like_command(word, known):
        refuse_command(ctx, word, known)
    body = escape(shlex.join(extra))
    raise click.UsageError(
        f"there is no command {escape(word)}; to send to a topic of that name, use flintmq send {escape(word)} {body}",
        ctx,
    )


def _is_topic(ctx: click.Context, word: str, known: list[str]) -> bool:
    settings = ctx.find_object(BrokerChoice)
    assert settings is not None
    try:
        with settings.admin() as admin:
            return word in admin.topics(system=True)
    except ConnectionFailed:
        refuse_command(ctx, word, known)
