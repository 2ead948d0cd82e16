"""Times as bounds, in every reader: a beginning is inclusive, an end exclusive unless its reader says otherwise, store
times have whole milliseconds, and a time in the future is one by the broker's clock."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flintmq.client import Admin, Consumer, GroupConsumer, Message, Producer
from flintmq.client.arrow import read_store
from flintmq.protocol import commands
from tests.cli_tools import Cli
from tests.client_drivers import SYNC, Clients
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.console_tools import console_of
from tests.group_tools import until
from tests.time_tools import COUNT, MICROSECOND, Readers, Stored, check_bounds, numbers, shown, store
from tests.tools_runs import tool


@pytest.fixture
def stored(shared_broker: RunningBroker, topic: str) -> Stored:
    return store(shared_broker, topic)


def of_arrow(stream: object) -> list[int]:
    return numbers(pa.table(stream).column("body").to_pylist())


@pytest.mark.timeout(120)
def test_every_reader_has_each_message_on_its_side_of_a_time(broker: BrokerFactory, aio_clients: Clients) -> None:
    running = broker()
    found = store(running, "timed")
    topic, address = found.topic, running.address
    with SYNC.Consumer(address) as sync, aio_clients.Consumer(address) as aio:
        from_: Readers = {
            "arrow": lambda t: of_arrow(sync.arrow(topic, from_=t)),
            "arrow by key": lambda t: of_arrow(sync.arrow(topic, from_=t, key="k")),
            "read_store": lambda t: of_arrow(read_store(running.store, topic, since=t)),
        }
        end: Readers = {
            "arrow": lambda t: of_arrow(sync.arrow(topic, until=t)),
            "arrow by key": lambda t: of_arrow(sync.arrow(topic, until=t, key="k")),
            "read_store": lambda t: of_arrow(read_store(running.store, topic, until=t)),
        }
        inclusive: Readers = {}

        def add(name: str, reader: Consumer) -> None:
            def iterated(**bounds: datetime | str) -> list[int]:
                return numbers(message.body for message in reader.iter(topic, **bounds))  # type: ignore[arg-type]  # overloads do not take a mapping

            def browsed(t: datetime, newest_first: bool) -> list[int]:
                return numbers(row.body for row in reader.browse(topic, from_=t, newest_first=newest_first))

            from_[f"{name} iter"] = lambda t: iterated(from_=t, until="latest")
            from_[f"{name} offset_at"] = lambda t: list(range(reader.offset_at(topic, 0, t), COUNT))
            from_[f"{name} browse"] = lambda t: browsed(t, newest_first=False)
            from_[f"{name} query"] = lambda t: numbers(m.body for m in reader.query(topic, "k", since=t))
            end[f"{name} iter"] = lambda t: iterated(until=t)
            end[f"{name} browse"] = lambda t: browsed(t, newest_first=True)
            inclusive[f"{name} query"] = lambda t: numbers(m.body for m in reader.query(topic, "k", until=t))

        add("sync", sync)
        add("aio", aio)
        until(lambda: len(of_arrow(read_store(running.store, topic))) == COUNT)  # the files lag
        check_bounds(found, 30, from_=from_, end=end, inclusive=inclusive)


@pytest.mark.timeout(120)
def test_every_command_and_page_has_each_message_on_its_side_of_a_time(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    found = store(running, "timed")
    topic, address = found.topic, running.address
    copies = itertools.count()
    with Cli(tmp_path, address) as cli, SYNC.Consumer(address) as reader, console_of(running) as console:

        def dump(*options: str) -> list[int]:
            done = tool("dump", "--running", "--topic", topic, *options, running.store)
            assert done.code == 0, done.errors
            return numbers(json.loads(line)["body"] for line in done.output)

        def exported(*options: str) -> list[int]:
            return numbers(row["body"] for row in cli.run("export", topic, *options).rows)

        def printed(*command: str) -> list[int]:
            return numbers(row["body"] for row in cli.run(*command, "-o", "json").rows)

        def copied(*options: str) -> list[int]:
            target = f"copy-{next(copies)}"
            assert cli.run("copy", topic, target, *options).code == 0
            return numbers(message.body for message in reader.iter(target, until="latest"))

        def reset(t: datetime) -> list[int]:
            done = cli.run("group", "reset", "g", topic, "--to", shown(t), "--queue", "0", "--dry-run", "-o", "json")
            return list(range(done.rows[0]["after"], COUNT))

        def listed(t: datetime) -> list[int]:
            page = console.get(f"/topics/{topic}", params={"from": shown(t)}).text
            return sorted(map(int, set(re.findall(rf'href="/topics/{topic}/0/(\d+)"', page))))

        def previewed(t: datetime) -> list[int]:
            page = console.get("/groups/g/reset", params={"topic": topic, "to": shown(t)}).text
            (offset,) = re.findall(r'name="offsets" value="0=(\d+) ', page)
            return list(range(int(offset), COUNT))

        from_: Readers = {
            "export": lambda t: exported("--from", shown(t)),
            "export by key": lambda t: exported("--from", shown(t), "--key", "k"),
            "pull": lambda t: printed("pull", topic, "--from", shown(t)),
            "pull of a queue": lambda t: printed("pull", topic, "--queue", "0", "--from", shown(t)),
            "tail": lambda t: printed("tail", topic, "--from", shown(t), "--until", "latest"),
            "query": lambda t: printed("query", "key", topic, "k", "--since", shown(t)[1:]),
            "dump": lambda t: dump("--since", shown(t)),
            "copy": lambda t: copied("--from", shown(t)),
            "copy by key": lambda t: copied("--from", shown(t), "--key", "k"),
            "group reset": reset,
            "console, list": listed,
            "console, reset": previewed,
        }
        end: Readers = {
            "export": lambda t: exported("--until", shown(t)),
            "export by key": lambda t: exported("--until", shown(t), "--key", "k"),
            "copy": lambda t: copied("--until", shown(t)),
            "copy by key": lambda t: copied("--until", shown(t), "--key", "k"),
            "tail": lambda t: printed("tail", topic, "--from", "earliest", "--until", shown(t)),
        }
        inclusive: Readers = {
            "dump": lambda t: dump("--until", shown(t)),
            "query": lambda t: printed("query", "key", topic, "k", "--until", shown(t)[1:]),
        }
        until(lambda: len(of_arrow(read_store(running.store, topic))) == COUNT)  # the files lag
        check_bounds(found, 6, from_=from_, end=end, inclusive=inclusive)


def test_a_group_begins_between_two_milliseconds(stored: Stored, clients: Clients) -> None:
    moment = stored.at[1] + 500 * MICROSECOND
    for mode in ("clustering", "work"):
        with clients.GroupConsumer(
            stored.broker.address, f"{stored.topic}-{mode}-{clients.name}", stored.topic, start=moment, mode=mode
        ) as group:
            got: list[bytes] = []
            while len(got) < COUNT - 2:
                for delivery in group.receive(10, 10):
                    got.append(delivery.message.body)
                    delivery.ack()
            assert numbers(got) == [2, 3, 4, 5]


def test_what_was_sent_before_now_is_read_until_now(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
        for _ in range(40):
            receipt = producer.send(Message(topic, b"x"), queue=0)
            now = datetime.now(UTC)
            assert now < receipt.stored_at or list(consumer.iter(topic, from_={0: receipt.queue_offset}, until=now))


def send_around(broker: RunningBroker, topic: str, later: datetime) -> None:
    """Send a message before ``later``, and one after it, by the broker's clock."""
    with Producer(broker.address) as producer:
        assert producer.send(Message(topic, b"early"), queue=0).stored_at < later, "the machine is too slow"
        while producer.send(Message("clock", b""), queue=0).stored_at < later:
            time.sleep(0.01)
        producer.send(Message(topic, b"late"), queue=0)


@pytest.fixture
def empty(shared_broker: RunningBroker, topic: str) -> str:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic, queues=1)
    return topic


def test_a_reader_that_begins_in_the_future_begins_then(
    shared_broker: RunningBroker, empty: str, clients: Clients, tmp_path: Path
) -> None:
    address, later = shared_broker.address, datetime.now(UTC) + timedelta(seconds=3)
    seen: dict[str, list[bytes]] = {name: [] for name in ("iter", "push", "clustering", "work")}
    push = clients.PushConsumer(address, f"{empty}-push", empty, lambda m: seen["push"].append(m.body), start=later)
    with (
        clients.Consumer(address) as reader,
        clients.GroupConsumer(address, f"{empty}-group", empty, start=later) as group,
        clients.GroupConsumer(address, f"{empty}-work", empty, start=later, mode="work") as work,
        push,
        SYNC.Admin(address) as admin,
    ):
        messages = reader.iter(empty, from_=later)
        following = threading.Thread(target=lambda: seen["iter"].append(next(messages).body))
        following.start()
        until(
            lambda: all(admin.group(f"{empty}-{name}").members for name in ("push", "group")), "the members have joined"
        )
        assert work.receive(1, 0.01) == []
        send_around(shared_broker, empty, later)
        for name, consumer in (("clustering", group), ("work", work)):
            until(partial(take, consumer, seen[name]), "a delivery")
        following.join(60)
        until(lambda: bool(seen["push"]), "the push consumer's message")
    assert seen == {name: [b"late"] for name in seen}


def take(consumer: GroupConsumer, bodies: list[bytes]) -> bool:
    """Acknowledge what arrives, if anything does."""
    for delivery in consumer.receive(10, 0.5):
        bodies.append(delivery.message.body)
        delivery.ack()
    return bool(bodies)


def test_a_reader_that_ends_in_the_future_ends_then(shared_broker: RunningBroker, empty: str, clients: Clients) -> None:
    later = datetime.now(UTC) + timedelta(seconds=2)
    with clients.Consumer(shared_broker.address) as reader:
        messages = reader.iter(empty, until=later)
        send_around(shared_broker, empty, later)
        assert [message.body for message in messages] == [b"early"]


def test_pull_waits_for_the_time_at_which_it_begins(shared_broker: RunningBroker, empty: str, tmp_path: Path) -> None:
    later = datetime.now(UTC) + timedelta(seconds=2)
    with Cli(tmp_path, shared_broker.address) as cli:
        wanted = ("pull", empty, "--queue", "0", "--from", shown(later), "--wait", "20s", "-n", "1", "-o", "json")
        done: list[Any] = []
        pulling = threading.Thread(target=lambda: done.append(cli.run(*wanted).rows))
        pulling.start()
        send_around(shared_broker, empty, later)
        pulling.join(60)
    assert [[row["body"] for row in rows] for rows in done] == [["late"]]


def test_the_broker_says_how_far_a_time_is_in_the_future(
    shared_broker: RunningBroker, empty: str, connect: ConnectionFactory
) -> None:
    connection = connect(shared_broker)
    asked = {"topic": empty, "queue": 0}
    for ahead_ms, least, most in ((-1000, 0, 0), (60_000, 1, 61_000)):
        at = int(time.time() * 1000) + ahead_ms
        answer = connection.call(commands.SEARCH_OFFSET_BY_TIMESTAMP, asked | {"timestamp_ms": at})
        assert (answer.fields["offset"], least <= answer.fields.get("left_ms", 0) <= most) == (0, True)
