"""``verify`` of a backup finds every defect, and no command takes a backup for a store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from flintmq.broker.tools.backup import BackupError, Made, Manifest, VerifiedBackup, backup, restore, verify_backup
from flintmq.protocol.checked_json import CHECKSUM_KEY, encode_checked
from flintmq.protocol.store_files import MANIFEST, PROGRESS, NotAStore, backup_kind
from tests.store_tools import SMALL, Sent, assert_holds, kill, open_store, plain, put
from tests.tools_runs import everything, tool

FILE_BYTES = SMALL.commitlog_file_bytes
FIRST, SECOND, THIRD = (f"{number * FILE_BYTES:020d}" for number in range(3))
END = Callable[[MessageStore], None]


def quiet(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def verified(folder: Path) -> VerifiedBackup:
    return verify_backup(folder, lambda done, total: None)


def found(folder: Path) -> list[tuple[str, str]]:
    """Return (kind, file relative to the backup) of each finding."""
    return [(each.kind, str(each.path.relative_to(folder))) for each in verified(folder).findings]


def filled(path: Path) -> tuple[MessageStore, list[Sent]]:
    """Return an open store whose log has three files, and its messages."""
    store = open_store(path)
    sent = [
        each for number in range(30) for each in put(store, "orders", number % 3, plain(1, size=300_000, first=number))
    ]
    store.sync_derived()
    return store, sent


@pytest.fixture
def made(tmp_path: Path) -> Made:
    store, _ = filled(tmp_path / "store")
    store.close()
    return backup(store.path, tmp_path / "backup", quiet)


@pytest.fixture
def folder(tmp_path: Path, made: Made) -> Path:
    return tmp_path / "backup"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def rewrite_manifest(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change the manifest and make its checksum right too, as an attacker would."""
    table = json.loads((folder / MANIFEST).read_text())
    del table[CHECKSUM_KEY]
    change(table)
    (folder / MANIFEST).write_text(encode_checked(table))


# Sound backups.


@pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])
def test_a_sound_backup_has_no_findings_and_stays_unchanged(tmp_path: Path, end: END) -> None:
    store, sent = filled(tmp_path / "store")
    end(store)
    backup(store.path, tmp_path / "backup", quiet)
    before = everything(tmp_path / "backup")
    result = verified(tmp_path / "backup")
    assert result.findings.total == 0
    assert result.findings.notes == []
    assert result.records == len(sent)
    assert result.bytes == result.manifest.bytes
    assert everything(tmp_path / "backup") == before


def test_a_backup_of_a_running_broker_and_a_second_run_into_it_are_sound(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    for _ in range(2):
        made = backup(store.path, tmp_path / "backup", quiet)
        assert made.manifest.running
        result = verified(tmp_path / "backup")
        assert (result.findings.total, result.records) == (0, len(sent))
        sent += put(store, "orders", 0, plain(3, size=300_000, first=500 + len(sent)))
    store.close()


def test_the_backup_of_an_empty_store_is_sound(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    backup(tmp_path / "store", tmp_path / "backup", quiet)
    result = verified(tmp_path / "backup")
    assert (result.findings.total, result.records) == (0, 0)


def test_a_manifest_of_an_earlier_release_without_a_checksum_is_read(folder: Path) -> None:
    table = json.loads((folder / MANIFEST).read_text())
    del table[CHECKSUM_KEY]
    (folder / MANIFEST).write_text(json.dumps(table))
    assert found(folder) == []
    restore(folder, folder.parent / "restored", quiet)


# Damaged backups.


@pytest.mark.parametrize("at", [0, 4, 1_000, FILE_BYTES // 2, FILE_BYTES - 1])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_flipped_bit_of_the_log_is_found(folder: Path, name: str, at: int) -> None:
    flip(folder / "commitlog" / name, at)
    findings = found(folder)
    assert findings[0] == ("backup-file", f"commitlog/{name}")
    assert set(findings) <= {("backup-file", f"commitlog/{name}"), ("backup-record", f"commitlog/{name}")}


def test_a_changed_table_is_found(folder: Path, made: Made) -> None:
    for each in made.manifest.tables:
        path = folder / made.manifest.tables_folder / each.path
        content = path.read_bytes()
        if content:
            flip(path, len(content) // 2)
            assert found(folder) == [("backup-file", str(path.relative_to(folder)))]
            path.write_bytes(content)
        path.unlink()
        assert found(folder) == [("backup-file", str(path.relative_to(folder)))]
        path.write_bytes(content)
    assert found(folder) == []


@pytest.mark.parametrize("name", [FIRST, THIRD])
@pytest.mark.parametrize("kept", [0, 1, 100_000])
def test_a_truncated_log_file_is_named(folder: Path, name: str, kept: int) -> None:
    path = folder / "commitlog" / name
    path.write_bytes(path.read_bytes()[:kept])
    assert ("backup-file", f"commitlog/{name}") in found(folder)


def test_a_missing_file_of_the_log_is_named(folder: Path) -> None:
    (folder / "commitlog" / SECOND).unlink()
    assert found(folder) == [("backup-file", f"commitlog/{SECOND}")]


def test_damage_that_the_store_had_before_the_backup_is_reported(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    store.close()
    flip(tmp_path / "store" / "commitlog" / FIRST, sent[3].physical_offset + 1_000)
    backup(tmp_path / "store", tmp_path / "backup", quiet)
    result = verified(tmp_path / "backup")
    (finding,) = list(result.findings)
    assert (finding.kind, finding.physical_offset) == ("backup-record", sent[3].physical_offset)
    assert result.records == len(sent) - 1


def test_a_flipped_bit_of_the_manifest_is_found(folder: Path) -> None:
    content = (folder / MANIFEST).read_bytes()
    for at in range(0, len(content), 7):
        flip(folder / MANIFEST, at)
        try:
            assert found(folder), at
        except BackupError as error:
            assert MANIFEST in str(error)  # noqa: PT017 - either error is right
        (folder / MANIFEST).write_bytes(content)


def drop_a_file(table: dict[str, list[dict[str, object]]]) -> None:
    del table["log"][1]


def drop_the_last_file(table: dict[str, list[dict[str, object]]]) -> None:
    del table["log"][-1]


def name_a_file_twice(table: dict[str, list[dict[str, object]]]) -> None:
    table["log"].append(table["log"][0])


def end_earlier(table: dict[str, int]) -> None:
    table["log_end"] -= 1


def begin_earlier(table: dict[str, int]) -> None:
    table["log_begin"] -= FILE_BYTES


def no_sum(table: dict[str, list[dict[str, object]]]) -> None:
    table["tables"][0]["sha256"] = "x"


def another_folder(table: dict[str, str]) -> None:
    table["tables_folder"] = "commitlog"


@pytest.mark.parametrize(
    "change", [drop_a_file, name_a_file_twice, end_earlier, begin_earlier, no_sum, another_folder, drop_the_last_file]
)
def test_a_manifest_that_does_not_describe_one_backup_is_named(
    folder: Path, change: Callable[[dict[str, object]], None]
) -> None:
    rewrite_manifest(folder, change)
    assert ("backup-manifest", MANIFEST) in found(folder)


def test_a_file_missing_from_the_manifest_is_noted(folder: Path) -> None:
    (folder / "commitlog" / "notes.txt").write_text("mine")
    result = verified(folder)
    assert result.findings.total == 0
    assert any("notes.txt is not part of the backup" in note for note in result.findings.notes)


# Complete and interrupted backups, and folders without one.


class Interrupted(Exception):
    """Stops a run in the middle."""


def interrupted(store: Path, folder: Path, after: int) -> None:
    left = [after]

    def progress(stage: str, done: int, total: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        backup(store, folder, progress)


def test_an_interrupted_backup_is_reported_as_incomplete(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "store")
    store.close()
    interrupted(tmp_path / "store", tmp_path / "backup", 2)
    with pytest.raises(BackupError, match=r"an incomplete backup.*flintmq-broker backup STORE"):
        verified(tmp_path / "backup")
    done = tool("verify", tmp_path / "backup")
    assert done.code == 2
    assert "holds an incomplete backup" in done.errors


def test_a_complete_backup_stays_complete_if_a_later_run_is_interrupted(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    backup(store.path, tmp_path / "backup", quiet)
    put(store, "orders", 0, plain(20, size=300_000, first=900))
    store.close()
    interrupted(tmp_path / "store", tmp_path / "backup", 3)
    assert (tmp_path / "backup" / PROGRESS).exists()
    result = verified(tmp_path / "backup")
    assert result.findings.total == 0
    assert any("was interrupted" in note for note in result.findings.notes)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    again = open_store(tmp_path / "restored")
    assert_holds(again, sent)
    again.close()


def test_a_copy_without_its_manifest_is_no_store(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    before = everything(folder)
    for arguments in (["verify", folder], ["rebuild", folder], ["serve", "--store", folder, "--listen", "127.0.0.1:0"]):
        done = tool(*arguments)
        assert done.code == 2
        assert "incomplete backup" in done.errors
        assert MANIFEST in done.errors
    assert everything(folder) == before


def test_a_store_is_no_backup(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert backup_kind(tmp_path / "store") == ""
    assert backup_kind(tmp_path / "nothing") == ""


# Commands that need a store.


@pytest.mark.parametrize(
    "arguments",
    [
        ("rebuild", "{}"),
        ("repair", "{}"),
        ("repair", "{}", "--apply"),
        ("repair", "{}", "--accept-missing", FIRST),
        ("dump", "{}"),
        ("dump", "{}", "--running"),
        ("stat", "{}"),
        ("stat", "{}", "--running"),
        ("plan-clean", "{}"),
        ("backup", "{}", "{}-2"),
        ("serve", "--store", "{}", "--listen", "127.0.0.1:0"),
        ("serve", "--store", "{}", "--listen", "127.0.0.1:0", "--set", "security.auth=scram"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_store_asks_for_a_restore_and_changes_nothing(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    before = everything(folder)
    done = tool(*(each.format(folder) for each in arguments))
    assert done.code == 2
    assert f"{folder} is a backup, not a store" in done.errors
    assert f"flintmq-broker restore {folder} STORE" in done.errors
    assert everything(folder) == before
    assert not Path(f"{folder}-2").exists()


def test_opening_a_backup_as_a_store_raises_a_typed_error(folder: Path) -> None:
    before = everything(folder)
    with pytest.raises(NotAStore, match="is a backup"):
        open_store(folder)
    assert everything(folder) == before


def test_a_restored_backup_is_a_store(tmp_path: Path, folder: Path) -> None:
    restore(folder, tmp_path / "restored", quiet)
    assert backup_kind(tmp_path / "restored") == ""


# Output of the command.


def test_the_command_prints_the_content_of_a_sound_backup(folder: Path, made: Made) -> None:
    done = tool("verify", folder)
    assert done.code == 0, done.errors
    text = "\n".join(done.output)
    assert f"backup   {folder}, made {made.manifest.made_at}" in text
    assert "log      " in text
    assert done.output[-1].startswith("sound ")
    (summary,) = [json.loads(line) for line in tool("verify", folder, "-o", "json").output]
    assert (summary["kind"], summary["backup"]) == ("summary", str(folder))
    assert (summary["log_end"], summary["findings"]) == (made.manifest.log_end, {})


def test_the_command_names_the_damaged_file_and_the_remedy(folder: Path) -> None:
    flip(folder / "commitlog" / SECOND, 5_000)
    done = tool("verify", folder)
    assert done.code == 1
    text = "\n".join(done.output)
    assert f"commitlog/{SECOND}: its SHA-256 is not that of the file that was backed up" in text
    assert "what helps: copy the file again from another copy of this backup" in text
    assert "rebuild" not in text
    rows = [json.loads(line) for line in tool("verify", folder, "-o", "json").output]
    assert rows[0]["kind"] == "backup-file"
    assert rows[-1]["findings"]["backup-file"] == 1


def test_users_are_not_added_to_a_backup(folder: Path) -> None:
    from flintmq.protocol.auth.users import UserFile

    with pytest.raises(NotAStore, match="is a backup"):
        UserFile(folder)


def test_a_changed_manifest_is_refused_by_restore_too(folder: Path, tmp_path: Path) -> None:
    manifest = Manifest.load(folder)
    assert manifest is not None
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace(f'"log_end": {manifest.log_end}', f'"log_end": {manifest.log_end - 1}'))
    with pytest.raises(BackupError, match="changed after it was written"):
        restore(folder, tmp_path / "restored", quiet)
    assert not (tmp_path / "restored").exists()
    shutil.rmtree(folder)
