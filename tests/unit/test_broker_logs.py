"""The broker's own log: names chosen by clients appear as text on one line."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from flintmq.broker.app.output import JsonFormatter, TextFormatter

EVIL = "e\x1b]0;owned\x07\r\n2026-11-22 00:00:00 INFO forged\x9b31m\u202e\u2028"


def record(message: str, *args: object, failed: bool = False) -> logging.LogRecord:
    info = None
    if failed:
        try:
            raise ValueError(EVIL)
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("flintmq.x", logging.WARNING, __file__, 1, message, args, info)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_message_stays_on_its_line_and_drives_no_terminal(formatter: logging.Formatter) -> None:
    line = formatter.format(record("topic %s", EVIL))
    assert line.isprintable()
    assert "forged" in line


def test_json_contains_the_original_values() -> None:
    assert json.loads(JsonFormatter().format(record("topic %s", EVIL)))["message"] == f"topic {EVIL}"


def test_a_traceback_follows_on_lines_of_its_own() -> None:
    text = TextFormatter().format(record("it failed", failed=True))
    lines = text.split("\n")
    assert lines[0].endswith("WARNING  flintmq.x: it failed")
    assert lines[1] == "Traceback (most recent call last):"
    assert all(line.isprintable() for line in lines)
