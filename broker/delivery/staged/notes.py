"""Notes on staged transactions: the records of OP_PREPARED_TOPIC, from which a start restores the state.

Each note is one msgpack array that begins with its kind. The kinds on disk use the words of the wire (``prepare``);
their names here are those of the code.
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

STAGED_CONFIG = TopicConfig(PREPARED_TOPIC, read_queues=1, write_queues=1)
STAGED_NOTES_CONFIG = TopicConfig(OP_PREPARED_TOPIC, read_queues=1, write_queues=1)
TOPICS = (STAGED_CONFIG, STAGED_NOTES_CONFIG)

STAGE = "prepare"
"""[stage, queue offset of the first message, messages, topic, queue]: these messages follow. If the frame was refused
or the broker killed, fewer follow: they end where the next such note begins, or at the end of the queue."""
DROP = "drop"
"""[stages]: these stages were aborted or have expired."""
COMMIT = "commit"
"""[scope, sequence, stages, dropped stages, messages of each stage]: the transaction is committed as soon as this
note is stored."""
COPY = "copy"
"""[scope, sequence, position]: copies of its messages, from this position on, follow directly after the note."""
DONE = "done"
"""[scope, sequence]: all messages are copied."""

Note: TypeAlias = list[Any]

_LENGTHS = {STAGE: 6, DROP: 2, COMMIT: 6, COPY: 4, DONE: 3}
_NAMES_A_NOTE = 1_000


def note_record(note: Note, now_ms: int, host: bytes) -> Record:
    """Return the record of a note."""
    properties = encode_properties({PROPERTY_TAGS: note[0]})
    return Record(OP_PREPARED_TOPIC.encode(), msgpack.packb(note), properties, born_timestamp=now_ms, born_host=host)


def drop_notes(stages: Sequence[str]) -> list[Note]:
    """Return notes that drop these stages, with at most ``_NAMES_A_NOTE`` names each."""
    return [[DROP, stages[at : at + _NAMES_A_NOTE]] for at in range(0, len(stages), _NAMES_A_NOTE)]


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
