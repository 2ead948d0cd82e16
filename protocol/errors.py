"""Every error FlintMQ raises, in one tree, and one class per result code of the protocol.

``FlintError`` is the root. Below it:

* ``BrokerError``: the broker answered with a result code; one subclass per code, each saying whether a retry can help.
* ``ProtocolError``: bytes that are not the protocol. ``LocalProtocolError``: this side is to blame;
  ``RemoteProtocolError``: the peer is.
* ``ConnectionFailed``: the broker cannot be reached, or the connection went.
* ``ConfigurationError``: a setting or an argument that cannot be used.

A message says what happened, to which object, why, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

MESSAGE_CHARS_MAX = 4000
"""Longest message in an error answer, in characters."""


class FlintError(Exception):
    """Root of all errors that FlintMQ raises on purpose."""


class ConfigurationError(FlintError):
    """A setting or an argument cannot be used; the message names it, its value and what is valid."""


class ProtocolError(FlintError):
    """Bytes or calls that are not the protocol."""


class LocalProtocolError(ProtocolError):
    """This side tried to send something that the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; the connection cannot be used further."""


class ConnectionFailed(FlintError):
    """The broker cannot be reached, or the connection broke with requests unanswered."""

    retriable: ClassVar[bool] = True


class RequestTimeout(FlintError):
    """No answer came within the time that the caller gave."""

    retriable: ClassVar[bool] = True


class BrokerError(FlintError):
    """The broker refused a request.

    ``code``, ``name``: the result; ``retriable``: whether the same request can succeed later; ``retry_after_ms``: how
    long the broker asks to wait, 0 where it did not say; ``details``: the remaining fields of the answer (limits,
    offsets).
    """

    code: int = 1
    name: str = "SYSTEM_ERROR"
    retriable: bool = False

    def __init__(self, message: str, *, retry_after_ms: int = 0, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details: dict[str, Any] = details

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by way of __init__: details are the peer's words and may be named like its parameters.
        return _rebuild, (type(self), self.args), dict(self.__dict__)

    def fields(self) -> dict[str, Any]:
        """The fields of the answer that carries this error; a long message is cut so that the header stays small."""
        message = self.message
        if len(message) > MESSAGE_CHARS_MAX:
            message = f"{message[: MESSAGE_CHARS_MAX - 1]}…"
        fields: dict[str, Any] = {**self.details, "message": message}
        if self.retry_after_ms:
            fields["retry_after_ms"] = self.retry_after_ms
        return fields


def _rebuild(cls: type[BrokerError], args: tuple[Any, ...]) -> BrokerError:
    return cls.__new__(cls, *args)


class BrokerFailure(BrokerError):
    """Something failed inside the broker; its log says more."""

    code, name, retriable = 1, "SYSTEM_ERROR", False


class SystemBusy(BrokerError):
    """A limit on what may be in flight is reached; try again after ``retry_after_ms``."""

    code, name, retriable = 2, "SYSTEM_BUSY", True


class UnknownCommand(BrokerError):
    """This broker does not know the command."""

    code, name, retriable = 3, "REQUEST_CODE_NOT_SUPPORTED", False


class FlushDiskTimeout(BrokerError):
    """The record is written but the flush did not finish in time; whether it survives a crash is not known."""

    code, name, retriable = 10, "FLUSH_DISK_TIMEOUT", True


class MessageIllegal(BrokerError):
    """A produced message breaks a rule of the format; nothing of its frame was written."""

    code, name, retriable = 13, "MESSAGE_ILLEGAL", False


class ServiceNotAvailable(BrokerError):
    """The broker cannot serve this now (stopping, or the disk is full) but may later."""

    code, name, retriable = 14, "SERVICE_NOT_AVAILABLE", True


class NoPermission(BrokerError):
    """The topic or the user does not allow this."""

    code, name, retriable = 16, "NO_PERMISSION", False


class TopicNotExist(BrokerError):
    """There is no such topic, and it may not be created by this request."""

    code, name, retriable = 17, "TOPIC_NOT_EXIST", False


class TopicExistsAlready(BrokerError):
    """The topic is there already, with other settings."""

    code, name, retriable = 18, "TOPIC_EXIST_ALREADY", False


class OffsetOutOfRange(BrokerError):
    """A pull outside of what the queue holds; ``min_offset`` and ``max_offset`` say what it does hold."""

    code, name, retriable = 21, "PULL_OFFSET_MOVED", False

    @property
    def min_offset(self) -> int:
        """The queue's first readable offset."""
        return _integer_or_zero(self.details.get("min_offset"))

    @property
    def max_offset(self) -> int:
        """The offset that the queue's next message will have."""
        return _integer_or_zero(self.details.get("max_offset"))


class MessageNotFound(BrokerError):
    """No message has the id asked for."""

    code, name, retriable = 22, "QUERY_NOT_FOUND", False


class FilterIllegal(BrokerError):
    """A filter does not parse or breaks a limit; ``column`` (from 1 on) says where, the message what was expected."""

    code, name, retriable = 23, "SUBSCRIPTION_PARSE_FAILED", False

    @property
    def column(self) -> int:
        """The character of the filter, counted from 1, at which it goes wrong."""
        return _integer_or_zero(self.details.get("column"))


class GroupNotExist(BrokerError):
    """No consumer group of that name has committed anything or has a member."""

    code, name, retriable = 26, "SUBSCRIPTION_GROUP_NOT_EXIST", False


class InvalidParameter(BrokerError):
    """A field of the request is missing, of the wrong type or out of its range; the message names it."""

    code, name, retriable = 29, "INVALID_PARAMETER", False


class QueueNotExist(BrokerError):
    """The topic has no queue of that number."""

    code, name, retriable = 1017, "QUEUE_NOT_EXIST", False


class FrameIllegal(BrokerError):
    """The frame cannot be trusted; the broker closes the connection after this answer."""

    code, name, retriable = 1400, "FRAME_ILLEGAL", False


class HelloRequired(BrokerError):
    """The first request of a connection must be HELLO; the broker closes the connection after this answer."""

    code, name, retriable = 1401, "HELLO_REQUIRED", False


class AuthenticationRequired(BrokerError):
    """The broker serves only users, and the connection has not said who it is, or is that user's no more; the broker
    closes the connection after this answer."""

    code, name, retriable = 1402, "AUTHENTICATION_REQUIRED", False


class AuthenticationFailed(BrokerError):
    """The user or the password is wrong, or the other side did not prove that it knows them; the broker closes the
    connection after this answer."""

    code, name, retriable = 1403, "AUTHENTICATION_FAILED", False


class PartlyStored(BrokerError):
    """Some messages of the frame were stored before, others not, or not in one piece; nothing was written. Cut it at
    `cut_at` and send both parts."""

    code, name, retriable = 1416, "PARTLY_STORED", False

    @property
    def stored(self) -> int:
        """How many of the frame's first messages are stored, in one piece."""
        return _integer_or_zero(self.details.get("stored"))

    @property
    def cut_at(self) -> int:
        """The first message with which something changes; those in front of it are all stored, or all not."""
        return _integer_or_zero(self.details.get("cut_at"))


class VersionNotSupported(BrokerError):
    """The broker does not speak the protocol version asked for."""

    code, name, retriable = 15, "VERSION_NOT_SUPPORTED", False


class TransactionGroupWrong(BrokerError):
    """The transaction belongs to another producer group; only a producer of that group may end it."""

    code, name, retriable = 203, "TRANSACTION_STATE_GROUP_WRONG", False


class EpochFenced(BrokerError):
    """The member speaks of an assignment that is over: its queues may be another member's by now. ``epoch`` is the
    member's present one, 0 where it has none; it has to ask for its assignment again. Of a commit, ``refused``
    names the queues that it does not hold; the others were committed."""

    code, name, retriable = 1410, "EPOCH_FENCED", False


class MemberUnknown(BrokerError):
    """The group has no such member, or has it no more: its session ran out, or it left. It has to join again."""

    code, name, retriable = 1411, "MEMBER_UNKNOWN", False


class MemberNameTaken(BrokerError):
    """Another live member of the group has this name; each needs its own."""

    code, name, retriable = 1412, "MEMBER_NAME_TAKEN", False


class GroupRunning(BrokerError):
    """The group has live members, so nobody else may move its offsets or delete it; stop them, or use force."""

    code, name, retriable = 1413, "GROUP_RUNNING", False


class TransactionEnded(BrokerError):
    """The transaction was ended before; ``outcome`` says how (`commit`, `rollback` or `parked`)."""

    code, name, retriable = 1414, "TRANSACTION_ENDED", False


class TransactionNotExist(BrokerError):
    """The broker has no half message of this id, or it is not where the request says."""

    code, name, retriable = 1415, "TRANSACTION_NOT_EXIST", False


class DelayIllegal(BrokerError):
    """A message asks for a delivery that cannot be: in the past, too far ahead, or of no known level."""

    code, name, retriable = 1417, "DELAY_ILLEGAL", False


class CommitIllegal(BrokerError):
    """An offset that lies beyond the queue's end cannot be committed; ``max_offset`` is the largest that can."""

    code, name, retriable = 1418, "COMMIT_ILLEGAL", False


class SubscriptionIllegal(BrokerError):
    """The group's members do not agree on how it consumes, or a subscription cannot be."""

    code, name, retriable = 1419, "SUBSCRIPTION_ILLEGAL", False


class PreparedIncomplete(BrokerError):
    """An attempt that is to be committed is not there as a whole: it was never begun, was dropped, has expired, or
    prepared another number of messages. Nothing was committed. ``attempt`` says which, ``prepared`` how many messages
    it has."""

    code, name, retriable = 1420, "PREPARED_INCOMPLETE", False


class MessageDamaged(BrokerError):
    """The next message of the queue is damaged in the log, and nobody has looked at that part of it yet: a start, or
    `flintmq-broker repair`, keeps its bytes aside and goes on behind it. `queue_offset` says which message it is;
    whoever can do without it pulls from the offset behind."""

    code, name, retriable = 1421, "MESSAGE_DAMAGED", False

    @property
    def queue_offset(self) -> int:
        """The message that is damaged."""
        return _integer_or_zero(self.details.get("queue_offset"))


class LimitReached(BrokerError):
    """There are as many groups, committed offsets, or topics that messages make, as the broker keeps. Nothing was done.
    Delete what is not used, or raise the limit that the message names."""

    code, name, retriable = 1422, "LIMIT_REACHED", False


class UserNotExist(BrokerError):
    """The broker's store has no user of that name."""

    code, name, retriable = 1430, "USER_NOT_EXIST", False


class UserExistsAlready(BrokerError):
    """The broker's store has a user of that name already."""

    code, name, retriable = 1431, "USER_EXIST_ALREADY", False


# Results that are no errors.
SUCCESS = 0
PULL_NOT_FOUND = 19
"""A pull at the end of a queue: nothing there yet."""
PULL_RETRY_IMMEDIATELY = 20
"""A filtered pull looked at its share of units and found none that match; go on from next_offset."""

RESULT_NAMES: dict[int, str] = {
    SUCCESS: "SUCCESS",
    PULL_NOT_FOUND: "PULL_NOT_FOUND",
    PULL_RETRY_IMMEDIATELY: "PULL_RETRY_IMMEDIATELY",
}

ERRORS_BY_CODE: dict[int, type[BrokerError]] = {
    cls.code: cls
    for cls in (
        BrokerFailure,
        SystemBusy,
        UnknownCommand,
        FlushDiskTimeout,
        MessageIllegal,
        ServiceNotAvailable,
        NoPermission,
        TopicNotExist,
        TopicExistsAlready,
        OffsetOutOfRange,
        MessageNotFound,
        FilterIllegal,
        InvalidParameter,
        QueueNotExist,
        FrameIllegal,
        HelloRequired,
        AuthenticationRequired,
        AuthenticationFailed,
        PartlyStored,
        VersionNotSupported,
        GroupNotExist,
        TransactionGroupWrong,
        EpochFenced,
        MemberUnknown,
        MemberNameTaken,
        GroupRunning,
        TransactionEnded,
        TransactionNotExist,
        DelayIllegal,
        CommitIllegal,
        SubscriptionIllegal,
        PreparedIncomplete,
        MessageDamaged,
        LimitReached,
        UserNotExist,
        UserExistsAlready,
    )
}


def error_from_answer(code: int, fields: Mapping[str, Any]) -> BrokerError:
    """The typed error that an error answer carries; an unknown code becomes a plain ``BrokerError`` of that code.

    ``fields``: the fields of the answer; ``message`` and ``retry_after_ms`` are taken out, the rest are ``details``.
    """
    details = {name: value for name, value in fields.items() if name not in ("message", "retry_after_ms")}
    message = fields.get("message")
    error = ERRORS_BY_CODE.get(code, BrokerError)(
        message if isinstance(message, str) else f"the broker answered with code {code}",
        retry_after_ms=max(_integer_or_zero(fields.get("retry_after_ms")), 0),
    )
    error.details = details
    if type(error) is BrokerError:
        error.code, error.name = code, f"RESULT_{code}"
        error.details.setdefault("code", code)
    return error


def _integer_or_zero(value: Any) -> int:
    return value if type(value) is int else 0
