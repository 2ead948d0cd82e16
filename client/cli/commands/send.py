"""The command ``flintmq send``."""

from __future__ import annotations

import os
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, Unpack

import click

from ....protocol.display import escape_bytes
from ....protocol.errors import FlintError
from ...core.produce.receipts import DeliveryFailed
from ...errors import InvalidMessage
from ...message import join_keys
from ...operator.display import plural, shown_name
from ..command import command, flush_option, note
from ..failures import EXIT_ERROR, EXIT_INTERRUPTED, describe
from ..messages import SentTotal, show_receipts
from ..params import PROPERTY, QUEUE, SPAN, TIME, TOPIC, NumberType
from ..settings import BrokerChoice, is_interactive

if TYPE_CHECKING:
    from ...core.produce.packer import Flush
    from ...core.produce.receipts import Receipt
    from ...sync.producer import Producer

READ_BYTES = 1 << 20
"""Maximum bytes of lines that are read from standard input and sent at a time."""
_SEPARATOR_HELP = "Take the text before SEP in each line (or BODY) as its key: 'o-1=text' with -K =."


class MessageOptions(TypedDict):
    """The options of the command line that apply to every message; ``delay`` is in seconds."""

    keys: tuple[str, ...]
    key_separator: str | None
    tag: str | None
    properties: tuple[tuple[str, str], ...]
    sharding_key: str | None
    queue: int | None
    delay: float | None
    deliver_at: datetime | None
    delay_level: int | None


@dataclass
class SendRun:
    """Topic and options of the messages of one call, and those that were acknowledged."""

    topic: str
    options: MessageOptions
    streamed: bool = False
    """True if the messages are the lines of standard input, of which those before a wrong one are sent."""
    total: SentTotal = field(default_factory=SentTotal)

    def send(self, producer: Producer, bodies: list[bytes]) -> Sequence[Receipt]:
        """Send the messages and wait for their acknowledgement. Raises ``DeliveryFailed``, and ``InvalidMessage`` for
        a key that a message cannot have."""
        common, separator, delay = self.options["keys"], self.options["key_separator"], self.options["delay"]
        keys: list[Any] | None = [list(common)] * len(bodies) if common else None
        wrong: InvalidMessage | None = None
        if separator:
            pairs: list[tuple[str, bytes]] = []
            try:
                pairs.extend(_split(body, separator.encode()) for body in bodies)
            except InvalidMessage as error:
                place = f"{'line' if self.streamed else 'message'} {self.total.messages + len(pairs) + 1}"
                wrong = InvalidMessage(f"{place}: {error}")
                if not pairs or not self.streamed:
                    raise wrong from None
            bodies = [body for _, body in pairs]
            keys = [[*common, *([key] if key else [])] or None for key, _ in pairs]
        try:
            receipts = producer.send_bulk(
                self.topic,
                bodies,
                keys=keys,
                tags=self.options["tag"],
                properties=dict(self.options["properties"]),
                queue=self.options["queue"],
                sharding_key=self.options["sharding_key"],
                delay=None if delay is None else timedelta(seconds=delay),
                deliver_at=self.options["deliver_at"],
                delay_level=self.options["delay_level"],
            )
        except DeliveryFailed as error:
            self.total.add_acknowledged(bodies, error)
            raise
        self.total.add(bodies)
        if wrong is not None:
            raise wrong
        return receipts


def _split(line: bytes, separator: bytes) -> tuple[str, bytes]:
    """Return the key and the body of a line; the key is empty if the line has no separator.

    Raises ``InvalidMessage`` if a message cannot have the key.
    """
    key, found, body = line.partition(separator)
    if not found or not key:
        return "", body if found else line
    try:
        text = key.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError:
        raise InvalidMessage(f"the key {escape_bytes(key)} is not UTF-8") from None
    return join_keys(text), body


@command("send")
@click.argument("topic", type=TOPIC)
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@click.option(
    "-f", "--file", "files", type=click.File("rb"), multiple=True, help="Send a whole file as one message (-: stdin)."
)
@click.option("-k", "--key", "keys", multiple=True, help="Key to find the messages by; repeatable.")
@click.option("-K", "--key-separator", metavar="SEP", help=_SEPARATOR_HELP)
@click.option("-t", "--tag", help="Tag for consumers to filter by.")
@click.option(
    "-p", "--property", "properties", type=PROPERTY, metavar="NAME=VALUE", multiple=True, help="Property; repeatable."
)
@click.option("--sharding-key", metavar="KEY", help="Messages with the same key go to the same queue, in order.")
@click.option("--queue", type=QUEUE, help="Queue to send to.  [default: in turn]")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Deliver this long after the message is stored: 30s, 2h, 3d.")
@click.option("--deliver-at", type=TIME, metavar="TIME", help="Deliver at this time: 18:00, 2026-12-24T08:00, +90m.")
@click.option("--delay-level", type=NumberType(1, 18), help="Deliver after the delay of this RocketMQ level.")
@flush_option
@click.option(
    "--receipts/--no-receipts", default=None, help="Show where each message was stored.  [default: not for lines]"
)
def send(
    settings: BrokerChoice,
    topic: str,
    bodies: tuple[str, ...],
    files: tuple[BinaryIO, ...],
    flush: Flush | None,
    receipts: bool | None,
    **options: Unpack[MessageOptions],
) -> int:
    """Send each BODY as a message, or each line of standard input, or whole files.

    The command ends when the broker has acknowledged every message. A line's end is not part of the message, and an
    empty line is an empty message. Lines are sent as they arrive, all available lines at a time.
    """
    run = SendRun(topic, options)
    with settings.producer(flush) as producer:
        if bodies or files:
            blobs = [body.encode("utf-8", "surrogateescape") for body in bodies] + [file.read() for file in files]
            return _send_all(settings, run, producer, blobs, show=receipts is not False)
        if sys.stdin.isatty() and is_interactive():
            note(settings, "one message per line; Ctrl-D ends")
        run.streamed = True
        return _send_lines(settings, run, producer, show=bool(receipts))


def _send_all(settings: BrokerChoice, run: SendRun, producer: Producer, blobs: list[bytes], *, show: bool) -> int:
    sent = run.send(producer, blobs)
    if show and not settings.quiet:
        show_receipts(settings.output, sent)
    return 0


def _send_lines(settings: BrokerChoice, run: SendRun, producer: Producer, *, show: bool) -> int:
    code = 0
    try:
        for lines in stdin_lines():
            sent = run.send(producer, lines)
            if show:
                show_receipts(settings.output, sent)
                settings.output.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except DeliveryFailed as error:
        click.echo(f"flintmq: {describe(error)[0]}", err=True)
        count = plural(run.total.messages, "line")
        click.echo(f"  next: the broker acknowledged {count} of standard input; the rest was not sent", err=True)
        code = EXIT_ERROR
    except FlintError as error:
        count = plural(run.total.messages, "line")
        error.add_note(f"the broker acknowledged {count} of standard input; the rest was not sent")
        raise
    note(settings, run.total.line("sent", f" to {shown_name(run.topic)}"))
    return code


def stdin_lines() -> Iterator[list[bytes]]:
    """Yield lists of lines of standard input, without their ends: all that have arrived, up to about a megabyte."""
    read, has_more = _reader()
    rest: list[bytes] = []
    while True:
        chunk = read(READ_BYTES)
        ended = not chunk
        blob = b"".join([*rest, chunk])
        while not ended and len(blob) < READ_BYTES and has_more():
            chunk = read(READ_BYTES)
            ended = not chunk
            blob += chunk
        lines = blob.split(b"\n")
        last = lines.pop()
        if ended and last:
            lines.append(last)
        rest = [] if ended or not last else [last]
        if lines:
            yield lines
        if ended:
            return


def _reader() -> tuple[Any, Any]:
    """Return two functions for standard input: read the available bytes, and check whether more are available."""
    stream = sys.stdin.buffer
    try:
        descriptor = stream.fileno()
        select.select([descriptor], [], [], 0)
    except (OSError, ValueError):  # no descriptor, or one that select() does not support
        return stream.read, lambda: False
    # Not the stream, whose ``read`` waits until the whole count is there.
    return lambda count: os.read(descriptor, count), lambda: bool(select.select([descriptor], [], [], 0)[0])
