"""Words from other brokers' command lines: aliases for commands, and words that only lead to a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ALIASES = {
    "produce": "send",
    "pub": "send",
    "publish": "send",
    "consume": "tail",
    "sub": "tail",
    "subscribe": "tail",
    "ls": "topic list",
    "info": "status",
}
"""Command by alias."""

HELP, VERSION = "help", "version"
"""Words for ``--help`` and ``--version``."""

SUBCOMMAND_ALIASES = {
    "add": ("create",),
    "describe": ("status", "show"),
    "edit": ("update",),
    "info": ("status", "show"),
    "ls": ("list",),
    "rm": ("delete", "remove"),
}
"""Subcommands by alias; a group of commands has at most one of them."""

OTHER_NAMES = {
    "acl": "user grant",
    "alter": "topic update",
    "cluster": "status",
    "connect": "context add",
    "consumer": "group",
    "consumers": "group list",
    "create": "topic create",
    "delete": "topic delete",
    "describe": "topic status",
    "get": "pull",
    "lag": "group list",
    "list": "topic list",
    "login": "context add",
    "metadata": "topic list",
    "monitor": "top",
    "peek": "pull",
    "ping": "check",
    "publisher": "send",
    "producer": "send",
    "put": "send",
    "read": "pull",
    "receive": "pull",
    "rm": "topic delete",
    "stats": "status",
    "streams": "topic list",
    "subscriber": "tail",
    "watch": "top",
    "write": "send",
}
"""Command to suggest, by a word that is not a command."""

BROKER_WORDS = ("serve", "server", "start", "run", "backup", "restore", "verify", "repair", "rebuild")
"""Commands of ``flintmq-broker``, and words that a user may type to start a broker."""

MISTYPED_RATIO = 0.75
"""Minimum similarity to a command at which a word counts as a mistyped command."""


def other_words() -> str:
    """Return a line about the aliases for the help text."""
    words = {meant: ", ".join(word for word in ALIASES if ALIASES[word] == meant) for meant in ALIASES.values()}
    return f"Also: {'; '.join(f'{names} = {meant}' for meant, names in words.items())}; version; help [COMMAND]."


def is_mistyped(word: str, known: Iterable[str]) -> bool:
    """Return whether ``word`` differs from one of ``known`` in a letter or two."""
    return any(
        abs(len(word) - len(name)) <= 1 and difflib.SequenceMatcher(None, word, name).ratio() >= MISTYPED_RATIO
        for name in known
    )


def looks_like_command(word: str, known: Iterable[str]) -> bool:
    """Return whether ``word`` suggests a command: it has one in ``OTHER_NAMES``, or is a mistyped one of ``known``."""
    lower = word.lower()
    return lower in OTHER_NAMES or lower in BROKER_WORDS or is_mistyped(lower, known)


def advice(word: str) -> str:
    """Return ``; did you mean 'topic list'?`` for a word with another name here; empty for any other word."""
    lower = word.lower()
    if lower in OTHER_NAMES:
        return f"; did you mean '{OTHER_NAMES[lower]}'?"
    if lower in BROKER_WORDS:
        return "; flintmq-broker serve starts a broker, and flintmq-broker --help lists its tools"
    return ""
