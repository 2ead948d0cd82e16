"""Rates of messages over the last minutes, hours and days, in the forms that RocketMQ's tools print."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...protocol.errors import (
    BrokerFailure,
    FlushDiskTimeout,
    NoPermission,
    NotEnoughReplicas,
    ServiceNotAvailable,
    SystemBusy,
)
from ...protocol.remoting.command import VERSION
from ..addresses import parse_address
from ..config import Settings, value_of
from ..handlers.broker_admin import HOT_SETTINGS, runtime_info
from ..latency import BOUNDS_S, quantile
from ..requests.broker import Broker
from ..requests.counters import Counters, Traffic

SAMPLE_S = 10.0
TOPICS_MAX = 1_000
"""Maximum number of topics with figures of their own; 39 samples of each are kept."""
READERS_MAX = 1_000
"""Maximum number of groups' topics with figures of their own, if others were read in the last day."""
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
_RATE_SAMPLES = (1, 6, 60)
"""Samples back from now for the three rates: 10 seconds, a minute, 10 minutes."""
_NOTHING = (0, 0)


@dataclass(slots=True)
class _Sample:
    """Counters at one moment. ``at``: seconds, monotonic; ``put``: messages and bytes by topic; ``got``: by topic and
    group."""

    at: float
    put_messages: int
    get_messages: int
    put: dict[str, tuple[int, int]]
    got: dict[str, tuple[int, int]]


@dataclass(slots=True)
class _Span:
    """Samples of a period, oldest first: one of every ``every`` is kept."""

    every: int
    samples: deque[_Sample] = field(default_factory=deque)


class TrafficFigures:
    """Samples of the broker's counters. Belongs to the event loop. ``clock``: seconds, monotonic;
    ``log_began``: physical offset of the log's end at the start."""

    def __init__(self, counters: Counters, clock: Callable[[], float], log_began: int) -> None:
        self._counters = counters
        self._clock = clock
        self.log_began = log_began
        self._got: dict[str, tuple[int, int]] = {}
        """Messages and bytes that RocketMQ's consumers got, by ``topic@group``."""
        self._count = 0
        self._totals: deque[_Sample] = deque(maxlen=max(_RATE_SAMPLES) + 1)
        # One sample more than steps: 6 of 10 seconds, 6 of 10 minutes, 24 of an hour.
        self._spans = {
            "statsMinute": _Span(1, deque(maxlen=7)),
            "statsHour": _Span(60, deque(maxlen=7)),
            "statsDay": _Span(360, deque(maxlen=25)),
        }
        self._day = -1
        self._mornings = [(0, 0), (0, 0)]
        """Messages produced and pulled until the last two midnights since the start: yesterday's, today's."""
        self.sample()

    def sample(self) -> None:
        now = self._now()
        for span in self._spans.values():
            if self._count % span.every == 0:
                span.samples.append(now)
        self._count += 1
        # Without the rows of topics and groups: the broker's rates need none.
        self._totals.append(_Sample(now.at, now.put_messages, now.get_messages, {}, {}))
        day = time.localtime().tm_yday
        if self._day not in (-1, day):
            self._mornings = [self._mornings[1], (now.put_messages, now.get_messages)]
        self._day = day

    def _now(self) -> _Sample:
        produced = self._counters.produced
        rows = {name: _pair(row) for name, row in islice(produced.by_topic.items(), TOPICS_MAX)}
        return _Sample(
            self._clock(), produced.total().messages, self._counters.pulled.total().messages, rows, self._got.copy()
        )

    def count_pulled(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count messages, and the bytes of their records, that consumers of a group got of a topic."""
        if not messages:
            return
        key = f"{topic}@{group}"
        before = self._got.get(key)
        if before is None:
            if len(self._got) >= READERS_MAX:
                # A row that is as it was a day ago is of a group that has stopped reading.
                a_day_ago = self._spans["statsDay"].samples[0].got
                self._got = {name: row for name, row in self._got.items() if a_day_ago.get(name) != row}
            if len(self._got) >= READERS_MAX:
                return
            before = _NOTHING
        self._got[key] = before[0] + messages, before[1] + size

    def rates(self) -> tuple[str, str]:
        """Return the messages a second that were produced, and pulled: in 10 seconds, a minute and 10 minutes."""
        now = self._now()
        put, get = [], []
        for back in _RATE_SAMPLES:
            before = self._totals[max(len(self._totals) - back, 0)]
            # At least a second, or a message right after a sample would look like a huge rate.
            seconds = max(now.at - before.at, 1.0)
            put.append((now.put_messages - before.put_messages) / seconds)
            get.append((now.get_messages - before.get_messages) / seconds)
        return _three(put), _three(get)

    def put_tps(self, topic: str) -> float:
        """Return the messages a second that were produced to a topic in the last minute."""
        found = self.of(TOPIC_PUT_NUMS, topic, "")
        return float(found["statsMinute"]["tps"]) if found is not None else 0.0

    def totals(self) -> dict[str, int]:
        """Return the messages produced and pulled since the start: now, and until the last two midnights."""
        now = self._now()
        figures = {}
        for name, index, total in (("Put", 0, now.put_messages), ("Get", 1, now.get_messages)):
            figures[f"msg{name}TotalYesterdayMorning"] = self._mornings[0][index]
            figures[f"msg{name}TotalTodayMorning"] = self._mornings[1][index]
            figures[f"msg{name}TotalTodayNow"] = total
        return figures

    def of(self, name: str, key: str, cluster: str) -> dict[str, dict[str, Any]] | None:
        """Return a figure of a topic, of a group in a topic (``topic@group``), or of the broker with the cluster's name
        as key; None if it is not known."""
        if name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            if key not in self._counters.produced.by_topic:
                return None
            column = name == TOPIC_PUT_SIZE
            return self._over_spans(lambda sample: sample.put.get(key, _NOTHING)[column])
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            if key not in self._got:
                return None
            column = name == GROUP_GET_SIZE
            return self._over_spans(lambda sample: sample.got.get(key, _NOTHING)[column])
        if name in (BROKER_PUT_NUMS, BROKER_GET_NUMS) and key == cluster:
            of_put = name == BROKER_PUT_NUMS
            return self._over_spans(lambda sample: sample.put_messages if of_put else sample.get_messages)
        return None

    def _over_spans(self, value: Callable[[_Sample], int]) -> dict[str, dict[str, Any]]:
        now = self._now()
        figures = {}
        for name, span in self._spans.items():
            before = span.samples[0]
            # A topic that was deleted and created again counts from 0.
            total = max(value(now) - value(before), 0)
            tps = total / max(now.at - before.at, 1.0)
            figures[name] = {"avgpt": 0.0, "sum": total, "tps": round(tps, 2)}
        return figures


def _pair(row: Traffic) -> tuple[int, int]:
    return row.messages, row.bytes


def _three(rates: list[float]) -> str:
    return " ".join(str(round(rate, 4)) for rate in rates)


# ---- The broker's figures under the names of RocketMQ's ``GET_BROKER_RUNTIME_INFO``.
#
# RocketMQ's tools read these names, and some fail without one. What belongs to a part that FlintMQ does not
# have, such as thread pools for sends and pulls, is 0.

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


# ---- The broker's settings under the names of RocketMQ's ``BrokerConfig`` and ``MessageStoreConfig``.

_NAMES = {
    "autoCreateTopicEnable": "topics.auto_create",
    "defaultTopicQueueNums": "topics.default_queues",
    "deleteWhen": "retention.delete_when",
    "diskMaxUsedSpaceRatio": "retention.disk_clean_percent",
    "fileReservedTime": "retention.file_reserved_hours",
    "mappedFileSizeCommitLog": "store.commitlog_file_bytes",
    "mappedFileSizeConsumeQueue": "store.consumequeue_file_bytes",
    "maxHashSlotNum": "store.index_slots",
    "maxIndexNum": "store.index_entries",
    "maxMessageSize": "store.message_bytes_max",
    "storePathRootDir": "store.path",
    "transactionCheckInterval": "transactions.check_interval_ms",
    "transactionCheckMax": "transactions.check_times_max",
    "transactionTimeOut": "transactions.timeout_ms",
}
"""FlintMQ's setting for each of RocketMQ's that has one."""


def rocketmq_settings(settings: Settings, broker_name: str, cluster: str, address: str) -> dict[str, str]:
    """Return the settings by RocketMQ's names. ``address``: HOST:PORT for RocketMQ's clients."""
    host, port = parse_address(address)
    values: dict[str, Any] = {
        "brokerClusterName": cluster,
        "brokerId": 0,
        "brokerIP1": host,
        "brokerName": broker_name,
        "brokerPermission": 6,
        "brokerRole": "SYNC_MASTER" if settings.replication.set else "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if settings.flush.policy == "sync" else "ASYNC_FLUSH",
        "listenPort": port,
        "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "namesrvAddr": settings.remoting.name_servers,
        "timerWheelEnable": True,
        **{name: value_of(settings, own) for name, own in _NAMES.items()},
        # After the names: the setting itself may be the word ``loopback``.
        "autoCreateTopicEnable": settings.auto_create_topics(),
    }
    return {name: _text(value) for name, value in sorted(values.items())}


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def own_changes(values: Mapping[str, str]) -> dict[str, str]:
    """Return changes by the names of FlintMQ's settings. Raises ``NoPermission`` if one of them has no such name.

    Names that may not be changed are refused as a whole: a remote change of RocketMQ's other settings has run commands
    on its machines before (CVE-2023-33246).
    """
    changeable = sorted(name for name, own in _NAMES.items() if own in HOT_SETTINGS)
    changes = {}
    for name, value in values.items():
        if name not in changeable:
            raise NoPermission(
                f"setting {name[:80]} cannot be changed by UPDATE_BROKER_CONFIG, only {', '.join(changeable)}; nothing "
                "was changed. FlintMQ's other settings: `flintmq config set`, or the file of `serve --config`"
            )
        changes[_NAMES[name]] = value
    return changes
