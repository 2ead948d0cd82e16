"""The metrics port of a real broker: its pages, the bad requests it survives, and its address."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flintmq.broker.metrics.catalog import METRICS, Metric
from flintmq.broker.metrics.endpoint import listen_for_metrics
from flintmq.broker.metrics.http import CONNECTIONS_MAX, HEAD_BYTES_MAX
from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, GET_BROKER_RUNTIME_INFO, PRODUCE, PULL
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.storage.record import decode_record
from tests.conftest import BrokerFactory, RawConnection, RunningBroker
from tests.dead_letter_tools import send_back
from tests.group_tools import joined
from tests.integration.test_daemon import assert_refused, serve
from tests.store_tools import split_answer

Factory: TypeAlias = Callable[..., RunningBroker]
Connect: TypeAlias = Callable[..., RawConnection]
Labels: TypeAlias = frozenset[tuple[str, str]]

TIMEOUT_S = 30.0


def metrics_port(broker: RunningBroker) -> int:
    """Return the port that the banner names."""
    (line,) = [line for line in broker.output if line.startswith("metrics: ")]
    match = re.fullmatch(r"metrics: http://127\.0\.0\.1:(\d+)/metrics", line)
    assert match, line
    return int(match[1])


def ask(port: int, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    """Return the response for a page, and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def page(broker: RunningBroker, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    answer, body = ask(metrics_port(broker), path)
    return answer.status, body.decode()


class Scrape:
    """All samples of one scrape."""

    def __init__(self, broker: RunningBroker) -> None:
        status, text = page(broker, "/metrics")
        assert status == 200
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]


# ---- samples ----


def test_the_families_are_those_of_the_catalog(shared_broker: RunningBroker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"x", queue=0).raise_for_error()
    fields = {"group": topic, "topic": topic, "count": 1}
    connection.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 0)).raise_for_error()
    member = joined(connect(shared_broker), topic, "m-1", topic)
    send_back(connection, topic, [store_offset(connection, topic)])
    scrape = Scrape(shared_broker)
    member.leave()
    shown = {family.name: family for family in scrape.families.values()}
    assert list(shown) == [metric.name.removesuffix("_total") for metric in METRICS]
    for metric in METRICS:
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
    shared_broker: RunningBroker, connect: Connect, topic: str
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
    shared_broker: RunningBroker, connect: Connect, topic: str, flush: str
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


def test_a_pull_that_is_held_counts_as_held_and_not_as_slow(broker: Factory, connect: Connect) -> None:
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


def test_the_store_is_measured(broker: Factory, connect: Connect) -> None:
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
    info = msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO).body)
    assert info["metrics_address"] == f"127.0.0.1:{metrics_port(running)}"
    assert info["commitlog_files"] == 2
    assert 0 < info["flush_p50_us"] <= info["flush_p99_us"]
    assert info["disk_free_bytes"] <= info["disk_total_bytes"]
    assert info["write_refusal"] == ""


def test_the_lag_of_a_group_is_the_sum_over_its_queues(
    shared_broker: RunningBroker, connect: Connect, topic: str
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
    broker: BrokerFactory, connect: Connect, topic: str
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
    info = msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO).body)
    assert (info["groups"], info["group_members"]) == (running, 2 + members_of(before))
    fields = {"group": group, "topic": f"%DLQ%{group}", "count": 1}
    connection.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 2)).raise_for_error()
    wait_for(lambda: Scrape(alone)("flintmq_group_delayed_messages", group=group) == 2)
    for member in members:
        member.leave()
    after = Scrape(alone)
    assert after("flintmq_dead_letters", group=group) == 1
    assert ("flintmq_group_members", frozenset({("group", group)})) not in after.samples
    dead = frozenset({("group", group), ("topic", f"%DLQ%{group}")})
    assert ("flintmq_group_lag_messages", dead) not in after.samples, "dead letters are no lag"
    assert after("flintmq_groups", state="empty") == before("flintmq_groups", state="empty") + 1


def members_of(scrape: Scrape) -> float:
    """Return the number of members of all groups."""
    return sum(value for (name, _), value in scrape.samples.items() if name == "flintmq_group_members")


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until ``holds()`` is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline


def test_a_thousand_groups_are_shown(broker: Factory, connect: Connect) -> None:
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


def test_a_topic_that_is_deleted_leaves_the_metrics_and_stays_in_the_totals(broker: Factory, connect: Connect) -> None:
    connection = connect(running := broker())
    connection.produce("gone", b"x", b"y").raise_for_error()
    connection.produce("stays", b"x").raise_for_error()
    connection.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}).raise_for_error()
    topics = {
        dict(labels)["topic"] for name, labels in Scrape(running).samples if name == "flintmq_produced_bytes_total"
    }
    assert topics == {"stays"}
    assert msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO).body)["produced_messages"] == 3


def test_a_thousand_topics_are_shown(broker: Factory, connect: Connect) -> None:
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


def test_a_disk_that_is_too_full_shows_as_not_ready_and_still_well(broker: Factory, connect: Connect) -> None:
    full = {"retention.disk_refuse_percent": 1, "retention.headroom_bytes": 2**60, "retention.check_interval_ms": 20}
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
    info = msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO).body)
    # Each states how many bytes were free at its own time.
    assert re.sub(r"[\d,.]+", "#", info["write_refusal"]) in re.sub(r"[\d,.]+", "#", ready[1])


def test_the_runway_is_infinite_if_nothing_is_written(broker: Factory) -> None:
    assert Scrape(broker())("flintmq_disk_runway_seconds") == math.inf


def test_a_broker_that_stops_is_not_ready_and_answers_up_to_the_end(broker: Factory, connect: Connect) -> None:
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


# ---- HTTP ----


def test_head_is_answered_without_a_body(shared_broker: RunningBroker) -> None:
    answer, body = ask(metrics_port(shared_broker), "/metrics", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/healthz?verbose=1", 200),
        ("GET", "/nothing", 404),
        ("GET", "/../etc/passwd", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_missing_paths_are_reported(shared_broker: RunningBroker, method: str, path: str, status: int) -> None:
    answer, _ = ask(metrics_port(shared_broker), path, method)
    assert answer.status == status
    if status == 405:
        assert answer.headers["Allow"] == "GET, HEAD"


def exchange(port: int, *parts: bytes, finish: bool = False) -> bytes:
    """Send bytes unchanged; return whatever arrives until the broker closes."""
    received = b""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    with sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        for part in parts:
            sock.sendall(part)
        if finish:
            sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"GET /healthz HTTP/1.1\r\nHost: localhost:1\r\n\r\n"], b"200"),
        ([b"GET /healthz HTTP/1.1\r\nHost: rebound.example\r\n\r\n"], b"421"),
        ([b"GET /metrics HTTP/1.1\nhost: rebound.example\n\n"], b"421"),
        ([b"GET /healthz HTTP/1.0\n\n"], b"200"),
        ([b"GET /hea", b"lthz HTTP/1.1\r", b"\n\r", b"\n"], b"200"),
        ([b"GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"], b"200"),
        ([b"\0\xff" * 100 + b"\r\n\r\n"], b"400"),
        ([b"GET /healthz\r\n\r\n"], b"400"),
        ([b"GET /a b HTTP/1.1\r\n\r\n"], b"400"),
        ([b"GET /healthz HTTP/2.0\r\n\r\n"], b"400"),
        ([b"GET /" + b"x" * 4000 + b" HTTP/1.1\r\n\r\n"], b"400"),
        ([b"\r\n\r\n"], b"400"),
        ([b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX], b"431"),
        ([b"x" * 1_000_000], b"431"),
    ],
)
def test_any_bytes_get_one_answer(shared_broker: RunningBroker, parts: list[bytes], status: bytes) -> None:
    answer = exchange(metrics_port(shared_broker), *parts)
    assert answer.startswith(b"HTTP/1.1 " + status + b" ")
    assert answer.count(b"\r\nContent-Length: ") == 1
    assert page(shared_broker, "/healthz")[0] == 200


def test_a_client_that_closes_its_half_still_gets_its_answer(shared_broker: RunningBroker) -> None:
    answer = exchange(metrics_port(shared_broker), b"GET /metrics HTTP/1.1\r\n\r\n", finish=True)
    assert b"flintmq_build_info" in answer


def test_half_a_request_and_nothing_more_is_closed_without_an_answer(shared_broker: RunningBroker) -> None:
    assert exchange(metrics_port(shared_broker), b"GET /heal", finish=True) == b""


def test_silent_clients_keep_neither_the_port_nor_the_broker(broker: Factory, connect: Connect) -> None:
    running = broker()
    port = metrics_port(running)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            for _ in range(CONNECTIONS_MAX + 20)
        ]
        for sock in silent:
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /metrics HTT")
        connect(running).produce("orders", b"x").raise_for_error()
        assert page(running, "/healthz")[0] == 200, "a new connection takes the place of a silent one"
        answers = []
        for sock in silent:
            with contextlib.suppress(ConnectionResetError):
                answers.append(sock.recv(100))
        answered = [answer for answer in answers if answer]
        assert CONNECTIONS_MAX - 2 <= len(answered) <= CONNECTIONS_MAX
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answered)
    assert page(running, "/healthz")[0] == 200


def test_a_client_that_does_not_read_delays_no_other(broker: Factory, connect: Connect) -> None:
    connection = connect(running := broker())
    for number in range(500):
        connection.send(commands.UPDATE_AND_CREATE_TOPIC, {"topic": f"{number}-{'x' * 100}"})
    assert {connection.receive().code for _ in range(500)} == {SUCCESS}
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", metrics_port(running)))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert Scrape(running)("flintmq_topics") == 500
        connection.produce("orders", b"x").raise_for_error()


# ---- address ----


def test_the_metrics_port_follows_the_brokers(broker: Factory) -> None:
    for _ in range(20):
        with socket.socket() as probe, socket.socket() as next_one:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
        running = broker("--listen", f"127.0.0.1:{port}")
        assert metrics_port(running) == port + 1
        return
    pytest.fail("no two free ports were found")


def test_a_port_that_is_taken_is_given_way_to(broker: Factory) -> None:
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1] - 1
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            running = broker("--listen", f"127.0.0.1:{port}")
            assert metrics_port(running) != port + 1
            assert page(running, "/readyz") == (200, "ready\n")
            return
    pytest.fail("no two free ports were found")


def test_a_chosen_port_is_used(broker: Factory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    running = broker(settings={"metrics.listen": f"127.0.0.1:{port}"})
    assert metrics_port(running) == port


def test_a_chosen_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        store = tmp_path / "store"
        result = serve("--store", str(store), "--listen", "127.0.0.1:0", "--set", f"metrics.listen={listen}")
        assert_refused(result, 2, "metrics.listen", listen, "another process")
        assert not store.exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_metrics_beyond_loopback_are_refused_without_insecure(tmp_path: Path, listen: str) -> None:
    store = tmp_path / "store"
    result = serve("--store", str(store), "--listen", "127.0.0.1:0", "--set", f"metrics.listen={listen}")
    assert_refused(result, 2, "metrics.listen", "--insecure")
    assert not store.exists()


@pytest.mark.parametrize("options", [{"server.insecure": True}, {"metrics.insecure": True}])
def test_insecure_shows_metrics_beyond_loopback(broker: Factory, options: dict[str, bool]) -> None:
    running = broker(settings={"metrics.listen": "0.0.0.0:0", **options})
    (line,) = [line for line in running.output if line.startswith("metrics: ")]
    port = int(line.rpartition(":")[2].partition("/")[0])
    assert ask(port, "/healthz")[0].status == 200


def test_off_opens_no_port(broker: Factory, connect: Connect) -> None:
    running = broker(settings={"metrics.listen": "off"})
    assert "metrics: off" in running.output
    connection = connect(running)
    assert msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO).body)["metrics_address"] == ""
    inodes = {path.readlink().name for path in Path(f"/proc/{running.process.pid}/fd").iterdir()}
    listening = [
        line.split()
        for line in Path(f"/proc/{running.process.pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert sum(f"socket:[{row[9]}]" in inodes for row in listening) == 1


def test_systemd_hears_of_the_start_and_the_stop(broker: Factory, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(TIMEOUT_S)
        manager.bind(str(tmp_path / "notify"))
        running = broker(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        said = b""
        while b"READY=1" not in said:
            said = manager.recv(4096)
        assert f"STATUS=listening on 127.0.0.1:{running.port}".encode() in said
        assert running.stop() == 0
        assert b"STOPPING=1" in manager.recv(4096)


def test_a_metrics_port_in_use_is_reported_with_the_setting_that_fixes_it(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sockets = listen_for_metrics("", port - 1)
        try:
            assert sockets[0].getsockname()[1] != port
        finally:
            for each in sockets:
                each.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"127.0.0.1:{port}" in record.getMessage()
    assert "set metrics.listen to fix it" in record.getMessage()
