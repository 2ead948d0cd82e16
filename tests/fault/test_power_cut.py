"""Power cuts at random moments: acknowledged messages are there after a sync, and only ends of the rest are lost.

Here at random, in stores that grow; ``test_power_cut_everywhere.py`` cuts a small one at each of its moments.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from tests.fault.power_cut import AtRandom, PowerCut, PowerCutFiles, tiny
from tests.fault.power_cut_life import EVERY_KEY, QUEUES, Life
from tests.store_tools import HOST, Message, kill, open_store, pull_all

TOPICS = ("orders", "bills", "%x|y")


class RandomLife(Life):
    """A store that does random operations until the power cut."""

    def __init__(self, path: Path, source: random.Random, policy: str, lives: int) -> None:
        self._source = source
        self._number = 0
        super().__init__(PowerCutFiles(path, lives), path, tiny(policy))

    def live(self) -> None:
        """Run until the power cut, which raises ``PowerCut``."""
        self.store.open()
        while True:
            self._source.choice(
                [self._append] * 12
                + [self.flush] * 5
                + [self._dispatch] * 5
                + [self.store.sync_derived] * 2
                + [self.store.commitlog.prepare_ahead, self.store.index.prepare, self._commit, self._delete]
            )()

    def next(self, found: MessageStore, lives: int) -> RandomLife:
        """Continue with the recovered store; everything in it counts as being on disk."""
        after = RandomLife(found.path, self._source, found.settings.flush_policy, lives)
        after._number = self._number
        after.named = self.named
        for topic in self.named:
            config = found.topics.get(topic)
            if config is None:
                continue
            after.topics.add(topic)
            for queue in range(config.queues):
                records = list(pull_all(found, topic, queue))
                offsets = {record.physical_offset for record in records}
                kept = [each for each in self.kept(topic, queue, records) if each.physical_offset in offsets]
                assert len(kept) == len(offsets)
                after.written[topic, queue] = kept
                after.served[topic, queue] = found.queue_reads.max_offset(topic, queue)
                after.synced |= offsets
        after.deleted = {offset for offset in self.deleted if offset < found.write_offset}
        return after

    def _append(self) -> None:
        source = self._source
        topic, queue = source.choice(TOPICS), source.randrange(QUEUES)
        messages = []
        for _ in range(source.choice([1, 1, 3, 10])):
            self._number += 1
            body = source.randbytes(source.choice([0, 10, 300, 3000])) + b"%d" % self._number
            keys = (f"k{self._number}", f"{EVERY_KEY}-{queue}")
            messages.append(Message(body, keys=keys, tags=source.choice(["", "eu"])))
        self.append(topic, queue, messages)

    def _dispatch(self) -> None:
        self.dispatch(self._source.choice([500, 5000, 50_000]))

    def _commit(self) -> None:
        self.commit(self._source.choice(TOPICS), self._source.randrange(QUEUES))

    def _delete(self) -> None:
        topic = self._source.choice(TOPICS)
        if topic in self.topics and self._source.random() < 0.5:
            self.delete(topic)


@pytest.mark.parametrize("policy", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_after_any_power_cut_the_store_recovers_everything_that_was_synced(
    memory_path: Path, seed: int, policy: str
) -> None:
    source = random.Random(f"{seed} {policy}")
    life = RandomLife(memory_path / "store-0", source, policy, source.randrange(20, 700))
    for number in range(1, 7):
        with pytest.raises(PowerCut):
            life.live()
        kill(life.store)
        path = memory_path / f"store-{number}"
        life.files.cut(path, AtRandom(source))
        shutil.rmtree(memory_path / f"store-{number - 1}")
        if source.random() < 0.4:
            path = cut_in_recovery(path, source, policy)
        store = open_store(path, tiny(policy))
        life.check(store)
        life = life.next(store, source.randrange(20, 900))
        kill(store)


def cut_in_recovery(path: Path, source: random.Random, policy: str) -> Path:
    """Begin a start, and cut the power again during it; return the folder with what is left."""
    files = PowerCutFiles(path, source.randrange(1, 150))
    store = MessageStore(path, tiny(policy), store_host=HOST, files=files)
    with contextlib.suppress(PowerCut):
        store.open()
    kill(store)
    target = path.with_name(path.name + "-again")
    files.cut(target, AtRandom(source))
    shutil.rmtree(path)
    target.rename(path)
    return path


def test_the_power_cut_drops_unsynced_data(tmp_path: Path) -> None:
    """The file layer of these tests drops neither too little nor too much."""
    seen = set()
    for seed in range(80):
        root, target = tmp_path / f"root-{seed}", tmp_path / f"cut-{seed}"
        root.mkdir()
        files = PowerCutFiles(root, 1000)
        fd = files.open(root / "a", create=True)
        files.resize(fd, 8192)
        files.write(fd, b"1" * 8192, 0)
        files.sync_data(fd)
        files.sync_folder(root)
        files.map(fd, 8192)[:4096] = b"2" * 4096
        files.make_folder(root / "b")
        files.rename(root / "a", root / "b" / "c")
        files.close(fd)
        files.cut(target, AtRandom(random.Random(seed)))
        names = tuple(sorted(str(path.relative_to(target)) for path in target.rglob("*")))
        (content,) = [path.read_bytes() for path in target.rglob("*") if path.is_file()]
        assert content[4096:] == b"1" * 4096
        seen.add((names, content[:1]))
    assert {names for names, _ in seen} == {("a",), ("a", "b"), ("b", "b/c")}
    assert {first for _, first in seen} == {b"1", b"2"}
