"""Damage of every shape in the middle of a log: the messages that it hits are lost and reported, and no others."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from flintmq.broker.store import MessageStore, StoreSettings
from flintmq.broker.tools.commands import repair
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.errors import MessageDamaged
from flintmq.protocol.storage.layout import MAGIC_BLANK, RECORD
from flintmq.protocol.storage.record import Record
from tests.conftest import BrokerFactory, ConnectionFactory
from tests.fault.damaged_logs import (
    CHECKSUMMED,
    FILE_BYTES,
    FIRST,
    SECOND,
    THIRD,
    both_settings,
    flip,
    two_topics,
    undispatched,
)
from tests.store_tools import (
    Message,
    Sent,
    assert_contained,
    assert_holds,
    assert_only_these_are_left,
    kill,
    lost_of,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
    restore,
    save,
)
from tests.tools_runs import verified

PAGE_BYTES = 4096


def hit_by(sent: Sequence[Sent], begin: int, end: int, log_end: int) -> list[Sent]:
    """Return the messages whose records have a byte in ``[begin, end)``."""
    behind = [each.physical_offset for each in sent[1:]] + [log_end]
    return [each for each, stop in zip(sent, behind, strict=True) if each.physical_offset < end and stop > begin]


# Shapes of damage.


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
@pytest.mark.parametrize("content", ["zeros", "ones", "random"])
@both_settings
def test_a_lost_page_costs_the_messages_on_it(
    tmp_path: Path, known: str, content: str, settings: StoreSettings
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    page = {"zeros": bytes(PAGE_BYTES), "ones": b"\xff" * PAGE_BYTES, "random": random.Random(4).randbytes(PAGE_BYTES)}
    begin = sent[30].physical_offset + 92
    overwrite(path / "commitlog" / FIRST, begin, page[content])
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, hit_by(sent, begin, begin + PAGE_BYTES, 1 << 40), settings=settings)


def test_zeros_across_the_end_of_a_record_cost_that_record_too(tmp_path: Path) -> None:
    """No checksum covers its properties, but properties never end in zeros."""
    path = tmp_path / "store"
    sent = two_topics(path)
    overwrite(path / "commitlog" / FIRST, sent[30].physical_offset - 3, bytes(PAGE_BYTES))
    assert_contained(
        path, sent, hit_by(sent, sent[29].physical_offset, sent[30].physical_offset + PAGE_BYTES - 3, 1 << 40)
    )


def test_each_of_many_holes_is_contained_separately(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    lost = [sent[number] for number in (0, 1, 7, 20, 22, 23, len(sent) - 1)]
    for each in lost:
        flip(path, each.physical_offset + 95)
    assert_contained(path, sent, lost)


@both_settings
def test_consecutive_holes_at_the_logs_beginning_keep_the_store_times_in_order(
    tmp_path: Path, settings: StoreSettings
) -> None:
    """No sound record comes before the first hole or directly after it; searches by time use its tombstone."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    newest_ms = sent[-1].store_ms
    lost = sent[:3]
    for each in lost:
        flip(path, each.physical_offset + 95)
    assert_contained(path, sent, lost, settings=settings)
    holes = json.loads((path / "flintmq" / "quarantine" / "index.json").read_text())["holes"]
    assert [hole["storeTimestamp"] for hole in holes] == [sent[3].store_ms]
    assert sent[3].store_ms < newest_ms
    assert verified(path).findings.total == 0


def test_consecutive_lost_messages_of_all_sizes_are_named(tmp_path: Path) -> None:
    """They are known only by the gap after them; the last one's bytes have no room for the tombstones of all."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(2))
    lost = put(store, "orders", 0, plain(3, size=500, first=2)) + put(store, "orders", 0, [Message(b"x")])
    sent += lost + put(store, "orders", 0, plain(3, first=5))
    store.close()
    for each in lost:
        flip(path, each.physical_offset + RECORD.size)
    undispatched(path)
    assert_contained(path, sent, lost)


def test_a_file_of_zeros_costs_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    assert (path / "commitlog" / THIRD).exists()
    (path / "commitlog" / SECOND).write_bytes(bytes(FILE_BYTES))
    assert_contained(path, sent, [each for each in sent if FILE_BYTES <= each.physical_offset < 2 * FILE_BYTES])


def test_a_damaged_blank_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    last = [each for each in sent if each.physical_offset < FILE_BYTES][-1]
    (size,) = struct.unpack_from(">i", (path / "commitlog" / FIRST).read_bytes(), last.physical_offset)
    overwrite(path / "commitlog" / FIRST, last.physical_offset + size, b"\x11" * 8)
    assert_contained(path, sent, [])


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
def test_a_record_that_became_a_blank_hides_no_later_record(tmp_path: Path, known: str) -> None:
    """A blank fills its file to the end; one with another length is damage."""
    path = tmp_path / "store"
    sent = two_topics(path)
    overwrite(path / "commitlog" / FIRST, sent[9].physical_offset + 4, MAGIC_BLANK.to_bytes(4, "big", signed=True))
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[9]])


def all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def the_queue(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders" / "0")


def its_unit(path: Path) -> None:
    overwrite(path / "consumequeue" / "orders" / "0" / FIRST, 20 * 5, bytes(20))


@pytest.mark.parametrize("damage", [all_queues, the_queue, its_unit])
@both_settings
def test_lost_messages_are_named_even_if_their_queues_are_lost_too(
    tmp_path: Path, damage: Callable[[Path], None], settings: StoreSettings
) -> None:
    """The checkpoint says that everything was dispatched, but the units that say what are missing or wrong."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    lost = next(each for each in sent if (each.topic, each.queue, each.queue_offset) == ("orders", 0, 5))
    flip(path, lost.physical_offset + 95)
    damage(path)
    assert_contained(path, sent, [lost], settings=settings)
    assert verified(path).findings.total == 0


def test_a_message_of_a_large_hole_is_named_although_its_own_unit_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    first, last = (
        next(each for each in sent if (each.topic, each.queue, each.queue_offset) == ("orders", 0, queue_offset))
        for queue_offset in (4, 6)
    )
    begin, end = first.physical_offset, last.physical_offset + 120
    overwrite(path / "commitlog" / FIRST, begin, bytes(end - begin))
    overwrite(path / "consumequeue" / "orders" / "0" / FIRST, 20 * 5, bytes(20))
    assert_contained(path, sent, hit_by(sent, begin, end, sent[-1].physical_offset + 1000))
    assert verified(path).findings.total == 0


def test_sound_messages_without_units_stay_if_units_of_other_queues_follow(tmp_path: Path) -> None:
    """Two consecutive messages are damaged, and the queue of both is lost: by the units of other queues alone, the hole
    would end after the sound messages that follow."""
    path = tmp_path / "store"
    sent = two_topics(path)
    queues = [(each.topic, each.queue) for each in sent]
    begin = next(number for number in range(len(sent)) if queues[number : number + 4] == [("orders", 0)] * 4)
    lost = sent[begin : begin + 2]
    for each in lost:
        overwrite(path / "commitlog" / FIRST, each.physical_offset, bytes(20))
    the_queue(path)
    assert_contained(path, sent, lost)


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_costs_only_the_messages_it_hits(tmp_path: Path, seed: int) -> None:
    """Zeros and random bytes anywhere that a checksum covers, in a log of three files."""
    source = random.Random(seed)
    path = tmp_path / "store"
    sent = two_topics(path, size=150_000, frames=40)
    lost: list[Sent] = []
    for _ in range(source.randrange(1, 5)):
        victim = source.choice(sent)
        begin = victim.physical_offset + source.choice([0, 2, 30, 95])
        blob = source.choice([bytes(64), source.randbytes(30), bytes(300_000)])
        begin_file, end_file = begin // FILE_BYTES * FILE_BYTES, begin // FILE_BYTES * FILE_BYTES + FILE_BYTES
        blob = blob[: end_file - begin]
        overwrite(path / "commitlog" / f"{begin_file:020d}", begin - begin_file, blob)
        same_file = [each for each in sent if each.physical_offset // FILE_BYTES * FILE_BYTES == begin_file]
        lost += hit_by(same_file, begin, begin + len(blob), end_file)
    if source.random() < 0.5:
        (path / "abort").touch()
    assert_contained(path, sent, [each for each in sent if each in lost])


# Every bit of a record's head.

UNCHECKED = {
    "queue_id",
    "flag",
    "queue_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
}
"""Fields that no checksum covers without ``__CRC32#``."""


def test_a_checksum_over_the_whole_record_detects_every_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, CHECKSUMMED)
    sent = put(store, "orders", 0, plain(3, size=10))
    store.close()
    saved = save(path)
    others = [sent[0], sent[2]]
    for at in range(sent[1].physical_offset, sent[2].physical_offset):
        restore(path, saved)
        flip(path, at, at % 8)
        store, report = reopen(path, CHECKSUMMED)
        assert lost_of(report) == {("orders", 0, 1)}, at
        assert_only_these_are_left(store, others, [sent[1]])
        kill(store)
        assert reopen_is_quiet(path)


def reopen_is_quiet(path: Path) -> bool:
    store, report = reopen(path, CHECKSUMMED)
    kill(store)
    return not report.quarantined and not report.rebuilt


@pytest.mark.parametrize("field", list(RECORD.at))
def test_a_flipped_bit_anywhere_in_a_head_leaves_the_other_messages(tmp_path: Path, field: str) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(3))
    sent += put(store, "bills", 0, plain(2))
    store.close()
    saved = save(path)
    width = next(each.width for each in RECORD.fields if each.name == field)
    for bit in range(8 * width):
        restore(path, saved)
        flip(path, sent[1].physical_offset + RECORD.at[field] + bit // 8, bit % 8)
        store, report = reopen(path)
        others = [each for each in sent if each is not sent[1]]
        if field in UNCHECKED and not report.quarantined:
            records = {record.physical_offset for record in pull_around(store, others)}
            assert records >= {each.physical_offset for each in others}, (field, bit)
        else:
            assert lost_of(report) == {("orders", 0, 1)}, (field, bit)
            assert_only_these_are_left(store, others, [sent[1]])
        kill(store)


def pull_around(store: MessageStore, sent: Sequence[Sent]) -> list[Record]:
    from tests.store_tools import matches, pull_all

    records = [record for queue in {(each.topic, each.queue) for each in sent} for record in pull_all(store, *queue)]
    by_offset = {record.physical_offset: record for record in records}
    assert all(matches(by_offset[each.physical_offset], each) for each in sent)
    return records


def test_a_hole_with_unknown_messages_is_filled_with_a_record_of_no_queue(tmp_path: Path) -> None:
    """The hole was the last message, which only the log knew."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5))
    store.close()
    shutil.rmtree(path / "flintmq")
    undispatched(path)
    flip(path, sent[4].physical_offset + 100)
    store, report = reopen(path)
    assert [each.lost for each in report.quarantined] == [()]
    assert_holds(store, sent[:4])
    sent[4:] = put(store, "orders", 0, plain(2, first=50))
    kill(store)
    for _ in range(2):
        store, report = reopen(path)
        assert (report.quarantined, report.rebuilt) == ([], [])
        assert_holds(store, sent)
        store.close()
    assert verified(path).findings.total == 0


# Damage that no start has checked.


def test_a_pull_returns_the_messages_before_damage_and_then_names_it(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    """The damage is in a file that no start checked; no consumer passes it without an error."""
    running = broker(settings={"store.verify_at_start_bytes": 0})
    connection = connect(running)
    connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": "orders", "queues": 1}).raise_for_error()
    connection.produce("orders", *(b"%08d" % number for number in range(20)), queue=0).raise_for_error()
    at = struct.unpack_from(">i", (running.store / "commitlog" / FIRST).read_bytes(), 0)[0] * 7
    connection.close()
    assert running.stop() == 0
    overwrite(running.store / "commitlog" / FIRST, at, bytes(60))
    again = broker(store=running.store, settings={"store.verify_at_start_bytes": 0})
    connection = connect(again)
    answer = connection.pull("orders", 0, 0).raise_for_error()
    assert (answer.fields["count"], answer.fields["next_offset"]) == (7, 7)
    with pytest.raises(
        MessageDamaged, match=r"message 7 of queue 0 of 'orders' is damaged.*repair --apply.*offset 8"
    ) as raised:
        connection.pull("orders", 0, 7).raise_for_error()
    assert raised.value.queue_offset == 7
    assert connection.pull("orders", 0, 8).raise_for_error().fields["count"] == 12
    connection.close()
    assert again.stop() == 0
    repaired = CliRunner().invoke(repair, [str(running.store), "--apply"])
    assert repaired.exit_code == 0, repaired.output
    third = broker(store=running.store)
    assert any(line.startswith("damage: 1 hole of the log") for line in third.output)
    connection = connect(third)
    answer = connection.pull("orders", 0, 0).raise_for_error()
    assert (answer.fields["count"], answer.fields["next_offset"]) == (19, 20)
    assert (answer.fields["lost"], answer.fields["lost_from"]) == (1, 7)
    assert connection.pull("orders", 0, 0, tags="other").fields["lost"] == 1  # whichever it chooses
    assert "lost" not in connection.pull("orders", 0, 8).fields
    info = connection.runtime_info()
    assert (info["quarantined_holes"], info["lost_messages"]) == (1, 1)
