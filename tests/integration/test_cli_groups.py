"""``flintmq group`` against a real broker, compared with the protocol's responses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    GroupConsumer,
    GroupNotExist,
    GroupRunning,
    Message,
    OffsetOutOfRange,
    Producer,
)
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, INVOKE_BROKER_TO_RESET_OFFSET, UPDATE_CONSUMER_OFFSET
from flintmq.protocol.errors import CommitIllegal
from tests.cli_tools import Cli, Terminal
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.dead_letter_tools import bury, send_back
from tests.group_tools import RawMember, joined, until
from tests.integration.test_cli_admin import described
from tests.integration.test_retention import SOON, fill, wait_for_min_offset


@pytest.fixture
def cli(tmp_path: Path, shared_broker: RunningBroker) -> Iterator[Cli]:
    """Return a command line connected to the shared broker."""
    with Cli(tmp_path, shared_broker.address) as cli:
        yield cli


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """Create a topic of two queues with three messages each."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for queue in (0, 1):
            producer.send_bulk(topic, [b"x"] * 3, queue=queue)
    return topic


@pytest.fixture
def member(shared_broker: RunningBroker, connect: ConnectionFactory, filled: str) -> Iterator[RawMember]:
    """A member of its own group that holds both queues."""
    member = joined(connect(shared_broker), f"{filled}-g", "m-1", filled)
    yield member
    member.leave()


class TestStatus:
    def test_a_work_group_has_leased_messages_and_no_members(self, cli: Cli, filled: str) -> None:
        with GroupConsumer(str(cli.broker), f"{filled}-w", filled, mode="work", start="first") as consumer:
            held = consumer.receive(4, 20) + consumer.receive(1, 20)
            (status,) = cli.run("group", "status", consumer.group, "-o", "json").rows
            assert (status["kind"], status["members"], status["lag"]) == ("work", [], 6)
            assert status["in_flight"] == sum(row["in_flight"] for row in status["queues"]) == len(held)
            table = cli.run("group", "status", consumer.group, "-o", "table").out
            assert "a work group has no members" in table
            assert not {"mode", "epoch"} & {line.split(" ")[0] for line in table.splitlines()}
            for delivery in held:
                delivery.ack()

    def test_the_list_leaves_out_the_retry_topics_of_a_work_group(self, cli: Cli, filled: str) -> None:
        with (
            Admin(str(cli.broker)) as admin,
            GroupConsumer(
                str(cli.broker), f"{filled}-w", filled, mode="work", lease=0.2, auto_renew=False, start="first"
            ) as consumer,
        ):
            assert consumer.receive(1, 20)  # its lease ends: the message goes to the retry topic

            def read_a_retry() -> bool:
                for delivery in consumer.receive(6, 1):
                    delivery.ack()
                return any(row.topic != filled for row in admin.group(consumer.group).queues)

            until(read_a_retry)
            (listed,) = cli.run("group", "list", consumer.group, "-o", "json").rows
            assert listed["topics"] == [filled]

    def test_messages_of_a_queue_are_ready_or_with_its_member(self, cli: Cli, member: RawMember, filled: str) -> None:
        member.pull(filled, 0, 0, max_count=2).raise_for_error()
        (status,) = cli.run("group", "status", member.group, "-o", "json").rows
        names = described("group status")
        assert {*status, *status["members"][0], *status["queues"][0]} == names
        assert (status["state"], status["mode"], status["lag"], status["ready"], status["in_flight"]) == (
            "stable",
            "clustering",
            6,
            4,
            2,
        )
        (only,) = status["members"]
        assert (only["member"], only["queues"], only["address"].partition(":")[0]) == ("m-1", 2, "127.0.0.1")
        assert {"topic": filled, "tags": "", "filter": ""} in only["subscriptions"]
        queues = {
            (row["queue"], row["member"], row["committed"], row["ready"], row["in_flight"], row["lag"])
            for row in status["queues"]
        }
        assert queues == {(0, "m-1", 0, 1, 2, 3), (1, "m-1", 0, 3, 0, 3)}

    def test_messages_waiting_for_a_retry_are_delayed(
        self, cli: Cli, member: RawMember, filled: str, shared_broker: RunningBroker, connect: ConnectionFactory
    ) -> None:
        with Consumer(shared_broker.address) as consumer:
            offsets = [message.physical_offset for message in consumer.iter(filled, until="latest")]
        send_back(connect(shared_broker), member.group, offsets, level=18)
        rows = [line.split("\t") for line in cli.run("group", "status", member.group, "-o", "plain").lines]
        delayed = {row[1]: row[9] for row in rows}
        assert delayed == {filled: "", f"%RETRY%{member.group}": "6"}
        with Admin(shared_broker.address) as admin:
            assert admin.group(member.group).delayed == 6

    def test_an_empty_group_keeps_its_progress(self, cli: Cli, filled: str) -> None:
        group = f"{filled}-empty"
        assert cli.run("group", "reset", group, filled, "--to", "1", "--queue", "1").code == EXIT_OK
        (status,) = cli.run("group", "status", group, "-o", "json").rows
        assert (status["state"], status["members"], status["lag"]) == ("empty", [], 5)
        assert [(row["queue"], row["committed"], row["lag"]) for row in status["queues"]] == [(0, None, 3), (1, 1, 2)]

    def test_each_member_of_a_broadcasting_group_has_its_own_progress(
        self, cli: Cli, filled: str, shared_broker: RunningBroker, connect: ConnectionFactory
    ) -> None:
        group = f"{filled}-b"
        members = [joined(connect(shared_broker), group, name, filled, mode="broadcasting") for name in ("m-1", "m-2")]
        members[1].commit(filled, 0, 3).raise_for_error()
        (status,) = cli.run("group", "status", group, "-o", "json").rows
        assert {(row["member"], row["queue"], row["committed"]) for row in status["queues"]} == {
            ("m-1", 0, 0),
            ("m-1", 1, 0),
            ("m-2", 0, 3),
            ("m-2", 1, 0),
        }
        refused = cli.run("group", "reset", group, filled, "--to", "earliest", "--force")
        assert "each of its members keeps its own progress" in refused.err
        for member in members:
            member.leave()
        names = [row["group"] for row in cli.run("group", "list", f"{group}*", "-o", "json").rows]
        assert names == [group], "a member's progress is not a group"

    @pytest.mark.parametrize("columns", [80, 200])
    def test_the_screen_fits_its_terminal(self, cli: Cli, member: RawMember, filled: str, columns: int) -> None:
        terminal = Terminal(cli, ["group", "status", member.group], columns)
        assert terminal.finish() == EXIT_OK
        text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
        assert max(map(len, text.splitlines())) <= columns
        assert re.search(r"^TOPIC .* READY ", text, re.MULTILINE), "the queues are a table"
        assert ("FIRST" in terminal.text) == (columns == 200)

    def test_an_unknown_group_is_reported_with_the_nearest_name(self, cli: Cli, member: RawMember) -> None:
        done = cli.run("group", "status", member.group + "x")
        assert done.code == EXIT_NOT_FOUND
        assert "SUBSCRIPTION_GROUP_NOT_EXIST (26)" in done.err
        assert f"did you mean '{member.group}'" in done.err
        assert "next: flintmq group list" in done.err


class TestList:
    def test_groups_are_listed_with_their_lag(
        self, cli: Cli, member: RawMember, filled: str, shared_broker: RunningBroker
    ) -> None:
        rows = cli.run("group", "list", member.group, "-o", "json").rows
        with Consumer(shared_broker.address) as consumer:
            first = min(next(iter(consumer.pull(filled, queue, 0))).stored_at for queue in (0, 1))
        assert rows == [
            {
                "group": member.group,
                "kind": "native",
                "mode": "clustering",
                "state": "stable",
                "members": 1,
                "lag": 6,
                "next_stored_at": f"{first:%Y-%m-%dT%H:%M:%S}.{first.microsecond // 1000:03}Z",
                "topics": [filled],
            }
        ]
        assert set(rows[0]) == described("group list")
        (status,) = cli.run("group", "status", member.group, "-o", "json").rows
        assert status["next_stored_at"] == rows[0]["next_stored_at"]
        assert "BEHIND" in cli.run("group", "list", member.group, "-o", "table").out
        assert cli.run("group", "list", "no-such*", "-o", "table").out == "no group matches no-such*\n"

    def test_dead_letters_that_are_dealt_with_make_no_group_and_no_lag(
        self, cli: Cli, filled: str, shared_broker: RunningBroker, connect: ConnectionFactory
    ) -> None:
        group = f"{filled}-gone"
        bury(shared_broker, connect(shared_broker), group, [Message(filled, b"x"), Message(filled, b"y")])
        cli.run("dlq", "purge", group, "--yes", "--before", "1")
        assert cli.run("group", "list", group, "-o", "json").rows == []
        lag = cli.run("check", "--group", group, "--lag-critical", "0", "-o", "json").rows[0]["lag"]
        assert lag is None


class TestReset:
    def test_a_running_group_is_reset_with_force_alone(self, cli: Cli, member: RawMember, filled: str) -> None:
        refused = cli.run("group", "reset", member.group, filled, "--to", "latest")
        assert refused.code == EXIT_ERROR
        assert "GROUP_RUNNING (1413)" in refused.err
        assert "m-1" in refused.err
        granted = member.epoch
        reset = cli.run("group", "reset", member.group, filled, "--to", "0:3", "--force", "-o", "json")
        assert reset.rows == [{"group": member.group, "topic": filled, "queue": 0, "before": 0, "after": 3}]
        assert set(reset.rows[0]) == described("group reset")
        member.beat(filled)
        anew = {(row[0], queue): row[1] > granted for (name, queue), row in member.rows.items() if name == filled}
        assert anew == {(3, 0): True, (0, 1): False}

    def test_a_topic_that_no_member_consumes_is_reset_without_force(
        self, cli: Cli, member: RawMember, filled: str, shared_broker: RunningBroker
    ) -> None:
        other = f"{filled}-other"
        with Admin(shared_broker.address) as admin:
            admin.create_topic(other, queues=1)
        assert cli.run("group", "reset", member.group, other, "--to", "0").code == EXIT_OK

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["{topic}-not", "--to", "0"], EXIT_NOT_FOUND, "TOPIC_NOT_EXIST (17)"),
            (["{topic}", "--to", "9"], EXIT_ERROR, "has offset 9; its 2 queues hold"),
            (["{topic}", "--to", "0:9"], EXIT_ERROR, "offset 9 is not in queue 0"),
            (["{topic}", "--to", "5:0"], EXIT_USAGE, "queues 0 to 1, not 5"),
            (["{topic}", "--to", "-3"], EXIT_USAGE, "-3 counts messages of the topic"),
            (["{topic}"], EXIT_USAGE, "--to"),
        ],
    )
    def test_an_impossible_command_is_explained(
        self, cli: Cli, filled: str, arguments: list[str], code: int, said: str
    ) -> None:
        done = cli.run("group", "reset", "g", *(argument.replace("{topic}", filled) for argument in arguments))
        assert done.code == code
        assert said in done.err

    def test_nothing_is_committed_beyond_the_log(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, filled: str
    ) -> None:
        connection, body = connect(shared_broker), CONSUMER_OFFSET_STRUCT.pack(0, 3) + CONSUMER_OFFSET_STRUCT.pack(1, 4)
        fields = {"group": f"{filled}-x", "topic": filled, "count": 2}
        for command, more in ((UPDATE_CONSUMER_OFFSET, {}), (INVOKE_BROKER_TO_RESET_OFFSET, {"to": "offset"})):
            with pytest.raises(CommitIllegal):
                connection.call(command, fields | more, body).raise_for_error()
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-x", filled) == {}


class TestDelete:
    def test_a_running_group_stays(self, cli: Cli, member: RawMember) -> None:
        done = cli.run("group", "delete", member.group, "--yes")
        assert done.code == EXIT_ERROR
        assert "GROUP_RUNNING (1413)" in done.err
        assert cli.run("group", "status", member.group).code == EXIT_OK

    def test_a_group_is_forgotten_and_its_dead_letters_stay_as_they_are(
        self, cli: Cli, filled: str, shared_broker: RunningBroker, connect: ConnectionFactory
    ) -> None:
        group = f"{filled}-dead"
        bury(shared_broker, connect(shared_broker), group, [Message(filled, b"x"), Message(filled, b"y")])
        cli.run("group", "reset", group, filled, "--to", "earliest")
        cli.run("dlq", "purge", group, "--yes", "--before", "1")
        asked = cli.run("group", "delete", group)
        assert asked.code == EXIT_USAGE
        assert "--yes deletes without asking" in asked.err
        assert cli.run("group", "delete", group, "--yes").err == f"deleted group {group}\n"
        assert cli.run("group", "status", group).code == EXIT_NOT_FOUND
        assert cli.run("group", "delete", group, "--yes").code == EXIT_NOT_FOUND
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(group, filled) == {}
        (row,) = [row for row in cli.run("dlq", "list", "-o", "json").rows if row["group"] == group]
        assert (row["waiting"], row["messages"]) == (1, 2)


def test_an_outsider_commits_only_if_no_member_consumes(
    shared_broker: RunningBroker, member: RawMember, filled: str
) -> None:
    with Consumer(shared_broker.address) as consumer, Admin(shared_broker.address) as admin:
        with pytest.raises(GroupRunning):
            consumer.commit(member.group, filled, {0: 1})
        admin.create_topic(f"{filled}-aside", queues=1)
        consumer.commit(member.group, f"{filled}-aside", {0: 0})
        with pytest.raises(GroupNotExist):
            admin.group(f"{filled}-nobody")


def test_messages_expired_by_retention_are_shown_as_missed(
    broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path
) -> None:
    running = broker(settings={**SOON, "store.commitlog_file_bytes": 4 * 1024 * 1024})
    with Cli(tmp_path, running.address) as cli:
        assert cli.run("group", "moved", "-o", "table").out == "no group has missed messages\n"
        fill(running, 2)
        member = joined(connect(running), "billing", "m-1", "orders")
        count = 20 + fill(running, 24)
        first = wait_for_min_offset(running, count - 41)
        with pytest.raises(OffsetOutOfRange):
            member.pull("orders", 0, 0).raise_for_error()
        deadline = time.monotonic() + 60
        while not (moved := cli.run("group", "moved", "billing", "-o", "json")).rows:
            assert time.monotonic() < deadline
        (event,) = moved.rows
        assert set(event) == described("group moved")
        assert {name: event[name] for name in event if name != "time"} == {
            "group": "billing",
            "topic": "orders",
            "queue": 0,
            "asked": 0,
            "moved_to": first,
            "missed": first,
        }
        assert cli.run("group", "moved", "other", "-o", "json").rows == []
        assert cli.run("group", "moved", "--since", "+1m", "-o", "json").rows == []
        assert json.loads(cli.run("status", "-o", "json").out)["offsets_moved"] == 1
