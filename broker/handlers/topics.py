"""Topics: create, change, delete and list them, and show the offsets of their queues."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol import commands
from ...protocol.auth.permissions import TOPIC
from ...protocol.commands import (
    QUEUE_STATS_STRUCT,
    EmptyAnswer,
    GetTopicsStatsRequest,
    RowsAnswer,
    TopicInfo,
    TopicRequest,
    TopicStatsAnswer,
    TopicTotals,
    UpdateAndCreateTopicRequest,
)
from ...protocol.errors import InvalidParameter, NoPermission, TopicExistsAlready, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import check_name, is_system_topic
from ...protocol.rows import pack_rows
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX, group_of_retries
from ..requests.counters import Traffic
from ..requests.request import topic_values
from ..store import TopicConfig, WouldBlock

if TYPE_CHECKING:
    from ...protocol.commands import Command
    from ...protocol.errors import BrokerError
    from ..background.held_pulls import PullRequestHoldService
    from ..delivery.topic_changes import TopicChanges
    from ..requests.counters import Counters
    from ..requests.request import Request
    from ..store import MessageStore

_DELETED = (0, 0, 0, -1)
"""Totals of a topic that was deleted since the names were chosen: without a row, the page would seem to be the last."""
_NO_TRAFFIC = Traffic()
AS_IT_IS = -2
"""Value of ``retention_hours`` that keeps the topic's retention; a new topic then has none of its own."""


class TopicParts(NamedTuple):
    """The parts of the broker that a change of a topic needs."""

    store: MessageStore
    topic_changes: TopicChanges
    holds: PullRequestHoldService


def update_and_create_topic(
    request: Request, store: MessageStore, topic_changes: TopicChanges, holds: PullRequestHoldService
) -> None:
    """Create or change a topic; respond once the table is on disk."""
    params = decode_fields(UpdateAndCreateTopicRequest, request.frame.fields)
    parts = TopicParts(store, topic_changes, holds)
    change_topic(request, parts, params, {}, lambda: request.respond(EmptyAnswer()))


def change_topic(
    request: Request,
    parts: TopicParts,
    params: UpdateAndCreateTopicRequest,
    extra: Mapping[str, Any],
    done: Callable[[], None],
    *,
    may_shrink: bool = False,
) -> None:
    """Create or change a topic; call ``done`` once the table is on disk, or respond with the error.

    ``extra``: new values of RocketMQ's other fields; an attribute that is None is removed. ``may_shrink``: the topic
    may get fewer queues. Those above the new number keep their messages, out of reach until it grows again.
    """
    _check_own(check_name("topic", params.topic))
    _check_retention(params)
    topic_changes = parts.topic_changes
    if params.topic in topic_changes.pending:
        # From the beginning, because the pending change alters what this one is compared with.
        again = partial(change_topic, request, parts, params, extra, done, may_shrink=may_shrink)
        topic_changes.when_done(params.topic, lambda _: request.attempt(again))
        return
    old = parts.store.topics.get(params.topic)
    if old is not None and not may_shrink:
        _check_not_fewer(params, old)
    new = dataclasses.replace(
        old or TopicConfig(params.topic),
        read_queues=params.read_queues,
        write_queues=params.write_queues,
        perm=params.perm,
        order=params.order,
        extra=_merged(old.extra if old is not None else {}, extra),
    )
    if params.retention_hours != AS_IT_IS:
        new = dataclasses.replace(new, retention_hours=params.retention_hours)
    if params.retention_bytes >= 0:
        new = dataclasses.replace(new, retention_bytes=params.retention_bytes)
    # No change is pending, so the table on disk says the same already.
    if old is not None and new.to_json() == old.to_json():
        done()
    else:
        topic_changes.put(new, partial(_changed, request, parts, commands.UPDATE_AND_CREATE_TOPIC, old, new, done))


def _check_not_fewer(params: UpdateAndCreateTopicRequest, old: TopicConfig) -> None:
    """Raise if the topic would lose queues: what its groups have not read of them would be out of reach, and messages
    of one key would change their queue."""
    if params.read_queues < old.read_queues or params.write_queues < old.write_queues:
        raise TopicExistsAlready(
            f"topic {old.name} has {old.read_queues} read queues and {old.write_queues} write queues; "
            "queues can be added, but not removed: their messages would be out of reach",
            read_queues=old.read_queues,
            write_queues=old.write_queues,
        )


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return RocketMQ's other fields of a topic after a change."""
    if not new:
        return dict(old)
    attributes = {**(old.get("attributes") or {}), **new.get("attributes", {})}
    kept = {name: value for name, value in attributes.items() if value is not None}
    return {**old, **new, "attributes": kept}


def delete_topic_in_broker(
    request: Request, store: MessageStore, topic_changes: TopicChanges, holds: PullRequestHoldService
) -> None:
    """Delete a topic and its queues. The end offsets are kept, so that a topic created again continues from them."""
    params = decode_fields(TopicRequest, request.frame.fields)
    parts = TopicParts(store, topic_changes, holds)
    remove_topic(request, parts, params.topic, lambda: request.respond(EmptyAnswer()))


def remove_topic(request: Request, parts: TopicParts, topic: str, done: Callable[[], None]) -> None:
    """Delete a topic; call ``done`` when its files are gone, or respond with the error.

    Its messages that are written are acknowledged and dispatched first: those that the deletion overtakes get no units,
    and its queues would end before the offset from which the topic continues.
    """
    _check_own(topic)
    request.after_written(partial(_remove_topic, request, parts, topic, done))


def _remove_topic(request: Request, parts: TopicParts, topic: str, done: Callable[[], None]) -> None:
    topic_changes = parts.topic_changes
    if topic in topic_changes.pending:
        topic_changes.when_done(topic, lambda _: request.attempt(partial(_remove_topic, request, parts, topic, done)))
        return
    old = parts.store.topics.existing(topic)
    topic_changes.delete(topic, partial(_changed, request, parts, commands.DELETE_TOPIC_IN_BROKER, old, None, done))


def _check_own(topic: str) -> None:
    if is_system_topic(topic):
        raise NoPermission(f"topic {topic} is a system topic of the broker; it cannot be created, changed or deleted")


def _check_retention(params: UpdateAndCreateTopicRequest) -> None:
    """Raise if a retention rule would delete messages that a group still has to receive again."""
    has_rule = params.retention_hours > 0 or params.retention_bytes > 0
    if has_rule and params.topic.startswith(RETRY_TOPIC_PREFIX):
        group = group_of_retries(params.topic)
        raise InvalidParameter(
            f"topic {params.topic} holds messages that group {group} still has to receive again; it cannot have a "
            "retention of its own"
        )


def _changed(
    request: Request,
    parts: TopicParts,
    command: Command,
    old: TopicConfig | None,
    new: TopicConfig | None,
    done: Callable[[], None],
    error: BrokerError | None,
) -> None:
    if error is not None:
        request.fail(error)
        return
    config = new or old
    assert config is not None
    topic = config.name
    request.audit(command, f"topic {topic}", topic_values(old), topic_values(new))
    request.attempt(done)
    parts.holds.wake_topic(topic)


def get_all_topic_config(request: Request, store: MessageStore) -> None:
    """Return every topic that the user may see, including system topics."""
    topics = [
        TopicInfo(
            config.name,
            config.read_queues,
            config.write_queues,
            config.perm,
            config.order,
            is_system_topic(config.name),
            config.retention_hours,
            config.retention_bytes,
        )
        for config in store.topics
        if request.peer.access is None or request.peer.access.sees(TOPIC, config.name)
    ]
    request.respond(RowsAnswer(count=len(topics)), pack_rows(topics))


def get_topic_stats_info(request: Request, store: MessageStore) -> None:
    """Return both ends of each queue of a topic, and the store time of its last message."""
    params = decode_fields(TopicRequest, request.frame.fields)
    store.topics.existing(params.topic)

    def done(stats: list[tuple[int, int, int, int]]) -> None:
        body = b"".join([QUEUE_STATS_STRUCT.pack(*entry) for entry in stats])
        request.respond(TopicStatsAnswer(count=len(stats)), body)

    request.after_dispatch(
        lambda: request.read_then(lambda hot: store.queue_reads.topic_stats(params.topic, hot=hot), done)
    )


def get_topics_stats(request: Request, store: MessageStore, counters: Counters) -> None:
    """Return the figures of the next topics, by name, that the user may see."""
    params = decode_fields(GetTopicsStatsRequest, request.frame.fields)
    access = request.peer.access
    reads, produced, pulled = store.queue_reads, counters.produced, counters.pulled

    def read(hot: bool) -> tuple[int, bytes]:
        # Counting and packing thousands of queues takes too long for a turn of the event loop.
        if hot:
            raise WouldBlock
        rows = []
        for name in names:
            totals = _DELETED
            with contextlib.suppress(TopicNotExist):
                totals = reads.topic_totals(name)
            into, out = produced.by_topic.get(name, _NO_TRAFFIC), pulled.by_topic.get(name, _NO_TRAFFIC)
            rows.append(TopicTotals(name, *totals, into.messages, into.bytes, out.messages, out.bytes))
        return len(rows), pack_rows(rows)

    def done(found: tuple[int, bytes]) -> None:
        count, body = found
        request.respond(RowsAnswer(count=count), body)

    # On the loop, to which the table belongs; ``read`` runs in a thread.
    names = heapq.nsmallest(
        params.max_count,
        (
            config.name
            for config in store.topics
            if config.name > params.after and (access is None or access.sees(TOPIC, config.name))
        ),
    )
    request.after_dispatch(lambda: request.read_then(read, done))
