"""The cause of a failed query in one line, taken from the hundred lines that Spark prints."""

from __future__ import annotations

import re

_FLINTMQ_ERROR = re.compile(r"\bflintmq(?:\.\w+)+: .+")
"""An error of FlintMQ as Python prints it: the qualified class name and the message."""
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: .+", re.MULTILINE)
"""The last line of a traceback."""
_SPARK_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r" SQLSTATE: \w{5}$")


def reason_of(error: BaseException) -> str:
    """Return the cause of an error that PySpark raised, without a full stop at its end."""
    text = str(error)
    if found := _FLINTMQ_ERROR.findall(text):
        _, _, reason = found[-1].partition(": ")
    elif found := _PYTHON_ERROR.findall(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else []:
        reason = found[-1]
    else:
        line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        reason = _SPARK_CLASS.sub("", line)
    return _SQL_STATE.sub("", str(reason).strip()).rstrip(".")
