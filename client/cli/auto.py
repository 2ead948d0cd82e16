"""``flintmq TOPIC``: produce what is piped in, else follow the topic."""

from __future__ import annotations

import copy
import os
import stat
import sys
from difflib import SequenceMatcher
from typing import Any

import click

from ...protocol.errors import ConnectionFailed
from .command import Command, refuse_command
from .settings import Settings

MISTYPED_RATIO = 0.75
"""How much a word has to resemble a command to be taken for it."""


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
        if is_mistyped(word, known) and not _is_topic(ctx, word, known):
            refuse_command(ctx, word, known, f" and no such topic (flintmq send {word} makes one)")
        return call(*args, **kwargs)

    made.callback = checked
    return made


def is_mistyped(word: str, known: list[str]) -> bool:
    """Whether ``word`` is a command but for a letter or two."""
    return any(
        abs(len(word) - len(name)) <= 1 and SequenceMatcher(None, word, name).ratio() >= MISTYPED_RATIO
        for name in known
    )


def _is_topic(ctx: click.Context, word: str, known: list[str]) -> bool:
    settings = ctx.find_object(Settings)
    assert settings is not None
    try:
        with settings.admin() as admin:
            return word in admin.topics(system=True)
    except ConnectionFailed:
        refuse_command(ctx, word, known)
