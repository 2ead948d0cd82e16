"""``flintmq copy``, ``export`` and ``import`` against real brokers."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, StoredMessage
from flintmq.client.cli.failures import EXIT_INTERRUPTED
from tests.cli_tools import Cli
from tests.conftest import RunningBroker

COUNT = 2_500
"""More than two batches."""


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """Create a topic of three queues whose messages differ in everything that a copy must keep."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=3)
        producer.send_many(message(topic, number) for number in range(COUNT))
    return topic


def message(topic: str, number: int) -> Message:
    bodies = [f"text {number}".encode(), b"\xff\x00" + number.to_bytes(4, "big"), b"", "zwölf\n".encode() * 1_000]
    return Message(
        topic,
        bodies[number % 4],
        keys=[f"k{number}", f"all-{number % 7}"] if number % 3 else (),
        tags=["odd", None][number % 2],
        properties={"number": str(number), "ü": " x "},
        sharding_key=f"s{number % 10}" if number % 5 else None,
    )


def parts(found: StoredMessage) -> tuple[object, ...]:
    return found.body, found.keys, found.tags, found.sharding_key, dict(found.user_properties)


def by_queue(running: RunningBroker, topic: str) -> dict[int, list[StoredMessage]]:
    found: dict[int, list[StoredMessage]] = defaultdict(list)
    with Consumer(running.address) as consumer:
        for each in consumer.iter(topic, until="latest"):
            found[each.queue].append(each)
    return found


def assert_same(running: RunningBroker, topic: str, copied: str) -> None:
    """Check that both topics have the same messages in the same queues, in the same order."""
    before, after = by_queue(running, topic), by_queue(running, copied)
    assert before.keys() == after.keys()
    for queue, messages in before.items():
        assert list(map(parts, messages)) == list(map(parts, after[queue]))


class TestCopy:
    def test_a_copy_has_everything_in_the_same_order(self, cli: Cli, shared_broker: RunningBroker, filled: str) -> None:
        done = cli.run("copy", filled, f"{filled}-copy")
        assert done.code == 0, done.err
        assert f"copied {COUNT:,} messages" in done.err
        assert f"created topic {filled}-copy with 3 queues" in done.err
        assert_same(shared_broker, filled, f"{filled}-copy")

    def test_the_order_of_each_sharding_key_stays_with_another_number_of_queues(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        target = f"{filled}-two"
        with Admin(shared_broker.address) as admin:
            admin.create_topic(target, queues=2)
        assert cli.run("copy", filled, target).code == 0
        with Producer(shared_broker.address) as producer:
            routed = {
                key: producer.send(Message(target, b"probe", sharding_key=key)).queue for key in ("s1", "s2", "s9")
            }
        found = by_queue(shared_broker, target)
        for key, queue in routed.items():
            copies = [each for each in found[queue] if each.sharding_key == key and each.body != b"probe"]
            assert [int(each.user_properties["number"]) for each in copies] == [
                n for n in range(COUNT) if n % 5 and f"s{n % 10}" == key
            ]
        assert sum(map(len, found.values())) == COUNT + len(routed)

    def test_a_topic_copied_into_itself_ends(self, cli: Cli, shared_broker: RunningBroker, filled: str) -> None:
        assert cli.run("copy", filled, filled, "--tag", "odd").code == 0
        assert sum(map(len, by_queue(shared_broker, filled).values())) == COUNT + COUNT // 2

    def test_a_key_is_replayed_oldest_first(self, cli: Cli, shared_broker: RunningBroker, filled: str) -> None:
        target = f"{filled}-key"
        assert cli.run("copy", filled, target, "--key", "all-1", "--filter", "number > 1000").code == 0
        expected = [n for n in range(1_001, COUNT) if n % 3 and n % 7 == 1]
        copies = [each for messages in by_queue(shared_broker, target).values() for each in messages]
        assert sorted(int(each.user_properties["number"]) for each in copies) == expected
        for queue, messages in by_queue(shared_broker, filled).items():
            chosen = [each for each in messages if int(each.user_properties["number"]) in expected]
            assert list(map(parts, by_queue(shared_broker, target)[queue])) == list(map(parts, chosen))

    def test_times_and_positions_choose_messages(self, cli: Cli, shared_broker: RunningBroker, topic: str) -> None:
        with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
            admin.create_topic(topic, queues=1)
            producer.send(Message(topic, b"before", keys="k"))
            while datetime.now(UTC) <= by_queue(shared_broker, topic)[0][0].stored_at:
                pass  # the next millisecond
            producer.send(Message(topic, b"after", keys="k"))
        moment = by_queue(shared_broker, topic)[0][1].stored_at.isoformat()
        for number, options in enumerate(
            (["--from", f"@{moment}"], ["--from", f"@{moment}", "--key", "k"], ["--from", "1"])
        ):
            target = f"{topic}-{number}"
            assert cli.run("copy", topic, target, *options).code == 0
            assert [each.body for each in by_queue(shared_broker, target)[0]] == [b"after"]

    def test_an_interrupted_copy_names_the_way_to_continue_and_copies_nothing_twice(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
            admin.create_topic(topic, queues=3)
            admin.create_topic(f"{topic}-copy", queues=3)
            producer.send_bulk(topic, [b"%d" % number for number in range(60_000)])
        process = cli.start("copy", topic, f"{topic}-copy")
        with Consumer(shared_broker.address) as consumer:
            while not any(queue.max_offset for queue in consumer.topic_stats(f"{topic}-copy")):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == EXIT_INTERRUPTED
        assert process.stderr is not None
        said = process.stderr.read().decode()
        (rest,) = re.findall(r"interrupted; --from (\S+) continues", said)
        assert cli.run("copy", topic, f"{topic}-copy", "--from", rest).code == 0
        assert_same(shared_broker, topic, f"{topic}-copy")


class TestExportAndImport:
    def test_exported_messages_are_imported_in_the_same_order(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        exported = cli.run("export", filled)
        assert (exported.code, len(exported.lines)) == (0, COUNT)
        assert f"exported {COUNT:,} messages from {filled}" in exported.err
        target = f"{filled}-imported"
        assert cli.run("topic", "create", target, "--queues", "3").code == 0
        done = cli.run("import", target, stdin=exported.out)
        assert done.code == 0, done.err
        assert f"imported {COUNT:,} messages" in done.err
        assert_same_but_for_sharding(shared_broker, filled, target)

    def test_an_interrupted_import_acknowledges_the_messages_it_read(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        cli.run("topic", "create", topic, "--queues", "1")
        process = cli.start("import", topic, stdin=-1)
        assert process.stdin is not None
        process.stdin.write(b'{"body": "x"}\n' * 1_500)
        process.stdin.flush()
        while not by_queue(shared_broker, topic):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == EXIT_INTERRUPTED
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert f"imported {len(by_queue(shared_broker, topic)[0]):,} messages" in said


def assert_same_but_for_sharding(running: RunningBroker, topic: str, imported: str) -> None:
    """Check that both have the same messages: those without a sharding key by queue, the others by key, in order."""

    def split(found: dict[int, list[StoredMessage]]) -> tuple[object, object]:
        keyed: dict[str, list[object]] = defaultdict(list)
        plain: dict[int, list[object]] = defaultdict(list)
        for queue, messages in found.items():
            for each in messages:
                if each.sharding_key is not None:
                    keyed[each.sharding_key].append(parts(each))
                else:
                    plain[queue].append(parts(each))
        return keyed, plain

    assert split(by_queue(running, topic)) == split(by_queue(running, imported))
