"""The commands ``flintmq copy``, ``flintmq export`` and ``flintmq import``.

A transfer keeps the order of each source queue: its messages go to one target queue, one batch after another. If both
topics have the same number of queues, the target queue has the same number. Otherwise a message with a sharding key
goes to the queue that a producer would choose, and any other message to its queue number modulo the number of target
queues.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ....protocol.errors import FlintError, TopicNotExist
from ....protocol.times import from_millis
from ...core.consume.positions import EARLIEST, LATEST
from ...core.produce.receipts import DeliveryFailed
from ...core.times import to_millis
from ...errors import InvalidArgument, InvalidMessage
from ...message import Message
from ...operator.display import plural, show_seconds, shown_name
from ...operator.positions import POSITION_FORMS, Typed, end_of, start_of
from ..command import command, note, options
from ..failures import EXIT_INTERRUPTED, EXIT_OK
from ..messages import SentTotal, condition_option, each_sound, message_row, tag_option
from ..params import POSITION, TOPIC
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ....protocol.commands import QueueStats
    from ...core.consume.batch import StoredMessage
    from ...sync.admin import Admin
    from ...sync.consumer import Consumer
    from ...sync.producer import Producer

BATCH_COUNT = 1000
BATCH_BYTES = 4 << 20
KEY_PAGE_COUNT = 64


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add TOPIC and the options that select some of its messages; the function gets them as one argument
    ``selection``."""

    @functools.wraps(function)
    def with_selection(
        *args: Any,
        topic: str,
        from_: Typed,
        until: Typed,
        key: str | None,
        tag: str | None,
        condition: str | None,
        **others: Any,
    ) -> Any:
        return function(*args, selection=MessageSelection(topic, from_, until, key, tag, condition), **others)

    return _selection(with_selection)


_selection = options(
    click.argument("topic", type=TOPIC),
    click.option(
        "--from",
        "from_",
        type=POSITION,
        default="earliest",
        show_default=True,
        metavar="POSITION",
        help=f"Where to start: {POSITION_FORMS}.",
    ),
    click.option(
        "--until",
        type=POSITION,
        default="latest",
        show_default=True,
        metavar="POSITION",
        help="Where to end (exclusive); latest: the present end.",
    ),
    click.option("-k", "--key", help="Only messages with this key, found through the index."),
    tag_option,
    condition_option,
)


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


@contextlib.contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Set the event at the first Ctrl-C or SIGTERM within the context; the second one raises ``KeyboardInterrupt``."""
    event = threading.Event()

    def note_it(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, note_it) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Transfer:
    """A transfer to a topic with ``queues`` queues, in batches. Each batch is acknowledged before the next is sent.

    ``same_queues``: the source has as many queues, so a message keeps its queue number.
    """

    producer: Producer
    queues: int
    same_queues: bool
    total: SentTotal = field(default_factory=SentTotal)
    done: dict[int, int] = field(default_factory=dict)
    """Offset after the last acknowledged message, by source queue; at first the offset where reading starts."""
    _batches: dict[int | None, list[Message]] = field(default_factory=dict)
    _reached: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _bytes: int = 0

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
        with interrupts_noted() as interrupted:
            for queue, batch in batches.items():
                bodies = [message.body for message in batch]
                try:
                    self.producer.send_many(batch, queue=queue)
                except DeliveryFailed as error:
                    self.total.add_acknowledged(bodies, error)
                    raise
                self.total.add(bodies)
        self.done.update(self._reached)
        self._count = self._bytes = 0
        if interrupted.is_set():
            raise KeyboardInterrupt

    def resume_position(self) -> str:
        """Return the value of ``--from`` that continues after the acknowledged messages; empty if unknown."""
        return ",".join(f"{queue}={offset}" for queue, offset in sorted(self.done.items()))


def until_interrupted(
    messages: Iterator[StoredMessage], handle: Callable[[StoredMessage], None], selection: MessageSelection
) -> int:
    """Call ``handle`` with each message until the last one or Ctrl-C; return the exit code as ``each_sound`` does."""
    try:
        return each_sound(messages, handle, selection.condition)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def say_done(settings: BrokerChoice, transfer: Transfer, verb: str, code: int) -> None:
    """Print on standard error how much was sent, and how to continue after an interruption."""
    note(settings, transfer.total.line(verb))
    if code == EXIT_INTERRUPTED and (rest := transfer.resume_position()):
        note(settings, f"interrupted; --from {rest} continues")


# ---- The command ``flintmq copy``.


@command("copy")
@selection_options
@click.argument("target", metavar="TO", type=TOPIC)
def copy(settings: BrokerChoice, selection: MessageSelection, target: str) -> int:
    """Copy the messages of TOPIC to the topic TO.

    The copies keep keys, tags, sharding keys, properties and the order within each queue; they get new ids and times.
    If TO does not exist, it is created with as many queues as TOPIC. TO may be TOPIC itself: the messages that it has
    now are sent again.

    \b
        flintmq copy orders orders-test --from @-1d
        flintmq copy orders orders --key o-1 --from @-1d      # replay one key since yesterday
    """
    topic = selection.topic
    with settings.admin() as admin:
        queues = _target_queues(settings, admin, topic, target)
    with settings.consumer() as consumer, settings.producer() as producer:
        stats = consumer.topic_stats(topic)
        transfer = Transfer(producer, queues, same_queues=queues == len(stats))
        transfer.done = selection.first_offsets(consumer, stats)

        def send(message: StoredMessage) -> None:
            transfer.add(Message.again(message, target), message.queue, message.queue_offset)

        try:
            with contextlib.closing(selection.messages(consumer, stats)) as messages:
                code = until_interrupted(messages, send, selection)
            transfer.flush()
        except FlintError:
            note(settings, f"{transfer.total.line('copied')} before that")
            raise
        say_done(settings, transfer, "copied", code)
    return code


def _target_queues(settings: BrokerChoice, admin: Admin, topic: str, target: str) -> int:
    """Return the number of write queues of the target topic, after creating it if it does not exist."""
    topics = admin.topics(system=True)
    if target not in topics:
        like = len(admin.topic_stats(topic))
        admin.create_topic(target, like)
        note(settings, f"created topic {shown_name(target)} with {like} queues, like {shown_name(topic)}")
        return like
    return topics[target].write_queues


# ---- The command ``flintmq export``.


@command("export")
@selection_options
def export(settings: BrokerChoice, selection: MessageSelection) -> int:
    """Print the messages of TOPIC as JSON lines, in the form that flintmq import reads.

    Each line has the same names as -o json in other commands; a body that is not UTF-8 is in body_base64. The messages
    of each queue are in order.

    \b
        flintmq export orders > orders.jsonl
        flintmq export orders --from @-1d --filter "amount > 5" | flintmq -b other:10911 import orders
    """
    topic = selection.topic
    began, count = time.monotonic(), 0
    with settings.consumer() as consumer:

        def show(message: StoredMessage) -> None:
            nonlocal count
            settings.output.json(message_row(message))
            count += 1

        with contextlib.closing(selection.messages(consumer, consumer.topic_stats(topic))) as messages:
            code = until_interrupted(messages, show, selection)
    settings.output.flush()
    took = show_seconds(time.monotonic() - began)
    note(settings, f"exported {plural(count, 'message')} from {shown_name(topic)} in {took}")
    return code


# ---- The command ``flintmq import``.

LINE_BYTES_MAX = 64 << 20
"""Maximum length of a line; no broker accepts a message of that size."""


@command("import")
@click.argument("topic", type=TOPIC)
@click.argument("file", type=click.File("rb"), default="-")
def import_(settings: BrokerChoice, topic: str, file: BinaryIO) -> int:
    """Send the messages in FILE (default: stdin) to TOPIC: one JSON object per line, as flintmq export prints them.

    A line needs "body" (a string) or "body_base64". It may have "keys" (an array), "tag", "sharding_key", "properties"
    (an object of strings) and "queue": lines with the same queue go to one queue, in order. Other names are ignored.

    \b
        flintmq import orders orders.jsonl
        echo '{"body": "hello", "keys": ["o-1"], "tag": "eu"}' | flintmq import orders
    """
    with settings.admin() as admin:
        found = admin.topics(system=True).get(topic)
    if found is None:
        raise TopicNotExist(f"topic {topic} does not exist; flintmq topic create {topic} --queues N creates it")
    with settings.producer() as producer:
        transfer = Transfer(producer, found.write_queues, same_queues=False)
        try:
            code = _send_all(transfer, file, topic)
        except FlintError:
            note(settings, f"{transfer.total.line('imported')} before the error, from the start of the input")
            raise
        say_done(settings, transfer, "imported", code)
    return code


def _send_all(transfer: Transfer, file: BinaryIO, topic: str) -> int:
    """Send every line. A line that is not a message ends the import after the lines before it are acknowledged."""
    code = EXIT_OK
    wrong: InvalidArgument | None = None
    try:
        for number, row in _rows(file):
            message, queue = _message(number, row, topic)
            transfer.add(message, queue)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except InvalidArgument as error:
        wrong = error
    transfer.flush()
    if wrong is not None:
        raise wrong
    return code


def invalid_line(number: int, reason: object) -> InvalidArgument:
    """Return the error for a line of a file that is not a message."""
    return InvalidArgument(f"line {number} is not a message: {reason}")


def _rows(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of the file with their line numbers, counted from 1. Skips blank lines."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise invalid_line(number, f"longer than {LINE_BYTES_MAX:,} bytes")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise invalid_line(number, f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise invalid_line(number, f"expected a JSON object, got {type(row).__name__}")
        yield number, row


def _message(number: int, row: dict[str, Any], topic: str) -> tuple[Message, int | None]:
    """Return the message of a line, and its queue."""
    queue = row.get("queue")
    if queue is not None and (type(queue) is not int or queue < 0):
        raise invalid_line(number, f"queue must be an integer of at least 0, got {queue!r:.40}")
    try:
        message = Message(
            topic,
            _body(row),
            keys=row.get("keys") or (),
            tags=row.get("tag"),
            properties=row.get("properties"),
            sharding_key=row.get("sharding_key"),
        )
    except (InvalidMessage, ValueError, TypeError) as error:
        raise invalid_line(number, error) from None
    return message, queue


def _body(row: dict[str, Any]) -> bytes:
    body, encoded = row.get("body"), row.get("body_base64")
    if isinstance(body, str) and encoded is None:
        return body.encode()
    if isinstance(encoded, str) and body is None:
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise ValueError(f"body_base64 is not base64: {error}") from None
    raise ValueError('needs either "body" (a string) or "body_base64"')
