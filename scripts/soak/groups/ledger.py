"""The ledger of a process: a file with one line for each event.

Each line is one unbuffered ``write`` to a file opened for appending, so the ledger of a killed process is complete: the
kernel keeps what it was given. It need not survive a power cut. Times are of the monotonic clock, which all processes
of the machine share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Sent(NamedTuple):
    """Acknowledged message; ``number`` counts the messages of its sharding key from 0."""

    key: str
    number: int
    queue: int
    queue_offset: int


class Handled(NamedTuple):
    """Listener call from ``begun_ns`` to ``ended_ns`` that finished a message (``done``) or failed."""

    begun_ns: int
    ended_ns: int
    key: str
    number: int
    done: bool


def body_of(key: str, number: int) -> bytes:
    """Return the body of a message."""
    return f"{key} {number} ".encode().ljust(100, b".")


def parse_body(body: bytes) -> tuple[str, int]:
    """Return the sharding key and the number in a body made by ``body_of``."""
    key, number, _ = body.split(b" ", 2)
    return key.decode(), int(number)


class Ledger:
    """File for events; any thread may write to it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *fields: object) -> None:
        """Append one line."""
        line = (" ".join(map(str, fields)) + "\n").encode()
        written = os.write(self._descriptor, line)
        assert written == len(line), "the disk of the ledgers is full"


@dataclass
class LedgerReader:
    """Reader of a ledger that grows."""

    path: Path
    position: int = 0

    def lines(self) -> Iterator[list[str]]:
        """Yield the fields of each line that was added since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            content = file.read()
        end = content.rfind(b"\n") + 1
        self.position += end
        for line in content[:end].decode().splitlines():
            yield line.split(" ")


def parse_sent(fields: list[str]) -> Sent:
    """Parse a producer's line."""
    key, *numbers = fields
    number, queue, queue_offset = map(int, numbers)
    return Sent(key, number, queue, queue_offset)


def parse_handled(fields: list[str]) -> Handled:
    """Parse a member's line."""
    begun_ns, ended_ns, key, number, done = fields
    return Handled(int(begun_ns), int(ended_ns), key, int(number), done == "1")
