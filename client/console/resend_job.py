"""Resending of dead letters: first a plan of what would be sent, then the sending in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...protocol.errors import FlintError, MessageNotFound
from ..core.rpc.access import AccessOptions
from ..operator.dead_letters import DeadLetterStays, DeadQueue, Resending, Stretch, Target, check_group, dead_queues
from ..sync.admin import Admin
from ..sync.consumer import Consumer
from ..sync.producer import Producer

PLANNED_MAX = 5_000
"""Maximum number of dead letters that a plan reads; the sending checks each of them again."""
Terms = tuple[str, AccessOptions]
Places = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ResendPlan:
    """Outcome of a dry run. ``by_topic``: number of messages by the topic that they would go to; ``read``: number of
    dead letters read, of ``waiting``; ``error``: why one of them, and those after it, would not be sent."""

    by_topic: dict[str, int]
    read: int
    waiting: int
    error: FlintError | None

    @property
    def stays(self) -> bool:
        """Predicate: does the error concern a single dead letter, so that the others could be sent?"""
        return isinstance(self.error, DeadLetterStays)


class ResendJob:
    """Sends dead letters in a thread of its own, with clients of its own.

    ``user``: who began it; ``sent``: number of messages so far, by topic; ``error``: why it ended early; ``places``:
    (queue, queue offset) of the chosen dead letters; empty: all that wait.
    """

    def __init__(self, terms: Terms, group: str, places: Places, target: Target, user: str) -> None:
        self.user = user
        self._terms = terms
        self._group = group
        self._places = places
        self._target = target
        self._stopping = threading.Event()
        self.sent: dict[str, int] = {}
        self.error: FlintError | None = None
        self.is_over = False
        self.was_stopped = False

    @property
    def total(self) -> int:
        """Number of messages that were sent so far."""
        return sum(self.sent.values())

    @property
    def stays(self) -> bool:
        """Predicate: does the error concern a single dead letter, so that the others could be sent?"""
        return isinstance(self.error, DeadLetterStays)

    def stop(self) -> None:
        """End after the messages in progress."""
        self._stopping.set()

    def run(self) -> None:
        """Send until all are sent, one of them stays, or ``stop`` is called. Blocks."""
        try:
            begun = _begin(self._terms, self._group, self._places, self._target, dry_run=False)
            with begun as (resending, stretches, _):
                # The sender's own dict, so that pages see how far it is.
                self.sent = resending.sent
                for queue, stretch in stretches:
                    if self._stopping.is_set():
                        self.was_stopped = True
                        return
                    resending.send(queue, stretch)
        except FlintError as error:
            self.error = error
        finally:
            self.is_over = True


async def plan_resend(terms: Terms, group: str, places: Places, target: Target) -> ResendPlan:
    """Return what a resend would do. Raises ``GroupNotExist``, and ``MessageNotFound`` for a place without a dead
    letter."""
    return await asyncio.to_thread(_plan, terms, group, places, target)


def _plan(terms: Terms, group: str, places: Places, target: Target) -> ResendPlan:
    with _begin(terms, group, places, target, dry_run=True) as (resending, stretches, waiting):
        read, error = 0, None
        for queue, stretch in stretches:
            try:
                resending.send(queue, stretch)
            except FlintError as found:
                error = found
                break
            read += len(stretch.messages)
            if read >= PLANNED_MAX:
                break
        return ResendPlan(resending.sent, read, waiting, error)


@contextmanager
def _begin(
    terms: Terms, group: str, places: Places, target: Target, *, dry_run: bool
) -> Iterator[tuple[Resending, Iterator[tuple[DeadQueue, Stretch]], int]]:
    """Yield the sender, with clients of its own; the chosen dead letters in runs of consecutive offsets; and their
    number."""
    addresses, access = terms
    with (
        Admin(addresses, **access) as admin,
        Consumer(addresses, **access) as consumer,
        Producer(addresses, **access) as producer,
    ):
        check_group(admin, group)
        read = [topic for info in admin.groups() if info.group == group and not info.partial for topic in info.topics]
        resending = Resending(consumer, producer, admin.topics(), target, dry_run=dry_run, read_topics=read)
        queues = dead_queues(consumer, group)
        waiting = len(places) or sum(queue.waiting for queue in queues)
        yield resending, _stretches(consumer, queues, places), waiting


def _stretches(consumer: Consumer, queues: list[DeadQueue], places: Places) -> Iterator[tuple[DeadQueue, Stretch]]:
    by_id = {queue.queue: queue for queue in queues}
    for queue_id, offset in places:
        queue = by_id.get(queue_id)
        if queue is None:
            raise MessageNotFound(f"there is no dead letter at {queue_id}:{offset:,}: its topic has no such queue")
        queue.check_has(offset, offset + 1)
        for stretch in queue.read(consumer, offset, offset + 1):
            yield queue, stretch
    if not places:
        for queue in queues:
            for stretch in queue.read(consumer, queue.next_offset, queue.end):
                yield queue, stretch
