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
DEPTH_MAX = 200
INDENT = "  "


def indent_json(text: str, chars_max: int, *, is_cut: bool = False) -> tuple[str, bool] | None:
    """Return ``text`` with one value a line, and whether it is complete; None if it is not a JSON object or array.

    Stops after about ``chars_max`` characters of input: then the rest is not checked. ``is_cut``: ``text`` is only the
    beginning, so its last string may have no end.
    """
    out: list[str] = []
    closers: list[str] = []
    at, expects = 0, "value"
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            # Only a cut text may end within a string, which is then shown as far as it goes.
            rest = text[at:].lstrip(" \t\r\n")
            if not (is_cut and out and rest.startswith('"')):
                return None
            return "".join(out).lstrip("\n") + rest[: max(0, chars_max - at)], False
        symbol, kind = match[match.lastgroup or 0], match.lastgroup
        if not out and symbol not in "{[":
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
            out.append(f"\n{INDENT * len(closers)}{symbol}: ")
            expects = "colon"
        else:
            return None
        at = match.end()
        # The outermost value has ended: only white space may follow.
        if not closers:
            return ("".join(out).lstrip("\n"), True) if _END.match(text, at) else None
        if at >= chars_max:
            return "".join(out).lstrip("\n"), False


def _begin_value(out: list[str], closers: list[str], symbol: str) -> None:
    """Append a scalar: after its key on the same line, in an array on a line of its own."""
    if closers[-1] == "]":
        out.append(f"\n{INDENT * len(closers)}{symbol}")
    else:
        out.append(symbol)


def _mark(symbol: str, expects: str, closers: list[str], out: list[str]) -> str | None:
    """Append one of ``{}[],:`` and return the symbol expected next; None if it is not allowed here."""
    if symbol in "{[":
        if expects not in ("value", "first value"):
            return None
        if closers and closers[-1] == "]":
            out.append(f"\n{INDENT * len(closers)}")
        out.append(symbol)
        closers.append("}" if symbol == "{" else "]")
        return "first key" if symbol == "{" else "first value"
    if symbol in "}]":
        is_empty = expects in ("first key", "first value")
        if not closers or symbol != closers[-1] or not (expects == "comma" or is_empty):
            return None
        closers.pop()
        out.append(symbol if is_empty else f"\n{INDENT * len(closers)}{symbol}")
        return "comma"
    if symbol == ",":
        if expects != "comma":
            return None
        out.append(",")
        return "key" if closers[-1] == "}" else "value"
    if expects != "colon":
        return None
    return "value"
