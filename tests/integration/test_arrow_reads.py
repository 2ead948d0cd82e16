"""Reads into Arrow while things change: topics made again, brokers that restart, memory, missing libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flintmq.client import Admin, ConnectionFailed, Consumer, Producer, RequestTimeout
from flintmq.testing.started_broker import broker_environment
from tests.conftest import BrokerFactory, RunningBroker

pa = pytest.importorskip("pyarrow")

from flintmq.client.arrow import DataLoss  # noqa: E402 - PyArrow may be missing

COUNT = 40


@pytest.fixture
def one_queue(shared_broker: RunningBroker, topic: str) -> str:
    """Fill a topic with one queue; return its name."""
    refill(shared_broker.address, topic, COUNT)
    return topic


def refill(address: str, topic: str, count: int) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic(topic, 1)
        producer.send_bulk(topic, [b"%d" % number for number in range(count)])


def test_messages_that_go_away_during_a_read_are_an_error(shared_broker: RunningBroker, one_queue: str) -> None:
    with Consumer(shared_broker.address) as consumer, Admin(shared_broker.address) as admin:
        batches = iter(consumer.arrow(one_queue, batch_rows=10))
        assert next(batches).num_rows == 10
        admin.delete_topic(one_queue)
        refill(shared_broker.address, one_queue, 5)
        # The pull ahead may have come between the deletion and the new messages.
        found = rf"the queue holds \[{COUNT}, {COUNT + 5}\)|the queue is gone or empty"
        gone = rf"\[\d0, {COUNT}\) of queue 0 of topic '{one_queue}' .*({found})"
        with pytest.raises(DataLoss, match=gone):
            list(batches)


def test_messages_that_go_away_during_a_read_are_reported(shared_broker: RunningBroker, one_queue: str) -> None:
    with Consumer(shared_broker.address) as consumer, Admin(shared_broker.address) as admin:
        stream = consumer.arrow(one_queue, batch_rows=10, on_loss="report")
        batches = iter(stream)
        rows = next(batches).num_rows
        admin.delete_topic(one_queue)
        refill(shared_broker.address, one_queue, 5)
        rows += sum(batch.num_rows for batch in batches)
        assert rows < COUNT
        assert [type(each) for each in stream.losses] == [DataLoss]
        assert stream.table().num_rows == 5
        assert not stream.losses


def test_a_read_continues_after_a_restart_of_the_broker(broker: BrokerFactory) -> None:
    running = broker()
    refill(running.address, "orders", COUNT)
    with Consumer(running.address, timeout=60) as consumer:
        batches = iter(consumer.arrow("orders", columns=["body"], batch_rows=7))
        found = next(batches)["body"].to_pylist()
        running.kill()
        broker("--listen", running.address, store=running.store)
        for batch in batches:
            found += batch["body"].to_pylist()
    assert found == [b"%d" % number for number in range(COUNT)]


def test_a_read_fails_if_the_broker_stays_away(broker: BrokerFactory) -> None:
    running = broker()
    refill(running.address, "orders", COUNT)
    with Consumer(running.address) as consumer:
        stream = consumer.arrow("orders", batch_rows=7, timeout=0.5)
        batches = iter(stream)
        next(batches)
        running.kill()
        with pytest.raises((RequestTimeout, ConnectionFailed)):
            list(batches)
        assert stream.error is not None
        assert not consumer._caller.pool._busy


def test_memory_is_bounded_by_the_batch_and_not_by_the_topic(shared_broker: RunningBroker, topic: str) -> None:
    body_bytes, count = 50_000, 800  # 40 MB, compressed to a few KB each if they are compressed
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic, 1)
        admin.create_topic(f"{topic}-z", 1)
    for name, compress_over in ((topic, None), (f"{topic}-z", 1000)):
        with Producer(shared_broker.address, compress_over=compress_over) as producer:
            producer.send_bulk(name, [b"%d" % number * 25_000 for number in range(10, 99)] * (count // 89))
        before, most, rows = pa.total_allocated_bytes(), 0, 0
        with Consumer(shared_broker.address) as consumer:
            for batch in consumer.arrow(name, columns=["body"]):
                most = max(most, pa.total_allocated_bytes() - before)
                rows += batch.num_rows
        assert rows * body_bytes > 35_000_000
        if compress_over is None:
            assert most < 12 << 20


@pytest.mark.parametrize("library", ["pyarrow", "numba"])
def test_the_message_says_what_to_install(shared_broker: RunningBroker, one_queue: str, library: str) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None  # as if it were not installed
from flintmq.client import ConfigurationError, Consumer, Producer
from flintmq.client.arrow import ArrowUnavailable
for use in (
    lambda: Consumer({shared_broker.address!r}).arrow({one_queue!r}),
    lambda: Producer({shared_broker.address!r}).send_arrow({one_queue!r}, None),
    lambda: __import__("flintmq.client.polars"),
):
    try:
        use()
    except ArrowUnavailable as error:
        assert isinstance(error, ConfigurationError)
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=broker_environment()
    )
    assert done.stdout.splitlines() == [
        f"Consumer.arrow needs {library}: pip install 'flintmq[arrow]'",
        f"Producer.send_arrow needs {library}: pip install 'flintmq[arrow]'",
        f"flintmq.client.polars needs {library}: pip install 'flintmq[arrow]'",
    ], done.stderr
