"""The source over a log with damage: a query fails and names it, or goes on behind it and says how many messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flintmq.client.spark.arrow_decoder import Decoder
from flintmq.client.spark.brokers import BrokerAddress
from flintmq.client.spark.columns import COLUMNS
from flintmq.client.spark.offsets import Queue
from flintmq.client.spark.options import read_options
from flintmq.client.spark.partition_reader import read_range
from tests.conftest import Brokers, RunningBroker
from tests.store_tools import SERVED, Sent, open_store, overwrite, plain, put

MESSAGES = 20
BODY_AT = 88
"""Where a record's body begins, with IPv4 hosts."""


@dataclass(frozen=True)
class Case:
    """A topic of which some messages are damaged, what a query says of them that fails, and one that goes on."""

    topic: str
    lost: range
    fails_with: str
    warns: str


CONTAINED = Case(
    "contained", range(5, 9), r"DataLoss: 4 messages of queue 0 of topic 'contained'.* from 5 on are lost", "4 messages"
)
RECORD = Case(
    "record", range(7, 8), r"DataLoss: message 7 of queue 0 of topic 'record'.* is lost to damage", "message 7"
)
BODY = Case("body", range(3, 4), r"CorruptMessage: .*offset 3 of queue 0 of topic 'body'", "1 damaged messages")
CASES = [CONTAINED, RECORD, BODY]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with the topics of the cases: one of a hole that a start has contained, two that none has looked at."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    store = open_store(path, SERVED)
    sent: dict[Case, list[Sent]] = {case: put(store, case.topic, 0, plain(MESSAGES)) for case in CASES}
    store.close()
    log = path / "commitlog" / f"{0:020d}"
    begin, end = (sent[CONTAINED][number].physical_offset for number in (5, 9))
    overwrite(log, begin, bytes(end - begin))
    open_store(path, SERVED).close()
    overwrite(log, sent[RECORD][7].physical_offset, bytes(60))
    overwrite(log, sent[BODY][3].physical_offset + BODY_AT, b"X")
    brokers = Brokers(tmp_path_factory.mktemp("brokers"))
    yield brokers.start(store=path, settings={"store.verify_at_start_bytes": 0})
    brokers.stop_all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.topic)
def test_a_query_fails_with_what_is_damaged_or_goes_on_behind_it(
    spark: Any, damaged: RunningBroker, case: Case
) -> None:
    reader = spark.read.format("flintmq").option("bootstrap", damaged.address).option("subscribe", case.topic)
    with pytest.raises(Exception, match=case.fails_with):
        reader.load().collect()
    rows = reader.option("failOnDataLoss", "false").load().select("queue_offset").collect()
    assert sorted(row.queue_offset for row in rows) == [n for n in range(MESSAGES) if n not in case.lost]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.topic)
def test_a_task_that_goes_on_says_how_many_it_passed_over(
    damaged: RunningBroker, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    options = read_options({"bootstrap": damaged.address, "subscribe": case.topic, "failOnDataLoss": "false"})
    queue, broker = Queue(case.topic, 0, "b"), BrokerAddress("b", damaged.address)
    batches = read_range(queue, broker, 0, MESSAGES, options, Decoder(COLUMNS))
    assert sum(batch.num_rows for batch in batches) == MESSAGES - len(case.lost)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("flintmq.client.spark")]
    assert case.warns in line
    assert f"topic '{case.topic}'" in line


def test_a_query_by_key_fails_where_the_index_has_a_record_that_is_damaged(spark: Any, damaged: RunningBroker) -> None:
    reader = spark.read.format("flintmq").option("bootstrap", damaged.address).option("subscribe", RECORD.topic)
    reader = reader.option("key", f"key-{RECORD.lost[0]}")
    with pytest.raises(Exception, match=r"DataLoss: 1 records that the index of topic 'record'.*are damaged"):
        reader.load().collect()
    assert reader.option("failOnDataLoss", "false").load().collect() == []
