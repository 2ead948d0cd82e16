"""The journal of popped messages on disk: damage, failed writes, and a new beginning."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flintmq.broker.delivery.pop import table
from flintmq.broker.delivery.pop.table import QueueKey, Take
from flintmq.broker.store import Files, PopEntry
from flintmq.broker.store.tables.pop_state import PopJournal

KEY = QueueKey("g", "t", 0)
TAKE = Take(1_000, 30_000)
TAKEN = table.taken(KEY, 0, 10, range(10), TAKE, 1_000)
SETTLED = table.settled(KEY, (0, 1, 5))


class FullDisk(Files):
    """A disk that becomes full, and (``stuck``) removes no file any more."""

    stuck = False

    full = False

    def unlink(self, path: Path) -> None:
        if self.stuck:
            raise OSError(errno.EIO, "stuck")
        super().unlink(path)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        super().write(fd, data, at)


def opened(folder: Path, *entries: PopEntry, files: Files | None = None) -> PopJournal:
    made = PopJournal(files or Files(), folder / "pop.json")
    made.begin()
    made.append(entries)
    return made


def open_offsets(entries: list[PopEntry]) -> list[int]:
    states = table.replayed(entries)
    return list(states[KEY].open) if KEY in states else []


def test_a_journal_says_what_is_in_flight(tmp_path: Path) -> None:
    opened(tmp_path, TAKEN, SETTLED).close()
    assert open_offsets(PopJournal(Files(), tmp_path / "pop.json").read()) == [2, 3, 4, 6, 7, 8, 9]


def test_there_may_be_no_journal(tmp_path: Path) -> None:
    assert PopJournal(Files(), tmp_path / "pop.json").read() == []


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    made = opened(tmp_path, TAKEN, SETTLED)
    made.close()
    made.path.write_bytes(made.path.read_bytes()[:-cut])
    assert made.read() == [TAKEN]


def test_nothing_after_a_damaged_line_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = opened(tmp_path, TAKEN, SETTLED, table.settled(KEY, (2,)))
    made.close()
    lines = made.path.read_bytes().splitlines(keepends=True)
    made.path.write_bytes(lines[0] + lines[1].replace(b"5", b"6", 1) + lines[2])
    assert made.read() == [TAKEN]
    assert "line 2 of 3 is damaged" in caplog.text


def test_a_journal_that_begins_again_says_the_same_and_goes_on(tmp_path: Path) -> None:
    made = opened(tmp_path, TAKEN, SETTLED)
    state = table.replayed(made.read())[KEY]
    made.everything = lambda: [[table.QUEUE, *KEY, state.committed, state.settled(), [[6, 8, 1_000, 31_000]]]]
    made.begin_again()
    made.append([table.settled(KEY, (6,))])
    assert open_offsets(made.read()) == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["pop.json.journal"]


def test_a_full_disk_ends_the_journal_until_it_begins_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FullDisk()
    made = opened(tmp_path, TAKEN, files=files)
    files.full = True
    made.append([SETTLED])
    assert not made.is_open
    assert "a crash would repeat what is in flight" in caplog.text
    files.full = False
    made.append([SETTLED])
    assert made.read() == [], "neither what is before the gap counts, nor what follows"
    made.everything = lambda: [TAKEN]
    made.begin_again()
    made.append([SETTLED])
    assert made.read() == [TAKEN, SETTLED]


def test_a_journal_that_can_neither_be_written_nor_removed_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FullDisk()
    made = opened(tmp_path, TAKEN, files=files)
    files.full = files.stuck = True
    made.append([SETTLED])
    assert not made.is_open
    assert "cannot be removed: do so before the next start" in caplog.text


def test_a_newer_committed_offset_settles_what_is_before_it(tmp_path: Path) -> None:
    state = table.replayed([TAKEN, SETTLED])[KEY]
    state.advance(1)
    assert (state.committed, list(state.open)) == (2, [2, 3, 4, 6, 7, 8, 9])
    state.advance(7)
    assert (state.committed, list(state.open), state.settled()) == (7, [7, 8, 9], [])
    state.advance(20)
    assert (state.committed, state.is_idle) == (20, True)


def test_a_damaged_journal_of_another_store_replaces_nothing(tmp_path: Path) -> None:
    made = opened(tmp_path, TAKEN)
    lines = made.path.read_bytes()
    with pytest.raises(ValueError, match="line 2 is damaged"):
        made.replace(lines + lines[:-2])
    assert made.read() == [TAKEN]
    made.replace(lines * 2)
    assert made.read() == [TAKEN, TAKEN]


def test_what_is_beyond_the_end_of_a_queue_is_forgotten(tmp_path: Path) -> None:
    state = table.replayed([TAKEN, SETTLED])[KEY]
    state.clip(4)
    assert (list(state.open), state.next_offset, state.settled()) == ([2, 3], 4, [])
    state.clip(1)
    assert (state.committed, state.settled()) == (1, [])
