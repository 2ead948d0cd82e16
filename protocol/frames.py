"""Frames: the sans-I/O parser and the encoder.

    u32 frame_length | u32 header_length | header: msgpack [kind, code, request_id, fields] | body

``frame_length`` counts what follows it. Both integers are big-endian. The parser owns the receive buffer: a driver reads
from its socket into ``writable()``, reports with ``received(n)``, and takes frames with ``next_frame()``.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from .errors import LocalProtocolError, RemoteProtocolError

REQUEST = 0
RESPONSE = 1
ONE_WAY = 2

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Largest ``frame_length`` by default."""
HEADER_BYTES_MAX = 64 * 1024
INITIAL_BUFFER_BYTES = 64 * 1024
REQUEST_ID_MAX = 2**31 - 1

_LENGTHS = struct.Struct(">II")
_PREFIX_BYTES = _LENGTHS.size
_pack = msgpack.Packer(autoreset=True).pack


class Frame:
    """One received frame. ``body`` is ``buffer[body_at:body_end]``, valid until the parser is written to again."""

    __slots__ = ("body_at", "body_end", "buffer", "code", "fields", "kind", "request_id")

    def __init__(
        self, kind: int, code: int, request_id: int, fields: dict[str, Any], buffer: bytearray, body_at: int, body_end: int
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
        """The body, without a copy; copy what must outlive the next read."""
        return memoryview(self.buffer)[self.body_at : self.body_end]


def encode_frame(kind: int, code: int, request_id: int, fields: dict[str, Any], body: bytes | bytearray = b"") -> bytes:
    """A whole frame. Raises ``LocalProtocolError`` where the header is larger than a peer takes."""
    return encode_head(kind, code, request_id, fields, len(body)) + body


def encode_head(kind: int, code: int, request_id: int, fields: dict[str, Any], body_bytes: int) -> bytes:
    """Everything of a frame in front of its body, which the caller sends itself."""
    header: bytes = _pack((kind, code, request_id, fields))
    if len(header) > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"a header of {len(header)} bytes; at most {HEADER_BYTES_MAX} are allowed")
    return _LENGTHS.pack(4 + len(header) + body_bytes, len(header)) + header


class FrameParser:
    """Turns received bytes into frames.

    ``frame_bytes_max`` bounds ``frame_length`` and is compared before anything is allocated. The buffer starts at
    64 KiB and doubles with the bytes that have *arrived*, so that an announced length alone costs nothing; after a
    large frame it shrinks again. A buffer is never resized in place: views of it stay valid as long as they are held.
    """

    __slots__ = ("buffer", "end", "frame_bytes_max", "start")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.buffer = bytearray(INITIAL_BUFFER_BYTES)
        self.start = 0
        self.end = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that have arrived and belong to no frame taken yet."""
        return self.end - self.start

    def writable(self) -> memoryview:
        """Where the next bytes go: never empty. Frames taken before lose their bodies."""
        if self.start == self.end:
            self.start = self.end = 0
            if len(self.buffer) > INITIAL_BUFFER_BYTES:
                self.buffer = bytearray(INITIAL_BUFFER_BYTES)
        elif self.end == len(self.buffer):
            self._make_room()
        return memoryview(self.buffer)[self.end :]

    def _make_room(self) -> None:
        pending = self.end - self.start
        if pending > len(self.buffer) // 2:
            size = min(2 * len(self.buffer), self.frame_bytes_max + 4)
            grown = bytearray(max(size, pending + _PREFIX_BYTES))
        else:
            grown = bytearray(max(INITIAL_BUFFER_BYTES, len(self.buffer)))
        grown[:pending] = memoryview(self.buffer)[self.start : self.end]
        self.buffer, self.start, self.end = grown, 0, pending

    def received(self, count: int) -> None:
        """``count`` bytes were written into the last ``writable()``."""
        self.end += count

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes arrive.

        Raises ``RemoteProtocolError`` where the bytes cannot be a frame: nothing behind them can be understood.
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
        if header_length > HEADER_BYTES_MAX or header_length > frame_length - 4:
            raise RemoteProtocolError(
                f"a header of {header_length} bytes in a frame of {frame_length}; "
                f"at most {min(HEADER_BYTES_MAX, frame_length - 4)} are possible"
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
            raise RemoteProtocolError(f"a frame of {frame_length} bytes; the limit is {self.frame_bytes_max}")
        if frame_length < 4:
            raise RemoteProtocolError(f"a frame of {frame_length} bytes cannot hold the length of its header")


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}")


def _decode_header(header: memoryview) -> tuple[int, int, int, dict[str, Any]]:
    try:
        value = msgpack.unpackb(
            header,
            use_list=False,
            strict_map_key=True,
            ext_hook=_refuse_ext,
            max_str_len=HEADER_BYTES_MAX,
            max_bin_len=HEADER_BYTES_MAX,
            max_array_len=256,
            max_map_len=256,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a header that is not msgpack: {error or type(error).__name__}") from None
    if type(value) is not tuple or len(value) != 4:
        raise RemoteProtocolError("a header that is not an array of [kind, code, request_id, fields]")
    kind, code, request_id, fields = value
    if type(kind) is not int or not REQUEST <= kind <= ONE_WAY:
        raise RemoteProtocolError(f"a header of kind {kind!r}; 0 request, 1 response and 2 one-way are known")
    if type(code) is not int or not 0 <= code <= 0x7FFF_FFFF:
        raise RemoteProtocolError(f"a header with code {code!r}; it must be an integer from 0 to 2147483647")
    if type(request_id) is not int or not 0 <= request_id <= REQUEST_ID_MAX:
        raise RemoteProtocolError(f"a header with request id {request_id!r}; it must be an integer from 0 to {REQUEST_ID_MAX}")
    if type(fields) is not dict:
        raise RemoteProtocolError("a header whose fields are not a map")
    for name in fields:
        if type(name) is not str:
            raise RemoteProtocolError(f"a header with the field name {name!r}; names are strings")
    return kind, code, request_id, fields
