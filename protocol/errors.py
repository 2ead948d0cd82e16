"""All errors that FlintMQ raises, in one tree, with one class per result code of the protocol.

``FlintError`` is the root. Below it:

* ``BrokerError``: the broker responded with an error; one subclass per result code says whether a retry can help.
* ``ProtocolError``: a violation of the protocol, by this side (``LocalProtocolError``) or by the peer
  (``RemoteProtocolError``).
* ``ConnectionFailed``: the broker cannot be reached, or the connection broke.
* ``ConfigurationError``: an invalid setting or argument.

A message says what happened, to which object, why, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

MESSAGE_CHARS_MAX = 4000
"""Maximum length of the message in an error response, in characters."""


class FlintError(Exception):
    """Root of all errors that FlintMQ raises on purpose."""


class ConfigurationError(FlintError):
    """A setting or argument is invalid; the message names it, its value and the valid values."""


class ProtocolError(FlintError):
    """Bytes or calls that violate the protocol."""


class LocalProtocolError(ProtocolError):
    """This side tried to send something that the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that violates the protocol; the connection can no longer be used."""


class ConnectionFailed(FlintError):
    """The broker cannot be reached, or the connection broke while requests waited for their responses."""

    retriable: ClassVar[bool] = True


class RequestTimeout(FlintError):
    """No response came within the caller's timeout."""

    retriable: ClassVar[bool] = True


class BrokerError(FlintError):
    """The broker refused a request.

    ``code``, ``name``: the result; ``retriable``: whether the same request can succeed later; ``retry_after_ms``: the
    wait that the broker asks for, 0 if none; ``details``: the remaining fields of the response (limits, offsets).
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
        # Pickle must bypass __init__: the peer chooses the names in details, which may collide with its parameters.
        return _rebuild, (type(self), self.args), dict(self.__dict__)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the response that carries this error. A long message is cut to keep the header small."""
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
    """An internal error of the broker; its log has the details."""

    code, name, retriable = 1, "SYSTEM_ERROR", False


class SystemBusy(BrokerError):
    """The broker has reached a limit on requests in flight; retry after ``retry_after_ms``."""

    code, name, retriable = 2, "SYSTEM_BUSY", True


class UnknownCommand(BrokerError):
    """This broker does not know the command."""

    code, name, retriable = 3, "REQUEST_CODE_NOT_SUPPORTED", False


class FlushDiskTimeout(BrokerError):
    """The record is written, but the flush did not finish in time; the record may not survive a crash."""

    code, name, retriable = 10, "FLUSH_DISK_TIMEOUT", True


class MessageIllegal(BrokerError):
    """A produced message breaks a rule of the format; no message of its frame was written."""

    code, name, retriable = 13, "MESSAGE_ILLEGAL", False


class ServiceNotAvailable(BrokerError):
    """The broker cannot serve this now (it is stopping, or the disk is full) but may later."""

    code, name, retriable = 14, "SERVICE_NOT_AVAILABLE", True


class NoPermission(BrokerError):
    """The topic or the user does not allow this."""

    code, name, retriable = 16, "NO_PERMISSION", False


class TopicNotExist(BrokerError):
    """The topic does not exist, and this request may not create it."""

    code, name, retriable = 17, "TOPIC_NOT_EXIST", False


class TopicExistsAlready(BrokerError):
    """The topic already exists with other settings."""

    code, name, retriable = 18, "TOPIC_EXIST_ALREADY", False


class OffsetOutOfRange(BrokerError):
    """The offset of a pull is outside the queue; ``min_offset`` and ``max_offset`` are its bounds."""

    code, name, retriable = 21, "PULL_OFFSET_MOVED", False

    @property
    def min_offset(self) -> int:
        """First readable offset of the queue."""
        return _integer_or_zero(self.details.get("min_offset"))

    @property
    def max_offset(self) -> int:
        """Offset that the queue's next message will get."""
        return _integer_or_zero(self.details.get("max_offset"))


class MessageNotFound(BrokerError):
    """No message has the requested id."""

    code, name, retriable = 22, "QUERY_NOT_FOUND", False


class FilterIllegal(BrokerError):
    """A filter does not parse or exceeds a limit; ``column`` (from 1) says where, the message what was expected."""

    code, name, retriable = 23, "SUBSCRIPTION_PARSE_FAILED", False

    @property
    def column(self) -> int:
        """Position of the error in the filter, in characters from 1."""
        return _integer_or_zero(self.details.get("column"))


class GroupNotExist(BrokerError):
    """No consumer group of that name has members or committed offsets."""

    code, name, retriable = 26, "SUBSCRIPTION_GROUP_NOT_EXIST", False


class InvalidParameter(BrokerError):
    """A field of the request is missing, of the wrong type or out of its range; the message names it."""

    code, name, retriable = 29, "INVALID_PARAMETER", False


class QueueNotExist(BrokerError):
    """The topic has no queue with that number."""

    code, name, retriable = 1017, "QUEUE_NOT_EXIST", False


class FrameIllegal(BrokerError):
    """The frame is malformed; the broker closes the connection after this response."""

    code, name, retriable = 1400, "FRAME_ILLEGAL", False


class HelloRequired(BrokerError):
    """The first request of a connection must be HELLO; the broker closes the connection after this response."""

    code, name, retriable = 1401, "HELLO_REQUIRED", False


class AuthenticationRequired(BrokerError):
    """The broker requires authentication, and the connection has not authenticated or its user has changed; the broker
    closes the connection after this response."""

    code, name, retriable = 1402, "AUTHENTICATION_REQUIRED", False


class AuthenticationFailed(BrokerError):
    """The user or the password is wrong, or the peer failed to prove that it knows them; the broker closes the
    connection after this response."""

    code, name, retriable = 1403, "AUTHENTICATION_FAILED", False


class PartlyStored(BrokerError):
    """Some messages of a resent frame are stored and others are not, or they are not stored consecutively; nothing was
    written. Split the frame at `cut_at` and send both parts."""

    code, name, retriable = 1416, "PARTLY_STORED", False

    @property
    def stored(self) -> int:
        """Number of messages at the beginning of the frame that are stored consecutively."""
        return _integer_or_zero(self.details.get("stored"))

    @property
    def cut_at(self) -> int:
        """Index of the first message that differs; the messages before it are all stored, or all not stored."""
        return _integer_or_zero(self.details.get("cut_at"))


class VersionNotSupported(BrokerError):
    """The broker does not speak the requested protocol version."""

    code, name, retriable = 15, "VERSION_NOT_SUPPORTED", False


class TransactionGroupWrong(BrokerError):
    """The transaction belongs to another producer group; only a producer of that group may end it."""

    code, name, retriable = 203, "TRANSACTION_STATE_GROUP_WRONG", False


class EpochFenced(BrokerError):
    """The member's assignment is outdated: another member may have its queues by now. ``epoch`` is the member's current
    epoch, 0 if it has none; the member must fetch its assignment again. For a commit, ``refused`` names the queues that
    the member does not hold; the others were committed."""

    code, name, retriable = 1410, "EPOCH_FENCED", False


class MemberUnknown(BrokerError):
    """The group has no such member: it never joined, it left, or its session expired. It must join again."""

    code, name, retriable = 1411, "MEMBER_UNKNOWN", False


class MemberNameTaken(BrokerError):
    """Another live member of the group has this name; each needs its own."""

    code, name, retriable = 1412, "MEMBER_NAME_TAKEN", False


class GroupRunning(BrokerError):
    """The group has live members, so no one else may move its offsets or delete it; stop them, or use force."""

    code, name, retriable = 1413, "GROUP_RUNNING", False


class TransactionEnded(BrokerError):
    """The transaction has already ended; ``outcome`` says how (`commit`, `rollback` or `parked`)."""

    code, name, retriable = 1414, "TRANSACTION_ENDED", False


class TransactionNotExist(BrokerError):
    """The broker has no half message with this id, or not at the offsets in the request."""

    code, name, retriable = 1415, "TRANSACTION_NOT_EXIST", False


class DelayIllegal(BrokerError):
    """A message asks for an impossible delivery: in the past, too far ahead, or at an unknown delay level."""

    code, name, retriable = 1417, "DELAY_ILLEGAL", False


class CommitIllegal(BrokerError):
    """An offset beyond the queue's end cannot be committed; ``max_offset`` is the largest valid one."""

    code, name, retriable = 1418, "COMMIT_ILLEGAL", False


class SubscriptionIllegal(BrokerError):
    """The group's members disagree on how it consumes, or a subscription is invalid."""

    code, name, retriable = 1419, "SUBSCRIPTION_ILLEGAL", False


class PreparedIncomplete(BrokerError):
    """An attempt to be committed is incomplete: it never began, was dropped, has expired, or prepared another number of
    messages. Nothing was committed. ``attempt`` names it; ``prepared`` is its number of messages."""

    code, name, retriable = 1420, "PREPARED_INCOMPLETE", False


class MessageDamaged(BrokerError):
    """The next message of the queue is damaged in the log, and the damage is not contained yet: restart the broker, or
    run `flintmq-broker repair`, which moves the damaged bytes to the quarantine and continues after them.
    `queue_offset` is the damaged message; to skip it, pull from the next offset."""

    code, name, retriable = 1421, "MESSAGE_DAMAGED", False

    @property
    def queue_offset(self) -> int:
        """Queue offset of the damaged message."""
        return _integer_or_zero(self.details.get("queue_offset"))


class LimitReached(BrokerError):
    """The broker has reached its limit of groups, committed offsets or automatically created topics. Nothing was done.
    Delete unused ones, or raise the limit that the message names."""

    code, name, retriable = 1422, "LIMIT_REACHED", False


class GroupKind(BrokerError):
    """The group has live consumers of another kind: RocketMQ's clients, which share the queues among themselves,
    FlintMQ's own members, to which the broker assigns them, or consumers that pop. Stop those first, or use another
    group."""

    code, name, retriable = 1423, "GROUP_KIND", False


class UserNotExist(BrokerError):
    """The broker's store has no user with that name."""

    code, name, retriable = 1430, "USER_NOT_EXIST", False


class UserExistsAlready(BrokerError):
    """The broker's store already has a user with that name."""

    code, name, retriable = 1431, "USER_EXIST_ALREADY", False


class NotPrimary(BrokerError):
    """This broker is a member of a replica set and does not lead it; ``primary`` is the address of the member that
    does, empty while none does. Send the request there; without an address, ask the other members."""

    code, name, retriable = 1440, "NOT_PRIMARY", True

    @property
    def primary(self) -> str:
        """HOST:PORT of the primary; empty if this broker does not know one."""
        address = self.details.get("primary")
        return address if isinstance(address, str) else ""


class NotEnoughReplicas(BrokerError):
    """Fewer members of the replica set are in reach than ``replication.min_in_sync``, so nothing could be acknowledged;
    nothing was written."""

    code, name, retriable = 1441, "NOT_ENOUGH_REPLICAS", True


class ReplicationRefused(BrokerError):
    """The primary does not accept a follower, or a set does not accept a change of its members; the message says
    why."""

    code, name, retriable = 1442, "REPLICATION_REFUSED", False


# Results that are not errors.
SUCCESS = 0
PULL_NOT_FOUND = 19
"""Result of a pull at the end of a queue: no message yet."""
PULL_RETRY_IMMEDIATELY = 20
"""Result of a filtered pull that examined its share of units without a match; continue from next_offset."""

RESULT_NAMES: dict[int, str] = {
    SUCCESS: "SUCCESS",
    PULL_NOT_FOUND: "PULL_NOT_FOUND",
    PULL_RETRY_IMMEDIATELY: "PULL_RETRY_IMMEDIATELY",
}

ERRORS_BY_CODE: dict[int, type[BrokerError]] = {cls.code: cls for cls in BrokerError.__subclasses__()}


def error_from_answer(code: int, fields: Mapping[str, Any]) -> BrokerError:
    """Return the typed error of an error response; an unknown code becomes a plain ``BrokerError`` with that code.

    ``fields``: the fields of the response. All except ``message`` and ``retry_after_ms`` become ``details``.
    """
    details = {name: value for name, value in fields.items() if name not in ("message", "retry_after_ms")}
    message = fields.get("message")
    error = ERRORS_BY_CODE.get(code, BrokerError)(
        message if isinstance(message, str) else f"the broker responded with code {code}",
        retry_after_ms=max(_integer_or_zero(fields.get("retry_after_ms")), 0),
    )
    error.details = details
    if type(error) is BrokerError:
        error.code, error.name = code, f"RESULT_{code}"
        error.details.setdefault("code", code)
    return error


def _integer_or_zero(value: Any) -> int:
    return value if type(value) is int else 0
