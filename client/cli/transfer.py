"""Transfer of messages between topics and files, shared by ``copy``, ``export`` and ``import``.

A transfer keeps the order of each source queue: its messages go to one target queue, one batch after another. If both
topics have the same number of queues, the target queue has the same number. Otherwise a message with a sharding key
goes to the queue that a producer would choose, and any other message to its queue number modulo the number of target
queues.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ...protocol.display import show_bytes
from ...protocol.times import from_millis
from ..core.consume.positions import EARLIEST, LATEST
from ..core.produce.receipts import DeliveryFailed
from ..core.times import to_millis
from ..errors import CorruptMessage, InvalidArgument
from ..operator.display import plural, show_rate, show_seconds
from ..operator.positions import POSITION_FORMS, Typed, end_of, start_of
from .command import note
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from .params import POSITION, TOPIC
from .stop_signals import stop_request
from .topic_reader import FILTER_HELP, TAG_HELP, pointed_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.commands import QueueStats
    from ..core.consume.batch import StoredMessage
    from ..message import Message
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer
    from .settings import BrokerChoice

BATCH_COUNT = 1000
BATCH_BYTES = 4 << 20
KEY_PAGE_COUNT = 64


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add TOPIC and the options that select some of its messages (see ``MessageSelection``)."""
    for decorator in (
        click.option("--filter", "condition", metavar="CONDITION", help=FILTER_HELP),
        click.option("-t", "--tag", help=TAG_HELP),
        click.option("-k", "--key", help="Only messages with this key, found through the index."),
        click.option(
            "--until",
            type=POSITION,
            default="latest",
            show_default=True,
            metavar="POSITION",
            help="Where to end (exclusive); latest: the present end.",
        ),
        click.option(
            "--from",
            "from_",
            type=POSITION,
            default="earliest",
            show_default=True,
            metavar="POSITION",
            help=f"Where to start: {POSITION_FORMS}.",
        ),
        click.argument("topic", type=TOPIC),
    ):
        function = decorator(function)
    return function


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """A selection of a topic's messages."""

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
                raise click.UsageError(f"with --key, {option} must be a time, such as @2026-11-21T10:00 or @-2h")

    def messages(self, consumer: Consumer, stats: list[QueueStats]) -> Generator[StoredMessage, None, None]:
        """Yield the messages, each queue in order. ``stats``: the queues at the start of the command."""
        if self.key is not None:
            yield from self._with_key(consumer, self.key)
            return
        end = end_of(self.until, self.topic, stats)
        if end == LATEST:  # a copy into the topic itself must not read its own copies
            end = {queue.queue: queue.max_offset for queue in stats}
        yield from consumer.iter(
            self.topic, from_=start_of(self.from_, self.topic, stats), until=end, tags=self.tag, filter=self.condition
        )

    def first_offsets(self, consumer: Consumer, stats: list[QueueStats]) -> dict[int, int]:
        """Return the first offset by queue; empty with a key or a position such as -10, which do not determine it."""
        if self.key is not None:
            return {}
        begin = start_of(self.from_, self.topic, stats)
        if isinstance(begin, datetime):
            return {queue.queue: consumer.offset_at(self.topic, queue.queue, begin) for queue in stats}
        if begin == EARLIEST:
            return {queue.queue: queue.min_offset for queue in stats}
        return dict(begin) if isinstance(begin, dict) else {}

    def _with_key(self, consumer: Consumer, key: str) -> Iterator[StoredMessage]:
        """Yield the messages with a key, oldest first.

        The index returns the newest first, so this collects all offsets before it reads a message.
        """
        since = self.from_ if isinstance(self.from_, datetime) else None
        # The end of a query is inclusive.
        until = from_millis(to_millis("--until", self.until) - 1) if isinstance(self.until, datetime) else None
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
    """A transfer to a topic with ``queues`` queues, in batches. Each batch is acknowledged before the next is sent.

    ``same_queues``: the source has as many queues, so a message keeps its queue number.
    """

    producer: Producer
    queues: int
    same_queues: bool
    messages: int = 0
    """Number of messages acknowledged so far."""
    body_bytes: int = 0
    done: dict[int, int] = field(default_factory=dict)
    """Offset after the last acknowledged message, by source queue; at first the offset where reading starts."""
    _batches: dict[int | None, list[Message]] = field(default_factory=dict)
    _reached: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _bytes: int = 0
    _started: float = field(default_factory=time.monotonic)

    def add(self, message: Message, queue: int | None, offset: int | None = None) -> None:
        """Add a message from ``offset`` of the source queue ``queue`` (None: no queue).

        Sends the batch when it is full, and then may raise ``DeliveryFailed``.
        """
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
        """Send the batch, and return when it is acknowledged. Raises ``DeliveryFailed``.

        The first Ctrl-C waits for the acknowledgement, so that the outcome of every message is known; the second one
        does not wait.
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
        """Return a line with the acknowledged messages and their rate."""
        seconds = time.monotonic() - self._started
        rate = f", {show_rate(self.messages / seconds)}" if self.messages > 1 and seconds > 0 else ""
        count = plural(self.messages, "message")
        return f"{verb} {count} ({show_bytes(self.body_bytes)}) in {show_seconds(seconds)}{rate}"

    def resume_position(self) -> str:
        """Return the value of ``--from`` that continues after the acknowledged messages; empty if unknown."""
        return ",".join(f"{queue}={offset}" for queue, offset in sorted(self.done.items()))


def for_each_sound(
    messages: Iterator[StoredMessage], handle: Callable[[StoredMessage], None], condition: str | None = None
) -> int:
    """Call ``handle`` with each message until the last one or Ctrl-C; return the exit code.

    A damaged message is reported on standard error and skipped; the exit code is then ``EXIT_ERROR``.
    """
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


def say_done(settings: BrokerChoice, transfer: Transfer, verb: str, code: int) -> None:
    """Print on standard error how much was sent, and how to continue after an interruption."""
    note(settings, transfer.summary(verb))
    if code == EXIT_INTERRUPTED and (rest := transfer.resume_position()):
        note(settings, f"interrupted; --from {rest} continues")


def invalid_line(number: int, reason: object) -> InvalidArgument:
    """Return the error for a line of a file that is not a message."""
    return InvalidArgument(f"line {number} is not a message: {reason}")
