"""Rounds: a broker with a fault under load, the start that follows, and the judgement.

A campaign is one store and a series of rounds: each continues with the files that the last one left. Every random
choice comes from the campaign's seed and the round's number; how threads interleave does not.
"""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flintmq.client import FlintError

from .brokers import BrokerEnded, ForkedBroker, HarnessError, PreparedParent, free_port
from .damage import Hit, damage, lost_messages
from .failing_files import WRITTEN_ONCE
from .ledger import Allowance, Finding, Ledger
from .load import Load
from .points import POINTS
from .tally import Tally

FIRE_S_MAX = 80.0
"""Time after which a fault that has not happened never will."""
LOOKED_UP = 8
"""Number of messages looked up by key and id in each round."""
RETENTION = {
    "retention.file_reserved_hours": 0,
    "retention.delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "background.services:RETENTION_CHECK_S": 0.02,
}
"""Settings by which every log file but the last expires at once."""
CALM = {"background.services:CHECKPOINT_S": 60}
"""Settings without checkpoints: a recovery has to dispatch everything again, a stop has to put everything on disk."""
LOST_FIRST = {"recovery: a queue": "consumequeue", "recovery: the index": "index"}
ERRORS_NTH_MAX = {
    "sync_data": 60,
    "sync_folder": 12,
    "allocate": 5,
    "write": 120,
    "rename": 12,
    "open": 12,
    "unlink": 3,
}
"""Number of calls of each operation that a short load makes at least."""
EXIT_REFUSED, EXIT_FATAL = 1, 70
SAID_WITHIN_S = 120.0
"""Time within which a start logs the damage that it found."""
PROGRESS_MESSAGES = 30
"""A broker that has acknowledged so many more messages is working."""


class PromiseBroken(Exception):
    """The broker broke a promise."""


class RoundFailed(Exception):
    """A promise was broken, or the harness failed."""

    def __init__(self, campaign: Campaign, what: str) -> None:
        super().__init__(what)
        self.campaign = campaign


@dataclass
class Campaign:
    """One store, its ledger, its clients and its rounds. ``prepared``: forks the brokers; ``folder``: contains the
    store."""

    prepared: PreparedParent
    folder: Path
    seed: str
    sync: bool
    retention: bool = False
    checksums: bool = False
    """Every record gets a checksum over all of it."""
    broken: dict[str, Any] = field(default_factory=dict)
    """A defect of the brokers with faults, by which the harness tests itself."""

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)
        self.store = self.folder / "store"
        self.port = free_port(random.SystemRandom())
        self.ledger = Ledger()
        self.load = Load(f"127.0.0.1:{self.port}", self.ledger, random.Random(self.source.random()), sync=self.sync)
        self._cuts = 0
        self._hits: dict[int, Hit] = {}
        """Touched messages by physical offset."""
        self._fell_back: str | None = None
        """Table that the last start took from its version before its last change."""
        self._faults = 0
        """Number of faults in this round."""
        self.hit: set[str] = set()
        """Points that were reached."""
        self.disk_fails_in = {"error"}
        """Kinds of rounds in which a change of a table may be refused."""

    async def run(self, rounds: list[str], tallies: dict[str, Tally], progress: Callable[[], None]) -> None:
        """Run rounds of these kinds. Raises ``RoundFailed``."""
        broker = await self._start()
        async with self.load:
            try:
                await self.load.prepare()
                broker.kill()
                for number, kind in enumerate(rounds):
                    self.source = random.Random(f"{self.seed} {number}")
                    tally = tallies.setdefault(kind.partition(":")[0], Tally())
                    await self._counted(number, kind, tally, last=number == len(rounds) - 1)
                    progress()
            except (BrokerEnded, HarnessError, PromiseBroken, FlintError, OSError, TimeoutError) as error:
                raise RoundFailed(self, f"{type(error).__name__}: {error}") from error

    async def _counted(self, number: int, kind: str, tally: Tally, *, last: bool) -> None:
        """Run a round and count its result, even if it fails."""
        began, before = time.monotonic(), (self.ledger.acknowledged_in_all, self.load.resent)
        self._faults = 0
        tally.rounds += 1
        tally.failed += 1
        try:
            await self._round(number, kind, tally, last=last)
            tally.failed -= 1
        finally:
            tally.faults += self._faults
            tally.acknowledged += self.ledger.acknowledged_in_all - before[0]
            tally.resent += self.load.resent - before[1]
            tally.seconds += time.monotonic() - began

    async def _round(self, number: int, kind: str, tally: Tally, *, last: bool) -> None:
        name, _, rest = kind.partition(":")
        run: Callable[[str], Awaitable[Allowance]] = getattr(self, f"_{name}")
        self.load.disk_fails = name in self.disk_fails_in
        allowance = await run(rest)
        self._faults += name != "kill"
        self.load.fault_happened()
        broker = await self._start()
        try:
            await self.load.finish()
            await self._check_fallback_is_logged(broker)
            finding = await self._judge(allowance, last=last)
        finally:
            end = self.source.random() < 0.3
            if end:
                broker.terminate()
                if broker.wait() != 0:
                    raise PromiseBroken(f"an orderly stop ended with {broker.wait()}: {broker.log}")
            else:
                broker.kill()
        tally.add(finding)
        if not finding.sound:
            raise RoundFailed(self, f"round {number} ({kind}): " + "; ".join(finding.details))

    async def _check_fallback_is_logged(self, broker: ForkedBroker) -> None:
        """Raise if a table was damaged and the broker's log never says that it uses the copy."""
        deadline = time.monotonic() + SAID_WITHIN_S  # the scheduled records are read only after the broker serves
        while self._fell_back is not None and f"{self._fell_back}.bak instead" not in broker.log.read_text():
            if time.monotonic() > deadline:
                raise PromiseBroken(f"the broker used the .bak of {self._fell_back} without logging it: {broker.log}")
            await asyncio.sleep(0.005)

    async def _judge(self, allowance: Allowance, *, last: bool) -> Finding:
        if self.retention:
            first = min((int(path.name) for path in (self.store / "commitlog").iterdir()), default=0)
            allowance = replace(allowance, expired_below=first)
        touched = {at: (hit.topic, hit.queue, hit.queue_offset) for at, hit in self._hits.items()}
        allowance = replace(allowance, touched=touched, reported=lost_messages(self.store), checked=self.checksums)
        finding = self.ledger.judge(await self.load.look(), allowance)
        await self.load.look_up(finding, LOOKED_UP, allowance)
        await self.load.look_at_tables(finding, fell_back=self._fell_back == "config/topics.json")
        self._fell_back = None
        if last and not self.retention:
            await self.load.wait_for_delayed(finding, {hit.number for hit in self._hits.values()})
        return finding

    def keep(self, folder: Path) -> Path:
        """Return where the store of a failed round stays: at the latest in ``folder``."""
        return self.store

    # Starting.

    @property
    def _settings(self) -> dict[str, Any]:
        policy = "sync" if self.sync else "async"
        return {"flush.policy": policy, "store.record_checksum": str(self.checksums).lower()}

    def _fork(self, faults: dict[str, Any], **more: Any) -> ForkedBroker:
        """Start a broker with these faults; if the campaign has retention, it deletes all it can."""
        settings = {**self._settings, **(RETENTION if self.retention else {}), **more}
        return self.prepared.start(self.store, self.port, settings, {**self.broken, **faults})

    async def _start(self) -> ForkedBroker:
        """Start a broker without faults and retention, so that all it holds can be judged."""
        broker = self.prepared.start(self.store, self.port, self._settings)
        await asyncio.to_thread(broker.wait_until_listening)
        return broker

    async def _work_until_dead(self, broker: ForkedBroker, what: str) -> int:
        """Run the load until the fault ends the broker; return its exit code."""
        self.load.begin()
        deadline = time.monotonic() + FIRE_S_MAX
        while not broker.ended:
            self.load.check_alive()
            if time.monotonic() > deadline:
                broker.kill()
                raise HarnessError(f"{what} did not happen within {FIRE_S_MAX:.0f} s of load")
            await asyncio.sleep(0.005)
        return broker.wait()

    # Kinds of rounds.

    async def _kill(self, rest: str) -> Allowance:
        """Send SIGKILL at a random moment, also during the start."""
        broker = self._fork({})
        await asyncio.to_thread(broker.wait_until_listening)
        self.load.begin()
        await asyncio.sleep(self.source.uniform(0.0, 0.3))
        self.load.check_alive()
        broker.kill()
        self._faults += 1
        while self.source.random() < 0.3:
            again = self._fork({})
            await asyncio.sleep(self.source.uniform(0.0, 0.05))
            again.kill()
            self._faults += 1
        return Allowance()

    async def _point(self, name: str) -> Allowance:
        """Send SIGKILL at a named point."""
        name = name or self.source.choice([each for each in sorted(POINTS) if self._reachable(each)])
        point = POINTS[name]
        fault = {"point": name, "nth": self.source.randint(1, point.nth_max)}
        if name.startswith("recovery"):
            broker = await self._leave_backlog(fault)
        elif name.startswith("stop"):
            # A checkpoint between the last message and the stop would leave the stop nothing to put on disk.
            broker = self._fork(fault, **CALM)
            await asyncio.to_thread(broker.wait_until_listening)
            self.load.begin()
            await self._until(lambda: self.load.acknowledged >= PROGRESS_MESSAGES, broker, "a load")
            broker.terminate()
        else:
            broker = self._fork(fault)
            await self._work_until_dead(broker, f"the point {name!r} (the {fault['nth']}. time)")
        broker.wait()
        if broker.fault_output("point") != name:
            raise HarnessError(f"the point {name!r} was not reached; the broker's log: {broker.log}")
        self.hit.add(name)
        return Allowance()

    async def _leave_backlog(self, fault: dict[str, Any]) -> ForkedBroker:
        """Kill a broker that made no checkpoint, and start one that dies while it recovers. A kill leaves queues and
        index in the page cache: to test their recovery, the harness deletes them first."""
        broker = self._fork({}, **CALM)
        await asyncio.to_thread(broker.wait_until_listening)
        self.load.begin()
        await self._until(lambda: self.load.acknowledged >= PROGRESS_MESSAGES, broker, "a load")
        broker.kill()
        lost = LOST_FIRST.get(fault["point"])
        if lost is not None:
            shutil.rmtree(self.store / lost)
        recovering = self._fork(fault, **CALM)
        try:
            await asyncio.to_thread(recovering.wait_until_listening)
        except BrokerEnded:
            return recovering
        recovering.kill()
        return recovering

    def _reachable(self, point: str) -> bool:
        return self.retention or not point.startswith("retention")

    async def _power(self, rest: str) -> Allowance:
        """Cut the power; the next start gets what the disk may hold by then."""
        self._cuts += 1
        target = self.folder / f"store-{self._cuts}"
        lives = int(2 ** self.source.uniform(3, 10))
        fault = {"cut": str(target), "lives": lives, "seed": self.source.random()}
        broker = self._fork(fault)
        await self._work_until_dead(broker, f"the power cut at the {lives}. call")
        cut = broker.fault_output("cut")
        if cut is None:
            raise HarnessError(f"the power was never cut; the broker's log: {broker.log}")
        shutil.rmtree(self.store)
        target.rename(self.store)
        return Allowance() if self.sync else Allowance(int(cut), frozenset(self.ledger.acknowledged))

    async def _damage(self, kind: str) -> Allowance:
        """Damage a file between two runs, after every request has its response: so only the damage is judged."""
        broker = self._fork({})
        await asyncio.to_thread(broker.wait_until_listening)
        self.load.begin()
        await self._until(lambda: self.load.acknowledged >= PROGRESS_MESSAGES, broker, "a load")
        await asyncio.sleep(self.source.uniform(0.0, 0.2))
        await self.load.finish()
        if self.source.random() < 0.5:
            broker.terminate()
            broker.wait()
        broker.kill()
        done = None
        while done is None:
            done = damage(self.store, self.source, kind)
            kind = ""
        self._hits |= {hit.physical_offset: hit for hit in done.hits}
        self._fell_back = done.path if done.falls_back else None
        if done.refused:
            await self._expect_refusal(done.path)
            done.undo(self.store)
        return Allowance()

    async def _expect_refusal(self, path: str) -> None:
        """Check that a start on irreparable files is refused, names the file and changes nothing."""
        broker = self._fork({})
        try:
            await asyncio.to_thread(broker.wait_until_listening)
        except BrokerEnded as end:
            if end.code != EXIT_REFUSED or path not in broker.log.read_text():
                raise PromiseBroken(f"a start on a broken {path} ended with {end.code}: {broker.log}") from end
            return
        broker.kill()
        raise PromiseBroken(f"the broker started with {path}, which cannot be read: {broker.log}")

    async def _error(self, which: str) -> Allowance:
        """Fail one call (``which``: OPERATION ERRNO NTH [PATTERN of the path]), or fill the disk from it on and make
        space later."""
        operation, name, nth, *path = which.split() if which else self._any_error()
        number = errno.EIO if name == "EIO" else errno.ENOSPC
        self._cuts += 1
        room = self.folder / f"room-{self._cuts}"
        fills = number == errno.ENOSPC and not operation.startswith("sync")
        fault = {"operation": operation, "nth": int(nth), "number": number, "until": str(room) if fills else ""}
        fault |= {"path": path[0]} if path else {}
        known = set(self.ledger.acknowledged)
        broker = self._fork(fault)
        self.load.begin()
        try:
            await asyncio.to_thread(broker.wait_until_listening)
        except BrokerEnded as end:
            if end.code not in (EXIT_REFUSED, EXIT_FATAL):
                raise PromiseBroken(f"a start on which {which} failed ended with {end.code}: {broker.log}") from end
        await self._until(
            lambda: broker.ended or broker.fault_output("error") is not None, broker, f"{operation} {nth}"
        )
        if not fills:
            await self._after_io_error(broker, operation, number)
        elif not broker.ended:
            await self._through_full_disk(broker, room)
        broker.kill()
        failed_at = int((broker.fault_output("error") or "0").split()[-1])
        if operation == "sync_data" and (broker.fault_output("error") or "").startswith("sync_data commitlog/"):
            self._check_acknowledged(known, failed_at)
        return Allowance()

    def _any_error(self) -> tuple[str, str, str]:
        operations = [each for each in sorted(ERRORS_NTH_MAX) if each != "unlink" or self.retention]
        operation = self.source.choice(operations)
        nth = self.source.randint(1, ERRORS_NTH_MAX[operation])
        name = "EIO" if operation == "unlink" else self.source.choice(("EIO", "ENOSPC"))
        return operation, name, str(nth)

    async def _until(self, holds: Callable[[], bool], broker: ForkedBroker, what: str) -> None:
        deadline = time.monotonic() + FIRE_S_MAX
        while not holds():
            self.load.check_alive()
            if time.monotonic() > deadline:
                broker.kill()
                raise HarnessError(f"{what} did not happen within {FIRE_S_MAX:.0f} s; the broker's log: {broker.log}")
            await asyncio.sleep(0.005)

    async def _after_io_error(self, broker: ForkedBroker, operation: str, number: int) -> None:
        """Check that the broker exits with an error code, or continues if no data was at stake, but never after a
        failed sync."""
        before = self.load.acknowledged
        path = (broker.fault_output("error") or "").split()[1]
        # A table or a file that is being created is written from scratch after a failure, so the broker may continue.
        must_end = (operation.startswith("sync") or operation == "rename") and path.startswith(WRITTEN_ONCE)
        if number == errno.ENOSPC and operation == "sync_folder":
            must_end = False  # the log's next file was not created, and will be when there is space
        await self._until(
            lambda: broker.ended or (not must_end and self.load.acknowledged >= before + PROGRESS_MESSAGES),
            broker,
            f"the end after {broker.fault_output('error')}",
        )
        if broker.ended and broker.wait() not in (EXIT_FATAL, EXIT_REFUSED):
            raise PromiseBroken(
                f"after {broker.fault_output('error')} the broker ended with {broker.wait()}: {broker.log}"
            )

    async def _through_full_disk(self, broker: ForkedBroker, room: Path) -> None:
        """Check that reads continue on the full disk, and writes once there is space."""
        try:
            await self.load.read_something()
        except FlintError as error:
            raise PromiseBroken(
                f"nothing can be read while the disk is full ({broker.fault_output('error')}): {error}"
            ) from error
        before = self.load.acknowledged
        await asyncio.to_thread(room.touch)
        await self._until(
            lambda: broker.ended or self.load.acknowledged >= before + PROGRESS_MESSAGES,
            broker,
            "a write after there was room",
        )
        if broker.ended:
            raise PromiseBroken(
                f"a full disk ({broker.fault_output('error')}) ended the broker with {broker.wait()}: {broker.log}"
            )

    def _check_acknowledged(self, known: set[int], flushed_offset: int) -> None:
        """Check that every message acknowledged as flushed was on disk before the sync failed."""
        for number, place in self.ledger.acknowledged.items():
            if number not in known and place.sync and place.physical_offset >= flushed_offset:
                raise PromiseBroken(f"{number} at {place} was acknowledged, and the sync at {flushed_offset} failed")
