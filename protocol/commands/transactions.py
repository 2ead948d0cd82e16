"""Transactions of one message, and prepared messages."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import I64_MAX, boolean, integer, text
from ..layout import GROUP_BYTES_MAX
from .common import KEY_CHARS_MAX, PREPARED_NAME_CHARS_MAX

TRANSACTIONS_MAX = 1_000
"""Most transactions in one answer."""
PREPARED_ATTEMPTS_MAX = 10_000
"""Most attempts that one COMMIT_PREPARED names."""


@dataclass(slots=True)
class EndTransactionRequest:
    """Commit or roll back the transaction of a half message. Answered when that is stored."""

    group: str = text("producer group that the transaction is of", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    commit: bool = boolean("true: commit, false: roll back")
    half_queue_offset: int = integer("of the half message, from the PRODUCE answer; -1: not known", -1, I64_MAX, -1)
    half_physical_offset: int = integer("the same; -1: not known", -1, I64_MAX, -1)
    parked: bool = boolean("also where it was parked: commit delivers its message after all", False)


@dataclass(slots=True)
class CheckTransactionStateRequest:
    """From the broker to a producer of the group: how did this transaction end? Body: the half message as a stored
    record, with the topic and queue that it was sent to."""

    group: str = text("producer group that the transaction is of", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    topic: str = text("topic that the message was sent to", 32767, 1)
    check_times: int = integer("how often producers were asked, this time included")


@dataclass(slots=True)
class CheckTransactionStateAnswer:
    """How it ended, as far as the producer knows: the broker does the rest."""

    outcome: str = text("`commit`, `rollback`, or `unknown`: ask again later", 8, 1)


@dataclass(slots=True)
class GetTransactionsRequest:
    """Transactions that are open, or those that were parked because nobody could tell their end; the oldest first."""

    parked: bool = boolean("those that were parked", False)
    from_offset: int = integer("0, or `next_offset` of the answer before", default=0)
    max_count: int = integer("most of them in the answer", 1, TRANSACTIONS_MAX, 100)


@dataclass(slots=True)
class TransactionsAnswer:
    """Body: one msgpack array of maps `{id, topic, queue, group, born_ms, stored_ms, checks, half_queue_offset,
    half_physical_offset, delivered}`; of what was parked the offsets are those of its message in
    TRANS_CHECK_MAX_TIME_TOPIC, and `delivered` says whether it was committed after all."""

    count: int = integer("maps in the body")
    next_offset: int = integer("from_offset of the next page; -1: there is none", -1)
    open: int = integer("open transactions in all", default=0)
    parked: int = integer("parked messages in all", default=0)


@dataclass(slots=True)
class CommitPreparedRequest:
    """Commit what attempts prepared: all of it, or nothing. Answered when all of it is stored in the topics that it was
    sent to. Body: one msgpack array of `[attempt, messages]`, `messages` being how many the attempt prepared."""

    series: str = text("whose transaction it is, such as the id of a query", PREPARED_NAME_CHARS_MAX, 1)
    number: int = integer("of the transaction in its series; one that is not above the last committed one is committed")
    count: int = integer("attempts in the body", 0, PREPARED_ATTEMPTS_MAX)
    drop: str = text(
        "attempts that begin so and are not committed by this are dropped; empty: none",
        PREPARED_NAME_CHARS_MAX,
        default="",
    )
    flush: str = text("`sync`, `async` or empty: the broker's; the stricter of the two holds", 8, default="")


@dataclass(slots=True)
class CommitPreparedAnswer:
    """The transaction is committed."""

    already: bool = boolean("it was committed before, by another request: this one did nothing", False)
    messages: int = integer("messages that this request committed", default=0)


@dataclass(slots=True)
class AbortPreparedRequest:
    """Drop what attempts prepared. Answered when that is stored."""

    drop: str = text("attempts that begin so are dropped", PREPARED_NAME_CHARS_MAX, 1)


@dataclass(slots=True)
class AbortPreparedAnswer:
    """They are dropped."""

    count: int = integer("how many attempts there were", default=0)


@dataclass(slots=True)
class GetPreparedRequest:
    """What is prepared, and what is committed and being copied."""

    prefix: str = text("only attempts that begin so; empty: all", PREPARED_NAME_CHARS_MAX, default="")
    max_count: int = integer("most attempts in the answer", 1, TRANSACTIONS_MAX, 100)


@dataclass(slots=True)
class PreparedAnswer:
    """Body: one msgpack map `{attempts, copying}`: `attempts` an array of maps `{attempt, messages, topics,
    active_ms}`, those first to which nothing came for longest, `copying` one of maps `{series, number, messages,
    copied}`."""

    count: int = integer("attempts in the body")
    attempts: int = integer("attempts in all that have prepared something", default=0)
