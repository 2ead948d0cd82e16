"""Arguments of the command line: positions, times, sizes, contexts, and the broker's address."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import ConfigurationError, InvalidArgument, OffsetOutOfRange, QueueStats
from flintmq.client.cli.contexts import Contexts, contexts_path
from flintmq.client.cli.params import OFFSETS, PERMISSION, PROPERTY, SIZE, SPAN, show_permission
from flintmq.client.cli.settings import DEFAULT_BROKER, BrokerChoice
from flintmq.client.core.rpc.address import parse_addresses
from flintmq.client.operator.positions import EveryQueue, end_of, parse_position, parse_time, start_of

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
STATS = [QueueStats(0, 5, 20, 0), QueueStats(1, 0, 8, 0)]


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("now", NOW),
            ("-15m", NOW - timedelta(minutes=15)),
            ("+2h", NOW + timedelta(hours=2)),
            ("-250ms", NOW - timedelta(milliseconds=250)),
            ("2026-11-21T10:00Z", datetime(2026, 11, 21, 10, tzinfo=UTC)),
            ("2026-11-21T10:00:00.5+01:00", datetime(2026, 11, 21, 9, 0, 0, 500_000, tzinfo=UTC)),
            ("1795275200", datetime.fromtimestamp(1_795_275_200, UTC)),
            ("1795275200123", datetime.fromtimestamp(1_795_275_200, UTC) + timedelta(milliseconds=123)),
        ],
    )
    def test_a_time_can_be_written_in_many_ways(self, text: str, moment: datetime) -> None:
        assert parse_time(text, NOW) == moment

    def test_a_time_without_zone_is_local(self) -> None:
        local = datetime(2026, 11, 21, 10).astimezone()
        assert parse_time("2026-11-21T10:00") == local
        assert parse_time("2026-11-21 10:00") == local
        assert parse_time("2026-11-21") == local - timedelta(hours=10)
        today = NOW.astimezone().replace(hour=9, minute=5, second=0)
        assert parse_time("9:05", NOW) == today
        assert parse_time("09:05:00", NOW) == today

    @pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "20261121", "-5", "-9" * 9 + "w", "12"])
    def test_an_invalid_time_is_refused_with_the_valid_forms(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a time; use 2026-11-21T10:00"):
            parse_time(text, NOW)


class TestOffsets:
    @pytest.mark.parametrize(
        ("text", "offsets"),
        [("17", (17, 18)), ("17:20", (17, 20)), ("17:", (17, None)), (":20", (0, 20)), (":", (0, None)), ("0", (0, 1))],
    )
    def test_a_range_excludes_its_end(self, text: str, offsets: tuple[int, int | None]) -> None:
        assert OFFSETS.parse(text) == offsets

    @pytest.mark.parametrize("text", ["", "x", "-1", "3:3", "4:3", "1:2:3", "1,2", "1 :2", "9" * 19, "١"])
    def test_an_invalid_range_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a range of offsets"):
            OFFSETS.parse(text)


class TestPositions:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", "earliest"),
            ("first", "earliest"),
            ("last", "latest"),
            ("latest", "latest"),
            ("-10", -10),
            ("17", EveryQueue(17)),
            ("0:17,3:5", {0: 17, 3: 5}),
            ("0=17", {0: 17}),
            ("0=17,3=5", {0: 17, 3: 5}),
            ("0:3", {0: 3}),
            ("12=0", {12: 0}),
            ("@-15m", NOW - timedelta(minutes=15)),
            ("-15m", NOW - timedelta(minutes=15)),
            ("now", NOW),
            ("@12:00", NOW.astimezone().replace(hour=12, minute=0)),
            ("9:05:00", NOW.astimezone().replace(hour=9, minute=5)),
            ("2026-11-21T10:00Z", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ],
    )
    def test_a_position_can_be_written_in_many_ways(self, text: str, position: Any) -> None:
        assert parse_position(text, NOW) == position

    @pytest.mark.parametrize("text", ["", "middle", "-0", "1:2:3", "0:1,", "1.5", "٣"])
    def test_an_invalid_position_is_refused_with_the_valid_forms(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a position; use earliest, latest, -10"):
            parse_position(text)

    @pytest.mark.parametrize(
        ("text", "queue"), [("12:00", "12=0 for offset 0 of queue 12"), ("5:30", "5=30"), ("0:17", "0=17")]
    )
    def test_an_ambiguous_time_or_offset_is_refused_with_both_spellings(self, text: str, queue: str) -> None:
        with pytest.raises(ValueError, match=f"may be a time or an offset in a queue: use @{text} .*{queue}"):
            parse_position(text, NOW)

    def test_a_queue_named_twice_is_refused(self) -> None:
        with pytest.raises(ValueError, match="names a queue twice"):
            parse_position("0:1,0:2")

    def test_an_offset_for_all_queues_stays_within_each(self) -> None:
        assert start_of(EveryQueue(10), "orders", STATS) == {0: 10, 1: 8}
        assert start_of(EveryQueue(2), "orders", STATS) == {0: 5, 1: 2}
        assert end_of(EveryQueue(10), "orders", STATS) == {0: 10, 1: 10}
        with pytest.raises(OffsetOutOfRange, match="no queue of topic 'orders' has offset 21; its 2 queues hold"):
            start_of(EveryQueue(21), "orders", STATS)
        with pytest.raises(OffsetOutOfRange, match="to use it as a time, write @1795275200123"):
            start_of(EveryQueue(1_795_275_200_123), "orders", STATS)

    def test_queues_that_are_not_named_are_not_read(self) -> None:
        assert start_of({0: 7}, "orders", STATS) == {0: 7, 1: 8}
        with pytest.raises(InvalidArgument, match="has the queues 0 to 1, not 4"):
            start_of({4: 0}, "orders", STATS)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SIZE, "512", 512),
        (SIZE, "64k", 64_000),
        (SIZE, "1.5MB", 1_500_000),
        (SIZE, "1Gi", 2**30),
        (SPAN, "0.5", 0.5),
        (SPAN, "10ms", 0.01),
        (SPAN, "2min", 120),
        (PROPERTY, "a=b=c", ("a", "b=c")),
        (PERMISSION, "rw", 6),
        (PERMISSION, "none", 0),
    ],
)
def test_an_argument_is_parsed(kind: Any, text: str, value: Any) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(SIZE, "big"), (SIZE, "1X"), (SIZE, "-1"), (SPAN, "soon"), (PROPERTY, "a"), (PROPERTY, "=b"), (PERMISSION, "x")],
)
def test_a_malformed_argument_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(ValueError, match="use "):
        kind.parse(text)


def test_permissions_are_shown_as_they_were_typed() -> None:
    assert [show_permission(perm) for perm in (0, 2, 4, 6)] == ["none", "w", "r", "rw"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty configuration folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("FLINTMQ_BROKER", raising=False)
    return tmp_path


class TestContexts:
    def test_a_saved_context_is_loaded(self, home: Path) -> None:
        contexts = Contexts.load()
        contexts.add("prod", "a,[::1]:7")
        contexts.add("test_2", "localhost:10912")
        contexts.current = "prod"
        contexts.save()
        again = Contexts.load()
        assert again.brokers == {"prod": "a:10911,[::1]:7", "test_2": "localhost:10912"}
        assert again.current == "prod"
        assert contexts_path() == home / "flintmq" / "contexts.toml"
        assert stat.S_IMODE(contexts_path().stat().st_mode) == 0o600
        assert [path.name for path in contexts_path().parent.iterdir()] == ["contexts.toml"]

    def test_user_and_tls_are_saved_with_absolute_paths_and_without_password(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("secret", "ca.pem"):
            Path(name).write_text("correct horse\n")
            Path(name).chmod(0o600)
        contexts = Contexts.load()
        options = {"user": "billing", "password_file": "secret", "tls_ca": "ca.pem", "timeout": 2.5, "output": "json"}
        contexts.add("prod", "mq:1", options)
        contexts.add("plain", "mq:2")
        contexts.save()
        again = Contexts.load()
        whole = {"password_file": str(tmp_path / "secret"), "tls_ca": str(tmp_path / "ca.pem")}
        assert again.options == {"prod": options | whole}
        assert "correct horse" not in contexts_path().read_text()
        again.add("prod", "mq:1")
        assert again.options == {}, "adding a context again replaces its options"

    def test_a_password_that_others_can_read_is_refused(self, home: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("correct horse\n")
        secret.chmod(0o644)
        for name, said in (
            (secret, "other users can read the password"),
            (tmp_path / "not-there", "cannot use the file"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                Contexts.load().add("prod", "mq:1", {"user": "billing", "password_file": str(name)})

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ('password = "correct horse"', "has the unknown option 'password'; did you mean 'password_file'"),
            ("user = 5", "user must be a printable string, got 5"),
            ('user = ""', "must be a printable string"),
            ("tls = 1", "tls must be true or false, got 1"),
            ("timeout = 0", "more than 0 seconds"),
            ('output = "xml"', "output must be one of table, json, plain"),
            ('password_file = "/x"', "no user"),
        ],
    )
    def test_an_invalid_line_of_a_context_is_named(self, home: Path, line: str, said: str) -> None:
        contexts_path().parent.mkdir()
        contexts_path().write_text(f'[contexts.prod]\nbroker = "mq:1"\n{line}\n')
        with pytest.raises(ConfigurationError, match=rf"contexts\.toml: context 'prod'.*{said}"):
            Contexts.load()

    def test_a_removed_context_is_no_longer_in_use(self, home: Path) -> None:
        contexts = Contexts.load()
        contexts.add("prod", "a:1")
        contexts.current = "prod"
        contexts.remove("prod")
        contexts.save()
        assert Contexts.load() == Contexts(contexts_path())

    @pytest.mark.parametrize("name", ["", "a b", "a.b", 'x"', "é", "x" * 65])
    def test_an_invalid_name_is_refused(self, home: Path, name: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a valid context name"):
            Contexts.load().add(name, "a:1")

    @pytest.mark.parametrize("broker", ["", "a:x", "a:0", "a\n:1"])
    def test_an_invalid_broker_address_is_refused(self, home: Path, broker: str) -> None:
        with pytest.raises((ConfigurationError, InvalidArgument), match="broker address"):
            Contexts.load().add("prod", broker)

    @pytest.mark.parametrize("text", ["current = ", "[contexts.prod]\n", "[contexts]\nprod = 1", "\xff"])
    def test_a_broken_file_is_named(self, home: Path, text: str) -> None:
        contexts_path().parent.mkdir()
        contexts_path().write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigurationError, match=r"contexts\.toml"):
            Contexts.load()


class TestBrokerAddress:
    def test_an_option_overrides_the_environment_and_the_context(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert BrokerChoice().addresses == DEFAULT_BROKER
        contexts = Contexts.load()
        contexts.add("prod", "prod:1")
        contexts.add("test", "test:2")
        contexts.current = "prod"
        contexts.save()
        assert BrokerChoice().addresses == "prod:1"
        monkeypatch.setenv("FLINTMQ_BROKER", "env:3")
        assert BrokerChoice().addresses == "env:3"
        assert BrokerChoice(context="test").addresses == "test:2"
        assert BrokerChoice(context="test", broker="option").addresses == "option:10911"

    def test_a_context_applies_only_to_its_own_broker(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        contexts = Contexts.load()
        contexts.add("prod", "prod:1", {"user": "billing", "tls": True, "timeout": 2.5, "output": "json"})
        contexts.current = "prod"
        contexts.save()
        monkeypatch.setenv("FLINTMQ_PASSWORD", "correct horse")
        monkeypatch.delenv("FLINTMQ_USER", raising=False)
        inside = BrokerChoice()
        assert (inside.addresses, inside.seconds, inside.output.mode) == ("prod:1", 2.5, "json")
        assert inside.access == {"tls": True, "user": "billing", "password": "correct horse"}
        assert BrokerChoice(timeout=7.0, mode="plain").seconds == 7.0
        assert BrokerChoice(mode="plain").output.mode == "plain"
        assert BrokerChoice(user="shop").access["user"] == "shop"
        monkeypatch.setenv("FLINTMQ_USER", "from-outside")
        assert BrokerChoice().access["user"] == "from-outside"
        assert BrokerChoice(context="prod").access["user"] == "billing"
        monkeypatch.delenv("FLINTMQ_USER")
        elsewhere = BrokerChoice(broker="other:1")
        assert (elsewhere.access, elsewhere.seconds) == ({}, 10.0)
        monkeypatch.setenv("FLINTMQ_BROKER", "env:3")
        assert BrokerChoice().access == {}

    def test_a_users_password_is_not_used_for_another_user(self, home: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("correct horse\n")
        secret.chmod(0o600)
        contexts = Contexts.load()
        contexts.add("prod", "prod:1", {"user": "billing", "password_file": str(secret)})
        contexts.save()
        assert BrokerChoice(context="prod").access["password"] == "correct horse"
        with pytest.raises(ConfigurationError, match="user 'shop' needs a password"):
            _ = BrokerChoice(context="prod", user="shop", may_ask=False).access

    def test_a_program_uses_the_same_environment_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FLINTMQ_BROKER", raising=False)
        assert [str(address) for address in parse_addresses(None)] == [DEFAULT_BROKER]
        monkeypatch.setenv("FLINTMQ_BROKER", "a:1,b")
        assert [str(address) for address in parse_addresses(None)] == ["a:1", "b:10911"]
        assert [str(address) for address in parse_addresses("c:2")] == ["c:2"]
