"""What must hold of the ledgers when all is over, and what is only counted.

Delivery is at least once. So of each group every acknowledged message must have been handled to its end by some member:
written down as done as the last act of a listener. A member that was killed later had handled it all the same.

In the orderly group a listener may be called with a message only after a listener was done with the one before it with
the same sharding key: whether in the same member, in one that was killed since, or for the first time or again. That
is all that at-least-once leaves of an order, and it is enough to rely on: the first times are in order and without a
gap, a message that fails keeps those behind it waiting, and where a member goes back, to what was committed last, it
goes on from there without passing anything over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from .ledger import Handled, Sent

PROBLEMS_SHOWN = 10

Done: TypeAlias = dict[str, dict[int, list[int]]]
"""By key and number: when listeners were done with a message, in ns."""


@dataclass
class Verdict:
    """``problems``: what does not hold; the rest is counted."""

    problems: list[str] = field(default_factory=list)
    handled: int = 0
    failed: int = 0
    twice: int = 0
    """Messages that a listener was done with, each time but the first."""
    at_once: int = 0
    """In orderly mode: how often two members had messages of the same sharding key at the same time."""


def check_sent(sent: Iterable[Sent], stored: int) -> list[str]:
    """Problems with what was acknowledged: a gap, an order, a queue, a message that is stored twice."""
    by_key: dict[str, list[Sent]] = {}
    for one in sent:
        by_key.setdefault(one.key, []).append(one)
    problems = []
    for key, messages in by_key.items():
        messages.sort(key=lambda one: one.number)
        if [one.number for one in messages] != list(range(len(messages))):
            problems.append(f"{key}: not each of its messages is acknowledged once")
        if len({one.queue for one in messages}) > 1:
            problems.append(f"{key}: its messages lie in several queues")
        for one, following in pairwise(messages):
            if one.queue_offset >= following.queue_offset:
                problems.append(f"{key}: {one.number} lies at {one.queue_offset}, behind {following}")
    acknowledged = sum(map(len, by_key.values()))
    if stored != acknowledged:
        problems.append(f"{acknowledged:,} messages were acknowledged, and {stored:,} are stored")
    return problems


def check_group(counts: Mapping[str, int], members: Mapping[str, Sequence[Handled]], *, orderly: bool) -> Verdict:
    """``counts``: how many messages of each key were acknowledged; ``members``: the lines of each process."""
    verdict = Verdict()
    done: Done = {key: {} for key in counts}
    for lines in members.values():
        for line in lines:
            if line.key not in counts or not 0 <= line.number < counts[line.key]:
                verdict.problems.append(f"a message came that nobody sent: {line}")
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
    """Each call of a listener against what had been done before it began, and against the member's call before it.

    A member that goes ahead by more than one had lost the queue: then another one has been there since.
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
                verdict.problems.append(f"{name} passed over messages of {line.key}: {line} after {previous}")
            last[line.key] = line


def _count_at_once(members: Mapping[str, Sequence[Handled]]) -> int:
    """How often a call began while another member's, of the same key, had not ended."""
    calls = sorted((line.begun_ns, line.ended_ns, name, line.key) for name, lines in members.items() for line in lines)
    until: dict[str, dict[str, int]] = {}
    found = 0
    for begun_ns, ended_ns, name, key in calls:
        others = until.setdefault(key, {})
        found += any(other != name and end > begun_ns for other, end in others.items())
        others[name] = ended_ns
    return found
