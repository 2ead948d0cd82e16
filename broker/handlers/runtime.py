"""GET_BROKER_RUNTIME_INFO: figures about the running broker."""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack

from ...protocol.commands import EmptyRequest, RuntimeInfoAnswer
from ...protocol.errors import ERRORS_BY_CODE, RESULT_NAMES
from ...protocol.fields import decode_fields
from ..security.access import QUERY_BROKER
from .hello import VERSION

if TYPE_CHECKING:
    from ..requests.broker import Broker
    from ..requests.request import Request

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
