"""kombu's messages as FlintMQ's, and back: the whole envelope is the body, as JSON."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, cast

from kombu.utils.json import dumps, loads

from .. import Delivery, Message, StoredMessage

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


def check_task(message: Any) -> None:
    """Raise ``ValueError`` if a message names a task but its body, once decoded, has no arguments for one.

    A worker would end with it. Bodies that cannot be decoded it refuses itself, by its own ``accept_content``.
    """
    if "task" not in message.headers:
        return
    try:
        payload = message.payload
    except Exception:  # noqa: BLE001 - foreign bytes may have a decoder raise anything
        return
    if not isinstance(payload, dict):
        _check("the body of a task", payload, list | tuple)
        if len(payload) != 3:
            raise ValueError(f"it is not a task that Celery has sent: its body has {len(payload)} parts, not 3")
        for what, part, kind in zip(("args", "kwargs"), payload, (list | tuple, dict), strict=False):
            _check(what, part, kind)


def _check(what: str, value: Any, kind: type | UnionType) -> Any:
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


# ---- Messages that threads have received for a connection, until the connection's own thread takes them.

Arrival = Callable[[], bool]
"""Hands a message to its consumer, or raises the error of a reader. Returns False if no consumer wants the message."""


class Arrivals:
    """A queue of arrivals that a thread can wait for, and an event loop can watch. Thread-safe.

    Its users bound its length: a reader waits while too much of what it has received is not handed over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Arrival] = deque()
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._rung = False

    def add(self, arrival: Arrival) -> None:
        """Add an arrival, and wake a thread that waits for one."""
        with self._changed:
            self._waiting.append(arrival)
            self._changed.notify()
            self._ring()

    def take(self, deadline: float | None) -> Arrival | None:
        """Wait for an arrival and remove it; returns None at the ``deadline`` (None: never)."""
        with self._changed:
            while not self._waiting:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return self._waiting.popleft()

    # ---- for an event loop

    def watch(self) -> int:
        """Return a file descriptor that is readable while there is an arrival that ``turn`` was not called for."""
        with self._changed:
            if self._bell is None:
                self._bell = socket.socketpair()
                for end in self._bell:
                    end.setblocking(False)
                if self._waiting:
                    self._ring()
            return self._bell[0].fileno()

    def turn(self) -> int:
        """Return the number of arrivals that there are now, and silence the file descriptor until the next one."""
        with self._changed:
            if self._bell is not None and self._rung:
                self._bell[0].recv(16)
                self._rung = False
            return len(self._waiting)

    def close(self) -> None:
        with self._changed:
            bell, self._bell, self._rung = self._bell, None, False
        for end in bell or ():
            end.close()

    def _ring(self) -> None:
        if self._bell is not None and not self._rung:
            with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
                self._bell[1].send(b"!")
            self._rung = True


# ---- The open deliveries of a channel, and how many of them there may be.

OPEN_MAX = 1000
"""Maximum number of open deliveries of a channel without a prefetch count."""
_tags = itertools.count(1)


class Window:
    """Deliveries by delivery tag, from their receipt until they are settled. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, Delivery] = {}
        self._open_max = OPEN_MAX

    def resize(self, prefetch_count: int) -> None:
        """Set how many deliveries may be open; 0: the default."""
        with self._changed:
            self._open_max = prefetch_count or OPEN_MAX
            self._changed.notify_all()

    def add(self, delivery: Delivery) -> int:
        """Add a delivery and return its tag, which is unique in this process."""
        with self._changed:
            tag = next(_tags)
            self._open[tag] = delivery
            return tag

    def take(self, tag: int) -> Delivery | None:
        """Remove a delivery and return it; None if it is not open any more."""
        with self._changed:
            self._changed.notify_all()
            return self._open.pop(tag, None)

    def tags(self, last: int | None = None) -> list[int]:
        """Return the tags of the open deliveries, up to ``last``."""
        with self._changed:
            return [tag for tag in self._open if last is None or tag <= last]

    def wait_for_room(self, stopped: threading.Event) -> bool:
        """Wait until one more delivery may be open; returns False when ``stopped`` is set and ``wake`` is called."""
        with self._changed:
            self._changed.wait_for(lambda: stopped.is_set() or len(self._open) < self._open_max)
            return not stopped.is_set()

    def wake(self) -> None:
        """Have every waiting thread look whether it was stopped."""
        with self._changed:
            self._changed.notify_all()
