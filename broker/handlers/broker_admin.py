"""The broker as a whole: its greeting, settings, figures, connections, scheduled messages and quarantine."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from ... import __version__
from ...protocol import commands
from ...protocol.auth.scram import MECHANISM
from ...protocol.commands import (
    CLOSE_CONNECTION,
    PROTOCOL_VERSION,
    QUARANTINE_LOST_MAX,
    READ_FROM_ANY,
    SETTINGS_MAX,
    UPDATE_BROKER_CONFIG,
    ChangedSetting,
    ChangeMembersRequest,
    CloseConnectionRequest,
    DelayStatsAnswer,
    EmptyAnswer,
    EmptyRequest,
    GetConnectionsRequest,
    GetDelayStatsRequest,
    GetQuarantineRequest,
    HelloAnswer,
    HelloRequest,
    LostOffsets,
    QuarantineEntry,
    ReplicaStatusAnswer,
    ReplicateRequest,
    ReportPositionRequest,
    RightsAnswer,
    RowsAnswer,
    RuntimeInfoAnswer,
    Setting,
    SwitchPrimaryRequest,
    UpdateBrokerConfigRequest,
)
from ...protocol.errors import (
    ERRORS_BY_CODE,
    RESULT_NAMES,
    ConfigurationError,
    InvalidParameter,
    ReplicationRefused,
    VersionNotSupported,
)
from ...protocol.fields import decode_fields
from ...protocol.rows import pack_rows
from ..addresses import parse_address
from ..background.loop_work import called_back
from ..config import FIELDS, changed_settings, valid_values, value_of
from ..delivery.scheduled.worker import delayed_counts
from ..replication.core.messages import Hello, PositionReport
from ..replication.member.links import decode_epochs
from ..security.users import QUERY_BROKER
from ..store import WouldBlock

if TYPE_CHECKING:
    from ...protocol.commands import Command, ConnectionInfo
    from ...protocol.frames import Frame
    from ..config import Settings
    from ..delivery.scheduled.worker import Delays
    from ..replication.member.replica_member import ReplicaMember
    from ..requests.broker import Broker
    from ..requests.request import Request
    from ..security.users import Authenticator
    from ..store import MessageStore
    from ..store.damage import QuarantinedRange

# ---- HELLO: the broker's name, version and limits.

VERSION = __version__


def hello(
    request: Request,
    settings: Settings,
    auto_create: bool,
    authenticator: Authenticator | None,
    member: ReplicaMember | None,
) -> None:
    """Answer HELLO, even a repeated one. It must come first on a connection, before AUTH if the broker requires it."""
    params = decode_fields(HelloRequest, request.frame.fields)
    if params.protocol != PROTOCOL_VERSION:
        raise VersionNotSupported(
            f"this broker does not support protocol version {params.protocol}; use {PROTOCOL_VERSION}",
            protocol=PROTOCOL_VERSION,
        )
    request.source.greet(params.client)
    request.peer.reads_any = params.read_from == READ_FROM_ANY
    request.respond(
        HelloAnswer(
            protocol=PROTOCOL_VERSION,
            broker=settings.server.name,
            version=VERSION,
            flush=settings.flush.policy,
            frame_bytes_max=settings.limits.frame_bytes_max,
            produce_frame_bytes_max=settings.limits.produce_frame_bytes_max,
            message_bytes_max=settings.store.message_bytes_max,
            auto_create_queues=settings.topics.default_queues if auto_create else 0,
            auth_required=authenticator is not None,
            auth="" if authenticator is None else MECHANISM,
            role="" if member is None else "primary" if member.refusal() is None else "follower",
            primary="" if member is None else member.primary_address,
        )
    )


# ---- GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG: show the settings, and change hot settings while the broker
# runs.

HOT_SETTINGS = frozenset(
    {
        "topics.auto_create",
        "topics.default_queues",
        "delivery.delay_max_days",
        "limits.connections_max",
        "limits.connection_in_flight_bytes_max",
        "limits.in_flight_bytes_max",
        "limits.held_pulls_max",
        "limits.held_pulls_per_connection_max",
        "limits.groups_max",
        "limits.committed_offsets_max",
        "limits.idle_timeout_ms",
        "limits.slow_reader_timeout_ms",
        "retention.file_reserved_hours",
        "retention.delete_when",
        "retention.headroom_bytes",
        "retention.disk_clean_percent",
        "retention.disk_force_percent",
        "retention.disk_refuse_percent",
        "transactions.open_max",
        "transactions.prepared_attempts_max",
        "log.level",
    }
)
"""Settings that can be changed while the broker runs. Never a path, an address, anything of ``[security]``, the flush
policy, or a value that clients were told when they connected."""

HIDDEN_SECTION = "security."
"""Settings that are not shown, so that an attacker does not learn where the keys are."""
VALUE_CHARS_MAX = 4_096


def get_broker_config(request: Request, settings: Settings, settings_at_start: Settings) -> None:
    """Return every setting except those of ``[security]``, in the order of ``broker.toml``."""
    decode_fields(EmptyRequest, request.frame.fields)
    rows = [
        Setting(
            name, value_of(settings, name), value_of(settings_at_start, name), name in HOT_SETTINGS, valid_values(name)
        )
        for name in FIELDS
        if not name.startswith(HIDDEN_SECTION)
    ]
    request.respond(RowsAnswer(count=len(rows)), pack_rows(rows))


def update_broker_config(request: Request, settings: Settings, change_settings: Callable[[Settings], None]) -> None:
    """Change settings, all or none; the values apply at once, until the broker restarts."""
    params = decode_fields(UpdateBrokerConfigRequest, request.frame.fields)
    rows = change_hot_settings(request, settings, change_settings, _decode_body(request.frame, params.count))
    request.respond(RowsAnswer(count=len(rows)), pack_rows(rows))


def change_hot_settings(
    request: Request, settings: Settings, change_settings: Callable[[Settings], None], changes: Mapping[str, Any]
) -> list[ChangedSetting]:
    """Change settings, all or none. Raises ``InvalidParameter``."""
    for name in changes:
        if name not in HOT_SETTINGS and name in FIELDS:
            raise InvalidParameter(
                f"{name} cannot be changed while the broker runs: set it in the file of `flintmq-broker serve "
                "--config` and restart the broker; nothing was changed"
            )
    try:
        after = changed_settings(settings, changes)
    except ConfigurationError as error:
        raise InvalidParameter(f"{error}; nothing was changed") from None
    change_settings(after)
    rows = [ChangedSetting(name, value_of(settings, name), value_of(after, name)) for name in changes]
    for each in rows:
        request.audit(UPDATE_BROKER_CONFIG, f"setting {each.name}", each.before, each.after)
    return rows


def _decode_body(frame: Frame, count: int) -> dict[str, Any]:
    try:
        changes = msgpack.unpackb(
            frame.body,
            max_map_len=SETTINGS_MAX,
            max_str_len=VALUE_CHARS_MAX,
            max_array_len=0,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidParameter(f"the body is not one msgpack map of settings: {error}") from None
    if type(changes) is not dict or len(changes) != count or not all(type(name) is str for name in changes):
        raise InvalidParameter(f"the body must be one msgpack map of {count} settings, as count says")
    return changes


# ---- GET_BROKER_RUNTIME_INFO: figures about the running broker.

FOR_EVERY_USER = ("name", "version", "uptime_seconds", "flush")
"""Figures for users without permission to query the broker."""

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()


def get_broker_runtime_info(request: Request, broker: Broker) -> None:
    """Return a map of figures (see ``protocol/README.md``), or a few of them without permission to query the broker."""
    decode_fields(EmptyRequest, request.frame.fields)
    info = runtime_info(broker)
    if request.peer.access is not None and not request.peer.access.sees_all:
        info = {name: info[name] for name in FOR_EVERY_USER}
        info["withheld"] = request.peer.access.refusal(QUERY_BROKER)
    request.respond(RuntimeInfoAnswer(), msgpack.packb(info))


def runtime_info(broker: Broker) -> dict[str, int | float | str | bool]:
    """Return all figures: offsets and sizes in bytes, counters since the start."""
    store, counters, stats = broker.store, broker.counters, broker.stats
    groups, clients = broker.groups.groups, broker.groups.clients
    produced, pulled = counters.produced.total(), counters.pulled.total()
    flush_p50, flush_p99 = stats.flush_quantiles(0.5, 0.99)
    refusal = broker.write_refusal()  # read once: the retention thread may lift it between two reads
    runway, ahead = stats.runway_seconds(), store.expiry.next
    rss_bytes, mapped_bytes = _memory()
    info: dict[str, int | float | str | bool] = {
        "name": broker.settings.server.name,
        "version": VERSION,
        "pid": os.getpid(),
        "uptime_seconds": time.monotonic() - broker.started_at,
        "recovery_seconds": broker.recovery_seconds,
        "rss_bytes": rss_bytes,
        "mapped_bytes": mapped_bytes,
        "store_path": str(Path(broker.settings.store.path).expanduser().absolute()),
        "flush": broker.settings.flush.policy,
        "min_physical_offset": store.min_physical_offset,
        "write_offset": store.write_offset,
        "flushed_offset": store.flushed_offset,
        "reput_offset": store.reput_offset,
        "checkpoint_offset": stats.checkpoint_offset,
        **{f"{stage}_behind_ms": round(seconds * 1e3) for stage, (_, seconds) in stats.lags().items()},
        "index_behind_bytes": max(store.write_offset - store.reput_offset, 0),
        "commitlog_files": len(store.commitlog.queue.files),
        "index_files": len(store.index.files),
        "quarantined_holes": len(store.quarantine.ranges),
        "quarantined_bytes": store.quarantine.bytes,
        "lost_messages": store.quarantine.lost_messages,
        "flush_p50_us": round(flush_p50 * 1e6),
        "flush_p99_us": round(flush_p99 * 1e6),
        "disk_free_bytes": stats.disk.free_bytes,
        "disk_total_bytes": stats.disk.used_bytes + stats.disk.free_bytes,
        "disk_room_bytes": 0 if refusal else stats.room_bytes(),
        "disk_runway_seconds": runway if math.isfinite(runway) else -1,
        "write_refusal": refusal,
        "expiry_next_file": "" if ahead is None else ahead.file,
        "expiry_next_ms": -1 if ahead is None else ahead.at_ms,
        "expiry_next_reason": "" if ahead is None else ahead.reason,
        "metrics_address": broker.metrics_address,
        "topics": len(store.topics),
        "known_groups": len(broker.groups.group_names(store.consumer_offsets.rows())),
        "groups": len(groups) + len(clients.all_sharing()),
        "group_members": sum(len(group.members) for group in groups.values()) + clients.count()[0],
        "group_rebalances": broker.groups.rebalances,
        "retried_messages": counters.retried_messages,
        "dead_messages": counters.dead_messages,
        "offsets_moved": broker.groups.offsets_moved,
        "connections": broker.connections,
        "connections_accepted": counters.connections_accepted,
        "connections_refused": counters.connections_refused,
        "held_pulls": len(broker.holds),
        "in_flight_bytes": broker.in_flight.bytes,
        "produces": produced.frames,
        "produced_messages": produced.messages,
        "produced_bytes": produced.bytes,
        "pulls": pulled.frames,
        "pulled_messages": pulled.messages,
        "pulled_bytes": pulled.bytes,
        "one_way_errors": counters.one_way_errors,
        "withheld": "",
    }
    for code, count in sorted(counters.errors.items()):
        known = ERRORS_BY_CODE.get(code)
        info[f"errors_{known.name if known else RESULT_NAMES.get(code, code)}"] = count
    return info


def _memory() -> tuple[int, int]:
    """Return the resident memory of this process and the mapped files' part of it; without /proc, its peak and 0."""
    try:
        resident, shared = _STATM.read_text().split()[1:3]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0
    return int(resident) * _PAGE_BYTES, int(shared) * _PAGE_BYTES


# ---- GET_CONNECTIONS, CLOSE_CONNECTION and GET_RIGHTS: the open connections, and what the user of this one
# may do.


def get_connections(request: Request, list_connections: Callable[[int, int], list[ConnectionInfo]]) -> None:
    """Return the next open connections, in the order in which they were opened."""
    params = decode_fields(GetConnectionsRequest, request.frame.fields)
    rows = list_connections(params.after, params.max_count)
    request.respond(RowsAnswer(count=len(rows)), pack_rows(rows))


def close_connection(request: Request, close_connection: Callable[[int, int], ConnectionInfo | None]) -> None:
    params = decode_fields(CloseConnectionRequest, request.frame.fields)
    row = close_connection(params.connection, params.opened_ms)
    if row is None:
        raise InvalidParameter(
            f"connection {params.connection} is not open any more; GET_CONNECTIONS (flintmq connections) has the open "
            "ones"
        )
    before = {"address": row.address, "user": row.user, "client": row.client}
    request.audit(CLOSE_CONNECTION, f"connection {params.connection}", before)
    request.respond(EmptyAnswer())


def get_rights(request: Request) -> None:
    decode_fields(EmptyRequest, request.frame.fields)
    user = request.peer.user
    grants = [] if user is None else list(user.permissions)
    name = "" if user is None else user.name
    request.respond(RightsAnswer(user=name, count=len(grants)), msgpack.packb(grants))


# ---- GET_DELAY_STATS: the scheduled messages that wait for their delivery.


async def get_delay_stats(request: Request, delays: Delays) -> None:
    """Return scheduled messages by level and by hour, and parked ones; includes everything acknowledged by now."""
    params = decode_fields(GetDelayStatsRequest, request.frame.fields)

    await request.dispatched()
    counts = await request.read(lambda hot: delayed_counts(delays, hot=hot))
    answer = DelayStatsAnswer(
        levels=sum(messages for _, messages, _ in counts.levels),
        timed=counts.timed,
        parked=counts.parked,
        behind=counts.unindexed,
    )
    request.respond(answer, msgpack.packb({"levels": counts.levels, "hours": counts.hours(params.max_hours)}))


# ---- GET_QUARANTINE: the damaged ranges of the CommitLog, and the messages that are lost in them.


async def get_quarantine(request: Request, store: MessageStore) -> None:
    """Return the next entries of the quarantine, by physical offset and by the time at which they were found."""
    params = decode_fields(GetQuarantineRequest, request.frame.fields)
    quarantine = store.quarantine

    def read(hot: bool) -> tuple[int, bytes]:
        if hot and quarantine:
            raise WouldBlock  # a page may name tens of thousands of queues: too much for a turn of the loop
        entries = quarantine.page(params.after, params.after_found_ms, params.max_count)
        return len(entries), _packed(entries)

    count, body = await request.read(read)
    request.respond(RowsAnswer(count=count), body)


def _packed(entries: Iterable[QuarantinedRange]) -> bytes:
    rows = [
        QuarantineEntry(
            each.physical_offset,
            each.bytes,
            each.reason,
            each.found_ms,
            each.store_ms,
            each.file,
            sum(lost.messages for lost in each.lost),
            max(len(each.lost) - QUARANTINE_LOST_MAX, 0),
            [LostOffsets(*lost) for lost in each.lost[:QUARANTINE_LOST_MAX]],
        )
        for each in entries
    ]
    return pack_rows(rows)


# ---- Replica sets: the connection that a follower replicates by, and the administration of a set.


class FollowerConnection:
    """A follower's connection, as the member sees it."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def welcome(self, answer: Any, body: bytes) -> None:
        self._request.respond(answer, body)

    def refuse(self, error: ReplicationRefused) -> None:
        self._request.fail(error)

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        self._request.peer.tell(command, request, body)

    def unsent_bytes(self) -> int:
        """Return how much of what it was told it has not taken."""
        return self._request.peer.unsent_bytes()

    def close(self) -> None:
        self._request.source.finish()


def _required(member: ReplicaMember | None) -> ReplicaMember:
    if member is None:
        raise ReplicationRefused("this broker is not a member of a replica set: replication.set is empty")
    return member


def replicate(request: Request, member: ReplicaMember | None, store: MessageStore) -> None:
    """Let a follower follow this member, if it is the primary."""
    params = decode_fields(ReplicateRequest, request.frame.fields)
    mine = _required(member)
    own_bytes = store.settings.commitlog_file_bytes
    if params.file_bytes != own_bytes:
        raise ReplicationRefused(
            f"store.commitlog_file_bytes of {params.member} is {params.file_bytes:,}, but {own_bytes:,} here: all "
            "members must have the same. Change the setting of a member whose store is empty"
        )
    hello = Hello(params.cluster_id, params.epoch, params.member, params.end, decode_epochs(request.frame.body))
    number = mine.accept(FollowerConnection(request), hello)
    request.peer.follower = number
    request.source.follow()
    request.peer.when_lost(lambda: mine.follower_lost(number))


def report_position(request: Request, member: ReplicaMember | None) -> None:
    params = decode_fields(ReportPositionRequest, request.frame.fields)
    if not request.peer.follower:
        raise InvalidParameter("REPORT_POSITION must follow a REPLICATE on the same connection")
    report = PositionReport(params.epoch, params.written, params.flushed, params.complete, params.stops)
    _required(member).reported(request.peer.follower, report, params.tables)


def get_replica_status(request: Request, member: ReplicaMember | None) -> None:
    if member is None:
        request.respond(ReplicaStatusAnswer(), pack_rows([]))
        return
    status = member.status()
    request.respond(status.answer, pack_rows(status.rows))


def switch_primary(request: Request, member: ReplicaMember | None) -> None:
    params = decode_fields(SwitchPrimaryRequest, request.frame.fields)
    reason = _required(member).switch(params.member, params.within_ms / 1000)
    if reason is not None:
        raise ReplicationRefused(reason)
    request.respond(EmptyAnswer())
    request.audit(commands.SWITCH_PRIMARY, f"primary {params.member}")


async def change_members(request: Request, member: ReplicaMember | None) -> None:
    params = decode_fields(ChangeMembersRequest, request.frame.fields)
    if params.address:
        try:
            parse_address(params.address)
        except (ConfigurationError, ValueError) as error:
            raise InvalidParameter(f"address of member {params.member}: {error}") from error

    mine = _required(member)
    request.deferred.check_may_wait()
    members = mine.change_members(params.member, params.address)
    await called_back(partial(mine.when_changed, members))
    request.respond(EmptyAnswer())
    request.audit(commands.CHANGE_MEMBERS, f"member {params.member}", None, params.address or None)
