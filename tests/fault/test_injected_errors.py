"""Real brokers whose system calls really fail: strace returns the error in the kernel's place.

Skipped, with the machine's error, if strace is not allowed.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.errors import BrokerFailure, ServiceNotAvailable
from tests.conftest import RawConnection
from tests.fault.harness.brokers import BrokerEnded, ForkedBroker, PreparedParent, free_port
from tests.fault.harness.real_disks import connection_to
from tests.fault.harness.rounds import CALM, EXIT_FATAL, EXIT_REFUSED
from tests.fault.harness.strace import Injection, injection
from tests.overload_tools import soon
from tests.tools_runs import findings

TOPIC = "orders"
BODY_BYTES = 40_000
FIRST_FILE, SECOND_FILE = f"{0:020d}", f"{4 << 20:020d}"
LOG = f"commitlog/{FIRST_FILE}"
REFUSAL_S = 120.0
"""Time within which every fault must have happened: each service works at least once in a few seconds."""


@dataclass
class Store:
    """A store, the port of its brokers, and the acknowledged messages: bodies by queue offset."""

    prepared: PreparedParent
    path: Path
    port: int
    acknowledged: dict[int, bytes]

    def start(self, settings: dict[str, Any] | None = None) -> ForkedBroker:
        """Start a broker and wait until it listens."""
        broker = self.prepared.start(self.path, self.port, settings)
        broker.wait_until_listening()
        return broker

    def send(self, connection: RawConnection, *, body_bytes: int = BODY_BYTES) -> None:
        """Send a message. Raises if it is refused, ``EOFError`` if the broker ends instead."""
        body = random.randbytes(body_bytes)
        answer = connection.produce(TOPIC, body, queue=0, common="KEYS\x01k\x02").raise_for_error()
        self.acknowledged[answer.fields["queue_offset"]] = body

    def send_until_refused(self, connection: RawConnection) -> Exception:
        """Send messages until one is refused; return the refusal."""
        deadline = time.monotonic() + REFUSAL_S
        while time.monotonic() < deadline:
            try:
                self.send(connection)
            except (ServiceNotAvailable, EOFError, ConnectionResetError) as refusal:
                return refusal
        raise AssertionError(f"{len(self.acknowledged)} messages were accepted within {REFUSAL_S:.0f} s")

    def pulled(self) -> dict[int, bytes]:
        """Return the readable bodies by queue offset."""
        with Consumer(f"127.0.0.1:{self.port}") as consumer:
            messages = consumer.iter(TOPIC, from_="earliest", until="latest")
            return {message.queue_offset: bytes(message.body) for message in messages if message.queue == 0}

    def check(self) -> None:
        """Check that a broker finds every acknowledged message, and ``verify`` finds nothing."""
        broker = self.start()
        assert self.pulled().items() >= self.acknowledged.items()
        broker.terminate()
        assert broker.wait() == 0
        assert findings(self.path) == []


@pytest.fixture
def store(prepared: PreparedParent, may_trace: None, tmp_path: Path) -> Iterator[Store]:
    yield Store(prepared, tmp_path / "store", free_port(random.SystemRandom()), {})
    prepared.kill_all()


def inject(
    store: Store, process: int, call: str, error: str, *, when: str = "1+", path: str = "", beside_main: bool = False
) -> Any:
    trace, full_path = store.path.with_name("trace"), store.path / path if path else None
    return injection(process, trace, call, error, when=when, path=full_path, beside_main=beside_main)


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])  # a sync ends with a write of no bytes
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_failed_sync_leaves_its_message_and_later_ones_unacknowledged(store: Store, call: str, number: int) -> None:
    broker = store.start()
    with connection_to(store.port) as connection:
        store.send(connection)
        with inject(store, broker.pid, call, "EIO", when=str(number), path=LOG, beside_main=True):
            refusal = store.send_until_refused(connection)
            assert broker.wait() == EXIT_FATAL
    assert isinstance(refusal, ServiceNotAvailable)
    assert "may or may not be stored" in str(refusal)
    assert len(store.acknowledged) == number
    assert f"a flush of the CommitLog in {store.path} failed: [Errno 5] Input/output error: '{store.path / LOG}'" in (
        broker.log.read_text()
    )
    store.check()


@pytest.mark.parametrize(
    ("call", "path", "settings"),
    [
        ("fdatasync", LOG, {"flush.policy": "async"}),
        ("fdatasync", f"consumequeue/{TOPIC}/0/{FIRST_FILE}", {}),
        ("fdatasync", "index/*", {}),
        ("fdatasync", "checkpoint", {}),
        ("pwrite", f"consumequeue/{TOPIC}/0/{FIRST_FILE}", {}),
        ("pwrite", "checkpoint", {}),
        ("pwrite", LOG, {}),
        ("fallocate", LOG, {}),
        ("rename", f"flintmq/new/new-new-{SECOND_FILE}", {}),
        ("rename", f"flintmq/new/{SECOND_FILE}", {}),
    ],
)
def test_an_io_error_on_data_that_is_written_once_ends_the_broker_with_the_file_name(
    store: Store, call: str, path: str, settings: dict[str, Any]
) -> None:
    broker = store.start(settings)
    with connection_to(store.port) as connection:
        store.send(connection)
        soon(lambda: any(store.path.glob(path)) or call == "rename")
        path = str(next(store.path.glob(path), store.path / path).relative_to(store.path))
        with inject(store, broker.pid, call, "EIO", when="1", path=path):
            store.send_until_refused(connection)
            assert broker.wait() == EXIT_FATAL
    log = broker.log.read_text()
    assert f"[Errno 5] Input/output error: '{store.path / path}'" in log
    assert "the broker ends" in log
    assert "Check the disk, then " in log
    store.check()


def test_a_disk_without_blocks_refuses_messages_serves_reads_and_resumes(store: Store) -> None:
    broker = store.start()
    with connection_to(store.port) as connection:
        with inject(store, broker.pid, "fallocate", "ENOSPC"):
            refusal = store.send_until_refused(connection)
            assert isinstance(refusal, ServiceNotAvailable)
            assert f"the disk of {store.path / 'commitlog'} is full" in refusal.message
            assert store.pulled() == store.acknowledged
        resumed = len(store.acknowledged)
        while len(store.acknowledged) < resumed + 50:
            store.send(connection)
    assert not broker.ended
    broker.kill()
    store.check()


def test_messages_are_accepted_without_space_for_queues_and_served_once_there_is(store: Store) -> None:
    broker = store.start(CALM)  # strace would also refuse the empty write of a checkpoint
    with connection_to(store.port) as connection:
        store.send(connection, body_bytes=100)
        soon(lambda: store.pulled() == store.acknowledged)
        seen = store.pulled()
        queue = f"consumequeue/{TOPIC}/0/{FIRST_FILE}"
        with inject(store, broker.pid, "pwrite", "ENOSPC", path=queue) as injected:
            for _ in range(20):
                store.send(connection, body_bytes=100)
            soon(lambda: bool(injected.injected))
            assert store.pulled() == seen
        soon(lambda: store.pulled() == store.acknowledged)
    broker.kill()
    store.check()


@pytest.mark.parametrize("path", [LOG, f"consumequeue/{TOPIC}/0/{FIRST_FILE}"])
def test_an_unreadable_file_is_named_to_its_reader_and_disturbs_no_other_client(store: Store, path: str) -> None:
    broker = store.start()
    with connection_to(store.port) as connection:
        store.send(connection)
        soon(lambda: store.pulled() == store.acknowledged)
        with inject(store, broker.pid, "pread", "EIO", path=path):
            with pytest.raises(BrokerFailure, match=f"Input/output error: '{store.path / path}'. Check the disk"):
                connection.pull(TOPIC, 0, 0).raise_for_error()
            store.send(connection)
        assert store.pulled() == store.acknowledged
    broker.kill()
    store.check()


def test_a_topic_whose_table_cannot_be_written_is_not_created_and_can_be_later(store: Store) -> None:
    broker = store.start()
    with connection_to(store.port) as connection, Admin(f"127.0.0.1:{store.port}") as admin:
        admin.create_topic("before", queues=1)
        with inject(store, broker.pid, "rename", "EIO", when="1", path="config/topics.json.journal.tmp"):
            answer = connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": TOPIC, "queues": 1})
            with pytest.raises(ServiceNotAvailable, match=f"topic {TOPIC} could not be created .*Input/output error"):
                answer.raise_for_error()
            assert TOPIC not in admin.topics()
            admin.create_topic(TOPIC, queues=1)
        store.send(connection)
        assert TOPIC in admin.topics()
    broker.kill()
    store.check()


@pytest.mark.parametrize("call", ["fdatasync", "rename"])
def test_a_start_names_a_failing_call_and_the_next_start_finds_everything(store: Store, call: str) -> None:
    broker = store.start(CALM)
    with connection_to(store.port) as connection:
        for _ in range(150):
            store.send(connection)
    broker.kill()
    for number in itertools.count(1):
        with inject(store, store.prepared.pid, call, "EIO", when=str(number)) as injected:
            if not _start_fails(store, injected):
                break
    assert number > 1
    store.check()


def _start_fails(store: Store, injected: Injection) -> bool:
    """Start a broker; return whether a call failed."""
    broker = store.prepared.start(store.path, store.port, CALM)
    try:
        broker.wait_until_listening()
    except BrokerEnded:
        assert broker.wait() in (EXIT_REFUSED, EXIT_FATAL)
        assert "Input/output error" in broker.log.read_text()
        assert injected.injected
    broker.kill()
    return bool(injected.injected)
