"""Bodies of requests and answers in JSON, and the audit log's entries about requests of RocketMQ's programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol.errors import InvalidParameter
from ...protocol.remoting.fastjson import FastjsonError, decode
from ..requests.audit import author
from .request import RemotingRequest

LINES_MAX = 256
"""Maximum number of lines in a body of settings."""


def json_object(request: RemotingRequest) -> dict[str, Any]:
    """Return the JSON object in the request's body. Raises ``InvalidParameter``."""
    try:
        data = decode(request.received.body)
    except FastjsonError as error:
        raise InvalidParameter(f"the body of request {request.received.code} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidParameter(f"the body of request {request.received.code} must be a JSON object with names as keys")
    return data


def json_objects(request: RemotingRequest, name: str, count_max: int) -> list[dict[str, Any]]:
    """Return the list of objects under a name in the request's body. Raises ``InvalidParameter``."""
    rows = json_object(request).get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or len(rows) > count_max:
        raise InvalidParameter(
            f"the body of request {request.received.code} must have {name}, a list of at most {count_max} objects"
        )
    return rows


def settings_lines(request: RemotingRequest) -> dict[str, str]:
    """Return the settings in the request's body, a line ``name=value`` each. Raises ``InvalidParameter``."""
    try:
        lines = [line.strip() for line in bytes(request.received.body).decode().splitlines()]
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"the body of request {request.received.code} is not UTF-8: {error}") from None
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or len(lines) > LINES_MAX:
        raise InvalidParameter(f"the body must have 1 to {LINES_MAX} lines `name=value`, not {len(lines)}")
    values = {}
    for line in lines:
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise InvalidParameter(f"the body's line {line[:80]!r} is not `name=value`")
        values[name.strip()] = value.strip()
    return values


def encode_lines(values: Mapping[str, object]) -> bytes:
    """Return settings as RocketMQ's programs read them, a line ``name=value`` each."""
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode("utf-8", "replace")


def audit_change(request: RemotingRequest, action: str, target: str, before: Any = None, after: Any = None) -> None:
    """Record in the audit log that the client changed ``target`` by a request that only RocketMQ's programs have."""
    request.broker.audit.write(action, target, author=author(request.peer), before=before, after=after)


def message_queue(broker_name: str, topic: str, queue_id: int) -> dict[str, Any]:
    """Return a queue as RocketMQ's programs name it; also a key of maps by queue."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}
