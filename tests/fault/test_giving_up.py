"""`repair --accept-missing`: log files are gone for good, and the store continues without their messages."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flintmq.broker.store import CorruptLog
from flintmq.broker.tools.commands import repair as command
from flintmq.broker.tools.repair import examine, give_up, repair
from flintmq.protocol.errors import ConfigurationError
from tests.fault.damaged_logs import FILE_BYTES, FIRST, SECOND, THIRD, two_topics, undispatched
from tests.fault.dying_files import Died, DyingFiles
from tests.fault.test_containment_interrupted import result
from tests.store_tools import (
    SMALL,
    Sent,
    assert_only_these_are_left,
    kill,
    lost_of,
    open_store,
    plain,
    put,
    reopen,
    restore,
    save,
    tree,
)

FOURTH = f"{3 * FILE_BYTES:020d}"
SLOTS = ["--index-slots", str(SMALL.index_slots)]


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(path), *SLOTS, *options])


def accept(*names: str) -> list[str]:
    return [option for name in names for option in ("--accept-missing", name)]


def four_files(path: Path) -> list[Sent]:
    sent = two_topics(path, size=200_000, frames=50)
    assert (path / "commitlog" / FOURTH).exists()
    return sent


def in_files(sent: list[Sent], *names: str) -> list[Sent]:
    return [each for each in sent if f"{each.physical_offset // FILE_BYTES * FILE_BYTES:020d}" in names]


@pytest.mark.parametrize(
    "gone", [[FIRST], [SECOND, THIRD], [FOURTH]], ids=["the first", "two in the middle", "the last"]
)
def test_the_store_continues_without_the_messages_of_missing_files(tmp_path: Path, gone: list[str]) -> None:
    path = tmp_path / "store"
    sent = four_files(path)
    lost = in_files(sent, *gone)
    for name in gone:
        (path / "commitlog" / name).unlink()
    before = tree(path)
    assert run(path).exit_code == 1
    dry = run(path, *accept(*gone))
    assert dry.exit_code == 1, dry.output
    for name in gone:
        assert f"{name}: given up" in dry.output
        assert f"queues know {len(in_files(sent, name)):,} messages" in dry.output
    assert tree(path) == before
    done = run(path, *accept(*gone), "--apply")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "sound     nothing is wrong any longer"
    store, report = reopen(path)
    assert report.quarantined == []
    assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
    assert store.quarantine.lost_messages == len(lost)
    new = put(store, "orders", 0, plain(3, first=5000))
    assert (
        new[0].queue_offset == max(each.queue_offset for each in sent if (each.topic, each.queue) == ("orders", 0)) + 1
    )
    store.close()
    after = tree(path)
    assert run(path, *accept(*gone), "--apply").exit_code == 0  # a second run: the files exist now
    assert tree(path) == after


def test_a_gap_unknown_to_every_queue_is_filled_by_the_missing_offsets(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = four_files(path)
    undispatched(path)
    (path / "commitlog" / SECOND).unlink()
    assert run(path, *accept(SECOND), "--apply").exit_code == 0
    store, _ = reopen(path)
    lost = in_files(sent, SECOND)
    assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
    store.close()


def test_a_file_put_back_brings_its_messages_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = four_files(path)
    file = path / "commitlog" / SECOND
    whole = file.read_bytes()
    file.unlink()
    assert run(path, *accept(SECOND), "--apply").exit_code == 0
    file.write_bytes(whole)
    store, _ = reopen(path)
    assert_only_these_are_left(store, sent, [])
    store.close()


def test_a_list_of_files_that_differs_from_the_missing_ones_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    four_files(path)
    (path / "commitlog" / SECOND).unlink()
    (path / "commitlog" / THIRD).unlink()
    before = tree(path)
    for names, says in (([SECOND], f"{THIRD} is missing too"), (["nonsense"], "no file of that name"), ([], THIRD[:0])):
        done = run(path, *accept(*names), "--apply")
        assert (done.exit_code, says in done.output + done.stderr) == (2, True), (names, done.output)
        assert tree(path) == before
    with pytest.raises(ConfigurationError, match=f"{SECOND}, {THIRD} are missing"):
        give_up(path, ["../topics.json"], index_slots=SMALL.index_slots)
    with pytest.raises(CorruptLog, match="is missing"):
        open_store(path)


def test_a_run_interrupted_anywhere_can_be_repeated_with_the_same_result(tmp_path: Path) -> None:
    """A second run completes it; a broker that starts instead refuses, or completes it."""
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=18)
    assert (path / "commitlog" / THIRD).exists()
    lost = in_files(sent, SECOND)
    (path / "commitlog" / SECOND).unlink()
    saved = save(path)

    def accepted(files: DyingFiles | None = None) -> None:
        give_up(path, [SECOND], index_slots=SMALL.index_slots, files=files)
        repair(
            path,
            examine(path, lambda *_: None, index_slots=SMALL.index_slots),
            lambda *_: None,
            index_slots=SMALL.index_slots,
            files=files,
        )

    accepted()
    expected = result(path)
    source, lives, died = random.Random(2), 0, True
    while died:
        restore(path, saved)
        died = False
        try:
            accepted(DyingFiles(lives, half=bool(lives % 2)))
        except Died:
            died = True
        with contextlib.suppress(CorruptLog, Died):
            kill(open_store(path, files=DyingFiles(source.randrange(lives + 5))))
        accepted()
        assert result(path) == expected, lives
        store = open_store(path)
        assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
        store.close()
        lives += 9
    assert lives > 20


def test_lost_messages_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = four_files(path)
    (path / "commitlog" / SECOND).unlink()
    give_up(path, [SECOND], index_slots=SMALL.index_slots)
    store, report = reopen(path)  # a broker completes it
    assert lost_of(report) == {(each.topic, each.queue, each.queue_offset) for each in in_files(sent, SECOND)}
    store.close()
