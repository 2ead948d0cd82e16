"""The data source ``flintmq``: read as a batch or a stream, written to as a batch or a stream."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .batch import BatchReader, PushingReader
from .columns import Column, columns_of, ddl, offered
from .offsets import Subscription
from .options import ReadOptions, read_options, refuse
from .stream import StreamReader


class FlintSource(DataSource):
    """``spark.read.format("flintmq")`` and its kin; the options are in ``options.READ_OPTIONS``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return "flintmq"

    def schema(self) -> str:
        """All columns that the options offer. Raises where an option is wrong, a broker away or a topic not there."""
        options = read_options(self.options)
        Subscription(options).check()
        return ddl(offered(properties=options.include_properties, headers=options.include_headers))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch."""
        refuse(self.options, ["maxOffsetsPerTrigger"], "is for streaming queries")
        options, columns = self._checked(schema)
        return (PushingReader if options.push_filters else BatchReader)(options, columns)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A stream."""
        refuse(
            self.options,
            ["endingOffsets", "endingTimestamp", "key", "pushFilters"],
            "is for batch queries, and a streaming query has no end",
        )
        return StreamReader(*self._checked(schema))

    def _checked(self, schema: StructType) -> tuple[ReadOptions, tuple[Column, ...]]:
        return read_options(self.options), columns_of(schema)
