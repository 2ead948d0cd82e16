"""The table of topics and its journal: a change writes only its own bytes, and no confirmed change is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flintmq.broker.store import TopicConfig
from flintmq.broker.store.errors import CorruptFile
from flintmq.broker.store.tables.topic_table import TopicTable
from tests.store_tools import UnsyncedFiles, kill, make_topic, open_store


class CountingFiles(UnsyncedFiles):
    """Counts the written bytes, and fails when told to."""

    def __init__(self) -> None:
        self.written = 0
        self.failing = False

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if self.failing:
            super().write(fd, bytes(data)[: len(data) // 2], at)
            raise OSError(5, "the disk failed")
        self.written += len(data)
        super().write(fd, data, at)


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topics.json"


def opened(files: CountingFiles, path: Path) -> TopicTable:
    table = TopicTable(files, path)
    table.load()
    return table


def made(files: CountingFiles, path: Path, *names: str) -> TopicTable:
    """Return a table that was written with the first of these topics and has the others in its journal."""
    table = opened(files, path)
    for name in names:
        table.put(TopicConfig(name))
        table.save()
    return table


def names(table: TopicTable) -> set[str]:
    return {config.name for config in table}


def journal_of(path: Path) -> Path:
    return path.with_name("topics.json.journal")


def test_written_bytes_grow_linearly_with_the_number_of_topics(files: CountingFiles, path: Path) -> None:
    table = opened(files, path)
    written = {}
    for number in range(4_000):
        table.put(TopicConfig(f"topic-{number}"))
        table.save()
        written[number + 1] = files.written
    # Writing the whole table each time would cost 4 times as much for twice the topics, and 700 MB in all.
    assert written[4_000] < 3 * written[2_000]
    assert written[4_000] < 20_000_000
    assert names(opened(files, path)) == {f"topic-{number}" for number in range(4_000)}


def test_changes_and_removals_are_there_after_a_crash(files: CountingFiles, path: Path) -> None:
    table = made(files, path, "first", "second", "third")
    before = path.read_bytes()
    table.remove("first")
    table.put(TopicConfig("second", 8, 8, perm=4))
    table.save()
    table.put(TopicConfig("not-saved"))
    assert path.read_bytes() == before
    again = opened(files, path)
    assert names(again) == {"second", "third"}
    second = again.get("second")
    assert second is not None
    assert (second.read_queues, second.perm) == (8, 4)
    assert again.dirty


def test_the_whole_table_is_rocketmqs_and_leaves_no_journal(files: CountingFiles, path: Path) -> None:
    table = made(files, path, "first", "second", "third")
    assert journal_of(path).exists()
    assert table.dirty
    table.persist()
    table.save()  # nothing is left to do
    assert not table.dirty
    assert not journal_of(path).exists()
    assert json.loads(path.read_text())["topicConfigTable"].keys() == {"first", "second", "third"}


def test_a_line_that_a_crash_cut_off_was_not_confirmed(files: CountingFiles, path: Path) -> None:
    made(files, path, "first", "second", "third")
    journal = journal_of(path)
    whole = journal.read_bytes()
    for length in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        journal.write_bytes(whole[:length])
        again = opened(files, path)
        assert names(again) == {"first", "second"}
        assert again.problem == ""


def test_a_damaged_line_costs_only_itself_and_is_logged(files: CountingFiles, path: Path) -> None:
    made(files, path, "first", "second", "third", "fourth")
    journal = journal_of(path)
    for at in range(len(journal.read_bytes())):
        blob = bytearray(journal.read_bytes())
        kept = bytes(blob)
        blob[at] ^= 4
        journal.write_bytes(blob)
        again = opened(files, path)
        assert names(again) <= {"first", "second", "third", "fourth"}
        assert len(names(again)) >= (3 if blob[at] != 10 and kept[at] != 10 else 2), at
        assert again.problem or len(names(again)) == 4 or kept[at] == 10, at
        journal.write_bytes(kept)


def test_an_unwritten_change_that_was_undone_stays_undone(files: CountingFiles, path: Path) -> None:
    table = made(files, path, "first", "second")
    table.put(TopicConfig("third"))
    files.failing = True
    with pytest.raises(OSError, match="the disk failed"):
        table.save()
    files.failing = False
    table.remove("third")
    table.put(TopicConfig("fourth"))
    table.save()
    assert names(opened(files, path)) == {"first", "second", "fourth"}


def test_topics_unknown_to_rocketmq_are_added_to_its_table(files: CountingFiles, path: Path) -> None:
    """After a crash RocketMQ reads the table without its journal, and rewrites it."""
    table = made(files, path, "first", "second")
    table.remove("first")
    table.save()
    content = json.loads(path.read_text())
    del content["flintmqCrc32"]
    content["dataVersion"]["counter"] += 1
    content["topicConfigTable"]["second"] = content["topicConfigTable"]["first"] | {"topicName": "second", "perm": 4}
    path.write_text(json.dumps(content))
    again = opened(files, path)
    assert names(again) == {"first", "second"}
    second = again.get("second")
    assert second is not None
    assert second.perm == 4, "RocketMQ's is newer"


def test_a_journal_that_was_folded_already_changes_nothing(files: CountingFiles, path: Path) -> None:
    """A crash between writing the table and removing its journal."""
    table = made(files, path, "first", "second")
    table.remove("second")
    table.save()
    old = journal_of(path).read_bytes()
    table.persist()
    journal_of(path).write_bytes(old)
    assert names(opened(files, path)) == {"first"}


def test_the_journal_adds_to_an_older_table_that_is_taken_for_a_damaged_one(files: CountingFiles, path: Path) -> None:
    table = made(files, path, "first")
    older = path.read_bytes()
    table.put(TopicConfig("second"))
    table.persist()
    table.put(TopicConfig("third"))
    table.save()
    path.write_text("{]")
    path.with_name("topics.json.bak").write_bytes(older)
    assert names(opened(files, path)) == {"first", "third"}, "the .bak is from before the second"
    path.with_name("topics.json.bak").write_text("{]")
    with pytest.raises(CorruptFile):
        opened(files, path)


@pytest.mark.parametrize("content", [b"{damaged", b"", None], ids=["damaged", "empty", "missing"])
def test_a_table_that_is_damaged_costs_no_change_that_was_confirmed(
    files: CountingFiles, path: Path, content: bytes | None
) -> None:
    table = made(files, path, *(f"early-{number}" for number in range(10)))
    table.persist()
    for number in range(10):
        table.put(TopicConfig(f"late-{number}", perm=4, retention_hours=24))
        table.save()
    table.remove("early-3")
    table.save()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    found = opened(files, path)
    assert set(found) == set(table)
    assert "early-3" not in names(found)


def test_a_change_while_another_is_written_is_not_taken_for_saved(
    files: CountingFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(files, path, "first", "second")
    table.put(TopicConfig("third"))
    write = files.write

    def change_meanwhile(fd: int, data: bytes | memoryview, at: int) -> None:
        table.put(TopicConfig("third", 9, 9))
        write(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", change_meanwhile)
        table.save()
    table.save()
    third = opened(files, path).get("third")
    assert third is not None
    assert third.read_queues == 9


def test_a_store_folds_the_journal_when_it_is_opened_and_when_it_is_closed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    make_topic(store, "first")
    for name in ("second", "third"):
        store.topics.put(TopicConfig(name))
        store.topics.save()
    journal = journal_of(tmp_path / "config" / "topics.json")
    assert journal.exists()
    kill(store)
    store = open_store(tmp_path)
    assert not journal.exists()
    table = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert table["topicConfigTable"].keys() == {"first", "second", "third"}
    store.topics.remove("third")
    store.topics.save()
    store.topics.put(TopicConfig("fourth"))
    store.topics.save()
    assert journal.exists()
    store.close()
    assert not journal.exists()
    table = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert table["topicConfigTable"].keys() == {"first", "second", "fourth"}
