"""Messages as Arrow record batches: decoded from stored records, without a Python object for each message.

    stream = consumer.arrow("orders", columns=("body", "stored_at"))
    pl.DataFrame(stream); pd.DataFrame.from_arrow(stream); duckdb.sql("SELECT count(*) FROM stream")

``read_store`` reads the files of a store without a broker. Needs ``flintmq[arrow]``. Read first: ``stream``, then
``decoder``.
"""

from __future__ import annotations

from ...protocol.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__)  # the names are in __init__.pyi
