"""Staged transactions over the wire: invisible until their commit, then all messages, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from flintmq.protocol.commands import (
    COMMIT_PREPARED,
    DELETE_TOPIC_IN_BROKER,
    PHYSICAL_OFFSET_STRUCT,
    QUERY_BY_KEY,
    UPDATE_AND_CREATE_TOPIC,
    VIEW_MESSAGE_BY_ID,
)
from flintmq.protocol.errors import (
    InvalidParameter,
    MessageIllegal,
    MessageNotFound,
    NoPermission,
    PreparedIncomplete,
    QueueNotExist,
    SystemBusy,
    TopicNotExist,
)
from flintmq.protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import encode_host, offset_id, unique_key
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.prepared_tools import PREFIX, abort, bodies, commit, prepare
from tests.transaction_tools import common, messages


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    brokers = Brokers(tmp_path_factory.mktemp("prepared"))
    yield brokers.start(settings={"transactions.prepared_attempts_max": 20})
    brokers.stop_all()


@pytest.fixture
def connection(one_broker: RunningBroker, connect: ConnectionFactory) -> Iterator[RawConnection]:
    connection = connect(one_broker)
    yield connection
    abort(connect(one_broker), "a")


@pytest.fixture
def series(topic: str) -> str:
    """Return a scope that no other test uses."""
    return f"series of {topic}"


def refused(answer: Any, error: type[Exception], match: str | None = None) -> None:
    with pytest.raises(error, match=match):
        answer.raise_for_error()


class TestCommit:
    def test_staged_messages_are_invisible_until_their_commit(
        self, connection: RawConnection, topic: str, series: str
    ) -> None:
        prepared = prepare(connection, "a", topic, b"one", b"two", unique_prefix=PREFIX, unique_first=1)
        key, physical_offset = unique_key(PREFIX, 1), PHYSICAL_OFFSET_STRUCT.unpack(prepared.body[:8])[0]
        assert bodies(connection, topic) == []
        half_id = offset_id(encode_host(*connection.sock.getpeername()), physical_offset)
        for message_id in (key, half_id):
            refused(connection.call(VIEW_MESSAGE_BY_ID, {"id": message_id}), MessageNotFound)
        assert connection.call(QUERY_BY_KEY, {"topic": topic, "key": key}).raise_for_error().fields["count"] == 0
        for hidden in (PREPARED_TOPIC, OP_PREPARED_TOPIC):
            for answer in (
                connection.pull(hidden),
                connection.call(QUERY_BY_KEY, {"topic": hidden, "key": key}),
                connection.call(VIEW_MESSAGE_BY_ID, {"topic": hidden, "id": key}),
                connection.produce(hidden, b"x"),
            ):
                refused(answer, NoPermission)

        committed = commit(connection, 0, {"a": 2}, series=series).raise_for_error()
        assert committed.fields == {"messages": 2}
        first, second = messages(connection, topic)
        assert (first.body, second.body) == (b"one", b"two")
        assert first.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
        assert first.prepared_transaction_offset == physical_offset
        assert connection.call(QUERY_BY_KEY, {"topic": topic, "key": key}).raise_for_error().fields["count"] == 1

    def test_a_commit_that_is_asked_for_again_does_nothing(
        self, connection: RawConnection, topic: str, series: str
    ) -> None:
        prepare(connection, "a", topic, b"one")
        commit(connection, 7, {"a": 1}, series=series).raise_for_error()
        prepare(connection, "a", topic, b"one")
        for number in (7, 6, 0):
            again = commit(connection, number, {"a": 1}, series=series).raise_for_error()
            assert again.fields == {"already": True}
        assert bodies(connection, topic) == [b"one"]
        commit(connection, 8, {"a": 1}, series=series).raise_for_error()
        assert bodies(connection, topic) == [b"one", b"one"]

    def test_two_requests_for_one_commit_copy_once(
        self, connection: RawConnection, one_broker: RunningBroker, connect: ConnectionFactory, topic: str, series: str
    ) -> None:
        for first in (0, 10_000):
            prepare(connection, "a", topic, *[b"%d" % number for number in range(first, first + 10_000)], queue=0)
        others = [connect(one_broker) for _ in range(3)]
        fields = {"series": series, "number": 1, "count": 1}
        asked = [(each, each.send(COMMIT_PREPARED, fields, msgpack.packb([["a", 20_000]]))) for each in others]
        answers = [each.receive_for(request_id).raise_for_error().fields for each, request_id in asked]
        assert sorted(answer.get("messages", 0) for answer in answers) == [0, 0, 20_000]
        assert bodies(connection, topic) == [b"%d" % number for number in range(20_000)]

    def test_stages_of_another_attempt_are_dropped_if_the_transaction_is_committed(
        self, connection: RawConnection, topic: str, series: str
    ) -> None:
        prepare(connection, "a/1/0", topic, b"one")
        commit(connection, 1, {"a/1/0": 1}, series=series, drop="a/1/").raise_for_error()
        prepare(connection, "a/1/1", topic, b"one")
        again = commit(connection, 1, {"a/1/1": 1}, series=series, drop="a/1/").raise_for_error()
        assert again.fields == {"already": True}
        assert abort(connection, "a/1/") == 0
        assert bodies(connection, topic) == [b"one"]

    def test_attempts_that_interleave_come_in_order(self, connection: RawConnection, topic: str, series: str) -> None:
        for number in range(300):
            prepare(connection, "a", topic, b"a%d" % number, queue=0)
            prepare(connection, "ab", topic, b"b%d" % number, b"and", queue=number % 3)
            prepare(connection, "ax", topic, b"lost")
        commit(connection, 0, {"a": 300, "ab": 600}, series=series).raise_for_error()
        found = [body for body in bodies(connection, topic) if body != b"and"]
        assert [body for body in found if body.startswith(b"a")] == [b"a%d" % number for number in range(300)]
        of_b = [[b"b%d" % number for number in range(queue, 300, 3)] for queue in range(3)]
        assert [body for body in found if body.startswith(b"b")] == [body for queue in of_b for body in queue]
        assert len(found) == 600

    def test_a_commit_of_nothing_counts(self, connection: RawConnection, topic: str, series: str) -> None:
        assert commit(connection, 3, {}, series=series).raise_for_error().fields == {}
        prepare(connection, "a", topic, b"late")
        assert commit(connection, 3, {"a": 1}, series=series).raise_for_error().fields == {"already": True}

    def test_attempts_that_lost_are_dropped_with_it(self, connection: RawConnection, topic: str, series: str) -> None:
        for attempt in ("a/1/0", "a/1/1", "a/2/0"):
            prepare(connection, attempt, topic, attempt.encode())
        commit(connection, 1, {"a/1/1": 1}, series=series, drop="a/1/").raise_for_error()
        assert abort(connection, "a/1/") == 0
        assert abort(connection, "a/2/") == 1
        assert bodies(connection, topic) == [b"a/1/1"]


class TestRefusals:
    def test_an_attempt_that_is_not_whole_is_not_committed(
        self, connection: RawConnection, topic: str, series: str
    ) -> None:
        prepare(connection, "a", topic, b"one", b"two")
        prepare(connection, "ab", topic, b"three")
        for attempts in ({"a": 1}, {"a": 3}, {"a": 2, "ab": 1, "unknown": 1}, {"unknown": 0}):
            refused(commit(connection, 0, attempts, series=series), PreparedIncomplete, "nothing was committed")
        assert bodies(connection, topic) == []
        commit(connection, 0, {"a": 2, "ab": 1}, series=series).raise_for_error()
        assert sorted(bodies(connection, topic)) == [b"one", b"three", b"two"]

    def test_an_aborted_stage_is_not_committed(self, connection: RawConnection, topic: str, series: str) -> None:
        prepare(connection, "a/0", topic, b"one")
        prepare(connection, "a/1", topic, b"two")
        assert abort(connection, "a/") == 2
        assert abort(connection, "a/") == 0
        refused(commit(connection, 0, {"a/0": 1}, series=series), PreparedIncomplete, "does not exist")
        assert bodies(connection, topic) == []

    def test_a_frame_with_a_bad_message_prepares_nothing(
        self, connection: RawConnection, topic: str, series: str
    ) -> None:
        prepare(connection, "a", topic, b"one")
        bad = msgpack.packb([b"two", {}]) + msgpack.packb([b"three", {"": "x"}])
        fields = {"topic": topic, "count": 2, "prepare": "a"}
        refused(connection.call(10, fields, bad), MessageIllegal, "nothing of the frame was written")
        prepare(connection, "ab", topic, b"four")
        commit(connection, 0, {"a": 1, "ab": 1}, series=series).raise_for_error()
        assert sorted(bodies(connection, topic)) == [b"four", b"one"]

    @pytest.mark.parametrize("properties", [common(), "DELAY\x013\x02", "TIMER_DELAY_SEC\x015\x02"])
    def test_a_message_is_prepared_or_something_else(
        self, connection: RawConnection, topic: str, properties: str
    ) -> None:
        answer = connection.produce(topic, b"x", prepare="a", common=properties)
        refused(answer, InvalidParameter, "staged messages cannot be")

    def test_a_flush_that_there_is_not_is_refused(self, connection: RawConnection, series: str) -> None:
        answer = connection.call(COMMIT_PREPARED, {"series": series, "number": 0, "count": 0, "flush": "often"})
        refused(answer, InvalidParameter, "flush must be")

    @pytest.mark.parametrize(
        ("count", "body"),
        [
            (1, b"\xc1"),
            (1, msgpack.packb([])),
            (2, msgpack.packb([["a", 1]])),
            (1, msgpack.packb([["a"]])),
            (1, msgpack.packb([["a", -1]])),
            (1, msgpack.packb([["a", "1"]])),
            (1, msgpack.packb([[b"a", 1]])),
            (1, msgpack.packb([["a" * 201, 1]])),
            (1, msgpack.packb([["\n", 1]])),
            (2, msgpack.packb([["a", 1], ["a", 1]])),
            (1, b""),
        ],
    )
    def test_a_body_that_names_no_attempts_is_refused(
        self, connection: RawConnection, series: str, count: int, body: bytes
    ) -> None:
        answer = connection.call(COMMIT_PREPARED, {"series": series, "number": 0, "count": count}, body)
        refused(answer, InvalidParameter)

    def test_topic_and_queue_are_checked_as_for_any_message(self, connection: RawConnection, topic: str) -> None:
        connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": topic, "perm": 4}).raise_for_error()
        refused(connection.produce(topic, b"x", prepare="a"), NoPermission, "is not writable")
        refused(connection.produce(topic, b"x", prepare="a", queue=9), QueueNotExist, "no queue 9")

    def test_a_topic_that_was_deleted_keeps_all_back(self, connection: RawConnection, topic: str, series: str) -> None:
        other = f"{topic}-other"
        prepare(connection, "a", topic, b"one")
        prepare(connection, "a", other, b"two")
        connection.call(DELETE_TOPIC_IN_BROKER, {"topic": other}).raise_for_error()
        refused(commit(connection, 0, {"a": 2}, series=series), TopicNotExist, "nothing was committed")
        assert bodies(connection, topic) == []

    def test_there_is_a_limit_to_attempts(self, connection: RawConnection, topic: str) -> None:
        for number in range(20):
            prepare(connection, f"a{number}", topic, b"x")
        refused(connection.produce(topic, b"x", prepare="a20"), SystemBusy, "prepared_attempts_max is 20")
        prepare(connection, "a19", topic, b"x")
        assert abort(connection, "a") == 20
        prepare(connection, "a20", topic, b"x")


class TestSentAgain:
    def test_a_frame_that_is_sent_again_counts_once(self, connection: RawConnection, topic: str, series: str) -> None:
        sent = {"unique_prefix": PREFIX, "unique_first": 1000}
        answer = prepare(connection, "a", topic, b"one", b"two", **sent)
        again = prepare(connection, "a", topic, b"one", b"two", **sent)
        assert (again.fields, again.body) == (answer.fields, answer.body)
        commit(connection, 0, {"a": 2}, series=series).raise_for_error()
        assert bodies(connection, topic) == [b"one", b"two"]

    def test_also_when_the_broker_was_killed_in_between(
        self, broker: BrokerFactory, connect: ConnectionFactory
    ) -> None:
        running = broker()
        sent = {"unique_prefix": PREFIX, "unique_first": 1}
        answer = prepare(connect(running), "a", "t", b"one", b"two", **sent)
        running.kill()
        connection = connect(broker(store=running.store))
        again = prepare(connection, "a", "t", b"one", b"two", **sent)
        assert (again.fields, again.body) == (answer.fields, answer.body)
        commit(connection, 0, {"a": 2}).raise_for_error()
        assert bodies(connection, "t") == [b"one", b"two"]
        # The copies are not messages of the producer: the next message that it sends is new.
        prepare(connection, "b", "t", b"three", unique_prefix=PREFIX, unique_first=3)
        commit(connection, 1, {"b": 1}).raise_for_error()
        assert len(bodies(connection, "t")) == 3


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_start_knows_all_of_it(broker: BrokerFactory, connect: ConnectionFactory, flush: str) -> None:
    running = broker("--flush", flush)
    connection = connect(running)
    prepare(connection, "q/0/a", "t", b"one")
    commit(connection, 0, {"q/0/a": 1}).raise_for_error()
    prepare(connection, "q/1/a", "t", b"two", b"three")
    prepare(connection, "q/1/b", "t", b"lost")
    assert abort(connection, "q/1/b") == 1
    running.kill()
    running = broker("--flush", flush, store=running.store)
    connection = connect(running)
    assert commit(connection, 0, {"q/0/a": 1}).raise_for_error().fields == {"already": True}
    refused(commit(connection, 1, {"q/1/b": 1}), PreparedIncomplete, "does not exist")
    assert commit(connection, 1, {"q/1/a": 2}).raise_for_error().fields == {"messages": 2}
    assert running.stop() == 0
    connection = connect(broker("--flush", flush, store=running.store))
    for number in (0, 1):
        assert commit(connection, number, {"q/1/a": 2}).raise_for_error().fields == {"already": True}
    assert sorted(bodies(connection, "t")) == [b"one", b"three", b"two"]
