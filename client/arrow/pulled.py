"""Responses to pulls and to queries by key, with the positions of their records instead of messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol import commands
from ...protocol.errors import RemoteProtocolError
from ...protocol.fields import decode_fields
from ..core.consume import requests
from ..core.consume.batch import Batch, Found
from ..core.consume.tags import TagFilter
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer
from .records import RecordBlock
from .scan import Ints, Part

PULL_COUNT = 65_536
PULL_BYTES = 4 << 20
_PAGE = 64
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class PulledRows:
    """The response to a pull: stored records with their positions in ``body``, and the offset to continue from."""

    body: bytes
    starts: Ints
    sizes: Ints
    next_offset: int
    min_offset: int
    max_offset: int
    lost: int
    lost_from: int


def _pulled(answer: Answer) -> PulledRows:
    head = answer.records or decode_fields(commands.RecordsAnswer, answer.fields)
    starts, sizes = _records(answer.body, head.count)
    offsets = head.next_offset, head.min_offset, head.max_offset
    return PulledRows(answer.body, starts, sizes, *offsets, head.lost, head.lost_from)


def _records(body: bytes, count: int) -> tuple[Ints, Ints]:
    """Return the starts and sizes of the records in a response's body."""
    records_at = _SIZE_BYTES * count
    if records_at > len(body):
        raise RemoteProtocolError(f"{count} records announced in a body of {len(body)} bytes")
    sizes = np.frombuffer(body, ">u4", count).astype(np.int64)
    ends = records_at + np.cumsum(sizes)
    if (int(ends[-1]) if count else records_at) != len(body):
        raise RemoteProtocolError(f"the sizes of {count} records do not fit a body of {len(body)} bytes")
    return ends - sizes, sizes


def pull(
    topic: str, queue: int, offset: int, count: int, tags: TagFilter, condition: str = ""
) -> Operation[PulledRows]:
    """Read up to ``count`` records of a queue from ``offset`` on. ``condition``: a filter expression for the broker."""
    asked: Operation[Batch] = requests.pull(topic, queue, offset, count, PULL_BYTES, 0, tags, condition)
    return replace(asked, decode=_pulled)  # type: ignore[arg-type,return-value]  # another result


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Records that the index found, newest first."""

    body: bytes
    starts: Ints
    sizes: Ints
    cursor: str
    index_behind_bytes: int
    damaged: int


def _page(answer: Answer) -> IndexPage:
    head = decode_fields(commands.QueryByKeyAnswer, answer.fields)
    starts, sizes = _records(answer.body, head.count)
    return IndexPage(answer.body, starts, sizes, head.cursor, head.index_behind_bytes, head.damaged)


def index_page(topic: str, key: str, begin_ms: int, end_ms: int, cursor: str | None) -> Operation[IndexPage]:
    """Find the newest records with a key, stored from ``begin_ms`` to ``end_ms``, the last one included."""
    asked: Operation[Found] = requests.query_between(topic, key, begin_ms, end_ms, _PAGE, cursor)
    return replace(asked, decode=_page)  # type: ignore[arg-type,return-value]  # another result


def with_tag(block: RecordBlock, tags: TagFilter) -> RecordBlock:
    """Return the records that really have one of the tags: the broker compares only hashes."""
    if not tags.wanted:
        return block
    wanted = pa.array([tag.encode() for tag in tags.wanted], pa.binary())
    found = pc.is_in(block.property_values(Part.TAGS_AT, Part.TAGS_END), wanted)
    return block.select(found.to_numpy(zero_copy_only=False))
