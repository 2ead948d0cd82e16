"""The processes: producers, and members in their slots."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..run import Failed

FINISH_SECONDS_MAX = 240.0
LEAVE_SECONDS_MAX = 100.0
"""A member that is still waiting for its broker when it is told to leave joins first."""
_OUTPUT_CHARS_SHOWN = 4_000


class Actor:
    """A process with a ledger; what it says goes into a file beside it."""

    def __init__(self, module: str, name: str, folder: Path, /, **arguments: Any) -> None:
        self.name = name
        self.ledger = folder / f"{name}.ledger"
        self.ledger.touch()
        self._output = folder / f"{name}.log"
        self._expected = False
        """Whether it was told to end."""
        told = json.dumps({**arguments, "ledger": str(self.ledger)})
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"soaking.groups.{module}", told],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise where it ended although nobody told it to, or not in order."""
        code = self._process.poll()
        if code is None or (self._expected and code in (0, -signal.SIGKILL)):
            return
        said = self._output.read_text(errors="replace")
        # Told to leave before Python had come to where it listens to that.
        if self._expected and code == -signal.SIGTERM and not said:
            return
        raise Failed(f"{self.name} ended with exit {code}; it said:\n{said[-_OUTPUT_CHARS_SHOWN:]}")

    def await_end(self, seconds: float) -> None:
        """Wait for its end, in order."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not come to an end within {seconds:.0f} s") from None
        self.check()

    def end(self) -> None:
        """Whatever happened: no process stays."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Producing(Actor):
    """A producer."""

    def __init__(self, name: str, folder: Path, **arguments: Any) -> None:
        super().__init__("producer", name, folder, name=name, **arguments)

    def finish(self) -> None:
        """Have it end once all that it sent is acknowledged."""
        self._expected = True
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        self._process.stdin.flush()
        self.await_end(FINISH_SECONDS_MAX)


class Member(Actor):
    """One life of a member."""

    def leave(self) -> None:
        """Ask it to leave in order."""
        self._expected = True
        self._leave_by = time.monotonic() + LEAVE_SECONDS_MAX
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._expected = True
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """See ``Actor``; also raises where it does not leave."""
        super().check()
        if self._expected and not self.ended and time.monotonic() > self._leave_by:
            raise Failed(f"{self.name} was told to leave and did not within {LEAVE_SECONDS_MAX:.0f} s")

    def wait(self) -> None:
        """Until it has left."""
        self.await_end(LEAVE_SECONDS_MAX)

    @property
    def told_to_end(self) -> bool:
        """Whether it is on its way out."""
        return self._expected


@dataclass
class Slot:
    """A member to be, one life after the other. ``keeps_name``: each has the same name in the group; ``asyncio``: it is
    an asyncio client."""

    name: str
    group: str
    orderly: bool
    batch: int | None
    keeps_name: bool
    asyncio: bool = False
    members: list[Member] = field(default_factory=list)

    @property
    def running(self) -> Member | None:
        """The member that is there and is meant to be."""
        if not self.members or self.members[-1].ended or self.members[-1].told_to_end:
            return None
        return self.members[-1]

    def join(self, folder: Path, **arguments: Any) -> None:
        """Start a new life; the one before may still be leaving."""
        self.members.append(
            Member(
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
