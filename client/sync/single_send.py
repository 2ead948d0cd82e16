"""The short way of one ``send`` while nothing else of the producer is under way.

Most calls of ``send`` find an idle connection. Then the calling thread writes the frame and reads its response itself,
without a lane, a frame object or a follower. Whatever else happens (no response in time, an error, a lost connection)
is the ordinary delivery's to handle: it adopts the message as one that is in flight.
"""

from __future__ import annotations

import time

from ...protocol.commands import LAYOUT_ROWS
from ...protocol.errors import FlintError, RemoteProtocolError
from ...protocol.produce_frame import ANY_QUEUE, ProduceHead
from ...protocol.storage.ids import unique_key
from ..core.produce.accumulator import HEADS_KEPT, SentSingle, Single
from ..core.produce.packer import new_packer
from ..core.produce.producer_core import ProducerCore
from ..core.produce.receipts import Receipt
from ..core.rpc.session import Answer
from ..core.rpc.silence import share_seconds
from ..core.times import now_millis
from ..message import Message
from .connection import AnswerOfOne
from .driver import DeliveryDriver

BODY_BYTES_MAX = 4096
"""Longest body that is sent this way: a longer one may not fit into the socket's buffer at once."""


class SingleSender:
    """Sends single messages of one producer; used by the thread that the driver's ``claim`` chose."""

    def __init__(self, core: ProducerCore, driver: DeliveryDriver) -> None:
        self._core = core
        self._driver = driver
        self._frames = core.delivery.frames
        self._body_bytes_max = min(BODY_BYTES_MAX, core.compress_over)
        self._heads: dict[tuple[str, int], ProduceHead] = {}
        self._packer = new_packer()

    def send(self, message: Message, to: int) -> Receipt | Single | None:
        """Send one message with the default options to a queue, or to any, and return its receipt.

        Returns the message if the driver has adopted it, which must then wait for it with the role True; None if
        nothing was done.
        """
        row = message.row()
        if (
            message.common
            or (message.sharding_key is not None and to == ANY_QUEUE)
            or len(row[0]) > self._body_bytes_max
        ):
            return None
        connection = self._driver.claim()
        if connection is None:
            return None
        try:
            topic, frames = message.topic, self._frames
            head = self._heads.get((topic, to)) or self._new_head(topic, to)
            body: bytes = self._packer.pack(row)
            first, born_ms, request_id = frames.take_counters(1), now_millis(), connection.new_request_id()
            began = time.monotonic()
            frame = head.encode(request_id, 1, first, born_ms, len(body)) + body
            arrived: AnswerOfOne | list[Answer] | FlintError
            try:
                wait_seconds = share_seconds(self._core.delivery_seconds, connection.limits.role)
                arrived = connection.exchange_single(frame, wait_seconds)
            except FlintError as error:
                arrived = error
            if isinstance(arrived, tuple) and arrived[0] == request_id:
                _, queue, queue_offset, stored_ms, physical_offset = arrived
                self._driver.release()
                return Receipt(
                    unique_key(frames.unique_prefix, first), topic, queue, queue_offset, physical_offset, stored_ms
                )
        except BaseException:
            self._driver.interrupted()
            raise
        deadline = began + self._core.delivery_seconds
        sent = SentSingle(topic, to, row, head, body, first, born_ms, self._core.flush, deadline)
        if isinstance(arrived, tuple):
            arrived = RemoteProtocolError(f"a response to request {arrived[0]}, which was not sent")
        return self._driver.adopt(sent, request_id, arrived)

    def _new_head(self, topic: str, to: int) -> ProduceHead:
        if len(self._heads) >= HEADS_KEPT:
            self._heads.clear()
        head = ProduceHead(topic, to, LAYOUT_ROWS, self._core.flush, self._frames.common, self._frames.unique_prefix)
        self._heads[topic, to] = head
        return head
