"""Why a query failed, in one line: what FlintMQ or Python said, out of the hundred lines that Spark makes of it."""

from __future__ import annotations

import re

_FLINTMQ_ERROR = re.compile(r"\bflintmq(?:\.\w+)+: .+")
"""An error of FlintMQ as Python prints it: the full name of its class, and the message."""
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: .+", re.MULTILINE)
"""The last line of a traceback."""
_SPARK_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r" SQLSTATE: \w{5}$")


def reason_of(error: BaseException) -> str:
    """What went wrong, for a person, without the full stop; ``error``: what PySpark raised."""
    text = str(error)
    if found := _FLINTMQ_ERROR.findall(text):
        _, _, reason = found[-1].partition(": ")
    elif found := _PYTHON_ERROR.findall(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else []:
        reason = found[-1]
    else:
        line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        reason = _SPARK_CLASS.sub("", line)
    return _SQL_STATE.sub("", str(reason).strip()).rstrip(".")
