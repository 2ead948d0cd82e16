"""The metrics port of a real broker: its samples, and its health pages."""

from __future__ import annotations

import math
import re
import time

import msgpack
import pytest

from flintmq.broker.metrics.catalog import METRICS, Metric
from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, PRODUCE, PULL
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.storage.record import decode_record
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection, RunningBroker
from tests.dead_letter_tools import send_back
from tests.group_tools import joined, until
from tests.metrics_tools import TIMEOUT_S, Scrape, metrics_port, page
from tests.store_tools import split_answer

# ---- samples ----


def test_the_families_are_those_of_the_catalog(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"x", queue=0).raise_for_error()
    fields = {"group": topic, "topic": topic, "count": 1}
    connection.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 0)).raise_for_error()
    member = joined(connect(shared_broker), topic, "m-1", topic)
    send_back(connection, topic, [store_offset(connection, topic)])
    scrape = Scrape(shared_broker)
    member.leave()
    shown = {family.name: family for family in scrape.families.values()}
    # `test_replica_set.py` and `test_archive_status.py` have the series of a broker of a set, or with an archive.
    of_others = ("flintmq_replica_", "flintmq_archive_")
    of_a_single_broker = [metric for metric in METRICS if not metric.name.startswith(of_others)]
    assert list(shown) == [metric.name.removesuffix("_total") for metric in of_a_single_broker]
    for metric in of_a_single_broker:
        family = shown[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        assert family.samples, metric.name
        assert all(labels_of(sample.labels, metric) for sample in family.samples)


def store_offset(connection: RawConnection, topic: str) -> int:
    """Return the physical offset of the first message of a topic's queue 0."""
    (blob,) = split_answer(connection.pull(topic, 0, 0, max_count=1).body, 1)
    return decode_record(blob).physical_offset


def labels_of(labels: dict[str, str], metric: Metric) -> bool:
    return set(labels) - {"le"} == set(metric.labels)


def test_traffic_is_counted_by_topic_message_and_byte(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker)
    before = Scrape(shared_broker)
    body = b"".join(msgpack.packb([b"0123456789", {}]) for _ in range(3))
    for _ in range(4):
        connection.call(PRODUCE, {"topic": topic, "count": 3, "queue": 0}, body).raise_for_error()
    connection.pull(topic, 0, 11, wait_ms=5000).raise_for_error()  # all is dispatched
    pulled = connection.pull(topic, 0, 2, max_count=5).raise_for_error()
    after = Scrape(shared_broker)
    assert after("flintmq_produced_messages_total", topic=topic) == 12
    assert after("flintmq_produced_bytes_total", topic=topic) == 4 * len(body)
    assert after("flintmq_pulled_messages_total", topic=topic) == 1 + 5
    last = connection.pull(topic, 0, 11).raise_for_error()
    assert after("flintmq_pulled_bytes_total", topic=topic) == len(pulled.body) + len(last.body)
    for command, count in (("PRODUCE", 4), ("PULL", 2)):
        for name in ("flintmq_requests_total", "flintmq_request_seconds_count"):
            assert after(name, command=command) - before(name, command=command) == count
    assert after("flintmq_flush_seconds_count") > before("flintmq_flush_seconds_count")
    assert after("flintmq_flush_seconds_sum") > before("flintmq_flush_seconds_sum")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_pipelined_and_one_way_frames_are_all_counted(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str, flush: str
) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"x", queue=0).raise_for_error()
    before = Scrape(shared_broker)
    fields = {"topic": topic, "count": 1, "queue": 0, "flush": flush}
    body = msgpack.packb([b"x", {}])
    for _ in range(50):
        connection.send(PRODUCE, fields, body)
        connection.send_one_way(PRODUCE, fields, body)
    connection.send(PRODUCE, {**fields, "queue": 99}, body)
    codes = [connection.receive().code for _ in range(51)]
    assert codes.count(SUCCESS) == 50
    after = Scrape(shared_broker)
    name = "flintmq_request_seconds_count"
    assert after(name, command="PRODUCE") - before(name, command="PRODUCE") == 101
    name = "flintmq_errors_total"
    assert after(name, result="QUEUE_NOT_EXIST") - before(name, result="QUEUE_NOT_EXIST") == 1


def test_a_pull_that_is_held_counts_as_held_and_not_as_slow(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    connection, other = connect(running), connect(running)
    connection.produce("orders", b"x", queue=0).raise_for_error()
    assert connection.pull("orders", wait_ms=5000).code == SUCCESS
    began = time.monotonic()
    sent = connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 60_000})
    deadline = began + TIMEOUT_S
    while (scrape := Scrape(running))("flintmq_held_pulls") != 1:
        assert time.monotonic() < deadline
    assert scrape("flintmq_requests_total", command="PULL") == 1
    while time.monotonic() < began + 0.6:
        Scrape(running)
    other.produce("orders", b"y", queue=0).raise_for_error()
    assert connection.receive_for(sent).fields["count"] == 1
    held = time.monotonic() - began
    scrape = Scrape(running)
    assert scrape("flintmq_held_pulls") == 0
    assert scrape("flintmq_requests_total", command="PULL") == 2
    assert scrape("flintmq_request_seconds_sum", command="PULL") < held - 0.3
    assert scrape("flintmq_connections") == 2


def test_the_store_is_measured(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    connection = connect(running)
    for _ in range(5):
        connection.produce("orders", *[bytes(100_000)] * 10, queue=0).raise_for_error()
    connection.pull("orders", 0, 49, wait_ms=5000).raise_for_error()
    scrape = Scrape(running)
    assert 5_000_000 < scrape("flintmq_store_bytes", kind="commitlog") < 5_100_000
    assert scrape("flintmq_segments", kind="commitlog") == 2
    assert scrape("flintmq_segments", kind="consumequeue") == 1
    assert scrape("flintmq_store_bytes", kind="consumequeue") == 50 * 20
    assert scrape("flintmq_topics") == 1
    assert scrape("flintmq_queues") == 1
    assert scrape("flintmq_behind_bytes", stage="flush") == 0
    assert scrape("flintmq_behind_seconds", stage="reput") == 0
    assert 0 < scrape("flintmq_disk_free_bytes") < scrape("flintmq_disk_total_bytes")
    assert scrape("process_resident_memory_bytes") > 50_000_000
    assert abs(scrape("process_start_time_seconds") - time.time()) < 120
    info = connection.runtime_info()
    assert info["metrics_address"] == f"127.0.0.1:{metrics_port(running)}"
    assert info["commitlog_files"] == 2
    assert 0 < info["flush_p50_us"] <= info["flush_p99_us"]
    assert info["disk_free_bytes"] <= info["disk_total_bytes"]
    assert info["write_refusal"] == ""


def test_the_lag_of_a_group_is_the_sum_over_its_queues(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker)
    for queue in (0, 1, 2):
        connection.produce(topic, *[b"x"] * 10, queue=queue).raise_for_error()
        connection.pull(topic, queue, 9, wait_ms=5000).raise_for_error()
    body = CONSUMER_OFFSET_STRUCT.pack(0, 3) + CONSUMER_OFFSET_STRUCT.pack(1, 10)
    fields = {"group": "billing", "topic": topic, "count": 2}
    connection.call(commands.UPDATE_CONSUMER_OFFSET, fields, body).raise_for_error()
    scrape = Scrape(shared_broker)
    assert scrape("flintmq_group_lag_messages", group="billing", topic=topic) == 7 + 0 + 10, "the third it will read"
    assert scrape("flintmq_group_lag_unknown_queues", group="billing", topic=topic) == 0


def test_a_group_shows_its_members_with_their_messages_and_failures(
    broker: BrokerFactory, connect: ConnectionFactory, topic: str
) -> None:
    alone = broker()  # of the shared broker, members of earlier tests may expire between two scrapes
    connection, group = connect(alone), f"{topic}-g"
    connection.produce(topic, *[b"x"] * 10, queue=0).raise_for_error()
    before = Scrape(alone)
    members = [joined(connect(alone), group, name, topic) for name in ("m-1", "m-2")]
    for member in members * 2:  # the first gives up the queues that the second is to get
        member.beat(topic, owned=()).raise_for_error()
    (holder,) = [member for member in members if (topic, 0) in member.rows]
    holder.pull(topic, 0, 0, max_count=4).raise_for_error()
    send_back(connection, group, [store_offset(connection, topic)] * 3)
    send_back(connection, group, [store_offset(connection, topic)] * 2, level=18)
    scrape = Scrape(alone)
    assert scrape("flintmq_group_members", group=group) == 2
    assert scrape("flintmq_group_lag_messages", group=group, topic=topic) == 10
    assert scrape("flintmq_group_in_flight_messages", group=group, topic=topic) == 4
    assert scrape("flintmq_dead_messages_total", group=group) == scrape("flintmq_dead_letters", group=group) == 3
    assert scrape("flintmq_retried_messages_total", group=group) == 2
    assert scrape("flintmq_group_rebalances_total") > before("flintmq_group_rebalances_total")
    running = sum(scrape("flintmq_groups", state=state) for state in ("stable", "rebalancing"))
    assert running == 1 + sum(before("flintmq_groups", state=state) for state in ("stable", "rebalancing"))
    info = connection.runtime_info()
    assert (info["groups"], info["group_members"]) == (running, 2 + members_of(before))
    fields = {"group": group, "topic": f"%DLQ%{group}", "count": 1}
    connection.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 2)).raise_for_error()
    until(lambda: Scrape(alone)("flintmq_group_delayed_messages", group=group) == 2)
    for member in members:
        member.leave()
    after = Scrape(alone)
    assert after("flintmq_dead_letters", group=group) == 1
    assert ("flintmq_group_members", frozenset({("group", group)})) not in after.samples
    dead = frozenset({("group", group), ("topic", f"%DLQ%{group}")})
    assert ("flintmq_group_lag_messages", dead) not in after.samples, "dead letters are not lag"
    assert after("flintmq_groups", state="empty") == before("flintmq_groups", state="empty") + 1


def members_of(scrape: Scrape) -> float:
    """Return the number of members of all groups."""
    return sum(value for (name, _), value in scrape.samples.items() if name == "flintmq_group_members")


def test_a_thousand_groups_are_shown(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    connection = connect(running := broker())
    connection.produce("orders", *[b"x"] * 10, queue=0).raise_for_error()
    connection.pull("orders", 0, 9, wait_ms=5000).raise_for_error()
    for number in range(1000):
        fields = {"group": f"group-{number}", "topic": "orders", "count": 1}
        connection.send(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, number % 11))
    assert {connection.receive().code for _ in range(1000)} == {SUCCESS}
    scrape = Scrape(running)
    assert scrape("flintmq_groups", state="empty") == 1000
    lags = [scrape("flintmq_group_lag_messages", group=f"group-{n}", topic="orders") for n in range(1000)]
    assert lags == [10 - n % 11 for n in range(1000)]


def test_a_topic_that_is_deleted_leaves_the_metrics_and_stays_in_the_totals(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    connection = connect(running := broker())
    connection.produce("gone", b"x", b"y").raise_for_error()
    connection.produce("stays", b"x").raise_for_error()
    connection.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}).raise_for_error()
    topics = {
        dict(labels)["topic"] for name, labels in Scrape(running).samples if name == "flintmq_produced_bytes_total"
    }
    assert topics == {"stays"}
    assert connection.runtime_info()["produced_messages"] == 3


def test_a_thousand_topics_are_shown(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    connection = connect(running := broker())
    names = [f"topic-{number}" for number in range(1000)]
    for name in names:
        connection.send(commands.UPDATE_AND_CREATE_TOPIC, {"topic": name})
    assert {connection.receive().code for _ in names} == {SUCCESS}
    scrape = Scrape(running)
    assert all(scrape("flintmq_produced_messages_total", topic=name) == 0 for name in names)
    assert scrape("flintmq_topics") == 1000


# ---- health ----


def test_a_broker_that_serves_is_well_and_ready(shared_broker: RunningBroker) -> None:
    assert page(shared_broker, "/healthz") == (200, "ok\n")
    assert page(shared_broker, "/readyz") == (200, "ready\n")


def test_a_disk_that_is_too_full_shows_as_not_ready_and_still_well(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    full = {
        "retention.disk_refuse_percent": 1,
        "retention.headroom_bytes": 2**60,
        "background.services:RETENTION_CHECK_S": 0.02,
    }
    running = broker(settings=full)
    connection = connect(running)
    deadline = time.monotonic() + TIMEOUT_S
    while (ready := page(running, "/readyz"))[0] == 200:
        assert time.monotonic() < deadline
    assert ready[0] == 503
    assert "retention.disk_refuse_percent" in ready[1]
    assert page(running, "/healthz") == (200, "ok\n")
    scrape = Scrape(running)
    assert scrape("flintmq_writable") == 0
    assert scrape("flintmq_disk_room_bytes") == 0
    assert scrape("flintmq_disk_runway_seconds") == 0
    info = connection.runtime_info()
    # Each states how many bytes were free at its own time.
    assert re.sub(r"[\d,.]+", "#", info["write_refusal"]) in re.sub(r"[\d,.]+", "#", ready[1])


def test_the_runway_is_infinite_if_nothing_is_written(broker: BrokerFactory) -> None:
    assert Scrape(broker())("flintmq_disk_runway_seconds") == math.inf


def test_a_broker_that_stops_is_not_ready_and_answers_up_to_the_end(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker(settings={"server.stop_timeout_ms": 60_000, "limits.slow_reader_timeout_ms": 600_000})
    connection = connect(running)
    for _ in range(10):
        connection.produce("orders", *[bytes(100_000)] * 10, queue=0).raise_for_error()
    connection.pull("orders", 0, 99, wait_ms=5000)
    for _ in range(40):  # more than the client takes: the stop waits for it
        connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 0, "max_bytes": 10_000_000})
    connection.sock.recv(1)
    running.process.terminate()
    deadline = time.monotonic() + TIMEOUT_S
    while (ready := page(running, "/readyz"))[0] == 200:
        assert time.monotonic() < deadline
    assert ready == (503, "stopping\n")
    assert page(running, "/healthz") == (200, "ok\n")
    assert page(running, "/metrics") == (503, "stopping\n")
    assert running.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        page(running, "/readyz")
