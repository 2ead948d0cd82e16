"""Options of a push consumer, and the errors for invalid ones."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from flintmq.client import GiveUp, GroupConsumer, InvalidArgument, PushConsumer, Subscription, TryLater, aio
from flintmq.client.core.consume.positions import End
from flintmq.client.groups.push.options import check_options, check_receive_options
from flintmq.protocol.storage.delivery import DEAD_LETTER_LEVEL

FINE: dict[str, Any] = {"group": "g", "topics": "t", "listener": print}


@pytest.mark.parametrize("kind", [PushConsumer, aio.PushConsumer])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listener": None}, "listener is missing"),
        ({"listener": 5}, "listener must be callable"),
        ({"group": ""}, "the group name is empty"),
        ({"group": "a/b"}, "characters that are not allowed"),
        ({"group": 7}, "group must be a str"),
        ({"topics": ()}, "topics names no topic"),
        ({"topics": {}}, "topics names no topic"),
        ({"topics": 5}, "topics must be a topic"),
        ({"topics": ["a/b"]}, "characters that are not allowed"),
        ({"topics": {"t": 5}}, "tags|int"),
        ({"topics": {"t": Subscription(filter=5)}}, "filter must be a str"),  # type: ignore[arg-type]  # the wrong argument is the test
        ({"mode": "both"}, "'clustering' or 'broadcasting'"),
        ({"start": "middle"}, r"'earliest' \(or 'first'\), 'latest' \(or 'last'\) or an aware datetime"),
        ({"start": datetime(2026, 1, 1)}, "aware|timezone"),  # noqa: DTZ001
        ({"member": ""}, "printable characters"),
        ({"member": "x" * 200}, "1 to 128"),
        ({"batch": 0}, "batch is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": 1.5}, "workers must be an int"),
        ({"prefetch_messages": 0}, "prefetch_messages is 0"),
        ({"prefetch_bytes": -1}, "prefetch_bytes is -1"),
        ({"commit_interval": 0}, "commit_interval is 0"),
        ({"session_timeout": 0.5}, "1 to 300 seconds"),
        ({"session_timeout": 301}, "1 to 300 seconds"),
        ({"listener_timeout": "no"}, "listener_timeout must be a number"),
        ({"retry_times_max": -1}, "retry_times_max is -1"),
        ({"delay_level": 19}, "delay_level is 19"),
        ({"suspend": 0}, "suspend is 0"),
        ({"addresses": "host:port"}, "host:port"),
    ],
)
def test_an_invalid_option_is_named(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidArgument, TypeError), match=said):
        kind(**{**FINE, **options})


def test_valid_options_are_accepted() -> None:
    consumer = PushConsumer(
        **{
            **FINE,
            "topics": {"t": "a || b", "u": None, "v": Subscription(filter="a > 5")},
            "start": datetime(2026, 1, 1, tzinfo=UTC),
            "member": "me",
        }
    )
    assert (consumer.group, consumer.member) == ("g", "me")
    assert not consumer.health().alive
    consumer.close()


@pytest.mark.parametrize(("one", "other"), [("first", "earliest"), ("last", "latest")])
def test_both_pairs_of_words_for_the_ends_of_a_queue_are_start_rules(one: End, other: End) -> None:
    starts = {check_options("g", "t", None, {"workers": 1, "start": start}).start for start in (one, other)}
    assert starts == {one}


def test_every_member_without_a_name_gets_a_unique_one() -> None:
    assert PushConsumer(**FINE).member != PushConsumer(**FINE).member


def test_exceptions_for_listeners_check_their_arguments() -> None:
    assert TryLater().delay_level == 0
    assert TryLater(18).delay_level == 18
    assert GiveUp().delay_level == DEAD_LETTER_LEVEL
    for level in (-1, 19, "1"):
        with pytest.raises(InvalidArgument):
            TryLater(level)  # type: ignore[arg-type]  # the wrong argument is the test


@pytest.mark.parametrize("kind", [GroupConsumer, aio.GroupConsumer])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": ""}, "the group name is empty"),
        ({"topics": ()}, "topics names no topic"),
        ({"max_open": 0}, "max_open is 0; it must be 1 to 1,000,000"),
        ({"max_open": 1.5}, "max_open must be an int"),
        ({"max_uncommitted": 0}, "max_uncommitted is 0; it must be 1 to 10,000,000"),
        ({"listener_timeout": 0}, "listener_timeout is 0"),
        ({"orderly": True}, r"use PushConsumer\(orderly=True\)"),
        ({"listener": print}, "has no argument 'listener'"),
        ({"batch": 5}, "has no argument 'batch'"),
        ({"mode": "broadcasting"}, "it must be 'clustering' or 'work'"),
        ({"lease": 5.0}, "lease is for mode='work'"),
        ({"mode": "work", "lease": 0}, "lease is 0"),
        ({"mode": "work", "lease": 86_401.0}, "it must be 0.001 to 86,400 seconds"),
        ({"mode": "work", "max_uncommitted": 5}, "max_uncommitted means nothing with mode='work'"),
        ({"mode": "work", "session_timeout": 5}, "session_timeout means nothing with mode='work'"),
        ({"mode": "work", "prefetch_messages": -1}, "prefetch_messages is -1; it must be 0 to 1,000,000"),
    ],
)
def test_an_invalid_option_of_a_group_consumer_is_named(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidArgument, TypeError), match=said):
        kind(**{"group": "g", "topics": "t", **options})


def test_a_group_consumers_messages_may_stay_open_for_ever() -> None:
    options = check_receive_options("g", "t", {"max_open": 7})
    assert (options.max_open, options.max_uncommitted, options.listener_timeout) == (7, 10_000, math.inf)
    assert (options.receives, options.orderly) == (True, False)
