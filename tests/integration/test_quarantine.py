"""GET_QUARANTINE: the damage of the broker's log and the lost messages, over the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, InvalidArgument, LostOffsets, NoPermission, UnknownCommand
from flintmq.protocol import commands
from flintmq.protocol.commands import QUARANTINE_LOST_MAX
from flintmq.protocol.errors import InvalidParameter
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RunningBroker
from tests.fault.damaged_logs import FIRST, flip, two_topics
from tests.integration.test_cli_hostile_broker import HostileBroker
from tests.security_tools import PASSWORD, SCRAM, set_grants
from tests.store_tools import SERVED, Sent, open_store, overwrite, plain, put

WIDE_QUEUES = QUARANTINE_LOST_MAX + 5


def damaged_store(path: Path) -> list[Sent]:
    """Make a store with damage in one record, in its tombstone again, in two neighbours, and in all of a topic.

    Return the damaged messages.
    """
    sent = two_topics(path, settings=SERVED)
    store = open_store(path, SERVED)
    wide = [put(store, "wide", queue, plain(1))[0] for queue in range(WIDE_QUEUES)]
    (after,) = put(store, "orders", 0, plain(1))
    store.close()
    first = wide[0].physical_offset
    overwrite(path / "commitlog" / FIRST, first, bytes(after.physical_offset - first))
    for number in (3, 9, 10):
        flip(path, sent[number].physical_offset + 95)
    open_store(path, SERVED).close()
    flip(path, sent[3].physical_offset + 5)
    return [sent[3], sent[9], sent[10], *wide]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, list[Sent]]]:
    """A broker with users that serves a damaged store, and the messages that it lost."""
    folder = tmp_path_factory.mktemp("quarantine")
    lost = damaged_store(folder / "store")
    grants: dict[str, list[dict[str, Any]]] = {
        "ops": [{"actions": ["query"], "broker": True}],
        "shop": [{"actions": ["publish", "consume", "query", "admin"], "topicPrefix": ""}],
    }
    set_grants(folder / "store", grants)
    brokers = Brokers(folder)
    yield brokers.start(store=folder / "store", settings=SCRAM), lost
    brokers.stop_all()


@pytest.fixture
def cli(damaged: tuple[RunningBroker, list[Sent]], tmp_path: Path) -> Cli:
    """Return a command line of a user with ``query`` on the broker."""
    return Cli(tmp_path, damaged[0].address, {"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD})


def test_an_operator_gets_what_the_index_of_the_quarantine_says(
    damaged: tuple[RunningBroker, list[Sent]], clients: Clients
) -> None:
    running, lost = damaged
    with clients.Admin(running.address, user="ops", password=PASSWORD) as admin:
        entries = admin.quarantine()
        status = admin.status()
    folder = running.store / "flintmq" / "quarantine"
    holes = json.loads((folder / "index.json").read_text())["holes"]
    assert len(entries) == status["quarantined_holes"] == len(holes) == 4
    for entry, hole in zip(entries, holes, strict=True):
        assert (entry.physical_offset, entry.bytes, entry.reason, entry.file) == (
            hole["physicalOffset"],
            hole["bytes"],
            hole["reason"],
            hole["file"],
        )
        assert (entry.found_ms, entry.stored_ms) == (hole["foundAt"], hole["storeTimestamp"])
        assert entry.lost_messages == sum(row["count"] for row in hole["lost"])
        named = [LostOffsets(row["topic"], row["queue"], row["queueOffset"], row["count"]) for row in hole["lost"]]
        assert entry.lost == named[:QUARANTINE_LOST_MAX]
        assert entry.lost_left_out == max(len(named) - QUARANTINE_LOST_MAX, 0)
        assert (folder / entry.file).stat().st_size == entry.bytes
    once, again, neighbours, wide = entries
    assert once.physical_offset == again.physical_offset == lost[0].physical_offset
    assert once.found_at < again.found_at
    assert once.lost == again.lost == [LostOffsets(lost[0].topic, lost[0].queue, lost[0].queue_offset, 1)]
    assert neighbours.lost_messages == 2
    assert (wide.lost_messages, wide.lost_left_out) == (WIDE_QUEUES, 5)
    assert {each.topic for each in wide.lost} == {"wide"}
    assert status["lost_messages"] == len(lost)


def test_pages_continue_after_an_entry_even_if_another_one_has_its_physical_offset(
    damaged: tuple[RunningBroker, list[Sent]],
) -> None:
    with Admin(damaged[0].address, user="ops", password=PASSWORD) as admin:
        everything = admin.quarantine()
        for count in (1, 2, 3):
            found = page = admin.quarantine(max_count=count)
            while page:
                assert len(page) <= count
                page = admin.quarantine(page[-1], max_count=count)
                found = found + page
            assert found == everything
        with pytest.raises(InvalidArgument, match="max_count"):
            admin.quarantine(max_count=1001)


def test_a_user_needs_query_on_the_broker(damaged: tuple[RunningBroker, list[Sent]]) -> None:
    with (
        Admin(damaged[0].address, user="shop", password=PASSWORD) as shop,
        pytest.raises(NoPermission, match="query on the broker"),
    ):
        shop.quarantine()


def test_the_command_line_lists_the_damage(cli: Cli, damaged: tuple[RunningBroker, list[Sent]]) -> None:
    lost = damaged[1][0]
    rows = cli.run("quarantine", "-o", "json").rows
    assert [row["lost_messages"] for row in rows] == [1, 1, 2, WIDE_QUEUES]
    assert rows[0]["lost"] == [
        {"topic": lost.topic, "queue": lost.queue, "queue_offset": lost.queue_offset, "messages": 1}
    ]
    assert rows[3]["lost_left_out"] == 5
    assert all(row["reason"] and row["found_at"] and row["file"].endswith(".bin") for row in rows)
    table = cli.run("quarantine", "-o", "table")
    assert f"{lost.topic} queue {lost.queue}: {lost.queue_offset:,}" in table.out
    assert f"wide queue 2: 0; and {WIDE_QUEUES - 3} more ranges" in table.out
    assert "flintmq/quarantine in the broker's store has the bytes" in table.err
    plain_rows = [line.split("\t") for line in cli.run("quarantine", "-o", "plain").lines]
    assert [row[0] for row in plain_rows] == [str(row["physical_offset"]) for row in rows]
    assert plain_rows[3][5].endswith("; and 5 more ranges")


def test_an_undamaged_broker_has_nothing_in_the_quarantine(
    broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path
) -> None:
    running = broker()
    with Admin(running.address) as admin:
        assert admin.quarantine() == []
    cli = Cli(tmp_path / "home", running.address)
    shown = cli.run("quarantine", "-o", "table")
    assert (shown.code, shown.out, shown.err) == (0, "nothing is in the quarantine\n", "")
    assert cli.run("quarantine", "-o", "json").out == ""
    raw = connect(running)
    for fields in ({"max_count": 0}, {"after": -2}, {"after_found_ms": -1}):
        assert raw.call(commands.GET_QUARANTINE, fields).code == InvalidParameter.code


def test_an_older_broker_does_not_know_the_command(tmp_path: Path) -> None:
    older = HostileBroker(lambda command, fields: (UnknownCommand.code, {"message": f"no command {command.code}"}, b""))
    with closing(older), Admin(older.address) as admin:
        with pytest.raises(UnknownCommand):
            admin.quarantine()
        shown = Cli(tmp_path, older.address).run("quarantine")
    assert shown.code == 1
    assert "the broker is older than this client; update it" in shown.err
