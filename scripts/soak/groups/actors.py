"""Processes of the soak: producers, and the members of the groups."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..soak import Failed

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
        self._expected = False
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
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise ``Failed`` if the process ended without being told to, or with an error."""
        code = self._process.poll()
        if code is None or (self._expected and code in (0, -signal.SIGKILL)):
            return
        output = self._output.read_text(errors="replace")
        # SIGTERM arrived before Python had installed its handler.
        if self._expected and code == -signal.SIGTERM and not output:
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
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class ProducerProcess(Actor):
    """Process of a producer."""

    def __init__(self, name: str, folder: Path, **arguments: Any) -> None:
        super().__init__("producer", name, folder, name=name, **arguments)

    def finish(self) -> None:
        """Have the producer end after the broker has acknowledged everything."""
        self._expected = True
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        self._process.stdin.flush()
        self.await_end(FINISH_SECONDS_MAX)


class MemberProcess(Actor):
    """Process of a member, from joining to leaving."""

    def leave(self) -> None:
        """Ask the member to leave gracefully."""
        self._expected = True
        self._leave_by = time.monotonic() + LEAVE_SECONDS_MAX
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._expected = True
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise ``Failed`` if the process ended unexpectedly, or did not leave in time."""
        super().check()
        if self._expected and not self.ended and time.monotonic() > self._leave_by:
            raise Failed(f"{self.name} was told to leave and did not within {LEAVE_SECONDS_MAX:.0f} s")

    def wait(self) -> None:
        """Wait until the member has left."""
        self.await_end(LEAVE_SECONDS_MAX)

    @property
    def told_to_end(self) -> bool:
        """Return whether the member is leaving or was killed."""
        return self._expected


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
