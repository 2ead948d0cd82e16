"""A stream of messages as Arrow record batches that any library with the Arrow C stream interface can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ...protocol.errors import FlintError

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
