"""Metrics of consumer groups. Like the collector, this runs in a reader thread and only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from ...protocol.storage.delivery import (
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_of_retries,
    old_pop_retry_topic,
)
from ..delivery.groups.group import EMPTY, STABLE, STATES
from ..requests.broker import Broker
from ..store.queue.consume_queue import ConsumeQueue
from . import catalog
from .catalog import Metric
from .exposition import Exposition, Rows, labels
from .pace import giving_way

Figures: TypeAlias = dict[tuple[str, str], int]
"""Values by group and topic."""


def add_groups(out: Exposition, broker: Broker) -> None:
    """Add all metrics of groups. Only groups that exist have samples, which bounds their number."""
    committed = list(giving_way(broker.store.consumer_offsets.rows()))
    running = list(broker.groups.groups.values())
    states = Counter(dict.fromkeys(STATES, 0))
    states.update(group.state for group in giving_way(running))
    sharing = broker.groups.clients.all_sharing()
    states[STABLE] += len(sharing)
    # All groups that exist, without those that have live consumers.
    states[EMPTY] = len(broker.groups.group_names(giving_way(committed))) - (
        len(running) + len(sharing) - states[EMPTY]
    )
    out.add_by(catalog.GROUPS, states.items())
    out.add_one(catalog.COMMITTED_OFFSETS, len(broker.store.consumer_offsets))
    members = [(group.name, len(group.members)) for group in running]
    members += [(group.name, len(group.clients)) for group in sharing]
    out.add_by(catalog.GROUP_MEMBERS, members)
    lags, unknown = _lags(broker)
    out.add(catalog.GROUP_LAG, _by_topic(catalog.GROUP_LAG, lags))
    out.add(catalog.GROUP_LAG_UNKNOWN, _by_topic(catalog.GROUP_LAG_UNKNOWN, unknown))
    out.add(catalog.GROUP_IN_FLIGHT, _by_topic(catalog.GROUP_IN_FLIGHT, _in_flight(broker, lags)))
    out.add_by(catalog.GROUP_DELAYED, _delayed(broker, lags).items())
    out.add_by(catalog.DEAD_LETTERS, _dead_letters(broker))
    out.add_one(catalog.REBALANCES, broker.groups.rebalances)
    sent_back = broker.counters.sent_back.copy()
    out.add_by(catalog.RETRIED_MESSAGES, ((group, retried) for group, (retried, _) in sent_back.items()))
    out.add_by(catalog.DEAD_MESSAGES, ((group, dead) for group, (_, dead) in sent_back.items()))
    expired = dict.fromkeys(sent_back, 0) | broker.counters.expired_leases.copy()
    out.add_by(catalog.EXPIRED_LEASES, expired.items())
    out.add_one(catalog.OFFSETS_MOVED, broker.groups.offsets_moved)


def _by_topic(metric: Metric, figures: Figures) -> Rows:
    return ((labels(metric.labels, names), figure) for names, figure in figures.items())


def _lags(broker: Broker) -> tuple[Figures, Figures]:
    """Return the lags, and the numbers of queues with messages whose lag is not known.

    Topics that do not exist have no lag, and neither has a queue that is empty or was set back by a deletion. A group's
    dead letters are not part of its lag, because it does not read them.
    """
    store = broker.store
    lags: Figures = {}
    unknown: Figures = {}
    for group, topic, offsets, from_first in giving_way(broker.groups.all_progress()):
        config = store.topics.get(topic)
        if config is None or topic == dead_letter_topic(group):
            continue
        lag = unknown_queues = 0
        for queue_id, queue in list(store.queues.by_topic.get(topic, {}).items()):
            if queue_id >= config.queues:
                continue  # out of reach until the topic has as many queues again
            next_offset = offsets.get(queue_id)
            is_read = queue_id < config.read_queues
            if next_offset is not None or (from_first and is_read):
                # ``min_hint``, because messages that retention has deleted do not count as lag.
                lag += _behind(queue, max(next_offset or 0, queue.min_hint))
            elif is_read and _behind(queue, queue.min_hint):
                unknown_queues += 1
        lags[group, topic], unknown[group, topic] = lag, unknown_queues
    return lags, unknown


def _behind(queue: ConsumeQueue, next_offset: int) -> int:
    return max(queue.max_offset - next_offset, 0)


def _in_flight(broker: Broker, lags: Figures) -> Figures:
    """Return the messages that are with a member, or popped, at most the lag, for groups that have members or pop."""
    groups, clients = broker.groups.groups, broker.groups.clients
    found = {key: 0 for key in lags if key[0] in groups or clients.sharing(key[0]) is not None}
    committed_of = broker.store.consumer_offsets.committed_of
    for (name, topic, queue_id), pulled in giving_way(broker.groups.pulled.copy().items()):
        group, shared = groups.get(name), clients.sharing(name)
        held = group.held if group is not None else shared.pulled_by if shared is not None else {}
        committed = committed_of(name, topic, queue_id)
        if committed is None or (topic, queue_id) not in held or (name, topic) not in found:
            continue
        found[name, topic] += max(pulled - committed, 0)
    for queue, state in giving_way(broker.pops.table.states()):
        if (key := (queue.group, queue.topic)) in lags:
            found[key] = found.get(key, 0) + len(state.open)
    return {key: min(count, lags[key]) for key, count in found.items()}


def _delayed(broker: Broker, lags: Figures) -> dict[str, int]:
    found = dict.fromkeys(list(broker.groups.groups), 0)
    owners = {old_pop_retry_topic(group, topic): group for group, topic in lags}
    for topic, count in broker.delays.levels.topics.copy().items():
        if topic.startswith(RETRY_TOPIC_PREFIX):
            group = owners.get(topic, group_of_retries(topic))
            found[group] = found.get(group, 0) + count
    return found


def _dead_letters(broker: Broker) -> Iterator[tuple[str, int]]:
    store = broker.store
    for config in giving_way(store.topics):
        if config.name.startswith(DEAD_LETTER_TOPIC_PREFIX):
            group = config.name.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            done = store.consumer_offsets.committed(group, config.name)
            queues = list(store.queues.by_topic.get(config.name, {}).items())
            waiting = sum(_behind(queue, max(done.get(queue_id, 0), queue.min_hint)) for queue_id, queue in queues)
            yield group, waiting
