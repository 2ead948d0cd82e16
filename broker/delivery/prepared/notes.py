"""Notes of what happens to prepared messages: the records of OP_PREPARED_TOPIC, by which a start knows all of it.

Each is one msgpack array, its kind in front.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgpack

from ....protocol.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ....protocol.record import PROPERTY_TAGS, Record, encode_properties
from ...store import TopicConfig

log = logging.getLogger(__name__)

PREPARED_CONFIG = TopicConfig(PREPARED_TOPIC, read_queues=1, write_queues=1)
OP_PREPARED_CONFIG = TopicConfig(OP_PREPARED_TOPIC, read_queues=1, write_queues=1)
TOPICS = (PREPARED_CONFIG, OP_PREPARED_CONFIG)

PREPARE = "prepare"
"""[attempt, queue offset of the first message, messages, topic, queue]: they follow. Fewer do where the frame was
refused or the broker killed: what is there ends where the next note of this kind begins, or the queue."""
DROP = "drop"
"""[attempts]: aborted or expired."""
COMMIT = "commit"
"""[series, number, attempts, dropped attempts, messages of each attempt]: once this is stored, the transaction is
committed."""
COPY = "copy"
"""[series, number, position]: copies of its messages follow right behind, from that one on."""
DONE = "done"
"""[series, number]: all of them are copied."""

Note: TypeAlias = list[Any]

_LENGTHS = {PREPARE: 6, DROP: 2, COMMIT: 6, COPY: 4, DONE: 3}
_NAMES_A_NOTE = 1_000


def note_record(note: Note, now_ms: int, host: bytes) -> Record:
    """The record of a note."""
    properties = encode_properties({PROPERTY_TAGS: note[0]})
    return Record(
        OP_PREPARED_TOPIC.encode(), msgpack.packb(note), properties, born_timestamp=now_ms, born_host=host
    )  # fmt: skip


def drop_notes(attempts: Sequence[str]) -> list[Note]:
    """Notes that these attempts are dropped."""
    return [[DROP, attempts[at : at + _NAMES_A_NOTE]] for at in range(0, len(attempts), _NAMES_A_NOTE)]


def read_note(record: Record) -> Note | None:
    """The note in a record; None, and a line in the log, where it is none."""
    try:
        note = msgpack.unpackb(record.body)
        if type(note) is list and note and _LENGTHS.get(note[0]) == len(note):
            return note
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    log.error("the record at physical offset %d of %s is no note", record.physical_offset, OP_PREPARED_TOPIC)
    return None
