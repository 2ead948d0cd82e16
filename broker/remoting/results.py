"""RocketMQ's result codes for FlintMQ's errors."""

from __future__ import annotations

from ...protocol import errors
from ...protocol.errors import BrokerError
from ...protocol.remoting import codes

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
