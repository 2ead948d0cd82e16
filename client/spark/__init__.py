"""FlintMQ for Spark: a streaming source, a batch source, a store source and a sink, over PySpark's data source API.

    from flintmq.client.spark import session

    spark = session("orders")
    spark.read.format("flintmq").option("bootstrap", "127.0.0.1:10911").option("subscribe", "orders").load()

``register(spark)`` adds the sources to a session that was created in another way. Needs ``flintmq[spark]``. See
``client/spark/README.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import DataLoss, IncompatibleSchema, InvalidOption, JavaNotFound, SparkUnavailable, WriteFailed
    from .offsets import offsets_behind_latest
    from .sessions import register, session

__all__ = [
    "DataLoss",
    "IncompatibleSchema",
    "InvalidOption",
    "JavaNotFound",
    "SparkUnavailable",
    "WriteFailed",
    "offsets_behind_latest",
    "register",
    "session",
]

_HOMES = {"offsets_behind_latest": ".offsets", "register": ".sessions", "session": ".sessions"}
"""Modules that define exported names; names that are not listed are errors."""


if not TYPE_CHECKING:  # type checkers must see every name

    def __getattr__(name: str) -> Any:
        """Import an exported name on first use: Spark's workers import this package and need none of them."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES.get(name, ".errors"), __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
