"""The data source ``flintmq``: batch and streaming reads, batch and streaming writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ...protocol.errors import FlintError
from ..arrow.decoder import Column
from .columns import columns_of, ddl, offered
from .errors import hide_traceback
from .offsets import TopicSubscription
from .options import ReadOptions, check_batch_start, read_options, refuse
from .stream import BatchReader, PushingReader, RefusedStream, StreamReader

if TYPE_CHECKING:
    from .sink import BatchWriter, StreamWriter

_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "key", "pushFilters")


class FlintSource(DataSource):
    """``spark.read.format("flintmq")`` and its streaming and writing counterparts.

    The options are in ``options.READ_OPTIONS``, those of writes in ``sink_options.WRITE_OPTIONS``.
    """

    _is_copy = False
    """True in a pickled copy: Spark makes one for the writer that ends a micro-batch, never for one that begins it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_copy = True

    @classmethod
    def name(cls) -> str:
        return "flintmq"

    @hide_traceback
    def schema(self) -> str:
        """Return all columns that the options offer. Raises if an option is wrong, a broker away or a topic missing."""
        options = read_options(self.options)
        TopicSubscription(options).check()
        return ddl(offered(properties=options.include_properties, headers=options.include_headers))

    @hide_traceback
    def reader(self, schema: StructType) -> BatchReader:
        refuse(self.options, ["maxOffsetsPerTrigger"], "is for streaming queries")
        options, columns = self._checked(schema)
        check_batch_start(options)
        return (PushingReader if options.push_filters else BatchReader)(options, columns)

    @hide_traceback
    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:  # noqa: N802 - Spark's name
        try:
            refuse(self.options, _BATCH_ONLY, "is for batch queries")
            return StreamReader(*self._checked(schema))
        except FlintError as error:
            return RefusedStream(error)

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from .sink import batch_writer  # only writes need it

        return batch_writer(self.options, schema, overwrite=overwrite)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream. ``overwrite``: output mode ``complete``; each batch sends the whole result."""
        from .sink import stream_writer

        return stream_writer(self.options, schema, commits=self._is_copy)

    def _checked(self, schema: StructType) -> tuple[ReadOptions, tuple[Column, ...]]:
        return read_options(self.options), columns_of(schema)
