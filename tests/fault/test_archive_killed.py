"""A writer of the archive that is killed at any of its requests: the next one goes on without gap or duplicate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.broker.archive import merge
from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.archive.objects import ObjectError, Objects
from tests.group_tools import until
from tests.store_tools import make_topic, open_store, plain, put
from tests.written_archive import WrittenArchive, archive, archiving, has_all

MERGED = 3
FRAGMENTS = 4


class _Dying(Objects):
    """Objects in a folder of a process that dies right after its change number ``lives``, before it learns of it.

    Every later request fails: nothing that the process still does has any effect.
    """

    def __init__(self, folder: Path, lives: int) -> None:
        super().__init__(folder)
        self._lives = lives
        self.changes = 0

    @property
    def dead(self) -> bool:
        return self.changes > self._lives

    def _change(self, verb: Callable[[], None]) -> None:
        if self.dead:
            raise ObjectError("the process is dead")
        self.changes += 1
        verb()
        if self.dead:
            raise ObjectError("the process is dead")

    def create(self, name: str, content: bytes | bytearray) -> None:
        create = super().create
        self._change(lambda: create(name, content))

    def put(self, name: str, content: bytes | bytearray) -> None:
        put = super().put
        self._change(lambda: put(name, content))

    def delete(self, name: str) -> None:
        delete = super().delete
        self._change(lambda: delete(name))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    make_topic(store, "orders")
    yield store
    store.close()


def live(store: MessageStore, objects: _Dying) -> None:
    """Archive some fragments, which are then merged, until the process dies or everything is done."""
    with archiving(store, objects) as service:
        for _ in range(FRAGMENTS):
            put(store, "orders", 0, plain(3))
            store.flush()
            until(lambda: objects.dead or has_all(store, service), "a fragment")
        until(lambda: objects.dead or service.counts.merged_bytes > 0, "the merged fragment")


def test_the_next_writer_goes_on_wherever_the_last_one_was_killed(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MERGED", MERGED)
    whole = _Dying(tmp_path / "whole", 1_000)
    live(store, whole)
    WrittenArchive(whole).assert_is(store)
    assert whole.changes > 20
    for lives in range(whole.changes):
        folder = tmp_path / f"archive-{lives}"
        live(store, _Dying(folder, lives))
        objects = Objects(folder)
        archive(store, objects)
        held = WrittenArchive(objects)
        held.assert_is(store)
        # What the killed writer left is not named, and is at most what it had in flight and had merged.
        assert len(held.orphans()) <= 2 * (2 + MERGED)
