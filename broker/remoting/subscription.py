"""Subscriptions of RocketMQ's clients in FlintMQ's form: tags, or a filter."""

from __future__ import annotations

from ...protocol.errors import FilterIllegal
from ..delivery.groups.consumer_clients import ClientSubscription
from ..filters import compile_filter

TAG = "TAG"
SQL92 = "SQL92"
TAGS_CHARS_MAX = 16 * 1024
"""Maximum length of a subscription's tags: those of a pull that waits take at most 0.5 MiB, which count towards
``limits.held_pulls_max``. RocketMQ has no such limit."""


def tags_and_filter(subscription: ClientSubscription) -> tuple[str, str]:
    """Return the tags and the filter that a pull for a subscription selects with; both empty for all messages.

    Raises ``FilterIllegal``. The filter is not parsed yet.
    """
    expression, kind = subscription.expression, subscription.expression_type
    if kind == SQL92:
        return "", expression
    if kind != TAG:
        raise FilterIllegal(
            f"the subscription to topic {subscription.topic:.127} is of type {kind!r}; use {TAG}, for tags such as "
            f"a || b, or {SQL92}, for a condition"
        )
    if len(expression) > TAGS_CHARS_MAX:
        raise FilterIllegal(
            f"the tags of topic {subscription.topic:.127} have {len(expression):,} characters; the maximum is "
            f"{TAGS_CHARS_MAX:,}"
        )
    return " || ".join(split_tags(expression)), ""


def split_tags(expression: str) -> list[str]:
    """Return the tags in an expression; none if it means all messages."""
    tags = [tag for tag in map(str.strip, expression.split("||")) if tag]
    # A part that means all messages makes the others superfluous.
    return [] if "*" in tags else tags


def check_subscription(subscription: ClientSubscription) -> None:
    """Raise ``FilterIllegal`` unless a pull can select with the subscription."""
    _, condition = tags_and_filter(subscription)
    if condition:
        compile_filter(condition)
