"""Collects the broker's counters for a scrape.

It runs in a reader thread while the event loop continues. Therefore it only reads, and it copies every container that
the loop may change; such a copy is atomic under the GIL.
"""

from __future__ import annotations

from ...protocol.commands import COMMANDS, PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID
from ...protocol.errors import ERRORS_BY_CODE, RESULT_NAMES
from ..handlers.hello import VERSION
from ..replication.core.replica import Role
from ..requests.broker import Broker
from ..store.sizes import store_sizes
from . import catalog
from .exposition import Exposition, labels
from .group_figures import add_groups
from .pace import giving_way
from .process import process_figures

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
    _add_process(out)
    return out.text()


def _add_broker(out: Exposition, broker: Broker) -> None:
    info = (VERSION, broker.settings.flush.policy, broker.settings.server.name)
    out.add(catalog.BUILD_INFO, [(labels(catalog.BUILD_INFO.labels, info), 1)])
    out.add_one(catalog.WRITABLE, 0 if broker.write_refusal() else 1)
    out.add_one(catalog.RECOVERY, broker.recovery_seconds)
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
    out.add_one(catalog.DELAYED_PARKED, delays.redeliverer.parked)
    out.add_one(catalog.DELAYED_UNREADABLE, delays.redeliverer.unreadable)


def _add_store(out: Exposition, broker: Broker) -> None:
    store = broker.store
    out.add_one(catalog.TOPICS, len(store.topics))
    out.add_one(catalog.QUEUES, len(store.queues.rows))
    add_groups(out, broker)
    behind = broker.stats.lags()
    out.add_by(catalog.BEHIND_BYTES, ((stage, count) for stage, (count, _) in behind.items()))
    out.add_by(catalog.BEHIND_SECONDS, ((stage, seconds) for stage, (_, seconds) in behind.items()))
    sizes = store_sizes(store, giving_way(store.queues))
    out.add_by(catalog.SEGMENTS, ((kind, size.files) for kind, size in sizes.items()))
    out.add_by(catalog.STORE_BYTES, ((kind, size.bytes) for kind, size in sizes.items()))


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
    status = member.status()
    out.add_by(catalog.REPLICA_ROLE, ((role.value, int(role.value == status.role)) for role in Role))
    out.add_one(catalog.REPLICA_EPOCH, status.epoch)
    out.add_one(catalog.REPLICA_MEMBERS, len(status.rows))
    out.add_one(catalog.REPLICA_IN_SYNC, sum(row.in_sync for row in status.rows))
    out.add_one(catalog.REPLICA_MIN_IN_SYNC, status.min_in_sync)
    out.add_one(catalog.REPLICA_UNCONFIRMED, status.end - status.confirmed)
    leads = status.role == Role.PRIMARY.value
    followers = [row for row in status.rows if leads and row.member != member.identity.member]
    out.add_by(
        catalog.REPLICA_LAG_BYTES,
        ((row.member, max(status.end - row.flushed, 0)) for row in followers if row.connected and row.flushed >= 0),
    )
    seconds = ((row.member, row.behind_ms / 1000 if row.connected else -1) for row in followers)
    out.add_by(catalog.REPLICA_LAG_SECONDS, seconds)


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
