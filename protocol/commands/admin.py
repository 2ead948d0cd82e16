"""Topics, settings and figures of the broker."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..fields import I64_MAX, boolean, integer, text
from ..layout import TOPIC_BYTES_MAX
from .common import QUEUES_MAX

QUEUE_STATS_STRUCT = struct.Struct(">iqqq")
"""A queue, its min offset, its max offset and the store time (ms, -1: empty) of its last message."""
SETTINGS_MAX = 100
"""Most settings that one UPDATE_BROKER_CONFIG changes."""


@dataclass(slots=True)
class UpdateAndCreateTopicRequest:
    """Create a topic, or change one that exists; queues can be added, not taken away."""

    topic: str = text("topic", TOPIC_BYTES_MAX, 1)
    read_queues: int = integer("queues that can be read", 1, QUEUES_MAX, 4)
    write_queues: int = integer("queues that can be written", 1, QUEUES_MAX, 4)
    perm: int = integer("4 read + 2 write", 0, 7, 6)
    order: bool = boolean("kept for RocketMQ's tools", False)
    retention_hours: int = integer(
        "how long messages are kept; 0: as long as the log is, -1: for ever, -2: as it is", -2, 876_000, -2
    )
    retention_bytes: int = integer(
        "most bytes of the topic's records, the newest; 0: no limit, -1: as it is", -1, I64_MAX, -1
    )


@dataclass(slots=True)
class TopicRequest:
    """A question about, or the deletion of, one topic."""

    topic: str = text("topic", 32767, 1)


@dataclass(slots=True)
class TopicsAnswer:
    """Body: one msgpack array of maps ``{topic, read_queues, write_queues, perm, order, system, retention_hours,
    retention_bytes}``."""

    count: int = integer("topics in the body")


@dataclass(slots=True)
class TopicStatsAnswer:
    """Body: count × (i32 queue, i64 min offset, i64 max offset, i64 store time of the last message, ms or -1)."""

    count: int = integer("queues in the body")


@dataclass(slots=True)
class UpdateBrokerConfigRequest:
    """Change settings while the broker runs: all of them, or none. Body: one msgpack map of the settings' names to
    values, or to what would stand for them on a command line."""

    count: int = integer("settings in the body", 1, SETTINGS_MAX)


@dataclass(slots=True)
class UpdateBrokerConfigAnswer:
    """They are changed, until the broker is started again. Body: one msgpack array of `[name, before, after]`."""

    count: int = integer("settings in the body")


@dataclass(slots=True)
class BrokerConfigAnswer:
    """Body: one msgpack array of maps `{name, value, at_start, hot, rule}`: the value now and that of the start,
    whether it can be changed while the broker runs, and what it may be."""

    count: int = integer("settings in the body")


@dataclass(slots=True)
class GetDelayStatsRequest:
    """What waits to be delivered later."""

    max_hours: int = integer("most hours of timed messages in the answer; the rest is summed up", 1, 10_000, 24)


@dataclass(slots=True)
class DelayStatsAnswer:
    """Body: one msgpack map `{levels, hours}`: `levels` an array of `[level, messages, next_due_ms]`, of those levels
    that have had a message; `hours` one of `[begins_ms, messages, next_due_ms]`, of timed messages, by the hour that
    they are due in, the last one for all that follow. A time of 0: nothing is due."""

    levels: int = integer("messages that wait in delay levels")
    timed: int = integer("messages that wait for their time")
    parked: int = integer("messages in rmq_sys_flintmq_parked: what could not be delivered")
    behind: int = integer("timed messages that are not counted yet: they came just now, or before a start", default=0)


@dataclass(slots=True)
class RuntimeInfoAnswer:
    """No fields. Body: one msgpack map, str to int, float, str or bool; ``RUNTIME_INFO`` says of what."""


RUNTIME_INFO: dict[str, str] = {
    "name": "the broker's name",
    "version": "its release",
    "pid": "its process id",
    "uptime_seconds": "since the start of the process",
    "recovery_seconds": "what opening the store took",
    "rss_bytes": "memory of the process, with what it has of mapped files",
    "mapped_bytes": "of that, mapped files: page cache, which the system takes back when it needs memory",
    "store_path": "the store's folder on the broker's machine",
    "flush": "`sync` or `async`: the least that an acknowledgement means",
    "min_physical_offset": "where the CommitLog begins",
    "write_offset": "where it ends",
    "flushed_offset": "it is on disk below this",
    "reput_offset": "queues and index know every record below this",
    "index_behind_bytes": "CommitLog that they do not know yet",
    "commitlog_files": "how many there are",
    "index_files": "how many there are",
    "quarantined_holes": "damaged stretches of the CommitLog: see `flintmq/quarantine/index.json`",
    "quarantined_bytes": "bytes of the CommitLog in them",
    "lost_messages": "messages that are known to have been in them; nobody is given anything in their place",
    "flush_p50_us": "half of the last minute's flushes took at most this many µs; 0: there was none",
    "flush_p99_us": "99 of 100 of them took at most this many",
    "disk_free_bytes": "what may still be written to the store's file system",
    "disk_total_bytes": "its size, without what is kept for root",
    "disk_room_bytes": "what may be written before messages are refused",
    "disk_runway_seconds": "how long that lasts at the rate of the last minute; −1: nothing is written",
    "write_refusal": "why no messages are taken at the moment; empty: they are",
    "metrics_address": "HOST:PORT of the metrics over HTTP; empty: they are off",
    "topics": "how many there are, the broker's own included",
    "known_groups": "consumer groups, with live members or without",
    "groups": "those of them that have live members",
    "group_members": "their members",
    "group_rebalances": "how often the queues of a group were shared out in another way, since the start",
    "retried_messages": "messages that groups sent back since the start, to be tried again",
    "dead_messages": "those that became dead letters",
    "offsets_moved": "how often a group was moved on because retention had taken what it would have read next",
    "connections": "how many are open",
    "connections_accepted": "since the start",
    "connections_refused": "since the start, for a limit of connections",
    "held_pulls": "pulls that wait for messages",
    "in_flight_bytes": "bytes that have arrived and are not done",
    "produces": "PRODUCE frames since the start",
    "produced_messages": "messages in them",
    "produced_bytes": "bytes of their bodies",
    "pulls": "PULL answers since the start",
    "pulled_messages": "records in them",
    "pulled_bytes": "bytes of their bodies",
    "one_way_errors": "one-way frames since the start that could not be served",
    "withheld": "why the user is not told the rest, and how to grant the right to see it; empty: this is everything",
}
"""What the map of a GET_BROKER_RUNTIME_INFO answer holds, beside ``errors_NAME``: answers with that result since the
start, for each result that occurred. Names are added, never changed."""
