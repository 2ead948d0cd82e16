"""Transactions on a real store: records, also as RocketMQ wrote them; checked producers; the state after a start."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flintmq.broker.delivery.transactions.checks import READS_AGAIN_S
from flintmq.broker.delivery.transactions.records import (
    Half,
    checked_again,
    committed,
    ended_notes,
    ended_offsets,
    is_committed,
    parked,
)
from flintmq.broker.delivery.transactions.service import History
from flintmq.broker.store import WouldBlock
from flintmq.broker.store.message_store import UNLIMITED
from flintmq.protocol.errors import (
    BrokerFailure,
    SystemBusy,
    TransactionEnded,
    TransactionGroupWrong,
    TransactionNotExist,
)
from flintmq.protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_PARKED_TOPIC
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, decode_record, encode_properties
from tests.store_tools import find, unpack_rocketmq
from tests.transaction_parts import INTERVAL_MS, TIMEOUT_MS, TIMES_MAX, Parts, parts, settled, until
from tests.transaction_tools import transaction_id
from tests.unit.test_store_golden import copy_sparse, serve

TIMEOUT_S, INTERVAL_S = TIMEOUT_MS / 1000, INTERVAL_MS / 1000


def progress(made: Parts) -> tuple[int, int]:
    """Return the progress of both topics as in consumerOffset.json."""
    committed = made.store.consumer_offsets.committed
    return committed(TRANSACTION_GROUP, HALF_TOPIC).get(0, 0), committed(TRANSACTION_GROUP, OP_HALF_TOPIC).get(0, 0)


class TestEnds:
    async def test_a_commit_is_a_new_record_and_a_note(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 2, b"paid", first=7)
            assert await made.end(half, commit=True) is None
            (message,), (stored,), (note,) = (
                made.records("orders", 2),
                made.records(HALF_TOPIC),
                made.records(OP_HALF_TOPIC),
            )
            assert message.sys_flag == stored.sys_flag | SysFlag.TRANSACTION_COMMIT
            assert message.prepared_transaction_offset == stored.physical_offset == half.physical_offset
            assert (message.body, message.properties) == (stored.body, stored.properties)
            assert (message.born_timestamp, message.born_host) == (stored.born_timestamp, stored.born_host)
            assert stored.sys_flag == stored.prepared_transaction_offset == 0
            assert stored.property_map() == {
                "TRAN_MSG": "true",
                "PGROUP": "payers",
                "REAL_TOPIC": "orders",
                "REAL_QID": "2",
                "TAGS": "paid",
                "UNIQ_KEY": transaction_id(7),
                "__transactionId__": transaction_id(7),
            }
            assert (note.body, note.property_map()) == (b"0,", {"TAGS": "d"})

    async def test_transactions_ended_in_one_turn_share_a_note(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            halves = made.produce("orders", 0, *(b"%d" % n for n in range(20)), first=1)
            ends = [made.end(half, commit=bool(n % 2)) for n, half in enumerate(halves)]
            assert await asyncio.gather(*ends) == [None] * 20
            (note,) = made.records(OP_HALF_TOPIC)
            assert note.body == b"".join(b"%d," % n for n in range(20))
            assert [message.body for message in made.records("orders")] == [b"%d" % n for n in range(1, 20, 2)]

    async def test_nothing_is_found_under_the_real_topic_before_the_commit(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            assert made.records("orders") == []
            assert find(made.store, "orders", half.transaction_id) == []
            await made.end(half, commit=True)
            assert made.records("orders") == find(made.store, "orders", half.transaction_id)

    async def test_progress_follows_the_oldest_that_is_open(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            halves = made.produce("orders", 0, *[b"x"] * 4, first=1)
            for half in (halves[2], halves[1]):
                await made.end(half, commit=False)
            made.service.close()
            assert progress(made) == (0, 0)
            await made.end(halves[0], commit=True)
            made.service.close()
            assert progress(made) == (3, 3)
            await made.end(halves[3], commit=True)
            made.service.close()
            assert progress(made) == (4, 4)

    async def test_transactions_beyond_the_memory_are_found_in_the_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flintmq.broker.delivery.transactions.service.ENDED_MAX", 2)
        async with parts(tmp_path) as made:
            halves = made.produce("orders", 0, *[b"x"] * 6, first=1)
            for place, half in enumerate(halves):
                assert await made.end(half, commit=place % 2 == 0) is None
            made.records("orders")  # dispatched
            for place, half in enumerate(halves):
                error = await made.end(half, commit=True)
                assert isinstance(error, TransactionEnded)
                assert error.details["outcome"] == ("rollback" if place % 2 else "commit")
                assert isinstance(await made.end(half, commit=True, group="thieves"), TransactionGroupWrong)
            assert len(made.records("orders")) == 3

    @pytest.mark.parametrize("ended", ["committed", "rolled back"])
    async def test_a_message_whose_key_is_its_id_is_not_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
    ) -> None:
        monkeypatch.setattr("flintmq.broker.delivery.transactions.service.ENDED_MAX", 0)
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            (other,) = made.produce("orders", 0, b"refers to it", first=2, keys=half.transaction_id)
            assert await made.end(half, commit=ended == "committed") is None
            assert await made.end(other, commit=ended != "committed") is None
            made.records("orders")  # dispatched
            error = await made.end(half, commit=True)
            assert isinstance(error, TransactionEnded)
            assert error.details["outcome"] == ("commit" if ended == "committed" else "rollback")


class TestParked:
    async def park(self, made: Parts, half: Half) -> None:
        for _ in range(TIMES_MAX + 1):
            await made.clock.advance(INTERVAL_S)
        await settled()
        assert half.transaction_id in [
            each.property_map()["UNIQ_KEY"] for each in made.records(TRANSACTION_PARKED_TOPIC)
        ]

    async def test_two_commits_at_once_deliver_it_once(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            await self.park(made, half)
            # Nothing is acknowledged before both have read the log, as while followers are slow.
            made.store.confirmed_offset = made.store.write_offset
            both = [asyncio.ensure_future(made.end(half, commit=True, parked=True)) for _ in range(2)]
            await until(lambda: any(each.done() for each in both) or len(made.records("orders")) == 2)
            made.store.confirmed_offset = UNLIMITED
            made.flush.acknowledge()
            refused = [error for error in await asyncio.gather(*both) if error is not None]
            # The second one finds the first in the log if the log was dispatched before it was read.
            assert [type(error) for error in refused] in ([SystemBusy], [TransactionEnded])
            assert [each.body for each in made.records("orders")] == [b"paid"]
            assert isinstance(await made.end(half, commit=True, parked=True), TransactionEnded)
            assert len(made.records("orders")) == 1

    async def test_it_is_not_delivered_because_another_message_has_its_id_as_key(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            halves = made.produce("orders", 0, b"paid", first=1)
            await self.park(made, halves[0])
            halves += made.produce("orders", 0, b"refers to it", first=2, keys=halves[0].transaction_id)
            await self.park(made, halves[1])
            halves += made.produce("orders", 0, b"also", first=3, keys=halves[0].transaction_id)
            assert await made.end(halves[2], commit=True) is None
            made.records("orders")  # dispatched
            for half in halves[:2]:
                assert await made.end(half, commit=True, parked=True) is None
            assert [each.body for each in made.records("orders")] == [b"also", b"paid", b"refers to it"]


class TestChecks:
    async def test_the_first_comes_after_the_timeout_and_the_next_after_the_interval(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            (half,) = made.produce("orders", 3, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S - 0.001)
            assert producer.asked == []
            await made.clock.advance(0.001)
            ((request, message, _),) = producer.asked
            assert (request.group, request.transaction_id, request.topic, request.check_times) == (
                "payers",
                half.transaction_id,
                "orders",
                1,
            )
            assert (message.topic, message.queue_id, message.body) == (b"orders", 3, b"paid")
            producer.answer("unknown")
            await made.clock.advance(INTERVAL_S - 0.001)
            assert producer.asked == []
            await made.clock.advance(0.001)
            assert producer.asked[0][0].check_times == 2
            producer.answer("commit")
            await settled()
            assert [each.body for each in made.records("orders", 3)] == [b"paid"]
            await made.clock.advance(10 * INTERVAL_S)
            assert producer.asked == []

    async def test_the_first_of_one_does_not_wait_for_the_next_of_another(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            made.produce("orders", 0, b"one", first=1)
            await made.clock.advance(TIMEOUT_S)
            producer.asked.clear()
            made.produce("orders", 0, b"two", first=2)
            await made.clock.advance(TIMEOUT_S)
            assert [message.body for _, message, _ in producer.asked] == [b"two"]

    async def test_each_writes_the_half_message_again(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S + 2 * INTERVAL_S)
            halves = made.records(HALF_TOPIC)
            times = [half.property_map().get("TRANSACTION_CHECK_TIMES") for half in halves]
            assert times == [None, "1", "2", "3"]
            assert {half.properties.partition(b"TRANSACTION")[0] for half in halves} == {halves[0].properties}
            assert [note.body for note in made.records(OP_HALF_TOPIC)] == [b"0,", b"1,", b"2,"]
            made.service.close()
            assert progress(made)[0] == 3

    async def test_after_the_last_it_is_parked(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            (half,) = made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S + (TIMES_MAX - 1) * INTERVAL_S)
            assert len(producer.asked) == made.checks.asked == TIMES_MAX
            assert made.records(TRANSACTION_PARKED_TOPIC) == []
            await made.clock.advance(INTERVAL_S)
            await settled()
            (parked,) = made.records(TRANSACTION_PARKED_TOPIC)
            assert (parked.body, parked.sys_flag, parked.queue_id) == (b"paid", 0, 0)
            assert parked.property_map()["TRANSACTION_CHECK_TIMES"] == str(TIMES_MAX)
            assert made.records("orders") == []
            producer.answer("commit")  # too late
            await settled()
            assert made.records("orders") == []
            error = await made.end(half, commit=True)
            assert isinstance(error, TransactionEnded)
            assert error.details["outcome"] == "parked"
            assert made.service.ended == {"commit": 0, "rollback": 0, "parked": 1}
            assert len(made.service.table) == 0

    async def test_a_check_without_a_live_producer_counts_too(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            made.produce("orders", 0, b"paid", first=1)
            made.alive(seconds=TIMEOUT_S / 2)  # its session runs out
            made.alive(group="others")
            await made.clock.advance(TIMEOUT_S + TIMES_MAX * INTERVAL_S)
            await settled()
            assert (made.checks.asked, made.checks.unasked) == (0, TIMES_MAX)
            assert len(made.records(TRANSACTION_PARKED_TOPIC)) == 1

    async def test_a_question_goes_to_another_when_its_producer_goes(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producers = [made.alive(member=f"p{n}") for n in range(3)]
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S)
            for left in (2, 1):
                (asked,) = [producer for producer in producers if producer.asked]
                producers.remove(asked)
                asked.go()
                await made.clock.advance(READS_AGAIN_S)
                assert len(producers) == left
            (last,) = producers
            last.answer("commit")
            await settled()
            assert len(made.records("orders")) == 1
            assert len(made.records(HALF_TOPIC)) == 2  # one check, however many transactions were asked about

    async def test_all_gone_waits_for_the_next_time(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            first = made.alive()
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S)
            first.go()
            second = made.alive(member="q")
            assert second.asked == []
            await made.clock.advance(INTERVAL_S)
            second.answer("rollback")
            await settled()
            assert made.service.ended["rollback"] == 1

    async def test_producers_take_turns(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producers = [made.alive(member=f"p{n}") for n in range(4)]
            made.produce("orders", 0, *[b"x"] * 40, first=1)
            await made.clock.advance(TIMEOUT_S)
            assert [len(producer.asked) for producer in producers] == [10] * 4

    async def test_an_error_or_nonsense_is_no_end(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            made.produce("orders", 0, b"paid", first=1)
            for code, outcome in ((1, "no database"), (0, "perhaps"), (0, "parked")):
                await made.clock.advance(INTERVAL_S)
                producer.answer(outcome, code)
            await settled()
            assert len(made.service.table) == 1

    async def test_an_answer_that_comes_late_counts(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S + 2 * INTERVAL_S)
            producer.answer("commit")  # to the first question
            await settled()
            assert len(made.records("orders")) == 1

    async def test_many_transactions_are_checked_in_steps_without_omission(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            halves = made.produce("orders", 0, *[b"x"] * 300, first=1)
            await made.clock.advance(TIMEOUT_S)
            assert sorted(request.transaction_id for request, _, _ in producer.asked) == [
                half.transaction_id for half in halves
            ]


class TestColdReads:
    """Another thread reads records that are not in the page cache."""

    @pytest.fixture(autouse=True)
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Return an event; reads from disk proceed while it is set."""
        read = History.read_half
        disk = threading.Event()
        disk.set()

        def record(self: History, half: Half, *, hot: bool) -> Record:
            if hot:
                raise WouldBlock
            assert disk.wait(60)
            return read(self, half, hot=hot)

        monkeypatch.setattr(History, "read_half", record)
        return disk

    async def test_a_commit_waits_and_so_do_later_requests(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            first, second = await asyncio.gather(made.end(half, commit=True), made.end(half, commit=False))
            assert first is None
            assert isinstance(second, TransactionEnded)
            assert second.details["outcome"] == "commit"
            assert len(made.records("orders")) == 1

    async def test_a_check_waits(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            producer = made.alive()
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S)
            await until(lambda: producer.asked)
            producer.answer("commit")
            await until(lambda: made.service.ended["commit"])

    async def test_a_transaction_that_ends_while_read_for_a_check_is_not_checked(
        self, tmp_path: Path, disk: threading.Event
    ) -> None:
        disk.clear()
        async with parts(tmp_path) as made:
            producer = made.alive()
            (half,) = made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S)
            assert await made.end(half, commit=False) is None
            disk.set()
            made.readers.shutdown()
            await settled()
            assert (producer.asked, len(made.records(HALF_TOPIC))) == ([], 1)
            assert len(made.service.table) == 0

    async def test_a_damaged_half_message_is_reported(self, tmp_path: Path) -> None:
        async with parts(tmp_path, killed=True) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            assert len(made.records(HALF_TOPIC)) == 1
            with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
                file.seek(half.physical_offset + 60)
                file.write(b"\xff" * 40)
            error = await made.end(half, commit=True)
            assert isinstance(error, BrokerFailure)
            assert "is damaged" in error.message


class TestStart:
    @pytest.mark.parametrize("killed", [False, True])
    async def test_open_transactions_stay_open_and_are_checked(self, tmp_path: Path, killed: bool) -> None:
        async with parts(tmp_path, killed=killed) as made:
            halves = made.produce("orders", 1, b"a", b"b", b"c", first=1)
            await made.end(halves[1], commit=True)
        async with parts(tmp_path) as made:
            assert [each.half.transaction_id for each in made.service.table] == [
                halves[0].transaction_id,
                halves[2].transaction_id,
            ]
            producer = made.alive()
            await made.clock.advance(TIMEOUT_S - 0.001)
            assert producer.asked == []  # the time that its producers have to come back
            await made.clock.advance(0.001)
            assert [message.body for _, message, _ in producer.asked] == [b"a", b"c"]
            assert isinstance(await made.end(halves[1], commit=False), TransactionEnded)
            assert await made.end(halves[0], commit=True) is None
            assert [each.body for each in made.records("orders", 1)] == [b"b", b"a"]

    async def test_the_commit_of_another_transaction_ends_none(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (before,) = made.produce("orders", 0, b"before", first=1)
            assert await made.end(before, commit=True) is None
        async with parts(tmp_path, killed=True) as made:
            # One has the same unique key, which its producer used again; the other one refers to it by a key.
            (half,) = made.produce("orders", 0, b"paid", first=1)
            (other,) = made.produce("orders", 0, b"refers to it", first=2, keys=half.transaction_id)
            assert await made.end(other, commit=True) is None
        async with parts(tmp_path) as made:
            assert [each.half.transaction_id for each in made.service.table] == [half.transaction_id]
            assert await made.end(half, commit=True) is None
            assert [each.body for each in made.records("orders")] == [b"before", b"refers to it", b"paid"]

    async def test_checks_continue_from_their_last_count(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            made.produce("orders", 0, b"paid", first=1)
            await made.clock.advance(TIMEOUT_S + 4 * INTERVAL_S)
        async with parts(tmp_path) as made:
            (transaction,) = made.service.table
            assert transaction.half.check_times == 5
            await made.clock.advance(TIMEOUT_S + (TIMES_MAX - 5) * INTERVAL_S)
            await settled()
            assert len(made.records(TRANSACTION_PARKED_TOPIC)) == 1

    async def test_a_start_reads_only_open_transactions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with parts(tmp_path) as made:
            for half in made.produce("orders", 0, *[b"x"] * 50, first=1):
                await made.end(half, commit=True)
            made.produce("orders", 0, b"open", first=1000)
        async with parts(tmp_path) as made:
            found = made.service.history.read_at_start()
            assert (len(found.halves), len(found.notes)) == (1, 0)
            assert (found.next_half_offset, found.next_note_offset) == (51, 50)

    async def test_an_end_may_name_only_messages_in_the_log(self, tmp_path: Path) -> None:
        async with parts(tmp_path) as made:
            (half,) = made.produce("orders", 0, b"paid", first=1)
            unknown = type(half)(
                transaction_id(99),
                half.group,
                "orders",
                0,
                queue_offset=0,
                physical_offset=half.physical_offset,
                born_ms=0,
                store_ms=0,
            )
            assert isinstance(await made.end(unknown, commit=True), TransactionNotExist)


# ---- Records of transactions equal those that Apache RocketMQ 5.3.3 wrote

REAL_TOPIC = "CompatTopic"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_rocketmq(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def records(pristine: Path) -> list[Record]:
    return list(log_of(pristine / "store-pristine"))


def log_of(store: Path) -> Iterator[Record]:
    with (store / "commitlog" / f"{0:020d}").open("rb") as file:
        log = file.read(1 << 20)
    at = 0
    while int.from_bytes(log[at : at + 4], "big"):
        yield decode_record(log, at)
        at += int.from_bytes(log[at : at + 4], "big")


def of_topic(records: list[Record], topic: str) -> list[Record]:
    return [record for record in records if record.topic == topic.encode()]


def test_a_commit_is_the_record_that_rocketmq_makes_of_the_half(records: list[Record]) -> None:
    halves = {record.physical_offset: record for record in of_topic(records, HALF_TOPIC)}
    commits = [record for record in records if is_committed(record)]
    assert (len(halves), len(commits)) == (34, 17)
    for commit in commits:
        record = halves[commit.prepared_transaction_offset]
        half = Half.of(record)
        assert half is not None
        made = committed(half, record)
        # The store gives each record its place and time.
        placed = replace(
            made,
            queue_offset=commit.queue_offset,
            physical_offset=commit.physical_offset,
            store_timestamp=commit.store_timestamp,
            store_host=commit.store_host,
        )
        assert placed.encode() == commit.encode()


def test_a_half_message_has_all_its_fields(records: list[Record]) -> None:
    for record in of_topic(records, HALF_TOPIC):
        half = Half.of(record)
        assert half is not None
        properties = record.property_map()
        assert half.transaction_id == properties["UNIQ_KEY"] == properties["__transactionId__"]
        assert (half.group, half.topic, half.check_times) == ("CompatTxProducer", REAL_TOPIC, 0)
        assert (half.queue, half.queue_offset) == (int(properties["REAL_QID"]), record.queue_offset)
    assert Half.of(of_topic(records, REAL_TOPIC)[0]) is None


def test_a_note_is_rocketmqs(records: list[Record]) -> None:
    (note,) = of_topic(records, OP_HALF_TOPIC)
    assert list(ended_offsets(note)) == list(range(34))
    (made,) = ended_notes(range(34), note.born_timestamp, note.born_host)
    assert (made.body, made.topic, made.queue_id, made.sys_flag) == (note.body, note.topic, 0, 0)
    assert made.property_map()["TAGS"] == note.property_map()["TAGS"] == "d"


def test_long_notes_are_several() -> None:
    offsets = range(10_000, 12_000)
    notes = ended_notes(offsets, 1, bytes(8))
    assert len(notes) == 3
    assert max(len(note.body) for note in notes) <= 4096
    assert [offset for note in notes for offset in ended_offsets(note)] == list(offsets)
    assert ended_notes([], 1, bytes(8)) == []


@pytest.mark.parametrize(
    ("body", "offsets"),
    [(b"5", [5]), (b"5,7,", [5, 7]), (b" 5 ,x,-1,\xff,", [5]), (b"", []), (b"9" * 30 + b",1,", [1])],
)
def test_notes_of_older_releases_and_damaged_notes_are_read(body: bytes, offsets: list[int]) -> None:
    assert list(ended_offsets(Record(b"op", body))) == offsets


def test_a_rewritten_record_keeps_everything_except_a_stale_checksum() -> None:
    properties = encode_properties(
        {"A": "1", "TRANSACTION_CHECK_TIMES": "3", "REAL_TOPIC": "t", "REAL_QID": "2", "__CRC32#": "0123456789"}
    )
    record = Record(HALF_TOPIC.encode(), b"body", properties, queue_offset=5, flag=3, reconsume_times=1)
    half = Half.of(record)
    assert half is not None
    assert half.check_times == 3
    assert half.transaction_id == "0000000000000000" + "0" * 16  # its offset id, since it has no unique key
    kept = {"A": "1", "REAL_TOPIC": "t", "REAL_QID": "2"}
    assert checked_again(record, 4).property_map() == kept | {"TRANSACTION_CHECK_TIMES": "4"}
    for made in (parked(record), committed(half, record)):
        assert made.property_map() == kept | {"TRANSACTION_CHECK_TIMES": "3"}
        assert (made.body, made.flag, made.reconsume_times) == (b"body", 3, 1)


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"}, {"REAL_TOPIC": "t", "REAL_QID": "-1"}]
)
def test_a_half_message_without_a_destination_is_invalid(properties: dict[str, str]) -> None:
    assert Half.of(Record(HALF_TOPIC.encode(), b"", encode_properties(properties))) is None


def test_rocketmqs_store_has_nothing_open(pristine: Path, tmp_path: Path) -> None:
    store, _ = serve(copy_sparse(pristine / "store-pristine", tmp_path / "store"))
    found = History(store).read_at_start()
    assert (found.halves, found.next_half_offset, found.next_note_offset) == ([], 34, 1)
    store.close()


def test_a_rocketmq_that_was_killed_before_its_note_has_committed_once(
    pristine: Path, records: list[Record], tmp_path: Path
) -> None:
    """The log ends before the note; recovery knows by the committed message that the transaction was committed."""
    path = copy_sparse(pristine / "store-pristine", tmp_path / "store")
    (note,) = of_topic(records, OP_HALF_TOPIC)
    log = path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.truncate(note.physical_offset)
        file.truncate(1 << 30)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "abort").touch()
    store, _ = serve(path)
    found = History(store).read_at_start()
    sent = [json.loads(line) for line in (pristine / "expected.jsonl").read_text().splitlines()]
    done = {record.queue_offset: record.property_map()["KEYS"] for record in of_topic(records, HALF_TOPIC)}
    assert len(found.halves) == 34
    assert {done[offset] for offset in found.committed} == {one["keys"] for one in sent if one["kind"] == "tx-commit"}
    store.close()
