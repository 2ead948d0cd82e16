"""An encoder and a decoder of remoting frames, written for clarity from the layout alone.

The encoder writes what clients write: spaces and any order of members in JSON, numbers as fields, fields that are
null; an unknown language, and an empty text where another has none, in binary headers.
"""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass
from typing import Any

LANGUAGES = "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS".split()


@dataclass(frozen=True)
class TwinFrame:
    """One frame. ``flag``: 1 response, 2 one-way, 3 both."""

    binary: bool
    code: int
    language: str
    version: int
    opaque: int
    flag: int
    remark: str
    fields: tuple[tuple[str, str], ...]
    body: bytes


def encode(frame: TwinFrame, seed: int) -> bytes:
    """Return the bytes of a frame; ``seed`` chooses among the forms that mean the same."""
    header: bytes = _binary_header(frame) if frame.binary else _json_header(frame, random.Random(seed))
    length = 4 + len(header) + len(frame.body)
    return _int(length, 4) + _int(frame.binary, 1) + _int(len(header), 3) + header + frame.body


def _json_header(frame: TwinFrame, choose: random.Random) -> bytes:
    members: list[tuple[str, Any]] = [
        ("code", frame.code),
        ("language", frame.language),
        ("version", frame.version),
        ("opaque", frame.opaque),
        ("flag", frame.flag),
        ("serializeTypeCurrentRPC", "JSON"),
        ("not known to anyone", [{"a": None}]),
    ]
    if frame.remark or choose.random() < 0.5:
        members.append(("remark", frame.remark or None))
    if frame.fields or choose.random() < 0.5:
        members.append(("extFields", dict(frame.fields) if frame.fields else choose.choice([None, {}])))
    choose.shuffle(members)
    text = json.dumps(dict(members), indent=choose.choice([None, 1]), ensure_ascii=choose.random() < 0.5)
    return (choose.choice(["", " \r\n\t"]) + text + choose.choice(["", "\n "])).encode()


def _binary_header(frame: TwinFrame) -> bytes:
    pairs = b"".join(
        _int(len(name.encode()), 2) + name.encode() + _int(len(value.encode()), 4) + value.encode()
        for name, value in frame.fields
    )
    language = LANGUAGES.index(frame.language) if frame.language in LANGUAGES else 99
    remark = frame.remark.encode()
    numbers = _int(frame.code, 2) + _int(language, 1) + _int(frame.version, 2) + _int(frame.opaque, 4)
    return b"".join((numbers, _int(frame.flag, 4), _int(len(remark), 4), remark, _int(len(pairs), 4), pairs))


def _int(value: int, size: int) -> bytes:
    return bytes((value >> 8 * place) & 0xFF for place in reversed(range(size)))


def decode(blob: bytes) -> TwinFrame:
    """Return the frame that fills ``blob``."""
    source = io.BytesIO(blob)
    assert _take_int(source, 4) == len(blob) - 4
    binary = bool(_take_int(source, 1))
    header = source.read(_take_int(source, 3))
    return _from_binary(header, source.read()) if binary else _from_json(header, source.read())


def _from_json(header: bytes, body: bytes) -> TwinFrame:
    members = json.loads(header)
    assert members.pop("serializeTypeCurrentRPC") == "JSON"
    fields = members.pop("extFields") or {}
    remark = members.pop("remark") or ""
    return TwinFrame(False, remark=remark, fields=tuple(fields.items()), body=body, **members)


def _from_binary(header: bytes, body: bytes) -> TwinFrame:
    source = io.BytesIO(header)
    code, language = _take_int(source, 2, signed=True), LANGUAGES[_take_int(source, 1)]
    version, opaque, flag = (_take_int(source, size, signed=True) for size in (2, 4, 4))
    remark = source.read(_take_int(source, 4)).decode()
    pairs = io.BytesIO(source.read(_take_int(source, 4)))
    fields = []
    while pairs.tell() < len(pairs.getvalue()):
        name = pairs.read(_take_int(pairs, 2)).decode()
        fields.append((name, pairs.read(_take_int(pairs, 4)).decode()))
    assert not source.read()
    return TwinFrame(True, code, language, version, opaque, flag, remark, tuple(fields), body)


def _take_int(source: io.BytesIO, size: int, *, signed: bool = False) -> int:
    blob = source.read(size)
    assert len(blob) == size
    return int.from_bytes(blob, "big", signed=signed)
