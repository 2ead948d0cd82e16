"""``flintmq TOPIC``: produce what is piped in, else follow the topic."""

from __future__ import annotations

import copy
import os
import stat
import sys
from typing import Any

import click

from ...protocol.errors import ConnectionFailed
from .command import Command, refuse_command
from .failures import nearest
from .settings import Settings


def stdin_has_lines() -> bool:
    """Whether something was piped or redirected to standard input: not a terminal, not ``/dev/null``."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return False
    return not stat.S_ISCHR(mode)


def automatic(ctx: click.Context, word: str, known: list[str]) -> click.Command:
    """The command for a word that is none: ``send`` or ``tail``, once the word proved to be a topic.

    A word that resembles a command is taken for a mistyped one, unless there is such a topic.
    """
    if stdin_has_lines():
        from .commands.send import send as chosen
    else:
        from .commands.tail import tail as chosen
    made: Command = copy.copy(chosen)
    call = chosen.callback
    assert call is not None

    def checked(*args: Any, **kwargs: Any) -> Any:
        if nearest(word, known) and not _is_topic(ctx, word, known):
            refuse_command(ctx, word, known, " and no such topic")
        return call(*args, **kwargs)

    made.callback = checked
    return made


def _is_topic(ctx: click.Context, word: str, known: list[str]) -> bool:
    settings = ctx.find_object(Settings)
    assert settings is not None
    try:
        with settings.admin() as admin:
            return word in admin.topics(system=True)
    except ConnectionFailed:
        refuse_command(ctx, word, known)
