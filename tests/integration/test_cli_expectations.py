"""Commands that users of other brokers expect, and the messages they get, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Producer
from flintmq.client.cli.failures import EXIT_NOT_FOUND, EXIT_UNREACHED, EXIT_USAGE
from tests.cli_tools import Cli
from tests.conftest import RunningBroker


@pytest.fixture
def cli(tmp_path: Path, shared_broker: RunningBroker) -> Iterator[Cli]:
    """The command line, connected to the shared broker."""
    with Cli(tmp_path, shared_broker.address) as cli:
        yield cli


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """A topic with two queues and three messages in each."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for queue in (0, 1):
            producer.send_bulk(topic, [b"x"] * 3, queue=queue, tags="eu")
    return topic


def _names(cli: Cli, *options: str) -> list[str]:
    return [row["topic"] for row in cli.run("topic", "list", *options, "-o", "json").rows]


class TestWords:
    def test_the_words_of_other_brokers_send_and_read(self, cli: Cli, topic: str) -> None:
        for word in ("produce", "pub", "publish"):
            assert cli.run(word, topic, word).code == 0
        for word in ("consume", "sub", "subscribe"):
            assert sorted(cli.run(word, topic, "--count", "3").lines) == ["produce", "pub", "publish"]
        assert cli.run("ls", topic).lines == cli.run("topic", "list", topic).lines
        assert cli.run("info", "-o", "json").rows[0]["store_path"]

    @pytest.mark.parametrize("word", ["help", "hlep", "version", "consume", "list", "serve", "HELP", "topics"])
    def test_a_word_that_looks_like_a_command_never_creates_a_topic(self, cli: Cli, word: str) -> None:
        done = cli.spawn(word, stdin=b"x\n")
        assert word not in _names(cli, "--system")
        assert done.code in (0, EXIT_USAGE)
        assert done.out if done.code == 0 else "there is no command" in done.err or "missing argument" in done.err
        assert cli.spawn(word).code in (0, EXIT_USAGE)

    def test_a_command_of_another_broker_is_answered_with_the_name_here(self, cli: Cli) -> None:
        assert "did you mean 'topic list'?" in cli.spawn("list", stdin=b"x\n").err
        assert "flintmq-broker serve starts a broker" in cli.spawn("serve", stdin=b"x\n").err
        assert "did you mean 'help'?" in cli.spawn("hlep", stdin=b"x\n").err

    def test_an_existing_topic_with_such_a_name_can_be_used(self, cli: Cli) -> None:
        assert cli.run("send", "streams", "first").code == 0
        assert cli.spawn("streams", stdin=b"second\n").code == 0
        assert sorted(cli.spawn("streams", "-n", "2").out.split()) == ["first", "second"]
        cli.run("topic", "rm", "streams", "-y")
        assert "streams" not in _names(cli)


class TestTimes:
    @pytest.mark.parametrize("command", ["tail {topic} --from", "pull {topic} --offset", "tail {topic} --until"])
    def test_a_bare_time_of_day_is_refused_as_a_position(self, cli: Cli, filled: str, command: str) -> None:
        done = cli.run(*command.format(topic=filled).split(), "12:00")
        assert done.code == EXIT_USAGE
        assert "@12:00" in done.err
        assert "12=0" in done.err

    def test_a_bare_time_of_day_does_not_move_a_group(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        done = cli.run("group", "reset", f"{filled}-g", filled, "--to", "0:02")
        assert (done.code, done.out) == (EXIT_USAGE, "")
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-g", filled) == {}
        assert cli.run("group", "reset", f"{filled}-g", filled, "--to", "0=2").code == 0
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-g", filled) == {0: 2}

    @pytest.mark.parametrize("time", ["-1h", "@-1h", "2026-01-01", "@2026-01-01T00:00Z", "2026-01-01T00:00"])
    def test_all_commands_accept_the_same_times(self, cli: Cli, filled: str, time: str) -> None:
        assert len(cli.run("tail", filled, "--from", time, "--until", "now").lines) == 6
        assert len(cli.run("pull", filled, "--from", time).lines) == 6
        assert len(cli.run("query", "time", filled, time).lines) == 6
        assert cli.run("query", "key", filled, "k", "--since", time).code == EXIT_NOT_FOUND
        assert cli.run("group", "reset", f"{filled}-g", filled, "--to", time, "--dry-run").code == 0
        assert cli.run("group", "moved", "--since", time).code == 0


class TestTopics:
    def test_topics_of_groups_are_listed_only_on_request(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        own = [f"%DLQ%{topic}", f"%RETRY%{topic}"]
        with Admin(shared_broker.address) as admin:
            for name in (topic, *own):
                admin.create_topic(name, queues=1)
        assert not [name for name in _names(cli) if name.startswith("%")]
        assert topic in _names(cli)
        assert set(own) <= set(_names(cli, "--system"))
        assert {row["system"] for row in cli.run("topic", "list", "%*", "--system", "-o", "json").rows} == {True}
        assert set(own) <= set(_names(cli, "%*"))
        for options, shown in (((), False), (("--system",), True)):
            row = cli.run("top", "-n", "1", "-i", "100ms", "-o", "json", *options).rows[0]
            assert (own[0] in {each["topic"] for each in row["topics"]}) is shown

    def test_removing_queues_is_refused_with_their_numbers(self, cli: Cli, filled: str) -> None:
        done = cli.run("topic", "update", filled, "--queues", "1")
        assert done.code == EXIT_USAGE
        assert "TOPIC_EXIST_ALREADY" not in done.err
        assert f"topic {filled} has 2 read queues and 2 write queues; they cannot be reduced to 1 and 1" in done.err
        assert len(cli.run("topic", "status", filled).lines) == 2


class TestNothing:
    @pytest.mark.parametrize("command", [["pull"], ["tail", "--from", "earliest", "--until", "latest"]])
    def test_an_empty_result_is_reported(self, cli: Cli, filled: str, command: list[str]) -> None:
        for options, said in (
            (["--filter", "amount > 5"], "there matching the filter amount > 5"),
            (["--tag", "us"], "there with the tag us"),
        ):
            done = cli.run(*command, filled, *options)
            assert (done.code, done.out) == (0, "")
            assert said in done.err
            assert cli.run("-q", *command, filled, *options).err == ""
        assert cli.run(*command, filled, "--tag", "eu").err == ""

    def test_an_empty_topic_is_reported(self, cli: Cli, topic: str) -> None:
        cli.run("topic", "create", topic)
        assert f"found no message of topic {topic} there" in cli.run("pull", topic).err

    @pytest.mark.parametrize("word", ["XYZ", "o.1", "7F0000010F8C2DCA0A6B92885F0000A", "g" * 32])
    def test_an_invalid_message_id_is_reported(self, cli: Cli, word: str) -> None:
        done = cli.run("query", "id", word)
        assert done.code == EXIT_NOT_FOUND
        assert f"'{word}' is not a message id" in done.err
        assert "is not a message id" not in cli.run("query", "id", "7F0000010F8C2DCA0A6B92885F0000AA").err


def test_connecting_to_the_metrics_port_is_explained(cli: Cli, shared_broker: RunningBroker) -> None:
    with Admin(shared_broker.address) as admin:
        metrics = admin.status()["metrics_address"]
    done = cli.run("-b", metrics, "status")
    assert done.code == EXIT_UNREACHED
    assert f"the server at {metrics} is not a FlintMQ broker: it responds with HTTP" in done.err
    assert "connect to the broker's own port" in done.err


def test_a_port_without_a_host_is_refused(cli: Cli) -> None:
    done = cli.run("-b", "10911", "status")
    assert done.code == EXIT_USAGE
    assert "is a port without a host; write it as '127.0.0.1:10911'" in done.err
