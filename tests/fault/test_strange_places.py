"""Folders in place of files, files in place of folders, dangling links: a start rebuilds the derived files, and refuses
the rest by name before it changes anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from flintmq.broker.store import CorruptFile, MessageStore
from flintmq.broker.tools.commands import backup, dump, repair, stat, verify
from tests.store_tools import SMALL, Sent, assert_holds, index_files, open_store, plain, put, queue_files, reopen
from tests.tools_runs import findings

FIRST = f"{0:020d}"
UNIT_FILE = f"consumequeue/orders/0/{SMALL.consumequeue_file_bytes:020d}"


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[Sent]]:
    """Return a stopped store whose queues have several files."""
    path = tmp_path / "store"
    opened = open_store(path)
    sent = [each for number in range(30) for each in put(opened, "orders", number % 2, plain(8, first=8 * number))]
    opened.groups.persist()
    opened.close()
    return path, sent


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "something").write_text("in it")


def link_to_nothing(path: Path) -> None:
    remove(path)
    path.symlink_to(path.parent / "on-a-disk-that-is-not-mounted")


def link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def link_to_its_file(path: Path) -> None:
    """Move the file out of the store and link it: only that it is a link tells it from before."""
    outside = outside_of(path)
    outside.write_bytes(path.read_bytes() if path.exists() else b"of somebody else")
    remove(path)
    path.symlink_to(outside)


def outside_of(path: Path) -> Path:
    """Return where ``link_to_its_file`` moves the file of a store."""
    store = next(parent for parent in path.parents if parent.name == "store")
    return store.with_name(f"outside-{path.name}")


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def file(path: Path) -> None:
    remove(path)
    path.write_text("no folder")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("change", [folder, link_to_nothing, link_to_itself, link_to_its_file, pipe])
@pytest.mark.parametrize("derived", ["a queue", "the index"])
def test_queues_and_index_that_are_no_files_are_rebuilt(
    store: tuple[Path, list[Sent]], change: Callable[[Path], None], derived: str
) -> None:
    path, sent = store
    expected = queue_files(path), index_files(path)
    victim = path / UNIT_FILE if derived == "a queue" else sorted((path / "index").iterdir())[1]
    change(victim)
    outside = [(path, path.read_bytes()) for path in path.parent.glob("outside-*")]
    assert victim in {each.path for each in findings(path)}
    opened, report = reopen(path)
    assert len(report.rebuilt) == 1
    assert str(victim) in report.rebuilt[0]
    assert_holds(opened, sent)
    opened.close()
    assert (queue_files(path), index_files(path)) == expected
    assert findings(path) == []
    assert [(path, path.read_bytes()) for path in path.parent.glob("outside-*")] == outside


@pytest.mark.parametrize("change", [folder, link_to_nothing, link_to_itself, link_to_its_file, pipe])
@pytest.mark.parametrize(
    "name",
    [
        f"commitlog/{FIRST}",
        "checkpoint",
        "abort",
        "lock",
        "config/topics.json",
        "config/topics.json.bak",
        "config/consumerOffset.json",
        "config/subscriptionGroup.json",
        "flintmq/state.json",
    ],
)
def test_a_place_that_cannot_be_rebuilt_is_refused_by_name(
    store: tuple[Path, list[Sent]], change: Callable[[Path], None], name: str
) -> None:
    assert_refused(store[0], name, change, "where a file belongs")


@pytest.mark.parametrize(
    "name",
    [
        f"commitlog/{FIRST}",
        "checkpoint",
        "abort",
        "lock",
        "config/topics.json",
        "config/topics.json.tmp",
        "config/topics.json.bak.tmp",
        "config/topics.json.journal",
        "config/consumerOffset.json.journal.tmp",
        "flintmq/pop.json.journal",
        "flintmq/replication.json.tmp",
        "flintmq/quarantine/new.tmp",
        "flintmq/timers/000000003600",
    ],
)
def test_nothing_is_written_through_a_link(store: tuple[Path, list[Sent]], name: str) -> None:
    path = store[0]
    (path / name).parent.mkdir(exist_ok=True)
    link_to_its_file(path / name)
    before = outside_of(path / name).read_bytes()
    with pytest.raises(CorruptFile, match=rf"{name}: it is a link, where a file belongs"):
        open_store(path)
    for command, more in ((verify, []), (repair, ["--apply"]), (backup, [str(path.with_name("backup"))])):
        done = CliRunner().invoke(command, [str(path), *more])
        assert done.exit_code in (0, 1, 2), done.output
    assert outside_of(path / name).read_bytes() == before


@pytest.mark.parametrize("change", [file, link_to_nothing, link_to_itself])
@pytest.mark.parametrize("name", ["consumequeue", "index", "config", "flintmq", "flintmq/quarantine"])
def test_a_folder_replaced_by_something_else_is_refused_by_name(
    store: tuple[Path, list[Sent]], change: Callable[[Path], None], name: str
) -> None:
    assert_refused(store[0], name, change, "where a folder belongs", is_seen=name not in ("config", "flintmq"))


def assert_refused(
    path: Path, name: str, change: Callable[[Path], None], problem: str, *, is_seen: bool = True
) -> None:
    """Check that a start names the place and changes nothing; so does ``verify``, unless it cannot even find the sizes
    of the store's files. No tool ends in a stack trace, and none waits for a pipe."""
    change(path / name)
    before = names(path)
    with pytest.raises(CorruptFile, match=rf"{name}: it is .*, {problem}. Put the right entry back"):
        MessageStore(path, SMALL).open()
    assert names(path) == before
    if is_seen:
        assert path / name in {each.path for each in findings(path) if each.kind == "foreign-file"}
    for command in (verify, stat, dump, repair):
        done = CliRunner().invoke(command, [str(path)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert done.exit_code in ((0, 1) if is_seen else (0, 1, 2)), done.output


def names(path: Path) -> list[str]:
    """Return everything in the folder, except links and pipes, which cannot be read."""
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def test_a_file_in_place_of_a_topics_folder_is_found_and_reported(store: tuple[Path, list[Sent]]) -> None:
    path, sent = store
    file(path / "consumequeue" / "orders")
    assert path / "consumequeue" / "orders" in {each.path for each in findings(path)}
    with pytest.raises(CorruptFile, match=r"consumequeue/orders/0 cannot be made.*Move it away"):
        open_store(path)
    assert path / "consumequeue" / "orders" in {each.path for each in findings(path)}
    (path / "consumequeue" / "orders").unlink()
    opened = open_store(path)
    assert_holds(opened, sent)
    opened.close()
    assert findings(path) == []
