"""The short way of PRODUCE frames: frames like earlier ones are served by a kernel, many at a time.

Most producers send frame after frame to the same topic. After the general handler has accepted a PRODUCE, what depends
on the constant bytes of its head alone is kept, and the next frames with these bytes need no msgpack, no request object
and no fields: ``kernels.short_sends`` makes their records and answers in one call. A connection that sends nothing else
*enters*: its transport reads no more, and the frames of all such connections are read, served and answered together,
once in a turn of the event loop, without any Python for a single frame.

The kernel takes a frame only if nothing could make its answer another than on the general way. It leaves all others as
they are, and a connection with a frame that was left, leaves:

====================================================== =============================================================
what could change the answer                           when it is looked at
====================================================== =============================================================
failed or full store, lost lead, stalled disk          once a call: no frame is taken
bytes in flight, of all connections and of this one    before each frame
a topic that is changed or deleted; a user's rights    when that happens: heads are *retired* until the general way
                                                       has accepted a frame again
bytes of the head, and the rules for messages          in each frame
messages that may be stored already                    in each frame, by the producer's sequence
no room in the file, or a write that fails             all frames of the call are left
TLS                                                    never enters; the short way serves what its transport reads
half of the descriptors are taken                      does not enter, likewise
end of the input, an error, a partial frame            the connection leaves
any other response on the connection, a slow reader    the connection leaves
a pull waits for a message                             in each frame; see ``short_pulls``
====================================================== =============================================================
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..int_table import IntTable
from ..kernels import short_sends as kernel
from ..store import Appended
from .short_pulls import ShortPulls
from .short_way import KernelBuffer, ShortWay

if TYPE_CHECKING:
    import asyncio

    from ...protocol.commands import ProduceRequest
    from ...protocol.errors import BrokerError
    from ..background.flush import FlushService
    from ..background.held_pulls import PullRequestHoldService
    from ..budgets import InFlightBudget
    from ..config import LimitsSection
    from ..delivery.deduplication import ProducerSequences
    from ..store import MessageStore, TopicConfig
    from .connected_client import ResponseQueue
    from .counters import Counters, NextQueues
    from .dispatch import DispatchScheduler
    from .short_way import ShortConnection

ENTER_AFTER = 4
"""Number of reads with nothing but served frames after which a connection enters."""


class SendParts(Protocol):
    """The parts of a broker that sends need."""

    store: MessageStore
    sequences: ProducerSequences
    next_queues: NextQueues
    counters: Counters
    dispatch: DispatchScheduler
    holds: PullRequestHoldService
    flush: FlushService
    in_flight: InFlightBudget
    limits: LimitsSection
    loop: asyncio.AbstractEventLoop
    produce_frame_bytes_max: int
    sync: bool


class ShortHead:
    """A head that was accepted before. Its row in the table of heads refers to the arrays here."""

    __slots__ = ("batch", "fixed", "key", "place", "topic")

    def __init__(self, store: MessageStore, fixed: bytes, params: ProduceRequest, place: int) -> None:
        self.place = place
        self.topic = params.topic
        self.key = params.unique_prefix, params.topic
        self.fixed = np.frombuffer(fixed, np.uint8)
        self.batch = store.commitlog.repeated_batch()


class WaitingAnswers:
    """The answers of one call that wait for a flush."""

    __slots__ = ("began", "count", "counted", "end_offset", "frames", "handed_over", "out", "reads")

    def __init__(self, sends: ShortSends, began: float) -> None:
        state = sends.state
        self.began = began
        self.end_offset = state[kernel.S_BASE] + state[kernel.R_BYTES]
        self.count = state[kernel.R_WAITING]
        self.counted = state[kernel.R_COUNTED]
        self.handed_over: list[ShortConnection] = []
        """Connections that have left, and send their part themselves."""
        self.reads = KernelBuffer(sends.reads.array[: state[kernel.R_READS] * kernel.E_WIDTH].copy())
        self.frames = KernelBuffer(sends.frames.array[: state[kernel.R_FRAMES] * kernel.F_WIDTH].copy())
        self.out = KernelBuffer(sends.out.array[: state[kernel.R_OUT]].copy())


class ShortSends(ShortWay):
    """The short way of one broker. Belongs to the event loop."""

    def __init__(self, parts: SendParts) -> None:
        super().__init__(parts.loop)
        self._parts = parts
        self.heads = IntTable(kernel.HEAD_WIDTH)
        self._heads: dict[int, ShortHead] = {}
        self._by_topic: dict[str, set[ShortHead]] = {}
        self._answers: deque[WaitingAnswers] = deque()
        """Answers that wait for a flush, in the order of the log."""
        self._array = np.zeros(kernel.S_LENGTH, np.int64)
        self._sending = np.zeros(kernel.S_LENGTH, np.int64)
        self.state = self._array.data
        self.reads = KernelBuffer(np.zeros(kernel.READS_MAX * kernel.E_WIDTH, np.int64))
        self.frames = KernelBuffer(np.zeros(kernel.FRAMES_MAX * kernel.F_WIDTH, np.int64))
        self.out = KernelBuffer(np.zeros(kernel.OUT_BYTES, np.uint8))
        self._reports = KernelBuffer(np.zeros(kernel.REPORTS_MAX * kernel.REPORT_WIDTH, np.int64))
        self._touched = KernelBuffer(np.zeros(kernel.TOPICS_MAX, np.int64))
        self._plan = KernelBuffer(np.zeros(kernel.PLAN_INTEGERS, np.int64))
        self._answer = KernelBuffer(np.frombuffer(bytearray(kernel.ANSWER), np.uint8))
        self._slots = KernelBuffer(np.zeros(kernel.READS_MAX * kernel.SLOT_BYTES, np.uint8))
        self._events = KernelBuffer(np.zeros(kernel.READS_MAX * kernel.EVENT_BYTES, np.uint8))
        self._input = KernelBuffer(np.zeros(1, np.uint8))
        self._is_unsent = False
        """The answers of the present turn that need not wait are still to be sent."""
        self._buffer = bytearray()
        """The buffer of ``_input``."""
        self._log = KernelBuffer(parts.store.commitlog.writer.array)
        self._pulled = KernelBuffer(np.frombuffer(bytearray(kernel.PULLED), np.uint8))
        self._response = KernelBuffer(np.zeros(kernel.RESPONSE_BYTES, np.uint8))
        self._given = KernelBuffer(np.zeros(kernel.FRAMES_MAX * kernel.G_WIDTH, np.int64))
        for slot, table in (
            (kernel.S_EVENTS, self._events),
            (kernel.S_LOG, self._log),
            (kernel.S_PULLED, self._pulled),
            (kernel.S_RESPONSE, self._response),
            (kernel.S_GIVEN, self._given),
            (kernel.S_PLAN, self._plan),
            (kernel.S_OUT, self.out),
            (kernel.S_ANSWER, self._answer),
            (kernel.S_READS, self.reads),
            (kernel.S_FRAMES, self.frames),
            (kernel.S_REPORTS, self._reports),
            (kernel.S_TOUCHED, self._touched),
        ):
            self.state[slot] = table.address
        self._read()
        store = parts.store
        self.pulls = ShortPulls(store, parts.holds, self._descriptors_max)
        store.topics.on_change, store.append_offsets.on_move = self.retire_topic, self._moved
        parts.holds.on_awaited = store.append_offsets.await_messages

    # ---- heads ----

    def keep(self, connection: int, fixed: bytes, params: ProduceRequest, config: TopicConfig) -> ShortHead:
        """Keep a head of the connection with this place, whose frame was the last that the log took."""
        place = self.heads.take()
        head = self._heads[place] = ShortHead(self._parts.store, fixed, params, place)
        self._by_topic.setdefault(head.topic, set()).add(head)
        values = self.heads.values
        values[place + kernel.HEAD_FIXED] = head.fixed.ctypes.data
        values[place + kernel.HEAD_FIXED_BYTES] = len(fixed)
        values[place + kernel.HEAD_NUMBERS] = head.batch.numbers.ctypes.data
        values[place + kernel.HEAD_TEXTS] = head.batch.texts.ctypes.data
        values[place + kernel.HEAD_QUEUE] = params.queue
        values[place + kernel.HEAD_SYNC] = params.flush == "sync"
        self._add_to_ring(connection, values, place)
        self.renew(head, config)
        return head

    def renew(self, head: ShortHead, config: TopicConfig) -> None:
        """Let frames with this head be taken, after the general way has accepted one. ``config``: its topic's."""
        parts, values = self._parts, self.heads.values
        prefix, name = head.key
        sequence = parts.sequences.sequence(prefix, name) if prefix else None
        values[head.place + kernel.HEAD_PREFIX] = bool(prefix)
        values[head.place + kernel.HEAD_SEQUENCE] = 0 if sequence is None else sequence.place
        values[head.place + kernel.HEAD_OWNER] = -1 if sequence is None else sequence.number
        # First, because the rows may move, which retires the heads of the topic.
        ends = parts.store.append_offsets.place(name, config.write_queues)
        topic = parts.next_queues.place(name)
        topics = parts.next_queues.table.values
        topics[topic + kernel.T_QUEUES] = config.write_queues
        topics[topic + kernel.T_ENDS] = ends
        values[head.place + kernel.HEAD_TOPIC] = topic

    def _moved(self, topic: str, queues: int) -> None:
        """Retire the heads of a topic whose rows have moved, and note again who waits for its queues."""
        self.retire_topic(topic)
        for queue in range(queues):
            if (topic, queue) in self._parts.holds.by_queue:
                self._parts.store.append_offsets.await_messages(topic, queue, 1)

    def retire_topic(self, topic: str) -> None:
        """Take no frame for a topic until the general way has accepted one with the same head."""
        # A copy: a follower that takes the primary's topics calls this on another thread.
        for head in list(self._by_topic.get(topic, ())):
            self.heads.values[head.place + kernel.HEAD_TOPIC] = -1

    def retire_all(self) -> None:
        """Take no frame until the general way has accepted one with the same head: the rights of users changed."""
        for place in list(self._heads):
            self.heads.values[place + kernel.HEAD_TOPIC] = -1

    def forget(self, connection: int, heads: list[ShortHead]) -> None:
        """Forget a closed connection and its heads."""
        for head in heads:
            del self._heads[head.place]
            self.heads.give_back(head.place)
            of_topic = self._by_topic[head.topic]
            of_topic.discard(head)
            if not of_topic:
                del self._by_topic[head.topic]
        self.connections.give_back(connection)

    # ---- a call ----

    def _begin(self, began: float) -> bool:
        """Tell the kernel of this moment; return False if no frame may be taken."""
        parts, state = self._parts, self.state
        store, commitlog = parts.store, parts.store.commitlog
        in_flight = parts.in_flight.bytes_max - parts.in_flight.bytes
        if store.failed is not None or store.refusal is not None or store.set_refusal is not None or in_flight < 0:
            state[kernel.S_ROOM] = 0
            return False
        file = commitlog.queue.files[-1]
        state[kernel.S_CONNECTIONS] = self.connections.address
        state[kernel.S_HEADS] = self.heads.address
        state[kernel.S_TOPICS] = parts.next_queues.table.address
        state[kernel.S_ENDS] = store.append_offsets.table.address
        state[kernel.S_SEQUENCES] = parts.sequences.tables.sequences.address
        state[kernel.S_RUNS] = parts.sequences.tables.runs.address
        state[kernel.S_BASE] = commitlog.write_offset
        state[kernel.S_FILE] = file.fd if commitlog.has_real_files else -1
        state[kernel.S_FILE_AT] = commitlog.write_offset - file.start_offset
        state[kernel.S_ROOM] = min(file.allocated - state[kernel.S_FILE_AT], kernel.LOG_BYTES)
        state[kernel.S_STORE_MS] = commitlog.next_store_ms()
        state[kernel.S_NOW_MS] = int(began * 1000)
        state[kernel.S_HELD], state[kernel.S_LOG_START] = self.pulls.table.address, self.pulls.log_start
        state[kernel.S_AWAITED] = parts.dispatch.may_wait_for_any()
        state[kernel.S_FRAME_BYTES_MAX] = parts.produce_frame_bytes_max
        state[kernel.S_IN_FLIGHT] = in_flight
        state[kernel.S_SYNC] = parts.sync
        return True

    def serve(self, place: int, buffer: bytearray, start: int, end: int, responses: ResponseQueue) -> int:
        """Serve the frames at the start of bytes that the connection at ``place`` has received, and give their answers
        to ``responses``. Returns the number of frames; ``taken`` is that of their bytes."""
        state, began = self.state, responses.turn_began
        if not self._begin(began):
            return 0
        if buffer is not self._buffer:
            self._buffer, self._input = buffer, KernelBuffer(np.frombuffer(buffer, np.uint8))
        state[kernel.S_EPOLL] = -1
        state[kernel.S_INPUT] = self._input.address
        state[kernel.S_ROW], state[kernel.S_AT], state[kernel.S_SIZE] = place, start, end - start
        waiting_max = self._parts.limits.connection_in_flight_bytes_max
        state[kernel.S_WAITING_MAX] = waiting_max - responses.unflushed_bytes
        if kernel.serve(self._array):
            self._store(began)
        self.connections.values[place + kernel.C_WAITING] = 0  # it is the queue of responses that counts them
        frames = state[kernel.R_FRAMES]
        if not frames:
            return 0
        if not state[kernel.R_WAITING] and not responses.unflushed:
            responses.written += frames
            responses.out.append(bytes(self.out.values[: state[kernel.R_OUT]]))
            return frames
        of, out, base = self.frames.values, self.out.values, state[kernel.S_BASE]
        for frame in range(0, frames * kernel.F_WIDTH, kernel.F_WIDTH):
            at = of[frame + kernel.F_OUT]
            answer = bytes(out[at : at + of[frame + kernel.F_OUT_BYTES]])
            if of[frame + kernel.F_WAITS]:
                end_offset = base + of[frame + kernel.F_END]
                responses.send_when_flushed(
                    of[frame + kernel.F_REQUEST_ID], of[frame + kernel.F_BYTES], answer, end_offset
                )
            else:
                responses.written += 1
                responses.send_in_order(answer)
        return frames

    @property
    def taken(self) -> int:
        """Number of bytes that the last ``serve`` took."""
        return self.reads.values[kernel.E_TAKEN]

    @property
    def waits(self) -> bool:
        """Whether answers of the last ``serve`` wait for a flush."""
        return bool(self.state[kernel.R_WAITING])

    def _store(self, began: float) -> None:
        """Append the records of this call that the kernel has not written, and tell everybody of all.

        If that fails, frames are taken back; those that are left are what the call has served.
        """
        state, parts = self.state, self._parts
        if not parts.store.append_made(state[kernel.R_WRITTEN], state[kernel.R_BYTES], state[kernel.S_STORE_MS]):
            self._take_back()
            if not state[kernel.R_FRAMES]:
                return
        reports, frames = self._reports.values, self.frames.values
        for report in range(0, state[kernel.R_REPORTS] * kernel.REPORT_WIDTH, kernel.REPORT_WIDTH):
            first, end, queue, offset, frame, is_new, before = reports[report : report + kernel.REPORT_WIDTH]
            key = self._heads[frames[frame + kernel.F_HEAD]].key
            parts.sequences.extended(key, (first, end, queue, offset) if is_new else None, before, began)
        if state[kernel.R_RUNS]:
            parts.sequences.make_room(state[kernel.R_RUNS])
        topics = parts.next_queues.table.values
        for touched in self._touched.values[: state[kernel.R_TOUCHED]]:
            place = self.heads.values[touched + kernel.HEAD_TOPIC]
            traffic = parts.counters.produced.of(self._heads[touched].topic)
            traffic.frames += topics[place + kernel.T_FRAMES]
            traffic.messages += topics[place + kernel.T_MESSAGES]
            traffic.bytes += topics[place + kernel.T_BYTES]
            topics[place + kernel.T_FRAMES] = topics[place + kernel.T_MESSAGES] = topics[place + kernel.T_BYTES] = 0
        if state[kernel.R_AWAITED]:
            self._tell_waiting()
        else:
            parts.dispatch.appended_unawaited()

    def _tell_waiting(self) -> None:
        state, frames, out = self.state, self.frames.values, self.out.values
        for frame in range(0, state[kernel.R_FRAMES] * kernel.F_WIDTH, kernel.F_WIDTH):
            if not frames[frame + kernel.F_AWAITED]:
                continue
            end = frames[frame + kernel.F_OUT] + frames[frame + kernel.F_OUT_BYTES]
            appended = Appended(
                frames[frame + kernel.F_OFFSET],
                state[kernel.S_STORE_MS],
                bytes(out[end - 8 * frames[frame + kernel.F_COUNT] : end]),
                state[kernel.S_BASE] + frames[frame + kernel.F_END],
            )
            topic = self._heads[frames[frame + kernel.F_HEAD]].topic
            self._parts.dispatch.appended_to(topic, frames[frame + kernel.F_QUEUE], appended)

    def _take_back(self) -> None:
        """Count the frames whose records were not written as not taken, the last first."""
        state, frames, parts = self.state, self.frames.values, self._parts
        heads, topics = self.heads.values, parts.next_queues.table.values
        ends, sequences = parts.store.append_offsets.table.values, parts.sequences.tables.sequences.values
        written = state[kernel.R_WRITTEN]
        while state[kernel.R_FRAMES]:
            frame = (state[kernel.R_FRAMES] - 1) * kernel.F_WIDTH
            if frames[frame + kernel.F_END] <= written:
                break
            state[kernel.R_FRAMES] -= 1
            head, queue = frames[frame + kernel.F_HEAD], frames[frame + kernel.F_QUEUE]
            topic = heads[head + kernel.HEAD_TOPIC]
            row = topics[topic + kernel.T_ENDS] + queue * kernel.O_WIDTH
            ends[row + kernel.O_NEXT] = frames[frame + kernel.F_OFFSET]
            topics[topic + kernel.T_FRAMES] -= 1
            topics[topic + kernel.T_MESSAGES] -= frames[frame + kernel.F_COUNT]
            topics[topic + kernel.T_BYTES] -= frames[frame + kernel.F_BODY_BYTES]
            if heads[head + kernel.HEAD_QUEUE] < 0:
                topics[topic + kernel.T_NEXT] = queue
            if heads[head + kernel.HEAD_PREFIX]:
                state[kernel.R_RUNS] -= frames[frame + kernel.F_RUN]
                sequence = heads[head + kernel.HEAD_SEQUENCE]
                before = frame + kernel.F_NEXT
                for column in range(kernel.F_BEFORE):
                    sequences[sequence + column] = frames[before + column]
        reports = self._reports.values
        while state[kernel.R_REPORTS]:
            report = (state[kernel.R_REPORTS] - 1) * kernel.REPORT_WIDTH
            if reports[report + kernel.REPORT_FRAME] < state[kernel.R_FRAMES] * kernel.F_WIDTH:
                break
            state[kernel.R_REPORTS] -= 1
        reads, rows = self.reads.values, self.connections.values
        for number in range(state[kernel.R_ANSWERED], state[kernel.R_READS]):
            read = number * kernel.E_WIDTH
            place = reads[read + kernel.E_ROW]
            rows[place + kernel.C_FRAMES] -= reads[read + kernel.E_FRAMES]
            rows[place + kernel.C_BYTES] -= reads[read + kernel.E_TAKEN]
            rows[place + kernel.C_WAITING] -= reads[read + kernel.E_COUNTED]
            reads[read + kernel.E_TAKEN] = reads[read + kernel.E_FRAMES] = reads[read + kernel.E_OUT_BYTES] = 0
        # Frames that wait are only among those of the last reads.
        state[kernel.R_BYTES], state[kernel.R_WAITING], state[kernel.R_COUNTED] = written, 0, 0
        state[kernel.R_LEFT] = 1

    # ---- the turn of the connections that have entered ----

    def leave(self, place: int, connection: ShortConnection, unsent: bytes = b"") -> None:
        """Read a connection no more; its transport sends its answers from now on, ``unsent`` first."""
        if self._is_unsent:
            unsent += self._not_sent(place)
        super().leave(place, connection, unsent)
        for answers in self._answers:
            self._hand_over(answers, place, connection)

    def leave_all(self) -> bool:
        """Let all connections leave, and all held pulls be answered by the loop, because descriptors are short; return
        whether there was one."""
        have_left = super().leave_all()
        return self.pulls.close_all() or have_left

    def _hand_over(self, answers: WaitingAnswers, place: int, connection: ShortConnection) -> None:
        """Move a connection's part of waiting answers to its own queue of responses."""
        reads, frames, out = answers.reads.values, answers.frames.values, answers.out.values
        first = 0
        for read in range(0, len(reads), kernel.E_WIDTH):
            count = reads[read + kernel.E_FRAMES]
            if (
                reads[read + kernel.E_ROW] == place
                and reads[read + kernel.E_OUT_BYTES]
                and reads[read + kernel.E_WAITS]
            ):
                answers.handed_over.append(connection)
                reads[read + kernel.E_OUT_BYTES] = 0
                counted = reads[read + kernel.E_COUNTED]
                answers.counted -= counted
                answers.count -= count
                self._parts.in_flight.bytes -= counted
                for number in range(first, first + count):
                    frame = number * kernel.F_WIDTH
                    at = frames[frame + kernel.F_OUT]
                    connection.responses.add_unflushed(
                        answers.end_offset,
                        bytes(out[at : at + frames[frame + kernel.F_OUT_BYTES]]),
                        frames[frame + kernel.F_REQUEST_ID],
                        frames[frame + kernel.F_BYTES],
                        answers.began,
                    )
            first += count

    def _not_sent(self, place: int) -> bytes:
        """Return the connection's answers of the present turn that need not wait, and send them no more."""
        reads = self.reads.values
        for number in range(self.state[kernel.R_ANSWERED], self.state[kernel.R_READS]):
            read = number * kernel.E_WIDTH
            if reads[read + kernel.E_ROW] == place and not reads[read + kernel.E_WAITS]:
                at, size = reads[read + kernel.E_OUT], reads[read + kernel.E_OUT_BYTES]
                reads[read + kernel.E_OUT_BYTES] = 0
                return bytes(self.out.values[at : at + size])
        return b""

    def waits_since(self, place: int) -> float:
        """Return when the oldest waiting answer arrived, perhaps another connection's; infinity if none of this one
        waits."""
        if not self.connections.values[place + kernel.C_WAITING] or not self._answers:
            return math.inf
        return self._answers[0].began

    def _turn(self) -> None:
        """Serve the connections that are ready."""
        state, parts = self.state, self._parts
        began = time.monotonic()
        self._begin(began)
        state[kernel.S_CONNECTIONS] = self.connections.address
        state[kernel.S_PLACES] = self._places.address
        state[kernel.S_EPOLL] = self._epoll.fileno()
        state[kernel.S_INPUT] = self._slots.address
        state[kernel.S_WAITING_MAX] = parts.limits.connection_in_flight_bytes_max
        kernel.serve(self._array)
        try:
            self._end_turn(began)
        except BaseException:
            # Better than frames that nobody answers: the producers send them again, to whom that can tell.
            for read in range(0, state[kernel.R_READS] * kernel.E_WIDTH, kernel.E_WIDTH):
                connection = self._entered.get(self.reads.values[read + kernel.E_ROW])
                if connection is not None:
                    connection.transport.abort()
            raise

    def _end_turn(self, began: float) -> None:
        """Do for all frames of the turn together what the kernel has not done."""
        state, parts = self.state, self._parts
        for number in range(0, state[kernel.R_GIVEN] * kernel.G_WIDTH, kernel.G_WIDTH):
            frame = self._given.values[number + kernel.G_FRAME]
            begin = self.frames.values[frame - kernel.F_WIDTH + kernel.F_END] if frame else 0
            record = self._log.values[begin : self.frames.values[frame + kernel.F_END]]
            self.pulls.given(self._given.values[number + kernel.G_HELD], record)
        sharing, reads = parts.dispatch.sharing, state[kernel.R_READS]
        sharing.turn(self, began)
        if reads > 1:
            sharing.alternated(began)
        if reads == kernel.READS_MAX or state[kernel.R_BYTES] > kernel.TURN_BYTES:
            # Others come first, and senders that outrun the dispatch or the disk wait for it.
            parts.loop.remove_reader(self._epoll.fileno())
            parts.dispatch.next_turn(self._read)
        if state[kernel.R_FRAMES]:
            self._store(began)
        left = self._left() if state[kernel.R_LEFT] else []
        if state[kernel.R_FRAMES]:
            self._answer_turn(began)
        for place, connection, data in left:
            if place in self._entered:
                self.leave(place, connection)
            connection.left_short_way(data)

    def _answer_turn(self, began: float) -> None:
        """Send the answers that the kernel has not sent, and let those that wait for a flush do so."""
        state, parts = self.state, self._parts
        waiting = state[kernel.R_WAITING]
        at_once = state[kernel.R_FRAMES] - waiting
        answers = WaitingAnswers(self, began) if waiting else None
        if answers is not None:
            self._answers.append(answers)
            parts.in_flight.bytes += answers.counted
        if parts.dispatch.awaited:
            self._is_unsent = state[kernel.R_ANSWERED] < state[kernel.R_READS]
            parts.dispatch.serve_waiting()  # before the senders' answers
            self._is_unsent = False
        if state[kernel.R_UNSENT]:
            self._unsent(self.reads.values, self.out.values, state[kernel.R_READS], waits=False)
        elif at_once and state[kernel.R_ANSWERED] < state[kernel.R_READS]:
            self._send(self.reads, self.out, state[kernel.R_ANSWERED], state[kernel.R_READS], waits=False)
        if at_once:
            parts.counters.produce_latencies.observe(time.monotonic() - began, at_once)
        if answers is not None:
            parts.flush.wait_for(answers.end_offset, self._flushed)

    def _flushed(self, error: BrokerError | None) -> None:
        """Send the oldest waiting answers."""
        answers = self._answers[0]
        if error is None:
            self._parts.in_flight.bytes -= answers.counted
            self._send(answers.reads, answers.out, 0, len(answers.reads.array) // kernel.E_WIDTH, waits=True)
            self._parts.counters.produce_latencies.observe(time.monotonic() - answers.began, answers.count)
        else:
            # Each connection answers its frames with the error by itself.
            reads = answers.reads.values
            for read in range(0, len(reads), kernel.E_WIDTH):
                place = reads[read + kernel.E_ROW]
                connection = self._entered.get(place)
                if connection is not None and reads[read + kernel.E_OUT_BYTES] and reads[read + kernel.E_WAITS]:
                    self.leave(place, connection)
                    connection.left_short_way(b"")
        self._answers.popleft()
        for connection in answers.handed_over:
            connection.responses.flushed(error)

    def _send(self, reads: KernelBuffer, out: KernelBuffer, answered: int, count: int, *, waits: bool) -> None:
        """Send the answers that wait for a flush, or the others, of ``count`` reads but the first ``answered``."""
        state = self._sending.data
        state[kernel.S_CONNECTIONS] = self.connections.address
        state[kernel.S_READS], state[kernel.S_OUT] = reads.address, out.address
        state[kernel.R_READS] = count
        state[kernel.R_ANSWERED], state[kernel.R_UNSENT] = answered, 0
        state[kernel.S_WAITING] = waits
        if kernel.send(self._sending):
            self._unsent(reads.values, out.values, count, waits)

    def _unsent(self, reads: memoryview, out: memoryview, count: int, waits: bool) -> None:
        """Let the transports of connections whose sockets take no more send the rest."""
        for read in range(0, count * kernel.E_WIDTH, kernel.E_WIDTH):
            size, sent = reads[read + kernel.E_OUT_BYTES], reads[read + kernel.E_SENT]
            if size == sent or bool(reads[read + kernel.E_WAITS]) != waits:
                continue
            place, at = reads[read + kernel.E_ROW], reads[read + kernel.E_OUT]
            connection = self._entered[place]
            reads[read + kernel.E_OUT_BYTES] = 0
            self.leave(place, connection, bytes(out[at + sent : at + size]))
            connection.left_short_way(b"")

    def _left(self) -> list[tuple[int, ShortConnection, bytes]]:
        """Return the connections with bytes that were not taken, and these bytes."""
        left, reads = [], self.reads.values
        for read in range(0, self.state[kernel.R_READS] * kernel.E_WIDTH, kernel.E_WIDTH):
            size, taken = reads[read + kernel.E_BYTES], reads[read + kernel.E_TAKEN]
            if size <= 0 or taken < size:
                place, at = reads[read + kernel.E_ROW], reads[read + kernel.E_AT]
                left.append((place, self._entered[place], bytes(self._slots.values[at + taken : at + max(size, 0)])))
        return left
