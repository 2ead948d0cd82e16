"""Messages whose key is that of a message stored before: sent again by the client, or on purpose by the program.

A RocketMQ client gives each message a key, and keeps it when it sends the message again after a lost answer. A program
that sends one ``Message`` object twice sends the same key, too, and wants two messages. Two things tell them apart: an
answer is lost with its connection, so the first message came by an earlier one; and its content is the same.
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.commands import ProduceRequest
from ...protocol.errors import MessageNotFound
from ...protocol.storage.record import Record
from ..delivery.deduplication import StoredBefore
from ..handlers.produce import Duplicate, SendContext, append_frame
from ..store import Places
from .request import RemotingRequest

_NOWHERE = Places(b"", 0, 0, 0)


class _Resend(Duplicate):
    """A message whose key is known. If it is another message, it is appended like a first one."""

    def __init__(
        self, request: RemotingRequest, params: ProduceRequest, before: StoredBefore, send: SendContext
    ) -> None:
        super().__init__(request, params, before, send)
        self._log_begin = request.log_begin
        self._body = bytes(request.received.body)
        self._stored: Record | None = None

    def places(self, *, hot: bool) -> Places:
        """Return the place of the stored message, and note its record. Callable from any thread."""
        try:
            places = super().places(hot=hot)
        except MessageNotFound:
            # Without the first message there is nothing to compare, and this one is appended.
            return _NOWHERE
        # A send of one message has one offset.
        physical_offset = int.from_bytes(places.physical_offsets, "big")
        self._stored = self._broker.store.log_reads.record_at(physical_offset, hot=hot)
        return places

    def answer(self, places: Places) -> None:
        """Send the first answer again; if the message is another one, append it."""
        stored = self._stored
        if stored is not None and stored.physical_offset < self._log_begin and stored.body == self._body:
            self._broker.counters.duplicates += 1
            super().answer(places)
        else:
            # Without the prefix, so that its key is not looked up again.
            append_frame(self._request, replace(self._params, unique_prefix=""), self._send)


def answer_resend(request: RemotingRequest, params: ProduceRequest, before: StoredBefore, send: SendContext) -> None:
    """Answer a message whose key is that of a message stored at ``before``, after storing it if it is another one."""
    _Resend(request, params, before, send).begin()
