"""Headers of remoting frames that no client should send: each is refused with its reason, and with its number."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from flintmq.protocol.frames import REQUEST, RESPONSE
from flintmq.protocol.remoting.codes import client_name, release_of
from flintmq.protocol.remoting.command import (
    BINARY_HEADER,
    JSON_HEADER,
    HeaderIllegal,
    RemotingFrame,
    decode_frame,
    encode_head,
    opaque_of,
)


def framed(header: bytes, header_type: int = JSON_HEADER, body: bytes = b"") -> bytearray:
    return bytearray(struct.pack(">II", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body)


def decoded(header: bytes | dict[str, Any], header_type: int = JSON_HEADER) -> RemotingFrame:
    blob = framed(header if isinstance(header, bytes) else json.dumps(header).encode(), header_type)
    return decode_frame(blob, 0, len(blob))


def with_fields(fields: Any) -> dict[str, Any]:
    return {"code": 10, "opaque": 77, "extFields": fields}


def binary(pairs: bytes, *, remark: int = 0, size: int | None = None, opaque: int = 77) -> bytes:
    head = struct.pack(">hBhiii", 10, 0, 479, opaque, 0, remark)
    return head + struct.pack(">i", len(pairs) if size is None else size) + pairs


def pair(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


ILLEGAL: dict[str, tuple[bytes | dict[str, Any], int, str, int]] = {
    "no JSON": (b"{code:1}", JSON_HEADER, "not JSON", 0),
    "empty": (b"", JSON_HEADER, "not JSON", 0),
    "an array": (b"[]", JSON_HEADER, "not a JSON object", 0),
    "more after the JSON": (b'{"code":1,"opaque":77}{}', JSON_HEADER, "after a remoting header's JSON", 77),
    "nested beyond any need": (b"[" * 30_000, JSON_HEADER, "not JSON", 0),
    "fields nested beyond any need": (b'{"extFields":{"a":' * 3_000, JSON_HEADER, "not JSON", 0),
    "no UTF-8": (b'{"code":1,"a":"\xff"}', JSON_HEADER, "not JSON", 0),
    "a number of 5,000 digits": (b'{"code":' + b"9" * 5_000 + b"}", JSON_HEADER, "not JSON", 0),
    "no code": ({"opaque": 77}, JSON_HEADER, "code is missing", 77),
    "a code that is a word": ({"code": "ten", "opaque": 77}, JSON_HEADER, "code must be an integer", 77),
    "a code that is null": ({"code": None, "opaque": 77}, JSON_HEADER, "code is missing", 77),
    "a code beyond 32 bits": ({"code": 2**31, "opaque": 77}, JSON_HEADER, "code is out of range", 77),
    "an opaque beyond 32 bits": ({"code": 10, "opaque": 2**31}, JSON_HEADER, "opaque is out of range", 0),
    "an opaque that is an array": ({"code": 10, "opaque": []}, JSON_HEADER, "opaque must be an integer", 0),
    "a NaN": (b'{"code":10,"opaque":77,"extFields":{"a":NaN}}', JSON_HEADER, "NaN is not JSON", 0),
    "fields that are an array": (with_fields([]), JSON_HEADER, "at most 256", 77),
    "257 fields": (with_fields({str(number): "" for number in range(257)}), JSON_HEADER, "at most 256", 77),
    "half a character": (b'{"code":10,"opaque":77,"extFields":{"a":"\\ud800"}}', JSON_HEADER, "surrogate", 77),
    "an unknown type of header": (b"{}", 7, "header of type 7", 0),
    "a binary header that is cut": (binary(b"")[:15], BINARY_HEADER, "cut", 0),
    "a binary header without fields": (binary(b"")[:-4], BINARY_HEADER, "cut", 77),
    "a remark of negative length": (binary(b"", remark=-1), BINARY_HEADER, "string of -1 bytes", 77),
    "a remark beyond the header": (binary(b"", remark=500), BINARY_HEADER, "string of 500 bytes", 77),
    "fields of negative length": (binary(b"", size=-1), BINARY_HEADER, "fields take -1 bytes", 77),
    "fields beyond the header": (binary(b"", size=1), BINARY_HEADER, "fields take 1 bytes", 77),
    "a name of negative length": (binary(struct.pack(">h", -2)), BINARY_HEADER, "string of -2 bytes", 77),
    "a value of negative length": (binary(b"\x00\x01a" + b"\xff" * 4), BINARY_HEADER, "string of -1 bytes", 77),
    "a value of two gigabytes": (binary(b"\x00\x01a\x7f\xff\xff\xff"), BINARY_HEADER, "string of 2147483647", 77),
    "a field beyond the fields": (binary(pair(b"a", b"bcd"), size=8) + b"", BINARY_HEADER, "after its fields", 77),
    "a name that is not UTF-8": (binary(pair(b"\xff", b"")), BINARY_HEADER, "not UTF-8", 77),
    "257 binary fields": (
        binary(b"".join(pair(b"%d" % number, b"") for number in range(257))),
        BINARY_HEADER,
        "256",
        77,
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_header_is_refused_with_its_reason_and_its_number(name: str) -> None:
    header, header_type, words, opaque = ILLEGAL[name]
    with pytest.raises(HeaderIllegal) as refusal:
        decoded(header, header_type)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert refusal.value.opaque == opaque


LENIENT: dict[str, tuple[Any, dict[str, str]]] = {
    "256 fields": ({f"f{number}": "" for number in range(256)}, {f"f{number}": "" for number in range(256)}),
    "numbers": ({"a": 1, "b": -(2**63), "c": 1.5}, {"a": "1", "b": "-9223372036854775808", "c": "1.5"}),
    "bools and nulls": ({"a": True, "b": False, "c": None}, {"a": "true", "b": "false", "c": ""}),
    "no fields": (None, {}),
}


@pytest.mark.parametrize("name", LENIENT)
def test_fields_of_other_types_are_read_as_java_writes_them(name: str) -> None:
    sent, read = LENIENT[name]
    assert decoded(with_fields(sent)).fields == read


def test_of_two_members_of_one_name_the_last_counts() -> None:
    frame = decoded(b'{"code":1,"code":10,"opaque":5,"extFields":{"a":"1","a":"2"}}')
    assert (frame.code, frame.fields) == (10, {"a": "2"})
    assert decoded(binary(pair(b"a", b"1") + pair(b"a", b"2")), BINARY_HEADER).fields == {"a": "2"}


@pytest.mark.parametrize("language", [99, None, "A NAME THAT IS TOO LONG FOR A LANGUAGE"])
def test_an_unknown_language_is_another_one(language: Any) -> None:
    assert decoded({"code": 10, "language": language}).language == "OTHER"


def test_a_pop_code_fits_into_json_only() -> None:
    """RocketMQ cuts it in a binary header, too, which is why its own clients use POP with JSON."""
    for header_type, code in ((JSON_HEADER, 200_050), (BINARY_HEADER, 200_050 - 3 * 2**16)):
        blob = bytearray(encode_head(REQUEST, 200_050, 1, {}, 0, header_type=header_type))
        assert decode_frame(blob, 0, len(blob)).code == code


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER])
def test_an_answer_with_half_a_character_can_be_encoded(header_type: int) -> None:
    head = encode_head(RESPONSE, 1, 1, {"a": "\ud800"}, 0, remark="\ud800", header_type=header_type)
    frame = decode_frame(bytearray(head), 0, len(head))
    assert (frame.fields, frame.remark) == ({"a": "?"}, "?")


@pytest.mark.parametrize(
    ("blob", "opaque"),
    [
        (framed(b'{"code":105,"opaque":9}'), 9),
        (framed(binary(b"", opaque=9), BINARY_HEADER), 9),
        (framed(b'{"code":105,"opaque":9}')[:12], 0),
        (framed(b"{not JSON}"), 0),
        (framed(b"\x94\x00\x0b\x07\x80"), None),
        (framed(b"\x94\x00\x0b\x07\x80" + bytes(30), BINARY_HEADER), None),
        (bytearray(b"GET / HTTP/1.1\r\n\r\n"), None),
        (bytearray(64), None),
        (bytearray(b"\x00\x00"), None),
    ],
)
def test_a_remoting_request_is_recognized_at_another_port(blob: bytearray, opaque: int | None) -> None:
    assert opaque_of(blob, 0, len(blob)) == opaque


@pytest.mark.parametrize(
    ("version", "release"),
    [(479, "5.3.3"), (478, "5.3.3-SNAPSHOT"), (399, "4.9.3"), (413, "5.0.0"), (233, "4.1.0"), (121, "version 121")],
)
def test_a_version_number_is_shown_as_its_release(version: int, release: str) -> None:
    assert release_of(version) == release


def test_a_language_that_could_break_a_line_is_not_shown() -> None:
    assert client_name("GO", 317) == "rocketmq go 4.5.2"
    assert client_name("A\nB", 479) == "rocketmq other 5.3.3"
    assert client_name("", -1) == "rocketmq other version -1"
