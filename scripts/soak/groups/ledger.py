"""The ledgers of the processes, and their check after the run.

A ledger is a file with one line for each event. Each line is one unbuffered ``write`` to a file opened for appending,
so the ledger of a killed process is complete: the kernel keeps what it was given. It need not survive a power cut.
Times are of the monotonic clock, which all processes of the machine share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias


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
    key, *numbers = fields
    number, queue, queue_offset = map(int, numbers)
    return Sent(key, number, queue, queue_offset)


def parse_handled(fields: list[str]) -> Handled:
    begun_ns, ended_ns, key, number, done = fields
    return Handled(int(begun_ns), int(ended_ns), key, int(number), done == "1")


# ---- The check: guarantees that must hold, and figures that are only counted.
#
# Delivery is at least once. In each group some member must therefore have handled every acknowledged message to its
# end: the listener's last act is to write it down as done. This holds even if the member was killed later.
#
# In the orderly group, a listener may get a message only after a listener has finished the previous message with the
# same sharding key, in the same member or in another one, at the first delivery or a later one. This is the only order
# that at-least-once delivery can guarantee, and it is a useful one: first deliveries are in order and without gaps, a
# failing message holds back its successors, and a member that restarts from the last commit skips nothing.

PROBLEMS_SHOWN = 10

Done: TypeAlias = dict[str, dict[int, list[int]]]
"""Times (ns) at which listeners finished a message, by key and number."""


@dataclass
class Verdict:
    """Result of the check: ``problems`` are violated guarantees, the rest is counted."""

    problems: list[str] = field(default_factory=list)
    handled: int = 0
    failed: int = 0
    twice: int = 0
    """Number of times that a listener finished a message again."""
    at_once: int = 0
    """In orderly mode: how often two members handled messages of the same sharding key at the same time."""


def check_sent(sent: Iterable[Sent], stored: int) -> list[str]:
    """Check the acknowledged messages for gaps, order, queue and duplicates; return the problems."""
    by_key: dict[str, list[Sent]] = {}
    for one in sent:
        by_key.setdefault(one.key, []).append(one)
    problems = []
    for key, messages in by_key.items():
        messages.sort(key=lambda one: one.number)
        if [one.number for one in messages] != list(range(len(messages))):
            problems.append(f"{key}: its messages are not acknowledged exactly once each")
        if len({one.queue for one in messages}) > 1:
            problems.append(f"{key}: its messages are in several queues")
        for one, following in pairwise(messages):
            if one.queue_offset >= following.queue_offset:
                problems.append(f"{key}: {one.number} is at offset {one.queue_offset}, after {following}")
    acknowledged = sum(map(len, by_key.values()))
    if stored != acknowledged:
        problems.append(f"{acknowledged:,} messages were acknowledged, and {stored:,} are stored")
    return problems


def check_group(counts: Mapping[str, int], members: Mapping[str, Sequence[Handled]], *, orderly: bool) -> Verdict:
    """Check one group: ``counts`` acknowledged messages by key against the ledger lines of each member process."""
    verdict = Verdict()
    done: Done = {key: {} for key in counts}
    for lines in members.values():
        for line in lines:
            if line.key not in counts or not 0 <= line.number < counts[line.key]:
                verdict.problems.append(f"a member handled a message that no producer sent: {line}")
            elif line.done:
                verdict.handled += 1
                moments = done[line.key].setdefault(line.number, [])
                verdict.twice += bool(moments)
                moments.append(line.ended_ns)
            else:
                verdict.failed += 1
    for key, count in counts.items():
        missing = [number for number in range(count) if number not in done[key]]
        if missing:
            verdict.problems.append(f"{key}: {len(missing)} of {count} never handled: {missing[:10]}")
    if orderly:
        _check_order(members, done, verdict)
        verdict.at_once = _count_at_once(members)
    return verdict


def _check_order(members: Mapping[str, Sequence[Handled]], done: Done, verdict: Verdict) -> None:
    """Check that each listener call began after the previous message was finished.

    A member that skips messages must have lost the queue: another member must have finished them in the meantime.
    """
    for name, lines in members.items():
        last: dict[str, Handled] = {}
        for line in lines:
            before = done.get(line.key, {}).get(line.number - 1, [])
            if line.number and not any(moment <= line.begun_ns for moment in before):
                verdict.problems.append(f"{name} began {line.key} {line.number} before {line.number - 1} was done")
            previous = last.get(line.key)
            if (
                previous is not None
                and line.number > previous.number + previous.done
                and not any(previous.ended_ns < moment <= line.begun_ns for moment in before)
            ):
                verdict.problems.append(f"{name} skipped messages of {line.key}: {line} after {previous}")
            last[line.key] = line


def _count_at_once(members: Mapping[str, Sequence[Handled]]) -> int:
    """Count the calls that began before another member's call for the same key had ended."""
    calls = sorted((line.begun_ns, line.ended_ns, name, line.key) for name, lines in members.items() for line in lines)
    until: dict[str, dict[str, int]] = {}
    found = 0
    for begun_ns, ended_ns, name, key in calls:
        others = until.setdefault(key, {})
        found += any(other != name and end > begun_ns for other, end in others.items())
        others[name] = ended_ns
    return found
