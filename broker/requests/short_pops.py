"""The short way of POP_MESSAGE and ACK_MESSAGE frames: those of all connections are decided together, once in a turn.

After the general handler has accepted such a frame, its fields are kept, and the next frames with the same bytes (but
for the count) need no msgpack, no request object and no coroutine: ``kernels.short_pops`` reads them and builds the
answers. What Python decides in between, with the same table of deliveries as the general way, it decides for all pops
of a group in the topic at once: one read of a queue, one take, and one line in the journal serve them all.

A frame is left to the general way, and its connection leaves, if anything could make its answer another:

====================================================== =============================================================
what could change the answer                           when it is looked at
====================================================== =============================================================
the topic, the group: deleted, disabled, reset, other  once a turn, by the same functions as on the general way
kinds of consumers; messages in flight
a user's rights                                        when they change: heads are *retired* until the general way
                                                       has accepted a frame again
no message, and the pop would wait                     each pop
messages in the group's retry topics; a group that     once a turn, before anything is taken
has not begun with a queue, or takes it in order
a read that needs the disk; damage; memory is short    each read of a queue
tags, filters, a time of start; a replica set          never kept
receipts of messages that were delivered again         each frame
a second pop in a read                                 each frame: the first one may have to wait
TLS                                                    never enters
====================================================== =============================================================
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from msgpack import packb

from ...protocol import fields
from ...protocol.commands import ACK_MESSAGE, POP_MESSAGE, PopMessageRequest
from ...protocol.errors import BrokerError
from ...protocol.frames import MAPS, REQUEST
from ...protocol.storage.delivery import old_pop_retry_topic, pop_retry_topic
from ..delivery.pop.service import ALL_QUEUES
from ..delivery.pop.table import QueueKey, Take
from ..int_table import IntTable
from ..kernels import short_pops as kernel
from ..kernels.short_sends import (
    E_AT,
    E_BYTES,
    E_OUT,
    E_OUT_BYTES,
    E_ROW,
    E_SENT,
    E_TAKEN,
    E_WAITS,
    E_WIDTH,
    EVENT_BYTES,
    READS_MAX,
    SLOT_BYTES,
)
from ..store import CorruptLog, DamagedRecord, PullSelection, WouldBlock
from .short_way import KernelBuffer, ShortWay

if TYPE_CHECKING:
    import asyncio

    from ...protocol.frames import Frame
    from ..budgets import SendBudget
    from ..delivery.groups.coordinator import GroupChanges, GroupCoordinator
    from ..delivery.pop.service import PopService
    from ..store import MessageStore
    from .counters import Counters
    from .dispatch import DispatchScheduler
    from .short_way import ShortConnection


FIELDS_BYTES_MAX = 512
"""Longest fields that are kept."""
DEFAULT_COUNT = fields.fields_of(PopMessageRequest).defaults["max_count"]
"""Number of messages that a pop wants if it does not say."""


class PopParts(Protocol):
    """The parts of a broker that pops need."""

    store: MessageStore
    pops: PopService
    groups: GroupCoordinator
    group_changes: GroupChanges
    dispatch: DispatchScheduler
    counters: Counters
    send_memory: SendBudget
    loop: asyncio.AbstractEventLoop


class Wish(NamedTuple):
    """What a pop asks for, but the number of messages. ``queue``: ``ALL_QUEUES``, or one; ``waits``: it waits if there
    is no message."""

    group: str
    topic: str
    queue: int
    bytes_max: int
    lease_ms: int
    waits: bool


class Settling(NamedTuple):
    """What an acknowledgement is about."""

    group: str
    topic: str


class PackedFields(NamedTuple):
    """The bytes of a frame's fields, without the count between them; ``default``: the count if the frame has none, else
    -1."""

    prefix: bytes
    suffix: bytes
    default: int


def fields_of(frame: Frame, count_name: str) -> PackedFields | None:
    """Return the bytes of a request's fields, without the value of ``count_name``; None if they are not packed in the
    shortest way, which nearly all clients do."""
    if frame.kind != REQUEST or len(frame.fields) >= len(MAPS):
        return None
    prefix, suffix, count = MAPS[len(frame.fields)], b"", -1
    packed = prefix
    for name, value in frame.fields.items():
        pair = packb(name), packb(value)
        packed += pair[0] + pair[1]
        if name == count_name:
            prefix, suffix, count = packed[: -len(pair[1])], b"", value
        elif count >= 0:
            suffix += pair[0] + pair[1]
    begin = frame.body_at - len(packed)
    if len(packed) > FIELDS_BYTES_MAX or begin < 0 or frame.buffer[begin : frame.body_at] != packed:
        return None
    return PackedFields(prefix, suffix, -1) if count >= 0 else PackedFields(packed, b"", DEFAULT_COUNT)


class PopHead:
    """A frame's fields that were accepted before. Its row in the table of heads refers to the arrays here."""

    __slots__ = ("place", "prefix", "purpose", "suffix")

    def __init__(self, fields: PackedFields, purpose: Wish | Settling, place: int) -> None:
        self.place = place
        self.purpose = purpose
        self.prefix = np.frombuffer(fields.prefix, np.uint8)
        self.suffix = np.frombuffer(fields.suffix or b"\0", np.uint8)


class ShortPops(ShortWay):
    """The short way of one broker. Belongs to the event loop."""

    enter_again_after = 8
    """A group that has just begun, or whose retries wait, is no reason to stay out for long."""

    def __init__(self, parts: PopParts) -> None:
        super().__init__(parts.loop)
        self._parts = parts
        self._heads = IntTable(kernel.H_WIDTH)
        self._head_of: dict[int, PopHead] = {}
        self._numbers: dict[Wish | Settling, int] = {}
        self._purposes: dict[int, tuple[Wish | Settling, int]] = {}
        """What heads ask for, and the number of these heads, by a number of its own."""
        self._last_number = 0
        self._array = np.zeros(kernel.S_LENGTH, np.int64)
        self._state = self._array.data
        self._reads = KernelBuffer(np.zeros(READS_MAX * E_WIDTH, np.int64))
        self._frames = KernelBuffer(np.zeros(kernel.FRAMES_MAX * kernel.F_WIDTH, np.int64))
        self._receipts = KernelBuffer(np.zeros(kernel.TURN_RECEIPTS_MAX * kernel.T_WIDTH, np.int64))
        self._valid = KernelBuffer(np.zeros(kernel.TURN_RECEIPTS_MAX, np.uint8))
        self._input = KernelBuffer(np.zeros(READS_MAX * SLOT_BYTES, np.uint8))
        self._out = KernelBuffer(np.zeros(kernel.OUT_BYTES, np.uint8))
        self._events = KernelBuffer(np.zeros(READS_MAX * EVENT_BYTES, np.uint8))
        for slot, buffer in (
            (kernel.S_EVENTS, self._events),
            (kernel.S_INPUT, self._input),
            (kernel.S_OUT, self._out),
            (kernel.S_READS, self._reads),
            (kernel.S_FRAMES, self._frames),
            (kernel.S_RECEIPTS, self._receipts),
            (kernel.S_VALID, self._valid),
        ):
            self._state[slot] = buffer.address
        self._offsets = KernelBuffer(np.zeros(1024, np.int64))
        self._bodies: list[bytearray] = []
        """Records that frames of this turn get."""
        self._wakes: list[tuple[str, str]] = []
        """Groups and topics of which consumers wait although there are messages."""
        self._read()

    # ---- heads ----

    def keep(self, connection: int, fields: PackedFields, purpose: Wish | Settling) -> PopHead:
        """Keep a head of the connection with this place."""
        place = self._heads.take()
        head = self._head_of[place] = PopHead(fields, purpose, place)
        values = self._heads.values
        values[place + kernel.H_KIND] = kernel.POP if isinstance(purpose, Wish) else kernel.ACK
        values[place + kernel.H_LIVE] = 1
        values[place + kernel.H_PREFIX] = head.prefix.ctypes.data
        values[place + kernel.H_PREFIX_BYTES] = len(fields.prefix)
        values[place + kernel.H_SUFFIX] = head.suffix.ctypes.data
        values[place + kernel.H_SUFFIX_BYTES] = len(fields.suffix)
        values[place + kernel.H_COUNT] = fields.default
        values[place + kernel.H_PURPOSE] = self._number(purpose)
        self._add_to_ring(connection, values, place)
        return head

    def _number(self, purpose: Wish | Settling) -> int:
        """Return the number of what one more head asks for."""
        number = self._numbers.get(purpose)
        if number is None:
            self._last_number = number = self._last_number % 0x7FFFFFFF + 1
            self._numbers[purpose] = number
        same, heads = self._purposes.get(number, (purpose, 0))
        self._purposes[number] = same, heads + 1
        return number

    def renew(self, head: PopHead) -> None:
        """Note frames with this head again, after the general way has accepted one."""
        self._heads.values[head.place + kernel.H_LIVE] = 1

    def retire_all(self) -> None:
        """Note no frame until the general way has accepted one with the same head: the rights of users changed."""
        for place in list(self._head_of):
            self._heads.values[place + kernel.H_LIVE] = 0

    def forget(self, connection: int, heads: list[PopHead]) -> None:
        """Forget a closed connection and its heads."""
        for head in heads:
            del self._head_of[head.place]
            self._heads.give_back(head.place)
            number = self._numbers[head.purpose]
            purpose, heads_left = self._purposes[number]
            self._purposes[number] = purpose, heads_left - 1
            if heads_left == 1:
                del self._purposes[number], self._numbers[purpose]
        self.connections.give_back(connection)

    # ---- the turn of the connections that have entered ----

    def _turn(self) -> None:
        state = self._state
        began = time.monotonic()
        state[kernel.S_CONNECTIONS] = self.connections.address
        state[kernel.S_HEADS] = self._heads.address
        state[kernel.S_PLACES] = self._places.address
        state[kernel.S_EPOLL] = self._epoll.fileno()
        reads: int = kernel.receive(self._array)
        sharing = self._parts.dispatch.sharing
        sharing.turn(self, began)
        if reads > 1:
            sharing.alternated(began)
        if reads == READS_MAX:  # others come first
            self._loop.remove_reader(self._epoll.fileno())
            self._parts.dispatch.next_turn(self._read)
        # Whoever gets a message meanwhile on the general way leaves.
        rows = self._reads.values
        owners = [self._entered[rows[read + E_ROW]] for read in range(0, reads * E_WIDTH, E_WIDTH)]
        try:
            self._end_turn(began, owners)
        except BaseException:
            # Better than frames that nobody answers.
            for connection in owners:
                connection.transport.abort()
            raise
        finally:
            self._bodies.clear()

    def _end_turn(self, began: float, owners: list[ShortConnection]) -> None:
        """Decide what the frames get, and answer them."""
        state, reads = self._state, self._reads.values
        left = self._not_taken() if state[kernel.R_LEFT] else {}
        unsent = 0
        if state[kernel.R_FRAMES]:
            self._decide(left, owners)
            self._parts.pops.write_journal()
            for number, connection in enumerate(owners):
                place = number * E_WIDTH
                if self._entered.get(reads[place + E_ROW]) is not connection:
                    reads[place + E_WAITS] = 1
            unsent = kernel.answer(self._array)
            self._count(began)
        # Copied before other connections are read.
        rest = [(read, bytes(self._input.values[at:end])) for read, (at, end) in left.items()]
        if unsent:
            self._give_to_transports(owners)
        for read, data in rest:
            connection, place = owners[read // E_WIDTH], reads[read + E_ROW]
            if self._entered.get(place) is connection:
                self.leave(place, connection)
            connection.left_short_way(data)
        wakes, self._wakes = self._wakes, []
        for group, topic in wakes:
            self._parts.pops.left_some(group, topic)

    def _not_taken(self) -> dict[int, tuple[int, int]]:
        """Return the reads with bytes that no frame of theirs was noted for, and where these bytes are."""
        reads, left = self._reads.values, {}
        for read in range(0, self._state[kernel.R_READS] * E_WIDTH, E_WIDTH):
            at, size, taken = reads[read + E_AT], reads[read + E_BYTES], reads[read + E_TAKEN]
            if size <= 0 or taken < size:
                left[read] = at + taken, at + max(size, 0)
        return left

    def _give_to_transports(self, owners: list[ShortConnection]) -> None:
        """Let transports send what the kernel has not sent: the client reads slowly, or its connection has left."""
        reads, out = self._reads.values, self._out.values
        for number, connection in enumerate(owners):
            read = number * E_WIDTH
            at, size, sent = reads[read + E_OUT], reads[read + E_OUT_BYTES], reads[read + E_SENT]
            if size == sent:
                continue
            rest = bytes(out[at + sent : at + size])
            if reads[read + E_WAITS]:
                connection.responses.send(rest)
            else:
                self.leave(reads[read + E_ROW], connection, rest)
                connection.left_short_way(b"")

    def _count(self, began: float) -> None:
        """Count the frames that are answered."""
        seconds = time.monotonic() - began
        for command, slot in ((POP_MESSAGE, kernel.R_POPS), (ACK_MESSAGE, kernel.R_ACKS)):
            if self._state[slot]:
                self._parts.counters.latencies[command.code].observe(seconds, self._state[slot])

    # ---- what the frames of a turn get ----

    def _decide(self, left: dict[int, tuple[int, int]], owners: list[ShortConnection]) -> None:
        """Serve pops and acknowledgements; add those that are left to the general way to ``left``."""
        end = self._state[kernel.R_FRAMES] * kernel.F_WIDTH
        frames = self._frames.array
        kinds: list[int] = frames[kernel.F_KIND : end : kernel.F_WIDTH].tolist()
        numbers: list[int] = frames[kernel.F_PURPOSE : end : kernel.F_WIDTH].tolist()
        pops: dict[int, list[int]] = {}
        for frame, kind, number in zip(range(0, end, kernel.F_WIDTH), kinds, numbers, strict=True):
            if kind == kernel.POP:
                of_number = pops.get(number)
                if of_number is None:
                    pops[number] = of_number = []
                of_number.append(frame)
        unsettled: set[int] = set()
        for number, of_wish in pops.items():
            wish = self._purposes[number][0]
            assert isinstance(wish, Wish), "a pop's head"
            for frame in self._pop(wish, of_wish):
                unsettled |= self._leave_from(frame, left, owners)
        if self._state[kernel.R_RECEIPTS]:
            self._settle(unsettled)

    def _leave_from(self, frame: int, left: dict[int, tuple[int, int]], owners: list[ShortConnection]) -> set[int]:
        """Leave a pop, and all that its connection sent after it, to the general way; return the numbers of the
        receipts among it."""
        frames, reads = self._frames.values, self._reads.values
        read, at = frames[frame + kernel.F_READ], frames[frame + kernel.F_AT]
        left[read] = at, reads[read + E_AT] + reads[read + E_BYTES]
        # The connection counts them when they come again.
        connection = owners[read // E_WIDTH]
        connection.bytes_in -= reads[read + E_AT] + reads[read + E_TAKEN] - at
        end = self._state[kernel.R_FRAMES] * kernel.F_WIDTH
        receipts: set[int] = set()
        while frame < end and frames[frame + kernel.F_READ] == read:
            connection.frames_in -= 1
            frames[frame + kernel.F_ANSWERED] = 0
            if frames[frame + kernel.F_KIND] == kernel.ACK:
                first = frames[frame + kernel.F_RECEIPT]
                receipts.update(range(first, first + frames[frame + kernel.F_COUNT]))
            frame += kernel.F_WIDTH
        return receipts

    def _pop(self, wish: Wish, frames: list[int]) -> list[int]:
        """Serve pops that ask for the same, one after the other; return those that are left."""
        parts = self._parts
        pops = parts.pops
        try:
            pops.check_may_pop(wish.group, wish.topic)
            parts.groups.clients.check_may_pop(wish.group)
            parts.groups.ensure_group(wish.group)
        except BrokerError:
            return frames
        if parts.group_changes.pending or parts.send_memory.is_short() or not parts.dispatch.is_done():
            return frames
        take = Take(pops.now_ms(), wish.lease_ms)
        queues = self._queues(wish, take)
        if queues is None:
            return frames
        values, wanting = self._frames.values, np.array(frames, np.int64)
        counts = self._frames.array[wanting + kernel.F_COUNT]
        served = 0
        for key in queues:
            if served == len(frames):
                break
            start, room, blocked = pops.table.look(key, take)
            if start is None or blocked or room <= 0 or start == self._end_of(key):
                continue
            wanted = min(room, int(counts[served:].sum()))
            end = self._take(wish, key, start, wanted, wanting, served, take)
            served += self._state[kernel.R_SERVED] if end is not None else 0
            if served < len(frames) and (end is None or (end < self._end_of(key) and end - start < room)):
                return frames[served:]  # there is more, but not for this turn
        if served:
            parts.counters.pulled.of(wish.topic).frames += served
            if pops.waits.count(wish.group, wish.topic) and self._has_more(queues, take):
                self._wakes.append((wish.group, wish.topic))
        rest = frames[served:]
        if wish.waits:
            return rest
        for frame in rest:
            values[frame + kernel.F_ANSWERED] = 1
            values[frame + kernel.F_POP_MS] = take.now_ms
        return []

    def _queues(self, wish: Wish, take: Take) -> list[QueueKey] | None:
        """Return the queues that a pop looks at, in their order; None: they are not all for the short way."""
        table, topics = self._parts.pops.table, self._parts.store.topics
        for name in (old_pop_retry_topic(wish.group, wish.topic), pop_retry_topic(wish.group, wish.topic)):
            config = topics.get(name)
            for queue in range(config.read_queues if config is not None else 0):
                key = QueueKey(wish.group, name, queue)
                if (table.look(key, take)[0] or 0) != self._end_of(key):
                    return None
        config = topics.get(wish.topic)
        if config is None:
            return None
        queues = range(config.read_queues)
        if wish.queue != ALL_QUEUES:
            queues = queues[wish.queue : wish.queue + 1]
        if not queues:
            return None
        # A random queue begins, so that all are served although each pop takes only what it wants.
        shift = random.randrange(len(queues))  # noqa: S311 - a fair choice is enough
        keys = [QueueKey(wish.group, wish.topic, queue) for queue in (*queues[shift:], *queues[:shift])]
        return keys if all(map(table.takes_all, keys)) else None

    def _take(
        self, wish: Wish, key: QueueKey, start: int, wanted: int, wanting: np.ndarray, served: int, take: Take
    ) -> int | None:
        """Give messages of a queue to pops from number ``served`` on; return the offset after the last one, None if
        they cannot be read at once."""
        parts, state = self._parts, self._state
        room = max(kernel.RECORDS_BYTES - state[kernel.R_BYTES], 1)
        try:
            selection = PullSelection(wanted, room, None, None)
            pulled = parts.store.pulls.pull(key.topic, key.queue, start, selection, hot=True)
        except (WouldBlock, BrokerError, CorruptLog, DamagedRecord):
            return None
        if not pulled.count:
            return None
        body = np.frombuffer(pulled.body, np.uint8)
        self._bodies.append(pulled.body)
        if pulled.count > len(self._offsets.array):
            self._offsets = KernelBuffer(np.zeros(pulled.count, np.int64))
        pop_ms = parts.pops.table.pop_ms(key, take.now_ms)
        bytes_max = min(wish.bytes_max, parts.send_memory.answer_bytes())
        before = state[kernel.R_BYTES]
        given: int = kernel.share(
            self._array, body, body.ctypes.data, pulled.count, wanting, served, bytes_max, pop_ms, self._offsets.array
        )
        if not given:
            return None
        offsets = self._offsets.values[:given].tolist()
        end = pulled.next_offset if given == pulled.count else offsets[-1] + 1
        parts.pops.hand_out(key, start, offsets, end, take, pop_ms)
        traffic = parts.counters.pulled.of(key.topic)
        traffic.messages += given
        traffic.bytes += state[kernel.R_BYTES] - before - 4 * given
        return end

    def _end_of(self, key: QueueKey) -> int:
        return self._parts.store.queue_reads.max_offset(key.topic, key.queue)

    def _has_more(self, queues: list[QueueKey], take: Take) -> bool:
        """Return whether a queue could give messages to another consumer of the group."""
        for key in queues:
            start, room, blocked = self._parts.pops.table.look(key, take)
            if not blocked and room > 0 and start != self._end_of(key):
                return True
        return False

    def _settle(self, unsettled: set[int]) -> None:
        """Settle what was acknowledged, but for the receipts with these numbers."""
        end = self._state[kernel.R_RECEIPTS] * kernel.T_WIDTH
        columns = (self._receipts.array[column : end : kernel.T_WIDTH].tolist() for column in range(kernel.T_WIDTH))
        queues: dict[int, tuple[list[tuple[int, int]], list[int]]] = {}
        for number, (queue, offset, pop_ms) in enumerate(zip(*columns, strict=True)):
            if unsettled and number in unsettled:
                continue
            of_queue = queues.get(queue)
            if of_queue is None:
                queues[queue] = of_queue = ([], [])
            of_queue[0].append((offset, pop_ms))
            of_queue[1].append(number)
        for queue, (receipts, numbers) in queues.items():
            purpose = self._purposes[queue >> 32][0]
            # A queue below 0 is none, as one above 2**31 is none.
            key = QueueKey(purpose.group, purpose.topic, queue & 0xFFFFFFFF)
            valid = self._parts.pops.settle_of(key, receipts)
            self._valid.array[numbers] = valid
