"""The exactly-once sink: each row is stored once, whichever process is killed meanwhile.

``FLINTMQ_KILL_ROUNDS`` sets the number of kills (default below), ``FLINTMQ_SEED`` makes other choices. From three on
executors are killed too, which needs a cluster; by default ``test_cluster.py`` does that to this sink.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.spark.cluster import Cluster, running_cluster
from tests.spark.sink_tools import Copy, bodies, send, stored

pytest.importorskip("pyspark")

import pyarrow as pa

from flintmq.client.spark.errors import WriteFailed
from flintmq.client.spark.sink_delivery import delivery_of, micro_batch
from flintmq.client.spark.sink_options import EXACTLY_ONCE, write_options

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("FLINTMQ_SEED", "1"))
ROWS_A_BATCH = 5_000
BATCHES_A_ROUND = 6
QUEUES = 3
WORKERS = 2
TIMEOUT_S = 200 + 60 * ROUNDS
ROOT = Path(__file__).resolve().parents[2]


def prepared(broker: RunningBroker) -> int:
    """Return how many stages hold messages that are neither committed nor dropped."""
    with Admin(broker.address) as admin:
        return int(admin.abort_prepared("batch-"))


@pytest.mark.parametrize("flush", [None, "sync"])
def test_a_batch_is_stored_once_and_in_order(
    write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str, flush: str | None
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(name, queues=4)
    count = 12_000
    columns = {"queue": "CAST(id % 4 AS int)", "keys": "concat('k', id)", "tags": "concat('t', id % 3)"}
    write(bodies_of_range(0, count, 1, **columns), delivery=EXACTLY_ONCE, flush=flush)
    found = stored(shared_broker, name)
    assert [(message.queue, message.body) for message in found] == [
        (queue, str(number).encode()) for queue in range(4) for number in range(queue, count, 4)
    ]
    assert {message.body: (message.keys, message.tags) for message in found} == {
        str(number).encode(): ((f"k{number}",), f"t{number % 3}") for number in range(count)
    }
    assert prepared(shared_broker) == 0


def test_a_batch_that_fails_stores_nothing(
    write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str
) -> None:
    frame = bodies_of_range(0, 40_000, 4, keys="IF(id = 39999, ' ', 'k')")
    with pytest.raises(Exception, match="InvalidMessage: partition 3, row 9999: column 'keys'"):
        write(frame, delivery=EXACTLY_ONCE)
    assert not bodies(shared_broker, name)
    write(bodies_of_range(0, 10, 4), delivery=EXACTLY_ONCE)
    assert bodies(shared_broker, name) == Counter(map(str, range(10)))


def test_an_empty_batch_is_no_error(write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str) -> None:
    write(bodies_of_range(0, 0), delivery=EXACTLY_ONCE)
    write(bodies_of_range(0, 5).where("body > 9"), delivery=EXACTLY_ONCE)
    with Admin(shared_broker.address) as admin:
        assert name not in admin.topics()


def test_a_micro_batch_repeated_by_spark_is_not_stored_again(
    copy: Copy, shared_broker: RunningBroker, name: str
) -> None:
    sent = send(shared_broker, f"{name}-source", range(100))
    copy.run(delivery=EXACTLY_ONCE)
    sent += send(shared_broker, f"{name}-source", range(100, 150))
    copy.run(delivery=EXACTLY_ONCE)
    last = max((copy.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):  # as if Spark had ended before it noted the commit
        path.unlink()
    sent += send(shared_broker, f"{name}-source", range(150, 170))
    copy.run(delivery=EXACTLY_ONCE)
    assert bodies(shared_broker, name) == sent
    query = json.loads((copy.checkpoint / "metadata").read_text())["id"]
    with Admin(shared_broker.address) as admin:
        assert admin.abort_prepared(f"{query}/") == 0


def test_a_topic_that_is_deleted_meanwhile_fails_the_write(spark: Any, shared_broker: RunningBroker, name: str) -> None:
    options = write_options({"bootstrap": shared_broker.address, "topic": name, "delivery": EXACTLY_ONCE})
    delivery = delivery_of(options, streaming=False)
    with Admin(shared_broker.address) as admin:
        admin.create_topic(name)
        batch = pa.RecordBatch.from_pydict({"body": [b"one", b"two"]})
        written = delivery.write(iter([batch]), 0)
        assert pickle.loads(pickle.dumps(written)) == written
        admin.delete_topic(name)
        with pytest.raises(WriteFailed, match=r"the write was not committed \(2 messages\): TopicNotExist"):
            delivery.commit([written], None)
        delivery.abort([written, None], None)
        admin.create_topic(name)
        with pytest.raises(WriteFailed, match="PreparedIncomplete"):
            delivery.commit([written], None)


def test_a_spark_that_does_not_name_the_micro_batch_is_refused(spark: Any) -> None:
    with pytest.raises(Exception, match="SparkUnavailable: this Spark does not tell its tasks which query"):
        spark.sparkContext.parallelize([0], 1).map(lambda _: micro_batch()).collect()


# ---- kills ----


class Copying:
    """The application, killed and restarted; it continues from its checkpoint."""

    def __init__(self, master: str, environment: dict[str, str], broker: RunningBroker, checkpoint: Path) -> None:
        self._master = master
        self._environment = environment
        self._checkpoint = checkpoint
        self.broker = broker
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the application in a process group of its own: a kill includes its Java and its Python workers."""
        arguments = (self._master, self.broker.address, "in", "out", str(self._checkpoint), str(ROWS_A_BATCH))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.exactly_once_app", *arguments],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run_until(self, batches: int) -> bool:
        """Wait until the application has finished so many more micro-batches; return False if it ended before."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            batches -= line.startswith("batch")
            if batches <= 0:
                return True
        return False

    def finish(self) -> None:
        """Wait for the application to end."""
        assert self.process is not None
        output, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0, output

    def kill(self) -> None:
        """Send SIGKILL to the driver and every process that it started on this machine."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.mark.long(seconds=60)
@pytest.mark.timeout(TIMEOUT_S)
def test_each_row_is_there_exactly_once_after_any_kill(
    spark_environment: dict[str, str], broker: BrokerFactory, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    running = broker()
    rows = ROUNDS * BATCHES_A_ROUND * ROWS_A_BATCH
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("in", queues=QUEUES)
        admin.create_topic("out", queues=QUEUES)
        producer.send_bulk(
            "in", [b"%d" % number for number in range(rows)], keys=[f"k{number}" for number in range(rows)]
        )
    victims = [["driver", "broker", "executor"][number % 3] for number in range(ROUNDS)]
    rng.shuffle(victims)
    distributed = "executor" in victims
    with running_cluster(tmp_path, spark_environment, workers=WORKERS) if distributed else nullcontext() as cluster:
        master = cluster.url if cluster is not None else "local[2]"
        copying = Copying(master, spark_environment, running, tmp_path / "checkpoint")
        try:
            copying.start()
            for victim in victims:
                if not copying.run_until(rng.randint(1, BATCHES_A_ROUND - 2)):
                    break
                threading.Event().wait(rng.random())  # anywhere in a micro-batch
                _kill(victim, copying, cluster, broker, rng)
            copying.finish()
        finally:
            copying.kill()
    found: Counter[bytes] = Counter()
    with Consumer(copying.broker.address) as consumer:
        found.update(message.body for message in consumer.iter("out", from_="earliest", until="latest"))
        assert len(consumer.query("out", key="k0")) == 1
    print(f"seed {SEED}: {victims} were killed")  # noqa: T201 - shown where it fails
    assert len(found) == rows
    assert set(found.values()) == {1}


def _kill(victim: str, copying: Copying, cluster: Cluster | None, broker: BrokerFactory, rng: random.Random) -> None:
    if victim == "executor":
        assert cluster is not None
        alive = [number for number, worker in enumerate(cluster.workers) if worker.poll() is None]
        cluster.kill_worker(rng.choice(alive))
        cluster.start_worker()
    elif victim == "driver":
        copying.kill()
        copying.start()
    else:
        copying.broker.kill()
        copying.broker = broker("--listen", copying.broker.address, store=copying.broker.store)
