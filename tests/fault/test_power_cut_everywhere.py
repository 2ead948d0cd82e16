"""Power cuts at each moment of a small store's life: before every call of its file layer, after every operation,
and with the log torn at the boundary and in the middle of every record."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from flintmq.broker.store.log.commitlog import CommitLog
from tests.fault.power_cut import AtRandom, Everything, Fate, Nothing, PowerCutFiles, TornLog, Tree, write_tree
from tests.fault.power_cut_life import Life
from tests.fault.small_store import SMALLEST, SmallMessages
from tests.store_tools import kill, reopen, tree

STEPS = 9
SEED = os.environ.get("FLINTMQ_SEED", "20261122")
"""Seed of the choice of the pages that survive."""


class WatchedFiles(PowerCutFiles):
    """Files that call ``look`` before each call."""

    look: Callable[[], None]

    def __init__(self, root: Path) -> None:
        super().__init__(root, lives=0)

    def _live(self) -> None:
        self.look()


class Sweep:
    """A store's life with a power cut at each moment. The test opens, checks and reopens the remains of each cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.messages = SmallMessages()
        self._doing = "nothing"
        self._watching = True
        self._judged: set[bytes] = set()
        """Hashes of the trees that cuts left, with the promises made by then."""
        self._recovered: set[bytes] = set()
        """Hashes of the trees that recoveries left."""
        self.moments = 0
        self.life = Life(self._watch(folder / "store"), folder / "store", SMALLEST)

    @property
    def cuts(self) -> int:
        """Number of cuts that left a new tree, or more promises."""
        return len(self._judged)

    def _watch(self, path: Path) -> WatchedFiles:
        files = WatchedFiles(path)
        files.look = self.look
        return files

    def begin_with(self, left: Tree, name: str) -> None:
        """Cut the power; the next start works on what is left."""
        kill(self.life.store)
        path = self._folder / name
        write_tree(path, left)
        self.life.begin(self._watch(path), path)

    def do(self, name: str, operation: Callable[[], object]) -> None:
        """Run an operation, with a cut before each of its calls, and after it."""
        self._doing = f"in {name}"
        operation()
        self._doing = f"behind {name}"
        self.look()

    def do_unseen(self, operation: Callable[[], object]) -> None:
        """Run an operation without cuts."""
        self._watching = False
        operation()
        self._watching = True

    def look(self) -> None:
        """Cut the power at this moment."""
        self.moments += self._watching
        for fate in (Nothing(), Everything(), AtRandom(random.Random(f"{SEED} {self.moments}"))):
            self._cut(fate, type(fate).__name__)

    def look_at_torn_logs(self) -> None:
        """Cut the power at this moment, with the log on disk up to any record, or into it, with or without the rest."""
        for at in self.life.unacknowledged_offsets():
            for end in (at, at + 60):
                self._cut(TornLog(end, Nothing()), f"the log up to {end}")
                self._cut(TornLog(end, Everything()), f"the log up to {end}, and all else")

    def _cut(self, fate: Fate, name: str) -> None:
        if not self._watching:
            return
        left = self.life.files.remains(fate)
        if not self._is_new(self._judged, (sorted(left.items()), self.life.promises())):
            return
        path = self._folder / "cut"
        write_tree(path, left)
        try:
            self._judge(path)
        except Exception as error:
            error.add_note(f"the power was cut at moment {self.moments}, {self._doing}; survived: {name}")
            raise
        shutil.rmtree(path)

    def _judge(self, path: Path) -> None:
        store, _ = reopen(path, SMALLEST)
        try:
            self.life.check(store)
        finally:
            kill(store)
        recovered = tree(path)
        if self._is_new(self._recovered, recovered):
            store, report = reopen(path, SMALLEST)
            kill(store)
            assert (report.truncated_bytes, report.rebuilt) == (0, [])
            assert tree(path) == recovered

    @staticmethod
    def _is_new(seen: set[bytes], what: object) -> bool:
        digest = hashlib.sha256(repr(what).encode()).digest()
        if digest in seen:
            return False
        seen.add(digest)
        return True


def work(sweep: Sweep) -> None:
    """Create a store and append dozens of messages."""
    life = sweep.life
    sweep.do("open", life.store.open)
    for step in range(STEPS):
        for queue in (0, 1) if step % 3 else (0,):
            topic, count = ("orders", "orders", "bills")[(step + queue) % 3], step % 4 + 1
            frame = sweep.messages.take(count, queue)
            sweep.do(f"append {topic} {queue}", lambda: life.append(topic, queue, frame))  # noqa: B023 - called at once
        if step % 2:
            sweep.do("dispatch before the flush", life.dispatch)
        if step % 4 == 1:
            sweep.do("sync_derived before the flush", life.store.sync_derived)
        sweep.look_at_torn_logs()
        sweep.do("flush", life.flush)
        sweep.do("dispatch", life.dispatch)
        match step:
            case 2 | 6:
                sweep.do("sync_derived", life.store.sync_derived)
            case 3:
                sweep.do("commit", lambda: life.commit("orders", 0))
                sweep.do("prepare_ahead", life.store.commitlog.prepare_ahead)
                sweep.do("prepare the index", life.store.index.prepare)
            case 5:
                sweep.do("delete", lambda: life.delete("bills"))


def test_after_any_power_cut_acknowledged_and_served_messages_are_there(memory_path: Path) -> None:
    sweep = Sweep(memory_path)
    work(sweep)
    store = sweep.life.store
    assert store.write_offset > SMALLEST.commitlog_file_bytes
    assert len(list((store.path / "index").iterdir())) > 1
    assert any(queue.size()[0] > 1 for queue in store.queues)
    sweep.life.append("orders", 0, sweep.messages.take(3, 0))
    sweep.do("expire", sweep.life.expire)
    assert store.min_physical_offset > 0
    assert sweep.cuts > sweep.moments > 200
    kill(store)


def test_no_power_cut_in_a_start_with_much_to_recover_or_in_a_stop_loses_anything(memory_path: Path) -> None:
    sweep = Sweep(memory_path)
    life = sweep.life
    sweep.do_unseen(lambda: work(sweep))
    sweep.do_unseen(lambda: life.append("orders", 0, sweep.messages.take(3, 0)))
    fates = (TornLog(life.store.write_offset - 100, Nothing()), Everything(), AtRandom(random.Random(SEED)))
    for number, left in enumerate([life.files.remains(fate) for fate in fates]):
        sweep.begin_with(left, f"store-{number}")
        sweep.do(f"recovery {number}", life.store.open)
        sweep.do(f"close {number}", life.store.close)
    assert sweep.moments > sweep.cuts > 100


def test_after_any_power_cut_while_retention_deletes_undispatched_files_offsets_continue(memory_path: Path) -> None:
    """Retention deletes all messages of one queue whose units are not on disk yet."""
    sweep = Sweep(memory_path)
    life = sweep.life
    sweep.do_unseen(life.store.open)
    sweep.do_unseen(lambda: life.append("bills", 0, sweep.messages.take(4, 0)))
    while life.store.write_offset < SMALLEST.commitlog_file_bytes:
        sweep.do_unseen(lambda: life.append("orders", 1, sweep.messages.take(5, 1)))
    sweep.do_unseen(life.flush)
    sweep.do_unseen(life.dispatch)
    sweep.do("expire", life.expire)
    assert life.store.min_physical_offset > 0
    assert life.served["bills", 0] == life.store.queue_reads.min_offset("bills", 0, hot=False) == 4
    kill(life.store)


# The sweep itself: it finds the losses of a broken flush, or of a store that serves messages too early.


def test_a_flush_that_does_nothing_is_found(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(log: CommitLog) -> int:
        log.flushed_offset = log.write_offset
        return log.flushed_offset

    monkeypatch.setattr(CommitLog, "flush", claim)
    with pytest.raises(AssertionError, match="acknowledged messages of orders 0 are lost"):
        work(Sweep(memory_path))


def test_messages_that_are_served_before_they_are_on_disk_are_found(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "dispatchable_offset", property(lambda store: store.write_offset))
    with pytest.raises(AssertionError, match="was visible up to"):
        work(Sweep(memory_path))
