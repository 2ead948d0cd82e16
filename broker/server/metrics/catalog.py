"""Every metric of the broker: its name, kind, labels and meaning. ``broker/server/README.md`` shows this table.

Names follow Prometheus: base units, last in the name; ``_total`` for what only grows. Labels take few values, none that
a client can make up: topics and groups are those that exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``name`` as it is asked for, a counter's with ``_total``."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


BUILD_INFO = Metric("flintmq_build_info", "gauge", "always 1; who the broker is", ("version", "flush", "name"))
WRITABLE = Metric("flintmq_writable", "gauge", "1 while messages are taken, 0 while they are refused: see `/readyz`")
RECOVERY = Metric("flintmq_recovery_seconds", "gauge", "what opening the store took at the start")

QUARANTINED_HOLES = Metric(
    "flintmq_quarantined_holes", "gauge", "damaged stretches of the CommitLog, kept in `flintmq/quarantine/`"
)
QUARANTINED_BYTES = Metric("flintmq_quarantined_bytes", "gauge", "bytes of the CommitLog in them")
LOST_MESSAGES = Metric("flintmq_lost_messages", "gauge", "messages that are known to have been in them")

PRODUCED_MESSAGES = Metric("flintmq_produced_messages_total", "counter", "messages stored", ("topic",))
PRODUCED_BYTES = Metric(
    "flintmq_produced_bytes_total", "counter", "bytes of the PRODUCE bodies they came in", ("topic",)
)
PULLED_MESSAGES = Metric("flintmq_pulled_messages_total", "counter", "records in PULL answers", ("topic",))
PULLED_BYTES = Metric("flintmq_pulled_bytes_total", "counter", "bytes of the bodies of PULL answers", ("topic",))

REQUESTS = Metric("flintmq_requests_total", "counter", "requests that are done, errors included", ("command",))
REQUEST_SECONDS = Metric(
    "flintmq_request_seconds",
    "histogram",
    "from taking a request up to its answer; of a PULL without the time that it was held",
    ("command",),
)
FLUSH_SECONDS = Metric("flintmq_flush_seconds", "histogram", "what `fdatasync` of the CommitLog took")
FLUSH_STALLED = Metric(
    "flintmq_flush_stalled_seconds", "gauge", "how long the flush has taken that hangs, above `flush.stall_ms`; 0: none"
)
CLOCK_HELD = Metric(
    "flintmq_clock_held_seconds",
    "gauge",
    "how far the system's clock jumped from the broker's, which does not believe it yet; 0: it is followed",
)
ERRORS = Metric("flintmq_errors_total", "counter", "answers that are errors", ("result",))
ONE_WAY_ERRORS = Metric("flintmq_one_way_errors_total", "counter", "one-way frames that could not be served")

DUPLICATE_FRAMES = Metric(
    "flintmq_duplicate_frames_total", "counter", "PRODUCE frames that were stored before, and not again"
)
PRODUCER_RUNS = Metric(
    "flintmq_producer_runs", "gauge", "runs of messages that such frames are recognised by: `limits.sequence_runs_max`"
)

CONNECTIONS = Metric("flintmq_connections", "gauge", "open connections")
CONNECTIONS_ACCEPTED = Metric("flintmq_connections_accepted_total", "counter", "connections that came")
CONNECTIONS_REFUSED = Metric(
    "flintmq_connections_refused_total", "counter", "connections that were closed at once, for a limit"
)
AUTHENTICATIONS = Metric(
    "flintmq_authentications_total", "counter", "attempts to authenticate: `success`, `failure`", ("outcome",)
)
TLS_FAILURES = Metric("flintmq_tls_failures_total", "counter", "connections that came to no TLS")
IN_FLIGHT = Metric("flintmq_in_flight_bytes", "gauge", "bytes that have arrived and are not done")
HELD_PULLS = Metric("flintmq_held_pulls", "gauge", "pulls that wait for messages")
HELD_SELECTIONS = Metric(
    "flintmq_held_selection_bytes", "gauge", "memory of the tags and filters of pulls that wait, or look for messages"
)

TOPICS = Metric("flintmq_topics", "gauge", "topics, the broker's own included")
QUEUES = Metric("flintmq_queues", "gauge", "queues that have had a message")
COMMITTED_OFFSETS = Metric(
    "flintmq_committed_offsets", "gauge", "offsets that groups have committed, and their members: one a queue"
)
GROUP_LAG = Metric(
    "flintmq_group_lag_messages",
    "gauge",
    "messages that the group has still to read; of queues of which it has committed nothing as many as it would read",
    ("group", "topic"),
)
GROUP_LAG_UNKNOWN = Metric(
    "flintmq_group_lag_unknown_queues",
    "gauge",
    "queues with messages that are not in the lag: their group has not begun with the topic, and its first member will "
    "say where",
    ("group", "topic"),
)
GROUP_IN_FLIGHT = Metric(
    "flintmq_group_in_flight_messages", "gauge", "of them, those that are with a member", ("group", "topic")
)
GROUP_DELAYED = Metric(
    "flintmq_group_delayed_messages", "gauge", "messages that wait to be tried again; not in the lag", ("group",)
)
DEAD_LETTERS = Metric(
    "flintmq_dead_letters", "gauge", "dead letters of the group that were neither sent again nor purged", ("group",)
)
GROUPS = Metric(
    "flintmq_groups",
    "gauge",
    "consumer groups; `empty`: no members, `rebalancing`: queues still move",
    ("state",),
)
GROUP_MEMBERS = Metric("flintmq_group_members", "gauge", "live members, of groups that have any", ("group",))
REBALANCES = Metric(
    "flintmq_group_rebalances_total", "counter", "how often the queues of a group were shared out in another way"
)
RETRIED_MESSAGES = Metric(
    "flintmq_retried_messages_total", "counter", "messages that the group sent back, to be tried again", ("group",)
)
DEAD_MESSAGES = Metric(
    "flintmq_dead_messages_total", "counter", "messages of the group that became dead letters", ("group",)
)
OFFSETS_MOVED = Metric(
    "flintmq_offsets_moved_total",
    "counter",
    "how often a group was moved on because retention had taken what it would have read next",
)

TRANSACTIONS_OPEN = Metric("flintmq_transactions_open", "gauge", "half messages of transactions that are not ended")
TRANSACTIONS_OPENED = Metric("flintmq_transactions_opened_total", "counter", "half messages stored")
TRANSACTIONS_ENDED = Metric(
    "flintmq_transactions_ended_total",
    "counter",
    "transactions that ended: `commit`, `rollback`, `parked`",
    ("outcome",),
)
TRANSACTIONS_PARKED = Metric(
    "flintmq_transactions_parked",
    "gauge",
    "messages in the topic of those that were parked, delivered after all or not",
)
TRANSACTION_CHECKS = Metric(
    "flintmq_transaction_checks_total",
    "counter",
    "questions how a transaction ended: `asked`, or `nobody` where no producer of the group was alive",
    ("result",),
)

PREPARED_MESSAGES = Metric("flintmq_prepared_messages", "gauge", "prepared messages that are not in their topics yet")
PREPARED_ATTEMPTS = Metric("flintmq_prepared_attempts", "gauge", "attempts that prepared something and are not ended")
PREPARED_ENDED = Metric(
    "flintmq_prepared_attempts_ended_total",
    "counter",
    "attempts that ended: `commit`, `abort` (also those that lost), `expire`",
    ("outcome",),
)

DELAYED_MESSAGES = Metric(
    "flintmq_delayed_messages", "gauge", "messages that wait to be delivered later, by `level` and by `time`", ("kind",)
)
DELAYED_DELIVERED = Metric(
    "flintmq_delayed_delivered_total", "counter", "delayed messages that were delivered, or parked", ("kind",)
)
DELAY_LATENESS = Metric(
    "flintmq_delay_lateness_seconds", "histogram", "from when a message was due until it was stored for consumers",
    ("kind",),
)  # fmt: skip
DELAYED_PARKED = Metric(
    "flintmq_delayed_parked_total",
    "counter",
    "delayed messages that could not be delivered and lie in `rmq_sys_flintmq_parked`",
)
DELAYED_UNREADABLE = Metric(
    "flintmq_delayed_unreadable_total", "counter", "delayed messages that the log does not hold whole any more"
)

BEHIND_BYTES = Metric(
    "flintmq_behind_bytes",
    "gauge",
    "CommitLog that is not on disk (`flush`), not in queues and index (`reput`), that a crash would have dispatched "
    "again (`checkpoint`)",
    ("stage",),
)
BEHIND_SECONDS = Metric(
    "flintmq_behind_seconds", "gauge", "how long the oldest of it has waited, where it is a second or more", ("stage",)
)
SEGMENTS = Metric("flintmq_segments", "gauge", "files of `commitlog`, `consumequeue`, `index`", ("kind",))
STORE_BYTES = Metric("flintmq_store_bytes", "gauge", "what is in them, without what is only allocated", ("kind",))
DISK_FREE = Metric("flintmq_disk_free_bytes", "gauge", "what may still be written to the store's file system")
DISK_TOTAL = Metric(
    "flintmq_disk_total_bytes", "gauge", "size of the store's file system, without what is kept for root"
)
DISK_ROOM = Metric("flintmq_disk_room_bytes", "gauge", "what may be written before messages are refused")
DISK_RUNWAY = Metric(
    "flintmq_disk_runway_seconds",
    "gauge",
    "how long that lasts at the rate of the last minute; +Inf while nothing is written",
)

PROCESS_CPU = Metric("process_cpu_seconds_total", "counter", "processor time of the broker")
PROCESS_RESIDENT = Metric("process_resident_memory_bytes", "gauge", "its memory")
PROCESS_VIRTUAL = Metric("process_virtual_memory_bytes", "gauge", "its address space, maps of the CommitLog included")
PROCESS_FDS = Metric("process_open_fds", "gauge", "open files and connections")
PROCESS_FDS_MAX = Metric("process_max_fds", "gauge", "how many there may be; -1: no limit")
PROCESS_STARTED = Metric("process_start_time_seconds", "gauge", "when it started, seconds since 1970")

METRICS = (
    BUILD_INFO, WRITABLE, RECOVERY, QUARANTINED_HOLES, QUARANTINED_BYTES, LOST_MESSAGES,
    PRODUCED_MESSAGES, PRODUCED_BYTES, PULLED_MESSAGES, PULLED_BYTES,
    REQUESTS, REQUEST_SECONDS, FLUSH_SECONDS, FLUSH_STALLED, CLOCK_HELD, ERRORS, ONE_WAY_ERRORS,
    DUPLICATE_FRAMES, PRODUCER_RUNS,
    CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_REFUSED, AUTHENTICATIONS, TLS_FAILURES, IN_FLIGHT, HELD_PULLS,
    HELD_SELECTIONS,
    DELAYED_MESSAGES, DELAYED_DELIVERED, DELAY_LATENESS, DELAYED_PARKED, DELAYED_UNREADABLE,
    TOPICS, QUEUES,
    GROUPS, COMMITTED_OFFSETS, GROUP_MEMBERS, GROUP_LAG, GROUP_LAG_UNKNOWN, GROUP_IN_FLIGHT, GROUP_DELAYED,
    DEAD_LETTERS,
    REBALANCES, RETRIED_MESSAGES, DEAD_MESSAGES, OFFSETS_MOVED,
    BEHIND_BYTES, BEHIND_SECONDS, SEGMENTS, STORE_BYTES, DISK_FREE, DISK_TOTAL, DISK_ROOM, DISK_RUNWAY,
    TRANSACTIONS_OPEN, TRANSACTIONS_OPENED, TRANSACTIONS_ENDED, TRANSACTIONS_PARKED, TRANSACTION_CHECKS,
    PREPARED_MESSAGES, PREPARED_ATTEMPTS, PREPARED_ENDED,
    PROCESS_CPU, PROCESS_RESIDENT, PROCESS_VIRTUAL, PROCESS_FDS, PROCESS_FDS_MAX, PROCESS_STARTED,
)  # fmt: skip
"""In the order in which they are shown. The names ``process_…`` are those of Prometheus's own clients."""
