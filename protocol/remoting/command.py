"""Frames of the remoting protocol: a header in JSON or in RocketMQ's binary form, then a body.

    u32 length of what follows | u32 (type << 24 | header length) | header | body

Type 0 is a JSON header, type 1 a binary one. All integers are big-endian. Both forms carry the same members: a code,
the number by which a response finds its request (``opaque``), flags, a remark, and *extension fields*, strings by name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RemoteProtocolError
from ..frames import HEADER_ITEMS_MAX, ONE_WAY, REQUEST, RESPONSE, Frame
from . import codes
from .fastjson import FastjsonError, as_integer, as_text, as_word

REMOTING_HEADER_BYTES_MAX = 128 * 1024
"""Longest header that is read. Properties may be too long for a message by a factor of three (characters, not bytes,
are what clients count) and still get an answer that says so, where a longer header ends the connection."""
JSON_HEADER = 0
BINARY_HEADER = 1
VERSION = 479
"""``MQVersion`` of RocketMQ 5.3.3, whose answers these are: clients ask for some features only from a version on."""
LANGUAGE = "OTHER"
REGION = "DefaultRegion"
"""Region of every message: FlintMQ has no others."""
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
"""Names of RocketMQ's ``LanguageCode`` by number."""

LENGTHS = struct.Struct(">II")
_LENGTH_MASK = 0xFFFFFF
_RESPONSE_FLAG = 1
_ONE_WAY_FLAG = 2
_LANGUAGE_NUMBER = LANGUAGES.index(LANGUAGE)
_FLAGS = {REQUEST: 0, RESPONSE: _RESPONSE_FLAG, ONE_WAY: _ONE_WAY_FLAG}
_BINARY = struct.Struct(">hBhiii")
"""Code, language, version, opaque, flag, length of the remark."""
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_I32_RANGE = range(-(2**31), 2**31)
_I16_RANGE = range(-(2**15), 2**15)
_FIXARRAY_4 = 0x94
"""First byte of every header of FlintMQ's own protocol: a msgpack array of four items."""
_BLANKS = " \t\r\n"
encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_decode_json, _decode_begin = _decoder.decode, _decoder.raw_decode


class HeaderIllegal(RemoteProtocolError):
    """A header that is not RocketMQ's. ``opaque``: the request's number as far as it can be read, else 0."""

    def __init__(self, message: str, opaque: int = 0) -> None:
        super().__init__(message)
        self.opaque = opaque


class RemotingFrame(Frame):
    """One received frame. ``request_id`` is the opaque number, ``fields`` the extension fields.

    ``header_type``: ``JSON_HEADER`` or ``BINARY_HEADER``, which the response must have too; ``version``: the peer's
    ``MQVersion``; ``language``: name of the peer's language; ``remark``: text of a response.
    """

    __slots__ = ("header_type", "language", "remark", "version")

    header_type: int
    language: str
    remark: str
    version: int


def header_end(buffer: bytearray, start: int, end: int) -> int:
    """Return the position after the header of the frame ``buffer[start:end]``, of which its lengths have arrived.

    Raises ``HeaderIllegal`` if the header is too long.
    """
    if end - start < LENGTHS.size:
        raise HeaderIllegal(f"a frame of {end - start - 4} bytes cannot hold the length of its header")
    # Three bytes: the fourth one, before them, is the type.
    header_bytes = int.from_bytes(buffer[start + 5 : start + 8], "big")
    possible = min(REMOTING_HEADER_BYTES_MAX, end - start - LENGTHS.size)
    if header_bytes > possible:
        raise HeaderIllegal(
            f"a remoting header of {header_bytes:,} bytes in a frame of {end - start - 4:,}; at most {possible:,} are "
            "possible"
        )
    return start + LENGTHS.size + header_bytes


def is_flintmq(buffer: bytearray, start: int, end: int) -> bool:
    """Return whether the bytes at ``start`` begin as a frame of FlintMQ's own protocol."""
    return end - start > LENGTHS.size and buffer[start + 4] == 0 and buffer[start + LENGTHS.size] == _FIXARRAY_4


def opaque_of(buffer: bytearray, start: int, end: int) -> int | None:
    """Return the number of the remoting request at ``start``; 0 if it has not arrived whole, None if it is not one."""
    if end - start <= LENGTHS.size:
        return None
    frame_length, word = LENGTHS.unpack_from(buffer, start)
    first = buffer[start + LENGTHS.size]
    looks = first == ord("{") or (word >> 24 == BINARY_HEADER and first != _FIXARRAY_4)
    if not looks or not 4 + (word & _LENGTH_MASK) <= frame_length:
        return None
    if start + 4 + frame_length > end:
        return 0
    try:
        return decode_frame(buffer, start, start + 4 + frame_length).request_id
    except RemoteProtocolError:
        return 0


def decode_frame(buffer: bytearray, start: int, end: int) -> RemotingFrame:
    """Return the whole frame ``buffer[start:end]``, its length field included.

    Raises ``HeaderIllegal`` if its header is not RocketMQ's.
    """
    body_at = header_end(buffer, start, end)
    header_at = start + LENGTHS.size
    header_type = buffer[start + 4]
    if header_type == JSON_HEADER:
        frame = _decode_json_header(buffer[header_at:body_at])
    elif header_type == BINARY_HEADER:
        frame = _decode_binary_header(buffer[header_at:body_at])
    else:
        raise HeaderIllegal(f"a remoting header of type {header_type}; 0 (JSON) and 1 (binary) are known")
    frame.header_type = header_type
    frame.buffer, frame.body_at, frame.body_end = buffer, body_at, end
    return frame


def _frame(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str, fields: dict[str, str]
) -> RemotingFrame:
    kind = RESPONSE if flag & _RESPONSE_FLAG else ONE_WAY if flag & _ONE_WAY_FLAG else REQUEST
    frame = RemotingFrame(kind, code, opaque, fields, _NO_BYTES, 0, 0)
    frame.language, frame.version, frame.remark = language, version, remark
    return frame


_NO_BYTES = bytearray()


def _decode_json_header(header: bytearray) -> RemotingFrame:
    members: Any
    try:
        text = header.decode()
        if text[:1] == "{":
            # ``raw_decode``, because ``decode`` looks for white space on both sides of every header.
            members, end = _decode_begin(text)
            if end != len(text) and text[end:].strip(_BLANKS):
                raise HeaderIllegal(f"{len(text) - end} characters after a remoting header's JSON", _opaque(members))
        else:
            members = _decode_json(text)  # white space may precede it
    except (ValueError, RecursionError) as error:
        raise HeaderIllegal(f"a remoting header that is not JSON: {str(error)[:200]}") from None
    if type(members) is not dict:
        raise HeaderIllegal("a remoting header that is not a JSON object")
    get = members.get
    # A missing code fails the check below; the others have the defaults of RocketMQ's ``RemotingCommand``.
    code, opaque, flag, version = get("code", ""), get("opaque", 0), get("flag", 0), get("version", 0)
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        code, opaque, flag, version = (_as_integer(members, name) for name in ("code", "opaque", "flag", "version"))
    for name, number in (("code", code), ("opaque", opaque), ("flag", flag), ("version", version)):
        if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
            raise HeaderIllegal(f"a remoting header whose {name} is out of range; it must be an i32", _opaque(members))
    fields = get("extFields")
    if fields is None or fields == "":
        fields = {}
    elif type(fields) is not dict or len(fields) > HEADER_ITEMS_MAX:
        raise HeaderIllegal(
            f"a remoting header whose extFields are not an object of at most {HEADER_ITEMS_MAX} items", opaque
        )
    # Values may be replaced during the iteration, because the keys stay.
    for name, value in fields.items():
        if type(value) is not str:
            fields[name] = _as_text(name, value, opaque)
    # Only an escape makes a lone surrogate: the header itself was valid UTF-8.
    if b"\\u" in header:
        _check_encodable(fields, opaque)
    remark, language = get("remark"), get("language")
    return _frame(
        code,
        language if language in LANGUAGES else _as_language(language),
        version,
        opaque,
        flag,
        remark if type(remark) is str else "",
        fields,
    )


def _opaque(members: object) -> int:
    """Return the number of a request whose header is refused."""
    try:
        opaque = as_integer(members.get("opaque")) if type(members) is dict else 0
    except FastjsonError:
        return 0
    return opaque if opaque is not None and opaque in _I32_RANGE else 0


def _as_integer(members: dict[str, Any], name: str) -> int:
    """Return a number of the header that may be of another type. Raises ``HeaderIllegal``."""
    try:
        number = as_integer(members.get(name))
    except FastjsonError as error:
        raise HeaderIllegal(f"a remoting header whose {name} {error}", _opaque(members)) from None
    if number is None and name == "code":
        raise HeaderIllegal("a remoting header whose code is missing", _opaque(members))
    return number or 0


def _as_language(value: object) -> str:
    """Return the name of a language that is a number, or in lower case; ``LANGUAGE`` for an unknown one."""
    try:
        return as_word(value, LANGUAGES) or LANGUAGE
    except FastjsonError:
        return LANGUAGE


def _as_text(name: str, value: object, opaque: int) -> str:
    """Return a field's value as the text that Java's clients would have sent; some clients send numbers."""
    try:
        return as_text(value) or ""
    except RecursionError:
        raise HeaderIllegal(f"a remoting header whose field {name[:40]!a} is nested too deep", opaque) from None


def _check_encodable(fields: dict[str, str], opaque: int) -> None:
    """Raise ``HeaderIllegal`` if an escape made half of a character, which no name and no message can contain."""
    try:
        "".join((*fields, *fields.values())).encode()
    except UnicodeEncodeError:
        raise HeaderIllegal("a remoting header with a surrogate that is not a character", opaque) from None


def _decode_binary_header(header: bytearray) -> RemotingFrame:
    opaque = 0
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
        at = _BINARY.size
        remark, at = _take(header, at, remark_bytes, opaque)
        (fields_bytes,) = _I32.unpack_from(header, at)
        at += _I32.size
        end = at + fields_bytes
        if fields_bytes < 0 or end > len(header):
            raise HeaderIllegal(f"a binary remoting header whose fields take {fields_bytes} bytes", opaque)
        fields: dict[str, str] = {}
        while at < end:
            (name_bytes,) = _I16.unpack_from(header, at)
            name, at = _take(header, at + _I16.size, name_bytes, opaque)
            (value_bytes,) = _I32.unpack_from(header, at)
            value, at = _take(header, at + _I32.size, value_bytes, opaque)
            fields[name] = value
            if len(fields) > HEADER_ITEMS_MAX:
                raise HeaderIllegal(f"a binary remoting header with more than {HEADER_ITEMS_MAX} fields", opaque)
        # A text is only bounded by the header, so the last one may reach beyond the fields.
        if at != end:
            raise HeaderIllegal("a binary remoting header whose last field ends after its fields", opaque)
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderIllegal(f"a binary remoting header that is cut or not UTF-8: {error}", opaque) from None
    name = LANGUAGES[language] if language < len(LANGUAGES) else LANGUAGE
    return _frame(code, name, version, opaque, flag, remark, fields)


def _take(header: bytearray, at: int, size: int, opaque: int) -> tuple[str, int]:
    """Return the text of ``size`` bytes at ``at``, and the position after it."""
    if size < 0 or at + size > len(header):
        raise HeaderIllegal(f"a binary remoting header with a string of {size} bytes at byte {at}", opaque)
    return header[at : at + size].decode(), at + size


def encode_head(
    kind: int,
    code: int,
    opaque: int,
    fields: Mapping[str, str] | None,
    body_bytes: int,
    *,
    remark: str | None = None,
    header_type: int = JSON_HEADER,
) -> bytes:
    """Return everything that precedes the body in a frame; the caller sends the body of ``body_bytes`` bytes itself.

    ``kind``: as in ``frames``. A binary header holds only codes of 16 bits: larger ones are cut, as RocketMQ cuts them.
    """
    flag = _FLAGS[kind]
    if header_type == BINARY_HEADER:
        header = _encode_binary_header(code, opaque, flag, remark, fields or {})
    else:
        header = (
            f'{{"code":{code},"extFields":{"null" if fields is None else encode_json(fields)},"flag":{flag},'
            f'"language":"{LANGUAGE}","opaque":{opaque},"remark":{encode_json(remark)},'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode("utf-8", "replace")
    return LENGTHS.pack(4 + len(header) + body_bytes, header_type << 24 | len(header)) + header


def encode_send_answer(opaque: int, message_ids: str, queue: int, queue_offset: int, transaction_id: str) -> bytes:
    """Return the answer to a send that was stored, with a JSON header: as ``encode_head``, at a tenth of its cost.

    ``message_ids``: offset ids, separated by commas; ``transaction_id``: the message's unique key as JSON.
    """
    header = (
        f'{{"code":0,"extFields":{{"msgId":"{message_ids}","queueId":"{queue}","queueOffset":"{queue_offset}",'
        f'"transactionId":{transaction_id},"MSG_REGION":"{REGION}","TRACE_ON":"true"}},"flag":{_RESPONSE_FLAG},'
        f'"language":"{LANGUAGE}","opaque":{opaque},"remark":null,"serializeTypeCurrentRPC":"JSON",'
        f'"version":{VERSION}}}'
    ).encode("utf-8", "replace")
    return LENGTHS.pack(4 + len(header), len(header)) + header


def _encode_binary_header(code: int, opaque: int, flag: int, remark: str | None, fields: Mapping[str, str]) -> bytes:
    text = (remark or "").encode("utf-8", "replace")
    parts = []
    for name, value in fields.items():
        name_blob, value_blob = name.encode(), value.encode("utf-8", "replace")
        parts += [_I16.pack(len(name_blob)), name_blob, _I32.pack(len(value_blob)), value_blob]
    pairs = b"".join(parts)
    short = code if code in _I16_RANGE else _I16.unpack(struct.pack(">H", code & 0xFFFF))[0]
    begin = _BINARY.pack(short, _LANGUAGE_NUMBER, VERSION, opaque, flag, len(text))
    return begin + text + _I32.pack(len(pairs)) + pairs


# ---- Headers of sends that differ from an accepted one only in what differs from message to message.
#
# Clients write each header in the same way: only the queue, the time of birth, the values of the properties
# and the number of the request change. A pattern that is made from one header's bytes finds those in the next
# header, without JSON. It accepts less than a parser does, never more: any other header is for the general
# decoder.

NAMES = {codes.SEND_MESSAGE: ("queueId", "bornTimestamp", "properties"), codes.SEND_MESSAGE_V2: ("e", "g", "i")}
"""Names of the three fields that change, by the code of the send."""
_VALUE = rb"[ !#-\[\]-~]+"
"""Printable ASCII without the two characters that JSON escapes."""
_PROPERTIES = re.compile(rb'"(i|properties)":"((?:[ !#-\[\]-~]|\\u000[12])*)"')
_PAIR = re.compile(rb"([!#-\[\]-~]+)\\u0001([ !#-\[\]-~]+)\Z")
_OPAQUE = re.compile(rb'"opaque":([0-9]{1,9})(?=[,}])')
_UNIQUE_KEYS = {32: rb"[0-9A-F]{32}", 56: rb"[0-9A-F]{56}"}
"""Unique keys of clients on hosts with IPv4 and with IPv6 alone, by their number of digits."""
_EXT_FIELDS = re.compile(rb'"extFields":\{([^{}]*)\}')


def send_pattern(header: bytes, code: int, unique_key_name: str) -> re.Pattern[bytes] | None:
    """Return the pattern of the headers like an accepted one, or None.

    ``unique_key_name``: name of the property with the unique key, which must have as many hexadecimal digits as that of
    the accepted header. The pattern's groups are ``queue``, ``born``, ``properties`` (with the separators still
    escaped), ``key`` and ``opaque``.
    """
    names = NAMES.get(code)
    ext_fields = _EXT_FIELDS.findall(header)
    found = _PROPERTIES.findall(header)

    # Every part that changes must be there exactly once: a match must not take one field for another.
    if names is None or len(ext_fields) != 1 or len(found) != 1 or found[0][0] != names[2].encode():
        return None
    pairs = [_PAIR.match(pair) for pair in found[0][1].removesuffix(rb"\u0002").split(rb"\u0002")]
    property_names = [pair[1].decode() if pair else "" for pair in pairs]
    keys = [len(pair[2]) for pair in pairs if pair and pair[1].decode() == unique_key_name]
    whole = _PROPERTIES.search(header)
    opaque = list(_OPAQUE.finditer(header))
    # Without escapes, a quote begins or ends a string, so a member's name is where its bytes are.
    constant = header.replace(found[0][1], b"", 1)
    if "" in property_names or len(keys) != 1 or keys[0] not in _UNIQUE_KEYS or b"\\" in constant or whole is None:
        return None
    # The header and its extension fields are the only objects.
    if header.count(b"{") != 2 or header.count(b"}") != 2 or len(opaque) != 1:
        return None
    spans = [(whole.start(2), whole.end(2), _properties_pattern(found[0][1], property_names, unique_key_name, keys[0]))]

    # So many digits fit an i32 and an i64 whatever they are.
    for name, group, digits in ((names[0], b"queue", b"9"), (names[1], b"born", b"18")):
        numbers = list(re.finditer(rb'"%b":"([0-9]{1,%b})"' % (name.encode(), digits), header))
        if len(numbers) != 1 or numbers[0][0] not in ext_fields[0]:
            return None
        spans.append((numbers[0].start(1), numbers[0].end(1), rb"(?P<%b>[0-9]{1,%b})" % (group, digits)))
    # Then it is an extension field of that name, not the request's number.
    if opaque[0][0] in ext_fields[0]:
        return None
    spans.append((opaque[0].start(1), opaque[0].end(1), rb"(?P<opaque>[0-9]{1,9})"))

    # Everything between the parts that change must be the same byte for byte.
    pattern, at = b"", 0
    for begin, end, part in sorted(spans):
        pattern += re.escape(header[at:begin]) + part
        at = end
    return re.compile(pattern + re.escape(header[at:]))


def _properties_pattern(text: bytes, names: Sequence[str], unique_key_name: str, digits: int) -> bytes:
    values = {unique_key_name: rb"(?P<key>%b)" % _UNIQUE_KEYS[digits]}
    parts = [re.escape(name.encode()) + rb"\\u0001" + values.get(name, _VALUE) for name in names]
    end = rb"\\u0002" if text.endswith(rb"\u0002") else b""
    return rb"(?P<properties>" + rb"\\u0002".join(parts) + end + rb")"


def plain_properties(text: bytes) -> bytes:
    """Return the properties that a pattern has found, as the store has them: each ends with its separator."""
    plain = text.replace(rb"\u0001", b"\x01").replace(rb"\u0002", b"\x02")
    return plain if plain.endswith(b"\x02") else plain + b"\x02"


# ---- Signatures of requests: HMAC-SHA1 with a secret key, as RocketMQ's ``AclClientRPCHook`` makes them.
#
# A signature covers the values of the extension fields, in the order of their names, and the body. Neither the code of
# the request, the names, a time nor the connection is part of it, so who has a signed request can send it again, or
# send its values as another request: no signature may be passed on to a client, and only TLS hides it on the wire.

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken"})
"""Fields by which a client proves who it is."""
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_VERSION_ADDS_LATER = 399
"""``MQVersion`` of 4.9.3: clients up to it add ``_UNIQUE_KEY_QUERY`` after they have signed the request."""


def signature_of(fields: Mapping[str, str], body: bytes | memoryview, version: int, secret: bytes) -> bytes:
    """Return the signature of a request, 20 bytes. ``version``: the client's ``MQVersion``."""
    # In the order of their names, because RocketMQ collects them in a ``TreeMap``.
    values = [
        fields[name]
        for name in sorted(fields)
        if name != SIGNATURE and (name != _UNIQUE_KEY_QUERY or version > _VERSION_ADDS_LATER)
    ]
    content = "".join(values).encode("utf-8", "replace")
    return hmac.digest(secret, b"".join((content, body)) if body else content, "sha1")


def is_signed(fields: Mapping[str, str], body: bytes | memoryview, version: int, secret: bytes) -> bool:
    """Return whether the field ``Signature`` is the request's signature; its time does not depend on the answer."""
    try:
        found = base64.b64decode(fields.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    return hmac.compare_digest(found, signature_of(fields, body, version, secret))


def signed(fields: Mapping[str, str], body: bytes, version: int, access_key: str, secret: str) -> dict[str, str]:
    """Return ``fields`` with the access key and the signature that a client sends."""
    named = {**fields, ACCESS_KEY: access_key}
    return named | {SIGNATURE: base64.b64encode(signature_of(named, body, version, secret.encode())).decode()}
