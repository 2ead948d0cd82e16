"""`flintmq user` on a store's folder, and the command line against a broker that serves only authenticated users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from flintmq.protocol.auth.users import BACKUP_SUFFIX, USERS_FILE, parse_users
from flintmq.protocol.checked_json import CHECKSUM_KEY
from tests.cli_tools import Cli, Terminal
from tests.conftest import BrokerFactory
from tests.security_tools import PASSWORD, SCRAM, set_user


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create the part of a store's folder that the command reads."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    return tmp_path / "store"


@pytest.fixture
def cli(tmp_path: Path, store: Path) -> Cli:
    return Cli(tmp_path / "home", variables={"FLINTMQ_STORE__PATH": str(store)})


def names(store: Path) -> list[str]:
    return list(parse_users((store / USERS_FILE).read_bytes(), "").by_name)


def backup_of(store: Path) -> Path:
    return store / (USERS_FILE + BACKUP_SUFFIX)


class TestFile:
    def test_a_generated_password_is_shown_once_and_kept_from_others(self, cli: Cli, store: Path) -> None:
        made = cli.run("user", "add", "billing", "--generate")
        assert made.code == 0
        assert [len(line) for line in made.lines] == [24]
        assert "not shown again" in made.err
        assert made.lines[0] not in (store / USERS_FILE).read_text()
        for path in (store / USERS_FILE, backup_of(store)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_fields_of_other_programs_are_kept(self, cli: Cli, store: Path) -> None:
        set_user(store, "billing")
        text = (store / USERS_FILE).read_text()
        edited = text.replace('"version": 1', '"version": 1, "later": [1]').replace(CHECKSUM_KEY, "note")
        (store / USERS_FILE).write_text(edited)
        assert cli.run("user", "add", "shop", "--generate").code == 0
        assert '"later": [\n  1\n ]' in (store / USERS_FILE).read_text()
        assert names(store) == ["billing", "shop"]

    def test_files_may_begin_with_a_byte_order_mark(self, cli: Cli, store: Path, tmp_path: Path) -> None:
        set_user(store, "there")
        for path in (store / USERS_FILE, backup_of(store)):
            path.write_text(path.read_text(), encoding="utf-8-sig")
        secret = tmp_path / "secret"
        secret.write_text("of-old-clients\r\n", encoding="utf-8-sig")
        added = cli.run("user", "key", "add", "there", "--secret-file", str(secret))
        assert (added.code, added.lines[1:]) == (0, ["of-old-clients"]), added.err
        contexts = tmp_path / "home" / "flintmq" / "contexts.toml"
        contexts.parent.mkdir(parents=True)
        contexts.write_text('[contexts.prod]\nbroker = "localhost:1"\n', encoding="utf-8-sig")
        assert [row["context"] for row in cli.run("context", "list", "-o", "json").rows] == ["prod"]

    def test_a_password_is_asked_for_twice_on_a_terminal(self, cli: Cli, store: Path) -> None:
        terminal = Terminal(cli, ["user", "add", "billing"], 100)
        terminal.read_until("new password for billing")
        terminal.type("secret enough\n")
        terminal.read_until("confirmation")
        terminal.type("secret enough\n")
        assert terminal.finish() == 0
        assert "secret enough" not in terminal.text
        assert names(store) == ["billing"]

    def test_a_damaged_file_is_not_overwritten(self, cli: Cli, store: Path) -> None:
        set_user(store, "there")
        for path in (store / USERS_FILE, backup_of(store)):
            path.write_text("{")
        done = cli.run("user", "add", "x", "--generate")
        assert done.code == 2
        assert "users.json is not JSON" in done.err
        assert (store / USERS_FILE).read_text() == "{"

    def test_the_copy_of_a_damaged_file_serves_and_a_change_rewrites_both(self, cli: Cli, store: Path) -> None:
        set_user(store, "there")
        (store / USERS_FILE).write_text("{")
        listed = cli.run("user", "list", "-o", "json")
        assert [row["user"] for row in listed.rows] == ["there"]
        assert "users.json is not JSON" in listed.err
        assert cli.run("user", "add", "x", "--generate").code == 0
        assert names(store) == ["there", "x"]
        assert cli.run("user", "list").err == ""

    def test_the_copy_is_never_older_than_the_file(
        self, cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a removed user could log in again after the broker has to use the copy."""
        set_user(store, "gone")
        set_user(store, "stays")
        renamed: list[str] = []
        replace = Path.replace

        def killed_behind_the_first(fresh: Path, target: Path) -> None:
            if renamed:
                raise KeyboardInterrupt
            renamed.append(target.name)
            replace(fresh, target)

        monkeypatch.setattr(Path, "replace", killed_behind_the_first)
        cli.run("user", "remove", "gone", "--yes")
        monkeypatch.undo()
        assert names(store) == ["gone", "stays"]
        (store / USERS_FILE).write_bytes(b"")
        assert [row["user"] for row in cli.run("user", "list", "-o", "json").rows] == ["stays"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_files_that_root_creates_belong_to_the_stores_owner(self, cli: Cli, store: Path) -> None:
        os.chown(store, 12345, 12345)
        assert cli.run("user", "add", "billing", "--generate").code == 0
        for path in (store / "flintmq", store / USERS_FILE, backup_of(store)):
            assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


class TestAgainstABroker:
    def test_users_get_in_from_the_shell(self, broker: BrokerFactory, tmp_path: Path) -> None:
        running = broker(settings=SCRAM)
        cli = Cli(tmp_path / "home", running.address, {"FLINTMQ_STORE__PATH": str(running.store)})
        refused = cli.run("send", "orders", "x")
        assert refused.code == 1
        assert "AUTHENTICATION_REQUIRED (1402)" in refused.err
        assert "--user NAME" in refused.err
        (tmp_path / "secret").write_text(f"{PASSWORD}\n")
        assert cli.run("user", "add", "ops", "--admin", "--password-file", str(tmp_path / "secret")).code == 0
        assert cli.run("send", "orders", "x", "--user", "ops", "--password-file", str(tmp_path / "secret")).code == 0
        cli.variables |= {"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD}
        assert cli.run("pull", "orders", "--count", "1").lines == ["x"]
        assert cli.run("bench", "produce", "--count", "2000", "-q").code == 0
        cli.variables["FLINTMQ_PASSWORD"] = "another"
        wrong = cli.run("status")
        assert wrong.code == 1
        assert "AUTHENTICATION_FAILED (1403)" in wrong.err
        assert "another" not in wrong.err
        del cli.variables["FLINTMQ_PASSWORD"]
        assert (
            "user 'ops' needs a password: set FLINTMQ_PASSWORD, or pass --password-file FILE" in cli.run("status").err
        )

    def test_the_password_is_asked_for_on_a_terminal(self, broker: BrokerFactory, tmp_path: Path) -> None:
        running = broker(settings=SCRAM)
        set_user(running.store, "ops")
        terminal = Terminal(Cli(tmp_path / "home", running.address), ["topic", "list", "--user", "ops"], 100)
        terminal.read_until("password for ops")
        terminal.type(f"{PASSWORD}\n")
        assert terminal.finish() == 0
        assert PASSWORD not in terminal.text


class TestAccessKeys:
    """``flintmq user key`` in a store's folder and over the network."""

    def test_a_random_key_is_shown_once_and_not_listed_with_its_secret(self, cli: Cli, store: Path) -> None:
        cli.run("user", "add", "billing", "--generate")
        made = cli.run("user", "key", "add", "billing")
        assert made.code == 0, made.err
        key, secret = made.lines
        assert (len(key), len(secret)) == (20, 40)
        assert "not shown again" in made.err
        listed = cli.run("user", "key", "list", "billing", "-o", "json")
        assert [row["key"] for row in listed.rows] == [key]
        assert secret not in listed.out

    def test_an_administrator_changes_keys_over_the_network(
        self, tmp_path: Path, broker: BrokerFactory, store: Path
    ) -> None:
        set_user(store, "ops")
        running = broker(store=store, settings=SCRAM)
        cli = Cli(tmp_path / "other", variables={"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD})
        made = cli.run("user", "key", "add", "ops", "--broker", running.address, "-o", "json").rows[0]
        listed = cli.run("user", "key", "list", "ops", "--broker", running.address, "-o", "json").rows
        assert [row["key"] for row in listed] == [made["key"]]
        removed = cli.run("user", "key", "remove", "ops", made["key"], "--yes", "--broker", running.address)
        assert removed.code == 0, removed.err
        assert "at once" in removed.err
