"""Compression of bodies: only if it helps, with RocketMQ's flags; decompression has a size limit."""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

from flintmq.client import CompressionUnavailable, InvalidArgument
from flintmq.client.core.compression import ALGORITHMS, Compressor, DecompressionFailed, decompress
from flintmq.protocol.storage.layout import SysFlag

INSTALLED = [name for name in ALGORITHMS if name != "lz4" or find_spec("lz4")]
"""The algorithms that can be tried: lz4 has no wheels for Python 3.15."""
BODY = b"the same again and again, " * 1000
ZSTD_ADVICE = "use another one" if sys.version_info >= (3, 14) else "pip install zstandard"
FLAGS = {"lz4": SysFlag.COMPRESSION_LZ4, "zstd": SysFlag.COMPRESSION_ZSTD, "zlib": SysFlag.COMPRESSION_ZLIB}


@pytest.mark.parametrize("algorithm", INSTALLED)
def test_a_compressed_body_decompresses_to_the_original(algorithm: str) -> None:
    compressed, sys_flag = Compressor(4096, algorithm).compress(BODY)
    assert len(compressed) < len(BODY) // 2
    assert sys_flag == SysFlag.COMPRESSED | FLAGS[algorithm]
    assert decompress(compressed, sys_flag) == BODY


@pytest.mark.parametrize("algorithm", INSTALLED)
def test_a_body_that_does_not_shrink_stays_unchanged(algorithm: str) -> None:
    body = os.urandom(10_000)
    assert Compressor(4096, algorithm).compress(body) == (body, 0)


def test_every_installation_can_read_the_default_compression() -> None:
    compressed, sys_flag = Compressor().compress(BODY)
    assert sys_flag == SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    assert zlib.decompress(compressed) == BODY


def test_zlib_skips_a_long_body_whose_sample_does_not_shrink() -> None:
    body = b"\0" * 20_000 + os.urandom(10_000) + b"\0" * 20_000
    assert Compressor(4096).compress(body) == (body, 0)
    body = os.urandom(20_000) + b"\0" * 10_000 + os.urandom(20_000)
    assert Compressor(4096).compress(body)[1] & SysFlag.COMPRESSED


def test_only_longer_bodies_are_compressed() -> None:
    compressor = Compressor(4096)
    assert compressor.compress(b"x" * 4096) == (b"x" * 4096, 0)
    assert compressor.compress(b"x" * 4097)[1] & SysFlag.COMPRESSED


def test_compression_can_be_disabled() -> None:
    assert Compressor(None).compress(BODY) == (BODY, 0)


def test_no_type_means_zlib_as_in_old_rocketmq() -> None:
    assert decompress(zlib.compress(BODY), SysFlag.COMPRESSED) == BODY


@pytest.mark.parametrize("algorithm", INSTALLED)
def test_a_body_longer_than_the_bound_is_refused(algorithm: str) -> None:
    compressed, sys_flag = Compressor(0, algorithm).compress(b"\0" * 1_000_000)
    assert decompress(compressed, sys_flag, 1_000_000) == b"\0" * 1_000_000
    with pytest.raises(DecompressionFailed, match="longer than 999999 bytes"):
        decompress(compressed, sys_flag, 999_999)


@pytest.mark.parametrize("algorithm", INSTALLED)
@pytest.mark.parametrize("damage", [b"", b"\0" * 50, b"not compressed at all" * 10])
def test_bytes_that_do_not_decompress_are_refused(algorithm: str, damage: bytes) -> None:
    with pytest.raises(DecompressionFailed):
        decompress(damage, SysFlag.COMPRESSED | FLAGS[algorithm])


@pytest.mark.parametrize("algorithm", INSTALLED)
def test_a_truncated_body_is_refused(algorithm: str) -> None:
    compressed, sys_flag = Compressor(0, algorithm).compress(os.urandom(5000) + b"\0" * 5000)
    with pytest.raises(DecompressionFailed):
        decompress(compressed[:-20], sys_flag)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(DecompressionFailed, match="unknown compression"):
        decompress(b"", SysFlag.COMPRESSED | 0x400)


@pytest.mark.parametrize("arguments", [{"over_bytes": -1}, {"over_bytes": "4096"}, {"algorithm": "gzip"}])
def test_an_invalid_setting_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Compressor(**arguments)


class TestWithoutLibraries:
    @pytest.fixture(autouse=True)
    def hide_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Simulate an installation with only msgpack."""
        real_import = importlib.import_module

        def import_module(name: str, package: str | None = None) -> ModuleType:
            if name.startswith(("lz4", "zstandard", "compression.")):
                raise ModuleNotFoundError(name)
            return real_import(name, package)

        monkeypatch.setattr(importlib, "import_module", import_module)

    @pytest.mark.parametrize(("algorithm", "advice"), [("lz4", "pip install lz4"), ("zstd", ZSTD_ADVICE)])
    def test_a_missing_library_is_named_before_the_first_body(self, algorithm: str, advice: str) -> None:
        with pytest.raises(CompressionUnavailable, match=advice):
            Compressor(0, algorithm)
        assert Compressor(None, algorithm).compress(BODY) == (BODY, 0)
        with pytest.raises(CompressionUnavailable, match=advice):
            decompress(b"", SysFlag.COMPRESSED | FLAGS[algorithm])
