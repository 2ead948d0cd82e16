"""Shell completion of topics, groups, settings and contexts. It never reports an error and never takes long."""

from __future__ import annotations

import re
from collections.abc import Iterator

from click import Context
from click.shell_completion import CompletionItem

from ...protocol.errors import FlintError
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ..operator.display import shown_name
from .settings import COMMON, BrokerChoice

_PLAIN = re.compile(r"[a-zA-Z0-9_.@:/%+-]+")
"""Decoded names that a shell takes literally: it does not quote completions."""
COMPLETION_SECONDS = 0.5
"""Seconds to wait for the broker; without a response, nothing is completed."""


def _settings(ctx: Context) -> BrokerChoice:
    settings = BrokerChoice(may_ask=False)
    context: Context | None = ctx
    while context is not None:  # the option nearest to the word overrides
        for name in COMMON:
            if getattr(settings, name) is None:
                setattr(settings, name, context.params.get(name))
        context = context.parent
    settings.timeout = COMPLETION_SECONDS
    settings.quiet = True
    return settings


def _beginning(incomplete: str, *names: str) -> Iterator[str]:
    """Yield the names that begin with ``incomplete``: real ones, or else as people see them."""
    for name in names:
        if name.startswith(incomplete):
            yield name
        elif (shown := shown_name(name)).startswith(incomplete) and _PLAIN.fullmatch(shown):
            yield shown


def complete_topics(ctx: Context, incomplete: str) -> list[CompletionItem]:
    """Return the topics that begin with ``incomplete``; the broker's own topics only if something has been typed."""
    try:
        with _settings(ctx).admin() as admin:
            topics = admin.topics(system=True)
    except (FlintError, OSError):
        return []
    visible = [name for name, info in topics.items() if incomplete or not info.system]
    return [CompletionItem(name) for name in _beginning(incomplete, *visible)]


def complete_groups(ctx: Context, incomplete: str) -> list[CompletionItem]:
    """Return the consumer groups that begin with ``incomplete``."""
    try:
        with _settings(ctx).admin() as admin:
            groups = admin.groups()
    except (FlintError, OSError):
        return []
    return [CompletionItem(name, help=info.state) for info in groups for name in _beginning(incomplete, info.group)]


def complete_dead_letter_groups(ctx: Context, incomplete: str) -> list[CompletionItem]:
    """Return the groups that have or had dead letters and begin with ``incomplete``."""
    try:
        with _settings(ctx).admin() as admin:
            topics = admin.topics()
    except (FlintError, OSError):
        return []
    prefix = DEAD_LETTER_TOPIC_PREFIX
    groups = [topic.removeprefix(prefix) for topic in sorted(topics) if topic.startswith(prefix)]
    return [CompletionItem(name) for name in _beginning(incomplete, *groups)]


def complete_settings(ctx: Context, incomplete: str, *, to_set: bool) -> list[CompletionItem]:
    """Return the settings that begin with ``incomplete``; ``to_set``: only those that can be changed, as ``NAME=``."""
    try:
        with _settings(ctx).admin() as admin:
            found = admin.settings()
    except (FlintError, OSError):
        return []
    return [
        CompletionItem(f"{each.name}=" if to_set else each.name, help=f"now {each.value}")
        for each in found
        if each.name.startswith(incomplete) and (each.hot or not to_set)
    ]


def complete_contexts(incomplete: str) -> list[CompletionItem]:
    """Return the contexts that begin with ``incomplete``."""
    from .contexts import Contexts

    try:
        contexts = Contexts.load()
    except FlintError:
        return []
    return [
        CompletionItem(name, help=broker)
        for name, broker in sorted(contexts.brokers.items())
        if name.startswith(incomplete)
    ]
