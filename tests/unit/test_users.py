"""The file of users: its contents, invalid contents, and how the broker notices a change."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.security.users import UserTable
from flintmq.protocol.auth.scram import ITERATIONS, ITERATIONS_MIN, SALT_BYTES, make_verifier
from flintmq.protocol.auth.users import (
    BACKUP_SUFFIX,
    USERS_FILE,
    User,
    UserFile,
    Users,
    check_user_name,
    choose_users,
    encode_users,
    parse_users,
)
from flintmq.protocol.checked_json import CHECKSUM_KEY
from flintmq.protocol.errors import ConfigurationError

VERIFIER = make_verifier("s3cret", 4096)
GRANT = {"actions": ["publish"], "topic": "orders", "note": "kept"}


def users(*names: str) -> Users:
    return Users({name: User(name, VERIFIER, (GRANT,), {"mail": "a@b"}) for name in names}, other={"owner": "ops"})


def table_of(text: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(text)
    return table


class TestTheFile:
    def test_written_users_are_read_again_with_unknown_fields(self) -> None:
        before = users("billing", "shop")
        assert parse_users(encode_users(before).encode(), "users.json") == before

    def test_it_has_the_shape_that_others_read(self) -> None:
        table = table_of(encode_users(users("billing")))
        assert table["version"] == 1
        row = table["users"]["billing"]
        assert set(row["scram"]) == {"iterations", "salt", "storedKey", "serverKey"}
        assert row["permissions"] == [GRANT]

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda table: table.update(version=2), "has version 2"),
            (lambda table: table.pop("users"), "no object 'users'"),
            (lambda table: table["users"].update({"../x": table["users"]["billing"]}), "is not a valid user name"),
            (lambda table: table["users"]["billing"].pop("scram"), "user 'billing' has no object 'scram'"),
            (lambda table: table["users"]["billing"]["scram"].update(iterations=1), "scram.iterations 1"),
            (lambda table: table["users"]["billing"]["scram"].update(iterations=10**9), "scram.iterations 1000000000"),
            (lambda table: table["users"]["billing"]["scram"].update(salt=""), "needs scram.salt"),
            (lambda table: table["users"]["billing"]["scram"].update(storedKey="AAAA"), "the two keys with 32 bytes"),
            (lambda table: table["users"]["billing"]["scram"].update(serverKey=7), "in base64"),
            (lambda table: table["users"]["billing"].update(permissions=["all"]), "'permissions' of user 'billing'"),
        ],
    )
    def test_a_defect_of_the_file_is_named(self, change: Any, why: str) -> None:
        table = table_of(encode_users(users("billing")))
        del table[CHECKSUM_KEY]
        change(table)
        with pytest.raises(ConfigurationError, match=why) as raised:
            parse_users(json.dumps(table).encode(), "the/users.json")
        assert str(raised.value).startswith("the/users.json")

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1, "users": []}', b"\xff", b"[" * 100_000])
    def test_a_file_that_is_no_file_of_users_is_refused(self, content: bytes) -> None:
        with pytest.raises(ConfigurationError, match=r"users\.json"):
            parse_users(content, "users.json")

    def test_one_from_before_checksums_is_read(self) -> None:
        table = table_of(encode_users(users("billing")))
        del table[CHECKSUM_KEY]
        assert "billing" in parse_users(json.dumps(table).encode(), "users.json").by_name

    def test_a_changed_file_is_refused_with_both_remedies(self) -> None:
        """The change was made by hand to lock a user out, or by the disk: the backup must not let the user in again."""
        content = encode_users(users("billing", "gone")).encode()
        table = table_of(content.decode())
        del table["users"]["gone"]
        changed = json.dumps(table).encode()
        with pytest.raises(
            ConfigurationError,
            match=rf"x/users\.json: it was changed.*remove {CHECKSUM_KEY}, and remove x/users\.json\.bak; otherwise",
        ):
            choose_users(changed, content, "x/users.json")
        del table[CHECKSUM_KEY]
        assert list(choose_users(json.dumps(table).encode(), content, "x/users.json")[0].by_name) == ["billing"]

    def test_a_missing_file_does_not_mean_no_users_while_its_backup_exists(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"x/users\.json is missing, but its copy x/users\.json\.bak exists"
        ):
            choose_users(None, encode_users(users("billing")).encode(), "x/users.json")
        assert choose_users(None, None, "x/users.json")[0].by_name == {}

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", ".a", "a\n", "é", "x" * 65, "a,b", "a=b", "-a"])
    def test_names_that_could_be_something_else_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a valid user name"):
            check_user_name(name)

    def test_secrets_are_in_no_repr(self) -> None:
        shown = repr(users("billing"))
        assert "\\x" not in shown


def test_a_change_removes_remains_of_a_killed_one(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    file = UserFile(tmp_path)
    file.change(lambda _: users("billing"))
    for path in (file.path, file.backup):
        path.with_name(f".{path.name}.0123456789abcdef.tmp").write_text(encode_users(users("billing")))
    file.change(lambda _: users("shop"))
    assert sorted(path.name for path in file.path.parent.iterdir()) == [file.path.name, file.backup.name]
    assert set(file.read().by_name) == {"shop"}


class TestTheTable:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / USERS_FILE
        path.parent.mkdir()
        return path

    def replace(self, path: Path, text: str) -> None:
        """Replace the file as ``flintmq user`` does."""
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, path)

    def test_without_a_file_there_are_no_users(self, tmp_path: Path) -> None:
        table = UserTable(tmp_path)
        table.load()
        assert len(table) == 0
        assert table.get("billing") is None

    def test_a_damaged_file_is_refused_at_the_start(self, tmp_path: Path, path: Path) -> None:
        path.write_text("{")
        with pytest.raises(ConfigurationError, match="is not JSON"):
            UserTable(tmp_path).load()

    def test_a_change_is_noticed(self, tmp_path: Path, path: Path) -> None:
        table = UserTable(tmp_path)
        table.load()
        self.replace(path, encode_users(users("billing")))
        assert table.refresh()
        assert table.get("billing") == users("billing").by_name["billing"]
        assert not table.refresh()
        path.unlink()
        assert table.refresh()
        assert table.get("billing") is None

    def test_a_file_that_was_broken_later_changes_nothing(
        self, tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.replace(path, encode_users(users("billing")))
        table = UserTable(tmp_path)
        table.load()
        generation = table.generation
        self.replace(path, "{")
        assert not table.refresh()
        assert table.get("billing") is not None
        assert table.generation == generation
        assert "keeping the users as they were" in caplog.text
        caplog.clear()
        assert not table.refresh()
        assert caplog.text == ""  # once is enough
        self.replace(path, encode_users(users("shop")))
        assert table.refresh()
        assert table.get("shop") is not None

    @pytest.mark.parametrize("content", [b"", b"\0" * 300, b"{", b"\xff\xfe"])
    def test_the_copy_of_a_damaged_file_serves_and_is_logged(
        self, tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture, content: bytes
    ) -> None:
        path.write_bytes(content)
        path.with_name(path.name + BACKUP_SUFFIX).write_text(encode_users(users("billing")))
        table = UserTable(tmp_path)
        table.load()
        assert table.get("billing") is not None
        assert f"{path} is" in caplog.text
        assert f"Using its copy {path}{BACKUP_SUFFIX} instead" in caplog.text

    def test_an_unknown_name_gets_the_same_salt_each_time_and_after_a_restart(self, tmp_path: Path, path: Path) -> None:
        self.replace(path, encode_users(users("billing")))
        one, other = UserTable(tmp_path), UserTable(tmp_path)
        one.load()
        other.load()
        invented = one.verifier("stranger")
        assert invented.iterations == one.verifier("billing").iterations
        assert len(invented.salt) == SALT_BYTES
        assert invented.salt == one.verifier("stranger").salt == other.verifier("stranger").salt
        assert invented.salt != one.verifier("strangers").salt
        assert invented.stored_key != one.verifier("stranger").stored_key
        assert one.verifier("billing") == VERIFIER

    def test_the_number_of_iterations_does_not_reveal_which_users_exist(self, tmp_path: Path, path: Path) -> None:
        some = users("new", "old")
        some.by_name["old"] = replace(some.by_name["old"], verifier=replace(VERIFIER, iterations=ITERATIONS_MIN + 1))
        self.replace(path, encode_users(some))
        table = UserTable(tmp_path)
        table.load()
        invented = {name: table.verifier(name).iterations for name in map(str, range(50))}
        assert set(invented.values()) == {VERIFIER.iterations, ITERATIONS_MIN + 1}
        assert invented == {name: table.verifier(name).iterations for name in invented}

    def test_without_users_strangers_are_asked_for_the_usual_iterations(self, tmp_path: Path) -> None:
        assert UserTable(tmp_path).verifier("stranger").iterations == ITERATIONS
