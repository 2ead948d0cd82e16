"""Backups of a busy broker, and brokers that start from a restored backup."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from flintmq.broker.tools.backup import BackupError, _target
from flintmq.client import Admin, Consumer, FlintError, Message, Producer, StoredMessage
from flintmq.protocol.storage.record import check_record_crc
from flintmq.protocol.store_files import checkpoint_mark
from flintmq.testing.started_broker import broker_environment
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.dead_letter_tools import send_back
from tests.group_tools import until
from tests.tools_runs import command, tool
from tests.transaction_tools import end, send_half

QUEUES = 3
BODY_BYTES = 1500
BATCH, BATCH_SECONDS = 200, 0.005


class Load:
    """A producer that sends continuously, at most 40,000 messages per second.

    Each body begins with the message's number; ``acknowledged`` is the number of acknowledged messages.
    """

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self.acknowledged = 0
        self.failure: FlintError | None = None
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        try:
            with Producer(self._address) as producer:
                while not self._stop.wait(BATCH_SECONDS):
                    bodies = [f"{number + k:09d}".encode().ljust(BODY_BYTES, b".") for k in range(BATCH)]
                    producer.send_bulk(self._topic, bodies=bodies)
                    number += len(bodies)
                    with self._more:
                        self.acknowledged = number
                        self._more.notify_all()
        except FlintError as failure:
            with self._more:
                self.failure = failure
                self._more.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` messages are acknowledged."""
        with self._more:
            assert self._more.wait_for(lambda: self.acknowledged >= count or self.failure is not None, 60)
        assert self.failure is None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while the context is open."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


def wait_for_marks(store: Path, count: int) -> None:
    """Wait until the broker, which is busy, has written its flushed offset into the checkpoint so many times."""

    marks = set()

    def written() -> bool:
        marks.add(checkpoint_mark((store / "checkpoint").read_bytes()))
        return len(marks) > count

    until(written)


def everything(running: RunningBroker, topic: str) -> list[StoredMessage]:
    with Consumer(running.address) as consumer:
        return list(consumer.iter(topic, from_="earliest", until="latest"))


def numbers(running: RunningBroker, topic: str) -> list[int]:
    return sorted(int(message.body[:9]) for message in everything(running, topic))


def test_only_a_held_lock_is_taken_for_another_backup(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="of the store"), _target(tmp_path / "backup"):
        raise BlockingIOError("of the store")
    with _target(tmp_path / "backup"), pytest.raises(BackupError, match="another backup"), _target(tmp_path / "backup"):
        pass


def test_a_pipe_among_the_tables_is_named_instead_of_waited_for(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    pipe = running.store / "config" / "pipe"
    os.mkfifo(pipe)
    ended = tool("backup", running.store, tmp_path / "backup")
    assert ended.code == 2
    assert "it is a pipe, a folder or a device, where a file belongs" in ended.errors
    assert str(pipe) in ended.errors


def test_a_backup_of_a_busy_broker_has_all_messages_acknowledged_before_it_began(
    broker: BrokerFactory, tmp_path: Path
) -> None:
    served = broker()
    folder = tmp_path / "backup"
    with Admin(served.address) as admin:
        admin.create_topic("load", queues=QUEUES)
    load = Load(served.address, "load")
    with load.running():
        load.wait_for(4_000)  # more than one file of the log
        acknowledged = [load.acknowledged]
        for _ in range(2):
            wait_for_marks(served.store, 2)  # the second one has what was acknowledged before the first
            done = tool("backup", served.store, folder)
            assert done.code == 0, done.errors
            load.wait_for(acknowledged[-1] + 1_000)  # the backup did not stop the producer
            acknowledged.append(load.acknowledged)
        assert "B were there" in done.output[1]
        assert not done.output[1].endswith("; 0 B were there")
    assert served.stop() == 0

    done = tool("restore", folder, tmp_path / "restored")
    assert done.code == 0, done.errors
    assert tool("restore", folder, tmp_path / "restored").code == 2
    again = broker(store=tmp_path / "restored")
    found = numbers(again, "load")
    assert len(found) >= acknowledged[1]  # the number when the second backup began
    assert found == list(range(len(found)))
    with Producer(again.address) as producer:
        producer.send(Message("load", b"%09d" % len(found)))
    assert numbers(again, "load") == list(range(len(found) + 1))
    assert again.stop() == 0
    verified = tool("verify", tmp_path / "restored")
    assert verified.code == 0, verified.output


def test_a_killed_backup_is_completed_by_the_next_one(broker: BrokerFactory, tmp_path: Path) -> None:
    served = broker()
    folder = tmp_path / "backup"
    load = Load(served.address, "load")
    with load.running():
        load.wait_for(5_000)
    with subprocess.Popen(
        command("backup", served.store, folder), env=broker_environment(), stderr=subprocess.DEVNULL
    ) as process:
        while not (folder / "commitlog" / f"{0:020d}").exists() and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
    if not (folder / "backup.json").exists():
        refused = tool("restore", folder, tmp_path / "restored")
        assert refused.code == 2
        assert "incomplete backup" in refused.errors
    assert tool("backup", served.store, folder).code == 0
    assert tool("restore", folder, tmp_path / "restored").code == 0
    again = broker(store=tmp_path / "restored")
    assert numbers(again, "load") == list(range(load.acknowledged))


def test_groups_delays_and_transactions_continue_in_a_restored_store(
    broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path
) -> None:
    settings = {"store.record_checksum": True, "background.services:CHECKPOINT_S": 0.02}
    served = broker(settings=settings)
    connection = connect(served)
    with Admin(served.address) as admin, Producer(served.address) as producer, Consumer(served.address) as consumer:
        admin.create_topic("orders", queues=1)
        receipts = producer.send_many([Message("orders", b"%d" % k, keys=[f"k-{k}"]) for k in range(5)])
        consumer.commit("g", "orders", {0: 3})
        producer.send(Message("orders", b"soon", delay_level=1))
        producer.send(Message("orders", b"later", delay=timedelta(hours=1)))
        send_back(connection, "g", [receipts[0].physical_offset])  # a dead letter
        half, open_half = send_half(connection, "orders", b"committed", 1), send_half(connection, "orders", b"open", 2)
        end(connection, half)
    assert open_half != half
    wait_until_on_disk(served.store / "config" / "consumerOffset.json", "orders@g")
    wait_until_checkpoint(served.store, connection.runtime_info()["write_offset"])
    done = tool("backup", served.store, tmp_path / "backup")
    assert done.code == 0, done.errors
    assert served.stop() == 0
    assert tool("verify", served.store).code == 0
    assert tool("restore", tmp_path / "backup", tmp_path / "restored").code == 0
    again = broker(store=tmp_path / "restored", settings=settings)
    with Consumer(again.address) as consumer:
        assert consumer.committed("g", "orders") == {0: 3}
        found: list[bytes] = []
        while len(found) < 7:
            pulled = consumer.pull("orders", queue=0, offset=len(found), wait_ms=20_000)
            found += [message.body for message in pulled.messages]
        assert sorted(found) == sorted([*(b"%d" % k for k in range(5)), b"soon", b"committed"])
        assert [message.body for message in consumer.iter("%DLQ%g", until="latest")] == [b"0"]
        assert "__CRC32#" not in consumer.query("orders", key="k-1")[0].properties
    assert again.stop() == 0
    assert tool("verify", again.store).code == 0
    check_every_record(again.store)


def wait_until_on_disk(path: Path, text: str) -> None:
    """Wait until the broker's next checkpoint has written ``text`` to the file."""
    while not path.exists() or text not in path.read_text():
        pass


def wait_until_checkpoint(store: Path, end_offset: int) -> None:
    """Wait until the checkpoint covers the log up to ``end_offset``: a backup takes no more."""
    while (mark := checkpoint_mark((store / "checkpoint").read_bytes())) is None or mark.flushed_offset < end_offset:
        pass


def check_every_record(store: Path) -> None:
    """Check the checksum of every record of the first log file: produced, delayed, retried, committed, commit notes."""
    log, at, count = (store / "commitlog" / f"{0:020d}").read_bytes(), 0, 0
    while size := int.from_bytes(log[at : at + 4], "big"):
        check_record_crc(log, at)
        at, count = at + size, count + 1
    assert count >= 13
