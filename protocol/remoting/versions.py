"""Releases of RocketMQ by their number on the wire, ``MQVersion``."""

from __future__ import annotations

_FIRST = 232
"""Number of 4.1.0-SNAPSHOT. From there on each release has two numbers, its snapshot's and its own."""
_FIRST_RELEASE = 410
_LAST = _FIRST + 2 * (999 - _FIRST_RELEASE) + 1


def release_of(version: int) -> str:
    """Return the release that ``MQVersion`` names, such as ``5.3.3``; for older ones than 4.1.0 the bare number."""
    if not _FIRST <= version <= _LAST:
        return f"version {version}"
    # The three digits of a release count as one number: 5.0.0 follows 4.9.9.
    major, rest = divmod(_FIRST_RELEASE + (version - _FIRST) // 2, 100)
    return f"{major}.{rest // 10}.{rest % 10}" + ("" if version % 2 else "-SNAPSHOT")


def client_name(language: str, version: int) -> str:
    """Return how lists of connections name a RocketMQ client: ``rocketmq java 5.3.3``."""
    printable = language if language and language.isascii() and language.isprintable() else "other"
    return f"rocketmq {printable.lower()} {release_of(version)}"
