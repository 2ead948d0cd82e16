"""Frames: the sans-I/O parser and the encoder.

    u32 frame_length | u32 header_length | header: msgpack [kind, code, request_id, fields] | body

``frame_length`` counts the bytes that follow it. Both integers are big-endian. The parser owns the receive buffer: a
driver reads from its socket into ``writable()``, calls ``received(n)``, and takes frames with ``next_frame()``.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from typing import Any

import msgpack

from .commands import LAYOUT_ROWS, PRODUCE, PULL, RecordsAnswer
from .errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS, LocalProtocolError, RemoteProtocolError
from .fields import I64_MAX

REQUEST = 0
RESPONSE = 1
ONE_WAY = 2

FRAME_LENGTH_BYTES = 4
"""Size of a frame's length field, which no limit counts."""
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Default maximum of ``frame_length``."""
HEADER_BYTES_MAX = 64 * 1024
INITIAL_BUFFER_BYTES = 64 * 1024
REQUEST_ID_MAX = 2**31 - 1
CODE_MAX = 2**31 - 1
HEADER_ITEMS_MAX = 256
"""Maximum number of items of one array or map in a header."""
FIELD_DEPTH_MAX = 8
"""Maximum nesting depth of arrays and maps in the value of a field."""

_LENGTHS = struct.Struct(">II")
_PREFIX_BYTES = _LENGTHS.size
_FRAME_LENGTH_MAX = 0xFFFF_FFFF
_ROOM_BYTES_MIN = 4 * 1024
"""Minimum free space at the end of the buffer that is worth a read."""


class _ThreadPacker(threading.local):
    """A packer for each thread: a packer has an internal buffer, so threads must not share one."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(autoreset=True).pack


_packer = _ThreadPacker()


class Frame:
    """One received frame. ``body`` is ``buffer[body_at:body_end]``, valid until the next read into the parser."""

    began: float
    """Time at which handling of the frame began; the handler sets it."""

    __slots__ = ("began", "body_at", "body_end", "buffer", "code", "fields", "kind", "request_id")

    def __init__(
        self,
        kind: int,
        code: int,
        request_id: int,
        fields: dict[str, Any],
        buffer: bytearray,
        body_at: int,
        body_end: int,
    ) -> None:
        self.kind = kind
        self.code = code
        self.request_id = request_id
        self.fields = fields
        self.buffer = buffer
        self.body_at = body_at
        self.body_end = body_end

    @property
    def body(self) -> memoryview:
        """View of the body without a copy; copy whatever must outlive the next read."""
        return memoryview(self.buffer)[self.body_at : self.body_end]


def encode_frame(kind: int, code: int, request_id: int, fields: dict[str, Any], body: bytes | bytearray = b"") -> bytes:
    """Return a whole frame. Raises ``LocalProtocolError`` as ``encode_head`` does."""
    return encode_head(kind, code, request_id, fields, len(body)) + body


def encode_head(kind: int, code: int, request_id: int, fields: dict[str, Any], body_bytes: int) -> bytes:
    """Return everything that precedes the body in a frame; the caller sends the body itself.

    Raises ``LocalProtocolError`` if the header cannot be packed or is larger than a peer accepts. The caller must
    enforce the maximum frame length that the peer announced in HELLO.
    """
    try:
        header: bytes = _packer.pack((kind, code, request_id, fields))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(f"msgpack cannot encode the fields: {error}") from error
    if len(header) > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"a header of {len(header)} bytes; at most {HEADER_BYTES_MAX} are allowed")
    frame_length = 4 + len(header) + body_bytes
    if frame_length > _FRAME_LENGTH_MAX:
        raise LocalProtocolError(f"a frame of {frame_length} bytes; its length field holds at most {_FRAME_LENGTH_MAX}")
    return _LENGTHS.pack(frame_length, len(header)) + header


class FrameParser:
    """Turns received bytes into frames.

    ``frame_bytes_max`` bounds ``frame_length`` and is compared before anything is allocated. The buffer starts at
    64 KiB and grows when it is full, to at most four times the bytes that have *arrived* and never beyond one frame of
    maximum size, so that an announced length alone allocates nothing. The factor is four because new pages cost more
    than copying: a stream of 1 MB frames parses at 5 GB/s, with doubling at 0.6. Once empty, a buffer larger than
    ``keep_bytes`` is replaced by a small one; a peer that reads many large frames keeps more (12 GB/s). A buffer is
    never resized in place, so that views of it stay valid.
    """

    __slots__ = ("buffer", "end", "frame_bytes_max", "keep_bytes", "start")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, keep_bytes: int = INITIAL_BUFFER_BYTES) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.keep_bytes = max(keep_bytes, INITIAL_BUFFER_BYTES)
        self.buffer = bytearray(INITIAL_BUFFER_BYTES)
        self.start = 0
        self.end = 0

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that have arrived and are not part of a returned frame."""
        return self.end - self.start

    def writable(self) -> memoryview:
        """Return the space for the next bytes, never empty. The bodies of earlier frames become invalid.

        Call this only after ``next_frame`` has returned None; otherwise complete frames accumulate in a buffer that
        grows without limit.
        """
        if self.start == self.end:
            self.start = self.end = 0
            if len(self.buffer) > self.keep_bytes:
                self.buffer = bytearray(INITIAL_BUFFER_BYTES)
        elif len(self.buffer) - self.end < _ROOM_BYTES_MIN:
            self._make_room()
        return memoryview(self.buffer)[self.end :]

    def _make_room(self) -> None:
        """Move the pending bytes to the front, into a larger buffer if their frame needs one."""
        pending = self.end - self.start
        size = len(self.buffer)
        if pending > size // 2:
            # Half of the buffer is pending, so the frame's length has arrived, and next_frame has checked it.
            (frame_length,) = struct.unpack_from(">I", self.buffer, self.start)
            whole, largest = FRAME_LENGTH_BYTES + frame_length, FRAME_LENGTH_BYTES + self.frame_bytes_max
            assert pending < whole <= largest, "take all complete frames before reading more"
            size = max(size, min(4 * pending, whole + _ROOM_BYTES_MIN, largest))
        if size > len(self.buffer):
            grown = bytearray(size)
            grown[:pending] = memoryview(self.buffer)[self.start : self.end]
            self.buffer = grown
        elif self.start:
            self.buffer[:pending] = self.buffer[self.start : self.end]
        self.start, self.end = 0, pending

    def received(self, count: int) -> None:
        """Record that ``count`` bytes were written into the last ``writable()``."""
        assert 0 <= count <= len(self.buffer) - self.end, "more bytes than writable() had room for"
        self.end += count

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None until more bytes arrive.

        Raises ``RemoteProtocolError`` if the bytes cannot be a frame; nothing after them can be parsed.
        """
        start = self.start
        if self.end - start < 4:
            return None
        if self.end - start < _PREFIX_BYTES:
            (frame_length,) = struct.unpack_from(">I", self.buffer, start)
            self._check_frame_length(frame_length)
            return None
        frame_length, header_length = _LENGTHS.unpack_from(self.buffer, start)
        self._check_frame_length(frame_length)
        if header_length > HEADER_BYTES_MAX or header_length > frame_length - FRAME_LENGTH_BYTES:
            raise RemoteProtocolError(
                f"a header of {header_length} bytes in a frame of {frame_length}; "
                f"at most {min(HEADER_BYTES_MAX, frame_length - FRAME_LENGTH_BYTES)} are possible"
            )
        frame_end = start + 4 + frame_length
        if frame_end > self.end:
            return None
        body_at = start + _PREFIX_BYTES + header_length
        kind, code, request_id, fields = _decode_header(memoryview(self.buffer)[start + _PREFIX_BYTES : body_at])
        self.start = frame_end
        return Frame(kind, code, request_id, fields, self.buffer, body_at, frame_end)

    def _check_frame_length(self, frame_length: int) -> None:
        if frame_length > self.frame_bytes_max:
            raise RemoteProtocolError(
                _other_protocol(frame_length) or f"a frame of {frame_length} bytes; the limit is {self.frame_bytes_max}"
            )
        if frame_length < 4:
            raise RemoteProtocolError(f"a frame of {frame_length} bytes cannot hold the length of its header")


def _other_protocol(frame_length: int) -> str:
    """Return a hint if the bytes of a frame's length are the beginning of HTTP or TLS, else an empty string."""
    begins = frame_length.to_bytes(4)
    if begins == b"HTTP":
        return "it responds with HTTP, as the metrics port does; connect to the broker's own port"
    if begins in _HTTP_REQUESTS:
        return "an HTTP request; metrics and health are served on a separate port"
    if begins[:1] in b"\x15\x16" and begins[1:2] == b"\x03":
        return "it speaks TLS; connect with tls=True, or with tls=FILE for your own CA"
    return ""


_HTTP_REQUESTS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"PRI ")


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}")


def _decode_header(header: memoryview) -> tuple[int, int, int, dict[str, Any]]:
    value = _unpack(header)
    if type(value) is not tuple or len(value) != 4:
        raise RemoteProtocolError("a header that is not an array of [kind, code, request_id, fields]")
    kind, code, request_id, fields = value
    if type(kind) is not int or not REQUEST <= kind <= ONE_WAY:
        raise RemoteProtocolError(f"a header of kind {_brief(kind)}; 0 request, 1 response and 2 one-way are known")
    if type(code) is not int or not 0 <= code <= CODE_MAX:
        raise RemoteProtocolError(f"a header with code {_brief(code)}; it must be an integer from 0 to {CODE_MAX}")
    if type(request_id) is not int or not 0 <= request_id <= REQUEST_ID_MAX:
        raise RemoteProtocolError(
            f"a header with request id {_brief(request_id)}; it must be an integer from 0 to {REQUEST_ID_MAX}"
        )
    if type(fields) is not dict:
        raise RemoteProtocolError(f"a header whose fields are {_brief(fields)}; they must be a map")
    for name, field in fields.items():
        if type(name) is not str:
            raise RemoteProtocolError(f"a header with a field name that is {_brief(name)}; names are strings")
        if type(field) in (tuple, dict) and not _nests_within(field, FIELD_DEPTH_MAX):
            raise RemoteProtocolError(f"a header with the field {name[:40]!r} nested deeper than {FIELD_DEPTH_MAX}")
    return kind, code, request_id, fields


def _brief(value: Any) -> str:
    """Describe a value for an error message, without its content, which may be long or nested too deeply for
    ``repr``."""
    return str(value) if type(value) is int else f"of type {type(value).__name__}"


def _nests_within(value: Any, depth: int) -> bool:
    if type(value) is dict:
        value = value.values()
    elif type(value) is not tuple:
        return True
    return depth > 0 and all(_nests_within(item, depth - 1) for item in value)


def _unpack(header: memoryview) -> Any:
    try:
        return msgpack.unpackb(
            header,
            use_list=False,
            strict_map_key=True,
            ext_hook=_refuse_ext,
            max_str_len=HEADER_BYTES_MAX,
            max_bin_len=HEADER_BYTES_MAX,
            max_array_len=HEADER_ITEMS_MAX,
            max_map_len=HEADER_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise RemoteProtocolError(f"a header that is not the msgpack of this protocol: {reason[:200]}") from None


# ---- Heads of PRODUCE and PULL with integers of fixed width: the constant parts of their heads are packed once.
#
# A head is the two lengths and the header; a frame with one message consists mostly of it. So the client does not pack
# each head again, but inserts the values that change into bytes that stay, and the broker does not unpack a head whose
# other bytes it has unpacked before. Both accept any valid header; only one that is packed like this takes the short
# way.

UINT32 = b"\xce"
UINT64 = b"\xcf"
ARRAY_OF_4 = b"\x94"
LENGTHS_BYTES = 8
"""Size of the frame length and the header length, which precede each header."""
REQUEST_BEGIN_BYTES = 4

MAPS = tuple(bytes([0x80 | count]) for count in range(16))
"""First byte of a map, by its number of pairs."""


def request_begin(code: int) -> bytes:
    """Return the bytes of a request's header before its id, for a command with a code below 128."""
    begin: bytes = ARRAY_OF_4 + msgpack.packb(REQUEST) + msgpack.packb(code) + UINT32
    assert len(begin) == REQUEST_BEGIN_BYTES
    return begin


REQUEST_START = struct.Struct(f">II{REQUEST_BEGIN_BYTES}sI")
"""First part of the head of any request: frame length, header length, ``request_begin``, request id."""

ANY_QUEUE = -1
"""Queue of a request for which the broker chooses the queue."""

_FIELDS_THAT_CHANGE = 3
_pack = msgpack.packb

PRODUCE_BEGIN = request_begin(PRODUCE.code)
BEFORE_FIRST: bytes = _pack("unique_first") + UINT64
BEFORE_BORN: bytes = _pack("born_ms") + UINT64
HEAD_END = struct.Struct(f">I{len(BEFORE_FIRST)}sQ{len(BEFORE_BORN)}sQ")
"""Last part of a head: count, ``BEFORE_FIRST``, unique_first, ``BEFORE_BORN``, born_ms."""


class ProduceHead:
    """Heads of PRODUCE requests that differ only in request id, count, unique_first and born_ms.

    ``size``: bytes of each head, including the two lengths before it. ``fixed``: the bytes between ``REQUEST_START``
    and ``HEAD_END``. ``flush``, ``common`` and ``prepare``: as in ``ProduceRequest``.
    """

    __slots__ = ("_pack", "common", "fixed", "size")

    def __init__(
        self, topic: str, queue: int, layout: int, flush: str, common: str, unique_prefix: str, prepare: str = ""
    ) -> None:
        self.common = common
        fixed: dict[str, str | int] = {"topic": topic, "unique_prefix": unique_prefix}
        if queue != ANY_QUEUE:
            fixed["queue"] = queue
        if layout != LAYOUT_ROWS:
            fixed["layout"] = layout
        if flush:
            fixed["flush"] = flush
        if common:
            fixed["common"] = common
        if prepare:
            fixed["prepare"] = prepare
        count = MAPS[len(fixed) + _FIELDS_THAT_CHANGE]
        pairs = b"".join(_pack(name) + _pack(value) for name, value in fixed.items())
        self.fixed: bytes = count + pairs + _pack("count") + UINT32
        layout_of_head = struct.Struct(f"{REQUEST_START.format}{len(self.fixed)}s{HEAD_END.format[1:]}")
        self._pack = layout_of_head.pack
        self.size = layout_of_head.size

    def encode(self, request_id: int, count: int, first: int, born_ms: int, body_bytes: int) -> bytes:
        header_bytes = self.size - LENGTHS_BYTES
        return self._pack(
            4 + header_bytes + body_bytes,
            header_bytes,
            PRODUCE_BEGIN,
            request_id,
            self.fixed,
            count,
            BEFORE_FIRST,
            first,
            BEFORE_BORN,
            born_ms,
        )


_ANSWER_BEGIN: bytes = ARRAY_OF_4 + _pack(RESPONSE) + _pack(SUCCESS) + UINT32
_ANSWER_QUEUE: bytes = MAPS[3] + _pack("queue") + UINT32
_ANSWER_OFFSET: bytes = _pack("queue_offset") + UINT64
_ANSWER_STORED: bytes = _pack("store_ms") + UINT64
_ANSWER_HEAD = f">II{len(_ANSWER_BEGIN)}sI{len(_ANSWER_QUEUE)}sI{len(_ANSWER_OFFSET)}sQ{len(_ANSWER_STORED)}sQ"
_ANSWER = struct.Struct(_ANSWER_HEAD)
_ANSWER_OF_ONE = struct.Struct(_ANSWER_HEAD + "q")
_ANSWER_HEADER_BYTES = _ANSWER.size - LENGTHS_BYTES
_CONSTANT_OF_ONE = (
    _ANSWER_OF_ONE.size - 4,
    _ANSWER_HEADER_BYTES,
    _ANSWER_BEGIN,
    _ANSWER_QUEUE,
    _ANSWER_OFFSET,
    _ANSWER_STORED,
)


def encode_produce_answer(
    request_id: int, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray
) -> bytes:
    """Return the response to a PRODUCE: fields as in ``ProduceAnswer``, and count × i64 physical offsets."""
    head = _ANSWER.pack(
        4 + _ANSWER_HEADER_BYTES + len(physical_offsets),
        _ANSWER_HEADER_BYTES,
        _ANSWER_BEGIN,
        request_id,
        _ANSWER_QUEUE,
        queue,
        _ANSWER_OFFSET,
        queue_offset,
        _ANSWER_STORED,
        store_ms,
    )
    return head + physical_offsets


def decode_answer_of_one(buffer: bytearray, start: int, end: int) -> tuple[int, int, int, int, int] | None:
    """Return (request id, queue, queue offset, store_ms, physical offset) of the response to a PRODUCE of one message.

    None if ``buffer[start:end]`` is anything else, which may be as valid.
    """
    if end - start != _ANSWER_OF_ONE.size:
        return None
    length, header, begin, request_id, a, queue, b, queue_offset, c, store_ms, at = _ANSWER_OF_ONE.unpack_from(
        buffer, start
    )
    if (length, header, begin, a, b, c) != _CONSTANT_OF_ONE:
        return None
    return request_id, queue, queue_offset, store_ms, at


# ---- PULL frames with integers of fixed width, whose heads are packed and unpacked in one step.
#
# A request for the next messages differs from the one before only in its id and its offset, and a response
# with few records consists mostly of its head. Both ends accept any valid head; only one that is packed like
# this takes a short way. A response that also says how many messages were lost is packed the general way.

PULL_BEGIN = request_begin(PULL.code)
PULL_END = struct.Struct(">Q")
"""Last part of a request's head: the offset."""


class PullHead:
    """Heads of PULL requests that differ only in request id and offset.

    ``size``: bytes of each head, including the two lengths before it. ``fixed``: the bytes between ``REQUEST_START``
    and ``PULL_END``.
    """

    __slots__ = ("_pack", "fixed", "size")

    def __init__(self, fields: Mapping[str, str | int]) -> None:
        """``fields``: those of ``PullRequest`` that differ from their default, except the offset."""
        pairs = b"".join(_pack(name) + _pack(value) for name, value in fields.items())
        self.fixed: bytes = MAPS[len(fields) + 1] + pairs + _pack("offset") + UINT64
        head = struct.Struct(f"{REQUEST_START.format}{len(self.fixed)}s{PULL_END.format[1:]}")
        self._pack = head.pack
        self.size = head.size

    def encode(self, request_id: int, offset: int) -> bytes:
        """Return a whole frame."""
        return self._pack(self.size - 4, self.size - LENGTHS_BYTES, PULL_BEGIN, request_id, self.fixed, offset)


class PullFields(dict[str, Any]):
    """The fields of a PULL request, with the head that packs them."""

    __slots__ = ("head",)

    def __init__(self, others: Mapping[str, Any], head: PullHead, offset: int) -> None:
        super().__init__(others, offset=offset)
        self.head = head

    def encode(self, request_id: int) -> bytes:
        return self.head.encode(request_id, self["offset"])


_COUNT = MAPS[4] + _pack("count") + UINT32
_NEXT = _pack("next_offset") + UINT64
_MIN = _pack("min_offset") + UINT64
_MAX = _pack("max_offset") + UINT64
_BEGINS = {
    code: ARRAY_OF_4 + _pack(RESPONSE) + _pack(code) + UINT32
    for code in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY)
}
"""Bytes of a response's header before the request id, by code; all have the same length."""
_CODES = {begin: code for code, begin in _BEGINS.items()}
_HEAD = struct.Struct(f">II{len(_BEGINS[SUCCESS])}sI{len(_COUNT)}sI{len(_NEXT)}sQ{len(_MIN)}sQ{len(_MAX)}sQ")
_HEADER_BYTES = _HEAD.size - LENGTHS_BYTES


def encode_records_head(
    code: int, request_id: int, count: int, next_offset: int, min_offset: int, max_offset: int, body_bytes: int
) -> bytes:
    """Return everything before the body in the response to a PULL. The values are those of ``RecordsAnswer``."""
    return _HEAD.pack(
        4 + _HEADER_BYTES + body_bytes,
        _HEADER_BYTES,
        _BEGINS[code],
        request_id,
        _COUNT,
        count,
        _NEXT,
        next_offset,
        _MIN,
        min_offset,
        _MAX,
        max_offset,
    )


def decode_records_head(buffer: bytearray, start: int, end: int) -> tuple[int, int, RecordsAnswer, int] | None:
    """Return (code, request id, fields, position of the body) of the response to a PULL in ``buffer[start:end]``.

    None if the bytes are anything else, which may be as valid.
    """
    if end - start < _HEAD.size:
        return None
    length, header, begin, request_id, a, count, b, next_offset, c, min_offset, d, max_offset = _HEAD.unpack_from(
        buffer, start
    )
    code = _CODES.get(begin)
    if code is None or (length, header, a, b, c, d) != (end - start - 4, _HEADER_BYTES, _COUNT, _NEXT, _MIN, _MAX):
        return None
    if next_offset > I64_MAX or min_offset > I64_MAX or max_offset > I64_MAX:
        return None
    return code, request_id, RecordsAnswer(count, next_offset, min_offset, max_offset), start + _HEAD.size
