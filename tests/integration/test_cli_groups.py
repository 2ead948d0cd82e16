"""``flintmq group`` against a real broker, compared with the protocol's responses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, GroupConsumer, GroupNotExist, GroupRunning, OffsetOutOfRange, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_OK
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, INVOKE_BROKER_TO_RESET_OFFSET, UPDATE_CONSUMER_OFFSET
from flintmq.protocol.display import iso
from flintmq.protocol.errors import CommitIllegal
from tests.cli_tools import Cli, Terminal
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.group_tools import RawMember, joined, until
from tests.integration.test_cli_transcripts import documented
from tests.integration.test_retention import SOON, fill, wait_for_min_offset


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

    @pytest.mark.parametrize("columns", [80, 200])
    def test_the_screen_fits_its_terminal(self, cli: Cli, member: RawMember, filled: str, columns: int) -> None:
        terminal = Terminal(cli, ["group", "status", member.group], columns)
        assert terminal.finish() == EXIT_OK
        text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
        assert max(map(len, text.splitlines())) <= columns
        assert re.search(r"^TOPIC .* READY ", text, re.MULTILINE), "the queues are a table"
        assert ("FIRST" in terminal.text) == (columns == 200)


class TestList:
    def test_the_time_of_the_next_message_is_that_of_the_oldest_one_to_read(
        self, cli: Cli, member: RawMember, filled: str, shared_broker: RunningBroker
    ) -> None:
        (row,) = cli.run("group", "list", member.group, "-o", "json").rows
        with Consumer(shared_broker.address) as consumer:
            first = min(next(iter(consumer.pull(filled, queue, 0))).stored_at for queue in (0, 1))
        assert row["next_stored_at"] == iso(first)
        (status,) = cli.run("group", "status", member.group, "-o", "json").rows
        assert status["next_stored_at"] == row["next_stored_at"]


class TestReset:
    def test_a_running_group_is_reset_with_force_alone(self, cli: Cli, member: RawMember, filled: str) -> None:
        refused = cli.run("group", "reset", member.group, filled, "--to", "latest")
        assert refused.code == EXIT_ERROR
        assert "GROUP_RUNNING (1413)" in refused.err
        assert "m-1" in refused.err
        granted = member.epoch
        reset = cli.run("group", "reset", member.group, filled, "--to", "0:3", "--force", "-o", "json")
        assert reset.rows == [{"group": member.group, "topic": filled, "queue": 0, "before": 0, "after": 3}]
        member.beat(filled)
        anew = {(row[0], queue): row[1] > granted for (name, queue), row in member.rows.items() if name == filled}
        assert anew == {(3, 0): True, (0, 1): False}

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
        assert set(event) == documented("group moved")
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
