"""A disk that hangs in a flush: the broker refuses new messages at once, and nothing is lost or stored twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgpack
import pytest

from flintmq.client import Message
from flintmq.protocol.commands import END_TRANSACTION, GET_TRANSACTIONS, PRODUCE
from flintmq.protocol.errors import FlushDiskTimeout, SystemBusy
from tests.client_drivers import Clients
from tests.conftest import RawConnection, RunningBroker
from tests.fault.harness.strace import HANG, Injection, injection
from tests.metrics_tools import Scrape, page
from tests.overload_tools import soon
from tests.transaction_tools import GROUP, common, listed, send_half, transaction_id
from tests.transaction_tools import PREFIX as OF_TRANSACTIONS

Factory: TypeAlias = Callable[..., RunningBroker]
Connect: TypeAlias = Callable[..., RawConnection]

HANGING_DISK = """
import os, sys, time
from flintmq.broker.store import message_store
from flintmq.broker.store.files.file_system import Files

class HangingFiles(Files):
    def sync_data(self, fd):
        while os.path.exists(sys.argv[1]) and "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            time.sleep(0.01)
        super().sync_data(fd)

message_store.Files = HangingFiles
from flintmq.broker.app.daemon import main
main(sys.argv[2:])
"""

PREFIX = "0A000001000000000001"
HOUR_MS = 3_600_000


@dataclass
class Disk:
    """A disk on which the broker's flushes of the log hang while ``switch`` exists, in its Python thread."""

    switch: Path

    @property
    def program(self) -> list[str]:
        """Arguments of Python that start a broker on this disk; empty: the usual ones."""
        return ["-c", HANGING_DISK, str(self.switch)]

    def hang(self, running: RunningBroker) -> None:
        """Let flushes hang from now on."""
        self.switch.touch()

    def resume(self) -> None:
        """Let flushes finish again."""
        self.switch.unlink(missing_ok=True)


class HangingCalls(Disk):
    """A disk whose fdatasync hangs in the kernel, so that the broker's compiled thread waits for it."""

    _hanging: AbstractContextManager[Injection] | None = None

    @property
    def program(self) -> list[str]:
        """Arguments of Python that start a broker on this disk: the usual ones."""
        return []

    def hang(self, running: RunningBroker) -> None:
        """Let flushes hang from now on."""
        self._hanging = injection(
            running.process.pid, self.switch, "fdatasync", HANG, path=running.store / "commitlog" / f"{0:020d}"
        )
        self._hanging.__enter__()

    def resume(self) -> None:
        """Let flushes finish again."""
        hanging, self._hanging = self._hanging, None
        if hanging is not None:
            hanging.__exit__(None, None, None)


@pytest.fixture(params=[Disk, HangingCalls])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param is HangingCalls:
        request.getfixturevalue("may_trace")
    disk: Disk = request.param(tmp_path / "flushes hang")
    yield disk
    disk.resume()  # before the broker is stopped, which flushes


@pytest.fixture
def start(broker: Factory, disk: Disk) -> Callable[..., RunningBroker]:
    def start_one(*, stall_ms: int = HOUR_MS, sync_timeout_ms: int = HOUR_MS, flush: str = "sync") -> RunningBroker:
        settings = {"flush.stall_ms": stall_ms, "flush.sync_timeout_ms": sync_timeout_ms}
        return broker("--flush", flush, settings=settings, program=disk.program or None)

    return start_one


def readiness(running: RunningBroker) -> tuple[int, str]:
    return page(running, "/readyz")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_hanging_flush_refuses_new_messages_and_delays_responses_to_earlier_ones(
    start: Factory, connect: Connect, disk: Disk, flush: str
) -> None:
    running = start(stall_ms=200, flush=flush)
    waiting, other = connect(running), connect(running)
    waiting.produce("orders", b"before", queue=0, flush="sync").raise_for_error()
    assert Scrape(running)("flintmq_flush_stalled_seconds") == 0

    disk.hang(running)
    body = b"\x92\xc4\x05while\x80"
    sent = waiting.send(10, {"topic": "orders", "count": 1, "queue": 0, "flush": "sync"}, body)
    soon(lambda: readiness(running)[0] == 503)
    assert "the disk has not finished a flush of the log for" in readiness(running)[1]
    with pytest.raises(
        SystemBusy, match=r"has not finished a flush of the log for \d+\.\d s \(flush.stall_ms is 200\)"
    ) as busy:
        other.produce("orders", b"refused", queue=0).raise_for_error()
    assert busy.value.retry_after_ms == 100
    assert other.pull("orders", 0, 0).fields["count"] >= 1, "reads continue"
    scrape = Scrape(running)
    assert scrape("flintmq_flush_stalled_seconds") > 0.2
    assert scrape("flintmq_writable") == 0

    disk.resume()
    assert waiting.receive_for(sent).raise_for_error().fields["queue_offset"] == 1
    soon(lambda: readiness(running) == (200, "ready\n"))
    assert other.produce("orders", b"after", queue=0).raise_for_error().fields["queue_offset"] == 2
    assert Scrape(running)("flintmq_flush_stalled_seconds") == 0
    assert running.log.count("has not finished a flush") == running.log.count("the hanging flush finished") == 1


def test_a_producer_that_waits_too_long_for_a_flush_gets_an_error_and_may_resend(
    start: Factory, connect: Connect, disk: Disk
) -> None:
    running = start(sync_timeout_ms=200)
    connection = connect(running)
    connection.produce("orders", b"before", queue=0).raise_for_error()
    fields = {"queue": 0, "unique_prefix": PREFIX, "unique_first": 1}
    disk.hang(running)
    answer = connection.produce("orders", b"x", **fields)
    with pytest.raises(FlushDiskTimeout, match=r"not on disk within flush.sync_timeout_ms, 200 ms") as timeout:
        answer.raise_for_error()
    assert timeout.value.retriable
    assert Scrape(running)("flintmq_errors_total", result="FLUSH_DISK_TIMEOUT") == 1
    disk.resume()
    assert connection.produce("orders", b"x", **fields).raise_for_error().fields["queue_offset"] == 1
    assert connection.produce("orders", b"y", queue=0).raise_for_error().fields["queue_offset"] == 2


def test_a_producer_survives_a_hanging_disk_without_help(start: Factory, clients: Clients, disk: Disk) -> None:
    running = start(stall_ms=150, sync_timeout_ms=300)
    with clients.Producer(running.address, delivery_timeout=100) as producer:
        producer.send(Message("orders", b"0"), queue=0)
        disk.hang(running)
        receipts: list[object] = []

        def send() -> None:
            for number in range(1, 21):
                receipts.append(producer.send(Message("orders", b"%d" % number), queue=0))

        sending = threading.Thread(target=send)
        sending.start()
        # Its message, resent after the timeout, is refused like all others.
        soon(lambda: Scrape(running)("flintmq_errors_total", result="SYSTEM_BUSY") >= 3)
        disk.resume()
        sending.join()
        assert len(receipts) == 20
    with clients.Consumer(running.address) as consumer:
        bodies = [message.body for message in consumer.iter("orders", from_="earliest", until="latest")]
    assert bodies == [b"%d" % number for number in range(21)], "none lost, none twice, all in order"


def test_the_list_of_transactions_is_not_ahead_of_the_disk(start: Factory, connect: Connect, disk: Disk) -> None:
    running = start()
    producer, other = connect(running), connect(running)
    halves = [send_half(producer, "orders", b"%d" % number, number, queue=0) for number in range(2)]
    disk.hang(running)
    ended = [
        producer.send(END_TRANSACTION, {"group": GROUP, "commit": commit, "transaction_id": half.transaction_id})
        for half, commit in zip(halves, (True, False), strict=True)
    ]
    begun = producer.send(
        PRODUCE,
        {
            "topic": "orders",
            "count": 1,
            "common": common(),
            "unique_prefix": OF_TRANSACTIONS,
            "unique_first": 2,
            "queue": 0,
        },
        b"\x92\xc4\x01x\x80",
    )
    # Its answer comes after the three requests were handled: none of them is answered before the disk has them.
    producer.send(GET_TRANSACTIONS, {})
    listing = producer.receive()
    assert [row["id"] for row in msgpack.unpackb(listing.body)] == [half.transaction_id for half in halves]
    assert [row["id"] for row in listed(other)] == [half.transaction_id for half in halves]
    disk.resume()
    assert {producer.receive().request_id for _ in range(3)} == {*ended, begun}
    assert [row["id"] for row in listed(other)] == [transaction_id(2)]
