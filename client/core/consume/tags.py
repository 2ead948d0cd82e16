"""Filters of readers: by tag (the broker compares hashes, the client the tags themselves), and by an expression that
only the broker evaluates."""

from __future__ import annotations

from collections.abc import Iterable

from ....protocol.commands import FILTER_CHARS_MAX
from ...errors import InvalidArgument, InvalidArgumentType
from ..texts import check_unicode

TAG_SEPARATOR = "||"
EXPRESSION_CHARS_MAX = 4096
"""Maximum length of the tags that a broker accepts."""


class TagFilter:
    """The tags that a reader wants. ``expression``: sent to the broker; ``wanted``: compared exactly by the client."""

    __slots__ = ("expression", "wanted")

    def __init__(self, expression: str, wanted: frozenset[str]) -> None:
        self.expression = expression
        self.wanted = wanted

    def accepts(self, tags: str | None) -> bool:
        """Return whether a message with this tag is wanted."""
        return not self.wanted or tags in self.wanted


EVERYTHING = TagFilter("", frozenset())


def parse_tags(tags: str | Iterable[str] | None) -> TagFilter:
    """Return the filter for ``"a || b"``, for several tags, or for None or ``"*"`` (all messages)."""
    if tags is None:
        return EVERYTHING
    parts = tags.split(TAG_SEPARATOR) if isinstance(tags, str) else list(tags)
    for part in parts:
        if not isinstance(part, str):
            raise InvalidArgumentType(f"tags must be a str or several, not {type(part).__name__}")
        check_unicode("the tag", part)
    wanted = frozenset(part.strip() for part in parts if part.strip())
    if "*" in wanted:
        return EVERYTHING
    if not wanted:
        if isinstance(tags, str) and not tags.strip():
            return EVERYTHING
        raise InvalidArgument(f"tags={tags!r} names no tag; use a tag, 'a || b', or None for all messages")
    if not isinstance(tags, str) and any(TAG_SEPARATOR in tag for tag in wanted):
        raise InvalidArgument(f"tags={tags!r}: a tag cannot contain {TAG_SEPARATOR!r}")
    expression = f" {TAG_SEPARATOR} ".join(sorted(wanted))
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InvalidArgument(f"tags of {len(expression)} characters in total; at most {EXPRESSION_CHARS_MAX}")
    return TagFilter(expression, wanted)


def check_filter(condition: str | None) -> str:
    """Return a filter as sent to the broker, which checks its syntax; empty for None."""
    if condition is None:
        return ""
    if not isinstance(condition, str):
        raise InvalidArgumentType(f"filter must be a str, a condition on properties, not {type(condition).__name__}")
    if len(condition) > FILTER_CHARS_MAX:
        raise InvalidArgument(f"filter has {len(condition):,} characters; at most {FILTER_CHARS_MAX:,} are allowed")
    return check_unicode("filter", condition)
