"""Bodies of requests and answers, in JSON or in lines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from ...protocol.errors import InvalidParameter
from ...protocol.remoting import codes
from ...protocol.remoting.fastjson import FastjsonError, decode
from .request import RemotingRequest

Waits: TypeAlias = "Coroutine[Any, Any, None] | None"
"""What a handler returns: the rest of its work if it may wait."""
RemotingHandler: TypeAlias = Callable[[RemotingRequest], Waits]

JSON_BYTES_MAX = {
    codes.HEART_BEAT: 512 * 1024,
    codes.CHECK_CLIENT_CONFIG: 512 * 1024,
    codes.LOCK_BATCH_MQ: 1024 * 1024,
    codes.UNLOCK_BATCH_MQ: 1024 * 1024,
    codes.QUERY_ASSIGNMENT: 64 * 1024,
    codes.SET_MESSAGE_REQUEST_MODE: 64 * 1024,
    codes.BATCH_ACK_MESSAGE: 1024 * 1024,
    codes.UPDATE_AND_CREATE_TOPIC_LIST: 1024 * 1024,
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: 64 * 1024,
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: 1024 * 1024,
}
"""The requests with JSON in their bodies, and the longest body of each."""
AT_ONCE_BYTES_MAX = 16 * 1024
"""Longest JSON that is decoded on the event loop: it takes up to 10 ms."""
LINES_BYTES_MAX = 64 * 1024
LINES_MAX = 256
"""Maximum number of lines in a body of settings."""


def decoded(handler: RemotingHandler, bytes_max: int) -> RemotingHandler:
    """Return ``handler`` for requests with JSON in their bodies: it is called once the body is decoded.

    A long body is decoded in a reader thread, while the connection waits and all others are served.
    """

    def decode_and_handle(request: RemotingRequest) -> Waits:
        body, code = request.received.body, request.received.code
        if len(body) > bytes_max:
            raise InvalidParameter(
                f"the body of request {code} has {len(body):,} bytes; the maximum is {bytes_max:,}: send less at once"
            )
        if len(body) <= AT_ONCE_BYTES_MAX:
            request.json = _decoded(body, code)
            return handler(request)

        return decode_long_and_handle(request, bytes(body), code)

    async def decode_long_and_handle(request: RemotingRequest, body: bytes, code: int) -> None:
        request.json = await request.in_order(request.in_reader(lambda: _decoded(body, code)))
        waits = handler(request)
        if waits is not None:
            await waits

    return decode_and_handle


def _decoded(body: bytes | memoryview, code: int) -> Any:
    try:
        return decode(body)
    except FastjsonError as error:
        raise InvalidParameter(f"the body of request {code} is not JSON: {error}") from None


def settings_lines(request: RemotingRequest) -> dict[str, str]:
    """Return the settings in the request's body, a line ``name=value`` each. Raises ``InvalidParameter``."""
    if len(request.received.body) > LINES_BYTES_MAX:
        raise InvalidParameter(
            f"the body of settings has {len(request.received.body):,} bytes; the maximum is {LINES_BYTES_MAX:,}"
        )
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


def message_queue(broker_name: str, topic: str, queue_id: int) -> dict[str, Any]:
    """Return a queue as RocketMQ's programs name it; also a key of maps by queue."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}
