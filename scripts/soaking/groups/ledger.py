"""What every process writes down: one line an event, in a file of its own.

A line is one ``write`` to a file opened for appending, without a buffer in between: a process that is killed has
written all that it did, since the kernel keeps what it was given. Nothing here survives a power cut, and nothing has
to. Times are of the clock that all processes of the machine share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Sent(NamedTuple):
    """A message that was acknowledged: the ``number``-th with its sharding key, from 0 on."""

    key: str
    number: int
    queue: int
    queue_offset: int


class Handled(NamedTuple):
    """A listener had a message from ``begun_ns`` to ``ended_ns``, and was ``done`` with it, or failed."""

    begun_ns: int
    ended_ns: int
    key: str
    number: int
    done: bool


def body_of(key: str, number: int) -> bytes:
    """What a message carries."""
    return f"{key} {number} ".encode().ljust(100, b".")


def parse_body(body: bytes) -> tuple[str, int]:
    """The sharding key and the number that ``body_of`` put there."""
    key, number, _ = body.split(b" ", 2)
    return key.decode(), int(number)


class Ledger:
    """A file to write to; any thread."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *fields: object) -> None:
        """One line."""
        line = (" ".join(map(str, fields)) + "\n").encode()
        written = os.write(self._descriptor, line)
        assert written == len(line), "the disk of the ledgers is full"


@dataclass
class Reading:
    """Reads a ledger that grows."""

    path: Path
    position: int = 0

    def lines(self) -> Iterator[list[str]]:
        """The fields of each line that was added since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            content = file.read()
        end = content.rfind(b"\n") + 1
        self.position += end
        for line in content[:end].decode().splitlines():
            yield line.split(" ")


def parse_sent(fields: list[str]) -> Sent:
    """Of a producer's line."""
    key, *numbers = fields
    number, queue, queue_offset = map(int, numbers)
    return Sent(key, number, queue, queue_offset)


def parse_handled(fields: list[str]) -> Handled:
    """Of a member's line."""
    begun_ns, ended_ns, key, number, done = fields
    return Handled(int(begun_ns), int(ended_ns), key, int(number), done == "1")
