"""How the broker logs: to standard error, as text or as JSON, nothing in it but text."""

from __future__ import annotations

import json
import logging
import sys

from ..protocol.escaping import escape, escape_json

TEXT_FORMAT = "%(asctime)s %(levelname)-8s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A line, and behind it the traceback where there is one. What clients named or sent stays on its line: control
    characters are escaped."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        lines = [escape(line) for line in super().format(record).split("\n")]
        return "\n".join(lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging has
        """See ``logging.Formatter``."""
        return escape(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
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
    """Log from ``level`` on, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("asyncio", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
