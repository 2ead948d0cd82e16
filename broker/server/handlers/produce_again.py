"""A PRODUCE frame that was stored before: it gets the first answer again, and nothing is written.

What it asks for may not be on disk yet, or not be known to the queues, where its physical offsets stand. Until then the
connection handles nothing more, because PRODUCE frames are answered in their order.
"""

from __future__ import annotations

import asyncio
from functools import partial

from ....protocol.commands import EmptyAnswer, ProduceRequest
from ....protocol.errors import SUCCESS, BrokerError, SystemBusy
from ....protocol.frames import REQUEST, RESPONSE, Frame, encode_head
from ...delivery.sequences import StoredBefore
from ...store import Places, WouldBlock, check_count
from .context import Peer


def answer_again(peer: Peer, frame: Frame, request: ProduceRequest, before: StoredBefore) -> None:
    """Answer a duplicate as the first time, in its order, once what it asks for is on disk as the policy demands.

    A one-way frame is done. Raises ``MessageNotFound`` where retention has taken the messages, and ``MessageIllegal``
    where the body is too short for so many.
    """
    check_count(request.count, request.layout, frame.body_end - frame.body_at)
    peer.broker.counters.duplicates += 1
    if frame.kind != REQUEST:
        peer.answer(frame, EmptyAnswer())
        return
    duplicate = _Duplicate(peer, frame, request, before)
    if duplicate.is_dispatched():
        try:
            duplicate.answer(duplicate.places(hot=True))
            return
        except WouldBlock:
            pass
    peer.suspend()
    duplicate.go_on()


class _Duplicate:
    """A duplicate, from its recognition to its answer. All of it on the loop, but for reads from the disk."""

    def __init__(self, peer: Peer, frame: Frame, request: ProduceRequest, before: StoredBefore) -> None:
        self._peer = peer
        self._broker = peer.broker
        self._frame = frame
        self._request = request
        self._before = before
        self._written = peer.broker.store.write_offset
        """The messages lie below this."""

    def is_dispatched(self) -> bool:
        """Whether the queues know the messages."""
        if not self._has_units():
            self._broker.is_dispatched()  # after dispatching what is due
        return self._has_units()

    def _has_units(self) -> bool:
        before = self._before
        queue = self._broker.store.queues.get(before.topic, before.queue)
        return queue is not None and queue.max_offset >= before.queue_offset + self._request.count

    def places(self, *, hot: bool) -> Places:
        """Where the messages lie. Any thread."""
        before = self._before
        return self._broker.store.producer_runs.places(
            before.topic, before.queue, before.queue_offset, self._request.count, hot=hot
        )

    def go_on(self) -> None:
        """The next step: wait for the flush, for the dispatch, or for the disk."""
        broker = self._broker
        if self.is_dispatched():
            reading = broker.loop.run_in_executor(broker.readers, partial(self.places, hot=False))
            reading.add_done_callback(self._read)
        elif broker.store.dispatchable_offset < self._written:
            broker.flush.wait_for(self._written, self._flushed)
        else:
            broker.when_dispatched(self._dispatched)

    def _flushed(self, error: BrokerError | None) -> None:
        if error is not None:
            # In another turn: the flush may have failed before it was waited for, while the frame is still handled.
            self._broker.loop.call_soon(self._peer.resume, self._frame, error)
        else:
            self.go_on()

    def _dispatched(self) -> None:
        if self._has_units():
            self.go_on()
            return
        busy = SystemBusy(
            "the frame was stored before, but the broker is too far behind to say where; try again later",
            retry_after_ms=self._broker.limits.busy_retry_after_ms,
        )
        self._peer.resume(self._frame, busy)

    def _read(self, reading: asyncio.Future[Places]) -> None:
        reading.exception()  # seen, also where nobody waits any more
        self._peer.proceed(self._frame, lambda: self.answer(reading.result()))

    def answer(self, places: Places) -> None:
        """Send the answer."""
        peer, before = self._peer, self._before
        offsets = places.physical_offsets
        fields = {"queue": places.queue, "queue_offset": before.queue_offset, "store_ms": places.store_ms}
        answer = encode_head(RESPONSE, SUCCESS, self._frame.request_id, fields, len(offsets)) + offsets
        if self._request.flush == "sync" and self._broker.store.flushed_offset < places.end_offset:
            peer.send_when_flushed(self._frame, answer, places.end_offset)
            self._broker.appended()  # to wake the flush, which may have slept since
            return
        peer.written += 1
        peer.send_in_order(answer)
