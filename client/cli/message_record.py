"""One message with all its fields, as ``query id`` shows it."""

from __future__ import annotations

from typing import Any

from ...protocol.display import TABLE, show_bytes
from ...protocol.escaping import escape_bytes
from ...protocol.storage.record import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from ..core.consume.stored import StoredMessage
from ..core.rpc.address import Address
from ..operator.names import shown_name
from ..operator.units import show_moment
from .messages import message_row
from .output import Output, TableColumn

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
