"""Messages and receipts on standard output."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

from ...protocol.display import JSON, PLAIN, TABLE, escape, escape_bytes, show_bytes, to_json
from ...protocol.storage.record import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from ..core.consume.batch import StoredMessage
from ..core.produce.receipts import Receipt
from ..core.rpc.address import Address
from ..operator.display import show_moment, show_second, show_seconds, shown_name
from .formats import Format
from .output import Output, TableColumn

BODY_CHARS_SHOWN = 1000
"""Maximum characters of a body that a terminal shows."""
NARROW, WIDE = 100, 150
"""Widths: below the first, times have no date; from the second on, ids and properties are shown too."""
CLOCK_AT = len("2026-11-21 ")

PLAIN_RECEIPT_COLUMNS = tuple(
    TableColumn(name, name) for name in ("topic", "queue", "queue_offset", "message_id", "physical_offset", "stored_at")
)
RECEIPT_COLUMNS = (*PLAIN_RECEIPT_COLUMNS, TableColumn("deliver_at", "deliver_at"))


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


def receipt_row(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt under its JSON names."""
    return {
        "topic": receipt.topic,
        "queue": receipt.queue,
        "queue_offset": receipt.queue_offset,
        "message_id": receipt.message_id,
        "physical_offset": receipt.physical_offset,
        "stored_at": receipt.stored_at,
        "deliver_at": receipt.deliver_at,
    }


def receipt_line(receipt: Receipt) -> str:
    """Return a receipt as one line for people."""
    delivered = receipt.deliver_at
    if delivered is None:
        place = f"{receipt.queue}:{receipt.queue_offset}  id={receipt.message_id}"
        return f"sent to {shown_name(receipt.topic)}  {place}  {show_moment(receipt.stored_at)[CLOCK_AT:]}"
    left = show_seconds((delivered - receipt.stored_at).total_seconds())
    same_day = delivered.astimezone().date() == receipt.stored_at.astimezone().date()
    moment = show_second(delivered)[CLOCK_AT if same_day else 0 :]
    return f"sent to {shown_name(receipt.topic)}  id={receipt.message_id}  delivery {moment}, in {left}"


def show_receipts(output: Output, receipts: Iterable[Receipt]) -> None:
    """Print receipts; a table has one line per receipt."""
    if output.mode == TABLE:
        for receipt in receipts:
            output.line(receipt_line(receipt))
    else:
        columns = PLAIN_RECEIPT_COLUMNS if output.mode == PLAIN else RECEIPT_COLUMNS
        output.rows(columns, map(receipt_row, receipts))


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


_COLOURS = ("\x1b[2m", "\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[0m")
_NO_COLOURS = ("", "", "", "", "")


# ---- One message with all its fields, as ``query id`` shows it.

_SHOWN_PROPERTIES = (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_SHARDING_KEY)


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs.items())


RECORD_COLUMNS = (
    TableColumn("message_id", "id", style="bold"),
    TableColumn("topic", "topic", shown_name),
    TableColumn("place", "queue, offset"),
    TableColumn("tag", "tag"),
    TableColumn("shown_keys", "keys"),
    TableColumn("sharding_key", "sharding key"),
    TableColumn("shown_properties", "properties", _pairs),
    TableColumn("born", "sent"),
    TableColumn("stored", "stored"),
    TableColumn("shown_tries", "tries"),
    TableColumn("shown_noted", "noted by the broker", _pairs),
    TableColumn("offset_id", "offset id"),
    TableColumn("sizes", "size"),
    TableColumn("shown_body", "body"),
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
    """Print all fields of a message, as JSON or for people. Raises ``CorruptMessage`` if it is damaged."""
    row = message_record(message)
    words = _words(row, message.body) if output.mode == TABLE else row
    output.record(RECORD_COLUMNS, words)


def _words(row: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return the values of ``RECORD_COLUMNS``, without those that the message does not have."""
    words = {
        "message_id": row["message_id"],
        "topic": row["topic"],
        "place": f"{row['queue']}, {row['queue_offset']:,}",
        "tag": row["tag"],
        "shown_keys": ", ".join(row["keys"]),
        "sharding_key": row["sharding_key"],
        "shown_properties": row["properties"],
        "born": f"{show_moment(row['born_at'])} by {row['born_host']}",
        "stored": f"{show_moment(row['stored_at'])} by {row['stored_host']}",
        "shown_tries": str(row["reconsume_times"] or ""),
        "shown_noted": row["noted"],
        "offset_id": row["offset_id"] if row["offset_id"] != row["message_id"] else "",
        "sizes": f"{show_bytes(row['body_bytes'])} of body, {show_bytes(row['stored_bytes'])} in the log, at "
        f"{row['physical_offset']:,}",
        "shown_body": escape_bytes(body) or "(empty)",
    }
    return {name: value for name, value in words.items() if value}
