"""Messages and receipts on standard output: their forms, the options that choose them, and the loop that prints."""

from __future__ import annotations

import base64
import codecs
import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import click

from ...protocol.display import JSON, PLAIN, TABLE, escape, escape_bytes, escape_json, iso, show_bytes, to_json
from ...protocol.errors import FilterIllegal
from ...protocol.storage.record import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from ..core.consume.batch import StoredMessage
from ..core.produce.receipts import DeliveryFailed, Receipt
from ..core.rpc.address import Address
from ..errors import CorruptMessage
from ..operator.display import plural, show_moment, show_rate, show_second, show_seconds, shown_name
from .command import note, options
from .failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe, nearest
from .output import Output, TableColumn
from .params import TextType
from .settings import BrokerChoice

# ---- The option ``--format``, which prints a message by a template: like kcat's, with FlintMQ's letters.

Part: TypeAlias = Callable[[StoredMessage, bool], bytes]
"""Function that returns a part of a message; the flag asks for raw bytes."""


def _text(value: str, raw: bool) -> bytes:
    return (value if raw else escape(value)).encode("utf-8", "surrogateescape" if raw else "backslashreplace")


def _json(properties: dict[str, str]) -> bytes:
    return escape_json(json.dumps(properties, ensure_ascii=False)).encode("utf-8", "backslashreplace")


DIRECTIVES: dict[str, tuple[str, Part]] = {
    "T": ("topic", lambda message, raw: _text(message.topic, raw)),
    "q": ("queue", lambda message, raw: b"%d" % message.queue),
    "o": ("queue offset", lambda message, raw: b"%d" % message.queue_offset),
    "O": ("physical offset in the CommitLog", lambda message, raw: b"%d" % message.physical_offset),
    "i": ("message id", lambda message, raw: _text(message.message_id, raw)),
    "k": ("keys, separated by a space", lambda message, raw: _text(" ".join(message.keys), raw)),
    "t": ("tag", lambda message, raw: _text(message.tags or "", raw)),
    "h": ("sharding key", lambda message, raw: _text(message.sharding_key or "", raw)),
    "v": ("body", lambda message, raw: message.body if raw else escape_bytes(message.body).encode()),
    "z": ("size of the body in bytes", lambda message, raw: b"%d" % len(message.body)),
    "p": ("properties that the sender gave, as JSON", lambda message, raw: _json(dict(message.user_properties))),
    "P": ("all properties as stored, as JSON", lambda message, raw: _json(dict(message.properties))),
    "s": ("store time, ISO 8601 in UTC", lambda message, raw: iso(message.stored_at).encode()),
    "S": ("store time, ms since 1970", lambda message, raw: b"%d" % message.stored_ms),
    "b": ("time of creation, ISO 8601 in UTC", lambda message, raw: iso(message.born_at).encode()),
}
"""Description and function of each directive, by letter. ``%%`` is a percent sign."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


class Format:
    r"""A parsed ``--format``: text, ``%`` directives, and ``\n``, ``\t``, ``\r``, ``\0``, ``\\``, ``\xNN``.

    Raises ``ValueError`` that names an unknown directive or escape.
    """

    def __init__(self, text: str) -> None:
        self._parts: list[Part] = []
        self._literal = b""
        for found in _TOKEN.finditer(text):
            self._take(found)
        self._end_literal()

    def _take(self, found: re.Match[str]) -> None:
        directive, hexadecimal, escaped, literal, alone = found.groups()
        if directive == "%":
            self._literal += b"%"
        elif directive is not None:
            if directive not in DIRECTIVES:
                known = " ".join(f"%{letter}" for letter in DIRECTIVES)
                raise ValueError(
                    f"%{directive} is not a directive{nearest(directive, [])}; the directives are {known} and %%"
                )
            self._end_literal()
            self._parts.append(DIRECTIVES[directive][1])
        elif hexadecimal is not None:
            self._literal += codecs.decode(hexadecimal, "hex")
        elif escaped is not None:
            if escaped not in _ESCAPES:
                raise ValueError(f"\\{escaped} is not an escape; the escapes are \\n \\t \\r \\0 \\\\ and \\xNN")
            self._literal += _ESCAPES[escaped]
        elif literal is not None:
            self._literal += literal.encode("utf-8", "surrogateescape")
        else:
            raise ValueError(f"it ends with {alone!r}; write {alone * 2} for the character itself")

    def _end_literal(self) -> None:
        if self._literal:
            literal, self._literal = self._literal, b""
            self._parts.append(lambda message, raw: literal)

    def render(self, message: StoredMessage, *, raw: bool = False) -> bytes:
        """Return the formatted message; ``raw``: without escaping control characters. Raises ``CorruptMessage``."""
        return b"".join([part(message, raw) for part in self._parts])


# ---- Messages.

BODY_CHARS_SHOWN = 1000
"""Maximum characters of a body that a terminal shows."""
NARROW, WIDE = 100, 150
"""Widths: below the first, times have no date; from the second on, ids and properties are shown too."""
CLOCK_AT = len("2026-11-21 ")


def message_row(message: StoredMessage) -> dict[str, Any]:
    """Return a message under its JSON names, with a body that is not UTF-8 as ``body_base64``."""
    body = message.body
    row: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "message_id": message.message_id,
        "keys": list(message.keys),
        "tag": message.tags,
        "sharding_key": message.sharding_key,
        "properties": dict(message.user_properties),
        "born_at": message.born_at,
        "stored_at": message.stored_at,
        "body_bytes": len(body),
    }
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row


_COLOURS = ("\x1b[2m", "\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[0m")
_NO_COLOURS = ("", "", "", "", "")


class MessagePrinter:
    """A printer of messages: as JSON objects, by a format, or as lines for a terminal.

    ``raw``: print bodies without escaping control characters. ``follow``: flush after each message.
    """

    def __init__(self, output: Output, *, template: Format | None = None, raw: bool = False, follow: bool) -> None:
        self._output = output
        self._follow = follow
        self._raw = raw
        self._colours = _COLOURS if output.colour else _NO_COLOURS
        self._moment_from = CLOCK_AT if output.width < NARROW else 0
        self._wide = output.width >= WIDE
        self._render: Callable[[StoredMessage], bytes] = self._for_terminal
        if template is not None:
            self._render = lambda message: template.render(message, raw=raw)
        elif output.mode == JSON:
            self._render = lambda message: (to_json(message_row(message)) + "\n").encode()
        elif output.mode == PLAIN or raw:
            self._render = self._body_alone

    def show(self, message: StoredMessage) -> None:
        """Print one message. Raises ``CorruptMessage`` if it is damaged, before printing any of it."""
        self._output.write_bytes(self._render(message))
        if self._follow:
            self._output.flush()

    def _body_alone(self, message: StoredMessage) -> bytes:
        body = message.body
        return (body if self._raw else escape_bytes(body).encode()) + b"\n"

    def _for_terminal(self, message: StoredMessage) -> bytes:
        dim, place, tag, key, end = self._colours
        moment = show_moment(message.stored_at)[self._moment_from :]
        parts = [f"{dim}{moment}{end}", f"{place}{message.queue}:{message.queue_offset}{end}"]

        def add(label: str, value: str | None, colour: str = "") -> None:
            if value is not None:
                parts.append(f"{dim}{label}={end}{colour}{escape(value)}{end if colour else ''}")

        if self._wide:
            add("id", message.message_id)
        add("tag", message.tags, tag)
        add("key" if len(message.keys) == 1 else "keys", ",".join(message.keys) or None, key)
        add("sharding-key", message.sharding_key)
        if message.reconsume_times:
            add("tries", str(message.reconsume_times))
        for name, value in message.user_properties.items() if self._wide else ():
            add(escape(name), value)
        body = message.body
        shown = escape_bytes(body[: 4 * BODY_CHARS_SHOWN])
        if len(shown) > BODY_CHARS_SHOWN or len(body) > 4 * BODY_CHARS_SHOWN:
            shown = f"{shown[:BODY_CHARS_SHOWN]}{dim}… ({len(body):,} bytes){end}"
        parts.append(shown)
        return ("  ".join(parts) + "\n").encode("utf-8", "backslashreplace")


# ---- One message with all its fields, as ``query id`` shows it.

_SHOWN_PROPERTIES = (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_SHARDING_KEY)


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs.items())


def shown_body(row: dict[str, Any]) -> str:
    return row["body"] if "body" in row else escape_bytes(base64.b64decode(row["body_base64"]))


RECORD_COLUMNS = (
    TableColumn("message_id", "id", style="bold"),
    TableColumn("topic", "topic", shown_name),
    TableColumn("place", "queue, offset", of=lambda row: f"{row['queue']}, {row['queue_offset']:,}"),
    TableColumn("tag", "tag"),
    TableColumn("keys", "keys", ", ".join),
    TableColumn("sharding_key", "sharding key"),
    TableColumn("properties", "properties", _pairs),
    TableColumn("born", "sent", of=lambda row: f"{show_moment(row['born_at'])} by {row['born_host']}"),
    TableColumn("stored", "stored", of=lambda row: f"{show_moment(row['stored_at'])} by {row['stored_host']}"),
    TableColumn("reconsume_times", "tries"),
    TableColumn("noted", "noted by the broker", _pairs),
    TableColumn(
        "offset_id", "offset id", of=lambda row: row["offset_id"] if row["offset_id"] != row["message_id"] else None
    ),
    TableColumn(
        "sizes",
        "size",
        of=lambda row: (
            f"{show_bytes(row['body_bytes'])} of body, {show_bytes(row['stored_bytes'])} in the log, at "
            f"{row['physical_offset']:,}"
        ),
    ),
    TableColumn("body", "body", of=lambda row: shown_body(row) or "(empty)"),
)


def message_record(message: StoredMessage) -> dict[str, Any]:
    """Return all fields of a message under their JSON names: those of ``message_row`` and more."""
    user_properties = message.user_properties
    return message_row(message) | {
        "offset_id": message.offset_id,
        "born_host": str(Address(*message.born_host)),
        "stored_host": str(Address(*message.stored_host)),
        "stored_bytes": len(message.record),
        "reconsume_times": message.reconsume_times,
        "noted": {
            name: value
            for name, value in message.properties.items()
            if name not in user_properties and name not in _SHOWN_PROPERTIES
        },
    }


def show_record(output: Output, message: StoredMessage) -> None:
    """Print all fields of a message, as JSON or for people, who see those that it has. Raises ``CorruptMessage`` if it
    is damaged."""
    row = message_record(message)
    output.record([column for column in RECORD_COLUMNS if column.value(row)], row)


# ---- Receipts.

RECEIPT_COLUMNS = tuple(
    TableColumn(name, name)
    for name in ("topic", "queue", "queue_offset", "message_id", "physical_offset", "stored_at", "deliver_at")
)


def receipt_line(receipt: Receipt) -> str:
    delivered = receipt.deliver_at
    if delivered is None:
        place = f"{receipt.queue}:{receipt.queue_offset}  id={receipt.message_id}"
        return f"sent to {shown_name(receipt.topic)}  {place}  {show_moment(receipt.stored_at)[CLOCK_AT:]}"
    left = show_seconds((delivered - receipt.stored_at).total_seconds())
    same_day = delivered.astimezone().date() == receipt.stored_at.astimezone().date()
    moment = show_second(delivered)[CLOCK_AT if same_day else 0 :]
    return f"sent to {shown_name(receipt.topic)}  id={receipt.message_id}  delivery {moment}, in {left}"


@dataclass(slots=True)
class SentTotal:
    """Messages that the broker has acknowledged, since a command began to send."""

    messages: int = 0
    body_bytes: int = 0
    _began: float = field(default_factory=time.monotonic)

    def add(self, bodies: Sequence[bytes]) -> None:
        self.messages += len(bodies)
        self.body_bytes += sum(map(len, bodies))

    def add_acknowledged(self, bodies: Sequence[bytes], error: DeliveryFailed) -> None:
        """Add those of a failed batch that were stored."""
        self.add([body for body, receipt in zip(bodies, error.receipts, strict=True) if receipt is not None])

    def line(self, verb: str, target: str = "") -> str:
        """Return a line for people, with the rate."""
        seconds = time.monotonic() - self._began
        rate = f", {show_rate(self.messages / seconds)}" if self.messages > 1 and seconds > 0 else ""
        sent = f"{plural(self.messages, 'message')} ({show_bytes(self.body_bytes)}){target}"
        return f"{verb} {sent} in {show_seconds(seconds)}{rate}"


def show_receipts(output: Output, receipts: Iterable[Receipt]) -> None:
    """Print receipts; a table has one line per receipt."""
    if output.mode == TABLE:
        for receipt in receipts:
            output.line(receipt_line(receipt))
    else:
        output.rows(RECEIPT_COLUMNS[:-1] if output.mode == PLAIN else RECEIPT_COLUMNS, receipts)


# ---- Options of the commands that print messages, and their loop.

FORMAT_HELP = (
    "Template for each message: "
    + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in DIRECTIVES.items())
    + "; %%, \\n, \\t, \\xNN."
)

tag_option = click.option("-t", "--tag", help="Only messages with this tag, or with one of several: 'a || b'.")
condition_option = click.option(
    "--filter",
    "condition",
    metavar="CONDITION",
    help="Only messages whose properties meet this condition: \"amount > 5 AND region IN ('eu', 'us')\".",
)
POINTED_CHARS = 72
"""Number of characters of a filter that an error shows around the wrong place."""


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format`` and ``--raw``; the function gets them as one argument ``style``."""

    @functools.wraps(function)
    def with_style(*args: Any, template: Format | None, raw: bool, **others: Any) -> Any:
        return function(*args, style=MessageStyle(template, raw), **others)

    return options(
        click.option("--format", "template", type=TextType("format", Format), metavar="FORMAT", help=FORMAT_HELP),
        click.option("--raw", is_flag=True, help="Print bodies unchanged, including control characters."),
    )(with_style)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--tag`` and ``--filter``; the function gets them as one argument ``wanted``."""

    @functools.wraps(function)
    def with_filter(*args: Any, tag: str | None, condition: str | None, **others: Any) -> Any:
        return function(*args, wanted=MessageFilter(tag, condition), **others)

    return options(tag_option, condition_option)(with_filter)


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """Form in which messages are printed: a template, raw bodies, or (neither) the form of the output."""

    template: Format | None
    raw: bool

    def printer(self, settings: BrokerChoice, *, follow: bool = False) -> MessagePrinter:
        """Return a printer; ``follow``: more messages may arrive, so every one is printed at once."""
        return MessagePrinter(settings.output, template=self.template, raw=self.raw, follow=follow)


DEFAULT_STYLE = MessageStyle(None, raw=False)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tag and property filter of the messages to show; None: no restriction."""

    tag: str | None
    condition: str | None

    def nothing_found(self, topic: str) -> str:
        """Return a line for the user: the requested part of a topic has no message, or none that matches."""
        asked = [f"with the tag {self.tag}"] if self.tag else []
        asked += [f"matching the filter {self.condition}"] if self.condition else []
        return escape(f"found no message of topic {shown_name(topic)} there{' ' if asked else ''}{' and '.join(asked)}")


def each_sound(
    messages: Iterable[StoredMessage], handle: Callable[[StoredMessage], None], condition: str | None = None
) -> int:
    """Call ``handle`` with each message; return the exit code.

    A damaged message is reported on standard error and skipped; the exit code is then ``EXIT_ERROR``. ``condition``:
    the filter, for the error if the broker refuses it.
    """
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
    return code


def show_messages(
    settings: BrokerChoice,
    messages: Iterable[StoredMessage],
    printer: MessagePrinter,
    *,
    count: int | None = None,
    condition: str | None = None,
    nothing: str = "",
) -> int:
    """Print messages until there are no more, ``count`` are printed, or Ctrl-C; return the exit code.

    Damaged messages and ``condition`` as in ``each_sound``. ``nothing``: line for standard error if there is none.
    """
    began, shown = time.monotonic(), 0

    def wanted() -> Iterator[StoredMessage]:
        nonlocal shown
        for message in messages:
            shown += 1
            yield message
            if shown == count:  # do not wait for another one
                return

    try:
        code = each_sound(wanted(), printer.show, condition)
    except KeyboardInterrupt:
        seconds = time.monotonic() - began
        settings.output.flush()
        if sys.stderr.isatty():
            note(settings, "")  # after the ^C that the terminal shows
        note(settings, f"{plural(shown, 'message')} in {show_seconds(seconds)}, {show_rate(shown / seconds)}")
        return EXIT_INTERRUPTED
    if nothing and not shown:
        note(settings, nothing)
    return code


def pointed_at(condition: str, column: int) -> list[str]:
    """Return two lines: the part of ``condition`` around a column (counted from 1), and a mark below the column. Empty
    if there is no such column."""
    if not 0 < column <= len(condition) + 1:
        return []
    line = "".join(letter if letter.isprintable() else " " for letter in condition)
    begin = max(0, column - POINTED_CHARS // 2)
    return [line[begin : begin + POINTED_CHARS], " " * (column - 1 - begin) + "^"]
