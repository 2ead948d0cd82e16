"""Handles by which producers recall timed messages before their delivery."""

from __future__ import annotations

import base64

_VERSION = "v1"
_SECOND_MS = 1_000


def recall_handle(topic: str, broker: str, deliver_ms: int, unique_key: str) -> str:
    """Return the handle of a timed message, as RocketMQ's ``RecallMessageHandle``.

    It names the millisecond after ``TIMER_OUT_MS``: the last full second before the delivery time, ms since 1970.
    """
    out_ms = (deliver_ms - 1) // _SECOND_MS * _SECOND_MS
    text = f"{_VERSION} {topic} {broker} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()
