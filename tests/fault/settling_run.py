"""Runs in which members settle messages in random order while they are killed and join, and the broker is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flintmq.testing.started_broker import broker_environment
from tests.conftest import BrokerFactory, RunningBroker
from tests.fault.settling_member import READY
from tests.group_tools import WAIT_SECONDS, until

SEED = int(os.environ.get("FLINTMQ_SEED", "1"))
MESSAGES = 10_000
STEPS = ("kill", "join", "broker", "stop", "kill", "broker", "join")
"""Faults and changes while the messages are settled, after equal parts of them."""


class Event(NamedTuple):
    """A line of a member. ``at``: monotonic ns."""

    kind: str
    physical_offset: int
    body: str
    at: int


@dataclass
class Member:
    """A process, and what it has printed. ``killed_at``: monotonic ns, just before it was killed."""

    process: subprocess.Popen[str]
    events: list[Event] = field(default_factory=list)
    killed_at: int = sys.maxsize

    def __post_init__(self) -> None:
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == READY:
                self._ready.set()
                continue
            kind, physical_offset, body, at = line.split()
            self.events.append(Event(kind, int(physical_offset), body, int(at)))

    def end(self, number: int) -> int:
        """End the process by a signal; returns its exit code."""
        if number == signal.SIGKILL:
            self.killed_at = time.monotonic_ns()
        else:
            assert self._ready.wait(WAIT_SECONDS)
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def intervals(self) -> Iterator[tuple[Event, int]]:
        """Yield begin and end of each delivery that was open here; fails if one remained so."""
        opened: dict[int, Event] = {}
        for event in self.events:
            if event.kind == "open":
                assert event.physical_offset not in opened, f"{event} while it was open at the same member"
                opened[event.physical_offset] = event
            elif event.kind != "lost":
                yield opened.pop(event.physical_offset), event.at
        assert not opened or self.killed_at < sys.maxsize, f"{len(opened)} deliveries were left open"
        for begin in opened.values():
            yield begin, self.killed_at


class Run:
    """All members of one run, live and dead. ``mode``: of their consumers."""

    def __init__(self, address: str, source: random.Random, mode: str) -> None:
        self.address = address
        self.source = source
        self.mode = mode
        self.live: list[Member] = []
        self.dead: list[Member] = []

    def join(self) -> None:
        """Start a member."""
        driver = ("sync", "aio")[(len(self.live) + len(self.dead)) % 2]
        command = [sys.executable, "-m", "tests.fault.settling_member", self.address, driver]
        process = subprocess.Popen(
            [*command, str(self.source.getrandbits(31)), self.mode],
            cwd=Path(__file__).parents[2],
            env=broker_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.live.append(Member(process))

    def leave(self, number: int) -> int:
        """End a random member by a signal; returns its exit code."""
        member = self.live.pop(self.source.randrange(len(self.live)))
        self.dead.append(member)
        return member.end(number)

    def bodies(self, kind: str) -> set[str]:
        members = (*self.live, *self.dead)
        return {event.body for member in members for event in list(member.events) if event.kind == kind}

    def has_settled(self, count: int) -> bool:
        """Return whether so many different messages were settled."""
        return len(self.bodies("settle")) >= count

    def steps(self, broker: BrokerFactory, running: RunningBroker) -> None:
        """Do each step when its part of the messages is settled: kill or stop a member, or kill the broker."""
        for number, step in enumerate(STEPS, 1):
            share = MESSAGES * number // (len(STEPS) + 1)
            until(partial(self.has_settled, share), f"step {number}, {step}, of seed {SEED}")
            if step == "kill":
                assert self.leave(signal.SIGKILL) == -signal.SIGKILL
                self.join()
            elif step == "join":
                self.join()
            elif step == "stop":
                assert self.leave(signal.SIGTERM) == 0
            else:
                running.kill()
                running = broker("--listen", running.address, store=running.store)
