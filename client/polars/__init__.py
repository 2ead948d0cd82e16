"""Topics and stores as Polars lazy frames, whose filters and columns decide what is read.

    from flintmq.client.polars import scan

    scan("127.0.0.1:10911", "orders").filter(pl.col("tags") == "eu").select("body", "stored_at").collect()

Needs ``flintmq[arrow]`` and Polars.
"""

from __future__ import annotations

from ...protocol.lazy_exports import lazy_exports
from ..arrow.errors import check_arrow

check_arrow(__name__, "polars")

__all__, __getattr__, __dir__ = lazy_exports(__name__)  # the names are in __init__.pyi
