"""The commands ``flintmq copy``, ``flintmq export`` and ``flintmq import``."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ....protocol.display import to_json
from ....protocol.errors import FlintError, TopicNotExist
from ...errors import InvalidArgument, InvalidMessage
from ...message import Message
from ...operator.display import plural, show_seconds, shown_name
from ..command import command, note
from ..failures import EXIT_INTERRUPTED, EXIT_OK
from ..messages import message_row
from ..params import TOPIC
from ..settings import BrokerChoice
from ..transfer import MessageSelection, Transfer, for_each_sound, invalid_line, say_done, selection_options

if TYPE_CHECKING:
    from ....protocol.commands import TopicInfo
    from ...core.consume.batch import StoredMessage
    from ...operator.positions import Typed
    from ...sync.admin import Admin


# ---- The command ``flintmq copy``.


@command("copy")
@selection_options
@click.argument("target", metavar="TO", type=TOPIC)
def copy(
    settings: BrokerChoice,
    topic: str,
    target: str,
    from_: Typed,
    until: Typed,
    key: str | None,
    tag: str | None,
    condition: str | None,
) -> int:
    """Copy the messages of TOPIC to the topic TO.

    The copies keep keys, tags, sharding keys, properties and the order within each queue; they get new ids and times.
    If TO does not exist, it is created with as many queues as TOPIC. TO may be TOPIC itself: the messages that it has
    now are sent again.

    \b
        flintmq copy orders orders-test --from @-1d
        flintmq copy orders orders --key o-1 --from @-1d      # replay one key since yesterday
    """
    selection = MessageSelection(topic, from_, until, key, tag, condition)
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
                code = for_each_sound(messages, send, condition)
            transfer.flush()
        except FlintError:
            note(settings, f"{transfer.summary('copied')} before that")
            raise
        say_done(settings, transfer, "copied", code)
    return code


def _target_queues(settings: BrokerChoice, admin: Admin, topic: str, target: str) -> int:
    """Return the number of write queues of the target topic, after creating it if it does not exist."""
    topics: dict[str, TopicInfo] = admin.topics(system=True)
    if target not in topics:
        like = len(admin.topic_stats(topic))
        admin.create_topic(target, like)
        note(settings, f"created topic {shown_name(target)} with {like} queues, like {shown_name(topic)}")
        return like
    return topics[target].write_queues


# ---- The command ``flintmq export``.


@command("export")
@selection_options
def export(
    settings: BrokerChoice,
    topic: str,
    from_: Typed,
    until: Typed,
    key: str | None,
    tag: str | None,
    condition: str | None,
) -> int:
    """Print the messages of TOPIC as JSON lines, in the form that flintmq import reads.

    Each line has the same names as -o json in other commands; a body that is not UTF-8 is in body_base64. The messages
    of each queue are in order.

    \b
        flintmq export orders > orders.jsonl
        flintmq export orders --from @-1d --filter "amount > 5" | flintmq -b other:10911 import orders
    """
    selection = MessageSelection(topic, from_, until, key, tag, condition)
    began, count = time.monotonic(), 0
    with settings.consumer() as consumer:

        def show(message: StoredMessage) -> None:
            nonlocal count
            settings.output.write_bytes((to_json(message_row(message)) + "\n").encode())
            count += 1

        with contextlib.closing(selection.messages(consumer, consumer.topic_stats(topic))) as messages:
            code = for_each_sound(messages, show, condition)
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
            note(settings, f"{transfer.summary('imported')} before the error, from the start of the input")
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
