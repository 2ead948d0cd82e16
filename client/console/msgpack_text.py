"""msgpack as indented JSON, value by value: neither all of its values nor all of their text is ever in memory."""

from __future__ import annotations

import json
from typing import Any

import msgpack

from .json_text import DEPTH_MAX, IndentedText


def indent_msgpack(body: bytes, chars_max: int) -> tuple[str, bool] | None:
    """Return a msgpack map or array with one value a line, and whether it is complete; None if it is neither.

    Stops after ``chars_max`` characters of output: then the rest is not checked. What JSON lacks is shown as Python
    writes it: bytes, extensions, and keys that are not strings.
    """
    reader = msgpack.Unpacker(None, raw=False, strict_map_key=False, unicode_errors="backslashreplace")
    reader.feed(body)
    out = IndentedText(chars_max)
    try:
        _write(reader, body, out)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not out.is_full and reader.tell() != len(body):
        return None
    return out.text, not out.is_full


class _Open:
    """A map or an array whose end has not come. ``left``: number of values, keys included, that are to come."""

    __slots__ = ("is_map", "left", "size")

    def __init__(self, size: int, *, is_map: bool) -> None:
        self.is_map = is_map
        self.size = self.left = 2 * size if is_map else size


def _write(reader: Any, body: bytes, out: IndentedText) -> None:
    """Write the values until the outermost one ends or the text is full. Raises ``ValueError`` or msgpack's errors."""
    around: list[_Open] = []
    while not out.is_full:
        opener = _opener(body, reader.tell())
        is_key = bool(around) and around[-1].is_map and around[-1].left % 2 == 0
        if around:
            inner = around[-1]
            if is_key or not inner.is_map:
                out.append("," if inner.left < inner.size else "")
                out.line(len(around), "")
            inner.left -= 1
        if opener:
            if is_key or len(around) >= DEPTH_MAX:
                raise ValueError("it is nested deeper than people read, or has keys that are maps or arrays")
            size = reader.read_map_header() if opener == "{" else reader.read_array_header()
            around.append(_Open(size, is_map=opener == "{"))
            out.append(opener)
        elif around:
            out.append(_scalar(reader.unpack(), is_key=is_key))
        else:
            raise ValueError("it is neither a map nor an array")
        while around and not around[-1].left:
            ended = around.pop()
            closer = "}" if ended.is_map else "]"
            if ended.size:
                out.line(len(around), closer)
            else:
                out.append(closer)
        if not around:
            return


def _opener(body: bytes, at: int) -> str:
    """Return ``{`` or ``[`` if the value at this place is a map or an array, else an empty string."""
    first = body[at] if at < len(body) else 0
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return "{"
    return "[" if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD) else ""


def _scalar(value: Any, *, is_key: bool) -> str:
    if is_key:
        return f"{json.dumps(value if isinstance(value, str) else repr(value), ensure_ascii=False)}: "
    is_json = isinstance(value, str | int | float) or value is None
    return json.dumps(value if is_json else repr(value), ensure_ascii=False)
