"""Logging of the broker: to standard error, as text or JSON, with control characters escaped."""

from __future__ import annotations

import json
import logging
import sys

from ...protocol.escaping import escape, escape_json

TEXT_FORMAT = "%(asctime)s %(levelname)-8s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """One line per record, followed by the traceback if there is one.

    Control characters are escaped, so that text from clients cannot start a line of its own.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line and its traceback, escaped line by line."""
        lines = [escape(line) for line in super().format(record).split("\n")]
        return "\n".join(lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging has
        """Return the record's line, escaped: a line feed in its message must not look like the end of the line."""
        return escape(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(entry, ensure_ascii=False))


def set_up_logging(level: str, log_format: str) -> None:
    """Log messages of ``level`` and above, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("asyncio", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
