"""The source over a damaged log: a query fails and names the damage, or continues after it and reports the number of
messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flintmq.client.arrow.decoder import COLUMNS, Decoder
from flintmq.client.spark.brokers import BrokerAddress
from flintmq.client.spark.offsets import Queue
from flintmq.client.spark.options import read_options
from flintmq.client.spark.partition_reader import read_range
from tests.conftest import Brokers, RunningBroker
from tests.store_tools import SERVED, Sent, open_store, overwrite, plain, put

MESSAGES = 20
BODY_AT = 88
"""Offset of the body in a record, with IPv4 hosts."""


@dataclass(frozen=True)
class Case:
    """A topic with damaged messages, the error of a query that fails at them, and the result of one that continues."""

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
    """Start a broker with the topics of the cases: one with a hole that a start has contained, two with unchecked
    damage."""
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
def test_a_query_fails_at_the_damage_or_continues_after_it(spark: Any, damaged: RunningBroker, case: Case) -> None:
    reader = spark.read.format("flintmq").option("bootstrap", damaged.address).option("subscribe", case.topic)
    with pytest.raises(Exception, match=case.fails_with):
        reader.load().collect()
    rows = reader.option("failOnDataLoss", "false").load().select("queue_offset").collect()
    assert sorted(row.queue_offset for row in rows) == [n for n in range(MESSAGES) if n not in case.lost]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.topic)
def test_a_task_that_continues_logs_how_many_messages_it_skipped(
    damaged: RunningBroker, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    options = read_options({"bootstrap": damaged.address, "subscribe": case.topic, "failOnDataLoss": "false"})
    queue, broker = Queue(case.topic, 0, "b"), BrokerAddress("b", damaged.address)
    batches = read_range(queue, broker, 0, MESSAGES, options, Decoder(COLUMNS))
    assert sum(batch.num_rows for batch in batches) == MESSAGES - len(case.lost)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("flintmq.client.spark")]
    assert case.warns in line
    assert f"topic '{case.topic}'" in line


def test_a_query_by_key_fails_if_the_index_has_a_damaged_record(spark: Any, damaged: RunningBroker) -> None:
    reader = spark.read.format("flintmq").option("bootstrap", damaged.address).option("subscribe", RECORD.topic)
    reader = reader.option("key", f"key-{RECORD.lost[0]}")
    with pytest.raises(Exception, match=r"DataLoss: 1 records that the index of topic 'record'.*are damaged"):
        reader.load().collect()
    assert reader.option("failOnDataLoss", "false").load().collect() == []
