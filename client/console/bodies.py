"""Bodies of messages as people read them: JSON, text, hex or msgpack. A body is data and never becomes markup."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from ...protocol.escaping import escape
from ...protocol.storage.layout import SysFlag
from .json_text import indent_json
from .msgpack_text import indent_msgpack

SHOWN_BYTES_MAX = 64 * 1024
"""Maximum number of bytes of a body in a detail page; a download has all of them."""
PREVIEW_CHARS = 200
"""Maximum length of a body in a list."""
MSGPACK_BYTES_MAX = 256 * 1024
"""Larger bodies are not decoded as msgpack."""
_SCHEMA_HEAD_BYTES = 5
_HEX_COLUMNS = 16
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters that no text has."""
VIEWS = ("json", "text", "hex", "msgpack")


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body in one view. ``name``: one of ``VIEWS``, or a decoder's; ``is_whole``: all of it is in ``text``;
    ``views``: the views that fit this body; ``hint``: a remark about its format."""

    name: str
    text: str
    is_whole: bool
    views: tuple[str, ...]
    hint: str = ""


def view_body(body: bytes, wanted: str = "", bytes_max: int = SHOWN_BYTES_MAX, *, is_whole: bool = True) -> BodyView:
    """Return a body in the wanted view, or in the one that fits its content best.

    ``is_whole``: ``body`` is not only the beginning of one, of more than ``MSGPACK_BYTES_MAX`` bytes.
    """
    as_json = _as_json(body, bytes_max)
    as_msgpack = None if as_json or not _looks_packed(body) else _as_msgpack(body, bytes_max)
    is_text = _is_text(body, bytes_max)
    fitting = [name for name, found in (("json", as_json), ("msgpack", as_msgpack)) if found]
    views = (*fitting, *(("text", "hex") if is_text or as_json else ("hex", "text")))
    name = wanted if wanted in views else views[0]
    hint = _schema_hint(body)
    if name == "json" and as_json:
        return BodyView(name, *as_json, views, hint)
    if name == "msgpack" and as_msgpack:
        return BodyView(name, *as_msgpack, views, hint)
    shown = body[:bytes_max]
    text = hex_lines(shown) if name == "hex" else visible_text(shown)
    return BodyView(name, text, is_whole and len(shown) == len(body), views, hint)


def preview(prefix: bytes, sys_flag: int, is_whole: bool) -> str:
    """Return the beginning of a body on one line. ``prefix``: as stored, so perhaps compressed."""
    if sys_flag & SysFlag.COMPRESSED:
        try:
            # A character has at most four bytes in UTF-8. More is not unpacked: a small body may unpack to a huge one.
            prefix = zlib.decompressobj().decompress(prefix, 4 * PREVIEW_CHARS)
        except zlib.error:
            return "(compressed)"
        is_whole = False
    if not prefix:
        return ""
    if not _is_text(prefix, len(prefix)):
        shown = prefix[: PREVIEW_CHARS // 4].hex(" ")
        return f"{shown}…" if len(prefix) > PREVIEW_CHARS // 4 or not is_whole else shown
    # The prefix may end in the middle of a character.
    text = prefix.decode("utf-8", "ignore")
    cut = len(text) > PREVIEW_CHARS or not is_whole
    # Twice the length is split, because white space shrinks to single spaces.
    return escape(" ".join(text[: PREVIEW_CHARS * 2].split())[:PREVIEW_CHARS]) + ("…" if cut else "")


def visible_text(data: bytes) -> str:
    """Return bytes as text with its line ends; other control characters and marks of direction are escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if text.replace("\n", "").isprintable():  # as indented JSON, without a look at each of its lines
        return text
    return "\n".join(
        "\t".join(escape(cell) for cell in line.removesuffix("\r").split("\t")) for line in text.split("\n")
    )


def hex_lines(data: bytes) -> str:
    """Return a hex dump: offset, 16 bytes, and the bytes as ASCII."""
    lines = []
    for at in range(0, len(data), _HEX_COLUMNS):
        row = data[at : at + _HEX_COLUMNS]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {left:<23}  {right:<23}  {ascii_text}")
    return "\n".join(lines)


def _is_text(body: bytes, bytes_max: int) -> bool:
    """Return whether the beginning of a body is UTF-8 without control characters other than white space."""
    head = body[:bytes_max]
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        is_cut_letter = error.reason == "unexpected end of data" and len(head) < len(body)
        if not is_cut_letter:
            return False
        text = head[: error.start].decode("utf-8")
    return _CONTROL.search(text) is None


def _as_json(body: bytes, bytes_max: int) -> tuple[str, bool] | None:
    if body.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return None
    # Twice the limit, so that a token that begins before the limit is complete.
    head = body if len(body) <= 2 * bytes_max else body[: 2 * bytes_max]
    try:
        text = head.decode("utf-8", "strict" if head is body else "ignore")
    except UnicodeDecodeError:
        return None
    found = indent_json(text, bytes_max, is_cut=head is not body)
    return None if found is None else (visible_text(found[0].encode("utf-8", "backslashreplace")), found[1])


def _looks_packed(body: bytes) -> bool:
    """Return whether a body begins like a msgpack map or array: any byte begins some msgpack value."""
    first = body[:1]
    return bool(first) and (0x80 <= first[0] <= 0x9F or 0xDC <= first[0] <= 0xDF)


def _as_msgpack(body: bytes, chars_max: int) -> tuple[str, bool] | None:
    if len(body) > MSGPACK_BYTES_MAX:
        return None
    found = indent_msgpack(body, chars_max)
    return None if found is None else (visible_text(found[0].encode("utf-8", "backslashreplace")), found[1])


def _schema_hint(body: bytes) -> str:
    """Return a remark if a body is framed for a schema registry: a zero byte, then the schema's id."""
    if len(body) > _SCHEMA_HEAD_BYTES and body[0] == 0:
        schema = int.from_bytes(body[1:5], "big")
        # Other formats begin with a zero byte, too, but seldom with a small number after it.
        if 0 < schema < 1_000_000:
            return f"the first five bytes may be a schema registry's head: schema id {schema}"
    return ""
