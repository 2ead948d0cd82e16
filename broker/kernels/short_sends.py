"""PRODUCE frames of many connections in one call: read, check, number, make records, build the answers, send them.

Between a short frame and its answer, Python would take longer than everything else together. ``serve`` handles the
frames of a turn of the event loop, each one with a head that the general way has accepted before (``HEAD_…``), exactly
as the general way would: it either takes a frame or leaves it, with all that its connection sent after it. It writes
the records to the log and sends the answers, unless the caller wants to do either.

Everything that Python owns, and both count in, is in tables of integers whose addresses are in one array: a call with
an argument for each would take longer than a frame does. Interpreted, there are no addresses, and nothing of this is
used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...protocol.errors import SUCCESS
from ...protocol.frames import (
    BEFORE_BORN,
    BEFORE_FIRST,
    HEAD_END,
    LENGTHS_BYTES,
    PRODUCE_BEGIN,
    REQUEST_ID_MAX,
    REQUEST_START,
    encode_produce_answer,
    encode_records_head,
)
from ...protocol.storage.arrays.jit import i64, i64_array, inlined, is_compiled, kernel
from ...protocol.storage.arrays.words import copy_bytes, load_be32, load_be64, store_be32, store_be64
from ...protocol.storage.layout import BLANK_BYTES_MIN
from .addresses import AVAILABLE
from .produce import (
    N_BASE,
    N_BODY_AT,
    N_BODY_END,
    N_BORN_MS,
    N_COUNT,
    N_LENGTH,
    N_QUEUE_ID,
    N_QUEUE_OFFSET,
    N_STORE_MS,
    N_UNIQUE_FIRST,
    OK,
    P_BODY_BYTES,
    P_PROPERTIES_BYTES,
    PLAN_WIDTH,
    plan_frame,
    record_bytes_fixed,
    write_record,
)

READS_MAX = 256
"""Maximum number of connections that are read in a turn; those left are ready again in the next."""
SLOT_BYTES = 8 * 1024
"""Maximum number of bytes that one connection is read in a turn."""
FRAMES_MAX = 1024
"""Maximum number of frames in a turn."""
PLAN_MESSAGES = 4096
"""Maximum number of messages in a frame."""
PLAN_INTEGERS = PLAN_MESSAGES * PLAN_WIDTH
TURN_BYTES = 256 * 1024
"""Bytes of records after which a turn is used up: other connections, timers and the dispatch are served first."""
OUT_BYTES = 256 * 1024
"""Room for the answers of a turn."""
EVENT_BYTES = 12
"""Size of an ``epoll_event`` on this processor."""
NEWEST_BYTES_MAX = 64 * 1024
"""Largest record that a held pull is given as soon as it is appended."""
LOG_BYTES = 1024 * 1024
"""Room for the records of a turn: the buffer of ``LogWriter``."""
TOPICS_MAX = FRAMES_MAX
REPORTS_MAX = FRAMES_MAX

# Slots of the array with everything: first the addresses of tables and buffers, then numbers of this turn, then
# results.
S_EVENTS = 0
S_CONNECTIONS = 1
S_HEADS = 2
S_TOPICS = 3
S_ENDS = 4
S_SEQUENCES = 5
S_INPUT = 6
S_LOG = 7
S_PLAN = 8
S_OUT = 9
S_ANSWER = 10
S_READS = 11
S_FRAMES = 12
S_REPORTS = 13
S_TOUCHED = 14
S_PLACES = 15
"""Place of the connection with each descriptor."""
S_RUNS = 16
S_HELD = 17
S_PULLED = 18
S_RESPONSE = 19
"""Room for one response to a pull."""
S_GIVEN = 20
S_EPOLL = 21
"""Descriptor of the epoll set; -1: the input is ``S_SIZE`` bytes of the connection ``S_ROW``."""
S_ROW = 22
S_AT = 23
S_SIZE = 24
S_ROOM = 25
"""Number of bytes of the log that records and the blank after them may take; 0: take nothing."""
S_BASE = 26
"""Physical offset of the next record."""
S_FILE = 27
"""Descriptor of the log's file; -1: the caller writes the records."""
S_FILE_AT = 28
"""Position of the next record in the file."""
S_AWAITED = 29
"""1 if clients wait for messages of any queue."""
S_LOG_START = 30
"""Physical offset at which the log begins; -1: no pull may be given a message."""
S_STORE_MS = 31
S_NOW_MS = 32
"""Monotonic time, which sequences are kept awake by."""
S_FRAME_BYTES_MAX = 33
S_WAITING_MAX = 34
"""Bytes of one connection that may wait for a flush; with more, it is read no further."""
S_IN_FLIGHT = 35
"""Bytes of all connections that may begin to wait for a flush in this turn."""
S_SYNC = 36
"""1 if every frame waits for a flush."""
S_WAITING = 37
"""1: ``send`` sends the answers that wait for a flush; 0: the others."""
R_READS = 38
R_FRAMES = 39
R_REPORTS = 40
R_TOUCHED = 41
R_BYTES = 42
"""Bytes of all records."""
R_WRITTEN = 43
"""Bytes of records that are in the file."""
R_ANSWERED = 44
"""Number of reads, the first ones, whose answers were sent, but for those that wait."""
R_UNSENT = 45
"""Number of reads with answers that their sockets did not take whole."""
R_OUT = 46
R_COUNTED = 47
"""Bytes in flight: frames and answers that begin to wait for a flush."""
R_WAITING = 48
"""Number of frames whose answers wait for a flush."""
R_LEFT = 49
"""Number of reads with bytes that were not taken."""
R_AWAITED = 50
"""Number of frames that clients may wait for."""
R_GIVEN = 51
R_RUNS = 52
"""Number of runs that began."""
S_LENGTH = 53

# Columns of a connection.
C_FD = 0
C_HEAD = 1
"""The head that the connection's last frame had; -1 if it has none."""
C_HEADS = 2
"""Number of its heads, which form a ring."""
C_WAITING = 3
"""Bytes that wait for a flush."""
C_FRAMES = 4
C_BYTES = 5
C_READS = 6
C_SENT = 7
"""Bytes of answers."""
C_WIDTH = 8

# Columns of a head.
HEAD_NEXT = 0
HEAD_FIXED = 1
HEAD_FIXED_BYTES = 2
HEAD_NUMBERS = 3
HEAD_TEXTS = 4
HEAD_TOPIC = 5
"""Place of the topic; -1: something has changed, and the general way has to accept the next frame."""
HEAD_QUEUE = 6
"""The queue; -1: the broker chooses."""
HEAD_PREFIX = 7
"""1 if the messages have unique keys; then the producer's sequence is looked at."""
HEAD_SEQUENCE = 8
HEAD_OWNER = 9
"""Number of the producer's sequence: the row may have become another's."""
HEAD_SYNC = 10
HEAD_WIDTH = 11

# Columns of a queue's row among the queue offsets.
O_NEXT = 0
"""Queue offset of its next message; -1: unknown since the start, or since a follower's log was copied."""
O_AWAITED = 1
"""0: no held pull waits for the queue; 1: one does; from 2 on: place of the only one, plus 2."""
O_WIDTH = 2

# Columns of a held pull that waits for the next message of its queue.
H_FD = 0
H_OFFSET = 1
H_LOG_START = 2
"""Physical offset at which the log began when the pull was held: ``H_MIN_OFFSET`` depends on it."""
H_MIN_OFFSET = 3
H_REQUEST_ID = 4
H_RECORD_BYTES_MAX = 5
H_SENT = 6
"""Number of bytes of the response that its socket took; -1: it was not given its message."""
H_WIDTH = 8

# Columns of a message that was given to a held pull.
G_HELD = 0
G_FRAME = 1
G_WIDTH = 2

# Columns of a topic.
T_NEXT = 0
"""The queue, before the remainder is taken, of the next frame that names none."""
T_QUEUES = 1
T_ENDS = 2
"""Place of its queue 0 among the queue offsets."""
T_FRAMES = 3
T_MESSAGES = 4
T_BYTES = 5
T_WIDTH = 6

# Columns of a sequence: see ``delivery.deduplication.Sequence``.
Q_NEXT = 0
"""Counter after the highest one stored; the end of the last run, whose row may say less."""
Q_PLACE = 1
"""Place of the last run."""
Q_OFFSET = 2
"""Queue offset at which the last run would continue."""
Q_WAKE_MS = 3
"""Time from which on a message is reported, so that the sequence moves in the order."""
Q_RUNS = 4
"""Number of its runs."""
Q_RUNS_MAX = 5
"""Number of runs that its block has room for, or may have."""
Q_BLOCK = 6
"""Place of its first run."""
Q_OWNER = 7
"""Number of the sequence; 0: the row is nobody's."""
Q_WIDTH = 8

# Columns of a run: messages with consecutive counters and queue offsets.
RUN_FIRST = 0
"""Counter of its first message."""
RUN_END = 1
"""Counter after that of its last message."""
RUN_PLACE = 2
"""Topic and queue that it is stored in, encoded as in ``ProducerSequences._other_topics``."""
RUN_OFFSET = 3
"""Queue offset of its first message."""
RUN_WIDTH = 4

# Columns of a read.
E_ROW = 0
E_AT = 1
E_BYTES = 2
"""Bytes that arrived; 0: the end; -1: it cannot be read, or should not be."""
E_TAKEN = 3
E_OUT = 4
E_OUT_BYTES = 5
E_FRAMES = 6
E_WAITS = 7
"""1 if the answers wait for a flush."""
E_SENT = 8
E_COUNTED = 9
E_WIDTH = 10

# Columns of a frame.
F_HEAD = 0
F_QUEUE = 1
F_OFFSET = 2
F_COUNT = 3
F_BYTES = 4
F_END = 5
"""Bytes of all records up to its last."""
F_REQUEST_ID = 6
F_OUT = 7
F_OUT_BYTES = 8
F_WAITS = 9
F_BODY_BYTES = 10
F_RUN = 11
"""1 if the frame begins a run of its sequence."""
F_AWAITED = 12
"""As ``O_AWAITED``; 0 also after the message was given."""
F_NEXT = 13
"""First of the sequence's columns as they were before the frame."""
F_BEFORE = 5
"""Number of these columns."""
F_WIDTH = 18

# Columns of a report: the run that begins with a frame and finds no room (``REPORT_NEW`` 1), or the first frame of a
# producer for a while.
REPORT_RUN = 0
REPORT_FRAME = 4
REPORT_NEW = 5
REPORT_BEFORE = 6
"""End of the run before it."""
REPORT_WIDTH = 7

WAITING_ANSWER_BYTES = 400
"""Memory of a response that waits for a flush besides its bytes; see ``ResponseQueue``."""

_FIRST_MAX = 2**48 - 1
_U32 = 0xFFFFFFFF
_ORDER_MS = 1000
_HEAD_END_BYTES = HEAD_END.size
_START_BYTES = REQUEST_START.size
_BEGIN = int.from_bytes(PRODUCE_BEGIN, "big", signed=True)
_NAMES = np.frombuffer(BEFORE_FIRST + BEFORE_BORN, np.uint8).copy()
_FIRST_NAME_BYTES = len(BEFORE_FIRST)
_BORN_NAME_BYTES = len(BEFORE_BORN)


def _place(answer: bytes, other: bytes) -> int:
    """Return where an answer differs from one whose numbers are all 0."""
    return next(at for at, byte in enumerate(other) if byte != answer[at])


ANSWER = encode_produce_answer(0, 0, 0, 0, b"")
"""The answer to a frame, without its numbers and physical offsets."""
_ANSWER_BYTES = len(ANSWER)
_ANSWER_ID = _place(ANSWER, encode_produce_answer(1 << 24, 0, 0, 0, b""))
_ANSWER_QUEUE = _place(ANSWER, encode_produce_answer(0, 1 << 24, 0, 0, b""))
_ANSWER_OFFSET = _place(ANSWER, encode_produce_answer(0, 0, 1 << 56, 0, b""))
_ANSWER_STORED = _place(ANSWER, encode_produce_answer(0, 0, 0, 1 << 56, b""))

PULLED = encode_records_head(SUCCESS, 0, 1, 0, 0, 0, 0)
"""The head of the response to a pull with one record, without its numbers."""
PULLED_BYTES = len(PULLED)
_PULLED_ID = _place(PULLED, encode_records_head(SUCCESS, 1 << 24, 1, 0, 0, 0, 0))
_PULLED_NEXT = _place(PULLED, encode_records_head(SUCCESS, 0, 1, 1 << 56, 0, 0, 0))
_PULLED_MIN = _place(PULLED, encode_records_head(SUCCESS, 0, 1, 0, 1 << 56, 0, 0))
_PULLED_MAX = _place(PULLED, encode_records_head(SUCCESS, 0, 1, 0, 0, 1 << 56, 0))
SIZE_BYTES = 4
_BODY_AT = PULLED_BYTES + SIZE_BYTES
RESPONSE_BYTES = _BODY_AT + NEWEST_BYTES_MAX

if AVAILABLE:
    from numba import types

    from .addresses import (
        AGAIN,
        MANY,
        NO_SIGNAL,
        NO_WAIT,
        bytes_at,
        epoll_wait,
        errno_location,
        integers_at,
        memcmp,
        recv,
        words_at,
    )
    from .addresses import send as send_to

    _pwrite: Any = types.ExternalFunction("pwrite", types.intp(types.int32, types.intp, types.intp, types.int64))

    @inlined
    def _find_head(state: np.ndarray, connection: int, fixed_at: int, fixed_bytes: int) -> int:
        """Return the place of the connection's head with these constant bytes; -1 if it has none."""
        connections = integers_at(state[S_CONNECTIONS], MANY)
        heads = integers_at(state[S_HEADS], MANY)
        head = connections[connection + C_HEAD]
        address = state[S_INPUT] + fixed_at
        for _ in range(connections[connection + C_HEADS]):
            # A producer that takes its queues in turn repeats its heads in their order.
            if heads[head + HEAD_FIXED_BYTES] == fixed_bytes and (
                memcmp(heads[head + HEAD_FIXED], address, fixed_bytes) == 0
            ):
                return head
            head = heads[head + HEAD_NEXT]
        return -1

    @inlined
    def _names_match(data: np.ndarray, at: int) -> bool:
        """Return whether the constant parts between the numbers at the end of a head are as usual."""
        for k in range(_FIRST_NAME_BYTES):
            if data[at + 4 + k] != _NAMES[k]:
                return False
        born_at = at + 4 + _FIRST_NAME_BYTES + 8
        for k in range(_BORN_NAME_BYTES):  # noqa: SIM110 - a generator cannot be compiled
            if data[born_at + k] != _NAMES[_FIRST_NAME_BYTES + k]:
                return False
        return True

    @inlined
    def _take(state: np.ndarray, data: np.ndarray, connection: int, read: int, at: int, end: int) -> int:
        """Take the frame at ``at`` and return its size; 0: leave it, and nothing has changed."""
        connections = integers_at(state[S_CONNECTIONS], MANY)
        if (
            end - at < _START_BYTES + _HEAD_END_BYTES
            or state[R_FRAMES] == FRAMES_MAX
            or state[R_COUNTED] > state[S_IN_FLIGHT]
            or connections[connection + C_WAITING] > state[S_WAITING_MAX]
        ):
            return 0
        frame_bytes = 4 + (load_be32(data, at) & _U32)
        body_at = at + LENGTHS_BYTES + (load_be32(data, at + 4) & _U32)
        body_end = at + frame_bytes
        request_id = load_be32(data, at + 12) & _U32
        numbers_at = body_at - _HEAD_END_BYTES
        fixed_at = at + _START_BYTES
        if (
            body_at > body_end
            or body_end > end
            or frame_bytes > state[S_FRAME_BYTES_MAX]
            or request_id > REQUEST_ID_MAX
            or load_be32(data, at + 8) != _BEGIN
            or numbers_at <= fixed_at
        ):
            return 0
        head = _find_head(state, connection, fixed_at, numbers_at - fixed_at)
        if head < 0 or not _names_match(data, numbers_at):
            return 0
        count = load_be32(data, numbers_at) & _U32
        first = load_be64(data, numbers_at + 4 + _FIRST_NAME_BYTES)
        born_ms = load_be64(data, body_at - 8)
        if count < 1 or count > PLAN_MESSAGES or first < 0 or first > _FIRST_MAX or born_ms < 0:
            return 0
        out_bytes = _ANSWER_BYTES + 8 * count
        if state[R_OUT] + out_bytes > OUT_BYTES or _is_stored(state, head, first):
            return 0
        heads = integers_at(state[S_HEADS], MANY)
        topics = integers_at(state[S_TOPICS], MANY)
        topic = heads[head + HEAD_TOPIC]
        queue = heads[head + HEAD_QUEUE]
        if topic < 0 or queue >= topics[topic + T_QUEUES]:
            return 0
        if queue < 0:
            queue = topics[topic + T_NEXT] % topics[topic + T_QUEUES]
        queue_offset = integers_at(state[S_ENDS], MANY)[topics[topic + T_ENDS] + queue * O_WIDTH + O_NEXT]
        if queue_offset < 0:
            return 0

        numbers = integers_at(heads[head + HEAD_NUMBERS], N_LENGTH)
        numbers[N_BODY_AT] = body_at
        numbers[N_BODY_END] = body_end
        numbers[N_COUNT] = count
        numbers[N_UNIQUE_FIRST] = first
        numbers[N_QUEUE_ID] = queue
        numbers[N_QUEUE_OFFSET] = queue_offset
        numbers[N_BORN_MS] = born_ms if born_ms != 0 else state[S_STORE_MS]
        numbers[N_STORE_MS] = state[S_STORE_MS]
        numbers[N_BASE] = state[S_BASE]
        if not _make_records(state, data, head, numbers):
            return 0
        _make_answer(state, request_id, queue, queue_offset, count)
        frame = state[R_FRAMES] * F_WIDTH
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        frames[frame + F_HEAD] = head
        frames[frame + F_QUEUE] = queue
        frames[frame + F_OFFSET] = queue_offset
        frames[frame + F_COUNT] = count
        frames[frame + F_BYTES] = frame_bytes
        frames[frame + F_END] = state[R_BYTES]
        frames[frame + F_REQUEST_ID] = request_id
        frames[frame + F_OUT] = state[R_OUT]
        frames[frame + F_OUT_BYTES] = out_bytes
        state[R_OUT] += out_bytes
        state[R_FRAMES] += 1
        connections[connection + C_HEAD] = head
        _count_messages(state, frame, body_end - body_at)
        _extend_sequence(state, frame, first)
        _let_wait(state, frame, connection, read)
        return frame_bytes

    @inlined
    def _is_stored(state: np.ndarray, head: int, first: int) -> bool:
        """Return whether messages from counter ``first`` on may be stored; True also if their sequence is forgotten."""
        heads = integers_at(state[S_HEADS], MANY)
        if heads[head + HEAD_PREFIX] == 0:
            return False
        sequences = integers_at(state[S_SEQUENCES], MANY)
        sequence = heads[head + HEAD_SEQUENCE]
        return sequences[sequence + Q_OWNER] != heads[head + HEAD_OWNER] or first < sequences[sequence + Q_NEXT]

    @inlined
    def _make_records(state: np.ndarray, data: np.ndarray, head: int, numbers: np.ndarray) -> bool:
        """Make the frame's records behind those before, and write their physical offsets into its answer; return False,
        and make none, if a message breaks a rule or if there is no room."""
        texts = bytes_at(integers_at(state[S_HEADS], MANY)[head + HEAD_TEXTS], MANY)
        plan = integers_at(state[S_PLAN], PLAN_INTEGERS)
        status, _, _ = plan_frame(data, numbers, plan)
        if status != OK:
            return False
        fixed = record_bytes_fixed(numbers)
        position = state[R_BYTES]
        room = state[S_ROOM] - BLANK_BYTES_MIN - position
        for message in range(numbers[N_COUNT]):
            row = message * PLAN_WIDTH
            room -= fixed + plan[row + P_PROPERTIES_BYTES] + plan[row + P_BODY_BYTES]
        if room < 0:
            return False
        log = bytes_at(state[S_LOG], LOG_BYTES)
        out = bytes_at(state[S_OUT], OUT_BYTES)
        for message in range(numbers[N_COUNT]):
            row = message * PLAN_WIDTH
            size = fixed + plan[row + P_PROPERTIES_BYTES] + plan[row + P_BODY_BYTES]
            write_record(data, numbers, texts, plan, message, log, position, size)
            store_be64(out, state[R_OUT] + _ANSWER_BYTES + 8 * message, numbers[N_BASE] + position)
            position += size
        state[R_BYTES] = position
        return True

    @inlined
    def _make_answer(state: np.ndarray, request_id: int, queue: int, queue_offset: int, count: int) -> None:
        """Build the head of the answer to a frame; ``count`` physical offsets follow it."""
        out = bytes_at(state[S_OUT], OUT_BYTES)
        at = state[R_OUT]
        copy_bytes(bytes_at(state[S_ANSWER], _ANSWER_BYTES), 0, out, at, _ANSWER_BYTES)
        store_be32(out, at, _ANSWER_BYTES - 4 + 8 * count)
        store_be32(out, at + _ANSWER_ID, request_id)
        store_be32(out, at + _ANSWER_QUEUE, queue)
        store_be64(out, at + _ANSWER_OFFSET, queue_offset)
        store_be64(out, at + _ANSWER_STORED, state[S_STORE_MS])

    @inlined
    def _count_messages(state: np.ndarray, frame: int, body_bytes: int) -> None:
        """Advance the queue, and the counters of the topic."""
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        heads = integers_at(state[S_HEADS], MANY)
        topics = integers_at(state[S_TOPICS], MANY)
        ends = integers_at(state[S_ENDS], MANY)
        head, queue, count = frames[frame + F_HEAD], frames[frame + F_QUEUE], frames[frame + F_COUNT]
        frames[frame + F_BODY_BYTES], frames[frame + F_RUN] = body_bytes, 0
        topic = heads[head + HEAD_TOPIC]
        if heads[head + HEAD_QUEUE] < 0:
            topics[topic + T_NEXT] = queue + 1
        row = topics[topic + T_ENDS] + queue * O_WIDTH
        ends[row + O_NEXT] = frames[frame + F_OFFSET] + count
        frames[frame + F_AWAITED] = 1 if state[S_AWAITED] != 0 else ends[row + O_AWAITED]
        if frames[frame + F_AWAITED] != 0:
            state[R_AWAITED] += 1
        if topics[topic + T_FRAMES] == 0:
            integers_at(state[S_TOUCHED], TOPICS_MAX)[state[R_TOUCHED]] = head
            state[R_TOUCHED] += 1
        topics[topic + T_FRAMES] += 1
        topics[topic + T_MESSAGES] += count
        topics[topic + T_BYTES] += body_bytes

    @inlined
    def _let_wait(state: np.ndarray, frame: int, connection: int, read: int) -> None:
        """Count the frame and its answer as in flight if the answer waits for a flush, or for one before it."""
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        waits = state[S_SYNC] | integers_at(state[S_HEADS], MANY)[frames[frame + F_HEAD] + HEAD_SYNC]
        frames[frame + F_WAITS] = waits
        reads[read + E_WAITS] |= waits
        if reads[read + E_WAITS] != 0:
            counted = frames[frame + F_BYTES] + frames[frame + F_OUT_BYTES] + WAITING_ANSWER_BYTES
            reads[read + E_COUNTED] += counted
            integers_at(state[S_CONNECTIONS], MANY)[connection + C_WAITING] += counted
            state[R_COUNTED] += counted

    @inlined
    def _set_run(to: np.ndarray, at: int, first: int, end: int, queue: int, offset: int) -> None:
        to[at + RUN_FIRST] = first
        to[at + RUN_END] = end
        to[at + RUN_PLACE] = queue
        to[at + RUN_OFFSET] = offset

    @inlined
    def _extend_sequence(state: np.ndarray, frame: int, first: int) -> None:
        """Add a frame's messages to the sequence of their producer, as ``Sequence.add`` does."""
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        heads = integers_at(state[S_HEADS], MANY)
        head = frames[frame + F_HEAD]
        if heads[head + HEAD_PREFIX] == 0:
            return
        sequences = integers_at(state[S_SEQUENCES], MANY)
        sequence = heads[head + HEAD_SEQUENCE]
        for column in range(F_BEFORE):
            frames[frame + F_NEXT + column] = sequences[sequence + column]
        queue, offset = frames[frame + F_QUEUE], frames[frame + F_OFFSET]
        end = first + frames[frame + F_COUNT]
        continues = (
            first == sequences[sequence + Q_NEXT]
            and queue == sequences[sequence + Q_PLACE]
            and offset == sequences[sequence + Q_OFFSET]
        )
        if not continues:
            state[R_RUNS] += 1
            frames[frame + F_RUN] = 1
        count = sequences[sequence + Q_RUNS]
        has_row = continues or count < sequences[sequence + Q_RUNS_MAX]
        if not continues and has_row:
            runs = integers_at(state[S_RUNS], MANY)
            row = sequences[sequence + Q_BLOCK] + count * RUN_WIDTH
            if count > 0:
                runs[row - RUN_WIDTH + RUN_END] = sequences[sequence + Q_NEXT]
            _set_run(runs, row, first, end, queue, offset)
            sequences[sequence + Q_RUNS] = count + 1
        if not has_row or state[S_NOW_MS] > sequences[sequence + Q_WAKE_MS]:
            reports = integers_at(state[S_REPORTS], REPORTS_MAX * REPORT_WIDTH)
            report = state[R_REPORTS] * REPORT_WIDTH
            _set_run(reports, report + REPORT_RUN, first, end, queue, offset)
            reports[report + REPORT_FRAME] = frame
            reports[report + REPORT_NEW] = 0 if has_row else 1
            reports[report + REPORT_BEFORE] = sequences[sequence + Q_NEXT]
            state[R_REPORTS] += 1
            sequences[sequence + Q_WAKE_MS] = state[S_NOW_MS] + _ORDER_MS
        sequences[sequence + Q_NEXT] = end
        sequences[sequence + Q_PLACE] = queue
        sequences[sequence + Q_OFFSET] = offset + end - first

    @inlined
    def _serve_read(state: np.ndarray, data: np.ndarray, read: int) -> None:
        """Take the frames of one read until one must be left."""
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        connections = integers_at(state[S_CONNECTIONS], MANY)
        connection = reads[read + E_ROW]
        at = reads[read + E_AT]
        end = at + reads[read + E_BYTES]
        reads[read + E_OUT] = state[R_OUT]
        reads[read + E_SENT] = reads[read + E_COUNTED] = 0
        # Behind answers that wait, others wait too: they are sent in the order of their frames.
        reads[read + E_WAITS] = 1 if connections[connection + C_WAITING] > 0 else 0
        first = state[R_FRAMES]
        while at < end:
            taken = _take(state, data, connection, read, at, end)
            if taken == 0:
                break
            at += taken
        frames = state[R_FRAMES] - first
        taken = at - reads[read + E_AT]
        reads[read + E_TAKEN] = taken
        reads[read + E_FRAMES] = frames
        reads[read + E_OUT_BYTES] = state[R_OUT] - reads[read + E_OUT]
        connections[connection + C_FRAMES] += frames
        connections[connection + C_BYTES] += taken
        if frames > 0 and reads[read + E_WAITS] != 0:
            state[R_WAITING] += frames
        if at < end or reads[read + E_BYTES] <= 0:
            state[R_LEFT] += 1

    @inlined
    def _read_ready(state: np.ndarray) -> None:
        """Read and serve the connections that are ready now."""
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        data = bytes_at(state[S_INPUT], MANY)
        connections = integers_at(state[S_CONNECTIONS], MANY)
        places = integers_at(state[S_PLACES], MANY)
        events = words_at(state[S_EVENTS], READS_MAX * 3)
        most = np.int32(READS_MAX - state[R_READS])
        for k in range(epoll_wait(np.int32(state[S_EPOLL]), state[S_EVENTS], most, np.int32(0))):
            connection = places[events[3 * k + 1]]
            read = state[R_READS] * E_WIDTH
            at = 0
            if read > 0:  # behind the bytes before: slots of one size would share a few lines of the cache
                at = (reads[read - E_WIDTH + E_AT] + max(reads[read - E_WIDTH + E_BYTES], 0) + 63) & ~63
            got = -1
            if state[S_ROOM] > 0 and connections[connection + C_WAITING] <= state[S_WAITING_MAX]:
                fd = np.int32(connections[connection + C_FD])
                got = recv(fd, state[S_INPUT] + at, SLOT_BYTES, np.int32(NO_WAIT))
                if got < 0 and errno_location()[0] == AGAIN:
                    continue
            reads[read + E_ROW] = connection
            reads[read + E_AT] = at
            reads[read + E_BYTES] = got
            state[R_READS] += 1
            connections[connection + C_READS] += 1
            _serve_read(state, data, read)

    @inlined
    def _write_records(state: np.ndarray) -> bool:
        """Write the records that are not in the file yet; return False if the caller has to."""
        size = state[R_BYTES] - state[R_WRITTEN]
        if size == 0:
            return True
        if state[S_FILE] < 0:
            return False
        written = state[R_WRITTEN]
        if _pwrite(np.int32(state[S_FILE]), state[S_LOG] + written, size, state[S_FILE_AT] + written) != size:
            return False
        state[R_WRITTEN] = state[R_BYTES]
        return True

    @inlined
    def _give_messages(state: np.ndarray, first: int) -> None:
        """Answer the held pulls that wait for just the messages of the frames from ``first`` on."""
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        held = integers_at(state[S_HELD], MANY)
        response = bytes_at(state[S_RESPONSE], RESPONSE_BYTES)
        given = integers_at(state[S_GIVEN], FRAMES_MAX * G_WIDTH)
        for number in range(first, state[R_FRAMES]):
            frame = number * F_WIDTH
            row = frames[frame + F_AWAITED] - 2
            if row < 0 or frames[frame + F_COUNT] != 1 or frames[frame + F_WAITS] != 0:
                continue
            begin = 0 if number == 0 else frames[frame - F_WIDTH + F_END]
            size = frames[frame + F_END] - begin
            offset = frames[frame + F_OFFSET]
            if (
                held[row + H_SENT] >= 0
                or held[row + H_OFFSET] != offset
                or held[row + H_LOG_START] != state[S_LOG_START]
                or size > held[row + H_RECORD_BYTES_MAX]
            ):
                continue
            copy_bytes(bytes_at(state[S_PULLED], PULLED_BYTES), 0, response, 0, PULLED_BYTES)
            store_be32(response, 0, _BODY_AT - 4 + size)
            store_be32(response, _PULLED_ID, held[row + H_REQUEST_ID])
            store_be64(response, _PULLED_NEXT, offset + 1)
            store_be64(response, _PULLED_MIN, held[row + H_MIN_OFFSET])
            store_be64(response, _PULLED_MAX, offset + 1)
            store_be32(response, PULLED_BYTES, size)
            copy_bytes(bytes_at(state[S_LOG], LOG_BYTES), begin, response, _BODY_AT, size)
            fd = np.int32(held[row + H_FD])
            sent = send_to(fd, state[S_RESPONSE], _BODY_AT + size, np.int32(NO_WAIT | NO_SIGNAL))
            held[row + H_SENT] = max(sent, 0)
            given[state[R_GIVEN] * G_WIDTH + G_HELD] = row
            given[state[R_GIVEN] * G_WIDTH + G_FRAME] = frame
            state[R_GIVEN] += 1
            frames[frame + F_AWAITED] = 0
            state[R_AWAITED] -= 1

    @inlined
    def _send_answers(state: np.ndarray) -> None:
        """Send the answers of the reads that were not answered; see ``send``."""
        connections = integers_at(state[S_CONNECTIONS], MANY)
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        for k in range(state[R_ANSWERED], state[R_READS]):
            read = k * E_WIDTH
            size = reads[read + E_OUT_BYTES]
            if size == 0 or (reads[read + E_WAITS] != 0) != (state[S_WAITING] != 0):
                continue
            connection = reads[read + E_ROW]
            fd = np.int32(connections[connection + C_FD])
            sent = send_to(fd, state[S_OUT] + reads[read + E_OUT], size, np.int32(NO_WAIT | NO_SIGNAL))
            connections[connection + C_WAITING] -= reads[read + E_COUNTED]
            reads[read + E_SENT] = max(sent, 0)
            connections[connection + C_SENT] += max(sent, 0)
            if sent != size:
                state[R_UNSENT] += 1
        state[R_ANSWERED] = state[R_READS]

    @kernel(i64, i64_array)
    def serve(state: np.ndarray) -> int:
        """Serve the connections of an epoll set that are ready, or given bytes of one; return the number of frames.

        Fills the tables of reads, frames, reports and touched topics, the buffers of records and answers, and ``R_…``.
        Of an epoll set, it also sends the answers that need not wait once their records are written, unless a client
        may wait for one of the messages, who gets it first. Then it goes on with the connections that are ready by now:
        what the caller does once a turn is shared by more frames.
        """
        for k in range(R_READS, S_LENGTH):
            state[k] = 0
        if state[S_EPOLL] < 0:
            reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
            reads[E_ROW] = state[S_ROW]
            reads[E_AT] = state[S_AT]
            reads[E_BYTES] = state[S_SIZE]
            state[R_READS] = 1
            _serve_read(state, bytes_at(state[S_INPUT], MANY), 0)
            _write_records(state)
            return state[R_FRAMES]
        while True:
            before, first = state[R_READS], state[R_FRAMES]
            _read_ready(state)
            if not _write_records(state):
                break
            if state[R_AWAITED] > 0:
                _give_messages(state, first)
                if state[R_AWAITED] > 0:
                    break
            _send_answers(state)
            if (
                state[R_READS] - before < 2  # whoever sends next needs time to wake up
                or state[R_READS] == READS_MAX
                or state[R_BYTES] > TURN_BYTES
                or state[R_LEFT] + state[R_UNSENT] + state[R_WAITING] > 0
            ):
                break
        return state[R_FRAMES]

    @kernel(i64, i64_array)
    def send(state: np.ndarray) -> int:
        """Send the answers of the reads from ``R_ANSWERED`` on that do not wait, or with ``S_WAITING`` those that do.

        ``E_SENT`` says how far the sockets took them. Returns the number of reads whose answers were not sent whole.
        """
        _send_answers(state)
        return state[R_UNSENT]


def is_ready() -> bool:
    """Return whether ``serve`` and ``send`` can be called: they are compiled."""
    return AVAILABLE and is_compiled(serve) and is_compiled(send)
