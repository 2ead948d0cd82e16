"""Every metric of the broker: its name, kind, labels and meaning. ``broker/net/README.md`` shows this table.

Names follow Prometheus: base units, last in the name; ``_total`` for counters. Labels have few values, and clients
cannot invent any: only topics and groups that exist have samples. The ``process_…`` names are those of
Prometheus's own clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``name`` as in queries, for a counter with ``_total``."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: list[Metric] = []
"""All metrics in display order, which is that of their definitions."""


def _add(kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    metric = Metric(name, kind, meaning, labels)
    METRICS.append(metric)
    return metric


_counter = partial(_add, "counter")
_gauge = partial(_add, "gauge")
_histogram = partial(_add, "histogram")


BUILD_INFO = _gauge(
    "flintmq_build_info", "always 1; version, flush policy and name of the broker", "version", "flush", "name"
)
WRITABLE = _gauge("flintmq_writable", "1 while messages are accepted, 0 while they are refused: see `/readyz`")
RECOVERY = _gauge("flintmq_recovery_seconds", "time to open and recover the store at the start")
INTERPRETED_KERNELS = _gauge(
    "flintmq_interpreted_kernels", "kernels that are not compiled yet and run as plain Python, which is slow"
)

QUARANTINED_HOLES = _gauge(
    "flintmq_quarantined_holes", "damaged ranges (holes) of the CommitLog, kept in `flintmq/quarantine/`"
)
QUARANTINED_BYTES = _gauge("flintmq_quarantined_bytes", "bytes of the CommitLog in these holes")
LOST_MESSAGES = _gauge("flintmq_lost_messages", "messages that are known to have been in these holes")

PRODUCED_MESSAGES = _counter("flintmq_produced_messages_total", "messages stored", "topic")
PRODUCED_BYTES = _counter("flintmq_produced_bytes_total", "bytes of their PRODUCE bodies", "topic")
PULLED_MESSAGES = _counter("flintmq_pulled_messages_total", "records in PULL responses", "topic")
PULLED_BYTES = _counter("flintmq_pulled_bytes_total", "bytes of the bodies of PULL responses", "topic")

REQUESTS = _counter("flintmq_requests_total", "completed requests, including errors", "command")
REQUEST_SECONDS = _histogram(
    "flintmq_request_seconds",
    "from the beginning of a request to its response; for a PULL without the time that it was held",
    "command",
)
FLUSH_SECONDS = _histogram("flintmq_flush_seconds", "duration of `fdatasync` of the CommitLog")
FLUSH_STALLED = _gauge(
    "flintmq_flush_stalled_seconds", "duration so far of a flush that has exceeded `flush.stall_ms`; 0: no stall"
)
CLOCK_HELD = _gauge(
    "flintmq_clock_held_seconds",
    "difference of the system clock to the broker's clock after a jump that the broker does not follow yet; 0: none",
)
ERRORS = _counter("flintmq_errors_total", "error responses", "result")
ONE_WAY_ERRORS = _counter("flintmq_one_way_errors_total", "one-way frames that failed")

DUPLICATE_FRAMES = _counter(
    "flintmq_duplicate_frames_total", "PRODUCE frames that had been stored before and were not stored again"
)
PRODUCER_RUNS = _gauge("flintmq_producer_runs", "producer runs kept to detect duplicates: `limits.sequence_runs_max`")

CONNECTIONS = _gauge("flintmq_connections", "open connections")
CONNECTIONS_ACCEPTED = _counter("flintmq_connections_accepted_total", "connections accepted or refused")
CONNECTIONS_REFUSED = _counter("flintmq_connections_refused_total", "connections closed at once because of a limit")
AUTHENTICATIONS = _counter("flintmq_authentications_total", "attempts to authenticate: `success`, `failure`", "outcome")
TLS_FAILURES = _counter("flintmq_tls_failures_total", "connections whose TLS handshake failed")
IN_FLIGHT = _gauge("flintmq_in_flight_bytes", "bytes that have arrived and whose requests are not complete")
HELD_PULLS = _gauge("flintmq_held_pulls", "pulls that wait for messages")
HELD_SELECTIONS = _gauge(
    "flintmq_held_selection_bytes", "memory of the tags and filters of pulls that wait or search for messages"
)
SUBSCRIPTION_BYTES = _gauge(
    "flintmq_subscription_bytes", "memory of the subscriptions of all live members: `limits.subscription_bytes_max`"
)
REMOTING_CONNECTIONS = _gauge("flintmq_remoting_connections", "open connections of RocketMQ's clients")
REMOTING_HELD_PULLS = _gauge("flintmq_remoting_held_pulls", "pulls of these connections that wait for messages")
REMOTING_NAME_SERVERS = _gauge("flintmq_remoting_name_servers", "name servers of RocketMQ's in remoting.name_servers")
REMOTING_NAME_SERVERS_MISSING = _gauge(
    "flintmq_remoting_name_servers_missing", "those of them that have no registration of this broker, the primary"
)
REMOTING_CONSUMERS = _gauge(
    "flintmq_remoting_consumers",
    "RocketMQ clients in consumer groups: `sharing` the queues, or `waiting` because their group has members of "
    "FlintMQ's own kind",
    "state",
)

DELAYED_MESSAGES = _gauge(
    "flintmq_delayed_messages", "messages that wait for their delivery by `level` or by `time`", "kind"
)
DELAYED_DELIVERED = _counter(
    "flintmq_delayed_delivered_total", "delayed messages that were delivered, or parked", "kind"
)
DELAY_LATENESS = _histogram(
    "flintmq_delay_lateness_seconds", "from the time a message was due until it was stored for consumers", "kind"
)
DELAYED_PARKED = _counter(
    "flintmq_delayed_parked_total", "delayed messages that could not be delivered and are in `rmq_sys_flintmq_parked`"
)
DELAYED_UNREADABLE = _counter(
    "flintmq_delayed_unreadable_total", "delayed messages whose records in the log are no longer intact"
)

TOPICS = _gauge("flintmq_topics", "topics, including system topics")
QUEUES = _gauge("flintmq_queues", "queues that have had a message")
GROUPS = _gauge(
    "flintmq_groups", "consumer groups; `empty`: no members, `rebalancing`: queues are still moving", "state"
)
COMMITTED_OFFSETS = _gauge(
    "flintmq_committed_offsets", "committed offsets of groups and of broadcasting members, one per queue"
)
GROUP_MEMBERS = _gauge("flintmq_group_members", "live members of groups that have any", "group")
GROUP_LAG = _gauge(
    "flintmq_group_lag_messages",
    "messages that the group still has to read, including those that it would read of queues without a committed "
    "offset",
    "group",
    "topic",
)
GROUP_LAG_UNKNOWN = _gauge(
    "flintmq_group_lag_unknown_queues",
    "queues with messages that the lag does not count: the group has not read the topic yet, and its first member will "
    "decide where to start",
    "group",
    "topic",
)
GROUP_IN_FLIGHT = _gauge(
    "flintmq_group_in_flight_messages", "messages of the lag that are with a member, or popped", "group", "topic"
)
GROUP_DELAYED = _gauge(
    "flintmq_group_delayed_messages", "messages that wait for their next delivery; not in the lag", "group"
)
DEAD_LETTERS = _gauge(
    "flintmq_dead_letters", "dead letters of the group that were neither sent again nor purged", "group"
)
REBALANCES = _counter("flintmq_group_rebalances_total", "rebalances: new distributions of the queues of a group")
RETRIED_MESSAGES = _counter(
    "flintmq_retried_messages_total", "messages that the group sent back for another delivery", "group"
)
DEAD_MESSAGES = _counter("flintmq_dead_messages_total", "messages of the group that became dead letters", "group")
EXPIRED_LEASES = _counter(
    "flintmq_expired_leases_total", "popped messages that the group's consumers did not settle in time", "group"
)
OFFSETS_MOVED = _counter(
    "flintmq_offsets_moved_total", "moves of a group's offset because the messages to read next had expired"
)

BEHIND_BYTES = _gauge(
    "flintmq_behind_bytes",
    "CommitLog bytes that are not on disk (`flush`), not in queues and index (`reput`), or to be dispatched again "
    "after a crash (`checkpoint`)",
    "stage",
)
BEHIND_SECONDS = _gauge(
    "flintmq_behind_seconds", "age of the oldest of these bytes, if it is a second or more", "stage"
)
SEGMENTS = _gauge("flintmq_segments", "files of `commitlog`, `consumequeue`, `index`", "kind")
STORE_BYTES = _gauge("flintmq_store_bytes", "bytes in these files, without preallocated space", "kind")
DISK_FREE = _gauge("flintmq_disk_free_bytes", "free space of the store's file system")
DISK_TOTAL = _gauge("flintmq_disk_total_bytes", "size of the store's file system, without the reserve for root")
DISK_ROOM = _gauge("flintmq_disk_room_bytes", "bytes that can be written before messages are refused")
DISK_RUNWAY = _gauge(
    "flintmq_disk_runway_seconds",
    "time until messages are refused at the write rate of the last minute; +Inf while nothing is written",
)

TRANSACTIONS_OPEN = _gauge("flintmq_transactions_open", "half messages of transactions that have not ended")
TRANSACTIONS_OPENED = _counter("flintmq_transactions_opened_total", "half messages stored")
TRANSACTIONS_ENDED = _counter(
    "flintmq_transactions_ended_total", "transactions that ended: `commit`, `rollback`, `parked`", "outcome"
)
TRANSACTIONS_PARKED = _gauge(
    "flintmq_transactions_parked", "parked messages, including those that were delivered later"
)
TRANSACTION_CHECKS = _counter(
    "flintmq_transaction_checks_total",
    "checks of open transactions: `asked`, or `nobody` if no producer of the group was alive",
    "result",
)

PREPARED_MESSAGES = _gauge("flintmq_prepared_messages", "prepared messages that are not in their topics yet")
PREPARED_ATTEMPTS = _gauge("flintmq_prepared_attempts", "attempts with prepared messages that have not ended")
PREPARED_ENDED = _counter(
    "flintmq_prepared_attempts_ended_total",
    "attempts that ended: `commit`, `abort` (also those replaced by another attempt), `expire`",
    "outcome",
)

REPLICA_ROLE = _gauge(
    "flintmq_replica_role",
    "1 for the role of this member of a replica set, 0 for the others: `follower`, `elected` (it begins to lead), "
    "`primary`, `stopped` (it takes no part: `/readyz` has the reason). A broker on its own has no "
    "`flintmq_replica_` series",
    "role",
)
REPLICA_EPOCH = _gauge("flintmq_replica_epoch", "epoch of the set's configuration; each primary begins a new one")
REPLICA_MEMBERS = _gauge("flintmq_replica_members", "members of the set")
REPLICA_IN_SYNC = _gauge("flintmq_replica_in_sync_members", "members in sync, the primary included")
REPLICA_MIN_IN_SYNC = _gauge(
    "flintmq_replica_min_in_sync_members", "members that must be in sync for messages to be accepted"
)
REPLICA_UNCONFIRMED = _gauge(
    "flintmq_replica_unconfirmed_bytes", "bytes at the end of this member's log that are not known to be on all in sync"
)
REPLICA_LAG_BYTES = _gauge(
    "flintmq_replica_lag_bytes",
    "bytes of the log that a connected follower has not on disk; from the primary",
    "member",
)
REPLICA_LAG_SECONDS = _gauge(
    "flintmq_replica_lag_seconds",
    "seconds for which a follower has not had everything; -1: it is not connected; from the primary",
    "member",
)

ARCHIVE_STATE = _gauge(
    "flintmq_archive_state",
    "1 for the state of the archive's writer, 0 for the others: `starting`, `running`, `unavailable` (the bucket is "
    "tried again), `stopped` (a person has to decide). A broker without an archive has no `flintmq_archive_` series",
    "state",
)
ARCHIVE_BEHIND = _gauge("flintmq_archive_behind_bytes", "bytes of the log that are confirmed and not archived")
ARCHIVE_OLDEST = _gauge(
    "flintmq_archive_oldest_age_seconds", "age of the oldest message that is not archived, at most; 0: all are"
)
ARCHIVE_GAPS = _gauge("flintmq_archive_gap_bytes", "bytes of the log that are missing from the archive for good")
ARCHIVE_RAW = _counter("flintmq_archive_raw_bytes_total", "bytes of the log that were archived")
ARCHIVE_STORED = _counter("flintmq_archive_stored_bytes_total", "bytes of the objects that hold them")
ARCHIVE_REQUESTS = _counter(
    "flintmq_archive_requests_total",
    "requests to the bucket, those that were repeated included: `create`, `put`, `get`, `range`, `list`, `delete`",
    "verb",
)
ARCHIVE_FAILURES = _counter("flintmq_archive_failures_total", "requests and steps of the archive's writer that failed")

PROCESS_CPU = _counter("process_cpu_seconds_total", "CPU time of the broker")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "resident memory of the broker")
PROCESS_VIRTUAL = _gauge("process_virtual_memory_bytes", "address space of the broker, including the mapped CommitLog")
PROCESS_FDS = _gauge("process_open_fds", "open files and connections")
PROCESS_FDS_MAX = _gauge("process_max_fds", "maximum of open files and connections; -1: no limit")
PROCESS_STARTED = _gauge("process_start_time_seconds", "start time of the broker, seconds since 1970")
