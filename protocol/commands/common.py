"""Limits and empty messages that several command modules share."""

from __future__ import annotations

from dataclasses import dataclass

KEY_CHARS_MAX = 32767
FILTER_CHARS_MAX = 4096
MEMBER_CHARS_MAX = 128
QUERY_COUNT_MAX = 64
"""Maximum number of messages on one page of a query."""
PREPARED_NAME_CHARS_MAX = 200
QUEUES_MAX = 65_536


@dataclass(slots=True)
class EmptyRequest:
    """No fields."""


@dataclass(slots=True)
class EmptyAnswer:
    """No fields."""
