"""FlintMQ for Spark: a streaming source, a batch source, an archive source and a sink, over PySpark's data source API.

    from flintmq.client.spark import session

    spark = session("orders")
    spark.read.format("flintmq").option("bootstrap", "127.0.0.1:10911").option("subscribe", "orders").load()

``register(spark)`` gives the sources to a session that was made otherwise. Needs ``flintmq[spark]``. See
``client/spark/README.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import DataLoss, IncompatibleSchema, InvalidOption, JavaNotFound, SparkUnavailable, WriteFailed
    from .sessions import register, session

__all__ = [
    "DataLoss",
    "IncompatibleSchema",
    "InvalidOption",
    "JavaNotFound",
    "SparkUnavailable",
    "WriteFailed",
    "register",
    "session",
]

_HOMES = {"register": ".sessions", "session": ".sessions"}
"""Where what is exported is defined; what is not listed is an error."""


if not TYPE_CHECKING:  # a checker is to know every name

    def __getattr__(name: str) -> Any:
        """Import an exported name when it is first used: Spark's workers import this package and need neither."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES.get(name, ".errors"), __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
