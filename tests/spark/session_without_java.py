"""Program of ``test_spark_session`` for an environment without Java: one use of each way in which Spark runs Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType

from flintmq.client.spark import session
from flintmq.client.spark.java import find_java

BATCH = {"n": [1, 2, 3]}
SETTINGS = {
    "spark.ui.enabled": False,
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # see conftest.py
    "spark.sql.shuffle.partitions": 2,
}


class Numbers(DataSource):
    """Source of 1, 2 and 3, as a batch from an Arrow batch, and as a stream."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return NumbersReader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return NumbersStream()


class NumbersReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(BATCH)


class NumbersStream(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(position) for position in range(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(BATCH)


def main(folder: Path) -> None:
    print(f"java: {find_java().origin}")
    spark = session(master="local[2]", settings=SETTINGS)
    print(f"sql: {spark.sql('SELECT sum(id) FROM range(10)').collect()[0][0]}")
    spark.dataSource.register(Numbers)
    print(f"source: {spark.read.format('numbers').load().groupBy().sum('n').collect()[0][0]}")
    double = pandas_udf(lambda column: column * 2, "long")  # type: ignore[call-overload]  # pyspark types functions, not lambdas
    print(f"arrow: {len(spark.range(100).select(double('id')).toPandas())}")
    spark.range(10).write.parquet(str(folder / "parquet"))
    print(f"parquet: {spark.read.parquet(str(folder / 'parquet')).count()}")
    stream = spark.readStream.format("numbers").load().writeStream.format("memory").queryName("streamed")
    query = stream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(120)
    print(f"stream: {spark.table('streamed').groupBy().sum('n').collect()[0][0]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
