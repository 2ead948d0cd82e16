"""Rounds on real file systems: ext4 that is shut down under the broker or fails to sync, and a tmpfs that fills."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flintmq.broker.tools.findings import Finding as Damage
from flintmq.broker.tools.verify import verify
from flintmq.client import FlintError
from flintmq.protocol.commands import HELLO
from flintmq.protocol.errors import ServiceNotAvailable
from tests.conftest import RawConnection

from .brokers import BrokerEnded, ForkedBroker, HarnessError, PreparedParent
from .ledger import Allowance
from .mounts import LoopExt4, SmallDisk, loop_ext4, small_tmpfs
from .plan import Planned
from .rounds import EXIT_FATAL, EXIT_REFUSED, FIRE_S_MAX, PROGRESS_MESSAGES, Campaign, PromiseBroken
from .strace import injection
from .tally import Tally

SYNCS_MAX = 20
FILLS_A_ROUND = 3
PROBE_TOPIC, PROBE_BYTES = "last", 50_000
"""Topic that the ledger ignores, and the message sent to it to find out whether there is space."""
LEFT_BYTES = (0, 0, 4096, 60_000, 300_000)


@dataclass
class RealDiskCampaign(Campaign):
    """A campaign whose store is on a file system mounted for it at ``folder``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.disk_fails_in = {"shutdown", "sync", "fill"}

    async def _round(self, number: int, kind: str, tally: Tally, *, last: bool) -> None:
        """Run a round; then ``verify`` must find nothing."""
        await super()._round(number, kind, tally, last=last)
        found: list[Damage] = list((await asyncio.to_thread(verify, self.store, lambda done, total: None)).findings)
        if found:
            raise PromiseBroken(f"after round {number} ({kind}) verify finds {found[:5]}")

    def keep(self, folder: Path) -> Path:
        """Copy the store, because its file system goes away."""
        self.prepared.kill_all()
        return Path(shutil.copytree(self.store, folder / "kept"))


@dataclass
class Ext4Campaign(RealDiskCampaign):
    """A campaign on ext4 that is shut down, as if the power failed or the device was pulled, and whose syncs fail."""

    disk: LoopExt4 = field(kw_only=True)

    def keep(self, folder: Path) -> Path:
        """Copy what reached the disk."""
        self.prepared.kill_all()
        self.disk.mount_again()
        return super().keep(folder)

    async def _shutdown(self, rest: str) -> Allowance:
        """Shut down at a random moment of the load, and sometimes again during recovery."""
        broker = self._fork({})
        await asyncio.to_thread(broker.wait_until_listening)
        self.load.begin()
        await asyncio.sleep(self.source.uniform(0.0, 0.3))
        self.load.check_alive()
        self.disk.shut_down()
        await self._until(lambda: broker.ended, broker, "the end of a broker whose file system was shut down")
        if broker.wait() != EXIT_FATAL:
            raise PromiseBroken(
                f"its file system was shut down, and the broker ended with {broker.wait()}: {broker.log}"
            )
        await asyncio.to_thread(self.disk.mount_again)
        while self.source.random() < 0.4:
            await self._shut_down_start()
        return Allowance()

    async def _shut_down_start(self) -> None:
        broker = self._fork({})
        await asyncio.sleep(self.source.uniform(0.0, 0.05))
        self.disk.shut_down()
        self._faults += 1
        try:
            await asyncio.to_thread(broker.wait_until_listening)
            broker.kill()  # it has nothing to write, and cannot notice
        except BrokerEnded as end:
            if end.code not in (EXIT_REFUSED, EXIT_FATAL):
                raise PromiseBroken(
                    f"shut down while it started, the broker ended with {end.code}: {broker.log}"
                ) from end
        await asyncio.to_thread(self.disk.mount_again)

    async def _sync(self, rest: str) -> Allowance:
        """Fail a sync in some thread and drop the page cache: every message acknowledged because of that sync would be
        missing."""
        broker = self._fork({})
        await asyncio.to_thread(broker.wait_until_listening)
        number = self.source.randint(1, SYNCS_MAX)
        with injection(broker.pid, broker.log.with_suffix(".trace"), "fdatasync", "EIO", when=str(number)) as injected:
            self.load.begin()
            await self._until(lambda: broker.ended, broker, f"the end of a broker whose {number}. syncs fail")
            if broker.wait() != EXIT_FATAL or not injected.injected:
                raise PromiseBroken(f"a sync failed, and the broker ended with {broker.wait()}: {broker.log}")
        self.disk.shut_down()
        await asyncio.to_thread(self.disk.mount_again)
        return Allowance()


@dataclass
class TmpfsCampaign(RealDiskCampaign):
    """A campaign on a small tmpfs, where retention makes space for the load."""

    disk: SmallDisk = field(kw_only=True)
    retention: bool = True

    async def _fill(self, rest: str) -> Allowance:
        """Use up all space and give it back, a few times."""
        broker = self._fork({})
        await asyncio.to_thread(broker.wait_until_listening)
        self.load.begin()
        await self._until(lambda: self.load.acknowledged >= PROGRESS_MESSAGES, broker, "a load")
        for _ in range(FILLS_A_ROUND):
            await asyncio.to_thread(self._take_until_refused, broker)
            try:
                await self.load.read_something()
            except FlintError as error:
                raise PromiseBroken(f"nothing can be read while the disk is full: {error}") from error
            enough = self.load.acknowledged + PROGRESS_MESSAGES
            self.disk.give_back()
            self._faults += 1
            await self._until(partial(self._has_written, broker, enough), broker, "a write after there was room")
            if broker.ended:
                raise PromiseBroken(f"a full disk ended the broker with {broker.wait()}: {broker.log}")
        broker.kill()
        return Allowance()

    def _has_written(self, broker: ForkedBroker, enough: int) -> bool:
        return broker.ended or self.load.acknowledged >= enough

    def _take_until_refused(self, broker: ForkedBroker) -> None:
        """Use up all space, including what retention frees and what the load has allocated."""
        leave_bytes = self.source.choice(LEFT_BYTES)
        deadline = time.monotonic() + FIRE_S_MAX
        try:
            with connection_to(self.port) as probe:
                while True:
                    self.disk.take(leave_bytes=leave_bytes)
                    try:
                        probe.produce(PROBE_TOPIC, bytes(PROBE_BYTES), queue=0).raise_for_error()
                    except ServiceNotAvailable as refusal:
                        check_says_how_much(refusal)
                        return
                    if time.monotonic() > deadline:
                        raise HarnessError(f"the disk never became full, {self.disk.free_bytes} bytes are free")
        except EOFError as error:
            raise PromiseBroken(f"a full disk ended the broker with {broker.wait()}: {broker.log}") from error


@contextmanager
def on_a_real_disk(prepared: PreparedParent, folder: Path, planned: Planned) -> Iterator[Campaign]:
    """Create a campaign on the file system that its rounds need, in ``folder``. Raises ``NotHere``."""
    with ExitStack() as stack:
        if planned.rounds[0] == "fill":
            tmpfs = stack.enter_context(small_tmpfs(folder))
            stack.callback(prepared.kill_all)
            yield TmpfsCampaign(prepared, tmpfs.point, planned.seed, sync=True, checksums=planned.checksums, disk=tmpfs)
        else:
            ext4 = stack.enter_context(loop_ext4(folder))
            stack.callback(prepared.kill_all)
            yield Ext4Campaign(prepared, ext4.point, planned.seed, sync=True, checksums=planned.checksums, disk=ext4)


def check_says_how_much(refusal: ServiceNotAvailable) -> None:
    """Raise ``PromiseBroken`` if the message about a full disk lacks the free bytes and the needed bytes."""
    if not refusal.details.keys() >= {"free_bytes", "needed_bytes"} or "is full" not in refusal.message:
        raise PromiseBroken(f"the refusal by a full disk is {refusal.details}: {refusal.message}")


@contextmanager
def connection_to(port: int) -> Iterator[RawConnection]:
    """Return a plain connection to a broker on this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=FIRE_S_MAX) as sock:
        connection = RawConnection(sock)
        connection.call(HELLO, {"protocol": 1, "client": "harness"}).raise_for_error()
        yield connection
