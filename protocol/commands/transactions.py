"""Transactions of one message (half messages), and prepared messages of staged transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..auth import rules
from ..auth.permissions import PUBLISH
from ..fields import I64_MAX, boolean, integer, text
from ..rows import ValueKind, column, row, shown
from ..storage.layout import GROUP_BYTES_MAX
from ..times import from_millis
from .common import KEY_CHARS_MAX, PREPARED_NAME_CHARS_MAX, Audit, Command, RowsCommand

TRANSACTIONS_MAX = 1_000
"""Maximum number of transactions in one response."""
PREPARED_ATTEMPTS_MAX = 10_000
"""Maximum number of attempts in one COMMIT_PREPARED."""


@dataclass(slots=True)
class EndTransactionRequest:
    """Commit or roll back the transaction of a half message. The broker responds after storing the decision."""

    group: str = text("producer group of the transaction", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    commit: bool = boolean("true: commit, false: roll back")
    half_queue_offset: int = integer(
        "queue offset in the PRODUCE response of the half message; -1: unknown", -1, I64_MAX, -1
    )
    half_physical_offset: int = integer("physical offset in that response; -1: unknown", -1, I64_MAX, -1)
    parked: bool = boolean("also end a parked transaction: commit still delivers its message", False)


@dataclass(slots=True)
class CheckTransactionStateRequest:
    """From the broker to a producer of the group: ask how this transaction ended. Body: the half message as a stored
    record, with the topic and queue that it was sent to."""

    group: str = text("producer group of the transaction", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    topic: str = text("topic that the message was sent to", 32767, 1)
    check_times: int = integer("number of checks so far, this one included")


@dataclass(slots=True)
class CheckTransactionStateAnswer:
    """The outcome as the producer knows it; the broker then commits or rolls back."""

    outcome: str = text("`commit`, `rollback` or `unknown` (check again later)", 8, 1)
    running: bool = boolean(
        "with `unknown`: this producer has the transaction open, so the check does not count", False
    )


@dataclass(slots=True)
class GetTransactionsRequest:
    """List open transactions, or those parked because no producer knew their outcome; oldest first."""

    parked: bool = boolean("list parked transactions instead of open ones", False)
    from_offset: int = integer("0, or `next_offset` of the previous response", default=0)
    max_count: int = integer("maximum number of transactions in the response", 1, TRANSACTIONS_MAX, 100)


@row
class TransactionInfo:
    """An open or parked transaction."""

    id: str = column("the half message's unique key", "ID")
    topic: str = column("topic that the message was sent to", "topic", ValueKind.NAME, fold=True)
    queue: int = column("queue of the topic")
    group: str = column("producer group of the transaction", "group", ValueKind.NAME, fold=True)
    born_ms: int = column("when its message was created, ms since 1970 UTC")
    stored_ms: int = column("when the half message was last written, ms since 1970 UTC")
    checks: int = column("number of checks sent to producers of `group`", "checks", ValueKind.COUNT)
    half_queue_offset: int = column(
        "queue offset of the half message, or of a parked message in TRANS_CHECK_MAX_TIME_TOPIC"
    )
    half_physical_offset: int = column("its physical offset")
    delivered: bool = column("whether a parked message was committed later")

    @property
    @shown("sent", ValueKind.MOMENT, spare=True)
    def born_at(self) -> datetime:
        """Time at which its message was created."""
        return from_millis(self.born_ms)


@dataclass(slots=True)
class TransactionsAnswer:
    """A page of transactions."""

    count: int = integer("number of rows in the body")
    next_offset: int = integer("from_offset of the next page, or -1", -1)
    open: int = integer("total number of open transactions", default=0)
    parked: int = integer("total number of parked messages", default=0)


@dataclass(slots=True)
class CommitPreparedRequest:
    """Commit the messages that attempts prepared: all of them, or none. The broker responds after storing all of them
    in their topics. Body: one msgpack array of `[attempt, messages]`, `messages` being the number of messages that the
    attempt prepared."""

    series: str = text("scope of the transaction, such as the id of a query", PREPARED_NAME_CHARS_MAX, 1)
    number: int = integer("sequence of the transaction in its series; up to the last committed one it does nothing")
    count: int = integer("number of attempts in the body", 0, PREPARED_ATTEMPTS_MAX)
    drop: str = text(
        "drop all attempts with this prefix that this request does not commit; empty: none",
        PREPARED_NAME_CHARS_MAX,
        default="",
    )
    flush: str = text("`sync`, `async` or empty (the broker's policy); the stricter of the two applies", 8, default="")


@dataclass(slots=True)
class CommitPreparedAnswer:
    """The transaction is committed."""

    already: bool = boolean("whether an earlier request committed it and this one did nothing", False)
    messages: int = integer("number of messages that this request committed", default=0)


@dataclass(slots=True)
class AbortPreparedRequest:
    """Drop the messages that attempts prepared. The broker responds after storing the decision."""

    drop: str = text("drop all attempts with this prefix", PREPARED_NAME_CHARS_MAX, 1)


@dataclass(slots=True)
class AbortPreparedAnswer:
    """The attempts are dropped."""

    count: int = integer("number of dropped attempts", default=0)


@dataclass(slots=True)
class GetPreparedRequest:
    """List prepared attempts, and committed transactions that are still being copied."""

    prefix: str = text("only attempts with this prefix; empty: all", PREPARED_NAME_CHARS_MAX, default="")
    max_count: int = integer("maximum number of attempts in the response", 1, TRANSACTIONS_MAX, 100)


@row
class AttemptInfo:
    """The messages that an attempt has prepared."""

    attempt: str = column("name of the attempt", "attempt")
    messages: int = column("number of its messages", "messages", ValueKind.COUNT)
    topics: tuple[str, ...] = column("topics of its messages", "topics", decode=tuple)
    active_ms: int = column("when the last of them arrived, ms since 1970 UTC")

    @property
    def active_at(self) -> datetime:
        """Time at which its last messages arrived."""
        return from_millis(self.active_ms)


@row
class CopyingInfo:
    """A committed transaction whose messages are being copied to their topics."""

    series: str = column("scope of the transaction")
    number: int = column("its number in the series")
    messages: int = column("number of its messages")
    copied: int = column("number of those that are copied")


@dataclass(slots=True)
class PreparedAnswer:
    """Body: one msgpack map `{attempts, copying}` of arrays of rows; the least recently active attempt first."""

    count: int = integer("number of attempts in the body")
    attempts: int = integer("total number of attempts with prepared messages", default=0)


END_TRANSACTION = Command(
    37, EndTransactionRequest, "commit or roll back a half message", rules.group(PUBLISH), audit=Audit.BY_HAND
)
CHECK_TRANSACTION_STATE = Command(
    39,
    CheckTransactionStateRequest,
    "from the broker: how did this transaction end?",
    rules.anybody,
    answer=CheckTransactionStateAnswer,
    from_broker=True,
)
GET_TRANSACTIONS = RowsCommand(
    1010,
    GetTransactionsRequest,
    "transactions that are open, or were parked",
    rules.anybody,
    answer=TransactionsAnswer,
    rows=TransactionInfo,
)
COMMIT_PREPARED = Command(
    1020,
    CommitPreparedRequest,
    "commit what attempts prepared, all of it or nothing",
    rules.on_any_topic(PUBLISH),
    answer=CommitPreparedAnswer,
)
ABORT_PREPARED = Command(
    1021,
    AbortPreparedRequest,
    "drop what attempts prepared",
    rules.on_any_topic(PUBLISH),
    answer=AbortPreparedAnswer,
    audit=Audit.ALWAYS,
)
GET_PREPARED = Command(
    1022, GetPreparedRequest, "what is prepared, and what is being copied", rules.anybody, answer=PreparedAnswer
)
