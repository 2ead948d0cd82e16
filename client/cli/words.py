"""Words that other brokers' command lines use: those that are commands here too, and those that have another name."""

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
"""A word → the command that it stands for."""

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
"""A word after the name of a group of commands → the commands that it stands for; the group has one of them or none."""

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
"""A word that is no command → the command that whoever types it is likely to mean."""

BROKER_WORDS = ("serve", "server", "start", "run", "backup", "restore", "verify", "repair", "rebuild")
"""Words for what ``flintmq-broker`` does, or that somebody types who wants a broker to start."""

MISTYPED_RATIO = 0.75
"""How much a word has to resemble a command to be taken for it."""


def other_words() -> str:
    """The aliases for people, in one line of any length."""
    words = {meant: ", ".join(word for word in ALIASES if ALIASES[word] == meant) for meant in ALIASES.values()}
    return f"Also: {'; '.join(f'{names} = {meant}' for meant, names in words.items())}; version; help [COMMAND]."


def is_mistyped(word: str, known: Iterable[str]) -> bool:
    """Whether ``word`` is one of ``known`` but for a letter or two."""
    return any(
        abs(len(word) - len(name)) <= 1 and difflib.SequenceMatcher(None, word, name).ratio() >= MISTYPED_RATIO
        for name in known
    )


def looks_like_command(word: str, known: Iterable[str]) -> bool:
    """Whether ``word`` is one of the commands ``known``, stands for one, or is one of them but for a letter or two."""
    lower = word.lower()
    return lower in OTHER_NAMES or lower in BROKER_WORDS or is_mistyped(lower, known)


def advice(word: str) -> str:
    """``; did you mean 'topic list'?`` for a word that has another name here; empty for any other word."""
    lower = word.lower()
    if lower in OTHER_NAMES:
        return f"; did you mean '{OTHER_NAMES[lower]}'?"
    if lower in BROKER_WORDS:
        return "; flintmq-broker serve starts a broker, and flintmq-broker --help lists its tools"
    return ""
