"""JSON indented token by token.

Numbers, escapes, the order of keys and repeated keys stay exactly as they were sent: nothing is parsed into Python
values, where ``1.10`` would become ``1.1`` and a long integer would lose digits.
"""

from __future__ import annotations

import re

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
        """Predicate: was something left out?"""
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
