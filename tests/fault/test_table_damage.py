"""Damage of a store's small files: their content is never served as good, and the broker never continues silently."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.security.users import UserTable
from flintmq.broker.store import CorruptFile, MessageStore, SettledAhead
from flintmq.broker.store.files.json_table import SHAPE_ERRORS, parse_table
from flintmq.broker.store.tables.store_state import StagedSnapshot
from flintmq.broker.store.timers import HOUR_SECONDS
from flintmq.broker.tools.repair import Repaired, examine, repair
from flintmq.protocol.auth.users import USERS_FILE
from flintmq.protocol.errors import ConfigurationError
from tests.delay_tools import START_MS, DelayedStore
from tests.security_tools import set_user
from tests.store_tools import SMALL, copy_store, make_topic, open_store, overwrite, tree
from tests.tools_runs import verified

TABLES = [
    "config/topics.json",
    "config/consumerOffset.json",
    "config/delayOffset.json",
    "config/subscriptionGroup.json",
    "flintmq/state.json",
    "flintmq/prepared.json",
    "flintmq/pop.json",
]


def flipped(content: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << source.randrange(8)]) + content[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    **{f"bit {number}": flipped for number in range(6)},
    "zeroed": lambda content, _: bytes(len(content)),
    "half zeroed": lambda content, _: content[: len(content) // 2].ljust(len(content), b"\0"),
    "emptied": lambda content, _: b"",
    "half": lambda content, _: content[: len(content) // 2],
    "a byte less": lambda content, _: content[:-1],
    "random": lambda content, source: source.randbytes(len(content)),
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped store each of whose tables was written at least twice, with the same content except for
    counters."""
    delayed = DelayedStore(tmp_path_factory.mktemp("history") / "store")
    store = delayed.store
    for topic in ("orders", "bills"):
        make_topic(store, topic)
        store.consumer_offsets.commit("group", topic, 0, 1)
    store.groups.ensure("group")
    store.consumer_offsets.commit("group", "t", 0, 0)
    delayed.send("t", [b"late"] * 3, TIMER_DELIVER_MS=START_MS + 10_000_000)
    delayed.send("t", [b"early"], TIMER_DELIVER_MS=START_MS + 10_000)
    delayed.run()
    delayed.delays.persist(last=True)
    delayed.run(START_MS + 60_000)
    delayed.delays.persist(last=True)
    for number in range(2):
        store.staged_state.offer(0, StagedSnapshot(number, 0, {"series": 17}))
        store.staged_state.persist(0)
        # The rows of another queue differ, and a start leaves them out: the queue has no messages.
        store.pop_state.offer(
            [SettledAhead("group", "t", 0, 0, ((0, 1),)), SettledAhead("group", "bills", 0, 1, ((2, 3 + number),))]
        )
        store.pop_state.persist(last=True)
        for table in (store.topics, store.consumer_offsets, store.groups, store.delay_offsets):
            table.persist()
    for _ in range(2):
        delayed.stop()
        delayed.open()
    delayed.stop()
    return delayed.path


def content_of_tables(store: MessageStore) -> object:
    return (
        {config.name: config.to_json() for config in store.topics},
        store.consumer_offsets.all_committed(own=True),
        store.groups.names(),
        [store.delay_offsets.delivered(level) for level in range(19)],
        store.staged_state.saved.sequences,
        store.pop_state.saved,
        store.state.sizes,
        store.state.kept_offsets,
        store.state.deleted,
    )


def is_still_the_same(blob: bytes, whole: bytes) -> bool:
    """Return whether only white space was hit, or the name of the checksum."""
    try:
        return parse_table(blob.decode()).items() >= parse_table(whole.decode()).items()
    except SHAPE_ERRORS:
        return False


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_is_never_served_as_good(
    history: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """If only the file is damaged, its .bak serves. If both are, the start is refused and changes nothing."""
    opened = open_store(copy_store(history, tmp_path / "whole"))
    expected = content_of_tables(opened)
    opened.close()
    source = random.Random(name)
    for number, (kind, damage) in enumerate(DAMAGES.items()):
        path = copy_store(history, tmp_path / f"store{number}")
        file, backup = path / name, path / f"{name}.bak"
        whole = file.read_bytes()
        file.write_bytes(damage(whole, source))
        if is_still_the_same(file.read_bytes(), whole):
            continue
        assert ("table", file) in {(each.kind, each.path) for each in verified(path).findings}, kind
        backup_whole = backup.read_bytes()
        backup.write_bytes(DAMAGES["half"](backup_whole, source))
        before = tree(path)
        with pytest.raises(CorruptFile, match=rf"{file.name} cannot be read.*{backup.name} cannot be read.*Restore"):
            open_store(path)
        assert tree(path) == before, kind
        backup.write_bytes(backup_whole)
        caplog.clear()
        store = open_store(path)
        assert f"Using {backup} instead" in caplog.text, kind
        assert content_of_tables(store) == expected, kind
        store.close()
        reopened = open_store(path)
        assert content_of_tables(reopened) == expected, kind
        reopened.close()


@pytest.mark.parametrize("name", [*TABLES, USERS_FILE])
def test_repair_rewrites_a_damaged_table_or_its_copy(history: Path, tmp_path: Path, name: str) -> None:
    """A repair may report more about ends of queues and committed offsets."""
    path = copy_store(history, tmp_path / "store")
    set_user(path, "billing")
    set_user(path, "shop")
    file, backup = path / name, path / f"{name}.bak"
    for damaged, sound in ((file, backup), (backup, file)):
        expected, mode = content_of(sound), damaged.stat().st_mode
        damaged.write_bytes(damaged.read_bytes()[:-3])
        repaired = run_repair(path)
        assert repaired.restored == [damaged]
        assert repaired.after.findings.total == 0
        assert content_of(damaged) == expected or name in ("flintmq/state.json", "config/consumerOffset.json")
        assert damaged.stat().st_mode == mode
    for each in (file, backup):
        each.write_bytes(each.read_bytes()[:-3])
    before = file.read_bytes(), backup.read_bytes()
    with contextlib.suppress(CorruptFile):  # repair makes a start, which is refused, except for users
        assert run_repair(path).restored == []
    assert (file.read_bytes(), backup.read_bytes()) == before


def content_of(file: Path) -> dict[str, object]:
    return {name: value for name, value in parse_table(file.read_text()).items() if name != "dataVersion"}


def run_repair(path: Path) -> Repaired:
    found = examine(path, lambda *_: None, index_slots=SMALL.index_slots)
    return repair(path, found, lambda *_: None, index_slots=SMALL.index_slots)


def test_repair_leaves_users_alone_that_an_administrator_may_have_changed(history: Path, tmp_path: Path) -> None:
    path = copy_store(history, tmp_path / "store")
    set_user(path, "billing")
    file = path / USERS_FILE
    file.write_text(file.read_text().replace('"billing"', '"shop"'))
    before = file.read_bytes()
    repaired = run_repair(path)
    assert (repaired.restored, file.read_bytes()) == ([], before)
    assert [(each.kind, each.path) for each in repaired.after.findings] == [("table", file)]


def cursor(path: Path) -> Path:
    return path / "flintmq" / "timers" / "cursor.json"


def hour_file(path: Path) -> Path:
    files = (path / "flintmq" / "timers").glob("[0-9]*")
    (found,) = [each for each in files if int(each.name) > START_MS // 1000 + HOUR_SECONDS]
    return found


def both_cursors(path: Path, damage: Callable[[bytes], bytes]) -> None:
    for file in (cursor(path), cursor(path).with_name("cursor.json.bak")):
        file.write_bytes(damage(file.read_bytes()))


TIMER_DAMAGES: dict[str, Callable[[Path], object]] = {
    "a due second": lambda path: overwrite(hour_file(path), 6, b"\x01"),
    "a place in the log": lambda path: overwrite(hour_file(path), 28 + 22, b"\x77"),
    "the hour's rows zeroed": lambda path: overwrite(hour_file(path), 0, bytes(84)),
    "the hour's file cut short": lambda path: hour_file(path).write_bytes(bytes(83)),
    "the hour's file gone": lambda path: hour_file(path).unlink(),
    "both cursors emptied": lambda path: both_cursors(path, lambda content: b""),
    "both cursors changed": lambda path: both_cursors(path, lambda content: content.replace(b"17", b"18")),
}


@pytest.mark.parametrize("damage", TIMER_DAMAGES)
def test_a_damaged_index_of_timed_messages_is_rebuilt(
    history: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = copy_store(history, tmp_path / "store")
    before = tree(path)
    TIMER_DAMAGES[damage](path)
    assert tree(path) != before
    delayed = DelayedStore(path, now_ms=START_MS + 60_000)
    delayed.run()
    assert "is rebuilt" in caplog.text
    early = delayed.bodies("t").count(b"early")
    assert early in (1, 2)  # messages due in the last minute may be delivered again
    delayed.run(START_MS + 10_000_000)
    assert delayed.bodies("t") == [b"early"] * early + [b"late"] * 3
    delayed.stop()


def test_groups_whose_offsets_are_lost_are_logged(
    history: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy_store(history, tmp_path / "store")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (path / "config" / name).unlink()
    open_store(path).close()
    assert "there is no config/consumerOffset.json" in caplog.text


# Users.


def users_of(path: Path) -> set[str]:
    table = UserTable(path)
    table.load()
    return {user.name for user in table}


@pytest.mark.parametrize("by_copy", [True, False], ids=["with its copy", "alone"])
def test_a_damaged_file_of_users_admits_and_loses_no_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, by_copy: bool
) -> None:
    """The file is refused by name, or its copy serves; `verify` names it."""
    path = tmp_path / "store"
    open_store(path).close()
    set_user(path, "billing")
    set_user(path, "shop")
    file = path / USERS_FILE
    whole, source = file.read_bytes(), random.Random(7)
    for kind, damage in [*DAMAGES.items(), *((f"bit {number}", flipped) for number in range(6, 60))]:
        file.write_bytes(damage(whole, source))
        if not by_copy:
            file.with_name(f"{file.name}.bak").unlink(missing_ok=True)
        caplog.clear()
        refused = ""
        try:
            assert users_of(path) == {"billing", "shop"}, kind
        except ConfigurationError as error:
            refused = str(error)
        if refused:
            assert str(file) in refused, kind
        elif not is_still_the_same(file.read_bytes(), whole):
            assert by_copy, kind
            assert f"{file}.bak instead" in caplog.text, kind
    file.write_bytes(whole[:-1])
    assert [(each.kind, each.path) for each in verified(path).findings] == [("table", file)]


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"version": 1}', b"\0" * 300, b"[]"])
def test_damaged_users_admit_no_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / USERS_FILE
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"users\.json"):
        UserTable(tmp_path).load()
