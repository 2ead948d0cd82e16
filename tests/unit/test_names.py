"""Valid names of topics and groups, and the broker's own topics."""

from __future__ import annotations

import pytest

from flintmq.protocol.errors import InvalidParameter
from flintmq.protocol.names import PRODUCE_FORBIDDEN_TOPICS, SYSTEM_TOPICS, check_name, is_system_topic, may_produce_to
from flintmq.protocol.storage.layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX


@pytest.mark.parametrize("name", ["orders", "a", "%RETRY%group", "%DLQ%group", "A_b-C|9", "0", "-", "x" * 120])
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_valid_names_are_returned(kind: str, name: str) -> None:
    assert check_name(kind, name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a.b",
        "..",
        "/",
        "../../etc",
        "a\\b",
        "a\n",
        "orders\n",
        "\0",
        "a\x01",
        "a#b",
        "a@b",
        "a~",
        "ключ",
        "é",
        "a\u0661",  # some regular expressions accept an Arabic digit as a digit
        "$HOME",
        "*",
    ],
)
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_other_names_are_refused_with_the_kind_of_name(kind: str, name: str) -> None:
    with pytest.raises(InvalidParameter, match=kind):
        check_name(kind, name)


@pytest.mark.parametrize(("kind", "longest"), [("topic", TOPIC_BYTES_MAX), ("group", GROUP_BYTES_MAX)])
def test_the_longest_name_is_valid_and_one_more_is_not(kind: str, longest: int) -> None:
    check_name(kind, "x" * longest)
    with pytest.raises(InvalidParameter, match=f"has {longest + 1} characters; at most {longest}"):
        check_name(kind, "x" * (longest + 1))


def test_the_error_for_an_enormous_name_is_short() -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_name("topic", "\U0010ffff" * 1_000_000)
    assert len(str(caught.value)) < 600


def test_system_topics_are_rocketmqs() -> None:
    # org.apache.rocketmq.common.topic.TopicValidator, 5.3.3: SYSTEM_TOPIC_SET and NOT_ALLOWED_SEND_TOPIC_SET.
    assert set(SYSTEM_TOPICS) - PRODUCE_FORBIDDEN_TOPICS == {
        "TBW102",
        "BenchmarkTest",
        "RMQ_SYS_TRACE_TOPIC",
        "CHECKPOINT_TOPIC",
    }
    assert set(PRODUCE_FORBIDDEN_TOPICS) == {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }


@pytest.mark.parametrize("topic", [*sorted(SYSTEM_TOPICS), "rmq_sys_wheel_timer", "rmq_sys_"])
def test_system_topics_are_recognised_and_are_valid_names(topic: str) -> None:
    assert is_system_topic(topic)
    assert check_name("topic", topic) == topic


@pytest.mark.parametrize(
    "topic", ["orders", "SCHEDULE_TOPIC_XXXX2", "schedule_topic_xxxx", "RMQ_SYS_", "%RETRY%rmq_sys_"]
)
def test_other_topics_are_the_users(topic: str) -> None:
    assert not is_system_topic(topic)
    assert may_produce_to(topic)


@pytest.mark.parametrize("topic", [*sorted(PRODUCE_FORBIDDEN_TOPICS), "rmq_sys_wheel_timer"])
def test_a_producer_may_not_write_broker_topics(topic: str) -> None:
    assert not may_produce_to(topic)


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_name_with_dots_is_refused_with_a_suggestion(kind: str) -> None:
    with pytest.raises(InvalidParameter, match=r"use % \| a-z A-Z 0-9 _ -: 'orders-eu-v1' or 'orders_eu_v1', for inst"):
        check_name(kind, "orders.eu.v1")


@pytest.mark.parametrize("name", ["orders.v1", "\u043a\u043b\u044e\u0447"])
def test_the_error_for_a_forbidden_character_names_the_function_that_encodes_it(name: str) -> None:
    with pytest.raises(InvalidParameter, match=r"; encode_name of flintmq\.client makes a valid name of any$"):
        check_name("topic", name)
