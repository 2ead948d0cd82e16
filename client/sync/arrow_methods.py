"""The methods of consumers and producers with Arrow data; they load the libraries when they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ..core.consume.positions import EARLIEST, LATEST, Position
from .client import Client

if TYPE_CHECKING:
    from ..arrow.options import ArrowOptions
    from ..arrow.rows import ArrowData, RowProducer
    from ..arrow.stream import ArrowStream


class ArrowReads(Client):
    """The method of a consumer."""

    def arrow(
        self, topic: str, from_: Position = EARLIEST, until: Position = LATEST, **options: Unpack[ArrowOptions]
    ) -> ArrowStream:
        """Return the messages of a topic as Arrow record batches, for Polars, DuckDB, pandas and whatever else takes
        the Arrow C stream interface; needs ``flintmq[arrow]``.

        Queue after queue is read, from ``from_`` (as for ``iter``) to ``until``, and never beyond what is stored when a
        read begins. The stream can be used again, and each use reads again. For the options, such as ``columns`` and
        ``filter``, see ``ArrowOptions``. Raises ``InvalidArgument``, ``TopicNotExist`` and ``FilterIllegal`` at once;
        a read raises ``DataLoss`` and ``CorruptMessage``, unless ``on_loss`` is ``"report"``.
        """
        from ..arrow.errors import check_arrow

        check_arrow("Consumer.arrow")
        from .arrow import topic_stream

        return topic_stream(self._caller, topic, from_, until, options)


class ArrowSends:
    """The method of a producer."""

    def send_arrow(
        self: RowProducer,
        topic: str,
        data: ArrowData,
        body: str = "body",
        keys: str | None = None,
        tags: str | None = None,
        properties: Sequence[str] = (),
        *,
        sharding_key: str | None = None,
        queue: str | None = None,
    ) -> int:
        """Send each row of a data frame or stream to one topic; needs ``flintmq[arrow]``. Returns the number of rows,
        once all are acknowledged.

        ``data``: anything with the Arrow C stream interface; it is read in pieces. The other arguments name columns:
        ``body`` has bytes or text, ``keys`` a text or a list of texts, ``tags`` and ``sharding_key`` texts, ``queue``
        numbers; each of ``properties`` becomes the property of this name, as text (none for null or empty text).
        Raises ``InvalidMessage`` with the first row that cannot be sent, before its piece is sent, and ``RowsNotSent``
        with the rows that the broker did not acknowledge.
        """
        from ..arrow.errors import check_arrow

        check_arrow("Producer.send_arrow")
        from ..arrow.rows import send_rows

        named = {"body": body, "keys": keys, "tags": tags, "sharding_key": sharding_key, "queue": queue}
        return send_rows(self, topic, data, named, properties)
