"""Messages from one topic to another, or from a file: what ``copy``, ``export`` and ``import`` share.

Order is kept: messages of one source queue go to one target queue, one batch after the other. If both topics have the
same number of queues, that is the queue of the same number; else a message with a sharding key goes where a producer
would send it, and the others go to their queue's number modulo the number of queues of the target.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..core.positions import EARLIEST, LATEST
from ..errors import CorruptMessage, DeliveryFailed, InvalidArgument
from .command import note
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from .params import POSITION, TOPIC
from .positions import POSITION_FORMS, Typed, end_of, start_of
from .reading import FILTER_HELP, pointed_at
from .stopping import stop_request
from .units import plural, show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.stored import StoredMessage
    from ..core.topics import QueueStats
    from ..message import Message
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer
    from .settings import Settings

BATCH_COUNT = 1000
BATCH_BYTES = 4 << 20
KEY_PAGE_COUNT = 64


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add TOPIC and the options that choose among its messages, as ``Selection`` takes them."""
    for decorator in (
        click.option("--filter", "condition", metavar="CONDITION", help=FILTER_HELP),
        click.option("-t", "--tag", help="Only messages with this tag, or one of several: 'a || b'."),
        click.option("-k", "--key", help="Only messages that have this key, found through the index."),
        click.option(
            "--until", type=POSITION, default="latest", show_default=True, metavar="POSITION",
            help="Where to end, before it; latest: the end as it is now.",
        ),
        click.option(
            "--from", "from_", type=POSITION, default="earliest", show_default=True, metavar="POSITION",
            help=f"Where to begin: {POSITION_FORMS}.",
        ),
        click.argument("topic", type=TOPIC),
    ):  # fmt: skip
        function = decorator(function)
    return function


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a topic, in the order of each of its queues."""

    topic: str
    from_: Typed
    until: Typed
    key: str | None
    tag: str | None
    condition: str | None

    def __post_init__(self) -> None:
        if self.key is None:
            return
        for option, value in (("--from", self.from_), ("--until", self.until)):
            if not isinstance(value, datetime) and value not in (EARLIEST, LATEST):
                raise click.UsageError(f"with --key, {option} must be a time: @2026-11-21T10:00, or @-2h")

    def messages(self, consumer: Consumer, stats: list[QueueStats]) -> Generator[StoredMessage, None, None]:
        """Read the messages. ``stats``: the queues of the topic, as they were when the command began."""
        if self.key is not None:
            yield from self._with_key(consumer, self.key)
            return
        end = end_of(self.until, self.topic, stats)
        if end == LATEST:  # a copy into the topic itself must not follow what it writes
            end = {queue.queue: queue.max_offset for queue in stats}
        yield from consumer.iter(
            self.topic, from_=start_of(self.from_, self.topic, stats), until=end, tags=self.tag, filter=self.condition
        )

    def first_offsets(self, consumer: Consumer, stats: list[QueueStats]) -> dict[int, int]:
        """Return where reading begins in each queue; empty if only the broker's index or the newest messages say so."""
        if self.key is not None:
            return {}
        begin = start_of(self.from_, self.topic, stats)
        if isinstance(begin, datetime):
            return {queue.queue: consumer.offset_at(self.topic, queue.queue, begin) for queue in stats}
        if begin == EARLIEST:
            return {queue.queue: queue.min_offset for queue in stats}
        return dict(begin) if isinstance(begin, dict) else {}

    def _with_key(self, consumer: Consumer, key: str) -> Iterator[StoredMessage]:
        """Read the messages that have a key, oldest first: the index knows them newest first, so places come first."""
        since = self.from_ if isinstance(self.from_, datetime) else None
        until = self.until if isinstance(self.until, datetime) else None
        places: list[tuple[int, int, int]] = []
        cursor = None
        while True:
            page = consumer.query(self.topic, key, since, until, max_count=KEY_PAGE_COUNT, cursor=cursor)
            places += [(message.physical_offset, message.queue, message.queue_offset) for message in page]
            cursor = page.cursor
            if cursor is None:
                break
        for _, queue, offset in sorted(places):
            batch = consumer.pull(self.topic, queue, offset, 1, tags=self.tag, filter=self.condition)
            yield from (message for message in batch.messages if message.queue_offset == offset)


@dataclass(slots=True)
class Transfer:
    """Sends messages to ``queues`` queues of ``topic``, in batches that are acknowledged one after the other.

    ``same_queues``: whether the source has as many queues, so that a message keeps its queue's number.
    """

    producer: Producer
    queues: int
    same_queues: bool
    messages: int = 0
    """Acknowledged so far."""
    body_bytes: int = 0
    done: dict[int, int] = field(default_factory=dict)
    """By source queue: the offset after its last acknowledged message, at first where reading begins."""
    _batches: dict[int | None, list[Message]] = field(default_factory=dict)
    _reached: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _bytes: int = 0
    _started: float = field(default_factory=time.monotonic)

    def add(self, message: Message, queue: int | None, offset: int | None = None) -> None:
        """Take a message of source queue ``queue`` (None: of none) at ``offset``. May send a batch, and then raises
        what refused it."""
        target = queue
        if queue is not None and not self.same_queues:
            target = None if message.sharding_key is not None else queue % self.queues
        self._batches.setdefault(target, []).append(message)
        self._count += 1
        self._bytes += len(message.body)
        if queue is not None and offset is not None:
            self._reached[queue] = offset + 1
        if self._count >= BATCH_COUNT or self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was taken, and return when it is acknowledged. Raises ``DeliveryFailed``.

        Ctrl-C waits for the acknowledgement, so that nothing is sent whose fate is unknown; pressed twice it does not.
        """
        batches, self._batches = self._batches, {}
        with stop_request() as request:
            for queue, batch in batches.items():
                try:
                    self.producer.send_many(batch, queue=queue)
                except DeliveryFailed as error:
                    pairs = zip(batch, error.receipts, strict=True)
                    self._count_sent([message for message, receipt in pairs if receipt is not None])
                    raise
                self._count_sent(batch)
        self.done.update(self._reached)
        self._count = self._bytes = 0
        if request.event.is_set():
            raise KeyboardInterrupt

    def _count_sent(self, messages: list[Message]) -> None:
        self.messages += len(messages)
        self.body_bytes += sum(len(message.body) for message in messages)

    def summary(self, verb: str) -> str:
        """Return how much was acknowledged, and how fast."""
        seconds = time.monotonic() - self._started
        rate = f", {show_rate(self.messages / seconds)}" if self.messages > 1 and seconds > 0 else ""
        count = plural(self.messages, "message")
        return f"{verb} {count} ({show_bytes(self.body_bytes)}) in {show_seconds(seconds)}{rate}"

    def resume_position(self) -> str:
        """Return ``--from`` for what was not acknowledged; empty if that is not known."""
        return ",".join(f"{queue}={offset}" for queue, offset in sorted(self.done.items()))


def for_each_sound(
    messages: Iterator[StoredMessage], handle: Callable[[StoredMessage], None], condition: str | None = None
) -> int:
    """Call ``handle`` with each message; return the exit code. A damaged message is told on standard error and left
    out; the exit code says so. Ctrl-C ends in order."""
    from ...protocol.errors import FilterIllegal

    code = EXIT_OK
    try:
        for message in messages:
            try:
                handle(message)
            except CorruptMessage as error:
                click.echo(f"flintmq: {describe(error)[0]}", err=True)
                code = EXIT_ERROR
    except FilterIllegal as error:
        for line in pointed_at(condition or "", error.column):
            error.add_note(line)
        raise
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def say_done(settings: Settings, transfer: Transfer, verb: str, code: int) -> None:
    """Tell on standard error how much was sent, and after an interruption how to go on."""
    note(settings, transfer.summary(verb))
    if code == EXIT_INTERRUPTED and (rest := transfer.resume_position()):
        note(settings, f"interrupted; --from {rest} continues")


def invalid_line(number: int, reason: object) -> InvalidArgument:
    """Return the error for a line of a file that is no message."""
    return InvalidArgument(f"line {number} is no message: {reason}")
