"""Duplicate PRODUCE frames: the broker sends the first response again and writes nothing.

The stored messages may not be on disk yet, or not dispatched to the queue that knows their physical offsets. Until they
are, the connection handles nothing more, because PRODUCE frames are answered in order.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.commands import EmptyAnswer
from ...protocol.errors import SystemBusy
from ...protocol.frames import REQUEST
from ..config import BUSY_RETRY_AFTER_MS
from ..store import WouldBlock, check_count

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ...protocol.errors import BrokerError
    from ..delivery.deduplication import StoredBefore
    from ..requests.intake import Intake
    from ..requests.request import Request
    from ..store import Places


def answer_again(request: Request, intake: Intake, params: ProduceRequest, before: StoredBefore) -> None:
    """Send a duplicate its first response, in order, once its messages are as safe as the flush policy demands.

    A one-way frame needs none of this. Raises ``MessageNotFound`` if the messages have expired, and ``MessageIllegal``
    if the body is too short for its number of messages.
    """
    check_count(params.count, params.layout, request.frame.body_end - request.frame.body_at)
    intake.counters.duplicates += 1
    if request.frame.kind != REQUEST:
        request.respond(EmptyAnswer())
        return
    Duplicate(request, intake, params, before).begin()


class Duplicate:
    """A duplicate, from its detection to its response. Runs on the loop, except reads from the disk."""

    def __init__(self, request: Request, intake: Intake, params: ProduceRequest, before: StoredBefore) -> None:
        self._request = request
        self._intake = intake
        self._params = params
        self._before = before
        self._written = intake.store.write_offset
        """The messages are stored before this physical offset."""

    def begin(self) -> None:
        """Answer now if that is possible; otherwise let the connection wait for it."""
        if self.is_dispatched():
            try:
                places = self.places(hot=True)
            except WouldBlock:
                pass
            else:
                self.answer(places)
                return
        self._request.suspend()
        self.next_step()

    def is_dispatched(self) -> bool:
        """Return whether the messages have been dispatched, after dispatching what is due."""
        if not self._has_units():
            self._intake.dispatch.is_done()  # called because it dispatches what is due
        return self._has_units()

    def _has_units(self) -> bool:
        before = self._before
        queue = self._intake.store.queues.get(before.topic, before.queue)
        return queue is not None and queue.max_offset >= before.queue_offset + self._params.count

    def places(self, *, hot: bool) -> Places:
        """Return the physical offsets of the messages. Callable from any thread."""
        before = self._before
        return self._intake.store.producer_runs.places(
            before.topic, before.queue, before.queue_offset, self._params.count, hot=hot
        )

    def next_step(self) -> None:
        """Wait for the flush, for the dispatch, or for the disk, whichever is next."""
        intake = self._intake
        if self.is_dispatched():
            reading = self._request.in_reader(partial(self.places, hot=False))
            reading.add_done_callback(self._read)
        elif intake.store.dispatchable_offset < self._written:
            intake.flush.wait_for(self._written, self._flushed)
        else:
            intake.dispatch.when_done(self._dispatched)

    def _flushed(self, error: BrokerError | None) -> None:
        if error is not None:
            # In a later turn: a flush that had already failed calls back at once, while the frame is still handled.
            asyncio.get_running_loop().call_soon(self._request.resume, error)
        else:
            self.next_step()

    def _dispatched(self) -> None:
        if self._has_units():
            self.next_step()
            return
        busy = SystemBusy(
            "the frame was stored before, but its physical offsets are not known yet because dispatch is behind; try "
            "again later",
            retry_after_ms=BUSY_RETRY_AFTER_MS,
        )
        self._request.resume(busy)

    def _read(self, reading: asyncio.Future[Places]) -> None:
        reading.exception()  # marks it as retrieved, or asyncio logs it when the connection is gone
        self._request.proceed(lambda: self.answer(reading.result()))

    def answer(self, places: Places) -> None:
        """Send the response."""
        request, before = self._request, self._before
        offsets = places.physical_offsets
        request_id = request.frame.request_id
        answer = request.encode_stored(places.queue, before.queue_offset, places.store_ms, offsets)
        # A frame may ask for more than the flush policy, and then its messages may not be on disk yet.
        if self._params.flush == "sync" and self._intake.store.acknowledged_offset < places.end_offset:
            request.responses.send_when_flushed(request_id, request.source.frame_bytes, answer, places.end_offset)
            self._intake.dispatch.appended()  # wakes the flush, which may be asleep because nothing was appended
            return
        request.responses.written += 1
        request.responses.send_in_order(answer)
