"""Notes on prepared messages: the records of OP_PREPARED_TOPIC, from which a start restores the state.

Each note is one msgpack array that begins with its kind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgpack

from ....protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ....protocol.storage.record import PROPERTY_TAGS, Record, encode_properties
from ...store import TopicConfig

log = logging.getLogger(__name__)

PREPARED_CONFIG = TopicConfig(PREPARED_TOPIC, read_queues=1, write_queues=1)
OP_PREPARED_CONFIG = TopicConfig(OP_PREPARED_TOPIC, read_queues=1, write_queues=1)
TOPICS = (PREPARED_CONFIG, OP_PREPARED_CONFIG)

PREPARE = "prepare"
"""[attempt, queue offset of the first message, messages, topic, queue]: these messages follow. If the frame was refused
or the broker killed, fewer follow: they end where the next "prepare" begins, or at the end of the queue."""
DROP = "drop"
"""[attempts]: these attempts were aborted or have expired."""
COMMIT = "commit"
"""[series, number, attempts, dropped attempts, messages of each attempt]: the transaction is committed as soon as this
note is stored."""
COPY = "copy"
"""[series, number, position]: copies of its messages, from this position on, follow directly after the note."""
DONE = "done"
"""[series, number]: all messages are copied."""

Note: TypeAlias = list[Any]

_LENGTHS = {PREPARE: 6, DROP: 2, COMMIT: 6, COPY: 4, DONE: 3}
_NAMES_A_NOTE = 1_000


def note_record(note: Note, now_ms: int, host: bytes) -> Record:
    """Return the record of a note."""
    properties = encode_properties({PROPERTY_TAGS: note[0]})
    return Record(OP_PREPARED_TOPIC.encode(), msgpack.packb(note), properties, born_timestamp=now_ms, born_host=host)


def drop_notes(attempts: Sequence[str]) -> list[Note]:
    """Return notes that drop these attempts, with at most ``_NAMES_A_NOTE`` names each."""
    return [[DROP, attempts[at : at + _NAMES_A_NOTE]] for at in range(0, len(attempts), _NAMES_A_NOTE)]


def read_note(record: Record) -> Note | None:
    """Return the note in a record. If it is malformed, log an error and return None."""
    try:
        note = msgpack.unpackb(record.body)
        if type(note) is list and note and _LENGTHS.get(note[0]) == len(note):
            return note
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    log.error("the record at physical offset %d of %s is not a note", record.physical_offset, OP_PREPARED_TOPIC)
    return None
