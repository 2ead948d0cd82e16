"""Requests as values: a driver sends an ``Operation`` and passes the response to its ``decode``.

Several dependent steps form a *plan*: a generator that yields lists of operations, receives the list of their results,
and returns its own result. The same plans run on every driver.
"""

from __future__ import annotations

import functools
import inspect
import random
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

import msgpack

from ....protocol.commands import PULL, Command, RowCommand, RowsCommand, RowT
from ....protocol.errors import (
    PULL_NOT_FOUND,
    PULL_RETRY_IMMEDIATELY,
    SUCCESS,
    ConnectionFailed,
    FlintError,
    InvalidParameter,
    RemoteProtocolError,
    RequestTimeout,
    error_from_answer,
)
from ....protocol.fields import I64_MAX, decode_fields, encode_fields
from ....protocol.frames import PullFields, PullHead
from ....protocol.rows import decode_row, decode_rows
from ...errors import InvalidArgument
from ..texts import check_unicode
from .session import Answer
from .timeouts import CONNECT_SECONDS_MIN

T = TypeVar("T")
Plan: TypeAlias = Generator[list["Operation[Any]"], list[Any], T]


@dataclass(slots=True)
class Operation(Generic[T]):
    """One request. ``decode`` makes the result from a successful response; ``hold_seconds``: how long the broker may
    hold the response because the request asks for it; ``timeout``: the caller's time limit, None for the client's."""

    command: Command
    fields: dict[str, Any]
    decode: Callable[[Answer], T]
    body: bytes = b""
    hold_seconds: float = 0.0
    timeout: float | None = None

    def own_seconds(self, seconds: float) -> float:
        """Return how much of the ``seconds`` that are left for it is not time for which the broker may hold it."""
        return max(seconds - self.hold_seconds, min(seconds, CONNECT_SECONDS_MIN))

    def result(self, answer: Answer) -> T:
        """Return the result of a response, or raise the error that it carries."""
        code = answer.code
        if code not in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY):
            raise error_from_answer(code, answer.fields)
        try:
            return self.decode(answer)
        except (InvalidParameter, struct.error, TypeError, KeyError) as error:
            raise RemoteProtocolError(f"the response to {self.command.name} is malformed: {error}") from error


Answered = Callable[[Any, FlintError | None], None]
"""Callback with the result of a request, or the error."""
Request = tuple[Operation[Any], Answered]


def pull_operation(decode: Callable[[Answer], T], hold_seconds: float, offset: int, *others: Any) -> Operation[T]:
    """Return a PULL after checking the arguments. ``others``: the values of ``PULL_FIELDS``, or the first of them.

    Pulls that differ only in the offset share all other fields, which are checked and packed once.
    """
    if type(offset) is int and 0 <= offset <= I64_MAX and _is_short(others):
        fields, head = _shared_fields(*others)
        return Operation(PULL, PullFields(fields, head, offset), decode, b"", hold_seconds)
    arguments = dict(zip(PULL_FIELDS, others, strict=False))
    return operation(PULL, decode, hold_seconds=hold_seconds, offset=offset, **arguments)


PULL_FIELDS = ("topic", "queue", "max_count", "max_bytes", "wait_ms", "tags", "filter", "group", "member", "epoch")
"""Fields of a PULL other than its offset."""
_SHARED_CHARS_MAX = 256
"""Maximum length of each text in shared fields."""


def _is_short(values: tuple[Any, ...]) -> bool:
    """Return whether the values are integers and short texts, as those of shared fields are."""
    return all(type(value) is int or (type(value) is str and len(value) <= _SHARED_CHARS_MAX) for value in values)


@lru_cache(maxsize=256)
def _shared_fields(*others: Any) -> tuple[dict[str, Any], PullHead]:
    fields = _checked(PULL, {"offset": 0, **dict(zip(PULL_FIELDS, others, strict=False))})
    del fields["offset"]
    return fields, PullHead(fields)


def _checked(command: Command, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, without those that have their default. Raises ``InvalidArgument``."""
    try:
        fields = encode_fields(decode_fields(command.request, arguments))
    except InvalidParameter as error:
        raise InvalidArgument(str(error).removeprefix(f"{command.request.__name__}.")) from None
    for name, value in fields.items():
        if type(value) is str:
            check_unicode(name, value)
    return fields


def operation(
    command: Command,
    decode: Callable[[Answer], T],
    body: bytes = b"",
    *,
    hold_seconds: float = 0.0,
    timeout: float | None = None,
    **arguments: Any,
) -> Operation[T]:
    """Return an operation after checking the arguments against the command's rules."""
    return Operation(command, _checked(command, arguments), decode, body, hold_seconds, timeout)


def listing(
    command: RowsCommand[RowT], body: bytes = b"", *, timeout: float | None = None, **arguments: Any
) -> Operation[list[RowT]]:
    """Return an operation whose result is the rows of the response."""

    def decode(answer: Answer) -> list[RowT]:
        return decode_rows(command.rows, unpack_body(answer))

    return operation(command, decode, body, timeout=timeout, **arguments)


def fetching(command: RowCommand[RowT], *, timeout: float | None = None, **arguments: Any) -> Operation[RowT]:
    """Return an operation whose result is the row in the response."""

    def decode(answer: Answer) -> RowT:
        return decode_row(command.row, unpack_body(answer))

    return operation(command, decode, timeout=timeout, **arguments)


def nothing(answer: Answer) -> None:
    """Decode a response that has no result."""


def pack_body(value: Any) -> bytes:
    """Return the msgpack body of a request. Raises ``InvalidArgument`` for a text that is not valid Unicode."""
    try:
        packed: bytes = msgpack.packb(value)
    except UnicodeEncodeError as error:
        check_unicode("the text", error.object)
        raise
    return packed


def unpack_body(answer: Answer) -> Any:
    """Return the msgpack value in the body of a response."""
    try:
        return msgpack.unpackb(answer.body, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"expected a msgpack body: {error}") from error


def unpack_rows(answer: Answer, what: str) -> list[Any]:
    """Return the list in the body of a response; ``what``: the name of its rows for the error message."""
    rows = unpack_body(answer)
    if not isinstance(rows, list):
        raise RemoteProtocolError(f"expected {what} as a list, got {type(rows).__name__}")
    return rows


def check_body(answer: Answer, body_bytes: int) -> None:
    """Raise an error unless the body of a response has this size."""
    if len(answer.body) != body_bytes:
        raise RemoteProtocolError(f"expected a body of {body_bytes} bytes, got {len(answer.body)}")


# ---- Methods that both clients have: their arguments and their meaning are written once, where the operation
# is made.

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def described(method: MethodT, make: Callable[..., Operation[Any]]) -> MethodT:
    """Give a method the name, the docstring and the arguments of the function that makes its operation."""
    functools.update_wrapper(method, make)
    signature = inspect.signature(make)
    # Annotations are strings in this package. Without this, ``help`` would show the operation instead of its result.
    result = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *signature.parameters.values()]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect reads it from any callable
        parameters=parameters, return_annotation=result
    )
    return method


# ---- Pauses before requests are retried.

FIRST_BACKOFF_SECONDS = 0.02
BACKOFF_SECONDS_MAX = 1.0
_DOUBLINGS_MAX = 10
"""Keeps the power of two small; the maximum is reached before."""
_JITTER = 0.2
_CAUSES_MAX = 16

E = TypeVar("E", bound=BaseException)


def detached(error: E) -> E:
    """Return an error that is going to be kept, without its traceback and those of its causes.

    A traceback refers to every frame that the error passed through and to their callers, and so keeps their locals
    alive.
    """
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


class Backoff:
    """The pause after consecutive failures. ``trouble``: the last failure, None after a success."""

    __slots__ = ("_failures", "trouble", "until")

    def __init__(self) -> None:
        self._failures = 0
        self.until = 0.0
        """End of the pause, monotonic seconds."""
        self.trouble: FlintError | None = None

    def seconds(self, now: float) -> float:
        """Return the seconds left to wait. ``now``: monotonic seconds."""
        return max(0.0, self.until - now)

    def record_failure(self, error: FlintError, now: float) -> None:
        """Record a retriable failure. After the first loss of a connection, the client reconnects without a pause."""
        if now >= self.until:  # count requests that failed together only once
            self._failures += 1
        self.trouble = detached(error)
        at_once = isinstance(error, ConnectionFailed) and self._failures == 1
        self.until = now if at_once else now + backoff_seconds(self._failures, error)

    def record_success(self) -> None:
        self._failures = 0
        self.trouble = None

    def end_pause(self) -> None:
        self.until = 0.0


class Retries:
    """Decides whether and when a failed call is retried. ``deadline``: end of the call, monotonic seconds."""

    __slots__ = ("_deadline", "_failures")

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._failures = 0

    def pause(self, error: FlintError, now: float) -> float | None:
        """Return the seconds to wait before the next attempt; None: do not retry, raise ``error``."""
        if not is_retriable(error) or isinstance(error, RequestTimeout):
            return None
        self._failures += 1
        # After the first loss of a connection, the call is repeated on a new one without a pause.
        at_once = isinstance(error, ConnectionFailed) and self._failures == 1
        seconds = 0.0 if at_once else backoff_seconds(self._failures, error)
        return None if now + seconds >= self._deadline else seconds


def is_retriable(error: FlintError) -> bool:
    """Return whether the same request can succeed later."""
    return bool(getattr(error, "retriable", False))


def backoff_seconds(failures: int, error: FlintError | None = None) -> float:
    """Return the pause after the ``failures``-th consecutive failure (from 1).

    It doubles from 20 ms to at most 1 s, with jitter so that many clients do not return at once; the pause that the
    broker asked for (``retry_after_ms``) is the minimum.
    """
    doubled = min(BACKOFF_SECONDS_MAX, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, _DOUBLINGS_MAX))
    asked = getattr(error, "retry_after_ms", 0) / 1000
    return float(max(doubled, asked) * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
