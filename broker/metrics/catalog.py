"""Every metric of the broker: its name, kind, labels and meaning. ``broker/net/README.md`` shows this table.

Names follow Prometheus: base units, last in the name; ``_total`` for counters. Labels have few values, and clients
cannot invent any: only topics and groups that exist have samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``name`` as in queries, for a counter with ``_total``."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


BUILD_INFO = Metric(
    "flintmq_build_info",
    "gauge",
    "always 1; version, flush policy and name of the broker",
    ("version", "flush", "name"),
)
WRITABLE = Metric("flintmq_writable", "gauge", "1 while messages are accepted, 0 while they are refused: see `/readyz`")
RECOVERY = Metric("flintmq_recovery_seconds", "gauge", "time to open and recover the store at the start")

QUARANTINED_HOLES = Metric(
    "flintmq_quarantined_holes", "gauge", "damaged ranges (holes) of the CommitLog, kept in `flintmq/quarantine/`"
)
QUARANTINED_BYTES = Metric("flintmq_quarantined_bytes", "gauge", "bytes of the CommitLog in these holes")
LOST_MESSAGES = Metric("flintmq_lost_messages", "gauge", "messages that are known to have been in these holes")

PRODUCED_MESSAGES = Metric("flintmq_produced_messages_total", "counter", "messages stored", ("topic",))
PRODUCED_BYTES = Metric("flintmq_produced_bytes_total", "counter", "bytes of their PRODUCE bodies", ("topic",))
PULLED_MESSAGES = Metric("flintmq_pulled_messages_total", "counter", "records in PULL responses", ("topic",))
PULLED_BYTES = Metric("flintmq_pulled_bytes_total", "counter", "bytes of the bodies of PULL responses", ("topic",))

REQUESTS = Metric("flintmq_requests_total", "counter", "completed requests, including errors", ("command",))
REQUEST_SECONDS = Metric(
    "flintmq_request_seconds",
    "histogram",
    "from the beginning of a request to its response; for a PULL without the time that it was held",
    ("command",),
)
FLUSH_SECONDS = Metric("flintmq_flush_seconds", "histogram", "duration of `fdatasync` of the CommitLog")
FLUSH_STALLED = Metric(
    "flintmq_flush_stalled_seconds",
    "gauge",
    "duration so far of a flush that has exceeded `flush.stall_ms`; 0: no stall",
)
CLOCK_HELD = Metric(
    "flintmq_clock_held_seconds",
    "gauge",
    "difference of the system clock to the broker's clock after a jump that the broker does not follow yet; 0: none",
)
ERRORS = Metric("flintmq_errors_total", "counter", "error responses", ("result",))
ONE_WAY_ERRORS = Metric("flintmq_one_way_errors_total", "counter", "one-way frames that failed")

DUPLICATE_FRAMES = Metric(
    "flintmq_duplicate_frames_total", "counter", "PRODUCE frames that had been stored before and were not stored again"
)
PRODUCER_RUNS = Metric(
    "flintmq_producer_runs", "gauge", "producer runs kept to detect duplicates: `limits.sequence_runs_max`"
)

CONNECTIONS = Metric("flintmq_connections", "gauge", "open connections")
CONNECTIONS_ACCEPTED = Metric("flintmq_connections_accepted_total", "counter", "connections accepted or refused")
CONNECTIONS_REFUSED = Metric(
    "flintmq_connections_refused_total", "counter", "connections closed at once because of a limit"
)
AUTHENTICATIONS = Metric(
    "flintmq_authentications_total", "counter", "attempts to authenticate: `success`, `failure`", ("outcome",)
)
TLS_FAILURES = Metric("flintmq_tls_failures_total", "counter", "connections whose TLS handshake failed")
IN_FLIGHT = Metric("flintmq_in_flight_bytes", "gauge", "bytes that have arrived and whose requests are not complete")
HELD_PULLS = Metric("flintmq_held_pulls", "gauge", "pulls that wait for messages")
HELD_SELECTIONS = Metric(
    "flintmq_held_selection_bytes", "gauge", "memory of the tags and filters of pulls that wait or search for messages"
)

TOPICS = Metric("flintmq_topics", "gauge", "topics, including system topics")
QUEUES = Metric("flintmq_queues", "gauge", "queues that have had a message")
COMMITTED_OFFSETS = Metric(
    "flintmq_committed_offsets", "gauge", "committed offsets of groups and of broadcasting members, one per queue"
)
GROUP_LAG = Metric(
    "flintmq_group_lag_messages",
    "gauge",
    "messages that the group still has to read, including those that it would read of queues without a committed "
    "offset",
    ("group", "topic"),
)
GROUP_LAG_UNKNOWN = Metric(
    "flintmq_group_lag_unknown_queues",
    "gauge",
    "queues with messages that the lag does not count: the group has not read the topic yet, and its first member will "
    "decide where to start",
    ("group", "topic"),
)
GROUP_IN_FLIGHT = Metric(
    "flintmq_group_in_flight_messages", "gauge", "messages of the lag that are with a member", ("group", "topic")
)
GROUP_DELAYED = Metric(
    "flintmq_group_delayed_messages", "gauge", "messages that wait for their next delivery; not in the lag", ("group",)
)
DEAD_LETTERS = Metric(
    "flintmq_dead_letters", "gauge", "dead letters of the group that were neither sent again nor purged", ("group",)
)
GROUPS = Metric(
    "flintmq_groups",
    "gauge",
    "consumer groups; `empty`: no members, `rebalancing`: queues are still moving",
    ("state",),
)
GROUP_MEMBERS = Metric("flintmq_group_members", "gauge", "live members of groups that have any", ("group",))
REBALANCES = Metric(
    "flintmq_group_rebalances_total", "counter", "rebalances: new distributions of the queues of a group"
)
RETRIED_MESSAGES = Metric(
    "flintmq_retried_messages_total", "counter", "messages that the group sent back for another delivery", ("group",)
)
DEAD_MESSAGES = Metric(
    "flintmq_dead_messages_total", "counter", "messages of the group that became dead letters", ("group",)
)
OFFSETS_MOVED = Metric(
    "flintmq_offsets_moved_total", "counter", "moves of a group's offset because the messages to read next had expired"
)

TRANSACTIONS_OPEN = Metric("flintmq_transactions_open", "gauge", "half messages of transactions that have not ended")
TRANSACTIONS_OPENED = Metric("flintmq_transactions_opened_total", "counter", "half messages stored")
TRANSACTIONS_ENDED = Metric(
    "flintmq_transactions_ended_total",
    "counter",
    "transactions that ended: `commit`, `rollback`, `parked`",
    ("outcome",),
)
TRANSACTIONS_PARKED = Metric(
    "flintmq_transactions_parked", "gauge", "parked messages, including those that were delivered later"
)
TRANSACTION_CHECKS = Metric(
    "flintmq_transaction_checks_total",
    "counter",
    "checks of open transactions: `asked`, or `nobody` if no producer of the group was alive",
    ("result",),
)

PREPARED_MESSAGES = Metric("flintmq_prepared_messages", "gauge", "prepared messages that are not in their topics yet")
PREPARED_ATTEMPTS = Metric("flintmq_prepared_attempts", "gauge", "attempts with prepared messages that have not ended")
PREPARED_ENDED = Metric(
    "flintmq_prepared_attempts_ended_total",
    "counter",
    "attempts that ended: `commit`, `abort` (also those replaced by another attempt), `expire`",
    ("outcome",),
)

DELAYED_MESSAGES = Metric(
    "flintmq_delayed_messages", "gauge", "messages that wait for their delivery by `level` or by `time`", ("kind",)
)
DELAYED_DELIVERED = Metric(
    "flintmq_delayed_delivered_total", "counter", "delayed messages that were delivered, or parked", ("kind",)
)
DELAY_LATENESS = Metric(
    "flintmq_delay_lateness_seconds",
    "histogram",
    "from the time a message was due until it was stored for consumers",
    ("kind",),
)
DELAYED_PARKED = Metric(
    "flintmq_delayed_parked_total",
    "counter",
    "delayed messages that could not be delivered and are in `rmq_sys_flintmq_parked`",
)
DELAYED_UNREADABLE = Metric(
    "flintmq_delayed_unreadable_total", "counter", "delayed messages whose records in the log are no longer intact"
)

BEHIND_BYTES = Metric(
    "flintmq_behind_bytes",
    "gauge",
    "CommitLog bytes that are not on disk (`flush`), not in queues and index (`reput`), or to be dispatched again "
    "after a crash (`checkpoint`)",
    ("stage",),
)
BEHIND_SECONDS = Metric(
    "flintmq_behind_seconds", "gauge", "age of the oldest of these bytes, if it is a second or more", ("stage",)
)
SEGMENTS = Metric("flintmq_segments", "gauge", "files of `commitlog`, `consumequeue`, `index`", ("kind",))
STORE_BYTES = Metric("flintmq_store_bytes", "gauge", "bytes in these files, without preallocated space", ("kind",))
DISK_FREE = Metric("flintmq_disk_free_bytes", "gauge", "free space of the store's file system")
DISK_TOTAL = Metric(
    "flintmq_disk_total_bytes", "gauge", "size of the store's file system, without the reserve for root"
)
DISK_ROOM = Metric("flintmq_disk_room_bytes", "gauge", "bytes that can be written before messages are refused")
DISK_RUNWAY = Metric(
    "flintmq_disk_runway_seconds",
    "gauge",
    "time until messages are refused at the write rate of the last minute; +Inf while nothing is written",
)

PROCESS_CPU = Metric("process_cpu_seconds_total", "counter", "CPU time of the broker")
PROCESS_RESIDENT = Metric("process_resident_memory_bytes", "gauge", "resident memory of the broker")
PROCESS_VIRTUAL = Metric(
    "process_virtual_memory_bytes", "gauge", "address space of the broker, including the mapped CommitLog"
)
PROCESS_FDS = Metric("process_open_fds", "gauge", "open files and connections")
PROCESS_FDS_MAX = Metric("process_max_fds", "gauge", "maximum of open files and connections; -1: no limit")
PROCESS_STARTED = Metric("process_start_time_seconds", "gauge", "start time of the broker, seconds since 1970")

METRICS = (
    BUILD_INFO,
    WRITABLE,
    RECOVERY,
    QUARANTINED_HOLES,
    QUARANTINED_BYTES,
    LOST_MESSAGES,
    PRODUCED_MESSAGES,
    PRODUCED_BYTES,
    PULLED_MESSAGES,
    PULLED_BYTES,
    REQUESTS,
    REQUEST_SECONDS,
    FLUSH_SECONDS,
    FLUSH_STALLED,
    CLOCK_HELD,
    ERRORS,
    ONE_WAY_ERRORS,
    DUPLICATE_FRAMES,
    PRODUCER_RUNS,
    CONNECTIONS,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_REFUSED,
    AUTHENTICATIONS,
    TLS_FAILURES,
    IN_FLIGHT,
    HELD_PULLS,
    HELD_SELECTIONS,
    DELAYED_MESSAGES,
    DELAYED_DELIVERED,
    DELAY_LATENESS,
    DELAYED_PARKED,
    DELAYED_UNREADABLE,
    TOPICS,
    QUEUES,
    GROUPS,
    COMMITTED_OFFSETS,
    GROUP_MEMBERS,
    GROUP_LAG,
    GROUP_LAG_UNKNOWN,
    GROUP_IN_FLIGHT,
    GROUP_DELAYED,
    DEAD_LETTERS,
    REBALANCES,
    RETRIED_MESSAGES,
    DEAD_MESSAGES,
    OFFSETS_MOVED,
    BEHIND_BYTES,
    BEHIND_SECONDS,
    SEGMENTS,
    STORE_BYTES,
    DISK_FREE,
    DISK_TOTAL,
    DISK_ROOM,
    DISK_RUNWAY,
    TRANSACTIONS_OPEN,
    TRANSACTIONS_OPENED,
    TRANSACTIONS_ENDED,
    TRANSACTIONS_PARKED,
    TRANSACTION_CHECKS,
    PREPARED_MESSAGES,
    PREPARED_ATTEMPTS,
    PREPARED_ENDED,
    PROCESS_CPU,
    PROCESS_RESIDENT,
    PROCESS_VIRTUAL,
    PROCESS_FDS,
    PROCESS_FDS_MAX,
    PROCESS_STARTED,
)
"""All metrics in display order. The ``process_…`` names are those of Prometheus's own clients."""
