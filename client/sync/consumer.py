# Generated from client/aio/consumer.py:
# change that file, and run python scripts/lib/shells.py
"""The consumer: reads, iterates over and searches stored messages."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from datetime import datetime
from typing import Unpack

from ...protocol.commands import QUERY_COUNT_MAX
from ..core import hooks
from ..core import topics as topic_operations
from ..core.consume import pages, requests
from ..core.consume.batch import Batch, StoredMessage, check_filter, parse_tags
from ..core.consume.positions import EARLIEST, Position, check_position
from ..core.consume.requests import pull_found
from ..core.rpc.access import AccessOptions, ReadFrom, check_read_from
from ..core.rpc.timeouts import TIMEOUT_SECONDS
from ..endpoint import client_name
from .arrow_methods import ArrowReads
from .client import blocking_method
from .iteration import iterate


class Consumer(ArrowReads):
    """Reads from a broker, or from the primary of a replica set. Thread-safe: each call has a connection to itself.

    ``timeout``: seconds within which the broker must answer a call, unless the call sets its own. Within that time the
    consumer retries after a lost connection or if the broker is busy.

    ``read_from``: ``"any"`` lets the first address that answers serve reads, even if it is a follower of a replica set
    in sync; it shows what is confirmed, up to some seconds late. The default is ``"primary"``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        read_from: ReadFrom = "primary",
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(addresses, timeout=timeout, **access)
        if check_read_from(read_from):
            self._caller = self._caller.of_any_member()
        self._side = hooks.Side(access.get("client_name") or client_name(), self._caller.addresses)

    def pull(
        self,
        topic: str,
        queue: int = 0,
        offset: int = 0,
        max_count: int = 1000,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        tags: str | Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that users look for
        *,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to ``max_count`` messages and ``max_bytes`` bytes (but at least one message) of a queue, beginning
        at ``offset``.

        At the end of the queue the batch is empty, after waiting up to ``wait_ms`` for a message. ``tags``: only
        messages with this tag (``"a || b"``: with one of these). ``filter``: only messages whose properties meet this
        condition, such as ``"a > 5 AND region IN ('eu', 'us')"``. Raises ``OffsetOutOfRange``, with ``min_offset`` and
        ``max_offset``, if the queue does not contain ``offset``, and ``FilterIllegal``, with ``column``, if the filter
        is not valid.
        """
        deadline = self._caller.deadline(timeout)
        plan = pull_found(topic, queue, offset, max_count, max_bytes, wait_ms, tags, filter, deadline, self._caller.now)
        with hooks.active.receiving(self._side, topic) as receiving:
            return receiving.batch(self._caller.run(plan, deadline))

    def iter(
        self,
        topic: str,
        from_: Position = EARLIEST,
        until: Position | None = None,
        tags: str | Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that users look for
        *,
        timeout: float | None = None,
    ) -> Generator[StoredMessage, None, None]:
        """Iterate over the messages of all queues of a topic: within a queue in order, the queues taking turns.

        ``from_`` and ``until``: ``"earliest"``, ``"latest"`` (the current end), an aware
        datetime (store time), a negative number (-10: where the last ten messages of the topic begin), or offsets by
        queue (a mapping or a sequence; a queue left out is read from its beginning, and up to its current end).
        Without ``until`` the iterator waits for new messages and never ends. ``timeout``: seconds for which the broker
        may be away.

        The iterator reads ahead while the application handles messages. An iteration that is left early ends with
        ``close()`` (or ``contextlib.closing``), when it is garbage-collected, or with the consumer.
        """
        check_position("from_", from_)
        if until is not None:
            check_position("until", until)
        return iterate(self._caller, self._side, topic, (from_, until), parse_tags(tags), check_filter(filter), timeout)

    browse = blocking_method(pages.browse)
    query = blocking_method(requests.query)

    def query_iter(
        self,
        topic: str,
        key: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        timeout: float | None = None,
    ) -> Generator[StoredMessage, None, None]:
        """Yield all messages with this key or id, newest first, requesting each page of ``query`` when it is needed.
        ``timeout``: seconds for each page."""
        cursor: str | None = None
        while True:
            found = self.query(topic, key, since, until, QUERY_COUNT_MAX, cursor, timeout=timeout)
            yield from found
            cursor = found.cursor
            if cursor is None:
                return

    message = blocking_method(requests.message)

    # ---- offsets

    min_offset = blocking_method(requests.min_offset)
    max_offset = blocking_method(requests.max_offset)
    offset_at = blocking_method(requests.offset_at)
    topic_stats = blocking_method(topic_operations.topic_stats)
    committed = blocking_method(requests.committed, of_primary=True)
    commit = blocking_method(requests.commit, of_primary=True)
