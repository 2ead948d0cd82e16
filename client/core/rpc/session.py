"""The protocol state of one connection, without its socket: HELLO, request ids, responses.

A driver writes what ``hello`` and ``request`` return, reads into ``parser.writable()``, and takes ``answers``.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

import msgpack

from ....protocol.commands import (
    AUTH,
    GET_RIGHTS,
    HELLO,
    PROTOCOL_VERSION,
    AuthAnswer,
    AuthRequest,
    Command,
    HelloAnswer,
    HelloRequest,
    RecordsAnswer,
)
from ....protocol.errors import (
    SUCCESS,
    AuthenticationFailed,
    AuthenticationRequired,
    InvalidParameter,
    NotPrimary,
    RemoteProtocolError,
    VersionNotSupported,
    error_from_answer,
)
from ....protocol.fields import decode_fields, encode_fields
from ....protocol.frames import (
    FRAME_BYTES_MAX,
    REQUEST,
    REQUEST_ID_MAX,
    RESPONSE,
    FrameParser,
    PullFields,
    decode_records_head,
    encode_head,
)

if TYPE_CHECKING:
    from .access import ClientAccess

_LENGTHS = struct.Struct(">II")
_SMALL_BYTES_MAX = 1024
"""Arrived bytes of at most this length are usually a single response to PRODUCE."""
_KEEP_BYTES = FRAME_BYTES_MAX + 64 * 1024
"""Maximum size of the receive buffer that is kept after large frames: a client that pulls large batches continues
to."""
FOLLOWER = "follower"
"""Role in HELLO of a replica set's member that does not lead it."""
ASKED_MAX = 1_024
"""Maximum number of the broker's requests that wait to be taken: a broker has no more unanswered. Newer ones replace
the oldest."""


class Answer:
    """One response of the broker. ``records``: the fields of a short response to PULL, whose ``fields`` are empty."""

    __slots__ = ("body", "code", "fields", "records", "request_id")

    def __init__(
        self, request_id: int, code: int, fields: dict[str, Any], body: bytes, records: RecordsAnswer | None = None
    ) -> None:
        self.request_id = request_id
        self.code = code
        self.fields = fields
        self.body = body
        self.records = records


class Asked:
    """One request or one-way frame of the broker."""

    __slots__ = ("body", "code", "fields", "request_id", "wants_answer")

    def __init__(self, code: int, request_id: int, fields: dict[str, Any], body: bytes, *, wants_answer: bool) -> None:
        self.code = code
        self.request_id = request_id
        self.fields = fields
        self.body = body
        self.wants_answer = wants_answer
        """False for a one-way frame, which must not be answered."""


class Session:
    """The client's side of one connection. ``limits``: the broker's announcement, after ``hello_answered``."""

    __slots__ = ("_next_id", "_probe_id", "asked", "limits", "parser", "refusal")

    def __init__(self) -> None:
        self.parser = FrameParser(keep_bytes=_KEEP_BYTES)
        self.limits: HelloAnswer | None = None
        self.refusal: NotPrimary | None = None
        """Set when the broker has said that it does not lead its replica set: the connection is of no use any more."""
        self._next_id = 1
        self._probe_id = 0
        """Id of the probe that has no response yet, or 0."""
        self.asked: deque[Asked] = deque(maxlen=ASKED_MAX)
        """Requests of the broker that have not been taken yet."""

    def greeting(self, client_name: str, access: ClientAccess) -> Generator[bytes, Answer, None]:
        """Run the conversation that opens the connection: yields requests and receives their responses until it
        returns.

        With a user it takes milliseconds of CPU time. Raises protocol errors and the broker's errors, and
        ``NotPrimary`` if the broker follows another one and the client does not read from any.
        """
        limits = self.hello_answered((yield self.hello(client_name, access.read_from)))
        if limits.role == FOLLOWER and not access.read_from:
            leader = f"its primary is {limits.primary}" if limits.primary else "the set has no primary now"
            raise NotPrimary(
                f"broker {limits.broker!r} is a follower in a replica set, and {leader}", primary=limits.primary
            )
        if not limits.auth_required:
            if access.user:
                raise AuthenticationFailed(
                    f"broker {limits.broker!r} does not authenticate clients, so user {access.user!r} cannot verify "
                    "that it is the right broker: set security.auth on the broker, or omit user and password"
                )
            return
        if not access.user:
            raise AuthenticationRequired(
                f"broker {limits.broker!r} serves only its users: pass user and password (flintmq user add creates one)"
            )
        yield from self._authenticate(access, limits)

    def _authenticate(self, access: ClientAccess, limits: HelloAnswer) -> Generator[bytes, Answer, None]:
        from ....protocol.auth.scram import MECHANISM, ScramError

        if MECHANISM not in limits.auth.split():
            raise VersionNotSupported(
                f"broker {limits.broker!r} authenticates by {limits.auth!r}, but this client by {MECHANISM}; "
                "use a newer client"
            )
        exchange = access.exchange()
        try:
            answer = yield self._auth(exchange.first(), MECHANISM)
            answer = yield self._auth(exchange.final(_auth_answered(answer).message))
            exchange.check(_auth_answered(answer).message)
        except ScramError as error:
            raise AuthenticationFailed(f"user {access.user!r} at broker {limits.broker!r}: {error}") from None
        except AuthenticationFailed as error:
            error.args = (f"user {access.user!r} at broker {limits.broker!r}: {error.message}",)
            raise

    def _auth(self, message: str, mechanism: str = "") -> bytes:
        fields = encode_fields(AuthRequest(message=message, mechanism=mechanism))
        return self.request(AUTH, fields, 0)[1]

    def hello(self, client_name: str, read_from: str = "") -> bytes:
        """Return the first request of the connection."""
        fields = encode_fields(HelloRequest(protocol=PROTOCOL_VERSION, client=client_name, read_from=read_from))
        return self.request(HELLO, fields, 0)[1]

    def hello_answered(self, answer: Answer) -> HelloAnswer:
        """Check and keep the response to HELLO; raises the broker's error, or the incompatibility."""
        if answer.code != SUCCESS:
            raise error_from_answer(answer.code, answer.fields)
        try:
            limits = decode_fields(HelloAnswer, answer.fields)
        except InvalidParameter as error:
            raise RemoteProtocolError(f"the response to HELLO is malformed: {error}") from error
        if limits.protocol != PROTOCOL_VERSION:
            raise VersionNotSupported(
                f"broker {limits.broker!r} speaks protocol version {limits.protocol}, this client {PROTOCOL_VERSION}; "
                "use a client of the broker's release"
            )
        self.parser.frame_bytes_max = max(self.parser.frame_bytes_max, limits.frame_bytes_max)
        self.limits = limits
        return limits

    def request(self, command: Command, fields: dict[str, Any], body_bytes: int) -> tuple[int, bytes]:
        """Return ``(request_id, head)`` of a request; the driver writes the body of ``body_bytes`` bytes after it."""
        request_id = self.new_request_id()
        if type(fields) is PullFields:
            return request_id, fields.encode(request_id)
        return request_id, encode_head(REQUEST, command.code, request_id, fields, body_bytes)

    def probe(self) -> bytes:
        """Return a request that every broker answers at once to every client; empty while one has no response. No
        driver sees the response, but only that bytes arrive."""
        if self._probe_id:
            return b""
        self._probe_id, head = self.request(GET_RIGHTS, {}, 0)
        return head

    def new_request_id(self) -> int:
        """Return an id that no request in flight has."""
        request_id = self._next_id
        self._next_id = request_id + 1 if request_id < REQUEST_ID_MAX else 1
        return request_id

    def answers(self) -> list[Answer]:
        """Return all complete responses that have arrived, up to a ``refusal`` and without the one to a ``probe``.
        Requests of the broker are kept for ``take_asked``.

        Raises ``RemoteProtocolError`` if the bytes violate the protocol; the connection is unusable then.
        """
        parser = self.parser
        if parser.end - parser.start <= _SMALL_BYTES_MAX and (answer := self._small_answer()) is not None:
            return self._up_to_refusal([answer])
        answers: list[Answer] = []
        while parser.start != parser.end and (frame := parser.next_frame()) is not None:
            if frame.kind == RESPONSE:
                # Copy the body and keep the buffer: mapping new pages for a buffer each time costs ten times as much.
                answers.append(Answer(frame.request_id, frame.code, frame.fields, bytes(frame.body)))
            else:
                body, wants_answer = bytes(frame.body), frame.kind == REQUEST
                self.asked.append(Asked(frame.code, frame.request_id, frame.fields, body, wants_answer=wants_answer))
        return self._up_to_refusal(answers)

    def _up_to_refusal(self, answers: list[Answer]) -> list[Answer]:
        """Return the responses before the first ``NotPrimary``, which is kept as the ``refusal``, but not a probe's.

        No driver sees that response: the request that it answers is sent again with all others that have none, as after
        a lost connection.
        """
        for place, answer in enumerate(answers):
            if answer.code == NotPrimary.code and self.limits is not None:
                self.refusal = cast(NotPrimary, error_from_answer(answer.code, answer.fields))
                answers = answers[:place]
                break
        if self._probe_id:
            others = [answer for answer in answers if answer.request_id != self._probe_id]
            if len(others) < len(answers):
                self._probe_id, answers = 0, others
        return answers

    def take_asked(self) -> list[Asked]:
        """Return the broker's requests since the last call, in order; ``answers`` has parsed them."""
        asked = list(self.asked)
        self.asked.clear()
        return asked

    def reply(self, asked: Asked, code: int, fields: dict[str, Any], body_bytes: int) -> bytes:
        """Return the head of a response to ``asked``, with result ``code``; the driver writes the body after it."""
        return encode_head(RESPONSE, code, asked.request_id, fields, body_bytes)

    def _small_answer(self) -> Answer | None:
        """Parse the pending bytes as a single response on the fast path; None if they may be anything else."""
        parser = self.parser
        buffer, start, end = parser.buffer, parser.start, parser.end
        pulled = decode_records_head(buffer, start, end)
        if pulled is not None:
            code, request_id, records, body_at = pulled
            parser.start = end
            return Answer(request_id, code, {}, bytes(buffer[body_at:end]), records)
        if end - start < _LENGTHS.size:
            return None
        frame_length, header_length = _LENGTHS.unpack_from(buffer, start)
        body_at = start + _LENGTHS.size + header_length
        if start + 4 + frame_length != end or body_at > end:
            return None
        try:
            kind, code, request_id, fields = msgpack.unpackb(buffer[start + _LENGTHS.size : body_at])
        except (ValueError, TypeError, msgpack.UnpackException):
            return None  # the full parser reports the error
        if kind != RESPONSE or type(code) is not int or type(request_id) is not int or type(fields) is not dict:
            return None
        parser.start = end
        return Answer(request_id, code, fields, bytes(buffer[body_at:end]))


def _auth_answered(answer: Answer) -> AuthAnswer:
    if answer.code != SUCCESS:
        raise error_from_answer(answer.code, answer.fields)
    try:
        return decode_fields(AuthAnswer, answer.fields)
    except InvalidParameter as error:
        raise RemoteProtocolError(f"the response to AUTH is malformed: {error}") from error


def advance(greeting: Generator[bytes, Answer, None], answer: Answer | None) -> bytes | None:
    """Return the next request of a greeting, after ``answer`` (None: at its beginning); None when it is over."""
    try:
        return next(greeting) if answer is None else greeting.send(answer)
    except StopIteration:
        return None
