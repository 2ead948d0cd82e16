"""Headers of sends that differ from an accepted one only in what differs from message to message.

Clients write each header in the same way: only the queue, the time of birth, the values of the properties and the
number of the request change. A pattern that is made from one header's bytes finds those in the next header, without
JSON. It accepts less than a parser does, never more: any other header is for the general decoder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import codes

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
