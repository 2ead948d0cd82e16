"""The streaming source through a real Spark and a real broker."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Producer
from flintmq.client.spark import offsets_behind_latest
from tests.conftest import BrokerFactory, RunningBroker

_names = (f"stream_{number}" for number in itertools.count())


class Query:
    """A query from the source into memory, with a checkpoint from which it continues after a restart."""

    def __init__(self, spark: Any, folder: Path, options: dict[str, Any]) -> None:
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self._output = folder / "output"
        self._options = options

    def start(self, *, available_now: bool = False, **options: Any) -> Any:
        """Start the query and return it."""
        reader = self._spark.readStream.format("flintmq").options(**{**self._options, **options})
        frame = reader.load().selectExpr("topic", "queue", "queue_offset", "cast(body AS string) AS body")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self._checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        return writer.start(str(self._output))

    def run(self, **options: Any) -> Any:
        """Read the messages that are there; return the ended query."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(120), "the query did not end"
        return query

    def bodies(self) -> Counter[str]:
        """Return the bodies of the output so far."""
        if not self._output.exists():
            return Counter()
        return Counter(row.body for row in self._spark.read.schema("body string").parquet(str(self._output)).collect())

    def offsets(self) -> list[dict[str, int]]:
        """Return the offsets of each micro-batch, from the checkpoint."""
        logs = sorted(
            (self._checkpoint / "offsets").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1
        )
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs if log.name.isdigit()]

    def wait_for(self, query: Any, bodies: Counter[str]) -> None:
        """Wait until the query has output all of these. Each round waits for the input that Spark knows so far."""
        while self.bodies() != bodies:
            assert not bodies - bodies or query.isActive
            query.processAllAvailable()
            assert query.exception() is None


@pytest.fixture
def query(spark: Any, tmp_path: Path, shared_broker: RunningBroker, topic: str) -> Callable[..., Query]:
    """Return ``query(option=value, …)``: over ``topic`` of the shared broker, unless options say otherwise."""

    def make(**options: Any) -> Query:
        subscribed = {} if "subscribePattern" in options else {"subscribe": topic}
        return Query(spark, tmp_path, {"bootstrap": shared_broker.address, **subscribed, **options})

    return make


def send(broker: RunningBroker, topic: str, numbers: range, queue: int | None = None) -> Counter[str]:
    """Send messages with these numbers; return their bodies."""
    bodies = [f"{topic} {number}" for number in numbers]
    with Producer(broker.address) as producer:
        producer.send_bulk(topic, [body.encode() for body in bodies], queue=queue)
    return Counter(bodies)


def create(broker: RunningBroker, topic: str, queues: int = 2) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, queues=queues)


def test_a_query_reads_the_topic_and_continues_from_its_checkpoint(
    query: Any, shared_broker: RunningBroker, topic: str
) -> None:
    create(shared_broker, topic)
    flow = query(startingOffsets="earliest")
    sent = send(shared_broker, topic, range(50), 0) + send(shared_broker, topic, range(50, 70), 1)
    flow.run()
    assert flow.bodies() == sent
    assert flow.offsets() == [{f"{topic}/0": 50, f"{topic}/1": 20}]
    flow.run()  # nothing new
    sent += send(shared_broker, topic, range(70, 100), 1)
    flow.run(startingOffsets="latest")  # for a query without a checkpoint; this one has a checkpoint
    assert flow.bodies() == sent
    assert flow.offsets()[-1] == {f"{topic}/0": 50, f"{topic}/1": 50}


def test_a_trigger_reads_up_to_its_limit_and_the_progress_shows_the_lag(
    query: Any, shared_broker: RunningBroker, topic: str
) -> None:
    create(shared_broker, topic)
    sent = send(shared_broker, topic, range(90), 0) + send(shared_broker, topic, range(90, 100), 1)
    flow = query(startingOffsets="earliest", maxOffsetsPerTrigger=30, minPartitions=3)
    ended = flow.run()
    assert flow.bodies() == sent
    assert flow.offsets()[0] == {f"{topic}/0": 26, f"{topic}/1": 4}  # each by its share
    progress = [json.loads(each.json) for each in ended.recentProgress]
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [30, 30, 30, 10]
    source = progress[0]["sources"][0]
    assert source["endOffset"] == {f"{topic}/0": 26, f"{topic}/1": 4}
    assert source["latestOffset"] == {f"{topic}/0": 90, f"{topic}/1": 10}
    assert offsets_behind_latest(ended.recentProgress[0].sources[0]) == {
        "minOffsetsBehindLatest": 6,
        "maxOffsetsBehindLatest": 64,
        "avgOffsetsBehindLatest": 35.0,
    }


def test_a_continuing_query_sees_new_messages_queues_and_topics(
    query: Any, shared_broker: RunningBroker, topic: str
) -> None:
    create(shared_broker, topic, queues=1)
    send(shared_broker, topic, range(1000, 1010))  # before the query, which begins at the end
    flow = query(subscribePattern=f"{topic}.*")
    running = flow.start()
    try:
        running.processAllAvailable()
        sent = send(shared_broker, topic, range(10))
        flow.wait_for(running, sent)
        create(shared_broker, topic, queues=2)
        sent += send(shared_broker, topic, range(10, 20), 1)
        create(shared_broker, f"{topic}-more", queues=1)
        sent += send(shared_broker, f"{topic}-more", range(20, 30))
        flow.wait_for(running, sent)
    finally:
        running.stop()
    assert flow.offsets()[-1] == {f"{topic}/0": 20, f"{topic}/1": 10, f"{topic}-more/0": 10}


def test_a_query_survives_a_restart_of_the_broker(spark: Any, broker: BrokerFactory, tmp_path: Path) -> None:
    first = broker()
    create(first, "orders")
    sent = send(first, "orders", range(20), 0)
    flow = Query(spark, tmp_path, {"bootstrap": first.address, "subscribe": "orders", "startingOffsets": "earliest"})
    running = flow.start()
    try:
        flow.wait_for(running, sent)
        first.kill()
        second = broker("--listen", first.address, store=first.store)
        sent += send(second, "orders", range(20, 40), 1)
        flow.wait_for(running, sent)
    finally:
        running.stop()
    assert flow.offsets()[-1] == {"orders/0": 20, "orders/1": 20}


def test_expired_messages_fail_the_query_or_are_skipped(query: Any, shared_broker: RunningBroker, topic: str) -> None:
    create(shared_broker, topic, queues=1)
    sent = send(shared_broker, topic, range(10))
    flow = query(startingOffsets="earliest")
    flow.run()
    with Admin(shared_broker.address) as admin:
        admin.delete_topic(topic)
    create(shared_broker, topic, queues=1)
    send(shared_broker, topic, range(10, 15))  # at offsets 10 to 14: none of them is lost
    with Admin(shared_broker.address) as admin:
        admin.delete_topic(topic)
    create(shared_broker, topic, queues=1)
    sent += send(shared_broker, topic, range(15, 20))
    with pytest.raises(Exception, match=rf"DataLoss: the messages \[10, 15\) of queue 0 of topic '{topic}'"):
        flow.run()
    assert flow.bodies() + Counter(f"{topic} {n}" for n in range(15, 20)) == sent
    flow.run(failOnDataLoss="false")
    assert flow.bodies() == sent


def test_a_deleted_topic_fails_a_continuing_query_or_is_skipped(
    spark: Any, query: Any, shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    for each in (topic, other):
        create(shared_broker, each, queues=1)
    sent = send(shared_broker, topic, range(10)) + send(shared_broker, other, range(10))
    options = {"bootstrap": shared_broker.address, "subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    strict = Query(spark, tmp_path / "strict", options)
    lenient = Query(spark, tmp_path / "lenient", {**options, "failOnDataLoss": "false"})
    running, going_on = strict.start(), lenient.start()
    try:
        strict.wait_for(running, sent)
        lenient.wait_for(going_on, sent)
        with Admin(shared_broker.address) as admin:
            admin.delete_topic(other)
        with pytest.raises(Exception, match=f"DataLoss: .* of queue 0 of topic '{other}'"):
            running.awaitTermination(60)
        sent += send(shared_broker, topic, range(10, 20))
        lenient.wait_for(going_on, sent)
    finally:
        running.stop()
        going_on.stop()


def test_queues_of_several_brokers_are_distinguished(spark: Any, broker: BrokerFactory, tmp_path: Path) -> None:
    east, west = broker(), broker()
    for running in (east, west):
        create(running, "orders", queues=1)
    bootstrap = f"east={east.address}, west={west.address}"
    flow = Query(spark, tmp_path, {"bootstrap": bootstrap, "subscribe": "orders", "startingOffsets": "earliest"})
    sent = send(east, "orders", range(10)) + send(west, "orders", range(10, 40))
    flow.run()
    assert flow.bodies() == sent
    assert flow.offsets() == [{"orders/0@east": 10, "orders/0@west": 30}]
    with pytest.raises(Exception, match="the checkpoint has offsets of the broker 'west'"):
        flow.run(bootstrap=f"east={east.address}")


class SlowBrokers:
    """Broker clients that take half a second for each response, by a clock of their own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0

    def topics(self, *, begun: bool) -> dict[str, list[str]]:
        return {}

    def stats(self, topics: dict[str, list[str]]) -> dict[Any, Any]:
        self.asked += 1
        self.now += 0.5
        return {}


def test_a_slow_broker_is_asked_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    from flintmq.client.spark import stream

    brokers = SlowBrokers()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        brokers.now += seconds

    monkeypatch.setattr("flintmq.client.spark.stream.time.monotonic", lambda: brokers.now)
    monkeypatch.setattr("flintmq.client.spark.stream.time.sleep", pause)
    reader = stream.StreamReader(options=None, columns=())  # type: ignore[arg-type]  # no option is read
    for _ in range(2):
        reader._ask(brokers)  # type: ignore[arg-type]  # a stand-in
        brokers.now += 0.06
    assert brokers.asked == 2
    assert pauses == [pytest.approx(0.04)]


def test_latest_offset_has_each_message_sent_before(broker: BrokerFactory) -> None:
    """``processAllAvailable`` relies on it: a response from before a send would end it too early."""
    from flintmq.client.spark.options import read_options
    from flintmq.client.spark.stream import StreamReader

    running = broker()
    create(running, "orders", queues=1)
    reader = StreamReader(read_options({"bootstrap": running.address, "subscribe": "orders"}), ())
    start = reader.initialOffset()
    for sent in range(1, 21):
        send(running, "orders", range(sent, sent + 1))
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == {"orders/0": sent}
