"""A request of a RocketMQ client: as ``Request``, with answers in the remoting protocol."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ...protocol import errors
from ...protocol.errors import BrokerError, BrokerFailure, InvalidParameter
from ...protocol.frames import REQUEST, RESPONSE, Frame
from ...protocol.remoting import codes
from ...protocol.remoting.command import RemotingFrame, encode_head
from ...protocol.remoting.fastjson import FastjsonError, decode
from ..requests.connected_client import Bytes
from ..requests.request import RESPONSE_HEAD_BYTES_MAX, FrameSource, Request, author
from .json_fields import ExtFields, JsonFields

if TYPE_CHECKING:
    from .gateway import RemotingGateway

NO_FIELDS = ExtFields({})


# ---- The audit log's entries about requests that only RocketMQ's programs have, and about those that are
# refused.

ADMINISTRATIVE = {
    getattr(codes, name): name
    for name in (
        "UPDATE_AND_CREATE_TOPIC",
        "UPDATE_AND_CREATE_TOPIC_LIST",
        "DELETE_TOPIC_IN_BROKER",
        "DELETE_TOPIC_IN_NAMESRV",
        "CLEAN_UNUSED_TOPIC",
        "CLEAN_EXPIRED_CONSUMEQUEUE",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
        "DELETE_SUBSCRIPTIONGROUP",
        "INVOKE_BROKER_TO_RESET_OFFSET",
        "CLONE_GROUP_OFFSET",
        "SET_MESSAGE_REQUEST_MODE",
        "CONSUME_MESSAGE_DIRECTLY",
        "RESUME_CHECK_HALF_MESSAGE",
        "UPDATE_BROKER_CONFIG",
        "GET_BROKER_CONFIG",
        "WIPE_WRITE_PERM_OF_BROKER",
        "ADD_WRITE_PERM_OF_BROKER",
        "DELETE_KV_CONFIG",
    )
}
"""Names of the requests of administrators, whose refusals are recorded, by code; some of them change nothing."""
NAMING_FIELDS = {
    "topic": "topic",
    "group": "group",
    "groupName": "group",
    "consumerGroup": "group",
    "srcGroup": "group",
    "destGroup": "group",
    "clientId": "client",
    "msgId": "message",
    "brokerName": "broker",
}
"""Kinds of targets, by the fields that name them in a request's header or in the object of its body."""


class RemotingSource(FrameSource, Protocol):
    """The connection of a RocketMQ client. ``log_begin``: physical offset of the log's end when it was opened."""

    gateway: RemotingGateway
    log_begin: int


class RemotingRequest(Request):
    """One request on the event loop. ``received``: its frame; ``frame``: the same, or its translation for FlintMQ.

    ``gateway``: the state of all RocketMQ clients; ``ext``: the request's extension fields; ``log_begin``: physical
    offset of the log's end when its connection was opened; ``json``: the value in the body of a request that has JSON.
    """

    received: RemotingFrame

    __slots__ = ("ext", "gateway", "json", "log_begin")

    def __init__(self, source: RemotingSource, frame: RemotingFrame) -> None:
        super().__init__(source, frame)
        self.gateway: RemotingGateway = source.gateway
        self.ext = ExtFields(frame.fields)
        self.log_begin = source.log_begin
        self.json: Any = None

    def json_body(self) -> JsonFields:
        """Return the JSON object in the body. Raises ``InvalidParameter``."""
        return JsonFields(self.json, f"the body of request {self.received.code}")

    def translate(self, buffer: bytearray) -> None:
        """Let the handlers of FlintMQ see ``buffer`` as the body of the request's frame."""
        received = self.received
        frame = Frame(received.kind, received.code, received.request_id, {}, buffer, 0, len(buffer))
        frame.began = received.began
        self.frame = frame

    def release_frame(self) -> None:
        """Drop the body and the fields of a request that waits: otherwise they would stay in memory with it."""
        received = self.received
        kept = {}
        if received.code in ADMINISTRATIVE:
            kept = {name: received.fields[name] for name in NAMING_FIELDS if name in received.fields}
        super().release_frame()
        received.buffer = self.frame.buffer
        received.fields = self.frame.fields = kept
        self.ext = NO_FIELDS
        self.json = None

    # ---- responding ----

    def reply(
        self,
        fields: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        code: int = codes.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Respond with a result code, extension fields, a remark and a body; a one-way request gets nothing."""
        if self.frame.kind != REQUEST:
            self.responses.completed(self.frame)
            return
        limit = self.broker.limits.frame_bytes_max
        if len(body) > limit - RESPONSE_HEAD_BYTES_MAX:
            self.fail(BrokerFailure(f"the response has {len(body)} bytes, but limits.frame_bytes_max is {limit}"))
            return
        self.respond_encoded(self.head(code, fields, len(body), remark), body)

    def head(self, code: int, fields: Mapping[str, str] | None, body_bytes: int, remark: str | None = None) -> bytes:
        """Return the encoded response without its body."""
        return encode_head(
            RESPONSE,
            code,
            self.received.request_id,
            fields,
            body_bytes,
            remark=remark,
            header_type=self.received.header_type,
        )

    def respond(self, answer: Any, body: bytes | bytearray = b"") -> None:
        """Respond with SUCCESS alone: the fields of FlintMQ's response have no meaning for a RocketMQ client."""
        self.reply()

    def respond_error(self, error: BrokerError) -> None:
        """Send the result code of an error, and its words as the remark."""
        fields = error.answer if isinstance(error, PullMoved) else None
        self.responses.send(self.head(code_of(error), fields, 0, remark_of(error)))

    def command_name(self) -> str:
        """Return the code of RocketMQ's request, for the log."""
        return f"request {self.frame.code}"

    def audit_change(self, target: str, before: Any = None, after: Any = None) -> None:
        """Record that the client changed ``target`` by a request that only RocketMQ's programs have."""
        action = ADMINISTRATIVE[self.received.code]
        self.broker.audit.write(action, target, author=author(self.peer), before=before, after=after)

    def audit_refused(self, error: BrokerError) -> None:
        """Record that a request of an administrator was refused."""
        action = ADMINISTRATIVE.get(self.received.code)
        if action is None:
            return
        named = self.received.fields | (self.json if isinstance(self.json, dict) else {})
        names = [
            f"{kind} {value}"
            for field, kind in NAMING_FIELDS.items()
            if (value := named.get(field)) and isinstance(value, str)
        ]
        target = ", ".join(names) or "the broker"
        self.broker.audit.write(action, target, author=author(self.peer), outcome=error.name, reason=error.message)


class PullMoved(BrokerError):
    """A pull must continue elsewhere: ``answer`` says where, and the message why, in a word of RocketMQ's."""

    code, name, retriable = codes.PULL_OFFSET_MOVED, "PULL_OFFSET_MOVED", True

    def __init__(self, why: str, next_offset: int, min_offset: int, max_offset: int) -> None:
        super().__init__(why)
        self.answer = pull_fields(next_offset, min_offset, max_offset)


def pull_fields(next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """Return the extension fields of the answer to a pull."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


# ---- RocketMQ's result codes for FlintMQ's errors.

REMARK_CHARS_MAX = 2_000
"""Longest remark of an answer: some clients print it on one line."""

_CODES: tuple[tuple[type[BrokerError], int], ...] = (
    (errors.SystemBusy, codes.SYSTEM_BUSY),
    (errors.UnknownCommand, codes.REQUEST_CODE_NOT_SUPPORTED),
    (errors.MessageIllegal, codes.MESSAGE_ILLEGAL),
    (errors.DelayIllegal, codes.MESSAGE_ILLEGAL),
    (errors.ServiceNotAvailable, codes.SERVICE_NOT_AVAILABLE),
    # A producer tries SERVICE_NOT_AVAILABLE again, at another broker of the route if there is one.
    (errors.NotPrimary, codes.SERVICE_NOT_AVAILABLE),
    (errors.NotEnoughReplicas, codes.SERVICE_NOT_AVAILABLE),
    (errors.NoPermission, codes.NO_PERMISSION),
    (errors.GroupKind, codes.NO_PERMISSION),
    (errors.AuthenticationRequired, codes.NO_PERMISSION),
    (errors.AuthenticationFailed, codes.NO_PERMISSION),
    (errors.TopicNotExist, codes.TOPIC_NOT_EXIST),
    (errors.OffsetOutOfRange, codes.PULL_OFFSET_MOVED),
    (errors.FilterIllegal, codes.SUBSCRIPTION_PARSE_FAILED),
    (errors.GroupNotExist, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
    (errors.InvalidParameter, codes.INVALID_PARAMETER),
    (errors.QueueNotExist, codes.INVALID_PARAMETER),
)


def code_of(error: BrokerError) -> int:
    """Return the result code of an error.

    Errors that RocketMQ does not know are SYSTEM_ERROR: its clients raise them. A message that is not on disk in time
    is one of them, because RocketMQ's FLUSH_DISK_TIMEOUT is a status of a successful send, which most programs ignore.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    # An error that only this package raises already has RocketMQ's code.
    return error.code if type(error).__module__.startswith(__package__) else codes.SYSTEM_ERROR


def remark_of(error: BrokerError) -> str:
    """Return the words of an error that fit into an answer."""
    message = error.message
    return message if len(message) <= REMARK_CHARS_MAX else f"{message[: REMARK_CHARS_MAX - 1]}…"


# ---- Bodies of requests and answers, in JSON or in lines.

Waits: TypeAlias = "Coroutine[Any, Any, None] | None"
"""The result of a handler: the rest of its work if it may wait."""
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
