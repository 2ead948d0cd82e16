"""A frame that is sent again is stored once, and gets the first response again: raw frames to a real broker."""

from __future__ import annotations

import signal
import struct
import urllib.request
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from flintmq.broker.config import PRODUCER_RUNS_MAX
from flintmq.protocol.commands import DELETE_TOPIC_IN_BROKER, PRODUCE, UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.errors import MessageIllegal, PartlyStored
from flintmq.protocol.storage.record import decode_record, unique_key

if TYPE_CHECKING:
    from tests.conftest import Answer, BrokerFactory, ConnectionFactory, RawConnection, RunningBroker

PREFIX = "7F00000155A738209801"
OTHER = "7F00000155A738209802"


def rows(*bodies: bytes) -> bytes:
    return b"".join(msgpack.packb([body, {}]) for body in bodies)


def frame_of(topic: str, count: int, first: int = 7, **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "count": count, "unique_prefix": PREFIX, "unique_first": first, **fields}


def produce(connection: RawConnection, topic: str, *bodies: bytes, first: int = 7, **fields: Any) -> Answer:
    return connection.call(PRODUCE, frame_of(topic, len(bodies), first, **fields), rows(*bodies))


def same(answer: Answer) -> tuple[int, dict[str, Any], bytes]:
    """Return the parts in which two answers must agree."""
    return answer.code, answer.fields, answer.body


def stored_in(connection: RawConnection, topic: str, queues: int = 4) -> dict[str, bytes]:
    """Return all messages of a topic by their unique key; no key may occur twice."""
    found: dict[str, bytes] = {}
    for queue in range(queues):
        offset = 0
        # A pull of a queue's end waits until every acknowledged message is dispatched.
        while (answer := connection.pull(topic, queue, offset).raise_for_error()).fields["count"]:
            offset = answer.fields["next_offset"]
            at = 4 * answer.fields["count"]
            for (size,) in struct.iter_unpack(">I", answer.body[:at]):
                record = decode_record(answer.body, at)
                key = record.property_map()["UNIQ_KEY"]
                assert key not in found
                found[key] = record.body
                at += size
    return found


def keys(first: int, count: int, prefix: str = PREFIX) -> list[str]:
    return [unique_key(prefix, first + number) for number in range(count)]


class TestDuplicates:
    def test_the_same_frame_is_stored_once(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        first, second = connect(shared_broker), connect(shared_broker)
        answer = produce(first, topic, b"a", b"b").raise_for_error()
        for connection in (first, second, first):
            assert same(produce(connection, topic, b"a", b"b")) == same(answer)
        assert stored_in(first, topic) == dict(zip(keys(7, 2), (b"a", b"b"), strict=True))

    def test_a_part_of_it_is_a_duplicate_too(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        answer = produce(connection, topic, b"a", b"b", b"c", queue=2).raise_for_error()
        part = produce(connection, topic, b"b", first=8).raise_for_error()
        assert part.fields == {**answer.fields, "queue_offset": 1}
        assert part.body == answer.body[8:16]

    def test_columns_as_rows(self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str) -> None:
        connection = connect(shared_broker)
        body = msgpack.packb([b"a", b"b"]) + msgpack.packb(["k1", None])
        answer = connection.call(PRODUCE, frame_of(topic, 2, layout=1), body).raise_for_error()
        assert same(connection.call(PRODUCE, frame_of(topic, 2, layout=1), body)) == same(answer)
        assert len(stored_in(connection, topic)) == 2

    @pytest.mark.parametrize("flush", ["", "sync", "async"])
    @pytest.mark.parametrize("policy", ["sync", "async"])
    def test_those_sent_before_the_answer_came_wait_for_the_same_flush(
        self, broker: BrokerFactory, connect: ConnectionFactory, policy: str, flush: str
    ) -> None:
        """Resends between other pipelined frames: no frame is acknowledged before it is on disk, and answers keep their
        order.
        """
        connection = connect(broker("--flush", policy))
        produce(connection, "t", b"the topic's first", first=0).raise_for_error()
        sent = []
        for first in (10, 20, 10, 30, 20, 10):
            sent.append((first, connection.send(PRODUCE, frame_of("t", 2, first, flush=flush), rows(b"a", b"b"))))
        answers: dict[int, tuple[int, dict[str, Any], bytes]] = {}
        for first, request_id in sent:
            answer = connection.receive_for(request_id).raise_for_error()
            assert same(answer) == answers.setdefault(first, same(answer))
        produce(connection, "t", b"after", first=40).raise_for_error()
        expected = [*keys(0, 1), *keys(10, 2), *keys(20, 2), *keys(30, 2), *keys(40, 1)]
        assert sorted(stored_in(connection, "t")) == expected

    def test_a_one_way_frame_is_dropped(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, b"a").raise_for_error()
        connection.send_one_way(PRODUCE, frame_of(topic, 1), rows(b"a"))
        connection.send_one_way(PRODUCE, frame_of(topic, 1, 8), rows(b"b"))
        connection.send_one_way(PRODUCE, frame_of(topic, 1, 8), rows(b"b"))
        produce(connection, topic, b"c", first=9).raise_for_error()
        assert sorted(stored_in(connection, topic)) == keys(7, 3)

    def test_other_producers_and_topics_are_not_concerned(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, b"a").raise_for_error()
        produce(connection, topic, b"a", unique_prefix=OTHER).raise_for_error()
        produce(connection, f"{topic}-2", b"a").raise_for_error()
        assert sorted(stored_in(connection, topic)) == keys(7, 1) + keys(7, 1, OTHER)
        assert sorted(stored_in(connection, f"{topic}-2")) == keys(7, 1)

    def test_without_a_prefix_nothing_is_a_duplicate(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        first, second = (connection.produce(topic, b"a", queue=0, unique_first=7).raise_for_error() for _ in range(2))
        assert (first.fields["queue_offset"], second.fields["queue_offset"]) == (0, 1)

    def test_a_resend_gets_a_response_whatever_became_of_the_topic(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        answer = produce(connection, topic, b"a", queue=1).raise_for_error()
        connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": topic, "perm": 4}).raise_for_error()
        assert same(produce(connection, topic, b"a", queue=3)) == same(answer)


DELIVERIES = {
    "delayed": "DELAY\x0117\x02",
    "timed": "TIMER_DELAY_SEC\x013600\x02",
    "half": "TRAN_MSG\x01true\x02PGROUP\x01payments\x02",
}


class TestWaitingMessages:
    """Messages to be delivered later, or only after a commit, are stored in topics other than their own."""

    @pytest.mark.parametrize("common", DELIVERIES.values(), ids=DELIVERIES)
    def test_resent_messages_are_stored_once_even_after_a_kill(
        self, broker: BrokerFactory, connect: ConnectionFactory, common: str
    ) -> None:
        running = broker()
        connection = connect(running)
        firsts = range(0, 12, 2)
        produce(connection, "t", b"an ordinary one", first=100).raise_for_error()
        answers = [produce(connection, "t", b"a", b"b", first=first, common=common) for first in firsts]
        for first, answer in zip(firsts, answers, strict=True):
            assert same(produce(connection, "t", b"a", b"b", first=first, common=common)) == same(answer)
            answer.raise_for_error()
        running.kill()
        connection = connect(broker(store=running.store))
        for first, answer in zip(firsts, answers, strict=True):
            assert same(produce(connection, "t", b"a", b"b", first=first, common=common)) == same(answer)
        produce(connection, "t", b"an ordinary one", first=100).raise_for_error()
        assert sorted(stored_in(connection, "t")) == keys(100, 1)


class TestPartlyStored:
    def test_the_response_names_the_place_to_split(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, b"a", b"b").raise_for_error()
        for first, count, stored, cut_at in ((7, 3, 2, 2), (8, 5, 1, 1), (5, 3, 0, 2), (5, 9, 0, 2)):
            with pytest.raises(PartlyStored) as raised:
                produce(connection, topic, *[b"x"] * count, first=first).raise_for_error()
            assert (raised.value.stored, raised.value.cut_at) == (stored, cut_at)
        assert sorted(stored_in(connection, topic)) == keys(7, 2)

    def test_frames_in_two_queues_are_not_one(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, b"a", b"b", queue=0).raise_for_error()
        produce(connection, topic, b"c", b"d", first=9, queue=1).raise_for_error()
        answer = produce(connection, topic, b"a", b"b", b"c", b"d")
        assert (answer.code, answer.fields["stored"], answer.fields["cut_at"]) == (PartlyStored.code, 2, 2)


class TestNotStored:
    def test_a_frame_that_was_refused_is_not_known(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        bad = msgpack.packb([b"a", {"INNER_NUM": "2"}])
        answer = connection.call(PRODUCE, frame_of(topic, 1), bad)
        assert answer.code == MessageIllegal.code
        produce(connection, topic, b"good").raise_for_error()
        assert stored_in(connection, topic) == {keys(7, 1)[0]: b"good"}

    @pytest.mark.parametrize("prefix", ["short", "X" * 20])
    def test_an_invalid_prefix_is_refused_each_time(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str, prefix: str
    ) -> None:
        connection = connect(shared_broker)
        for _ in range(2):
            answer = produce(connection, topic, b"a", unique_prefix=prefix)
            assert answer.code == MessageIllegal.code

    def test_a_duplicate_that_claims_more_messages_than_it_has_is_refused(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, *[b"a"] * 1000).raise_for_error()
        answer = connection.call(PRODUCE, frame_of(topic, 1000), rows(b"a"))
        assert answer.code == MessageIllegal.code
        assert "count says 1000" in answer.fields["message"]

    def test_a_topic_that_was_deleted_has_nothing_any_more(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        produce(connection, topic, b"a", queue=0).raise_for_error()
        connection.call(DELETE_TOPIC_IN_BROKER, {"topic": topic}).raise_for_error()
        again = produce(connection, topic, b"a", queue=0).raise_for_error()
        assert again.fields["queue_offset"] == 1


class TestRestart:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    @pytest.mark.parametrize("policy", ["sync", "async"])
    def test_a_broker_that_was_started_again_knows_them(
        self, broker: BrokerFactory, connect: ConnectionFactory, number: signal.Signals, policy: str
    ) -> None:
        running = broker("--flush", policy)
        connection = connect(running)
        answers = [produce(connection, "t", b"x" * first, b"y", first=2 * first) for first in range(20)]
        running.stop(number)
        connection = connect(broker("--flush", policy, store=running.store))
        for first, answer in enumerate(answers):
            assert same(produce(connection, "t", b"x" * first, b"y", first=2 * first)) == same(answer.raise_for_error())
        produce(connection, "t", b"new", first=40).raise_for_error()
        assert sorted(stored_in(connection, "t")) == keys(0, 41)

    def test_a_frame_that_was_torn_is_completed(self, broker: BrokerFactory, connect: ConnectionFactory) -> None:
        running = broker("--flush", "async", settings={"flush.interval_ms": 60_000})
        connection = connect(running)
        bodies = [b"%d" % number for number in range(5)]
        answer = produce(connection, "t", *bodies, queue=1).raise_for_error()
        offsets = struct.unpack(">5q", answer.body)
        running.kill()
        with next((running.store / "commitlog").iterdir()).open("r+b") as file:  # the log did not grow
            file.seek(offsets[3] + 20)
            file.write(bytes(1000))
        connection = connect(broker(store=running.store))
        torn = produce(connection, "t", *bodies, queue=1)
        assert (torn.code, torn.fields["stored"], torn.fields["cut_at"]) == (PartlyStored.code, 3, 3)
        first = produce(connection, "t", *bodies[:3], queue=1).raise_for_error()
        assert (first.fields["queue_offset"], first.body) == (0, answer.body[:24])
        second = produce(connection, "t", *bodies[3:], first=10, queue=1).raise_for_error()
        assert second.fields["queue_offset"] == 3
        assert stored_in(connection, "t") == dict(zip(keys(7, 5), bodies, strict=True))
        assert produce(connection, "t", *bodies).raise_for_error().body == first.body + second.body

    def test_a_topic_that_was_deleted_before_has_nothing(
        self, broker: BrokerFactory, connect: ConnectionFactory
    ) -> None:
        running = broker()
        connection = connect(running)
        produce(connection, "t", b"a", queue=0).raise_for_error()
        connection.call(DELETE_TOPIC_IN_BROKER, {"topic": "t"}).raise_for_error()
        produce(connection, "t", b"b", first=8, queue=0).raise_for_error()
        running.kill()
        connection = connect(broker(store=running.store))
        assert produce(connection, "t", b"a", queue=0).raise_for_error().fields["queue_offset"] == 2
        assert produce(connection, "t", b"b", first=8).raise_for_error().fields["queue_offset"] == 1


class TestBounds:
    def test_remembered_runs_are_bounded_and_counted(self, broker: BrokerFactory, connect: ConnectionFactory) -> None:
        running = broker(settings={"limits.sequence_runs_max": 2 * PRODUCER_RUNS_MAX})
        connection = connect(running)
        producers, frames = 300, PRODUCER_RUNS_MAX + 100
        for number in range(producers):
            connection.send(PRODUCE, frame_of("t", 1, number % 3, unique_prefix=f"{number:020X}"), rows(b"a"))
        for number in range(frames):  # a queue each in turn
            connection.send(PRODUCE, frame_of("t", 1, number), rows(b"a"))
        answers = [connection.receive().raise_for_error() for _ in range(producers + frames)]
        for number in range(frames - 12, frames):
            assert same(produce(connection, "t", b"a", first=number)) == same(answers[producers + number])
        assert produce(connection, "t", b"a", first=0).raise_for_error().body != answers[producers].body
        metrics = metrics_of(running)
        assert metrics["flintmq_duplicate_frames_total"] == 12
        assert 8 <= metrics["flintmq_producer_runs"] <= 2 * PRODUCER_RUNS_MAX


def metrics_of(running: RunningBroker) -> dict[str, float]:
    """Return the metrics without labels."""
    address = next(line for line in running.output if "/metrics" in line).split("http://")[1].split("/metrics")[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#") and "{" not in line}
