"""Compression of bodies, marked in ``sys_flag`` as RocketMQ does: LZ4 frames, Zstandard or zlib.

lz4 and Zstandard's library are imported when a producer or a body needs them; since Python 3.14, the standard library
has the latter. zlib is always available, so every installation can read what a producer compresses by default.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from ...protocol.storage.layout import SysFlag
from ..errors import CompressionUnavailable, InvalidArgument

COMPRESS_OVER_BYTES = 4096
"""Bodies longer than this are compressed by default."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Maximum length of a decompressed body: a damaged or hostile one must not fill the memory."""

Compression: TypeAlias = Literal["zlib", "lz4", "zstd"]
"""The names of the algorithms."""
DEFAULT_COMPRESSION: Compression = "zlib"

_ZLIB_LEVEL = 1
"""At level 1 JSON bodies shrink to 23 % instead of the 20 % of RocketMQ's level 5, in half the time."""
_ZLIB_SAMPLED_OVER_BYTES = 4096
"""zlib spends 20 µs per KiB on a body that does not shrink, so a longer body is compressed only if a sample shrinks."""
_ZLIB_SAMPLE_BYTES = 1024
_ZSTD_LEVEL = 3
_STANDARD_ZSTD = sys.version_info >= (3, 14)
_MODULES = {"lz4": "lz4.frame", "zstd": "compression.zstd" if _STANDARD_ZSTD else "zstandard"}
_FLAGS = {
    "lz4": SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4,
    "zstd": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
    "zlib": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB,
}
ALGORITHMS = tuple(_FLAGS)


class Compressor:
    """Compresses the bodies that are longer than ``over_bytes`` (None: no bodies) and become shorter.

    ``algorithm``: ``zlib`` (the default), ``lz4`` or ``zstd``. Raises ``CompressionUnavailable`` if its library is not
    installed, unless no body is to be compressed.
    """

    __slots__ = ("_compress", "_flag", "algorithm", "over_bytes")

    def __init__(self, over_bytes: int | None = COMPRESS_OVER_BYTES, algorithm: str | None = None) -> None:
        if over_bytes is not None and (type(over_bytes) is not int or over_bytes < 0):
            raise InvalidArgument(f"compress_over is {over_bytes!r}; it must be a number of bytes, or None for never")
        if algorithm is not None and algorithm not in _FLAGS:
            raise InvalidArgument(f"compression is {algorithm!r}; it must be one of {', '.join(ALGORITHMS)}, or None")
        self.over_bytes = over_bytes
        self.algorithm = algorithm or DEFAULT_COMPRESSION
        self._flag = _FLAGS[self.algorithm]
        self._compress = _zlib if over_bytes is None else _compress_with(self.algorithm)

    def compress(self, body: bytes) -> tuple[bytes, int]:
        """Return ``(body to store, its sys_flag bits)``: unchanged, with 0, if compression does not help."""
        if self.over_bytes is None or len(body) <= self.over_bytes:
            return body, 0
        compressed = self._compress(body)
        return (compressed, self._flag) if len(compressed) < len(body) else (body, 0)


def _library(algorithm: str) -> Any:
    try:
        return importlib.import_module(_MODULES[algorithm])
    except ImportError:
        package = _MODULES[algorithm].partition(".")[0]
        reason = f"needs the package {package}, which is not installed: pip install {package}"
        if package == "compression":
            reason = "needs the module compression.zstd, and this Python was built without it: use another one"
        raise CompressionUnavailable(f"{algorithm} compression {reason}") from None


def _compress_with(algorithm: str) -> Callable[[bytes], bytes]:
    if algorithm == "lz4":
        compress: Callable[[bytes], bytes] = _library("lz4").compress
        return compress
    if algorithm == "zstd":
        # One compressor per call: a ZstdCompressor must not be used by two threads at once.
        zstandard = _library("zstd")
        if _STANDARD_ZSTD:
            return lambda body: bytes(zstandard.compress(body, _ZSTD_LEVEL))
        return lambda body: bytes(zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body))
    return _zlib


def _zlib(body: bytes) -> bytes:
    """Return ``body`` compressed, or unchanged if a sample from its middle does not shrink by a sixteenth."""
    if len(body) > _ZLIB_SAMPLED_OVER_BYTES:
        start = (len(body) - _ZLIB_SAMPLE_BYTES) // 2
        sample = zlib.compress(body[start : start + _ZLIB_SAMPLE_BYTES], _ZLIB_LEVEL)
        if len(sample) > _ZLIB_SAMPLE_BYTES * 15 // 16:
            return body
    return zlib.compress(body, _ZLIB_LEVEL)


class DecompressionFailed(Exception):
    """A body does not match its flags; the caller knows which message it belongs to."""


def decompress(body: bytes, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the original of a compressed ``body``; ``sys_flag`` names the algorithm (none: zlib, as in old RocketMQ).

    Raises ``DecompressionFailed`` if the bytes do not decompress or the result is longer than ``bytes_max``, and
    ``CompressionUnavailable`` if the library is not installed.
    """
    plain = decompress_start(body, sys_flag, bytes_max)
    if len(plain) > bytes_max:
        raise DecompressionFailed(f"its body is longer than {bytes_max} bytes decompressed, the maximum")
    return plain


def decompress_start(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """Return the original of a compressed ``body``, or ``bytes_max`` + 1 bytes of a longer one. Raises as
    ``decompress``."""
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind == SysFlag.COMPRESSION_LZ4:
            plain, complete = _unlz4(body, bytes_max)
        elif kind == SysFlag.COMPRESSION_ZSTD:
            plain, complete = _unzstd(body, bytes_max)
        elif kind in (0, SysFlag.COMPRESSION_ZLIB):
            inflater = zlib.decompressobj()
            plain = inflater.decompress(body, bytes_max + 1)
            complete = inflater.eof
        else:
            raise DecompressionFailed(f"its sys_flag {sys_flag:#x} names an unknown compression")
    except (zlib.error, RuntimeError, ValueError, EOFError) as error:
        raise DecompressionFailed(f"its body does not decompress: {error}") from error
    if not complete and len(plain) <= bytes_max:
        raise DecompressionFailed("its compressed body is truncated")
    return plain


def _unlz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    decompressor = _library("lz4").LZ4FrameDecompressor()
    plain: bytes = decompressor.decompress(body, max_length=bytes_max + 1)
    return plain, bool(decompressor.eof)


def _unzstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    zstandard = _library("zstd")
    try:
        if _STANDARD_ZSTD:
            decompressor = zstandard.ZstdDecompressor()
            return bytes(decompressor.decompress(body, bytes_max + 1)), decompressor.eof
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain: bytes = reader.read(bytes_max + 1)
        announced = zstandard.frame_content_size(body)
    except zstandard.ZstdError as error:
        raise DecompressionFailed(f"its body does not decompress: {error}") from error
    return plain, announced in (-1, len(plain)) and bool(plain or announced == 0)
