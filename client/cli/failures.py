"""Errors as a shell sees them: one or two lines on standard error, and an exit code."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...protocol.escaping import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...protocol.errors import FlintError

EXIT_OK = 0
EXIT_ERROR = 1
"""The broker refused, or something failed."""
EXIT_USAGE = 2
"""The command line cannot be used; nothing was asked of a broker."""
EXIT_UNREACHED = 3
"""No broker was reached, or it did not answer in time."""
EXIT_NOT_FOUND = 4
"""The topic, the queue, the group or the message is not there."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as 128 + SIGINT."""
EXIT_CLOSED_PIPE = 141
"""Nobody reads the output any more, as 128 + SIGPIPE."""

NEXT_STEPS = {
    "TOPIC_NOT_EXIST": "flintmq topic list shows those there are; flintmq topic create makes one",
    "QUEUE_NOT_EXIST": "flintmq topic status TOPIC shows its queues; flintmq topic update TOPIC --queues N adds some",
    "SUBSCRIPTION_GROUP_NOT_EXIST": "flintmq group list shows those there are",
    "GROUP_RUNNING": "flintmq group status GROUP shows its members",
    "NO_PERMISSION": "flintmq topic list shows what each topic allows; flintmq topic update TOPIC --perm rw changes it",
    "AUTHENTICATION_REQUIRED": "--user NAME (or FLINTMQ_USER) with FLINTMQ_PASSWORD or --password-file FILE",
    "AUTHENTICATION_FAILED": "flintmq user list --store DIR, where the broker runs, shows its users",
    "USER_NOT_EXIST": "flintmq user list shows those there are",
    "PULL_OFFSET_MOVED": "--from earliest reads from the first message that is there",
    "SUBSCRIPTION_PARSE_FAILED": "a filter is such as \"amount > 5 AND region IN ('eu', 'us')\"; it has = <> < <= > >= "
    "AND OR NOT, and BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH, IS NULL",
    "REQUEST_CODE_NOT_SUPPORTED": "the broker is older than this client; update it",
    "TRANSACTION_ENDED": "flintmq tx list shows what is open or was parked",
    "SERVICE_NOT_AVAILABLE": "flintmq status shows the broker's disk",
    "REQUEST_TIMEOUT": "--timeout SECONDS waits longer; flintmq status shows how the broker is",
}
"""What to do after an error, where its message does not say so already."""
TLS_STEP = (
    "--tls-ca FILE (or FLINTMQ_TLS_CA), or --tls where the system trusts it; --tls-certificate and --tls-key for yours"
)


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the known words that ``word`` resembles; empty where there is none."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def error_code(error: FlintError) -> str:
    """The stable code of an error: ``TOPIC_NOT_EXIST (17)``, or a name alone for what no broker answers."""
    from ...protocol.errors import BrokerError, ConnectionFailed, RequestTimeout
    from ..errors import CorruptMessage, DeliveryFailed

    if isinstance(error, BrokerError):
        return f"{error.name} ({error.code})"
    for kind, name in (
        (ConnectionFailed, "CONNECTION_FAILED"),
        (RequestTimeout, "REQUEST_TIMEOUT"),
        (DeliveryFailed, "DELIVERY_FAILED"),
        (CorruptMessage, "MESSAGE_CORRUPT"),
    ):
        if isinstance(error, kind):
            return name
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in type(error).__name__).strip("_").upper()


def exit_code(error: FlintError) -> int:
    """The exit code of a command that ended with this error."""
    from ...protocol.errors import (
        ConfigurationError,
        ConnectionFailed,
        GroupNotExist,
        MessageNotFound,
        QueueNotExist,
        RequestTimeout,
        TopicNotExist,
        UserNotExist,
    )
    from ..errors import DeliveryFailed, InvalidArgument, InvalidMessage

    if isinstance(error, DeliveryFailed):
        return max(map(exit_code, error.errors.values()), default=EXIT_ERROR)
    if isinstance(error, ConnectionFailed | RequestTimeout):
        return EXIT_UNREACHED
    if isinstance(error, TopicNotExist | QueueNotExist | GroupNotExist | MessageNotFound | UserNotExist):
        return EXIT_NOT_FOUND
    if isinstance(error, ConfigurationError | InvalidArgument | InvalidMessage):
        return EXIT_USAGE
    return EXIT_ERROR


def describe(error: FlintError) -> list[str]:
    """What to print of an error: the code and what happened, then what to do next where that is not said yet."""
    from ...protocol.errors import ConfigurationError
    from ..errors import DeliveryFailed

    prefix = ""
    if isinstance(error, DeliveryFailed):
        reasons = {str(reason): reason for reason in error.errors.values()}
        if len(reasons) == 1:  # the same for all: it says more than that something failed
            if len(error.receipts) > 1:
                prefix = f"{len(error.errors):,} of {len(error.receipts):,} messages were not acknowledged: "
            error = next(iter(reasons.values()))
    message = prefix + escape(str(error))
    if isinstance(error, ConfigurationError):
        return [message]
    code = error_code(error)
    lines = [f"{code}: {message}", *map(escape, getattr(error, "__notes__", ()))]
    step = NEXT_STEPS.get(code.partition(" ")[0])
    if code == "CONNECTION_FAILED" and "tls" in message:  # it names a client's arguments
        step = TLS_STEP
    if step and "`flintmq " not in message:  # the broker says more exactly what to do
        lines.append(f"next: {step}")
    return lines
