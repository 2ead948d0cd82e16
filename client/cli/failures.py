"""Errors as the shell shows them: one or two lines on standard error, and an exit code."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...protocol.display import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...protocol.errors import FlintError

EXIT_OK = 0
EXIT_ERROR = 1
"""The broker refused, or something failed."""
EXIT_USAGE = 2
"""The command line is invalid; no request was sent."""
EXIT_UNREACHED = 3
"""No broker could be reached, or it did not respond in time."""
EXIT_NOT_FOUND = 4
"""The topic, queue, group, message or user does not exist."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as 128 + SIGINT."""

NEXT_STEPS = {
    "TOPIC_NOT_EXIST": "flintmq topic list shows the topics; flintmq topic create creates one",
    "QUEUE_NOT_EXIST": "flintmq topic status TOPIC shows its queues; flintmq topic update TOPIC --queues N adds some",
    "SUBSCRIPTION_GROUP_NOT_EXIST": "flintmq group list shows the groups",
    "GROUP_RUNNING": "flintmq group status GROUP shows its members",
    "NO_PERMISSION": "flintmq topic list shows what each topic allows; flintmq topic update TOPIC --perm rw changes it",
    "AUTHENTICATION_REQUIRED": "pass --user NAME (or FLINTMQ_USER) with FLINTMQ_PASSWORD or --password-file FILE",
    "AUTHENTICATION_FAILED": "flintmq user list --store DIR, on the broker's machine, shows its users",
    "USER_NOT_EXIST": "flintmq user list shows the users",
    "PULL_OFFSET_MOVED": "--from earliest starts at the first stored message",
    "SUBSCRIPTION_PARSE_FAILED": "example: \"amount > 5 AND region IN ('eu', 'us')\"; the operators are = <> < <= > >= "
    "AND OR NOT, and BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH, IS NULL",
    "REQUEST_CODE_NOT_SUPPORTED": "the broker is older than this client; update it",
    "TRANSACTION_ENDED": "flintmq tx list shows the open and parked transactions",
    "SERVICE_NOT_AVAILABLE": "flintmq status shows the broker's disk",
    "REQUEST_TIMEOUT": "--timeout SECONDS waits longer; flintmq status shows the state of the broker",
}
"""Next step after an error, by code, for errors whose message does not name one."""
TLS_STEP = (
    "pass --tls-ca FILE (or FLINTMQ_TLS_CA), or --tls if the system trusts the CA; --tls-certificate and --tls-key for "
    "a client certificate"
)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the known words that resemble ``word``; empty if there are none."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def exit_code(error: FlintError) -> int:
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
    from ..core.produce.receipts import DeliveryFailed
    from ..errors import InvalidArgument, InvalidMessage

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
    """Return the lines to print for an error: the code and the message, then the next step if the message has none."""
    from ...protocol.errors import ConfigurationError
    from ..core.produce.receipts import DeliveryFailed
    from ..operator.errors import error_code

    prefix = ""
    if isinstance(error, DeliveryFailed):
        reasons = {str(reason): reason for reason in error.errors.values()}
        if len(reasons) == 1:  # one reason for all: show it instead of the summary
            if len(error.receipts) > 1:
                prefix = f"{len(error.errors):,} of {len(error.receipts):,} messages were not acknowledged: "
            error = next(iter(reasons.values()))
    message = prefix + escape(str(error))
    if isinstance(error, ConfigurationError):
        return [message]
    code = error_code(error)
    lines = [f"{code}: {message}", *map(escape, getattr(error, "__notes__", ()))]
    step = NEXT_STEPS.get(code.partition(" ")[0])
    if code == "CONNECTION_FAILED" and "tls" in message:  # the message names the arguments of a client, not options
        step = TLS_STEP
    if step and "`flintmq " not in message:  # the broker's own advice is more exact
        lines.append(f"next: {step}")
    return lines
