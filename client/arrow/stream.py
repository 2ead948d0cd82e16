"""A stream of messages as Arrow record batches that any library with the Arrow C stream interface can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol import commands
from ...protocol.errors import FlintError, RemoteProtocolError
from ...protocol.fields import decode_fields
from ...protocol.storage.reader.parts import Ints, Part
from ..core.consume import requests
from ..core.consume.batch import Batch, Found, TagFilter
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer
from .records import RecordBlock

LOSSES_MAX = 1000
"""Maximum number of errors that a stream keeps of one read."""


class Losses:
    """The messages that a read has left out because they are lost or damaged: the first errors, and their number."""

    def __init__(self) -> None:
        self.errors: list[FlintError] = []
        self.count = 0

    def add(self, error: FlintError) -> None:
        """Add an error; only the first ``LOSSES_MAX`` are kept."""
        self.count += 1
        if len(self.errors) < LOSSES_MAX:
            self.errors.append(error)


class ArrowStream:
    """Messages as Arrow record batches, for anything that takes the Arrow C stream interface::

        stream = consumer.arrow("orders", columns=("body", "stored_at"))
        pl.DataFrame(stream); pa.table(stream); duckdb.sql("FROM stream"); pd.DataFrame.from_arrow(stream)

    Each use reads the messages again, from what is stored by then; nothing is read before. A read keeps one batch in
    memory, and the next response of the broker.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[Losses], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self.error: Exception | None = None
        """The error with which the latest read failed, or None. Other libraries pass on only its text."""
        self._read = read
        self._losses = Losses()

    @property
    def losses(self) -> list[FlintError]:
        """Errors for the messages that the latest read has left out with ``on_loss="report"``: ``DataLoss`` and
        ``CorruptMessage``, the first thousand."""
        return self._losses.errors

    @property
    def loss_count(self) -> int:
        """The number of ``losses``, including those that were not kept."""
        return self._losses.count

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.error = None
        losses = self._losses = Losses()
        try:
            yield from self._read(losses)
        except Exception as error:
            self.error = error
            raise

    def table(self) -> pa.Table:
        """Read everything into memory, as a table."""
        return pa.Table.from_batches(self, self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader, which can be read once. Its errors are ``pyarrow.ArrowInvalid`` with the name and the text
        of the error, which ``error`` has."""
        return pa.RecordBatchReader.from_batches(self.schema, self._with_named_errors())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _with_named_errors(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self
        except FlintError as error:
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error


# ---- Responses to pulls and to queries by key, with the positions of their records instead of messages.

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
