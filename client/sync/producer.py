# Generated from client/aio/producer.py:
# change that file, and run python scripts/lib/shells.py
"""The producer: sends messages to topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

from ..core import hooks
from ..core.compression import COMPRESS_OVER_BYTES, Compression
from ..core.produce.delivery import IN_FLIGHT_BYTES_MAX
from ..core.produce.packer import BulkProperties, Flush, check_bodies, check_message, check_messages
from ..core.produce.producer_core import BulkTerms, ProducerCore
from ..core.produce.receipts import Receipt
from ..core.rpc.access import AccessOptions
from ..core.rpc.timeouts import DELIVERY_SECONDS
from ..endpoint import client_name
from ..message import Body, Message
from .arrow_methods import ArrowSends
from .sender import Sender, SendFuture


class Producer(ArrowSends, Sender):
    """Sends messages to a broker, or to the primary of a replica set. Thread-safe.

    ``delivery_timeout``: seconds within which a message must be acknowledged, retries included; ``compress_over``:
    bodies longer than this many bytes are compressed (None: none); ``compression``: "zlib" (the default, which every
    installation can read), "lz4" or "zstd", which raise ``CompressionUnavailable`` without their library;
    ``in_flight_bytes_max``: unacknowledged bytes above which calls block; ``flush``: "sync" or "async"; it
    can be stricter than the broker's setting, not weaker.
    ``user``, ``password``, ``tls`` …: credentials and encryption, if the broker requires them; see ``AccessOptions``.

    Connects on first use, and again whenever the connection is lost. If an acknowledgement is lost, the producer
    resends the message with the same ``message_id``, by which the broker detects whether it is already stored.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        delivery_timeout: float = DELIVERY_SECONDS,
        compress_over: int | None = COMPRESS_OVER_BYTES,
        compression: Compression | None = None,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        flush: Flush | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        sending = ProducerCore(
            access.get("client_name") or client_name(),
            delivery_timeout=delivery_timeout,
            compress_over=compress_over,
            compression=compression,
            in_flight_bytes_max=in_flight_bytes_max,
            flush=flush,
        )
        super().__init__(addresses, sending, access)

    @property
    def record_bytes_max(self) -> int:
        """Size of the largest record of a message that the broker accepts; the default one before the first answer."""
        return self._sending.record_bytes_max

    # ---- one message

    def send(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Receipt:
        """Send one message and return its receipt once it is acknowledged.

        ``queue``: the destination queue, if it matters; ``flush``: a stricter mode for this message; ``timeout``:
        seconds, instead of ``delivery_timeout``. Raises the broker's refusal, or ``ConnectionFailed`` or
        ``RequestTimeout`` when the time is over.
        """
        check_message(message)
        # No ``with``: it takes two more calls, and after a wait each of them has cold caches.
        message, observed = hooks.active.send(self._side, message, self._sending.record_bytes_max)
        try:
            receipt = self._send(message, queue, flush, timeout)
        except BaseException as error:
            observed.end(error)
            raise
        observed.end(None, receipt)
        return receipt

    def send_async(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> SendFuture:
        """Hand over one message and return at once; blocks only while too many bytes are unacknowledged.

        The future completes without further calls, possibly in another thread.
        """
        check_message(message)
        message, observed = hooks.active.send(self._side, message, self._sending.record_bytes_max)
        try:
            return self._send_async(message, queue, flush, timeout, observed)
        except BaseException as error:
            observed.end(error)
            raise

    # ---- several messages

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: int | None = None,
        flush: Flush | None = None,
        prepare: str | None = None,
        timeout: float | None = None,
    ) -> Sequence[Receipt]:
        """Send any number of messages and return their receipts, in order, once all are acknowledged.

        The messages are packed into as few frames as possible, several of which are in flight; those of a pinned queue
        are sent in order, one frame at a time. ``timeout``: seconds for the whole call; by default each frame has
        ``delivery_timeout``. ``prepare``: name of the attempt that the messages are prepared for; no consumer receives
        them until ``Admin.commit_prepared`` names it, and the receipts' offsets are those of the stored, uncommitted
        messages.
        Raises ``DeliveryFailed``, which has the error of each failed message and the receipts of the others.
        """
        terms = BulkTerms(queue, flush, prepare, timeout)
        several = check_messages(messages)
        with hooks.active.send_many(self._side, several, self._sending.record_bytes_max) as observed:
            return self._deliver(self._sending.many(observed.messages, terms, self._caller.now()), timeout)

    def send_bulk(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        queue: int | None = None,
        flush: Flush | None = None,
        prepare: str | None = None,
        timeout: float | None = None,
        **shared: Unpack[BulkProperties],
    ) -> Sequence[Receipt]:
        """Send many bodies to one topic; the fastest way to send. ``keys``: one entry for each body (a key, several, or
        None); ``tags``, ``properties``, ``sharding_key`` and the delay are those of ``Message`` and apply to all
        bodies (``BulkProperties``). Otherwise like ``send_many``."""
        terms = BulkTerms(queue, flush, prepare, timeout)
        several = check_bodies(bodies)
        with hooks.active.send_bulk(self._side, topic, several, shared, self._sending.record_bytes_max) as observed:
            plan = self._sending.columns(topic, several, keys, observed.shared, terms, self._caller.now())
            return self._deliver(plan, timeout)

    # ---- end

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything handed to ``send_async`` so far is acknowledged.

        Raises ``DeliveryFailed`` if a message failed and the application has not looked at its future, and
        ``RequestTimeout`` if that takes longer than ``timeout`` seconds (by default each message has its own limit).
        """
        self._flush(timeout)

    def close(self) -> None:
        """Accept no more messages, wait for those that were handed over, then disconnect. Idempotent.

        Raises ``DeliveryFailed`` if a message failed and the application has not looked at its future. The loss of a
        connection without unacknowledged messages is not an error.
        """
        self._close(None)
