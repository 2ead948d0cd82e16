"""Arguments of callers: addresses, tags, times, queues and keys."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from flintmq import client
from flintmq.client import (
    ConfigurationError,
    InvalidAddress,
    InvalidArgument,
    InvalidArgumentType,
    InvalidMessage,
    InvalidMessageType,
    Message,
    aio,
)
from flintmq.client.core.consume.batch import check_filter, parse_tags
from flintmq.client.core.produce.packer import (
    QueueCounts,
    check_bodies,
    check_bulk_keys,
    check_flush,
    check_messages,
    check_queue,
    common_properties,
    group_messages,
    queue_of,
    sharded_topics,
)
from flintmq.client.core.rpc.address import Address, parse_addresses
from flintmq.client.core.times import to_millis
from flintmq.protocol.commands import TopicInfo
from flintmq.protocol.times import from_millis


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "addresses"),
        [
            ("127.0.0.1:10911", [("127.0.0.1", 10911)]),
            ("a:1,b:2", [("a", 1), ("b", 2)]),
            (" a:1 , b:2 ", [("a", 1), ("b", 2)]),
            ("broker", [("broker", 10911)]),
            ("[::1]:5", [("::1", 5)]),
            ("[::1]", [("::1", 10911)]),
            ("a:1,[::1],a", [("a", 1), ("::1", 10911), ("a", 10911)]),
            (["a:1", "b"], [("a", 1), ("b", 10911)]),
        ],
    )
    def test_addresses_are_parsed_from_one_string_or_several(self, text: Any, addresses: list[tuple[str, int]]) -> None:
        assert parse_addresses(text) == tuple(Address(*address) for address in addresses)

    @pytest.mark.parametrize("text", ["", " , ", "a:x", "a:0", "a:65536", ":5", "::1", "[::1", "[::1]5", "a:-1", "a:١"])
    def test_an_invalid_address_is_refused_by_name(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match=re.escape(repr(text.strip()) if text.strip(" ,") else "no broker")):
            parse_addresses(text)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a:1,", "address 2 of 'a:1,' is empty"),
            ("a:1,,b:1", "address 2 of 'a:1,,b:1' is empty"),
            ([" ", "a:1"], "address 1 of [' ', 'a:1'] is empty"),
            ("a:1,b,a:1", "'a:1' is given twice"),
            ("a,a:10911", "'a:10911' is given twice"),
            ("a:1,b:65536", "'b:65536' has the port '65536'; it must be 1 to 65535"),
            ("a:1,b:" + "9" * 9000, "it must be 1 to 65535"),
            ("a:1,b..c:1", "'b..c:1' has the host 'b..c', which is not a host name"),
            ("a:1,ü..c:1", "'ü..c:1' has the host 'ü..c', which is not a host name"),
            (",".join(f"a{number}" for number in range(17)), "17 broker addresses were given"),
        ],
    )
    def test_a_list_with_an_invalid_address_is_a_configuration_error_that_names_it(
        self, text: Any, reason: str
    ) -> None:
        for make in (parse_addresses, *CLIENTS):
            with pytest.raises(ConfigurationError, match=re.escape(reason)):
                make(addresses=text)

    def test_sixteen_addresses_are_taken(self) -> None:
        assert len(parse_addresses([f"a{number}" for number in range(16)])) == 16

    @pytest.mark.parametrize(
        ("text", "write"),
        [
            ("kafka://localhost:10911", "'kafka://', but FlintMQ's addresses have none: use 'localhost:10911'"),
            ("https://[::1]:5/x", "use '[::1]:5', and tls=True for TLS"),
        ],
    )
    def test_an_address_with_a_scheme_is_refused_with_a_correction(self, text: str, write: str) -> None:
        with pytest.raises(InvalidArgument, match=re.escape(write) + "$"):
            parse_addresses(text)

    def test_an_address_is_shown_as_it_was_written(self) -> None:
        assert [str(address) for address in parse_addresses("a:1,[::1]:2")] == ["a:1", "[::1]:2"]


CLIENTS: list[Callable[..., object]] = [
    client.Producer,
    client.Consumer,
    client.Admin,
    aio.Producer,
    aio.Consumer,
    aio.Admin,
    lambda **options: client.PushConsumer(group="g", topics="t", listener=print, **options),
    lambda **options: client.GroupConsumer(group="g", topics="t", **options),
    lambda **options: aio.GroupConsumer(group="g", topics="t", **options),
    lambda **options: client.TransactionProducer(group="g", check=lambda message: client.Outcome.COMMIT, **options),
]


class TestUnknownArguments:
    @pytest.mark.parametrize("make", CLIENTS)
    def test_an_unknown_argument_is_named(self, make: Callable[..., object]) -> None:
        with pytest.raises(InvalidArgumentType, match=r"^\w+\(\) has no argument 'pasword'; did you"):
            make(pasword="x")

    def test_an_unknown_argument_is_a_type_error_that_names_the_client(self) -> None:
        with pytest.raises(TypeError, match=r"^Producer\(\) has no argument 'linger_ms': no need to wait"):
            client.Producer(linger_ms=5)  # type: ignore[call-arg]  # the wrong argument is the test

    def test_an_argument_of_another_brokers_client_is_refused_with_its_counterpart(self) -> None:
        with pytest.raises(TypeError, match=r"^PushConsumer\(\) has no argument 'group_id': use group="):
            client.PushConsumer(group_id="g", topics="t", listener=print)  # type: ignore[call-overload]  # the wrong argument is the test

    def test_without_a_similar_argument_all_are_listed(self) -> None:
        with pytest.raises(TypeError, match="it takes addresses, client_name, password, read_from, timeout, tls, tls_"):
            client.Consumer(qqq=1)  # type: ignore[call-arg]  # the wrong argument is the test


@pytest.mark.parametrize(
    "kind", [InvalidMessage, InvalidMessageType, InvalidArgument, InvalidAddress, InvalidArgumentType]
)
def test_an_error_of_the_client_alone_is_not_a_broker_error(kind: type[Exception]) -> None:
    assert issubclass(kind, client.FlintError)
    assert issubclass(kind, ValueError)
    assert not issubclass(kind, client.BrokerError)
    assert issubclass(kind, TypeError) == kind.__name__.endswith("Type")


class TestTags:
    @pytest.mark.parametrize("tags", [None, "*", "", "  ", ["*"], "a || *"])
    def test_no_tags_or_a_star_accept_everything(self, tags: Any) -> None:
        wanted = parse_tags(tags)
        assert wanted.expression == ""
        assert wanted.accepts(None)
        assert wanted.accepts("anything")

    @pytest.mark.parametrize("tags", ["a || b", "b||a", ["a", "b"], ("b", " a ")])
    def test_a_filter_of_several_tags_accepts_each_of_them(self, tags: Any) -> None:
        wanted = parse_tags(tags)
        assert wanted.expression == "a || b"
        assert [wanted.accepts(tag) for tag in ("a", "b", "c", "", None)] == [True, True, False, False, False]

    @pytest.mark.parametrize("tags", [[], ["", " "], "||", ["a || b"], "x" * 5000])
    def test_a_filter_without_a_valid_tag_is_refused(self, tags: Any) -> None:
        with pytest.raises(InvalidArgument):
            parse_tags(tags)

    def test_a_tag_must_be_a_str(self) -> None:
        with pytest.raises(InvalidArgumentType):
            parse_tags([5])  # type: ignore[list-item]  # the wrong argument is the test


class TestFilters:
    @pytest.mark.parametrize(("given", "sent"), [(None, ""), ("", ""), ("a > 5", "a > 5"), ("a" * 4096, "a" * 4096)])
    def test_a_filter_is_sent_to_the_broker_unchanged(self, given: str | None, sent: str) -> None:
        assert check_filter(given) == sent

    def test_a_filter_that_is_not_a_str_or_too_long_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentType, match="not list"):
            check_filter(["a > 5"])  # type: ignore[arg-type]  # the wrong argument is the test
        with pytest.raises(InvalidArgument, match="4,097 characters"):
            check_filter("a" * 4097)


class TestMoments:
    def test_a_time_survives_the_round_trip(self) -> None:
        moment = datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=UTC)
        assert from_millis(to_millis("since", moment)) == moment

    def test_the_time_zone_is_converted(self) -> None:
        moment = datetime(2026, 11, 21, 10, tzinfo=timezone(timedelta(hours=2)))
        assert from_millis(to_millis("since", moment)) == datetime(2026, 11, 21, 8, tzinfo=UTC)

    def test_a_naive_datetime_is_refused_with_a_hint(self) -> None:
        with pytest.raises(InvalidArgument, match=r"since=.* has no time zone; pass one"):
            to_millis("since", datetime(2026, 11, 21))  # noqa: DTZ001

    def test_a_number_is_not_a_time(self) -> None:
        with pytest.raises(InvalidArgumentType, match="since must be a datetime, not int"):
            to_millis("since", 5)

    def test_a_time_before_1970_becomes_0(self) -> None:
        assert to_millis("since", datetime(1900, 1, 1, tzinfo=UTC)) == 0

    @pytest.mark.parametrize("millis", [-(2**63), 2**63 - 1])
    def test_the_time_of_a_damaged_record_becomes_a_valid_datetime(self, millis: int) -> None:
        assert from_millis(millis).tzinfo is UTC


class TestOutgoing:
    def test_messages_of_one_topic_form_one_group(self) -> None:
        messages = [Message("t", b"%d" % number) for number in range(3)]
        (way,) = group_messages(messages, -1, {})
        assert (way.topic, way.queue, way.indexes) == ("t", -1, range(3))
        assert [message.body for message in way.messages] == [b"0", b"1", b"2"]

    def test_messages_are_grouped_by_topic_and_queue_in_order(self) -> None:
        messages = [
            Message("ab"[number % 2], b"%d" % number, sharding_key="s" if number > 3 else None) for number in range(8)
        ]
        ways = group_messages(messages, -1, {"a": 9, "b": 9})
        assert {(way.topic, way.queue): list(way.indexes) for way in ways} == {
            ("a", -1): [0, 2],
            ("b", -1): [1, 3],
            ("a", queue_of("s", 9)): [4, 6],
            ("b", queue_of("s", 9)): [5, 7],
        }

    def test_an_explicit_queue_overrides_sharding_keys(self) -> None:
        messages = [Message("t", b"", sharding_key=str(number)) for number in range(4)]
        (way,) = group_messages(messages, 2, {})
        assert (way.queue, list(way.indexes)) == (2, [0, 1, 2, 3])

    def test_only_topics_with_sharding_keys_need_their_queue_count(self) -> None:
        assert sharded_topics([Message("a", b""), Message("b", b"", sharding_key="x")]) == {"b"}
        assert sharded_topics([Message("a", b"")]) == set()

    def test_an_item_that_is_not_a_message_is_named(self) -> None:
        with pytest.raises(InvalidMessageType, match=r"messages\[1\] must be a flintmq.client.Message, not str"):
            check_messages([Message("t", b""), "no"])  # type: ignore[list-item]  # the wrong argument is the test

    def test_send_many_refuses_a_single_message(self) -> None:
        with pytest.raises(InvalidMessageType, match="use send for one"):
            check_messages(Message("t", b""))  # type: ignore[arg-type]  # the wrong argument is the test

    @pytest.mark.parametrize("queue", [-1, 65_536])
    def test_a_queue_out_of_range_is_refused(self, queue: int) -> None:
        with pytest.raises(InvalidArgument, match="queue is"):
            check_queue(queue)

    @pytest.mark.parametrize("queue", [True, "0", 1.0])
    def test_a_queue_must_be_an_int(self, queue: Any) -> None:
        with pytest.raises(InvalidArgumentType):
            check_queue(queue)

    def test_flush_must_be_sync_async_or_none(self) -> None:
        assert [check_flush(mode) for mode in (None, "sync", "async")] == ["", "sync", "async"]
        with pytest.raises(InvalidArgument, match="'never'"):
            check_flush("never")


class TestBulks:
    def test_bodies_are_not_copied(self) -> None:
        bodies = [b"a", b"b"]
        assert check_bodies(bodies) is bodies

    def test_bytes_like_bodies_are_converted(self) -> None:
        assert check_bodies((bytearray(b"a"), memoryview(b"b"), b"c")) == [b"a", b"b", b"c"]

    @pytest.mark.parametrize("bodies", [b"abc", "abc", bytearray(b"abc")])
    def test_send_bulk_refuses_a_single_body(self, bodies: Any) -> None:
        with pytest.raises(InvalidMessageType, match="give a list"):
            check_bodies(bodies)

    def test_a_body_of_a_wrong_type_is_named(self) -> None:
        with pytest.raises(InvalidMessageType, match=r"bodies\[1\] must be bytes, not str; encode it first"):
            check_bodies([b"a", "b"])

    @pytest.mark.parametrize(
        ("keys", "checked"),
        [
            (None, None),
            (["a", "b"], ["a", "b"]),
            (("a", None), ["a", None]),
            ([["a", "b"], ()], ["a b", None]),
            (["ключ", "中"], ["ключ", "中"]),
        ],
    )
    def test_an_entry_of_keys_is_one_key_several_or_none(self, keys: Any, checked: Any) -> None:
        assert check_bulk_keys(keys, 2) == checked

    @pytest.mark.parametrize("keys", [["a", "b c"], ["a", ""], ["a", "b\x01"], ["a", "\ud800"], ["a", ["b", "c d"]]])
    def test_an_invalid_key_is_named(self, keys: Any) -> None:
        with pytest.raises(InvalidMessage, match=r"keys\[1\]"):
            check_bulk_keys(keys, 2)

    def test_a_key_of_a_wrong_type_is_named(self) -> None:
        with pytest.raises(InvalidMessageType, match=r"keys\[1\]"):
            check_bulk_keys(["a", 5], 2)
        with pytest.raises(InvalidMessageType, match="not one str"):
            check_bulk_keys("ab", 2)

    def test_the_number_of_keys_must_match_the_bodies(self) -> None:
        with pytest.raises(InvalidArgument, match="1 keys for 2 bodies"):
            check_bulk_keys(["a"], 2)

    def test_common_properties_are_encoded_as_in_a_record(self) -> None:
        assert (
            common_properties({"tags": "eu", "properties": {"a": "b"}, "sharding_key": "s"})
            == "a\x01b\x02TAGS\x01eu\x02__SHARDINGKEY\x01s\x02"
        )
        assert common_properties({}) == ""

    def test_common_properties_must_fit_a_record(self) -> None:
        with pytest.raises(InvalidMessage, match="at most 32767"):
            common_properties({"properties": {"a": "é" * 20_000}})

    def test_an_unknown_argument_of_a_bulk_is_named(self) -> None:
        with pytest.raises(InvalidArgumentType, match=r"send_bulk\(\) has no argument 'tag'"):
            common_properties({"tag": "eu"})  # type: ignore[typeddict-unknown-key] # the error of a user


class TestSharding:
    def test_the_queue_is_the_crc32_of_the_key_modulo_the_queues(self) -> None:
        # Fixed values: clients in other languages and later versions must select the same queue.
        assert [queue_of(key, 4) for key in ("a", "b", "order-1", "ключ")] == [3, 1, 3, 2]
        assert [queue_of(key, 7) for key in ("a", "b", "order-1", "ключ")] == [4, 4, 6, 1]

    def test_queue_counts_expire_after_a_while(self) -> None:
        counts = QueueCounts()
        assert counts.of("t", 0.0) is None
        counts.learned([TopicInfo("t", read_queues=8, write_queues=6)], 100.0)
        assert counts.of("t", 129.0) == 6
        assert counts.of("t", 131.0) is None
        assert counts.last_known("t") == 6

    def test_a_missing_topic_counts_with_the_queues_the_broker_will_give_it(self) -> None:
        counts = QueueCounts()
        counts.learned([], 100.0)
        assert counts.of("t", 101.0) is None
        assert counts.will_be_created("t", 4) == 4
        assert counts.of("t", 101.0) == 4

    def test_a_refused_queue_makes_the_counts_expire(self) -> None:
        counts = QueueCounts()
        counts.learned([TopicInfo("t", 4, 4)], 100.0)
        counts.forget()
        assert counts.of("t", 100.0) is None


def test_a_client_without_user_and_tls_imports_no_module_for_them() -> None:
    program = (
        "import sys; from flintmq.client import Producer; Producer('127.0.0.1:1').close(); "
        "print({'ssl', 'stringprep', 'flintmq.protocol.auth.scram', 'flintmq.client.core.rpc.tls'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "set()\n"
