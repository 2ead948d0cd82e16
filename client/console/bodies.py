"""Bodies of messages as people read them: JSON, text, hex or msgpack. A body is data and never becomes markup."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import re
import threading
import zlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgpack

from ...protocol.display import escape
from ...protocol.storage.layout import SysFlag
from ..application_code import described

# ---- JSON indented token by token.
#
# Numbers, escapes, the order of keys and repeated keys stay exactly as they were sent: nothing is parsed into
# Python values, where ``1.10`` would become ``1.1`` and a long integer would lose digits.

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")
    |(?P<scalar>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)
    |(?P<mark>[{}\[\],:])
    )""",
    re.VERBOSE,
)
_END = re.compile(r"[ \t\r\n]*\Z")
DEPTH_MAX = 64
INDENT = "  "


class IndentedText:
    """Text that is made piece by piece, up to a maximum: indentation can make a small body large."""

    def __init__(self, chars_max: int) -> None:
        self._pieces: list[str] = []
        self._room = chars_max

    @property
    def is_full(self) -> bool:
        return self._room < 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def append(self, piece: str) -> None:
        """Append to the last line."""
        if self._room >= 0:
            self._pieces.append(piece[: self._room])
            self._room -= len(piece)

    def line(self, depth: int, piece: str) -> None:
        """Append on a line of its own."""
        self.append(f"\n{INDENT * depth}{piece}")


def indent_json(text: str, chars_max: int, *, is_cut: bool = False) -> tuple[str, bool] | None:
    """Return ``text`` with one value a line, and whether it is complete; None if it is not a JSON object or array.

    Stops after ``chars_max`` characters of output: then the rest is not checked. ``is_cut``: ``text`` is only the
    beginning, so its last string may have no end.
    """
    out = IndentedText(chars_max)
    closers: list[str] = []
    at, expects = 0, "value"
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            # Only a cut text may end within a string, which is then shown as far as it goes.
            rest = text[at:].lstrip(" \t\r\n")
            if not (is_cut and closers and rest.startswith('"')):
                return None
            out.append(rest)
            return out.text, False
        symbol, kind = match[match.lastgroup or 0], match.lastgroup
        if not closers and symbol not in "{[":
            return None
        if kind == "mark":
            step = _mark(symbol, expects, closers, out)
            if step is None or len(closers) > DEPTH_MAX:
                return None
            expects = step
        elif expects in ("value", "first value"):
            _begin_value(out, closers, symbol)
            expects = "comma"
        elif expects in ("key", "first key") and kind == "string":
            out.line(len(closers), f"{symbol}: ")
            expects = "colon"
        else:
            return None
        at = match.end()
        # The outermost value has ended: only white space may follow.
        if not closers:
            return (out.text, not out.is_full) if out.is_full or _END.match(text, at) else None
        if out.is_full or (is_cut and at >= chars_max):
            return out.text, False


def _begin_value(out: IndentedText, closers: list[str], symbol: str) -> None:
    """Append a scalar: after its key on the same line, in an array on a line of its own."""
    if closers[-1] == "]":
        out.line(len(closers), symbol)
    else:
        out.append(symbol)


def _mark(symbol: str, expects: str, closers: list[str], out: IndentedText) -> str | None:
    """Append one of ``{}[],:`` and return the symbol expected next; None if it is not allowed here."""
    if symbol in "{[":
        if expects not in ("value", "first value"):
            return None
        if closers and closers[-1] == "]":
            out.line(len(closers), "")
        out.append(symbol)
        closers.append("}" if symbol == "{" else "]")
        return "first key" if symbol == "{" else "first value"
    if symbol in "}]":
        is_empty = expects in ("first key", "first value")
        if not closers or symbol != closers[-1] or not (expects == "comma" or is_empty):
            return None
        closers.pop()
        if is_empty:
            out.append(symbol)
        else:
            out.line(len(closers), symbol)
        return "comma"
    if symbol == ",":
        if expects != "comma":
            return None
        out.append(",")
        return "key" if closers[-1] == "}" else "value"
    if expects != "colon":
        return None
    return "value"


# ---- msgpack as indented JSON, value by value: neither all of its values nor all of their text is ever in
# memory.


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


# ---- Decoders of bodies that other packages install: entry points of the group ``flintmq.decoders``.
#
# A decoder is a function that takes the bytes of a body and returns text. It runs in the console's process,
# so it is trusted as much as any installed package; the bodies that it gets are not. Its text is shown as
# text, never as markup.

GROUP = "flintmq.decoders"
DECODED_BYTES_MAX = 1024 * 1024
"""Maximum size of a body that a decoder gets."""
DECODE_SECONDS = 2.0
"""Seconds for which a page waits for a decoder."""
RUNNING_MAX = 4
"""Maximum number of decoders at work, those that a page no longer waits for included: a thread cannot be stopped."""
REASON_CHARS_MAX = 1_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")


class DecoderFailed(Exception):
    """Error: a decoder did not return text; the message has the reason."""


class Decoders:
    """The decoders that are installed, by the names of their entry points."""

    def __init__(self) -> None:
        self._running = 0

    @functools.cached_property
    def by_name(self) -> dict[str, EntryPoint]:
        """The entry points with usable names. They are looked up, and loaded, when a message needs them first: a start
        must not wait for what other packages import."""
        found = {point.name: point for point in entry_points(group=GROUP)}
        return {name: found[name] for name in sorted(found) if _NAME.fullmatch(name) and name not in VIEWS}

    async def apply(self, view: BodyView, wanted: str, body: bytes) -> BodyView:
        """Return a view with the decoders among its choices, and with the text of the wanted one if it is one."""
        view = dataclasses.replace(view, views=(*view.views, *self.by_name))
        if wanted not in self.by_name:
            return view
        try:
            text = await self._decode(wanted, body)
        except DecoderFailed as error:
            text = f"(the decoder {wanted} failed: {error})"
        shown = visible_text(text[:SHOWN_BYTES_MAX].encode("utf-8", "backslashreplace"))
        return dataclasses.replace(view, name=wanted, text=shown, is_whole=len(text) <= SHOWN_BYTES_MAX)

    async def _decode(self, name: str, body: bytes) -> str:
        if len(body) > DECODED_BYTES_MAX:
            raise DecoderFailed(f"the body has {len(body):,} bytes, and a decoder gets at most {DECODED_BYTES_MAX:,}")
        if self._running >= RUNNING_MAX:
            raise DecoderFailed(f"{self._running} decoders are still at work; try again later")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[str] = loop.create_future()

        def finish(text: object, reason: str) -> None:
            self._running -= 1
            if result.done():  # nothing waits for it any more
                return
            if isinstance(text, str) and not reason:
                result.set_result(text)
            else:
                result.set_exception(DecoderFailed(reason or f"it returned {type(text).__name__}, not str"))

        def run() -> None:
            text, reason = None, ""
            try:
                text = self.by_name[name].load()(body)
            except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, SystemExit included
                reason = described(error)[:REASON_CHARS_MAX]
            with contextlib.suppress(RuntimeError):  # the console has stopped meanwhile
                loop.call_soon_threadsafe(finish, text, reason)

        self._running += 1
        # A daemon: a decoder that never returns must not keep the process from ending.
        threading.Thread(target=run, name=f"decoder {name}", daemon=True).start()
        try:
            async with asyncio.timeout(DECODE_SECONDS):
                return await result
        except TimeoutError:
            raise DecoderFailed(f"it takes longer than {DECODE_SECONDS:.0f} s") from None
