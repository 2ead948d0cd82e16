"""Reads the broker's counters when somebody asks for metrics, and puts them into Prometheus's text format.

It runs in a reader thread beside the event loop, which goes on meanwhile: it only reads, and takes a copy (one step of
the interpreter) of whatever the loop may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ....protocol.commands import COMMANDS, PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID
from ....protocol.errors import ERRORS_BY_CODE, RESULT_NAMES
from ...latency import BOUNDS_S, Latencies
from ...store.sizes import store_sizes
from ..handlers.context import Broker
from ..handlers.hello import VERSION
from . import catalog
from .catalog import Metric

Rows = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and the figure."""

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

TIMED_COMMANDS = (PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID)
"""Commands whose latency is shown by buckets."""

_BOUND_LABELS = (*map(str, BOUNDS_S), "+Inf")


class BrokerCollector(Collector):
    """All metrics of ``catalog.METRICS``, of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Family]:
        """The families, each with its samples as they are now."""
        yield from self._broker_itself()
        yield from self._traffic()
        yield from self._requests()
        yield from self._waiting()
        yield from self._store()
        yield from self._disk()

    def _broker_itself(self) -> Iterator[Family]:
        broker = self._broker
        server = broker.settings.server
        yield _family(catalog.BUILD_INFO, [((VERSION, broker.settings.flush.policy, server.name), 1)])
        yield _single(catalog.WRITABLE, 0 if broker.write_refusal() else 1)
        yield _single(catalog.RECOVERY, broker.recovery_seconds)

    def _traffic(self) -> Iterator[Family]:
        topics = [(topic.name,) for topic in self._broker.store.topics]
        counters = self._broker.counters
        for direction, messages, body_bytes in (
            (counters.produced, catalog.PRODUCED_MESSAGES, catalog.PRODUCED_BYTES),
            (counters.pulled, catalog.PULLED_MESSAGES, catalog.PULLED_BYTES),
        ):
            of = direction.by_topic.get
            rows = [(labels, of(labels[0])) for labels in topics]
            yield _family(messages, ((labels, row.messages if row else 0) for labels, row in rows))
            yield _family(body_bytes, ((labels, row.bytes if row else 0) for labels, row in rows))

    def _requests(self) -> Iterator[Family]:
        counters = self._broker.counters
        counted = {code: (list(latencies.counts), latencies.seconds) for code, latencies in counters.latencies.items()}
        yield _family(
            catalog.REQUESTS, (((COMMANDS[code].name,), sum(counts)) for code, (counts, _) in counted.items())
        )
        timed = _histogram(catalog.REQUEST_SECONDS)
        for command in TIMED_COMMANDS:
            _add_latencies(timed, (command.name,), *counted[command.code])
        yield timed
        flush = _histogram(catalog.FLUSH_SECONDS)
        _add_latencies(flush, (), *_copy(self._broker.flush.latencies))
        yield flush
        errors = dict(counters.errors)
        names = {code: known.name for code, known in ERRORS_BY_CODE.items()}
        codes = dict.fromkeys([*names, *errors])
        yield _family(
            catalog.ERRORS,
            (((names.get(code) or RESULT_NAMES.get(code, str(code)),), errors.get(code, 0)) for code in codes),
        )
        yield _single(catalog.ONE_WAY_ERRORS, counters.one_way_errors)

    def _waiting(self) -> Iterator[Family]:
        broker, counters = self._broker, self._broker.counters
        yield _single(catalog.CONNECTIONS, broker.connections)
        yield _single(catalog.CONNECTIONS_ACCEPTED, counters.connections_accepted)
        yield _single(catalog.CONNECTIONS_REFUSED, counters.connections_refused)
        yield _single(catalog.IN_FLIGHT, broker.in_flight_bytes)
        yield _single(catalog.HELD_PULLS, len(broker.holds))

    def _store(self) -> Iterator[Family]:
        store = self._broker.store
        yield _single(catalog.TOPICS, len(store.topics))
        yield _single(catalog.QUEUES, len(store.queues.rows))
        yield _family(catalog.GROUP_LAG, self._lags())
        behind = self._broker.stats.lags()
        yield _family(catalog.BEHIND_BYTES, (((stage,), count) for stage, (count, _) in behind.items()))
        yield _family(catalog.BEHIND_SECONDS, (((stage,), seconds) for stage, (_, seconds) in behind.items()))
        sizes = store_sizes(store)
        yield _family(catalog.SEGMENTS, (((kind,), size.files) for kind, size in sizes.items()))
        yield _family(catalog.STORE_BYTES, (((kind,), size.bytes) for kind, size in sizes.items()))

    def _lags(self) -> Rows:
        store = self._broker.store
        lags: dict[tuple[str, ...], float] = {}
        for group, topic, queue_id, committed in store.consumer_offsets.all_committed():
            queue = store.queues.get(topic, queue_id)
            if store.topics.get(topic) is not None:
                lag = queue.max_offset - committed if queue is not None else 0
                lags[group, topic] = lags.get((group, topic), 0) + max(lag, 0)
        return lags.items()

    def _disk(self) -> Iterator[Family]:
        stats = self._broker.stats
        yield _single(catalog.DISK_FREE, stats.disk.free_bytes)
        yield _single(catalog.DISK_TOTAL, stats.disk.used_bytes + stats.disk.free_bytes)
        yield _single(catalog.DISK_ROOM, stats.room_bytes())
        yield _single(catalog.DISK_RUNWAY, stats.runway_seconds())


class Metrics:
    """The metrics of one broker, as text."""

    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(broker))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All of them in Prometheus's text format. Tens of milliseconds with a thousand topics: not for the loop."""
        return generate_latest(self._registry)


# ---- families ----


def _family(metric: Metric, rows: Rows) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _single(metric: Metric, value: float) -> Family:
    return _family(metric, [((), value)])


def _histogram(metric: Metric) -> HistogramMetricFamily:
    return HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _copy(latencies: Latencies) -> tuple[list[int], float]:
    return list(latencies.counts), latencies.seconds


def _add_latencies(family: HistogramMetricFamily, labels: tuple[str, ...], counts: list[int], seconds: float) -> None:
    buckets = []
    total = 0
    for bound, count in zip(_BOUND_LABELS, counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, sum_value=seconds)
