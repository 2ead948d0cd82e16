"""If the log's next file cannot be created, nothing of a frame is written, and everything stored before stays."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.store import MessageStore, StoreFailed
from flintmq.broker.tools.backup import backup, restore
from flintmq.client import Consumer, Message, Producer
from flintmq.protocol.errors import SUCCESS, ServiceNotAvailable
from flintmq.protocol.storage.record import Record
from tests.conftest import Answer, BrokerFactory, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import until
from tests.store_tools import (
    SMALL,
    UnsyncedFiles,
    append,
    dispatch,
    kill,
    make_topic,
    open_store,
    plain,
    pull_all,
    put,
    reopen,
)
from tests.tools_runs import findings

FILE_BYTES = SMALL.commitlog_file_bytes
BODY_BYTES, COUNT = 300_000, 30
"""Number of messages that fill three files."""
Write = Callable[[MessageStore], None]


class NamelessFiles(UnsyncedFiles):
    """Files whose log folder accepts ``names`` more files, then fails with ``error``; None: any number."""

    names: int | None = None
    error = errno.ENOSPC

    def rename(self, source: Path, target: Path) -> None:
        """Fail if no more names are allowed."""
        if self.names is not None and target.parent.name == "commitlog":
            if self.names == 0:
                raise OSError(self.error, "no name for it")
            self.names -= 1
        super().rename(source, target)


def produce(store: MessageStore) -> None:
    """Append a frame of a producer."""
    append(store, "orders", 0, plain(COUNT, size=BODY_BYTES))


def append_records(store: MessageStore) -> None:
    """Append records that the broker itself creates."""
    store.append_records([Record(topic=b"orders", body=each.body) for each in plain(COUNT, size=BODY_BYTES)])


def deliver(store: MessageStore) -> None:
    """Deliver waiting messages that are due."""
    queue = store.queues.get("waiting", 0)
    assert queue is not None
    rows = [(*queue.unit(number, hot=False)[:2], number) for number in range(COUNT)]
    read = store.rewriter.read(np.array(rows, np.int64).reshape(-1), hot=False)
    store.deliver(read, read.targets)


every_writer = pytest.mark.parametrize("write", [produce, append_records, deliver])


@pytest.fixture
def files() -> NamelessFiles:
    return NamelessFiles()


@pytest.fixture
def store(tmp_path: Path, files: NamelessFiles) -> MessageStore:
    """Make a store with a message to read, and messages that wait for delivery."""
    store = open_store(tmp_path / "store", files=files)
    make_topic(store, "orders")
    make_topic(store, "waiting")
    put(store, "orders", 0, plain(1, first=900))
    properties = b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02"
    for first in range(0, COUNT, 5):
        store.append_records(
            [Record(b"waiting", each.body, properties) for each in plain(5, size=BODY_BYTES, first=first)]
        )
    dispatch(store)
    return store


def assert_orders(store: MessageStore, *, whole: bool) -> None:
    """Check that the first message is there, followed by everything that was written, or by nothing."""
    expected = plain(1, first=900) + (plain(COUNT, size=BODY_BYTES) if whole else [])
    assert [record.body for record in pull_all(store, "orders", 0)] == [each.body for each in expected]


def written(store: MessageStore) -> dict[str, bytes]:
    """Return the log's files that are not empty."""
    files = {path.name: path.read_bytes().rstrip(b"\0") for path in (store.path / "commitlog").iterdir()}
    return {name: content for name, content in files.items() if content}


@every_writer
def test_a_disk_without_space_for_a_name_gets_no_bytes_until_there_is_space(
    store: MessageStore, files: NamelessFiles, write: Write
) -> None:
    end, before = store.write_offset, written(store)
    first_name = 0
    while True:
        files.names = first_name
        try:
            write(store)
            break
        except ServiceNotAvailable as refused:
            assert "is full" in str(refused)  # noqa: PT017 - it may also be returned
            assert "nothing was written" in str(refused)  # noqa: PT017
        assert store.write_offset == end
        assert written(store) == before
        assert_orders(store, whole=False)
        first_name += 1
    assert first_name == 2
    files.names = None
    dispatch(store)
    assert_orders(store, whole=True)
    store.close()
    assert findings(store.path) == []
    store = open_store(store.path)
    assert_orders(store, whole=True)
    store.close()


@every_writer
def test_a_name_that_the_disk_fails_to_write_ends_the_store_before_anything_is_written(
    store: MessageStore, files: NamelessFiles, write: Write
) -> None:
    before = written(store)
    files.names, files.error = 1, errno.EIO
    with pytest.raises(StoreFailed, match=r"cannot be made longer: .*no name for it.*Nothing was written"):
        write(store)
    assert written(store) == before
    with pytest.raises(ServiceNotAvailable, match="the store stopped writing"):
        write(store)
    store.close()
    store, report = reopen(store.path)
    assert not report.clean
    assert_orders(store, whole=False)
    write(store)
    dispatch(store)
    assert_orders(store, whole=True)
    store.close()


def quiet(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


@pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])
def test_an_empty_next_file_is_no_finding_and_gone_after_the_next_start(
    store: MessageStore, files: NamelessFiles, tmp_path: Path, end: Callable[[MessageStore], None]
) -> None:
    files.names = 1
    with pytest.raises(ServiceNotAvailable):
        produce(store)
    last = store.path / "commitlog" / f"{3 * FILE_BYTES:020d}"
    assert last.stat().st_size == FILE_BYTES
    end(store)
    assert findings(store.path) == []
    backup(store.path, tmp_path / "backup", quiet)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    for path in (store.path, tmp_path / "restored"):
        again, report = reopen(path)
        assert report.truncated_bytes == 0
        assert not (path / "commitlog" / last.name).exists()
        assert_orders(again, whole=False)
        produce(again)
        dispatch(again)
        assert_orders(again, whole=True)
        again.close()


# A whole broker, over TCP.

NAMELESS_DISK = """
import errno, os, sys
from flintmq.broker.store.files.file_system import Files

rename = Files.rename

def fail(self, source, target):
    if os.path.exists(sys.argv[1]) and target.parent.name == "commitlog":
        with open(sys.argv[1]) as file:
            name = file.read()
        with open(sys.argv[1] + " happened", "a") as happened:
            happened.write(f"{target.name}\\n")
        raise OSError(getattr(errno, name), "no name for it", str(target))
    rename(self, source, target)

Files.rename = fail
from flintmq.broker.app.daemon import main
main(sys.argv[2:])
"""
"""A broker whose log gets no new files while the file of its first argument, with the error in it, exists."""

SENDS_MAX = 30
"""Number of frames that always needs a next file."""


@dataclass
class Disk:
    """Disk of a broker whose log gets no new files while ``switch`` exists."""

    switch: Path

    def fail(self, error: str) -> None:
        self.switch.write_text(error)

    def resume(self) -> None:
        """Accept new names again."""
        self.switch.unlink()

    @property
    def refused(self) -> list[str]:
        """Return the files that could not be named."""
        happened = self.switch.with_name(self.switch.name + " happened")
        return happened.read_text().splitlines() if happened.exists() else []


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "fault")


@pytest.fixture
def running(broker: BrokerFactory, disk: Disk) -> RunningBroker:
    return broker(settings={"store.commitlog_file_bytes": FILE_BYTES}, program=["-c", NAMELESS_DISK, str(disk.switch)])


SECOND = f"{FILE_BYTES:020d}"
BIG_BYTES = 500_000
"""A body of which eight fit into a file."""


@pytest.fixture
def connection(running: RunningBroker, connect: ConnectionFactory) -> RawConnection:
    """Connect to a broker with a message in `orders`, so that the first file has its name."""
    connection = connect(running)
    connection.produce("orders", b"first", queue=0).raise_for_error()
    return connection


def send_until_refused(connection: RawConnection, sent: list[bytes]) -> Answer:
    """Send frames of three messages; return the first error response. Raises as the connection does if it ends."""
    for number in range(SENDS_MAX):
        frame = [bytes([3 * number + each]) * BODY_BYTES for each in range(3)]
        answer = connection.produce("orders", *frame, queue=0)
        if answer.code != SUCCESS:
            return answer
        sent += frame
    raise AssertionError(
        f"{SENDS_MAX} frames were accepted, and none needed a new file: the fault is at the wrong place"
    )


def bodies_of(running: RunningBroker) -> list[bytes]:
    """Return every message of `orders`, in order."""
    with Consumer(running.address) as consumer:
        return [message.body for message in consumer.iter("orders", from_="earliest", until="latest")]


def assert_reason_is_logged(running: RunningBroker, disk: Disk) -> None:
    """Check that the broker ended with the exit code for a supervisor, and logged the file and the reason."""
    assert running.wait() == 70
    assert disk.refused == [SECOND]
    assert "writing the log failed, the broker ends" in running.log
    assert f"no name for it: '{running.store}/commitlog/{SECOND}'" in running.log.replace('"', "'")
    assert "Check the disk, then " in running.log


def test_a_broker_that_cannot_create_the_next_file_ends_with_the_reason_and_acknowledges_nothing_more(
    running: RunningBroker, connection: RawConnection, broker: BrokerFactory, disk: Disk
) -> None:
    disk.fail("EIO")
    sent = [b"first"]
    with pytest.raises((EOFError, ConnectionResetError)):
        send_until_refused(connection, sent)
    assert len(sent) == 13
    assert_reason_is_logged(running, disk)
    disk.resume()
    again = broker(store=running.store)
    assert bodies_of(again) == sent


def test_a_broker_whose_disk_fails_during_a_delivery_ends_too(
    running: RunningBroker, connection: RawConnection, broker: BrokerFactory, disk: Disk
) -> None:
    disk.fail("EIO")
    at_once = [bytes([number]) * BIG_BYTES for number in range(7)]
    with Producer(running.address, compress_over=None) as producer:
        for body in at_once:
            producer.send(Message("orders", body), queue=0)
        producer.send(Message("orders", b"late" * (BIG_BYTES // 4), delay=timedelta(seconds=1)), queue=0)
        assert_reason_is_logged(running, disk)
    disk.resume()
    again = broker(store=running.store)
    until(lambda: len(bodies_of(again)) == 9)
    assert bodies_of(again) == [b"first", *at_once, b"late" * (BIG_BYTES // 4)]


def test_a_broker_without_space_for_the_next_file_refuses_messages_serves_reads_and_resumes(
    running: RunningBroker, connection: RawConnection, disk: Disk
) -> None:
    disk.fail("ENOSPC")
    sent = [b"first"]
    for refused in range(1, 4):
        answer = send_until_refused(connection, sent)
        assert answer.code == ServiceNotAvailable.code
        assert "is full" in answer.fields["message"]
        assert "nothing was written" in answer.fields["message"]
        assert answer.fields["retry_after_ms"] == 1000
        assert disk.refused == [SECOND] * refused
    assert len(sent) == 13
    assert bodies_of(running) == sent
    disk.resume()
    connection.produce("orders", b"room", queue=0).raise_for_error()
    connection.produce("orders", *sent[1:4], queue=0).raise_for_error()
    assert len(list((running.store / "commitlog").iterdir())) == 2
    assert bodies_of(running) == [*sent, b"room", *sent[1:4]]
    assert running.stop() == 0
    assert findings(running.store) == []
