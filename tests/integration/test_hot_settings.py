"""Settings that change while a broker runs: each takes effect, none survives a restart, and no other can be changed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import pytest

from flintmq.broker.config import FIELDS
from flintmq.broker.handlers.broker_admin import HOT_SETTINGS
from flintmq.protocol import commands
from flintmq.protocol.commands import GET_BROKER_CONFIG, GET_MIN_OFFSET, HELLO, PRODUCE, UPDATE_BROKER_CONFIG
from flintmq.protocol.errors import SUCCESS, DelayIllegal, InvalidParameter, LimitReached, SystemBusy, TopicNotExist
from tests.cli_tools import Cli
from tests.conftest import Answer, RawConnection, RunningBroker
from tests.group_tools import until

Factory: TypeAlias = Callable[..., RunningBroker]
Connect: TypeAlias = Callable[..., RawConnection]


FRAME_BYTES_MAX = 1024 * 1024


def change(peer: RawConnection, values: dict[str, Any], count: int = -1) -> Answer:
    return peer.call(UPDATE_BROKER_CONFIG, {"count": len(values) if count < 0 else count}, msgpack.packb(values))


def shown(peer: RawConnection) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in msgpack.unpackb(peer.call(GET_BROKER_CONFIG).raise_for_error().body)}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose settings these tests change."""
    from tests.conftest import Brokers

    brokers = Brokers(tmp_path_factory.mktemp("hot"))
    yield brokers.start(settings={"limits.frame_bytes_max": FRAME_BYTES_MAX})
    brokers.stop_all()


def test_the_list_shows_hot_settings_without_those_of_security(running: RunningBroker, connect: Connect) -> None:
    rows = shown(connect(running))
    assert {name for name, row in rows.items() if row["hot"]} == HOT_SETTINGS
    assert not any(name.startswith("security.") for name in rows)
    assert set(rows) == {name for name in FIELDS if not name.startswith("security.")}
    assert rows["store.path"]["value"] == str(running.store)


def test_nothing_that_opens_the_broker_or_loosens_its_promise_can_be_set() -> None:
    for name in HOT_SETTINGS:
        section, _, key = name.partition(".")
        assert section not in ("security", "server", "store", "flush", "metrics"), name
        assert not any(word in key for word in ("path", "listen", "audit", "tls", "auth")), name


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"store.path": "/tmp/x"}, "cannot be changed while the broker runs"),
        ({"server.listen": "0.0.0.0:1"}, "cannot be changed while the broker runs"),
        ({"server.insecure": True}, "cannot be changed while the broker runs"),
        ({"flush.policy": "async"}, "cannot be changed while the broker runs"),
        ({"metrics.insecure": True}, "cannot be changed while the broker runs"),
        ({"log.audit": ""}, "cannot be changed while the broker runs"),
        ({"limits.frame_bytes_max": 2**24}, "cannot be changed while the broker runs"),
        ({"retention.file_reserved_hour": 1}, "did you mean retention.file_reserved_hours?"),
        ({"nothing": 1}, "unknown setting nothing"),
        ({"": 1}, "unknown setting"),
        ({"retention": 1}, "is a section"),
        ({"retention.file_reserved_hours": -1}, "must be an integer from 0 to 876000"),
        ({"retention.file_reserved_hours": 1.5}, "must be an integer"),
        ({"retention.file_reserved_hours": None}, "must be an integer"),
        ({"retention.file_reserved_hours": {}}, "must be an integer"),
        ({"retention.file_reserved_hours": "many"}, "must be an integer"),
        ({"retention.delete_when": "25"}, "hours from 00 to 23"),
        ({"log.level": "loud"}, '"debug"'),
        ({"topics.auto_create": "sometimes"}, "true, false"),
        ({"limits.in_flight_bytes_max": 4096}, "at least limits.frame_bytes_max"),
        ({7: 1}, "not one msgpack map"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_takes_no_other_with_it(
    running: RunningBroker, connect: Connect, values: dict[Any, Any], says: str
) -> None:
    peer = connect(running)
    before = shown(peer)
    answer = change(peer, {"retention.disk_clean_percent": 33, **values})
    assert answer.code == InvalidParameter.code
    assert says in answer.fields["message"]
    assert shown(peer) == before


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x81\xa1a", msgpack.packb([1]), msgpack.packb({"a": 1}) * 2])
def test_a_body_that_is_no_map_is_refused(running: RunningBroker, connect: Connect, body: bytes) -> None:
    peer = connect(running)
    assert peer.call(UPDATE_BROKER_CONFIG, {"count": 1}, body).code == InvalidParameter.code
    assert change(peer, {"log.level": "info"}, count=2).code == InvalidParameter.code


# ---- each takes effect: a test for every name on the list


def delayed(peer: RawConnection, hours: int) -> Answer:
    common = f"TIMER_DELIVER_MS\x01{int((time.time() + 3600 * hours) * 1000)}\x02"
    return peer.produce("hot", b"later", common=common)


def check_auto_create(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"topics.auto_create": False}).raise_for_error()
    assert peer.produce("unheard-of", b"x").code == TopicNotExist.code
    assert peer.call(HELLO, {"protocol": 1}).fields.get("auto_create_queues") == 0
    change(peer, {"topics.auto_create": "true"}).raise_for_error()
    assert peer.produce("unheard-of", b"x").code == SUCCESS


def check_default_queues(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"topics.default_queues": 7}).raise_for_error()
    assert peer.produce("seven", b"x", queue=6).code == SUCCESS


def check_delay_max(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    peer.produce("hot", b"x").raise_for_error()
    change(peer, {"delivery.delay_max_days": 1}).raise_for_error()
    assert delayed(peer, 48).code == DelayIllegal.code
    change(peer, {"delivery.delay_max_days": 3}).raise_for_error()
    assert delayed(peer, 48).code == SUCCESS


def check_connections_max(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"limits.connections_max": 1}).raise_for_error()
    refused = connect(running, hello=False)
    assert refused.receive().code == SystemBusy.code


def check_open_transactions(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"transactions.open_max": 1}).raise_for_error()
    half = "TRAN_MSG\x01true\x02PGROUP\x01g\x02"
    peer.produce("hot", b"1", common=half, unique_prefix="00" * 10, unique_first=1).raise_for_error()
    answer = peer.produce("hot", b"2", common=half, unique_prefix="00" * 10, unique_first=2)
    assert answer.code == SystemBusy.code
    assert answer.fields["open_max"] == 1


def check_prepared_attempts(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"transactions.prepared_attempts_max": 1}).raise_for_error()
    peer.produce("hot", b"x", prepare="first").raise_for_error()
    assert peer.produce("hot", b"x", prepare="second").code == SystemBusy.code


def check_held_pulls(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    peer.produce("hot", b"x", queue=0).raise_for_error()
    end = peer.call(commands.GET_MAX_OFFSET, {"topic": "hot", "queue": 3}).fields["offset"]
    for name in ("limits.held_pulls_max", "limits.held_pulls_per_connection_max"):
        other = connect(running)
        change(peer, {name: 1}).raise_for_error()
        held = other.send(commands.PULL, {"topic": "hot", "queue": 3, "offset": end, "wait_ms": 60_000})
        refused = other.pull("hot", 3, end, wait_ms=60_000)
        assert refused.code == SystemBusy.code, held
        assert name in refused.fields["message"]
        assert refused.fields["retry_after_ms"] == 100
        change(peer, {name: 1000}).raise_for_error()
        other.close()
        until(lambda: peer.runtime_info()["held_pulls"] == 0)


def check_groups_max(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    commit_as("hot-1", peer).raise_for_error()
    change(peer, {"limits.groups_max": 1}).raise_for_error()
    refused = commit_as("hot-2", peer)
    assert refused.code == LimitReached.code
    assert "limits.groups_max is 1" in refused.fields["message"]
    commit_as("hot-1", peer).raise_for_error()


def check_committed_offsets_max(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    commit_as("hot-1", peer).raise_for_error()
    change(peer, {"limits.committed_offsets_max": 1}).raise_for_error()
    refused = commit_as("hot-3", peer)
    assert refused.code == LimitReached.code
    assert "limits.committed_offsets_max is 1" in refused.fields["message"]
    commit_as("hot-1", peer).raise_for_error()


def commit_as(group: str, peer: RawConnection) -> Answer:
    fields = {"group": group, "topic": "hot", "count": 1}
    return peer.call(commands.UPDATE_CONSUMER_OFFSET, fields, commands.CONSUMER_OFFSET_STRUCT.pack(0, 0))


def check_idle(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    idle = connect(running)
    change(peer, {"limits.idle_timeout_ms": 100}).raise_for_error()
    assert idle.is_closed()


def check_slow_reader(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    body = bytes(400_000)
    for _ in range(4):
        peer.produce("hot", body, queue=1).raise_for_error()
    change(peer, {"limits.slow_reader_timeout_ms": 200}).raise_for_error()
    deaf = connect(running)
    deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(40):
        deaf.send(commands.PULL, {"topic": "hot", "queue": 1, "offset": 0})
    until(lambda: "client did not read" in running.log)


def check_log_level(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"log.level": "debug"}).raise_for_error()
    peer.pull("nowhere")
    until(lambda: "PULL refused: TOPIC_NOT_EXIST" in running.log)


def grow_until_a_file_goes(peer: RawConnection) -> None:
    def begin() -> int:
        return int(peer.call(GET_MIN_OFFSET, {"topic": "hot", "queue": 0}).fields["offset"])

    before = begin()
    while begin() == before:
        peer.produce("hot", bytes(400_000), queue=0).raise_for_error()


def check_retention(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    """Retention deletes a file that would have stayed; each of these settings is needed for that."""
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    change(peer, {"retention.file_reserved_hours": 0, "retention.delete_when": hours}).raise_for_error()
    grow_until_a_file_goes(peer)


def check_refuse_percent(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    """These two settings make the disk count as full; setting them back ends that."""
    change(peer, {"retention.disk_refuse_percent": 1, "retention.headroom_bytes": 2**60}).raise_for_error()

    def refusal() -> str:
        info = peer.runtime_info()
        assert info["disk_room_bytes"] == 0 or not info["write_refusal"]
        return str(info["write_refusal"])

    until(lambda: "retention.disk_refuse_percent is 1" in refusal())
    change(peer, {"retention.headroom_bytes": 0}).raise_for_error()
    until(lambda: not refusal())


def check_forced(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    """The oldest file goes although it is young, because the disk counts as full."""
    percent = {"disk_force_percent": 1, "disk_clean_percent": 100, "disk_refuse_percent": 100}
    others = {"headroom_bytes": 2**60, "file_reserved_hours": 1000}
    change(peer, {f"retention.{name}": value for name, value in (percent | others).items()}).raise_for_error()
    grow_until_a_file_goes(peer)


def check_clean(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    """An old enough file goes outside its hour, because the disk counts as rather full."""
    percent = {"disk_force_percent": 100, "disk_clean_percent": 1, "disk_refuse_percent": 100}
    never_now = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    others = {"headroom_bytes": 2**60, "file_reserved_hours": 0, "delete_when": never_now}
    change(peer, {f"retention.{name}": value for name, value in (percent | others).items()}).raise_for_error()
    grow_until_a_file_goes(peer)


def check_connection_in_flight(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    """The broker answers all frames although only one of them fits: it reads on as it flushes them."""
    change(peer, {"limits.connection_in_flight_bytes_max": 4096}).raise_for_error()
    row = msgpack.packb([bytes(3000), {}])
    ids = [peer.send(PRODUCE, {"topic": "hot", "count": 1}, row) for _ in range(50)]
    assert [peer.receive().request_id for _ in ids] == ids


def check_in_flight(running: RunningBroker, peer: RawConnection, connect: Connect) -> None:
    change(peer, {"limits.in_flight_bytes_max": FRAME_BYTES_MAX}).raise_for_error()
    for _ in range(2):
        half = connect(running)
        half.send_bytes(FRAME_BYTES_MAX.to_bytes(4, "big") + b"\x00\x00\x00\x04" + bytes(FRAME_BYTES_MAX - 4096))
    until(lambda: peer.produce("hot", b"x").code == SystemBusy.code)


CHECKS: dict[str, Callable[[RunningBroker, RawConnection, Connect], None]] = {
    "topics.auto_create": check_auto_create,
    "topics.default_queues": check_default_queues,
    "delivery.delay_max_days": check_delay_max,
    "limits.connections_max": check_connections_max,
    "limits.in_flight_bytes_max": check_in_flight,
    "limits.connection_in_flight_bytes_max": check_connection_in_flight,
    "limits.held_pulls_max, limits.held_pulls_per_connection_max": check_held_pulls,
    "limits.groups_max": check_groups_max,
    "limits.committed_offsets_max": check_committed_offsets_max,
    "limits.idle_timeout_ms": check_idle,
    "limits.slow_reader_timeout_ms": check_slow_reader,
    "retention.file_reserved_hours, retention.delete_when": check_retention,
    "retention.disk_refuse_percent, retention.headroom_bytes": check_refuse_percent,
    "retention.disk_force_percent": check_forced,
    "retention.disk_clean_percent": check_clean,
    "transactions.open_max": check_open_transactions,
    "transactions.prepared_attempts_max": check_prepared_attempts,
    "log.level": check_log_level,
}


@pytest.mark.parametrize("names", CHECKS)
def test_a_changed_setting_takes_effect_at_once(running: RunningBroker, connect: Connect, names: str) -> None:
    admin, peer = connect(running), connect(running)
    peer.produce("hot", b"x").raise_for_error()
    before = {name: row["value"] for name, row in shown(admin).items() if row["hot"]}
    try:
        CHECKS[names](running, peer, connect)
    finally:
        try:
            change(admin, before).raise_for_error()
        except (OSError, EOFError):  # it was closed, too
            change(connect(running), before).raise_for_error()


def test_every_setting_on_the_list_has_such_a_test() -> None:
    assert {name for names in CHECKS for name in names.split(", ")} == HOT_SETTINGS


# ---- by hand


def test_the_command_line_changes_a_setting_until_the_restart(broker: Factory, tmp_path: Path) -> None:
    store = tmp_path / "kept"
    first = broker(store=store)
    with Cli(tmp_path, first.address) as cli:
        done = cli.run("config", "set", "retention.file_reserved_hours=24", "log.level=warning", "-o", "json")
        assert done.rows == [
            {"name": "retention.file_reserved_hours", "before": 72, "after": 24},
            {"name": "log.level", "before": "info", "after": "warning"},
        ]
        assert "until the broker is restarted" in done.err
        (row,) = cli.run("config", "get", "retention.file_reserved_hours", "-o", "json").rows
        assert (row["value"], row["at_start"], row["hot"]) == (24, 72, True)
        assert len(cli.run("config", "list", "--changed", "-o", "plain").lines) == 2
        assert len(cli.run("config", "list", "--hot", "-o", "plain").lines) == len(HOT_SETTINGS)
        refused = cli.run("config", "set", "retention.file_reserved_hours=1", "store.path=/x")
        assert refused.code != 0
        assert "nothing was changed" in refused.err
        assert cli.run("config", "get", "retention.file_reserved_hours", "-o", "json").rows == [row]
        assert cli.run("config", "set", "nonsense").code == 2
        assert "no setting nonsense" in cli.run("config", "get", "nonsense").err
        assert "did you mean 'log.level'?" in cli.run("config", "get", "log.levl").err
        assert "the broker shows no setting of [security]" in cli.run("config", "get", "security.auth").err
    first.stop()
    second = broker(store=store)
    with Cli(tmp_path, second.address) as cli:
        assert cli.run("config", "list", "--changed", "-o", "plain").lines == []
