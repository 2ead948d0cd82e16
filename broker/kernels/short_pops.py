"""POP_MESSAGE and ACK_MESSAGE frames of many connections in one call: read them; build the answers and send them.

``receive`` reads the connections of an epoll set that are ready, and notes each frame with a head that the general way
has accepted before (``H_…``): what it asks for, or its receipts. The caller decides what each gets, with ``share`` for
the records of a queue, and writes that down; then ``answer`` builds and sends the answers.

As in ``short_sends``, tables and buffers are known by their addresses, which are in one array.
"""

from __future__ import annotations

import numpy as np

from ...protocol.commands import ACK_MESSAGE, POP_COUNT_MAX, POP_MESSAGE, RECEIPT_STRUCT, RECEIPTS_MAX
from ...protocol.errors import SUCCESS
from ...protocol.frames import ARRAY_OF_4, LENGTHS_BYTES, MAPS, REQUEST, RESPONSE, UINT32
from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, inlined, is_compiled, kernel
from ...protocol.storage.arrays.words import copy_bytes, load_be32, load_be64, store_be16, store_be32, store_be64
from ...protocol.storage.layout import RECORD
from .addresses import AVAILABLE
from .msgpack_reader import read_i32
from .short_sends import (
    C_BYTES,
    C_FD,
    C_FRAMES,
    C_HEAD,
    C_HEADS,
    C_READS,
    C_SENT,
    E_AT,
    E_BYTES,
    E_FRAMES,
    E_OUT,
    E_OUT_BYTES,
    E_ROW,
    E_SENT,
    E_TAKEN,
    E_WAITS,
    E_WIDTH,
    READS_MAX,
    SLOT_BYTES,
)

FRAMES_MAX = 1024
"""Maximum number of frames in a turn."""
TURN_RECEIPTS_MAX = 16_384
"""Maximum number of receipts in a turn."""
OUT_BYTES = 1024 * 1024
"""Room for the answers of a turn."""
RECORDS_BYTES = OUT_BYTES - FRAMES_MAX * 64 - TURN_RECEIPTS_MAX
"""Room for sizes and records: the rest of an answer takes at most 64 bytes, and one for each receipt."""

# Slots of the array with everything: first the addresses of tables and buffers, then results.
S_EVENTS = 0
S_CONNECTIONS = 1
S_HEADS = 2
S_INPUT = 3
S_OUT = 4
S_READS = 5
S_FRAMES = 6
S_RECEIPTS = 7
S_VALID = 8
"""A byte for each receipt, 1 if it is that of its message's current delivery: the body of an answer."""
S_PLACES = 9
"""Place of the connection with each descriptor."""
S_EPOLL = 10
R_READS = 11
R_FRAMES = 12
R_RECEIPTS = 13
R_LEFT = 14
"""Number of reads with bytes that were not taken."""
R_BYTES = 15
"""Bytes of the sizes and records that were shared out."""
R_SERVED = 16
"""Number of frames that the last ``share`` has served."""
R_POPS = 17
R_ACKS = 18
"""Number of answers of each kind."""
S_LENGTH = 19

POP, ACK = 0, 1

# Columns of a head. Its fields are ``H_PREFIX``, the count, ``H_SUFFIX``; or ``H_PREFIX`` alone, with ``H_COUNT``.
H_NEXT = 0
H_KIND = 1
H_LIVE = 2
"""0: something has changed, and the general way has to accept the next frame."""
H_PREFIX = 3
H_PREFIX_BYTES = 4
H_SUFFIX = 5
H_SUFFIX_BYTES = 6
H_COUNT = 7
"""-1: it is in the frame."""
H_PURPOSE = 8
"""Number of what its frames ask for: equal for all heads that ask for the same."""
H_WIDTH = 9

# Columns of a frame.
F_KIND = 0
F_HEAD = 1
F_READ = 2
F_REQUEST_ID = 3
F_COUNT = 4
"""Messages that are wanted, or receipts."""
F_AT = 5
"""Position in the input."""
F_RECEIPT = 6
"""Number of its first receipt."""
F_ANSWERED = 7
"""1: it gets an answer; 0: it is left to the general way."""
F_FOUND = 8
"""Number of messages that it gets."""
F_POP_MS = 9
F_SOURCE = 10
"""Address of the sizes and records that the messages are among."""
F_SIZES_AT = 11
F_RECORDS_AT = 12
F_RECORDS_BYTES = 13
F_PURPOSE = 14
F_WIDTH = 15

# Columns of a receipt.
T_QUEUE = 0
"""``H_PURPOSE`` in the upper half, the queue in the lower."""
T_OFFSET = 1
T_POP_MS = 2
T_WIDTH = 3

_U32 = 0xFFFFFFFF
_BEGIN = int.from_bytes(ARRAY_OF_4 + bytes([REQUEST]) + UINT32, "big")
"""First bytes of a request whose code takes 32 bits."""
_CODE_AT = LENGTHS_BYTES + 3
_ID_AT = _CODE_AT + 4
_RECEIPT_BYTES = RECEIPT_STRUCT.size
_QUEUE_OFFSET_AT = RECORD.at["queue_offset"]
_POP_CODE, _ACK_CODE = POP_MESSAGE.code, ACK_MESSAGE.code
assert min(_POP_CODE, _ACK_CODE) > 0xFFFF


def _text(text: str) -> bytes:
    """Return the msgpack of a short text."""
    return bytes([0xA0 | len(text)]) + text.encode()


_RESPONSE = np.frombuffer(ARRAY_OF_4 + bytes([RESPONSE, SUCCESS]), np.uint8).copy()
_FOUND = np.frombuffer(MAPS[2] + _text("count"), np.uint8).copy()
_POP_MS = np.frombuffer(_text("pop_ms"), np.uint8).copy()
_DONE = np.frombuffer(MAPS[1] + _text("done"), np.uint8).copy()
_RESPONSE_BYTES, _FOUND_BYTES, _POP_MS_BYTES, _DONE_BYTES = map(len, (_RESPONSE, _FOUND, _POP_MS, _DONE))

if AVAILABLE:
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
        send,
        words_at,
    )

    # ---- reading

    @inlined
    def _count_of(state: np.ndarray, data: np.ndarray, head: int, at: int, end: int) -> int:
        """Return the count in the fields ``[at, end)`` if they are those of a head; else -1."""
        heads = integers_at(state[S_HEADS], MANY)
        size = heads[head + H_PREFIX_BYTES]
        if at + size > end or memcmp(heads[head + H_PREFIX], state[S_INPUT] + at, size) != 0:
            return -1
        at += size
        if heads[head + H_COUNT] >= 0:
            return heads[head + H_COUNT] if at == end else -1
        count, at, sound = read_i32(data, at, end)
        size = heads[head + H_SUFFIX_BYTES]
        if not sound or end - at != size:
            return -1
        if size > 0 and memcmp(heads[head + H_SUFFIX], state[S_INPUT] + at, size) != 0:
            return -1
        return count

    @inlined
    def _note_receipts(state: np.ndarray, data: np.ndarray, count: int, at: int, purpose: int) -> bool:
        """Note the receipts from ``at`` on; return False if one is of a message that was delivered again."""
        receipts = integers_at(state[S_RECEIPTS], TURN_RECEIPTS_MAX * T_WIDTH)
        valid = bytes_at(state[S_VALID], TURN_RECEIPTS_MAX)
        for number in range(state[R_RECEIPTS], state[R_RECEIPTS] + count):
            if data[at] != 0:
                return False
            receipts[number * T_WIDTH + T_QUEUE] = purpose << 32 | load_be32(data, at + 1) & _U32
            receipts[number * T_WIDTH + T_OFFSET] = load_be64(data, at + 5)
            receipts[number * T_WIDTH + T_POP_MS] = load_be64(data, at + 13)
            valid[number] = 0
            at += _RECEIPT_BYTES
        return True

    @inlined
    def _note(state: np.ndarray, data: np.ndarray, read: int, kinds_max: int, at: int, end: int) -> int:
        """Note the frame at ``at`` and return its size; 0: leave it."""
        if end - at <= _ID_AT or state[R_FRAMES] == FRAMES_MAX:
            return 0
        body_at = at + LENGTHS_BYTES + (load_be32(data, at + 4) & _U32)
        body_end = at + 4 + (load_be32(data, at) & _U32)
        if body_at > body_end or body_end > end or load_be32(data, at + LENGTHS_BYTES) >> 8 & 0xFFFFFF != _BEGIN:
            return 0
        code = load_be32(data, at + _CODE_AT) & _U32
        kind = ACK if code == _ACK_CODE else POP
        request_id, fields_at, sound = read_i32(data, at + _ID_AT, body_at)
        if not sound or request_id < 0 or (kind == POP and code != _POP_CODE) or kind < kinds_max:
            return 0
        connections = integers_at(state[S_CONNECTIONS], MANY)
        heads = integers_at(state[S_HEADS], MANY)
        connection = integers_at(state[S_READS], READS_MAX * E_WIDTH)[read + E_ROW]
        head = connections[connection + C_HEAD]
        count = -1
        for _ in range(connections[connection + C_HEADS]):
            if heads[head + H_KIND] == kind:
                count = _count_of(state, data, head, fields_at, body_at)
                if count >= 0:
                    break
            head = heads[head + H_NEXT]
        if count < 1 or heads[head + H_LIVE] == 0:
            return 0
        if kind == POP:
            if count > POP_COUNT_MAX or body_at != body_end:
                return 0
        elif (
            count > RECEIPTS_MAX
            or body_end - body_at != count * _RECEIPT_BYTES
            or state[R_RECEIPTS] + count > TURN_RECEIPTS_MAX
            or not _note_receipts(state, data, count, body_at, heads[head + H_PURPOSE])
        ):
            return 0
        frame = state[R_FRAMES] * F_WIDTH
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        frames[frame + F_KIND] = kind
        frames[frame + F_HEAD] = head
        frames[frame + F_READ] = read
        frames[frame + F_REQUEST_ID] = request_id
        frames[frame + F_COUNT] = count
        frames[frame + F_AT] = at
        frames[frame + F_RECEIPT] = state[R_RECEIPTS]
        frames[frame + F_ANSWERED] = 1 if kind == ACK else 0
        frames[frame + F_FOUND] = frames[frame + F_RECORDS_BYTES] = 0
        frames[frame + F_PURPOSE] = heads[head + H_PURPOSE]
        state[R_FRAMES] += 1
        if kind == ACK:
            state[R_RECEIPTS] += count
        connections[connection + C_HEAD] = heads[head + H_NEXT]  # a consumer acknowledges and pops in turn
        return body_end - at

    @inlined
    def _note_read(state: np.ndarray, data: np.ndarray, read: int) -> None:
        """Note the frames of one read until one must be left."""
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        connections = integers_at(state[S_CONNECTIONS], MANY)
        at = reads[read + E_AT]
        end = at + reads[read + E_BYTES]
        first = state[R_FRAMES]
        kinds_max = POP
        while at < end:
            taken = _note(state, data, read, kinds_max, at, end)
            if taken == 0:
                break
            at += taken
            # A pop may have to wait, on the general way, and with it a pop behind it; what was acknowledged need not.
            if frames[(state[R_FRAMES] - 1) * F_WIDTH + F_KIND] == POP:
                kinds_max = ACK
        taken = at - reads[read + E_AT]
        reads[read + E_TAKEN] = taken
        reads[read + E_FRAMES] = state[R_FRAMES] - first
        reads[read + E_OUT] = reads[read + E_OUT_BYTES] = reads[read + E_SENT] = reads[read + E_WAITS] = 0
        connection = reads[read + E_ROW]
        connections[connection + C_FRAMES] += state[R_FRAMES] - first
        connections[connection + C_BYTES] += taken
        if at < end or reads[read + E_BYTES] <= 0:
            state[R_LEFT] += 1

    @kernel(i64, i64_array)
    def receive(state: np.ndarray) -> int:
        """Read the connections of the epoll set that are ready, and note their frames; return the number of reads."""
        for k in range(R_READS, S_LENGTH):
            state[k] = 0
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        data = bytes_at(state[S_INPUT], MANY)
        connections = integers_at(state[S_CONNECTIONS], MANY)
        places = integers_at(state[S_PLACES], MANY)
        events = words_at(state[S_EVENTS], READS_MAX * 3)
        at = 0
        for k in range(epoll_wait(np.int32(state[S_EPOLL]), state[S_EVENTS], np.int32(READS_MAX), np.int32(0))):
            connection = places[events[3 * k + 1]]
            read = state[R_READS] * E_WIDTH
            got = recv(np.int32(connections[connection + C_FD]), state[S_INPUT] + at, SLOT_BYTES, np.int32(NO_WAIT))
            if got < 0 and errno_location()[0] == AGAIN:
                continue
            reads[read + E_ROW] = connection
            reads[read + E_AT] = at
            reads[read + E_BYTES] = got
            state[R_READS] += 1
            connections[connection + C_READS] += 1
            _note_read(state, data, read)
            at += (max(got, 0) + 63) & ~63
        return state[R_READS]

    # ---- sharing out

    @kernel(i64, i64_array, bytes_array, i64, i64, i64_array, i64, i64, i64, i64_array)
    def share(
        state: np.ndarray,
        body: np.ndarray,
        address: int,
        count: int,
        wanting: np.ndarray,
        first: int,
        bytes_max: int,
        pop_ms: int,
        offsets: np.ndarray,
    ) -> int:
        """Give the records of a pull to frames in their order; return the number of records that were given.

        ``body``, at ``address``: ``count`` sizes, then the records; ``wanting``: places of the frames, of which the
        first are served already; each gets records up to ``bytes_max``, but one at least. ``offsets`` gets the queue
        offset of each record. ``R_SERVED`` says how many frames got some.
        """
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        at = 4 * count
        record = 0
        state[R_SERVED] = 0
        for k in range(first, len(wanting)):
            frame = wanting[k]
            found = size = 0
            out = state[R_BYTES]
            while record + found < count and found < frames[frame + F_COUNT]:
                record_bytes = load_be32(body, 4 * (record + found)) & _U32
                if (found > 0 and size + record_bytes > bytes_max) or out + size + record_bytes + 4 > RECORDS_BYTES:
                    break
                offsets[record + found] = load_be64(body, at + size + _QUEUE_OFFSET_AT)
                size += record_bytes
                out += 4
                found += 1
            if found == 0:
                break
            frames[frame + F_ANSWERED] = 1
            frames[frame + F_FOUND] = found
            frames[frame + F_POP_MS] = pop_ms
            frames[frame + F_SOURCE] = address
            frames[frame + F_SIZES_AT] = 4 * record
            frames[frame + F_RECORDS_AT] = at
            frames[frame + F_RECORDS_BYTES] = size
            state[R_BYTES] = out + size
            state[R_SERVED] += 1
            at += size
            record += found
        return record

    # ---- answering

    @inlined
    def _put_integer(out: np.ndarray, at: int, value: int) -> int:
        """Write the shortest msgpack of an integer that is not negative; return the position after it."""
        if value < 0x80:
            out[at] = value
            return at + 1
        if value < 0x100:
            out[at] = 0xCC
            out[at + 1] = value
            return at + 2
        if value < 0x10000:
            out[at] = 0xCD
            store_be16(out, at + 1, value)
            return at + 3
        if value <= _U32:
            out[at] = 0xCE
            store_be32(out, at + 1, value)
            return at + 5
        out[at] = 0xCF
        store_be64(out, at + 1, value)
        return at + 9

    @inlined
    def _put_answer(state: np.ndarray, frame: int, begin: int) -> int:
        """Write the answer to a frame at ``begin``; return the position after it."""
        out = bytes_at(state[S_OUT], OUT_BYTES)
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        at = begin + LENGTHS_BYTES
        copy_bytes(_RESPONSE, 0, out, at, _RESPONSE_BYTES)
        at = _put_integer(out, at + _RESPONSE_BYTES, frames[frame + F_REQUEST_ID])
        count = frames[frame + F_COUNT]
        if frames[frame + F_KIND] == POP:
            found = frames[frame + F_FOUND]
            copy_bytes(_FOUND, 0, out, at, _FOUND_BYTES)
            at = _put_integer(out, at + _FOUND_BYTES, found)
            copy_bytes(_POP_MS, 0, out, at, _POP_MS_BYTES)
            at = _put_integer(out, at + _POP_MS_BYTES, frames[frame + F_POP_MS])
            body_at = at
            if found > 0:
                source = bytes_at(frames[frame + F_SOURCE], MANY)
                copy_bytes(source, frames[frame + F_SIZES_AT], out, at, 4 * found)
                at += 4 * found
                copy_bytes(source, frames[frame + F_RECORDS_AT], out, at, frames[frame + F_RECORDS_BYTES])
                at += frames[frame + F_RECORDS_BYTES]
        else:
            valid = bytes_at(state[S_VALID], TURN_RECEIPTS_MAX)
            first = frames[frame + F_RECEIPT]
            done = 0
            for number in range(first, first + count):
                done += np.int64(valid[number])
            copy_bytes(_DONE, 0, out, at, _DONE_BYTES)
            body_at = _put_integer(out, at + _DONE_BYTES, done)
            copy_bytes(valid, first, out, body_at, count)
            at = body_at + count
        store_be32(out, begin, at - begin - 4)
        store_be32(out, begin + 4, body_at - begin - LENGTHS_BYTES)
        return at

    @kernel(i64, i64_array)
    def answer(state: np.ndarray) -> int:
        """Build the answers to the frames that get one; send them, as far as the sockets take them (``E_SENT``), but
        those of reads that wait (``E_WAITS``). Return the number of reads whose answers were not sent whole."""
        connections = integers_at(state[S_CONNECTIONS], MANY)
        reads = integers_at(state[S_READS], READS_MAX * E_WIDTH)
        frames = integers_at(state[S_FRAMES], FRAMES_MAX * F_WIDTH)
        number = at = unsent = 0
        for k in range(state[R_READS]):
            read = k * E_WIDTH
            reads[read + E_OUT] = at
            while number < state[R_FRAMES] and frames[number * F_WIDTH + F_READ] == read:
                if frames[number * F_WIDTH + F_ANSWERED] != 0:
                    at = _put_answer(state, number * F_WIDTH, at)
                    state[R_ACKS if frames[number * F_WIDTH + F_KIND] == ACK else R_POPS] += 1
                number += 1
            size = at - reads[read + E_OUT]
            reads[read + E_OUT_BYTES] = size
            if size == 0:
                continue
            sent = 0
            if reads[read + E_WAITS] == 0:
                connection = reads[read + E_ROW]
                fd = np.int32(connections[connection + C_FD])
                flags = np.int32(NO_WAIT | NO_SIGNAL)
                sent = max(send(fd, state[S_OUT] + reads[read + E_OUT], size, flags), 0)
                connections[connection + C_SENT] += sent
            reads[read + E_SENT] = sent
            if sent != size:
                unsent += 1
        return unsent


def is_ready() -> bool:
    """Return whether the kernels of this module can be called: they are compiled."""
    return AVAILABLE and is_compiled(receive) and is_compiled(share) and is_compiled(answer)
