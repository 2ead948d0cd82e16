"""Why a query failed, in one line: the error of FlintMQ or Python in Spark's report, without the stacks around it."""

from __future__ import annotations

import re

_LAST_OF_TRACEBACK = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Loss|[A-Z]\w*)): (.+)$", re.MULTILINE
)
"""The line of a Python traceback that says what was raised: a class, perhaps with its module, and the message."""
_TRACEBACK = "Traceback (most recent call last):"
_JAVA_PREFIX = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error): ")


def reason_of(error: BaseException) -> str:
    """What went wrong, for a person; ``error``: what PySpark raised."""
    text = _text_of(error)
    traceback = text.rpartition(_TRACEBACK)[2] if _TRACEBACK in text else ""
    found = _LAST_OF_TRACEBACK.search(traceback)
    if found:
        return f"{found[1]}: {found[2].strip()}"
    return _JAVA_PREFIX.sub("", _first_line(text)) or type(error).__name__


def _text_of(error: BaseException) -> str:
    """The innermost cause that Spark gives, or the error itself."""
    return str(error)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
