"""Transactions over the wire: when messages become visible, how transactions end, and which producer is asked."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    DELETE_SUBSCRIPTIONGROUP,
    END_TRANSACTION,
    GET_CONSUME_STATS,
    HEART_BEAT,
    INVOKE_BROKER_TO_RESET_OFFSET,
    PRODUCE,
    QUERY_BY_KEY,
    UNREGISTER_CLIENT,
    UPDATE_CONSUMER_OFFSET,
    VIEW_MESSAGE_BY_ID,
)
from flintmq.protocol.errors import (
    InvalidParameter,
    MessageIllegal,
    MessageNotFound,
    NoPermission,
    QueueNotExist,
    SystemBusy,
    TopicNotExist,
    TransactionEnded,
    TransactionGroupWrong,
    TransactionNotExist,
)
from flintmq.protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_PARKED_TOPIC
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, decode_record, encode_host, encode_properties, offset_id
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.metrics_tools import Scrape
from tests.store_tools import SERVED, dispatch, make_topic, open_store
from tests.transaction_tools import (
    GROUP,
    PREFIX,
    CheckedProducer,
    common,
    end,
    listed,
    messages,
    send_half,
    transaction_id,
    wait_until,
)

NEVER_MS = 3_600_000
SOON = {"transactions.timeout_ms": 20, "transactions.check_interval_ms": 20, "transactions.check_times_max": 10_000}


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that sends no checks, for tests that end the transactions they begin."""
    brokers = Brokers(tmp_path_factory.mktemp("transactions"))
    yield brokers.start(settings={"transactions.timeout_ms": NEVER_MS, "transactions.open_max": 50})
    brokers.stop_all()


@pytest.fixture
def connection(one_broker: RunningBroker, connect: ConnectionFactory) -> RawConnection:
    return connect(one_broker)


_numbers = iter(range(1, 1_000_000, 100))


@pytest.fixture
def number() -> int:
    """Return a counter that no other test uses; the next 99 are free, too."""
    return next(_numbers)


class TestEnds:
    def test_a_half_message_is_nowhere_until_its_commit(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        host = connection.sock.getpeername()
        half_id = offset_id(encode_host(*host), half.physical_offset)
        assert messages(connection, topic) == []
        for message_id in (half.transaction_id, half_id):
            with pytest.raises(MessageNotFound):
                connection.call(VIEW_MESSAGE_BY_ID, {"id": message_id}).raise_for_error()
        found = connection.call(QUERY_BY_KEY, {"topic": topic, "key": half.transaction_id})
        assert found.raise_for_error().fields["count"] == 0
        for hidden in (HALF_TOPIC, OP_HALF_TOPIC):
            for refused in (
                connection.pull(hidden),
                connection.call(QUERY_BY_KEY, {"topic": hidden, "key": half.transaction_id}),
                connection.call(VIEW_MESSAGE_BY_ID, {"topic": hidden, "id": half.transaction_id}),
            ):
                with pytest.raises(NoPermission, match="not delivered yet"):
                    refused.raise_for_error()

        end(connection, half).raise_for_error()
        (message,) = messages(connection, topic)
        assert message.body == b"pay"
        assert message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == half.physical_offset
        viewed = connection.call(VIEW_MESSAGE_BY_ID, {"id": half.transaction_id}).raise_for_error()
        assert decode_record(viewed.body, 4) == message

    def test_a_message_that_is_rolled_back_never_comes(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        end(connection, half, commit=False).raise_for_error()
        connection.produce(topic, b"another").raise_for_error()
        assert [message.body for message in messages(connection, topic)] == [b"another"]
        with pytest.raises(TransactionEnded) as raised:
            end(connection, half).raise_for_error()
        assert raised.value.details == {"outcome": "rollback"}
        assert [message.body for message in messages(connection, topic)] == [b"another"]

    @pytest.mark.parametrize("again", [True, False])
    def test_a_transaction_committed_twice_is_delivered_once(
        self, connection: RawConnection, topic: str, number: int, again: bool
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        end(connection, half).raise_for_error()
        with pytest.raises(TransactionEnded, match="was already committed") as raised:
            end(connection, half, commit=again).raise_for_error()
        assert raised.value.details == {"outcome": "commit"}
        assert len(messages(connection, topic)) == 1

    def test_the_first_of_many_that_end_it_at_once_decides(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        fields = {"group": GROUP, "transaction_id": half.transaction_id}
        asked = [connection.send(END_TRANSACTION, {**fields, "commit": place % 2 == 0}) for place in range(9)]
        answers = {answer.request_id: answer for answer in (connection.receive() for _ in asked)}
        assert answers[asked[0]].code == 0
        assert [answers[request_id].fields.get("outcome") for request_id in asked[1:]] == ["commit"] * 8
        assert len(messages(connection, topic)) == 1

    def test_a_stranger_ends_nothing(self, connection: RawConnection, topic: str, number: int) -> None:
        half = send_half(connection, topic, b"pay", number)
        for ended in (False, True):
            with pytest.raises(TransactionGroupWrong, match="does not belong to producer group thieves"):
                end(connection, half, group="thieves").raise_for_error()
            if not ended:
                end(connection, half).raise_for_error()

    def test_offsets_that_are_not_the_half_messages_end_nothing(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        fields = {"group": GROUP, "transaction_id": half.transaction_id, "commit": True}
        for wrong in (
            {"half_queue_offset": half.queue_offset + 1},
            {"half_physical_offset": half.physical_offset + 1, "half_queue_offset": half.queue_offset},
        ):
            with pytest.raises(TransactionNotExist, match="nothing was ended"):
                connection.call(END_TRANSACTION, {**fields, **wrong}).raise_for_error()
        end(connection, half.transaction_id).raise_for_error()

    def test_an_unknown_transaction_is_reported(self, connection: RawConnection) -> None:
        for fields in ({}, {"half_physical_offset": 7}, {"half_physical_offset": 2**62}):
            request = {"group": GROUP, "transaction_id": "nobody's", "commit": True, **fields}
            with pytest.raises(TransactionNotExist, match="there is no transaction nobody's"):
                connection.call(END_TRANSACTION, request).raise_for_error()

    def test_several_half_messages_of_one_frame_are_transactions_each(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        answer = connection.produce(
            topic, b"one", b"two", b"three", common=common(), unique_prefix=PREFIX, unique_first=number, queue=2
        ).raise_for_error()
        assert answer.fields["queue"] == 0
        end(connection, transaction_id(number + 2)).raise_for_error()
        end(connection, transaction_id(number), commit=False).raise_for_error()
        end(connection, transaction_id(number + 1)).raise_for_error()
        assert [(one.queue_id, one.queue_offset, one.body) for one in messages(connection, topic)] == [
            (2, 0, b"three"),
            (2, 1, b"two"),
        ]

    def test_a_frame_that_is_sent_again_opens_nothing_new(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        assert send_half(connection, topic, b"pay", number) == half
        assert [row["id"] for row in listed(connection)].count(half.transaction_id) == 1
        end(connection, half).raise_for_error()
        assert send_half(connection, topic, b"pay", number) == half
        assert half.transaction_id not in [row["id"] for row in listed(connection)]
        assert len(messages(connection, topic)) == 1

    def test_a_topic_that_went_keeps_its_transactions_open(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        connection.call(215, {"topic": topic}).raise_for_error()
        with pytest.raises(TopicNotExist, match="was deleted; create it again"):
            end(connection, half).raise_for_error()
        connection.call(17, {"topic": topic}).raise_for_error()
        end(connection, half).raise_for_error()
        assert [message.body for message in messages(connection, topic)] == [b"pay"]

    def test_a_queue_that_went_keeps_its_transactions_open(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number, queue=3)
        connection.call(215, {"topic": topic}).raise_for_error()
        connection.call(17, {"topic": topic, "read_queues": 1, "write_queues": 1}).raise_for_error()
        with pytest.raises(QueueNotExist, match="no longer has a queue 3"):
            end(connection, half).raise_for_error()
        end(connection, half, commit=False).raise_for_error()

    def test_the_list_goes_page_by_page(self, connection: RawConnection, topic: str, number: int) -> None:
        halves = [send_half(connection, topic, b"pay", number + place) for place in range(7)]
        pages = []
        next_offset = 0
        while next_offset >= 0:
            answer = connection.call(1010, {"from_offset": next_offset, "max_count": 3}).raise_for_error()
            pages.append(msgpack.unpackb(answer.body))
            next_offset = answer.fields.get("next_offset", -1)
        rows = [row for page in pages for row in page if row["topic"] == topic]
        assert [row["id"] for row in rows] == [half.transaction_id for half in halves]
        assert {(row["group"], row["checks"]) for row in rows} == {(GROUP, 0)}
        assert max(map(len, pages)) <= 3
        for half in halves:
            end(connection, half, commit=False).raise_for_error()


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "error", "match"),
        [
            ({"common": "TRAN_MSG\x01true\x02"}, InvalidParameter, "PGROUP"),
            ({"common": "TRAN_MSG\x01yes\x02PGROUP\x01g\x02"}, InvalidParameter, "'yes'"),
            ({"common": "TRAN_MSG\x01true\x02PGROUP\x01a b\x02"}, InvalidParameter, "characters"),
            ({"common": "TRAN_MSG\x01true\x02PGROUP\x01g\x02PGROUP\x01h\x02"}, InvalidParameter, "one producer group"),
            ({"common": common() + "DELAY\x013\x02"}, InvalidParameter, "cannot be delayed"),
            ({"common": common() + "TIMER_DELAY_SEC\x013\x02"}, InvalidParameter, "cannot be delayed"),
            ({"common": common() + "UNIQ_KEY\x013\x02"}, InvalidParameter, "each half message needs its own"),
            ({"common": common() + "REAL_TOPIC\x01t\x02"}, MessageIllegal, "only the broker may set"),
            ({"unique_prefix": ""}, MessageIllegal, "needs a unique key"),
            ({"unique_prefix": "ZZ" * 10}, MessageIllegal, "unique_prefix"),
            ({"queue": 99}, QueueNotExist, "99"),
            ({"topic": HALF_TOPIC}, NoPermission, "system topic"),
        ],
    )
    def test_an_invalid_half_message_is_refused(
        self,
        connection: RawConnection,
        topic: str,
        number: int,
        fields: dict[str, Any],
        error: type[Exception],
        match: str,
    ) -> None:
        connection.produce(topic, b"first").raise_for_error()
        before = len(listed(connection))
        request = {"topic": topic, "common": common(), "unique_prefix": PREFIX, "unique_first": number, **fields}
        with pytest.raises(error, match=match):
            connection.produce(request.pop("topic"), b"pay", **request).raise_for_error()
        assert len(listed(connection)) == before

    @pytest.mark.parametrize(
        ("rows", "match"),
        [
            (b"\x92", "cannot be read"),
            (msgpack.packb(["text", {}]), "not a msgpack bin"),
            (msgpack.packb([b"pay", [["a", "b"]]]), "not an array of 2 to 4"),
            (msgpack.packb([b"pay", {"a": 5}]), "not a msgpack str"),
            (msgpack.packb([b"pay", {b"a": "b"}]), "not a msgpack str"),
            (msgpack.packb([b"pay", {"a": ""}]), "empty name or value"),
            (msgpack.packb([b"pay", {"TRAN_MSG": "true"}]), "among the common"),
            (msgpack.packb([b"pay", {"a": "b"}, "flag"]), "not an integer"),
            (msgpack.packb([b"pay", {}]) + b"\xc0", "unexpected bytes after the last message"),
            (msgpack.packb([b"pay", {"a": "\x01"}]), "separate properties"),
            (b"\x92\xc4\x01x\x81\xa1a\xa1\xff", "cannot be read"),
        ],
    )
    def test_rows_keep_the_rules_of_every_message(
        self, connection: RawConnection, topic: str, number: int, rows: bytes, match: str
    ) -> None:
        fields = {"topic": topic, "count": 1, "common": common(), "unique_prefix": PREFIX, "unique_first": number}
        connection.produce(topic, b"first").raise_for_error()
        with pytest.raises(MessageIllegal, match=match):
            connection.call(PRODUCE, fields, rows).raise_for_error()
        assert transaction_id(number) not in [row["id"] for row in listed(connection)]

    def test_no_client_moves_the_brokers_own_progress(self, connection: RawConnection, topic: str, number: int) -> None:
        half = send_half(connection, topic, b"pay", number)
        group = {"group": TRANSACTION_GROUP, "topic": HALF_TOPIC}
        for command, fields, body in (
            (UPDATE_CONSUMER_OFFSET, {**group, "count": 1}, CONSUMER_OFFSET_STRUCT.pack(0, half.queue_offset + 1)),
            (INVOKE_BROKER_TO_RESET_OFFSET, {**group, "to": "last"}, b""),
            (DELETE_SUBSCRIPTIONGROUP, {"group": TRANSACTION_GROUP}, b""),
            (HEART_BEAT, {"group": TRANSACTION_GROUP, "member": "m", "kind": "producer"}, b""),
        ):
            answer = connection.call(command, fields, body)
            with pytest.raises(NoPermission, match="is reserved for the broker"):
                answer.raise_for_error()
        end(connection, half).raise_for_error()
        stats = msgpack.unpackb(connection.call(GET_CONSUME_STATS, {}).raise_for_error().body)
        assert TRANSACTION_GROUP not in [row[0] for row in stats]

    def test_columns_are_refused(self, connection: RawConnection, topic: str, number: int) -> None:
        body = msgpack.packb([b"pay"]) + msgpack.packb([None])
        fields = {"topic": topic, "count": 1, "layout": 1, "common": common(), "unique_prefix": PREFIX}
        with pytest.raises(InvalidParameter, match="as rows"):
            connection.call(PRODUCE, fields, body).raise_for_error()

    def test_a_key_of_an_open_transaction_is_refused_for_another(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        half = send_half(connection, topic, b"pay", number)
        row = msgpack.packb([b"steal", {"UNIQ_KEY": half.transaction_id}])
        taken = connection.call(PRODUCE, {"topic": topic, "count": 1, "common": common("thieves")}, row)
        with pytest.raises(MessageIllegal, match="that of an open transaction"):
            taken.raise_for_error()
        rows = 2 * msgpack.packb([b"pay", {"UNIQ_KEY": "mine"}])
        twice = connection.call(PRODUCE, {"topic": topic, "count": 2, "common": common()}, rows)
        with pytest.raises(MessageIllegal, match="the same unique key"):
            twice.raise_for_error()
        end(connection, half).raise_for_error()
        assert [message.body for message in messages(connection, topic)] == [b"pay"]

    def test_transactions_over_the_limit_are_refused_and_others_continue(
        self, connection: RawConnection, topic: str, number: int
    ) -> None:
        halves = [send_half(connection, topic, b"pay", number + place) for place in range(50 - len(listed(connection)))]
        with pytest.raises(SystemBusy, match=r"transactions\.open_max is 50"):
            send_half(connection, topic, b"pay", number + 98)
        connection.produce(topic, b"plain").raise_for_error()
        for half in halves:
            end(connection, half, commit=False).raise_for_error()
        end(connection, send_half(connection, topic, b"pay", number + 99)).raise_for_error()


class TestChecks:
    def test_a_live_producer_of_the_group_is_asked(self, broker: BrokerFactory, connect: ConnectionFactory) -> None:
        running = broker(settings=SOON)
        connection = connect(running)
        producer = CheckedProducer(connect(running), "p1")
        stranger = CheckedProducer(connect(running), "p1", group="others")
        halves = [send_half(connection, "t", body, place) for place, body in enumerate((b"yes", b"no", b"later"))]
        answers = {b"yes": ["commit"], b"no": ["rollback"], b"later": ["unknown", "commit"]}
        while any(answers.values()):
            frame = producer.wait_for_check()
            record = decode_record(frame.body)
            assert record.topic == b"t"
            assert frame.fields["topic"] == "t"
            assert frame.fields["transaction_id"] == record.property_map()["UNIQ_KEY"]
            assert frame.fields["check_times"] == int(record.property_map()["TRANSACTION_CHECK_TIMES"])
            left = answers[record.body]
            producer.answer(frame, left.pop(0) if left else "unknown")
        wait_until(lambda: len(messages(connection, "t")) == 2, connection)
        assert sorted(message.body for message in messages(connection, "t")) == [b"later", b"yes"]
        for half, outcome in zip(halves, ("commit", "rollback", "commit"), strict=True):
            assert end(connection, half).fields["outcome"] == outcome
        stranger.connection.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert not stranger.connection.sock.recv(1)
            pytest.fail("a producer of another group was asked")

    @pytest.mark.parametrize("how", ["killed", "leaves"])
    def test_another_producer_is_asked_when_the_first_goes(
        self, broker: BrokerFactory, connect: ConnectionFactory, how: str
    ) -> None:
        running = broker(settings={"transactions.timeout_ms": 20, "transactions.check_interval_ms": NEVER_MS})
        if how == "leaves":
            running = broker(settings=SOON)
        connection = connect(running)
        first, second = (CheckedProducer(connect(running), name) for name in ("p1", "p2"))
        send_half(connection, "t", b"pay", 1)
        asked, other = _asked_first(first, second)
        if how == "killed":
            asked.connection.close()  # the check is open: the broker sends it to the other producer at once
        else:
            name = "p1" if asked is first else "p2"
            connection.call(UNREGISTER_CLIENT, {"group": GROUP, "member": name, "kind": "producer"}).raise_for_error()
        other.answer(other.wait_for_check(), "commit")
        wait_until(lambda: [message.body for message in messages(connection, "t")] == [b"pay"], connection)

    def test_an_end_after_a_check_may_name_the_half_message_as_it_was(
        self, broker: BrokerFactory, connect: ConnectionFactory
    ) -> None:
        running = broker(settings={"transactions.timeout_ms": 20, "transactions.check_interval_ms": NEVER_MS})
        connection = connect(running)
        half = send_half(connection, "t", b"pay", 1)
        wait_until(lambda: listed(connection)[0]["checks"] == 1, connection)
        assert listed(connection)[0]["half_queue_offset"] > half.queue_offset
        end(connection, half).raise_for_error()
        assert [message.body for message in messages(connection, "t")] == [b"pay"]

    def test_an_undecidable_transaction_is_parked(self, broker: BrokerFactory, connect: ConnectionFactory) -> None:
        running = broker(settings={**SOON, "transactions.check_times_max": 3})
        connection = connect(running)
        half = send_half(connection, "t", b"pay", 1)
        wait_until(lambda: bool(listed(connection, parked=True)), connection)
        assert listed(connection) == []
        (row,) = listed(connection, parked=True)
        assert (row["id"], row["topic"], row["group"], row["checks"]) == (half.transaction_id, "t", GROUP, 3)
        assert [message.body for message in messages(connection, TRANSACTION_PARKED_TOPIC, 1)] == [b"pay"]
        assert messages(connection, "t") == []
        assert end(connection, half).fields["outcome"] == "parked"
        assert ": 3 checks got no decision" in running.log

    @pytest.mark.parametrize("who", ["itself", "another"])
    def test_a_producer_that_does_not_read_is_asked_no_more(
        self, broker: BrokerFactory, connect: ConnectionFactory, who: str
    ) -> None:
        settings = {"transactions.timeout_ms": 20, "transactions.check_interval_ms": NEVER_MS}
        running = broker(settings={**settings, "net.connection:WRITE_BUFFER_BYTES_MAX": 64 * 1024})
        connection = connect(running)
        producer = CheckedProducer(connect(running), "asleep")
        for place in range(60):
            send_half(connection, "t", b"x" * 256 * 1024, place)
        wait_until(lambda: all(row["checks"] == 1 for row in listed(connection)), connection)
        # The part in the system's buffers was sent; the rest waits in the log until a producer reads.
        sent = int(Scrape(running)("flintmq_transaction_checks_total", result="asked"))
        assert 0 < sent < 60
        if who == "another":
            producer = CheckedProducer(connect(running), "awake")
        for _ in range(60 if who == "itself" else 60 - sent):
            producer.answer(producer.wait_for_check(), "rollback")
        wait_until(lambda: len(listed(connection)) == (0 if who == "itself" else sent), connection)

    def test_an_invalid_answer_affects_no_other_client(self, broker: BrokerFactory, connect: ConnectionFactory) -> None:
        running = broker(settings=SOON)
        connection = connect(running)
        producer = CheckedProducer(connect(running), "p1")
        send_half(connection, "t", b"pay", 1)
        for outcome in ("", "maybe", "parked"):
            producer.answer(producer.wait_for_check(), outcome)
        producer.answer(producer.wait_for_check(), "commit")
        wait_until(lambda: [message.body for message in messages(connection, "t")] == [b"pay"], connection)
        assert "failed to answer a check of transaction" in running.log


def _asked_first(*producers: CheckedProducer) -> tuple[CheckedProducer, CheckedProducer]:
    """Return the one of two producers that gets the check, and the other one."""
    sockets = [producer.connection.sock for producer in producers]
    ready = select.select(sockets, [], [])[0][0]
    asked = producers[sockets.index(ready)]
    return asked, producers[1 - producers.index(asked)]


def test_a_half_message_that_an_earlier_release_stored_with_a_long_key_is_open(
    tmp_path: Path, broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    key = "k" * 15_500
    store = open_store(tmp_path / "store", SERVED)
    for topic in (HALF_TOPIC, "orders"):
        make_topic(store, topic, 1)
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": GROUP, "UNIQ_KEY": key, "TRAN_MSG": "true"}
    store.append_records([Record(topic=HALF_TOPIC.encode(), body=b"x", properties=encode_properties(properties))])
    dispatch(store)
    store.close()
    connection = connect(broker(store=tmp_path / "store", settings={"transactions.timeout_ms": NEVER_MS}))
    assert [row["id"] for row in listed(connection)] == [key]
    end(connection, key).raise_for_error()
    assert [record.body for record in messages(connection, "orders", 1)] == [b"x"]
