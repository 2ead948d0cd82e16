"""Exceptions of listeners: the reason stored with the message, and the log line."""

from __future__ import annotations

import logging
from itertools import chain
from math import inf
from typing import Any

import pytest

from flintmq.client import GiveUp, InvalidArgumentType, PushConsumer, StoredMessage, TryLater
from flintmq.client.core.consume.batch import Batch
from flintmq.client.groups.push.assignments import Claim, WorkItem
from flintmq.client.groups.push.outcome import Failure, describe, failed_with, reason_of
from flintmq.client.groups.push.progress import REASONS_BYTES_MAX, SEND_BACK_MAX, _parts
from flintmq.protocol.storage.record import Record, encode_properties

UNIQUE = "7F00000100002A9F0000000000000001"


def message(tries: int = 0, queue_offset: int = 7, **properties: str) -> StoredMessage:
    record = Record(
        topic=b"%RETRY%g" if tries else b"jobs",
        body=b"x",
        reconsume_times=tries,
        queue_id=2,
        queue_offset=queue_offset,
        properties=encode_properties({"UNIQ_KEY": UNIQUE, **properties}),
    )
    blob = record.encode()
    found = StoredMessage(len(blob), 0, blob, "")
    found.shown_in("jobs")
    return found


def work(*messages: StoredMessage, tries: int = 0) -> WorkItem:
    batch = Batch("jobs", 2, b"", 0, next_offset=0, min_offset=0, max_offset=0)
    return WorkItem(Claim("jobs", 2, 1, 0), messages, batch, 8, 100, tries, inf, inf)


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raised_from(raised: BaseException, cause: BaseException | None, context: BaseException | None = None) -> Any:
    raised.__context__ = context
    if cause is not None:
        raised.__cause__ = cause
    return raised


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such account"), "ValueError: no such account"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (ValueError("a\x01b\x02c"), "ValueError: a b c"),
        (ValueError("\udcff"), "ValueError: ?"),
        (BrokenText(), "BrokenText: its text is not available (RuntimeError)"),
        (TryLater(), "TryLater"),
        (GiveUp(), "GiveUp"),
        (TryLater(3, reason="bank closed"), "bank closed"),
        (GiveUp(reason="no such account"), "no such account"),
        (GiveUp("no such account"), "no such account"),
        (raised_from(TryLater(), KeyError("k")), "KeyError: 'k'"),
        (raised_from(TryLater(), None, KeyError("k")), "KeyError: 'k'"),
        (raised_from(TryLater(reason="later"), KeyError("k")), "later"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 1011 + "…"),
    ],
)
def test_the_reason_is_one_line_about_the_exception(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason
    assert len(reason) <= 1024


def test_a_reason_must_be_a_str() -> None:
    with pytest.raises(InvalidArgumentType, match="reason must be a str, not int"):
        TryLater(reason=5)  # type: ignore[arg-type]  # the wrong argument is the test


def test_without_retry_reason_no_reason_is_stored() -> None:
    options: dict[str, Any] = {"group": "g", "topics": "t", "listener": print}
    one = message()
    for told, reason in ((True, "ValueError: secret"), (False, "")):
        consumer = PushConsumer(**options, retry_reason=told)
        failed = failed_with(ValueError("secret"), consumer._options, [one], work(one))
        assert failed == [Failure(one, 0, reason)]


def test_a_message_is_described_by_id_topic_keys_place_and_attempt() -> None:
    unique = f"message {UNIQUE} of topic jobs"
    assert describe([message(KEYS="o-1")]) == f"{unique}, key o-1, queue 2, offset 7, try 1"
    assert describe([message(3, KEYS="a b")]) == f"{unique}, keys a b, try 4", (
        "its queue and offset are those of %RETRY%g"
    )
    assert describe([message()], tries=2).endswith("try 3"), "in orderly mode it is retried in its place"
    many = describe([message(queue_offset=n) for n in range(300)])
    assert many.startswith("300 messages (")
    assert many.endswith("; and 290 more)")


def test_the_repr_of_a_redelivered_message_names_its_retry_topic() -> None:
    assert repr(message()) == "<StoredMessage 'jobs' queue 2 offset 7>"
    assert repr(message(1)) == "<StoredMessage 'jobs' redelivered, stored in '%RETRY%g' queue 2 offset 7>"


def test_each_kind_of_failure_has_its_own_log_line(caplog: pytest.LogCaptureFixture) -> None:
    options = PushConsumer(group="g", topics="t", listener=print)._options
    one = message(1, KEYS="o-1")
    with caplog.at_level(logging.INFO, "flintmq"):
        failed_with(ValueError("no"), options, [one], work(one))
        failed_with(TryLater(reason="bank closed"), options, [one], work(one))
        failed_with(GiveUp("no such account"), options, [one], work(one))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert all("of topic jobs, key o-1, try 2" in record.getMessage() for record in caplog.records)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]
    assert "gave up" in caplog.records[2].getMessage()


def test_try_later_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    options = PushConsumer(group="g", topics="t", listener=print)._options
    one = message()
    with caplog.at_level(logging.INFO, "flintmq"):
        for _ in range(1000):
            failed_with(TryLater(), options, [one], work(one))
    assert 10 <= len(caplog.records) < 100


def test_failures_with_different_reasons_share_a_request_up_to_the_size_of_a_header() -> None:
    one = message()
    short = [Failure(one, 0, f"ValueError: {number}") for number in range(1000)]
    parts = list(_parts(short))
    assert [len(part) for part in parts] == [SEND_BACK_MAX] * 3 + [1000 - 3 * SEND_BACK_MAX]
    long = [Failure(one, 0, "€" * 1024) for _ in range(100)]
    parts = list(_parts(long))
    assert list(chain.from_iterable(parts)) == long
    assert all(sum(len(failure.reason.encode()) for failure in part) <= REASONS_BYTES_MAX for part in parts)
    assert not list(_parts([]))
