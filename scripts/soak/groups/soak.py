"""The soak of consumer groups: starts the processes, stops and kills some, and checks the result."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flintmq.client import Admin, FlintError
from lib.replica_servers import free_ports

from ..soak import Broker, Failed
from .ledger import (
    PROBLEMS_SHOWN,
    Handled,
    LedgerReader,
    Sent,
    Verdict,
    check_group,
    check_sent,
    parse_handled,
    parse_sent,
)

FINISH_SECONDS_MAX = 240.0
LEAVE_SECONDS_MAX = 100.0
"""Long, because a member that waits for its broker when it is told to leave joins first."""
_OUTPUT_CHARS_SHOWN = 4_000


class Actor:
    """Process with a ledger; its output goes into a file beside it."""

    def __init__(self, module: str, name: str, folder: Path, /, **arguments: Any) -> None:
        self.name = name
        self.ledger = folder / f"{name}.ledger"
        self.ledger.touch()
        self._output = folder / f"{name}.log"
        self.told_to_end = False
        """True after the process was told to end."""
        options = json.dumps({**arguments, "ledger": str(self.ledger)})
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"soak.groups.{module}", options],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise ``Failed`` if the process ended without being told to, or with an error."""
        code = self._process.poll()
        if code is None or (self.told_to_end and code in (0, -signal.SIGKILL)):
            return
        output = self._output.read_text(errors="replace")
        # SIGTERM arrived before Python had installed its handler.
        if self.told_to_end and code == -signal.SIGTERM and not output:
            return
        raise Failed(f"{self.name} ended with exit {code}; its output:\n{output[-_OUTPUT_CHARS_SHOWN:]}")

    def await_end(self, seconds: float) -> None:
        """Wait until the process ends; raise ``Failed`` if it does not, or ends with an error."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {seconds:.0f} s") from None
        self.check()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class ProducerProcess(Actor):
    def __init__(self, name: str, folder: Path, **arguments: Any) -> None:
        super().__init__("producer", name, folder, name=name, **arguments)

    def finish(self) -> None:
        """Have the producer end after the broker has acknowledged everything."""
        self.told_to_end = True
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        self._process.stdin.flush()
        self.await_end(FINISH_SECONDS_MAX)


class MemberProcess(Actor):
    """Process of a member, from joining to leaving."""

    def leave(self) -> None:
        self.told_to_end = True
        self._leave_by = time.monotonic() + LEAVE_SECONDS_MAX
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.told_to_end = True
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise ``Failed`` if the process ended unexpectedly, or did not leave in time."""
        super().check()
        if self.told_to_end and not self.ended and time.monotonic() > self._leave_by:
            raise Failed(f"{self.name} was told to leave and did not within {LEAVE_SECONDS_MAX:.0f} s")


@dataclass
class Slot:
    """Place of a member, filled by one process after the other.

    ``keeps_name``: every process has the same member name; ``asyncio``: the processes use the asyncio client.
    """

    name: str
    group: str
    orderly: bool
    batch: int | None
    keeps_name: bool
    asyncio: bool = False
    members: list[MemberProcess] = field(default_factory=list)

    @property
    def running(self) -> MemberProcess | None:
        """Return the member that runs and was not told to end."""
        if not self.members or self.members[-1].ended or self.members[-1].told_to_end:
            return None
        return self.members[-1]

    def join(self, folder: Path, **arguments: Any) -> None:
        """Start a new process; the one before may still be leaving."""
        self.members.append(
            MemberProcess(
                "member",
                f"{self.name}.{len(self.members)}",
                folder,
                group=self.group,
                orderly=self.orderly,
                batch=self.batch,
                member=self.name if self.keeps_name else None,
                asyncio=self.asyncio,
                **arguments,
            )
        )


# ---- The run.

TOPIC = "soak-groups"
QUEUES = 8
ORDERLY, CONCURRENT = "orderly", "concurrent"
BROKER_STOPPED, BROKER_KILLED = "the broker stopped", "the broker killed"
DOWN_SECONDS = (0.0, 5.0)
DRAIN_SECONDS_MAX = 120.0
STILL_SECONDS = 5.0
"""Time without a new message after which the run counts as complete."""
_LOOK_SECONDS = 0.1
_SHOW_SECONDS = 30.0


@dataclass(frozen=True)
class Plan:
    """Options of a run, as in ``scripts/soak/run groups --help``. ``calm``: no process is killed."""

    minutes: float
    producers: int
    keys: int
    rate: float
    calm: bool
    restart_every: float
    change_every: float
    failing: float
    slow_ms: float
    flush: str
    seed: int


class Soak:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._source = random.Random(plan.seed)
        (self._port,) = free_ports(1)
        self._broker = Broker(folder / "store", self._port, plan.flush)
        self._down_until = 0.0
        """Time at which the broker restarts; 0 while it runs."""
        self._producers: list[ProducerProcess] = []
        self._slots = self._make_slots()
        self._counts = {"joined": 0, "left": 0, "killed": 0, BROKER_STOPPED: 0, BROKER_KILLED: 0}

    def _make_slots(self) -> list[Slot]:
        """Return three slots for each group: two handle messages, one of them with asyncio, and one handles batches.

        If a batch fails in orderly mode, the messages before the failing one are redelivered too. A calm run, in which
        no message may be handled twice, therefore has no orderly batches.
        """
        batches = {ORDERLY: None if self._plan.calm else 16, CONCURRENT: 16}
        return [
            Slot(
                f"{group}-{number}",
                group,
                orderly=group == ORDERLY,
                batch=batches[group] if number == 2 else None,
                keeps_name=number == 1,
                asyncio=number == 0,
            )
            for group in (ORDERLY, CONCURRENT)
            for number in range(3)
        ]

    def run(self) -> None:
        """Run it from start to end. Raises ``Failed`` if a guarantee does not hold."""
        self._broker.__enter__()
        try:
            with Admin(self._broker.address) as admin:
                admin.create_topic(TOPIC, queues=QUEUES)
            for number in range(self._plan.producers):
                self._producers.append(
                    ProducerProcess(
                        f"producer-{number}",
                        self._folder,
                        address=self._broker.address,
                        topic=TOPIC,
                        keys=self._plan.keys,
                        rate=self._plan.rate,
                        seed=self._source.randrange(1 << 31),
                    )
                )
            for slot in self._slots:
                self._join(slot)
            self._through_changes()
            self._finish()
        finally:
            for actor in (*self._producers, *(member for slot in self._slots for member in slot.members)):
                actor.end()
            if not self._down_until:
                self._broker.__exit__(None, None, None)

    # ---- changes of members and broker

    def _through_changes(self) -> None:
        began = time.monotonic()
        ends = began + self._plan.minutes * 60
        changes = self._moments(began, ends, self._plan.change_every)
        outages = [] if self._plan.calm else self._moments(began, ends, self._plan.restart_every)
        shown = began
        while (now := time.monotonic()) < ends:
            self._check_alive()
            if now >= shown:
                shown = now + _SHOW_SECONDS
                self._show(now - began)
            if self._down_until and now >= self._down_until:
                self._start_broker()
            if outages and now >= outages[0]:
                outages.pop(0)
                self._end_broker(now)
            if changes and now >= changes[0]:
                changes.pop(0)
                self._change(self._source.choice(self._slots))
            time.sleep(_LOOK_SECONDS)
        if self._down_until:
            self._start_broker()

    def _moments(self, began: float, ends: float, every: float) -> list[float]:
        """Return random times, one in ``every`` seconds, except in the first and last twentieth of the run."""
        count = max(1, round((ends - began) / every))
        return sorted(began + self._source.uniform(0.05, 0.95) * (ends - began) for _ in range(count))

    def _change(self, slot: Slot) -> None:
        member = slot.running
        if member is None:
            self._join(slot)
        elif self._plan.calm or self._source.random() < 0.5:
            self._counts["left"] += 1
            member.leave()
        else:
            self._counts["killed"] += 1
            member.kill()

    def _join(self, slot: Slot) -> None:
        self._counts["joined"] += 1
        plan = self._plan
        slot.join(
            self._folder,
            address=self._broker.address,
            topic=TOPIC,
            seed=self._source.randrange(1 << 31),
            failing=plan.failing,
            slow_ms=plan.slow_ms,
            commit_interval=0.5,
        )

    def _end_broker(self, now: float) -> None:
        """Stop and kill the broker in turn: clients see different ends of their connections."""
        if self._down_until:
            return
        if self._counts[BROKER_STOPPED] <= self._counts[BROKER_KILLED]:
            self._counts[BROKER_STOPPED] += 1
            self._broker.__exit__(None, None, None)
        else:
            self._counts[BROKER_KILLED] += 1
            self._broker.kill()
        self._down_until = now + self._source.uniform(*DOWN_SECONDS)

    def _start_broker(self) -> None:
        self._broker = Broker(self._folder / "store", self._port, self._plan.flush)
        self._broker.__enter__()
        self._down_until = 0.0

    def _check_alive(self) -> None:
        for actor in (*self._producers, *(slot.members[-1] for slot in self._slots)):
            actor.check()

    def _show(self, seconds: float) -> None:
        running = sum(slot.running is not None for slot in self._slots)
        print(f"{seconds:5.0f} s  {running} members; {self._changes}", flush=True)

    @property
    def _changes(self) -> str:
        return ", ".join(f"{count} {event}" for event, count in self._counts.items())

    # ---- the end

    def _finish(self) -> None:
        for producer in self._producers:
            producer.finish()
        sent = [parse_sent(line) for producer in self._producers for line in LedgerReader(producer.ledger).lines()]
        for slot in self._slots:
            if slot.running is None:
                self._join(slot)
        self._drain(sent)
        for slot in self._slots:
            slot.members[-1].leave()
        for slot in self._slots:
            slot.members[-1].await_end(LEAVE_SECONDS_MAX)
        self._judge(sent)

    def _drain(self, sent: list[Sent]) -> None:
        """Wait until each group has handled every message, or the time is over; the check then names missing ones."""
        wanted = {(one.key, one.number) for one in sent}
        readings = {
            group: [
                LedgerReader(member.ledger) for slot in self._slots if slot.group == group for member in slot.members
            ]
            for group in (ORDERLY, CONCURRENT)
        }
        missing = {group: set(wanted) for group in readings}
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while any(missing.values()) and time.monotonic() < deadline:
            self._check_alive()
            for group, group_readings in readings.items():
                for reading in group_readings:
                    lines = map(parse_handled, reading.lines())
                    missing[group].difference_update((line.key, line.number) for line in lines if line.done)
            time.sleep(_LOOK_SECONDS)
        self._wait_until_still()

    def _wait_until_still(self) -> None:
        """Wait for redeliveries that are still in flight, so that they are counted."""
        ledgers = [member.ledger for slot in self._slots for member in slot.members]
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        size, since = -1, time.monotonic()
        while time.monotonic() < min(since + STILL_SECONDS, deadline):
            now_size = sum(ledger.stat().st_size for ledger in ledgers)
            if now_size != size:
                size, since = now_size, time.monotonic()
            time.sleep(_LOOK_SECONDS)

    def _judge(self, sent: list[Sent]) -> None:
        with Admin(self._broker.address) as admin:
            stored = sum(queue.max_offset for queue in admin.topic_stats(TOPIC))
            problems = check_sent(sent, stored)
            problems += [problem for group in (ORDERLY, CONCURRENT) for problem in _left_over(admin, group)]
        counts: dict[str, int] = {}
        for one in sent:
            counts[one.key] = counts.get(one.key, 0) + 1
        verdicts = {group: self._judge_group(counts, group) for group in (ORDERLY, CONCURRENT)}
        print(f"{len(sent):,} messages acknowledged, {len(counts)} sharding keys; {self._changes}")
        for group, verdict in verdicts.items():
            problems += [f"group {group}: {problem}" for problem in verdict.problems]
            at_once = f", {verdict.at_once} times two members at once with a key" if group == ORDERLY else ""
            print(
                f"group {group}: every one handled, {verdict.twice:,} twice, {verdict.failed:,} failures{at_once}"
                if not verdict.problems
                else f"group {group}: {len(verdict.problems)} PROBLEMS"
            )
            if self._plan.calm and (verdict.twice or verdict.at_once):
                problems.append(f"group {group}: {verdict.twice} came twice, although no process was killed")
        if problems:
            raise Failed("\n  ".join([f"{len(problems)} problems", *problems[:PROBLEMS_SHOWN]]))

    def _judge_group(self, counts: dict[str, int], group: str) -> Verdict:
        members: dict[str, list[Handled]] = {
            member.name: [parse_handled(line) for line in LedgerReader(member.ledger).lines()]
            for slot in self._slots
            if slot.group == group
            for member in slot.members
        }
        return check_group(counts, members, orderly=group == ORDERLY)


def _left_over(admin: Admin, group: str) -> list[str]:
    """Return the members and uncommitted messages of a group whose members have all left: there must be none."""
    try:
        status = admin.group(group)
    except FlintError as error:
        return [f"group {group} cannot be read: {error}"]
    found = [f"group {group} has a member after all left: {member}" for member in status.members]
    return found + [f"group {group} did not commit everything: {queue}" for queue in status.queues if queue.lag]
