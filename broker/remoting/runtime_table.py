"""The broker's figures under the names of RocketMQ's ``GET_BROKER_RUNTIME_INFO``.

RocketMQ's tools read these names, and some fail without one. What belongs to a part that FlintMQ does not have, such as
thread pools for sends and pulls, is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ...protocol.errors import BrokerFailure, FlushDiskTimeout, NotEnoughReplicas, ServiceNotAvailable, SystemBusy
from ...protocol.remoting.command import VERSION
from ..handlers.runtime import runtime_info
from ..latency import BOUNDS_S, quantile
from ..requests.broker import Broker
from .figures import TrafficFigures

VERSION_NAME = "V5_3_3"
"""Name of ``VERSION``: the tools print it."""
_KIB = 1024
_POOLS = ("send", "pull", "litePull", "query", "ack")
_NOT_KEPT = {
    "pageCacheLockTimeMills": "0",
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
    "putMessageEntireTimeMax": "0",
    "remainTransientStoreBufferNumbs": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueCapacity": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in _POOLS},
}


_STORE_ERRORS = (BrokerFailure, FlushDiskTimeout, NotEnoughReplicas, ServiceNotAvailable, SystemBusy)
"""Errors of requests that a broker accepted and did not store, or not in time."""
_PUT_TIMES = (
    (0.001, "<=0ms"),
    (0.01, "0~10ms"),
    (0.05, "10~50ms"),
    (0.1, "50~100ms"),
    (0.2, "100~200ms"),
    (0.5, "200~500ms"),
    (1, "500ms~1s"),
    (2, "1~2s"),
    (3, "2~3s"),
    (4, "3~4s"),
    (5, "4~5s"),
    (10, "5~10s"),
    (math.inf, "10s~"),
)
"""Upper bound in seconds, and name, of each of RocketMQ's buckets of put times."""


def runtime_table(broker: Broker, figures: TrafficFigures, earliest_ms: int, active: bool) -> dict[str, str]:
    """Return the figures by name. ``earliest_ms``: store time of the first message in the log, -1 without one."""
    info, store, counters = runtime_info(broker), broker.store, broker.counters
    produced, pulled = counters.produced.total(), counters.pulled.total()
    stored_bytes = store.write_offset - figures.log_began
    put_times = list(counters.produce_latencies.counts)
    put_tps, get_tps = figures.rates()
    used, free = broker.stats.disk.used_bytes, broker.stats.disk.free_bytes
    uptime_s = int(info["uptime_seconds"])
    started_ms = int((time.time() - float(info["uptime_seconds"])) * 1000)
    ratio = used / max(used + free, 1)
    delays = broker.delays
    table: dict[str, object] = {
        **_NOT_KEPT,
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_NAME,
        "brokerActive": "true" if active else "false",
        "bootTimestamp": started_ms,
        "startAcceptSendRequestTimeStamp": started_ms,
        "runtime": _duration(uptime_s),
        "commitLogMinOffset": store.min_physical_offset,
        "commitLogMaxOffset": store.write_offset,
        "earliestMessageTimeStamp": earliest_ms,
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{store.path}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_readable(used + free)}, Free : {_readable(free)}.",
        "dispatchBehindBytes": max(store.write_offset - store.reput_offset, 0),
        "remainHowManyDataToFlush": _readable(max(store.write_offset - store.flushed_offset, 0)),
        "putTps": put_tps,
        "getFoundTps": get_tps,
        "getMissTps": "0.0 0.0 0.0",
        "getTotalTps": get_tps,
        "getTransferredTps": get_tps,
        "getTransferedTps": get_tps,
        "putMessageTimesTotal": produced.frames,
        "putMessageSizeTotal": stored_bytes,
        "putMessageAverageSize": stored_bytes / max(produced.messages, 1),
        "putMessageDistributeTime": _distribution(put_times),
        "putLatency99": f"{quantile(put_times, 0.99) * 1000:.2f}",
        "putLatency999": f"{quantile(put_times, 0.999) * 1000:.2f}",
        "getMessageTransferredMsgCount": pulled.messages,
        "putMessageFailedTimes": sum(counters.errors.get(error.code, 0) for error in _STORE_ERRORS),
        "timerReadBehind": 0,
        "timerOffsetBehind": delays.timers.state.pending,
        **figures.totals(),
    }
    return {name: str(value) for name, value in table.items()}


def _distribution(counts: Sequence[int]) -> str:
    """Return the counts of ``BOUNDS_S`` as RocketMQ writes them: ``[<=0ms]:3 [0~10ms]:1 …``."""
    found = dict.fromkeys((name for _, name in _PUT_TIMES), 0)
    # FlintMQ's buckets are narrower: each counts in the one of RocketMQ's that has its upper bound.
    for bound, count in zip((*BOUNDS_S, math.inf), counts, strict=True):
        found[next(name for limit, name in _PUT_TIMES if bound <= limit)] += count
    return " ".join(f"[{name}]:{count}" for name, count in found.items())


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _readable(size: float) -> str:
    """Return a number of bytes as RocketMQ writes it: ``236.8 GiB``."""
    if size < _KIB:
        return f"{int(size)} B"
    for unit in "KMGTPE":
        size /= _KIB
        if size < _KIB or unit == "E":
            break
    return f"{size:.1f} {unit}iB"
