"""A start that contains damage and dies at any of its changes: the next start has the same result."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.damaged_logs import FILE_BYTES, FIRST, SECOND, flip, two_topics, undispatched
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import (
    Sent,
    assert_only_these_are_left,
    index_files,
    kill,
    open_store,
    overwrite,
    queue_files,
    reopen,
    restore,
    save,
)


def bodies(path: Path, sent: list[Sent]) -> None:
    for number in (3, 4, 20):
        flip(path, sent[number].physical_offset + 95)


def head_without_queues(path: Path, sent: list[Sent]) -> None:
    overwrite(path / "commitlog" / FIRST, sent[9].physical_offset, bytes(400))
    undispatched(path)


def cut_short(path: Path, sent: list[Sent]) -> None:
    with (path / "commitlog" / SECOND).open("r+b") as file:
        file.truncate(FILE_BYTES // 2)


def the_end_too(path: Path, sent: list[Sent]) -> None:
    flip(path, sent[-1].physical_offset + 95)
    (path / "abort").touch()


def lying_head(path: Path, sent: list[Sent]) -> None:
    flip(path, sent[9].physical_offset + 20, 6)


damages: list[Callable[[Path, list[Sent]], None]] = [bodies, head_without_queues, cut_short, the_end_too, lying_head]


@pytest.mark.parametrize("damage", damages)
def test_containment_interrupted_anywhere_starts_over_with_the_same_result(
    tmp_path: Path, damage: Callable[[Path, list[Sent]], None]
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000 if damage is cut_short else 100, frames=20)
    damage(path, sent)
    saved = save(path)
    store, report = reopen(path)
    places = {
        (each.topic, each.queue, number)
        for hole in report.quarantined
        for each in hole.lost
        for number in range(each.first, each.first + each.messages)
    }
    lost = [each for each in sent if (each.topic, each.queue, each.queue_offset) in places]
    assert lost
    store.close()
    expected = result(path)

    source = random.Random(damages.index(damage))
    lives, died = 0, True
    while died:
        restore(path, saved)
        died = False
        for attempt in (lives, source.randrange(lives + 5)):  # and the containment after the first death dies too
            try:
                kill(open_store(path, files=DyingFiles(attempt, half=bool(lives % 2))))
            except Died:
                died = True
        store = open_store(path)
        assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
        store.close()
        assert result(path) == expected, lives
        lives += 1
    assert lives > 20


def result(path: Path) -> object:
    """Return everything that a start leaves, except times and remnants: log, copies, index of the quarantine,
    queues."""
    log = [each.read_bytes() for each in sorted((path / "commitlog").iterdir())]
    folder = path / "flintmq" / "quarantine"
    holes = json.loads((folder / "index.json").read_text())["holes"]
    copies = {each["file"]: (folder / each["file"]).read_bytes() for each in holes}
    return (
        log,
        copies,
        [{**each, "foundAt": 0} for each in holes],
        queue_files(path),
        [each[40:] for each in index_files(path)],
    )
