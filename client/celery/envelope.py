"""kombu's messages as FlintMQ's, and back: the whole envelope is the body, as JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from kombu.utils.json import dumps, loads

from flintmq.client import Message, StoredMessage

Envelope = dict[str, Any]
"""kombu's form of a message: body, content-type, content-encoding, headers, properties."""

_TEXTS = (
    ("envelope", ("body", "content-type", "content-encoding")),
    ("headers", ("id", "task", "root_id", "parent_id", "compression")),
    ("properties", ("body_encoding", "correlation_id", "reply_to")),
    ("delivery_info", ("exchange", "routing_key")),
)
"""Fields that are text, if they are there. kombu and Celery take them as such without a check."""
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
    none: every user with the right to send may have stored anything."""
    body = stored.body
    try:
        envelope = loads(body)
    except Exception as error:  # hooks of kombu's JSON, and RecursionError
        raise ValueError(f"it is not JSON as kombu writes it: {type(error).__name__}") from error
    _check("the message", envelope, dict)
    properties = _check("properties", envelope.get("properties"), dict)
    envelope["headers"] = headers = _check("headers", envelope.get("headers") or {}, dict)
    info = _check("delivery_info", properties.setdefault("delivery_info", {}), dict)
    for fields, names in _TEXTS:
        found = {"envelope": envelope, "headers": headers, "properties": properties, "delivery_info": info}[fields]
        for name in names:
            if found.get(name) is not None:
                _check(name, found[name], str)
    properties["delivery_tag"] = delivery_tag
    info["redelivered"] = stored.reconsume_times > 0
    return cast(Envelope, envelope)


def _check(what: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it is not a message that kombu has sent: {what} is {type(value).__name__}")
    return value


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
