"""Handles by which producers recall timed messages before their delivery."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from ...protocol.errors import BrokerError
from ...protocol.remoting import codes

_VERSION = "v1"
_SECOND_MS = 1_000
_TIME = re.compile(r"[0-9]{1,15}\Z")
_UNIQUE_KEY = re.compile(r"[^\x00-\x20\x7f]{1,255}\Z")
_BASE64 = re.compile(r"[A-Za-z0-9_-]{1,4096}={0,2}\Z")


class RecallRefused(BrokerError):
    """A message cannot be recalled: its handle is not valid here, or no longer."""

    code, name, retriable = codes.ILLEGAL_OPERATION, "ILLEGAL_OPERATION", False


class RecallHandle(NamedTuple):
    """The parts of a handle. ``deliver_ms``: time of delivery, ms since 1970, in the second of the message's own."""

    topic: str
    broker: str
    deliver_ms: int
    unique_key: str


def recall_handle(topic: str, broker: str, deliver_ms: int, unique_key: str) -> str:
    """Return the handle of a timed message, as RocketMQ's ``RecallMessageHandle``.

    It names the millisecond after ``TIMER_OUT_MS``: the last full second before the delivery time, ms since 1970.
    """
    out_ms = (deliver_ms - 1) // _SECOND_MS * _SECOND_MS
    text = f"{_VERSION} {topic} {broker} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def split_recall_handle(text: str) -> RecallHandle:
    """Return the parts of a handle. Raises ``RecallRefused``."""
    try:
        # ``urlsafe_b64decode`` passes over characters that are not base64.
        if not _BASE64.match(text):
            raise ValueError
        unpadded = text.rstrip("=")
        parts = base64.urlsafe_b64decode(unpadded + "=" * (-len(unpadded) % 4)).decode().split(" ")
    except ValueError:
        parts = []
    # RocketMQ ignores what follows the fifth part.
    if len(parts) < 5 or parts[0] != _VERSION or not _UNIQUE_KEY.match(parts[4]):
        raise RecallRefused(
            "recall handle is invalid; pass the recallHandle of the answer to the send of the timed message, unchanged"
        )
    # RocketMQ reads a time that is not a number as one that has passed.
    return RecallHandle(parts[1], parts[2], int(parts[3]) if _TIME.match(parts[3]) else -1, parts[4])
