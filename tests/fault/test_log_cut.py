"""A log that is cut: afterwards the store is the one that never had the records, wherever the start died before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flintmq.broker.store import CorruptFile
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import (
    Message,
    Sent,
    append,
    assert_holds,
    copy_store,
    dispatch,
    find,
    index_files,
    kill,
    make_topic,
    open_store,
    plain,
    put,
    queue_files,
    reopen,
)

LARGE = [Message(bytes([number]) * 400_000, keys=(f"large-{number}",)) for number in range(30)]
"""Messages that take three files of the log."""


def diverge(path: Path) -> tuple[Path, int, int, list[Sent]]:
    """Make a store at ``path`` and one beside it that lacks its last records.

    Return the other's path, where it ends, where the first ends, and the messages of both.
    """
    store = open_store(path)
    sent = put(store, "orders", 0, plain(100)) + put(store, "orders", 1, LARGE[:5])
    to = store.write_offset
    store.close()
    twin = copy_store(path, path.with_name("twin"))
    store = open_store(path)
    put(store, "orders", 0, plain(50, first=1000))
    put(store, "orders", 1, LARGE[5:])
    put(store, "orders", 3, plain(2, first=2000))
    store.consumer_offsets.commit("group", "orders", 0, 130)
    store.consumer_offsets.persist()
    append(store, "orders", 0, plain(5, first=3000))
    end = store.write_offset
    store.replica.cut.request(to, end)
    kill(store)
    return twin, to, end, sent


def assert_is_twin(path: Path, twin: Path, to: int, kept: list[Sent]) -> None:
    """Check that both stores hold the same and continue in the same way."""
    store, other = open_store(path), open_store(twin)
    assert store.write_offset == other.write_offset == to
    assert not list((path / "flintmq").glob("cut.json"))
    assert store.queue_reads.end_offset("orders", 0) == 100
    assert find(store, "orders", "key-1000") == find(store, "orders", "large-7") == []
    sent = put(store, "orders", 0, plain(30, first=100)) + put(store, "orders", 3, plain(1))
    assert [each.queue_offset for each in sent] == [*range(100, 130), 0]
    assert [each.physical_offset for each in put(other, "orders", 0, plain(30, first=100))] == [
        each.physical_offset for each in sent[:30]
    ]
    put(other, "orders", 3, plain(1))
    assert_holds(store, kept + sent)
    store.close()
    other.close()
    assert {name: data.rstrip(b"\0") for name, data in queue_files(path).items() if data.strip(b"\0")} == {
        name: data.rstrip(b"\0") for name, data in queue_files(twin).items() if data.strip(b"\0")
    }
    assert len(index_files(path)) == len(index_files(twin))


def test_a_cut_store_is_as_if_it_never_had_the_records(tmp_path: Path) -> None:
    twin, to, end, sent = diverge(tmp_path / "store")
    last = (tmp_path / "store/commitlog/00000000000004194304").read_bytes()
    store, report = reopen(tmp_path / "store")
    assert (report.quarantined, report.damage) == ([], "")
    assert store.consumer_offsets.committed_of("group", "orders", 0) == 100
    kept = (tmp_path / f"store/flintmq/diverged/{to:020d}-{end:020d}").read_bytes()
    assert len(kept) == end - to
    assert last[:1000] in kept
    kill(store)
    assert_is_twin(tmp_path / "store", twin, to, sent)


def test_a_cut_may_die_at_every_change(tmp_path: Path) -> None:
    twin, to, end, sent = diverge(tmp_path / "store")
    deaths = 0
    while True:
        path = copy_store(tmp_path / "store", tmp_path / f"{deaths}/store")
        files = DyingFiles(deaths, half=bool(deaths % 2))
        try:
            kill(open_store(path, files=files))
        except Died:
            deaths += 1
        if not files.dead:
            break
        assert_is_twin(path, copy_store(twin, path.with_name("twin")), to, sent)
        assert len((path / f"flintmq/diverged/{to:020d}-{end:020d}").read_bytes()) == end - to
        shutil.rmtree(path.parent)
    assert deaths > 40


def test_a_cut_at_the_end_keeps_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sent = put(store, "orders", 0, plain(20))
    store.replica.cut.request(store.write_offset, store.write_offset)
    kill(store)
    store = open_store(tmp_path)
    assert_holds(store, sent)
    assert not (tmp_path / "flintmq/diverged").exists()


def test_a_cut_of_everything_leaves_an_empty_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "orders", 0, LARGE)
    store.replica.cut.request(0, store.write_offset)
    store.close()
    store = open_store(tmp_path)
    assert store.write_offset == 0
    sent = put(store, "orders", 0, plain(3))
    assert [each.queue_offset for each in sent] == [0, 1, 2]
    assert_holds(store, sent)


def test_a_cut_store_takes_the_other_log(tmp_path: Path) -> None:
    """A primary with a tail of its own becomes a follower: it cuts, and copies what it lacks."""
    twin, *_ = diverge(tmp_path / "store")
    primary, follower = open_store(twin), open_store(tmp_path / "store")
    make_topic(primary, "orders")
    put(primary, "orders", 0, plain(40, first=500))
    while (offset := follower.write_offset) < primary.write_offset:
        end = primary.log_copy.piece_end(offset, primary.write_offset)
        follower.log_copy.append(offset, primary.log_copy.read(offset, end))
    dispatch(follower)
    assert follower.queue_reads.end_offset("orders", 0) == 140
    assert len(find(follower, "orders", "key-510")) == 1
    follower.close()
    follower, report = reopen(tmp_path / "store")
    assert (report.quarantined, report.truncated_bytes, report.rebuilt) == ([], 0, [])


@pytest.mark.parametrize(
    "content", ["", "{}", '{"to": 5}', '{"to": -1, "end": 5}', '{"to": 7, "end": 5}', '{"to": "1"}']
)
def test_a_damaged_request_refuses_the_start(tmp_path: Path, content: str) -> None:
    store = open_store(tmp_path)
    sent = put(store, "orders", 0, plain(3))
    store.close()
    (tmp_path / "flintmq/cut.json").write_text(content)
    with pytest.raises(CorruptFile, match="says where to cut the log, and is damaged"):
        open_store(tmp_path)
    (tmp_path / "flintmq/cut.json").unlink()
    assert_holds(open_store(tmp_path), sent)
