"""Frames: the sans-I/O parser and the encoder.

    u32 frame_length | u32 header_length | header: msgpack [kind, code, request_id, fields] | body

``frame_length`` counts the bytes that follow it. Both integers are big-endian. The parser owns the receive buffer: a
driver reads from its socket into ``writable()``, calls ``received(n)``, and takes frames with ``next_frame()``.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import msgpack

from .errors import LocalProtocolError, RemoteProtocolError

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
