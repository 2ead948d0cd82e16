"""Real brokers on file systems of their own: ext4 that is shut down under them, and a tmpfs of 16 MiB that fills.

Skipped, with the machine's error, if they cannot be mounted. ``FLINTMQ_SEED`` selects other rounds; ``scripts/soak/run
--disks --rounds`` runs hundreds of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.store.files.file_system import Files
from flintmq.client import Consumer
from flintmq.protocol.errors import ServiceNotAvailable
from tests.conftest import RawConnection
from tests.fault.harness.brokers import BrokerEnded, ForkedBroker, PreparedParent, free_port
from tests.fault.harness.mounts import LoopExt4, NotHere, SmallDisk, loop_ext4, small_tmpfs
from tests.fault.harness.real_disks import Ext4Campaign, TmpfsCampaign, connection_to
from tests.fault.harness.rounds import EXIT_REFUSED, Campaign, RoundFailed
from tests.fault.harness.tally import Tally
from tests.overload_tools import soon
from tests.tools_runs import findings

SEED = os.environ.get("FLINTMQ_SEED", "20261122")
MIB = 1 << 20
TOPIC, QUEUES = "orders", 3


@pytest.fixture
def ext4(prepared: PreparedParent, tmp_path: Path) -> Iterator[LoopExt4]:
    """Mount ext4 in a file."""
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(loop_ext4(tmp_path))
            disk.shut_down()
        except NotHere as refusal:
            pytest.skip(str(refusal))
        disk.mount_again()
        yield disk
        prepared.kill_all()


@pytest.fixture
def tmpfs(prepared: PreparedParent, tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a tmpfs of 16 MiB."""
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(small_tmpfs(tmp_path, size_bytes=16 * MIB))
        except NotHere as refusal:
            pytest.skip(str(refusal))
        yield disk
        prepared.kill_all()


def run(campaign: Campaign, kind: str, rounds: int) -> None:
    """Run rounds of that kind; fail if one of them does."""
    tally = Tally()
    print(f"seed {campaign.seed}")  # noqa: T201 - printed to repeat a failure
    asyncio.run(campaign.run([kind] * rounds, {kind: tally}, lambda: None))
    assert tally.rounds == rounds
    assert tally.faults >= rounds
    assert tally.acknowledged > 0


def test_a_broker_whose_ext4_is_shut_down_ends_and_keeps_acknowledged_and_served_messages(
    prepared: PreparedParent, ext4: LoopExt4
) -> None:
    run(Ext4Campaign(prepared, ext4.point, f"{SEED} ext4", sync=True, disk=ext4), "shutdown", 3)


def test_a_failed_sync_on_ext4_acknowledges_no_message_that_only_the_page_cache_has(
    prepared: PreparedParent, ext4: LoopExt4, may_trace: None
) -> None:
    run(Ext4Campaign(prepared, ext4.point, f"{SEED} sync", sync=True, disk=ext4), "sync", 2)


def test_a_broker_on_a_tmpfs_that_fills_and_empties_refuses_and_resumes_without_loss(
    prepared: PreparedParent, tmpfs: SmallDisk
) -> None:
    run(TmpfsCampaign(prepared, tmpfs.point, f"{SEED} tmpfs", sync=True, disk=tmpfs), "fill", 1)


@pytest.mark.parametrize("kind", ["shutdown", "sync"])
def test_the_harness_finds_an_acknowledgement_before_the_flush(
    prepared: PreparedParent, ext4: LoopExt4, may_trace: None, kind: str
) -> None:
    broken = {"acknowledges_early": True}
    campaign = Ext4Campaign(prepared, ext4.point, SEED, sync=True, broken=broken, disk=ext4)
    with pytest.raises(RoundFailed, match="lost"):
        run(campaign, kind, 12)


SHUTDOWNS, STEP_BYTES, FILE_BYTES = 12, MIB // 2, 8 * MIB


def test_a_sync_during_a_shutdown_of_ext4_confirms_only_bytes_on_the_disk(ext4: LoopExt4) -> None:
    """``fdatasync`` alone does not ensure it: one time in four it returns 0 although the file never got the blocks."""
    source = random.Random(SEED)
    for number in range(SHUTDOWNS):
        path = ext4.point / str(number)
        synced_bytes = write_until_shut_down(path, ext4, source)
        ext4.mount_again()
        content = path.read_bytes()
        assert len(content.rstrip(b"\0")) >= synced_bytes, f"{synced_bytes} bytes were confirmed as synced"
        path.unlink()


def write_until_shut_down(path: Path, disk: LoopExt4, source: random.Random) -> int:
    """Write and sync until the file system is shut down; return how many bytes were confirmed as synced."""
    files = Files()
    fd = files.open(path, create=True)
    files.resize(fd, FILE_BYTES)
    files.allocate(fd, 0, FILE_BYTES)
    files.sync_data(fd)
    files.sync_folder(path.parent)
    synced = [0]
    begun = threading.Event()

    def write() -> None:
        for at in range(0, FILE_BYTES, STEP_BYTES):
            try:
                files.write(fd, b"x" * STEP_BYTES, at)
                begun.set()
                files.sync_data(fd)
            except OSError:
                return
            synced[0] = at + STEP_BYTES

    writing = threading.Thread(target=write)
    writing.start()
    begun.wait()
    threading.Event().wait(source.uniform(0.0, 0.005))
    disk.shut_down()
    writing.join()
    files.close(fd)
    return synced[0]


class Filling:
    """A producer of a broker on a tmpfs, and its acknowledged messages: (queue, queue offset) → body."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._source = random.Random(SEED)
        self._number = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}

    def send(self, bytes_max: int = 100_000) -> None:
        """Send a message to the next queue. Raises if it is refused; the next message goes to another queue."""
        self._number += 1
        queue = self._number % QUEUES
        body = b"%08d" % self._number + self._source.randbytes(self._source.randrange(bytes_max))
        answer = self._connection.produce(TOPIC, body, queue=queue).raise_for_error()
        self.acknowledged[queue, answer.fields["queue_offset"]] = body

    def until_full(self) -> ServiceNotAvailable:
        """Send until a message is refused; return the refusal."""
        while True:
            try:
                self.send()
            except ServiceNotAvailable as refusal:
                return refusal

    def until_nothing_is_free(self, disk: SmallDisk) -> None:
        """Fill the last byte, including bytes that an attempt to allocate more holds for a moment."""
        while self.until_full().details["free_bytes"]:
            disk.take(leave_bytes=0)

    def resumes(self) -> bool:
        """Return whether messages are accepted again."""
        try:
            self.send()
        except ServiceNotAvailable:
            return False
        return True


def pulled(port: int) -> dict[tuple[int, int], bytes]:
    """Return the readable messages: (queue, queue offset) → body."""
    with Consumer(f"127.0.0.1:{port}") as consumer:
        messages = consumer.iter(TOPIC, from_="earliest", until="latest")
        return {(message.queue, message.queue_offset): bytes(message.body) for message in messages}


def listening(prepared: PreparedParent, store: Path, port: int) -> ForkedBroker:
    """Start a broker on that store and wait until it listens."""
    broker = prepared.start(store, port)
    broker.wait_until_listening()
    return broker


def test_a_full_tmpfs_refuses_messages_with_the_free_and_needed_bytes_and_resumes(
    prepared: PreparedParent, tmpfs: SmallDisk
) -> None:
    store, port = tmpfs.point / "store", free_port(random.SystemRandom())
    tmpfs.take(leave_bytes=9 * MIB)
    broker = listening(prepared, store, port)
    with connection_to(port) as connection:
        filling = Filling(connection)
        refusal = filling.until_full()
        assert refusal.details["free_bytes"] < refusal.details["needed_bytes"]
        assert f"the disk of {store / 'commitlog'} is full" in refusal.message
        filling.until_nothing_is_free(tmpfs)
        assert pulled(port).items() <= filling.acknowledged.items()

        tmpfs.give_back()
        soon(filling.resumes)
        soon(lambda: pulled(port) == filling.acknowledged)
        filling.until_full()
        filling.until_nothing_is_free(tmpfs)
    assert broker.kill() == -signal.SIGKILL, "it lived until then"
    assert len(filling.acknowledged) > 150

    tmpfs.take(leave_bytes=0)  # what the killed process held for an attempt to allocate more is free again
    with pytest.raises(BrokerEnded) as refused:
        listening(prepared, store, port)
    assert refused.value.code == EXIT_REFUSED
    tmpfs.give_back()
    broker = listening(prepared, store, port)
    assert pulled(port) == filling.acknowledged
    broker.terminate()
    assert broker.wait() == 0
    assert findings(store) == []
