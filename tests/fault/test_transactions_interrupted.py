"""A broker that is killed between half message, commit and note: each transaction commits once, none is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from flintmq.broker.delivery.transactions.records import Half
from flintmq.protocol.errors import TransactionEnded, TransactionNotExist
from flintmq.protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_PARKED_TOPIC
from flintmq.protocol.storage.record import Record, decode_record
from tests.store_tools import SMALL
from tests.transaction_parts import INTERVAL_MS, TIMEOUT_MS, parts, settled
from tests.transaction_tools import GROUP, transaction_id

COMMITTED, ROLLED_BACK, CHECKED = range(1, 5), range(5, 8), range(8, 10)
BODIES = {number: b"%d" % number for number in range(1, 10)}


def records_of(log: bytes) -> list[Record]:
    at, found = 0, []
    while int.from_bytes(log[at : at + 4], "big"):
        found.append(decode_record(log, at))
        at += int.from_bytes(log[at : at + 4], "big")
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which transactions were committed, rolled back, and checked and then committed."""
    path = tmp_path_factory.mktemp("history") / "store"

    async def live() -> None:
        async with parts(path) as made:
            halves = {
                number: made.produce("orders", number % 4, BODIES[number], first=number)[0]
                for number in (*COMMITTED, *ROLLED_BACK)
            }
            for number in COMMITTED[:2]:
                await made.end(halves[number], commit=True)
            ends = [made.end(halves[n], commit=n in COMMITTED) for n in (*COMMITTED[2:], *ROLLED_BACK)]
            await asyncio.gather(*ends)
            for number in CHECKED:
                halves[number] = made.produce("orders", number % 4, BODIES[number], first=number)[0]
            await made.clock.advance((TIMEOUT_MS + INTERVAL_MS) / 1000)
            for number in CHECKED:
                await made.end(halves[number], commit=True)
            await settled()

    asyncio.run(live())
    return path


def middle(record: Record) -> int:
    return record.physical_offset + len(record.encode()) // 2


def cut(history: Path, at: int, to: Path) -> Path:
    """Make the store that a broker leaves if it is killed when its log ends at ``at``, before it saved any progress."""
    (to / "commitlog").mkdir(parents=True)
    (to / "config").mkdir()
    shutil.copy(history / "config" / "topics.json", to / "config")
    log = (history / "commitlog" / f"{0:020d}").read_bytes()
    assert len(log) == SMALL.commitlog_file_bytes
    (to / "commitlog" / f"{0:020d}").write_bytes(log[:at] + bytes(len(log) - at))
    (to / "abort").touch()
    return to


def test_a_broker_killed_anywhere_commits_each_transaction_once_and_loses_none(history: Path, tmp_path: Path) -> None:
    log = (history / "commitlog" / f"{0:020d}").read_bytes()
    records = records_of(log)
    # At the beginning and in the middle of each record.
    cuts = [at for record in records for at in (record.physical_offset, middle(record))]
    assert len(cuts) > 50
    for at in cuts:
        path = cut(history, at, tmp_path / str(at))
        stored = {
            int(record.body)
            for record in records
            if record.topic == HALF_TOPIC.encode() and record.physical_offset + len(record.encode()) <= at
        }
        asyncio.run(finish_and_check(path, stored))
        shutil.rmtree(path)


async def finish_and_check(path: Path, stored: set[int]) -> None:
    """Let every producer end its transactions, again if it had already; then the log must contain each message once."""
    async with parts(path) as made:
        already = {int(record.body) for queue in range(4) for record in made.records("orders", queue)}
        for number in BODIES:
            outcome = await made.end(known_as(number), commit=number not in ROLLED_BACK)
            if number not in stored:
                assert isinstance(outcome, TransactionNotExist)
            elif isinstance(outcome, TransactionEnded):
                assert outcome.details["outcome"] == ("rollback" if number in ROLLED_BACK else "commit")
            else:
                assert outcome is None
                assert number not in already
        found = Counter(int(record.body) for queue in range(4) for record in made.records("orders", queue))
        assert found == Counter(stored - set(ROLLED_BACK))
        assert len(made.service.table) == 0
        assert made.records(TRANSACTION_PARKED_TOPIC) == []
        made.service.close()
        # Even if notes were written twice or late, the start after this one has nothing to do.
        assert made.service.history.read_at_start().halves == []
        assert made.records(OP_HALF_TOPIC) or not stored


def known_as(number: int) -> Half:
    """Return a half message without its offsets, as a restarted producer knows it."""
    return Half(
        transaction_id(number), GROUP, "orders", number % 4, queue_offset=-1, physical_offset=-1, born_ms=0, store_ms=0
    )
