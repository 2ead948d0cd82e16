"""Collects the broker's counters for a scrape.

It runs in a reader thread while the event loop continues. Therefore it only reads, and it copies every container that
the loop may change; such a copy is atomic under the GIL.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...protocol.commands import COMMANDS, PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID
from ...protocol.errors import ERRORS_BY_CODE, RESULT_NAMES
from ...protocol.storage.archive.objects import VERBS
from ...protocol.storage.arrays.jit import interpreted_count
from ...protocol.storage.delivery import (
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_of_retries,
    old_pop_retry_topic,
)
from ...protocol.storage.layout import INDEX_ENTRY_BYTES
from ..archive import ARCHIVE_STATES
from ..delivery.groups.group import EMPTY, STABLE, STATES
from ..handlers.broker_admin import VERSION
from ..latency import BOUNDS_S
from ..replication.core.replica import Role
from ..requests.broker import Broker
from ..store.queues import ConsumeQueue
from . import catalog
from .catalog import Metric

# ---- Pacing of long loops in a thread that runs beside the event loop.

T = TypeVar("T")

ITEMS = 512
"""Number of items between two pauses; a loop over as many takes less than half a millisecond."""
PAUSE_S = 0.0001


def giving_way(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a short pause after every ``ITEMS``.

    The event loop needs the GIL several times per turn. A thread that does not release it voluntarily keeps it for the
    switch interval, half a millisecond, each time.
    """
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS:
            time.sleep(PAUSE_S)


# ---- Encoder for Prometheus's text format, version 0.0.4: metric families as lines of samples.
#
# prometheus-client is not used for this, because several families have one sample per topic: 6,000 samples
# take 8 ms here and 62 to 69 ms there, in a thread that competes with the event loop for the GIL. With a
# thousand topics and 20,000 messages per second on two busy cores (``scripts/bench/run --case metrics``), the
# median scrape took 53 to 78 ms with this module and 132 ms with the library; p99 of another client's request
# during a scrape was 6 to 9 ms, and 12 with the library. The tests parse the text with that library.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Rows = Iterable[tuple[str, float]]
"""Labels as returned by ``labels``, and the value."""

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_BOUNDS = (*map(str, BOUNDS_S), "+Inf")


def labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return ``{name="value",…}``, or "" without names."""
    if not names:
        return ""
    pairs = [f'{name}="{value}"' for name, value in zip(names, map(_escaped, values), strict=True)]
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value


class Exposition:
    """A text that collects metric families; ``text`` returns it."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self) -> bytes:
        return "".join(self._lines).encode()

    def add(self, metric: Metric, rows: Rows) -> None:
        """Add a counter or gauge with one sample per row."""
        name = metric.name
        self._head(metric)
        self._lines += [f"{name}{pairs} {value}\n" for pairs, value in giving_way(rows)]

    def add_one(self, metric: Metric, value: float) -> None:
        """Add a counter or gauge without labels."""
        self.add(metric, (("", value),))

    def add_by(self, metric: Metric, figures: Iterable[tuple[str, float]]) -> None:
        """Add a counter or gauge with one sample for each value of its only label."""
        self.add(metric, ((labels(metric.labels, (value,)), figure) for value, figure in figures))

    def add_latencies(self, metric: Metric, rows: Iterable[tuple[Sequence[str], Sequence[int], float]]) -> None:
        """Add a histogram; each row has the label values, the count of each bucket, and the sum in seconds."""
        self._head(metric)
        for values, counts, seconds in rows:
            total = 0
            for bound, count in zip(_BOUNDS, counts, strict=True):
                total += count
                pairs = labels((*metric.labels, "le"), (*values, bound))
                self._lines.append(f"{metric.name}_bucket{pairs} {total}\n")
            pairs = labels(metric.labels, values)
            self._lines.append(f"{metric.name}_sum{pairs} {seconds!r}\n{metric.name}_count{pairs} {total}\n")

    def _head(self, metric: Metric) -> None:
        self._lines.append(f"# HELP {metric.name} {metric.meaning}\n# TYPE {metric.name} {metric.kind}\n")


# ---- Metrics of consumer groups. Like the collector, this runs in a reader thread and only reads.

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


# ---- Resource usage of the process, from Linux's ``/proc``, by the names of prometheus-client's
# ``ProcessCollector``.
#
# That class would be the broker's only use of the library (see ``exposition``).

_PROC = Path("/proc")
_FDS = "/proc/self/fd"
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Current resource usage of this process. ``started_at``: seconds since 1970; ``max_fds``: -1 for no limit."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    open_fds: int
    max_fds: int
    started_at: float


def process_figures() -> ProcessFigures | None:
    """Return the figures, or None on a system without such a ``/proc``."""
    try:
        # The process name, in parentheses, may contain anything; the part after it begins with field 3.
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        # Since Linux 6.2 the folder's size is the number of descriptors; listing thousands takes milliseconds.
        open_fds = os.stat(_FDS).st_size or len(os.listdir(_FDS))  # noqa: PTH116, PTH208
        booted_at = next(
            int(line.split()[1]) for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime ")
        )
    except (OSError, StopIteration):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessFigures(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        virtual_bytes=int(fields[20]),
        open_fds=open_fds,
        max_fds=-1 if most == resource.RLIM_INFINITY else most,
        started_at=booted_at + int(fields[19]) / _TICKS_A_SECOND,
    )


TIMED_COMMANDS = (PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID)
"""Commands with a latency histogram."""


def metrics_text(broker: Broker) -> bytes:
    """Return all metrics of ``catalog`` in Prometheus's text format.

    With a thousand topics this takes milliseconds, so it must not run on the loop.
    """
    out = Exposition()
    _add_broker(out, broker)
    _add_traffic(out, broker)
    _add_requests(out, broker)
    _add_waiting(out, broker)
    _add_delays(out, broker)
    _add_store(out, broker)
    _add_disk(out, broker)
    _add_transactions(out, broker)
    _add_replica(out, broker)
    _add_archive(out, broker)
    _add_process(out)
    return out.text()


def _add_broker(out: Exposition, broker: Broker) -> None:
    info = (VERSION, broker.settings.flush.policy, broker.settings.server.name)
    out.add(catalog.BUILD_INFO, [(labels(catalog.BUILD_INFO.labels, info), 1)])
    out.add_one(catalog.WRITABLE, 0 if broker.write_refusal() else 1)
    out.add_one(catalog.RECOVERY, broker.recovery_seconds)
    out.add_one(catalog.INTERPRETED_KERNELS, interpreted_count())
    quarantine = broker.store.quarantine
    out.add_one(catalog.QUARANTINED_HOLES, len(quarantine.ranges))
    out.add_one(catalog.QUARANTINED_BYTES, quarantine.bytes)
    out.add_one(catalog.LOST_MESSAGES, quarantine.lost_messages)


def _add_traffic(out: Exposition, broker: Broker) -> None:
    topics = [(topic.name, labels(("topic",), (topic.name,))) for topic in giving_way(broker.store.topics)]
    for direction, messages, body_bytes in (
        (broker.counters.produced, catalog.PRODUCED_MESSAGES, catalog.PRODUCED_BYTES),
        (broker.counters.pulled, catalog.PULLED_MESSAGES, catalog.PULLED_BYTES),
    ):
        of = direction.by_topic.get
        rows = [(pairs, of(name)) for name, pairs in giving_way(topics)]
        out.add(messages, ((pairs, row.messages if row else 0) for pairs, row in rows))
        out.add(body_bytes, ((pairs, row.bytes if row else 0) for pairs, row in rows))


def _add_requests(out: Exposition, broker: Broker) -> None:
    counters = broker.counters
    counted = {code: list(latencies.counts) for code, latencies in counters.latencies.items()}
    out.add_by(catalog.REQUESTS, ((COMMANDS[code].name, sum(counts)) for code, counts in counted.items()))
    out.add_latencies(
        catalog.REQUEST_SECONDS,
        (
            ((command.name,), counted[command.code], counters.latencies[command.code].seconds)
            for command in TIMED_COMMANDS
        ),
    )
    flush = broker.flush.latencies
    out.add_latencies(catalog.FLUSH_SECONDS, [((), list(flush.counts), flush.seconds)])
    out.add_one(catalog.FLUSH_STALLED, broker.stall.seconds())
    out.add_one(catalog.CLOCK_HELD, broker.store.clock.held_ms() / 1000)
    errors = {known.name: 0 for known in ERRORS_BY_CODE.values()}
    for code, count in counters.errors.copy().items():
        error = ERRORS_BY_CODE.get(code)
        errors[error.name if error else RESULT_NAMES.get(code, str(code))] = count
    out.add_by(catalog.ERRORS, errors.items())
    out.add_one(catalog.ONE_WAY_ERRORS, counters.one_way_errors)
    out.add_one(catalog.DUPLICATE_FRAMES, counters.duplicates)
    out.add_one(catalog.PRODUCER_RUNS, broker.sequences.runs)


def _add_waiting(out: Exposition, broker: Broker) -> None:
    out.add_one(catalog.CONNECTIONS, broker.connections)
    out.add_one(catalog.CONNECTIONS_ACCEPTED, broker.counters.connections_accepted)
    out.add_one(catalog.CONNECTIONS_REFUSED, broker.counters.connections_refused)
    authenticator = broker.authenticator
    outcomes = {
        "success": authenticator.successes if authenticator else 0,
        "failure": authenticator.failures if authenticator else 0,
    }
    out.add_by(catalog.AUTHENTICATIONS, outcomes.items())
    out.add_one(catalog.TLS_FAILURES, broker.counters.tls_failures)
    out.add_one(catalog.IN_FLIGHT, broker.in_flight.bytes)
    out.add_one(catalog.HELD_PULLS, len(broker.holds))
    out.add_one(catalog.HELD_SELECTIONS, broker.selections.bytes)
    out.add_one(catalog.SUBSCRIPTION_BYTES, broker.groups.subscription_memory.bytes)
    remoting = broker.remoting_figures()
    out.add_one(catalog.REMOTING_CONNECTIONS, remoting.connections)
    out.add_one(catalog.REMOTING_HELD_PULLS, remoting.held_pulls)
    out.add_one(catalog.REMOTING_NAME_SERVERS, remoting.name_servers)
    out.add_one(catalog.REMOTING_NAME_SERVERS_MISSING, remoting.name_servers_missing)
    sharing, waiting = broker.groups.clients.count()
    out.add_by(catalog.REMOTING_CONSUMERS, {"sharing": sharing, "waiting": waiting}.items())


def _add_delays(out: Exposition, broker: Broker) -> None:
    delays = broker.delays
    waiting = {
        "level": sum(level.pending for level in list(delays.levels.levels.values())),
        "time": delays.timers.state.pending,
    }
    figures = {"level": delays.levels.figures, "time": delays.timers.figures}
    out.add_by(catalog.DELAYED_MESSAGES, waiting.items())
    out.add_by(catalog.DELAYED_DELIVERED, ((kind, each.delivered) for kind, each in figures.items()))
    out.add_latencies(
        catalog.DELAY_LATENESS,
        (((kind,), list(each.lateness.counts), each.lateness.seconds) for kind, each in figures.items()),
    )
    out.add_one(catalog.DELAYED_PARKED, delays.deliverer.parked)
    out.add_one(catalog.DELAYED_UNREADABLE, delays.deliverer.unreadable)


def _add_store(out: Exposition, broker: Broker) -> None:
    store = broker.store
    out.add_one(catalog.TOPICS, len(store.topics))
    out.add_one(catalog.QUEUES, len(store.queues.rows))
    add_groups(out, broker)
    behind = broker.stats.lags()
    out.add_by(catalog.BEHIND_BYTES, ((stage, count) for stage, (count, _) in behind.items()))
    out.add_by(catalog.BEHIND_SECONDS, ((stage, seconds) for stage, (_, seconds) in behind.items()))
    log_files, index_files = store.commitlog.queue.files, list(store.index.files)
    queues = [queue.size() for queue in giving_way(store.queues)]
    counts = (len(log_files), sum(files for files, _ in queues), len(index_files))
    used = (  # without preallocated space
        store.write_offset - log_files[0].start_offset if log_files else 0,
        sum(size for _, size in queues),
        sum(file.entries_at + INDEX_ENTRY_BYTES * file.index_count for file in index_files),
    )
    kinds = ("commitlog", "consumequeue", "index")
    out.add_by(catalog.SEGMENTS, zip(kinds, counts, strict=True))
    out.add_by(catalog.STORE_BYTES, zip(kinds, used, strict=True))


def _add_transactions(out: Exposition, broker: Broker) -> None:
    transactions, checks = broker.transactions, broker.transaction_checks
    out.add_one(catalog.TRANSACTIONS_OPEN, len(transactions.table))
    out.add_one(catalog.TRANSACTIONS_OPENED, transactions.opened)
    out.add_by(catalog.TRANSACTIONS_ENDED, transactions.ended.items())
    out.add_one(catalog.TRANSACTIONS_PARKED, transactions.history.parked_count())
    out.add_by(catalog.TRANSACTION_CHECKS, {"asked": checks.asked, "nobody": checks.unasked}.items())
    staged = broker.staged
    out.add_one(catalog.PREPARED_MESSAGES, staged.table.messages)
    out.add_one(catalog.PREPARED_ATTEMPTS, len(staged.table.stages))
    out.add_by(catalog.PREPARED_ENDED, staged.outcomes.items())


def _add_disk(out: Exposition, broker: Broker) -> None:
    stats = broker.stats
    out.add_one(catalog.DISK_FREE, stats.disk.free_bytes)
    out.add_one(catalog.DISK_TOTAL, stats.disk.used_bytes + stats.disk.free_bytes)
    out.add_one(catalog.DISK_ROOM, stats.room_bytes())
    out.add_one(catalog.DISK_RUNWAY, stats.runway_seconds())


def _add_replica(out: Exposition, broker: Broker) -> None:
    member = broker.member
    if member is None:
        return
    found = member.status()
    status, rows = found.answer, found.rows
    out.add_by(catalog.REPLICA_ROLE, ((role.value, int(role.value == status.role)) for role in Role))
    out.add_one(catalog.REPLICA_EPOCH, status.epoch)
    out.add_one(catalog.REPLICA_MEMBERS, len(rows))
    out.add_one(catalog.REPLICA_IN_SYNC, sum(row.in_sync for row in rows))
    out.add_one(catalog.REPLICA_MIN_IN_SYNC, status.min_in_sync)
    out.add_one(catalog.REPLICA_UNCONFIRMED, status.end - status.confirmed)
    leads = status.role == Role.PRIMARY.value
    followers = [row for row in rows if leads and row.member != status.member]
    out.add_by(
        catalog.REPLICA_LAG_BYTES,
        ((row.member, max(status.end - row.flushed, 0)) for row in followers if row.connected and row.flushed >= 0),
    )
    seconds = ((row.member, row.behind_ms / 1000 if row.connected else -1) for row in followers)
    out.add_by(catalog.REPLICA_LAG_SECONDS, seconds)


def _add_archive(out: Exposition, broker: Broker) -> None:
    archive = broker.archive
    if archive is None:
        return
    manifest, counts = archive.manifest, archive.counts
    out.add_by(catalog.ARCHIVE_STATE, ((state, int(state == archive.state)) for state in ARCHIVE_STATES))
    out.add_one(catalog.ARCHIVE_BEHIND, archive.backlog())
    out.add_one(catalog.ARCHIVE_OLDEST, archive.oldest_age_ms(broker.store.clock.seen_ms()) / 1000)
    out.add_one(catalog.ARCHIVE_GAPS, sum(gap.end - gap.start for gap in manifest.gaps) if manifest is not None else 0)
    out.add_one(catalog.ARCHIVE_RAW, counts.raw_bytes)
    out.add_one(catalog.ARCHIVE_STORED, counts.stored_bytes)
    requests = archive.requests()
    out.add_by(catalog.ARCHIVE_REQUESTS, ((verb, requests.get(verb, 0)) for verb in VERBS))
    out.add_one(catalog.ARCHIVE_FAILURES, counts.failures)


def _add_process(out: Exposition) -> None:
    figures = process_figures()
    if figures is None:
        return
    out.add_one(catalog.PROCESS_CPU, figures.cpu_seconds)
    out.add_one(catalog.PROCESS_RESIDENT, figures.resident_bytes)
    out.add_one(catalog.PROCESS_VIRTUAL, figures.virtual_bytes)
    out.add_one(catalog.PROCESS_FDS, figures.open_fds)
    out.add_one(catalog.PROCESS_FDS_MAX, figures.max_fds)
    out.add_one(catalog.PROCESS_STARTED, figures.started_at)
