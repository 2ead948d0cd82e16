"""``flintmq`` as a process: pipes, signals, terminals, completion, exit codes."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_FOUND
from flintmq.protocol.standard_output import EXIT_CLOSED_PIPE, EXIT_OUTPUT
from tests.cli_tools import PROGRAM, Cli, Terminal
from tests.conftest import BrokerFactory, RunningBroker

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """Create a topic of one queue with 20,000 numbered messages."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=1)
        producer.send_bulk(topic, [b"%05d" % number for number in range(20_000)], tags="eu")
    return topic


class TestLines:
    def test_many_lines_keep_their_order_and_number(self, cli: Cli, shared_broker: RunningBroker, topic: str) -> None:
        lines = [b"%d" % number * 20 for number in range(50_000)]
        assert cli.spawn("send", topic, "--queue", "0", stdin=b"\n".join(lines)).code == 0
        with Consumer(shared_broker.address) as consumer:
            assert [message.body for message in consumer.iter(topic, until="latest")] == lines

    def test_a_topic_is_followed_from_its_last_ten_messages(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        process = cli.start("tail", filled, "--count", "11")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)] == [b"%05d\n" % n for n in range(19_990, 20_000)]
        with Producer(shared_broker.address) as producer:
            producer.send(Message(filled, b"late"))
        assert process.communicate()[0] == b"late\n"
        assert process.returncode == 0

    def test_a_line_that_is_typed_slowly_is_sent_at_once(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Admin(shared_broker.address) as admin:
            admin.create_topic(topic, queues=1)
        process = cli.start("send", topic, "--receipts", stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(b"line %d\nrest" % number)
            process.stdin.flush()
            assert process.stdout.readline().split(b"\t")[2] == b"%d" % number
        process.communicate()
        assert cli.run("pull", topic).lines == ["line 0", "restline 1", "restline 2", "rest"]


class TestPipes:
    @pytest.mark.parametrize("mode", ["plain", "json"])
    def test_a_reader_that_has_enough_ends_it_in_silence(self, cli: Cli, filled: str, mode: str) -> None:
        process = cli.start("tail", filled, "--from", "earliest", "-o", mode)
        assert process.stdout is not None
        assert b"00000" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == EXIT_CLOSED_PIPE

    def test_a_table_for_a_reader_that_is_gone_ends_in_silence(self, cli: Cli) -> None:
        reads, writes = os.pipe()
        os.close(reads)
        process = cli.start("status", "-o", "table", stdout=writes)
        os.close(writes)
        _, err = process.communicate()
        assert (process.returncode, err) == (EXIT_CLOSED_PIPE, b"")

    @pytest.mark.parametrize("arguments", ["pull {topic}", "status -o table", "top -n 1 -o json", "--help"])
    def test_output_that_cannot_be_written_is_said_in_a_line(self, cli: Cli, filled: str, arguments: str) -> None:
        with Path("/dev/full").open("wb") as full:
            process = cli.start(*arguments.format(topic=filled).split(), stdout=full)
        _, err = process.communicate()
        assert err.decode() == f"flintmq: cannot write the output: {os.strerror(errno.ENOSPC)}\n"
        assert process.returncode == EXIT_OUTPUT

    @pytest.mark.parametrize("arguments", ["status --bogus", "status -b 127.0.0.1:1", "pull {topic}x", "unknown x"])
    def test_errors_that_cannot_be_written_have_an_exit_code_of_their_own(
        self, cli: Cli, topic: str, arguments: str
    ) -> None:
        with Path("/dev/full").open("wb") as full:
            process = cli.start(*arguments.format(topic=topic).split(), stderr=full)
        process.communicate()
        assert process.returncode == EXIT_OUTPUT

    @pytest.mark.parametrize(("stream", "arguments"), [("0", "send {topic}"), ("1", "status")])
    def test_a_stream_that_is_closed_is_no_crash(self, cli: Cli, topic: str, stream: str, arguments: str) -> None:
        line = shlex.join([*PROGRAM, *arguments.format(topic=topic).split()])
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {line} {stream}<&-"],
            env=cli.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr

    def test_output_is_utf8_wherever_it_runs(self, cli: Cli, topic: str) -> None:
        cli.variables = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
        assert cli.spawn("send", topic, "grüße 漢").code == 0
        assert cli.spawn("pull", topic).out == "grüße 漢\n"
        assert cli.spawn("topic", "status", topic, "-o", "table").out.count("–") >= 3


class TestInterrupts:
    def test_ctrl_c_ends_tail_with_a_summary(self, cli: Cli, filled: str) -> None:
        process = cli.start("tail", filled)
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == EXIT_INTERRUPTED
        assert out == b""
        assert re.fullmatch(rb"10 messages in .*, .*/s\n", err)

    def test_ctrl_c_ends_send_with_the_acknowledged_messages(self, cli: Cli, topic: str) -> None:
        process = cli.start("send", topic, "--receipts", stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == EXIT_INTERRUPTED
        assert err.startswith(b"sent 2 messages (6 B)")

    def test_ctrl_c_ends_bench_with_its_measurements_and_deletes_the_topic(self, cli: Cli) -> None:
        process = cli.start("bench", "produce", "-n", "1000000000", "--batch", "10", "-o", "json")
        with Admin(cli.broker) as admin:
            while not admin.topics() or not _bench_topics_hold(admin):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == EXIT_INTERRUPTED
        assert b'"interrupted": true' in out
        assert b"interrupted: these are the figures up to then" in err
        with Admin(cli.broker) as admin:
            assert not [name for name in admin.topics() if name.startswith("flintmq-bench")]

    def test_ctrl_c_ends_top(self, cli: Cli) -> None:
        process = cli.start("top", "-i", "100ms")
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert (process.returncode, err) == (EXIT_INTERRUPTED, b"")


def _bench_topics_hold(admin: Admin) -> bool:
    names = [name for name in admin.topics() if name.startswith("flintmq-bench")]
    return any(stats.count for name in names for stats in admin.topic_stats(name))


def _shown_lines(text: str) -> list[str]:
    return [line for line in _SEQUENCE.sub("", text).replace("\r", "").split("\n") if line]


class TestTerminals:
    def test_top_draws_and_q_ends_it(self, cli: Cli, filled: str) -> None:
        terminal = Terminal(cli, ["top", "-i", "100ms"], 80)
        terminal.read_until("MESSAGES")
        terminal.type("q")
        assert terminal.finish() == 0
        assert "\x1b[?1049h" in terminal.text, "the alternate screen keeps what was there"
        assert terminal.text.index("\x1b[?1049l") > terminal.text.index("\x1b[?1049h")

    @pytest.mark.parametrize("command", ["status", "topic status {topic}", "offset show", "topic list -m"])
    def test_tables_keep_to_the_terminal(self, cli: Cli, filled: str, command: str) -> None:
        terminal = Terminal(cli, command.format(topic=filled).split(), 40)
        assert terminal.finish() == 0
        lines = _shown_lines(terminal.text)
        assert lines
        assert max(map(len, lines)) <= 40

    def test_bench_shows_progress_and_a_histogram(self, cli: Cli) -> None:
        terminal = Terminal(cli, ["bench", "produce", "-n", "20000", "--batch", "100"], 40)
        assert terminal.finish() == 0
        lines = _shown_lines(terminal.text)
        assert any("20,000 messages in" in line for line in lines)
        assert any("p99" in line for line in lines)
        histogram = [line for line in lines if re.match(r" +< ", line)]
        assert histogram
        assert max(map(len, histogram)) <= 40

    def test_tail_shows_messages_and_ctrl_c_ends_it(self, cli: Cli, filled: str) -> None:
        terminal = Terminal(cli, ["tail", filled], 80)
        terminal.read_until("19999")
        terminal.type("\x03")
        assert terminal.finish() == EXIT_INTERRUPTED
        assert re.search(r"\d+ messages in .*/s", terminal.text)
        assert "0:19999" in _SEQUENCE.sub("", terminal.text)


def test_the_console_script_is_installed(cli: Cli) -> None:
    script = Path(sys.executable).with_name("flintmq")
    done = subprocess.run([script, "status"], env=cli.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "write_offset\t" in done.stdout


def test_deleting_asks_first(cli: Cli, filled: str) -> None:
    terminal = Terminal(cli, ["topic", "delete", filled], 80)
    terminal.read_until("[y/N]")
    assert f"delete topic {filled} with 20,000 messages?" in terminal.text
    terminal.type("n\n")
    assert terminal.finish() == EXIT_ERROR
    assert "nothing was deleted" in terminal.text
    terminal = Terminal(cli, ["topic", "delete", filled], 80)
    terminal.read_until("[y/N]")
    terminal.type("y\n")
    assert terminal.finish() == 0
    assert cli.run("topic", "status", filled).code == EXIT_NOT_FOUND


def test_arrows_scroll_top(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Admin(running.address) as admin:
        for number in range(20):
            admin.create_topic(f"topic-{number:02}", queues=1)
    with Cli(tmp_path, running.address) as cli:
        terminal = Terminal(cli, ["top", "-i", "100ms"], 80)
        terminal.read_until("more below")
        assert "topic-00" in terminal.text
        assert "topic-19" not in terminal.text
        terminal.type("\x1b[B")
        terminal.read_until("1 more above")
        terminal.type("\x1b[F")
        terminal.read_until("topic-19")
        terminal.type("q")
        assert terminal.finish() == 0


def test_top_reports_a_lost_broker_and_shows_it_when_it_is_back(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Cli(tmp_path, running.address) as cli:
        terminal = Terminal(cli, ["top", "-i", "100ms"], 80)
        terminal.read_until("no topics yet")
        assert running.stop() == 0
        terminal.read_until("CONNECTION_FAILED")
        again = broker("--listen", running.address, store=running.store)
        with Producer(again.address) as producer:
            producer.send(Message("after-the-restart", b"x"))
        terminal.read_until("after-the-restart")
        terminal.type("q")
        assert terminal.finish() == 0


def test_a_damaged_message_is_reported_and_the_others_are_shown(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Cli(tmp_path, running.address) as cli:
        assert cli.run("send", "orders", "first", "to be damaged", "last", "--queue", "0").code == 0
        with (running.store / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(log.read(4096).index(b"damaged"))
            log.write(b"DAMAGED")
        done = cli.run("tail", "orders", "--until", "latest", "-o", "json")
        assert done.code == EXIT_ERROR
        assert [row["body"] for row in done.rows] == ["first", "last"]
        assert "MESSAGE_CORRUPT: message at offset 1 of queue 0 of topic 'orders'" in done.err
