"""Staged transactions as a state machine, and the effect of a restart and of retention. The test sets the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.delivery import staged
from flintmq.broker.delivery.staged import Range, StageTable, read_note
from flintmq.broker.store.files.file_system import Files
from flintmq.broker.store.tables.store_state import StagedSnapshot, StagedState
from flintmq.protocol.errors import PreparedIncomplete, QueueNotExist, SystemBusy
from flintmq.protocol.storage.delivery import OP_PREPARED_TOPIC, PARKED_TOPIC, PREPARED_TOPIC
from flintmq.protocol.storage.record import Record
from tests.prepared_store import TIMEOUT_MS, PreparedStore
from tests.store_tools import UnsyncedFiles, kill, make_topic, plain, put

TARGET = ("orders", 0)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[PreparedStore]:
    made = PreparedStore(tmp_path / "store")
    yield made
    made.stop()


def parts(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(each.first, each.end) for each in ranges]


class TestTable:
    def test_consecutive_messages_are_one_range(self) -> None:
        known = StageTable()
        for name, first, count in (("a", 0, 10), ("a", 10, 10), ("b", 20, 5), ("a", 30, 10), ("a", 40, 10)):
            known.add_messages(name, first, count, TARGET, 0, 0)
        assert parts(known.stages["a"].ranges) == [(0, 20), (30, 50)]
        assert (known.ranges, known.messages) == (3, 45)
        known.drop_stages(["a", "unknown"])
        assert (known.ranges, known.messages) == (1, 5)

    def test_the_next_note_has_the_end_of_the_previous_one(self) -> None:
        known = StageTable()
        known.add_messages("a", 0, 10, TARGET, 0, 0)
        known.add_messages("a", 10, 10, TARGET, 1, 0)
        known.add_messages("b", 12, 5, TARGET, 2, 0)  # two messages of a's second frame were stored
        known.add_messages("c", 12, 5, TARGET, 3, 0)  # and of b's frame none
        known.cut_last_range(14)
        assert {name: attempt.messages for name, attempt in known.stages.items()} == {"a": 12, "b": 0, "c": 2}

    def test_a_commit_deals_out_its_messages_in_order(self) -> None:
        known = StageTable()
        for name, first, count in (("a", 0, 5), ("b", 5, 1), ("a", 6, 4), ("c", 10, 3)):
            known.add_messages(name, first, count, TARGET, 0, 0)
        commit = known.commit_stages("query", 0, ["c", "a"], 4)
        assert (commit.messages, commit.end) == (12, 13)
        assert parts(commit.ranges_from(0, 100)) == [(10, 13), (0, 5), (6, 10)]
        assert parts(commit.ranges_from(2, 4)) == [(12, 13), (0, 3)]
        assert parts(commit.ranges_from(8, 1)) == [(6, 7)]
        assert parts(commit.ranges_from(12, 5)) == []

    def test_the_needed_log_begins_at_the_oldest_open_stage(self) -> None:
        known = StageTable()
        assert known.needed_offsets(7, 9) == (7, 9)
        known.add_messages("a", 0, 5, TARGET, 1, 0)
        known.add_messages("b", 5, 5, TARGET, 2, 0)
        commit = known.commit_stages("query", 0, ["a"], 3)
        assert known.needed_offsets(4, 10) == (1, 0)
        known.remove_commit(commit)
        assert known.needed_offsets(4, 10) == (2, 5)
        known.drop_stages(["b"])
        assert known.needed_offsets(4, 10) == (4, 10)

    def test_the_series_that_committed_least_recently_is_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(staged, "SCOPES_MAX", 2)
        known = StageTable()
        for series, number in (("a", 5), ("b", 0), ("a", 3), ("c", 1)):
            known.remember_sequence(series, number)
        assert known.sequences == {"a": 5, "c": 1}
        assert not known.is_committed("b", 0)
        assert known.is_committed("a", 4)


class TestClock:
    def test_an_attempt_expires_when_nothing_came_for_long_enough(self, made: PreparedStore) -> None:
        made.prepare("early", "orders", [b"one"])
        made.prepare("busy", "orders", [b"two"])
        made.now_ms += TIMEOUT_MS - 1
        made.prepare("busy", "orders", [b"three"])
        made.run()
        assert set(made.staged.table.stages) == {"early", "busy"}
        assert made.staged.next_due_ms() == made.now_ms + 1
        made.now_ms += 1
        made.run()
        with pytest.raises(PreparedIncomplete, match="stage early does not exist"):
            made.commit(0, {"early": 1})
        made.commit(0, {"busy": 2})
        made.run()
        assert made.counted("orders") == {b"two": 1, b"three": 1}
        assert made.staged.next_due_ms() is None
        assert made.staged.outcomes == {"commit": 1, "abort": 0, "expire": 1}

    def test_they_expire_by_the_brokers_clock_and_not_by_the_systems(self, made: PreparedStore) -> None:
        made.now_ms = 1_000_000_000_000  # years before the system's
        made.prepare("early", "orders", [b"one"])
        failed: list[BaseException] = []

        async def work() -> None:
            made.staged.start(lambda name, error: failed.append(error))
            for _ in range(3):
                await asyncio.sleep(0)
            assert set(made.staged.table.stages) == {"early"}
            made.now_ms += TIMEOUT_MS
            made.staged.wake()
            for _ in range(3):
                await asyncio.sleep(0)
            await made.staged.stop()

        made.loop.run_until_complete(work())
        assert (failed, made.staged.outcomes["expire"]) == ([], 1)

    @pytest.mark.parametrize("clean", [True, False])
    def test_expired_stages_stay_expired_after_a_start(self, made: PreparedStore, clean: bool) -> None:
        made.prepare("early", "orders", [b"one"])
        made.now_ms += TIMEOUT_MS
        made.run()
        if clean:
            made.restart()
        else:
            kill(made.store)
            made.loop.close()
            made.open()
        assert not made.staged.table.stages


class TestLimits:
    def test_frames_that_wait_are_bounded(self, made: PreparedStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(staged, "RANGES_MAX", 4)
        for number in range(2):
            made.prepare("a", "orders", [b"%d" % number])
            made.prepare("b", "orders", [b"%d" % number])
        with pytest.raises(SystemBusy, match="4 frames of staged messages"):
            made.staged.check_new("a")
        made.staged.abort_stages("b")
        made.staged.check_new("a")

    def test_transactions_of_a_series_follow_each_other(self, made: PreparedStore) -> None:
        for name in ("a", "b"):
            made.prepare(name, "orders", [name.encode()])
        made.commit(0, {"a": 1})
        with pytest.raises(SystemBusy, match="transaction 0 of query is being committed"):
            made.commit(1, {"b": 1})
        again = made.commit(0, {"a": 1})
        assert again.already
        assert again.pending is not None
        heard: list[object] = []
        again.pending.when_finished(heard.append)
        made.run()
        assert heard == [None]
        made.commit(1, {"b": 1})

    def test_a_queue_that_is_not_there_keeps_all_back(self, made: PreparedStore) -> None:
        made.prepare("a", "orders", [b"one"], queue=7)
        with pytest.raises(QueueNotExist, match="queue 7 of topic orders"):
            made.commit(0, {"a": 1})


class TestStart:
    def test_a_start_reads_no_more_than_it_needs(self, made: PreparedStore) -> None:
        for number in range(10):
            made.prepare(f"{number}", "orders", [b"%d" % number])
            if number != 6:
                made.commit(number, {f"{number}": 1})
                made.run()
        made.save()
        saved = made.store.staged_state.saved
        note_offset = made.staged.table.stages["6"].note_offset
        assert (saved.next_note, saved.next_message, saved.sequences) == (note_offset, 6, {"query": 9})
        made.restart()
        assert list(made.staged.table.stages) == ["6"]
        assert made.commit(9, {}).already
        made.commit(10, {"6": 1})
        made.run()
        made.restart()
        queues = made.store.queues
        assert made.store.staged_state.saved.next_note == queues.by_topic[OP_PREPARED_TOPIC][0].max_offset
        assert made.store.staged_state.saved.next_message == queues.by_topic[PREPARED_TOPIC][0].max_offset == 10
        assert made.counted("orders") == {b"%d" % number: 1 for number in range(10)}

    @pytest.mark.parametrize("steps", range(6))
    def test_copying_continues_from_its_saved_position(self, made: PreparedStore, steps: int) -> None:
        bodies = [b"%05d" % number + bytes(600) for number in range(3_000)]
        made.prepare("a", "orders", bodies[:1_000], queue=1)
        made.prepare("b", "others", bodies[1_000:2_000])
        made.prepare("a", "orders", bodies[2_000:], queue=2)
        made.dispatch()
        made.commit(0, {"b": 1_000, "a": 2_000})
        for _ in range(steps):
            assert made.step()
        made.store.flush()
        kill(made.store)
        made.loop.close()
        made.open()
        copied = made.staged.pending["query"].commit.position
        assert copied == sum((made.counted("orders") + made.counted("others")).values())
        assert (copied > 0) == (steps > 0)
        made.run()
        assert made.counted("orders") == dict.fromkeys(bodies[:1_000] + bodies[2_000:], 1)
        assert made.counted("others") == dict.fromkeys(bodies[1_000:2_000], 1)
        assert made.commit(0, {}).pending is None

    def test_messages_of_a_topic_that_is_deleted_while_they_are_copied_are_parked(self, made: PreparedStore) -> None:
        made.prepare("a", "orders", [b"one"])
        made.prepare("a", "others", [b"two"])
        made.commit(0, {"a": 2})
        made.store.topics.remove("others")
        made.run()
        assert made.counted("orders") == {b"one": 1}
        assert made.counted(PARKED_TOPIC) == {b"two": 1}

    def test_a_note_that_cannot_be_read_is_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        for body in (b"", b"\xc1", b"\x01", b"\x90", b"\x92\xa4drop\x90", b"\x91\xa4drop", b"\x91\x90"):
            note = read_note(Record(OP_PREPARED_TOPIC.encode(), body, b"", physical_offset=7))
            assert (note is None) == (body != b"\x92\xa4drop\x90")
        assert "physical offset 7" in caplog.text


class TestRetention:
    def test_files_stay_until_the_stages_in_them_have_ended(self, made: PreparedStore) -> None:
        made.prepare("a", "orders", [b"one"])
        topic = make_topic(made.store, "filling")
        while len(made.store.commitlog.queue.files) < 3:
            put(made.store, topic.name, 0, plain(200, size=10_000))
        made.save()
        first = next(iter(made.store.expiry.old_files()))
        assert first.kept_for == "a message that is staged for an open transaction"
        made.commit(0, {"a": 1})
        made.run()
        assert next(iter(made.store.expiry.old_files())).kept_for  # until the note is on disk
        made.save()
        assert not next(iter(made.store.expiry.old_files())).kept_for


class TestState:
    def test_a_snapshot_is_written_once_the_log_is_on_disk(self, tmp_path: Path) -> None:
        state = StagedState(Files(), tmp_path / "prepared.json")
        state.load()
        first, second = StagedSnapshot(1, 2, {"b": 3, "a": 4}), StagedSnapshot(5, 6, {})
        state.offer(100, first)
        state.offer(200, second)
        state.persist(99)
        assert not state.path.exists()
        state.persist(150)
        again = StagedState(UnsyncedFiles(), state.path)
        again.load()
        assert again.saved == first
        assert list(again.saved.sequences) == ["b", "a"]
        state.persist(200)
        again.load()
        assert again.saved == second
