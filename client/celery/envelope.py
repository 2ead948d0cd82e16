"""kombu's messages as FlintMQ's, and back: the whole envelope is the body, as JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu.utils.json import dumps, loads

from flintmq.client import Message, StoredMessage

Envelope = dict[str, Any]
"""kombu's form of a message: body, content-type, content-encoding, headers, properties."""

_NO_KEY = re.compile(r"\s|[^\x20-\x7e]")
_NO_TAG = re.compile(r"[^A-Za-z0-9_.-]")


def to_message(topic: str, envelope: Envelope) -> Message:
    """Return the message that stores an envelope.

    A task can be found by its id, which is the key; its name is the tag. If it has an ETA in the future, the broker
    delivers it then.
    """
    headers = envelope.get("headers") or {}
    task_id, task = headers.get("id"), headers.get("task")
    return Message(
        topic,
        dumps(envelope).encode(),
        keys=task_id if isinstance(task_id, str) and task_id and not _NO_KEY.search(task_id) else (),
        tags=_NO_TAG.sub("_", task) if isinstance(task, str) and task else None,
        deliver_at=_delivery_time(headers.get("eta")),
    )


def from_message(stored: StoredMessage, delivery_tag: int) -> Envelope:
    """Return the envelope that a message stores, with a tag for its acknowledgement. Raises ``ValueError`` if it is
    none."""
    envelope = loads(stored.body)
    if not isinstance(envelope, dict) or not isinstance(envelope.get("properties"), dict):
        raise ValueError("it is not a message that kombu has sent")
    properties = envelope["properties"]
    properties["delivery_tag"] = delivery_tag
    properties.setdefault("delivery_info", {})["redelivered"] = stored.reconsume_times > 0
    return envelope


def _delivery_time(eta: Any) -> datetime | None:
    """Return a task's ETA; None if it has none or is due, or if its time zone is known to the workers alone."""
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None  # the worker refuses the task with the reason
    if moment.tzinfo is None or moment <= datetime.now(UTC) + timedelta(milliseconds=1):
        return None
    return moment
