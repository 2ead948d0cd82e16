"""Damage of any one record of waiting messages: half messages, notes of transactions, delayed and staged messages.

A damaged message is lost, or delivered from what is left of it; all others are delivered once, and none twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from flintmq.broker.delivery.scheduled.delivery import RECORDS_A_STEP
from flintmq.broker.delivery.transactions.records import Half
from flintmq.protocol.errors import PreparedIncomplete, TransactionEnded, TransactionNotExist
from flintmq.protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, OP_PREPARED_TOPIC, PREPARED_TOPIC
from flintmq.protocol.storage.record import Record, decode_record
from tests.delay_tools import DelayedStore
from tests.prepared_store import PreparedStore
from tests.store_tools import kill, overwrite, restore, save
from tests.transaction_parts import INTERVAL_MS, TIMEOUT_MS, parts, settled
from tests.transaction_tools import GROUP, transaction_id


def log_of(path: Path) -> Path:
    return path / "commitlog" / f"{0:020d}"


def records_of(path: Path) -> list[Record]:
    """Return every record of a log of one file."""
    log, at, found = log_of(path).read_bytes(), 0, []
    while int.from_bytes(log[at : at + 4], "big"):
        found.append(decode_record(log, at))
        at += int.from_bytes(log[at : at + 4], "big")
    return found


def each_damaged(path: Path) -> Iterator[Record]:
    """Yield copies of the store with one damaged record, each record in turn."""
    saved = save(path)
    for record in records_of(path):
        restore(path, saved)
        overwrite(log_of(path), record.physical_offset, bytes(60))
        yield record


# Delayed messages.

LEVEL, TIMED = [b"level %d" % number for number in range(4)], [b"timed %d" % number for number in range(4)]


@pytest.mark.parametrize("delivered_ms", [3_000, 60_000], ids=["some delivered", "all"])
def test_damage_of_delayed_messages_loses_only_those_it_hits(tmp_path: Path, delivered_ms: int) -> None:
    path = tmp_path / "store"
    start_ms = int(time.time() * 1000)  # a message of a level is due by its store time
    delayed = DelayedStore(path, now_ms=start_ms)
    for number, (level, timed) in enumerate(zip(LEVEL, TIMED, strict=True)):
        late = number % 2
        delayed.send("t", [level], DELAY=2 if late else 1)
        delayed.send("t", [timed], TIMER_DELIVER_MS=start_ms + (50_000 if late else 2_000))
    delayed.run(start_ms + delivered_ms)
    delayed.stop()
    for hit in each_damaged(path):
        again = DelayedStore(path, now_ms=start_ms + 60_000)
        assert again.store.quarantine.lost_messages == 1
        again.run()
        again.run(start_ms + 10_000_000)
        found = again.counted("t")
        others = {body: 1 for body in [*LEVEL, *TIMED] if body != hit.body}
        assert {body: found[body] for body in others} == others, hit
        assert found[hit.body] <= 1, hit
        again.stop()


# Transactions.

COMMITTED, ROLLED_BACK, OPEN = range(1, 5), range(5, 8), range(8, 11)
BODIES = {number: b"%d" % number for number in range(1, 11)}


def known_as(number: int) -> Half:
    """Return a half message without its place, as a restarted producer knows it."""
    return Half(
        transaction_id(number), GROUP, "orders", number % 4, queue_offset=-1, physical_offset=-1, born_ms=0, store_ms=0
    )


async def live(path: Path) -> None:
    """Make transactions that are committed, rolled back, checked and then committed, and open."""
    async with parts(path) as made:
        for number in (*COMMITTED, *ROLLED_BACK):
            made.produce("orders", number % 4, BODIES[number], first=number)
        for number in COMMITTED[:2]:
            await made.end(known_as(number), commit=True)
        await asyncio.gather(*[made.end(known_as(n), commit=n in COMMITTED) for n in (*COMMITTED[2:3], *ROLLED_BACK)])
        await made.clock.advance((TIMEOUT_MS + INTERVAL_MS) / 1000)
        await made.end(known_as(COMMITTED[3]), commit=True)
        for number in OPEN:
            made.produce("orders", number % 4, BODIES[number], first=number)
        await settled()


def test_damage_of_half_messages_and_notes_delivers_none_twice_and_blocks_no_transaction(tmp_path: Path) -> None:
    path = tmp_path / "store"
    asyncio.run(live(path))
    topics: Counter[str] = Counter()
    for hit in each_damaged(path):
        topics[hit.topic.decode()] += 1
        asyncio.run(end_all(path, hit))
    assert min(topics[name] for name in (HALF_TOPIC, OP_HALF_TOPIC, "orders")) > 2


async def end_all(path: Path, hit: Record) -> None:
    """Let every producer end its transactions, again if it had already."""
    async with parts(path) as made:
        assert made.store.quarantine.lost_messages == 1
        for number in BODIES:
            outcome = await made.end(known_as(number), commit=number not in ROLLED_BACK)
            assert outcome is None or isinstance(outcome, TransactionEnded) or hit.body == BODIES[number], (hit, number)
            assert outcome is None or isinstance(outcome, TransactionEnded | TransactionNotExist), (hit, number)
        found = Counter(record.body for queue in range(4) for record in made.records("orders", queue))
        for number, body in BODIES.items():
            expected = number not in ROLLED_BACK
            assert found[body] == expected or (hit.body == body and found[body] == 0), (hit, number, found)
        assert len(made.service.table) == 0
        await settled()
    async with parts(path) as made:
        assert made.service.history.read_at_start().halves == []


# Staged messages.

ATTEMPTS = {"first": [b"a%d" % number for number in range(6)], "second": [b"b%d" % number for number in range(6)]}


def moments(path: Path) -> Iterator[str]:
    """Return a store at several moments of the life of a transaction of two stages."""
    made = PreparedStore(path)
    for begin in (0, 3):
        for name, bodies in ATTEMPTS.items():
            made.prepare(name, "t", bodies[begin : begin + 3], queue=begin % 2)
    made.dispatch()
    yield from stopped(made, "prepared")
    made.commit(1, {name: len(bodies) for name, bodies in ATTEMPTS.items()})
    made.dispatch()
    yield from stopped(made, "committed")
    made.run()
    yield from stopped(made, "copied")
    made.stop()


def stopped(made: PreparedStore, moment: str) -> Iterator[str]:
    kill(made.store)
    made.loop.close()
    saved = save(made.path)
    yield moment
    restore(made.path, saved)
    made.open()


WHOLE = Counter(body for bodies in ATTEMPTS.values() for body in bodies)


def test_damage_of_staged_messages_and_notes_is_never_committed_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the commit, the broker refuses it. After it, the undamaged messages are copied once, and the others are
    reported."""
    path = tmp_path / "store"
    for moment in moments(path):
        for hit in each_damaged(path):
            caplog.clear()
            made = PreparedStore(path)
            assert made.store.quarantine.lost_messages == 1
            made.run()
            what = (moment, hit.topic, hit.body)
            is_refused = not commits(made)
            made.run()
            found = made.counted("t")
            made.stop()
            assert is_refused == (moment == "prepared"), what
            if is_refused:
                assert found == Counter(), what
            elif hit.topic == PREPARED_TOPIC.encode() and moment == "committed":
                assert found == WHOLE - Counter([hit.body]), what
                assert "transaction 1 of query is committed, but 1 of its messages are lost" in caplog.text
            else:  # even if a note is lost: the messages after it reveal their owner
                assert found == WHOLE - Counter([hit.body] if hit.topic == b"t" else []), what


def commits(made: PreparedStore) -> bool:
    """Return whether the broker reports the transaction as committed, now or before."""
    try:
        made.commit(1, {name: len(bodies) for name, bodies in ATTEMPTS.items()})
    except PreparedIncomplete:
        return False
    return True


COPIED = [b"%05d" % number for number in range(2 * RECORDS_A_STEP + 500)]


@pytest.mark.parametrize("lost", [("commit", 0), ("copy", 0), ("copy", 1), ("copy", 2)], ids=str)
@pytest.mark.parametrize("is_over", [True, False], ids=["copied", "being copied"])
def test_a_lost_note_copies_no_message_twice(tmp_path: Path, lost: tuple[str, int], is_over: bool) -> None:
    """The transaction is copied in several steps."""
    path = tmp_path / "store"
    made = PreparedStore(path)
    made.prepare("attempt", "t", COPIED)
    made.dispatch()
    made.commit(1, {"attempt": len(COPIED)})
    made.dispatch()
    for _ in range(3):
        assert made.step()
    if is_over:
        made.run()
    kill(made.store)
    made.loop.close()
    kind, number = lost
    notes = [record for record in records_of(path) if record.topic == OP_PREPARED_TOPIC.encode()]
    hit = [note for note in notes if msgpack.unpackb(note.body)[0] == kind][number]
    overwrite(log_of(path), hit.physical_offset, bytes(60))
    made = PreparedStore(path)
    made.run()
    if kind == "commit" and not is_over:  # its messages are unknown
        with pytest.raises(PreparedIncomplete, match="lost to damage of the log"):
            made.commit(1, {"attempt": len(COPIED)})
    else:
        assert made.commit(1, {"attempt": len(COPIED)}).already
    made.run()
    assert made.counted("t") == Counter(COPIED)
    made.stop()


# Damage while a broker runs.


def test_a_half_message_damaged_meanwhile_is_refused_by_name_and_the_others_continue(tmp_path: Path) -> None:
    path = tmp_path / "store"

    async def run() -> None:
        async with parts(path) as made:
            for number in (1, 2, 3):
                made.produce("orders", 0, BODIES[number], first=number)
            await settled()
            assert len(made.records(HALF_TOPIC)) == 3  # dispatched, too
            (hit,) = [record for record in records_of(path) if record.body == BODIES[2]]
            overwrite(log_of(path), hit.physical_offset, bytes(60))
            outcomes = [await made.end(known_as(number), commit=True) for number in (1, 2, 3)]
            assert (outcomes[0], outcomes[2]) == (None, None)
            assert f"the half message of transaction {transaction_id(2)}" in str(outcomes[1])
            assert "is damaged; its producer must send it again" in str(outcomes[1])
            assert [record.body for record in made.records("orders")] == [BODIES[1], BODIES[3]]
            await made.end(known_as(2), commit=False)
            await made.clock.advance((TIMEOUT_MS + INTERVAL_MS) / 1000)
            assert len(made.service.table) == 0

    asyncio.run(run())


def test_delayed_messages_damaged_meanwhile_are_skipped_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    start_ms = int(time.time() * 1000)
    delayed = DelayedStore(path, now_ms=start_ms)
    for level, timed in zip(LEVEL, TIMED, strict=True):
        delayed.send("t", [level], DELAY=1)
        delayed.send("t", [timed], TIMER_DELIVER_MS=start_ms + 2_000)
    delayed.run()
    for record in records_of(path):
        if record.body in (LEVEL[1], TIMED[2]):
            overwrite(log_of(path), record.physical_offset, bytes(60))
    delayed.run(start_ms + 60_000)
    assert delayed.counted("t") == Counter(LEVEL + TIMED) - Counter([LEVEL[1], TIMED[2]])
    assert delayed.delays.levels._deliverer.unreadable == 2
    assert "delayed messages cannot be delivered: they are damaged or no longer in the log" in caplog.text
    delayed.stop()
