"""Consumers and the command line at a damaged message, in a part of the log that no start has checked."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import MessageStore
from flintmq.broker.tools.repair import examine, repair
from flintmq.client import Consumer, CorruptMessage, MessageDamaged, StoredMessage
from flintmq.client.cli.failures import EXIT_ERROR
from flintmq.protocol.storage.delivery import PROPERTY_RETRY_TOPIC, dead_letter_topic
from flintmq.protocol.storage.record import Record, encode_properties
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, Brokers, RunningBroker
from tests.group_tools import Seen, until
from tests.store_tools import SERVED, dispatch, make_topic, open_store, overwrite, plain, put

UNCHECKED = {"store.verify_at_start_bytes": 0}
DAMAGED, MESSAGES = 7, 20
BODY_AT = 88
"""Offset of the body in a record, with IPv4 hosts."""
EXPECTED = [message.body for number, message in enumerate(plain(MESSAGES)) if number != DAMAGED]


LETTERS = 6
LOST_LETTERS = (0, 3, LETTERS - 1)


def bury(store: MessageStore, group: str) -> list[int]:
    """Send a group's dead letters, taken from the topic ``again-GROUP``; return their physical offsets."""
    make_topic(store, f"again-{group}", 1)
    make_topic(store, dead_letter_topic(group), 1)
    records = [
        Record(
            topic=dead_letter_topic(group).encode(),
            body=b"%d" % number,
            properties=encode_properties({PROPERTY_RETRY_TOPIC: f"again-{group}"}),
        )
        for number in range(LETTERS)
    ]
    store.append_records(records)
    dispatch(store)
    return [record.physical_offset for record in records]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped store with a damaged record in queue 0 of `orders`, a damaged body in queue 0 of `bills` and in
    the dead letters of `stops`; those of `goes-on` have contained holes."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    store = open_store(path, SERVED)
    dead = {group: bury(store, group) for group in ("goes-on", "stops")}
    for topic in ("orders", "bills"):
        make_topic(store, topic, 2)
    sent = put(store, "orders", 0, plain(MESSAGES))
    put(store, "orders", 1, plain(MESSAGES, first=100))
    bills = put(store, "bills", 0, plain(MESSAGES))
    store.close()
    log = path / "commitlog" / f"{0:020d}"
    for number in LOST_LETTERS:
        overwrite(log, dead["goes-on"][number], bytes(60))
    open_store(path, SERVED).close()
    overwrite(log, dead["stops"][2], bytes(60))
    overwrite(log, sent[DAMAGED].physical_offset, bytes(60))
    overwrite(log, bills[DAMAGED].physical_offset + BODY_AT, b"X")
    return path


@pytest.fixture(scope="module")
def damaged(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Start a broker on it, for tests that leave the damage unchanged."""
    brokers = Brokers(tmp_path_factory.mktemp("brokers"))
    yield brokers.start(store=shutil.copytree(stopped, stopped.with_name("served")), settings=UNCHECKED)
    brokers.stop_all()


# The SDK.


def test_an_iteration_ends_at_a_damaged_record_with_an_error_that_names_message_and_remedy(
    clients: Clients, damaged: RunningBroker
) -> None:
    with (
        clients.Consumer(damaged.address) as consumer,
        pytest.raises(MessageDamaged, match=rf"message {DAMAGED} of queue 0.*repair --apply.*offset {DAMAGED + 1}"),
    ):
        list(consumer.iter("orders", until="latest"))


def test_an_iteration_names_a_damaged_body_and_continues_after_it(clients: Clients, damaged: RunningBroker) -> None:
    bodies = []
    with clients.Consumer(damaged.address) as consumer:
        for message in consumer.iter("bills", until="latest"):
            if message.queue_offset == DAMAGED:
                with pytest.raises(CorruptMessage, match=rf"offset {DAMAGED} of queue 0 of topic 'bills'"):
                    _ = message.body
            else:
                bodies.append(message.body)
    assert bodies == EXPECTED


@dataclass
class RunningConsumer:
    """A push consumer in one of the modes: single messages, batches, or orderly."""

    consumer: Any
    group: str
    seen: Seen


MODES: dict[str, dict[str, Any]] = {"each": {}, "batch": {"batch": 4}, "orderly": {"orderly": True}}


def test_push_consumers_report_the_damaged_queue_handle_the_others_and_continue_after_the_repair(
    clients: Clients, stopped: Path, tmp_path: Path, broker: BrokerFactory
) -> None:
    """One consumer handles single messages, one batches, and one is orderly."""
    running = broker(store=shutil.copytree(stopped, tmp_path / "store"), settings=UNCHECKED)
    with contextlib.ExitStack() as stack:
        consumers = []
        for group, options in MODES.items():
            seen = Seen()
            consumer = clients.PushConsumer(running.address, group, "orders", seen, start="first", **options)
            consumers.append(RunningConsumer(stack.enter_context(consumer), group, seen))
        for each in consumers:
            assert_shows_the_damage(each)
        assert running.stop() == 0
        repair(running.store, examine(running.store, lambda *_: None), lambda *_: None)
        again = broker("--listen", running.address, store=running.store)
        reader = stack.enter_context(clients.Consumer(again.address))
        for each in consumers:
            assert_continued(each, reader)


def assert_shows_the_damage(each: RunningConsumer) -> None:
    each.seen.wait(MESSAGES + DAMAGED)
    until(lambda: bool(each.consumer.health().refused), f"the refusal ({each.group})")
    health = each.consumer.health()
    assert health.alive
    assert list(health.refused) == [("orders", 0)]
    error = health.refused["orders", 0]
    assert isinstance(error, MessageDamaged)
    assert f"message {DAMAGED} of queue 0" in str(error)


def assert_continued(each: RunningConsumer, reader: Any) -> None:
    until(lambda: set(EXPECTED) <= set(each.seen.bodies), f"the messages after the hole ({each.group})")
    until(lambda: not each.consumer.health().refused, f"the end of the refusal ({each.group})")
    until(lambda: reader.committed(each.group, "orders").get(0) == MESSAGES, f"the commit ({each.group})")


def test_a_body_with_a_wrong_checksum_fails_in_the_listener_and_becomes_a_dead_letter(
    clients: Clients, damaged: RunningBroker
) -> None:
    bodies: list[bytes] = []
    errors: list[str] = []

    def listener(message: StoredMessage) -> None:
        try:
            bodies.append(bytes(message.body))
        except CorruptMessage as error:
            errors.append(str(error))
            raise

    group = f"given-up-{clients.name}"
    with clients.PushConsumer(damaged.address, group, "bills", listener, start="first", retry_times_max=1) as consumer:
        until(lambda: consumer.health().skipped == 1, "the end of its tries")
    assert bodies == EXPECTED
    assert all(f"offset {DAMAGED} of queue 0 of topic 'bills'" in error for error in errors)
    assert len(errors) == 2


# The command line.

RECORD_LINE = f"flintmq: MESSAGE_DAMAGED (1421): message {DAMAGED} of queue 0 of 'orders' is damaged"
BODY_LINE = "flintmq: MESSAGE_CORRUPT: "


@pytest.fixture
def cli(tmp_path: Path, damaged: RunningBroker) -> Cli:
    return Cli(tmp_path, damaged.address)


@pytest.mark.parametrize(
    "command",
    [
        ["pull", "orders", "--queue", "0", "-n", "100"],
        ["pull", "orders", "-n", "100"],
        ["tail", "orders", "--from", "earliest", "--until", "latest"],
        ["tail", "orders", "--from", "-100"],
    ],
    ids=" ".join,
)
def test_the_command_line_ends_at_a_damaged_record_with_one_line_that_says_how_to_skip_it(
    cli: Cli, command: list[str]
) -> None:
    done = cli.run(*command)
    assert done.code == EXIT_ERROR
    (line,) = done.err.splitlines()
    assert line.startswith(RECORD_LINE)
    assert f"offset {DAMAGED + 1}" in line


def test_the_command_line_continues_after_the_damage(cli: Cli) -> None:
    done = cli.run("pull", "orders", "--queue", "0", "--from", f"{DAMAGED + 1}", "-n", "100")
    assert (done.code, done.err) == (0, "")
    assert [line.encode() for line in done.lines] == EXPECTED[DAMAGED:]


@pytest.mark.parametrize(
    "command",
    [
        ["pull", "bills", "-n", "100"],
        ["tail", "bills", "--from", "earliest", "--until", "latest"],
        ["pull", "bills", "-n", "100", "-o", "json"],
    ],
    ids=" ".join,
)
def test_the_command_line_skips_a_damaged_body_names_it_and_ends_with_an_error(cli: Cli, command: list[str]) -> None:
    done = cli.run(*command)
    assert done.code == EXIT_ERROR
    (line,) = done.err.splitlines()
    assert line.startswith(BODY_LINE)
    assert f"offset {DAMAGED} of queue 0 of topic 'bills'" in line
    assert len(done.lines) == MESSAGES - 1


def test_a_query_by_key_does_not_report_a_damaged_message_as_unknown(cli: Cli) -> None:
    for topic, says in (("bills", BODY_LINE), ("orders", "flintmq: MESSAGE_DAMAGED: 1 record of topic orders")):
        done = cli.run("query", "key", topic, f"key-{DAMAGED}")
        assert (done.code, done.out) == (EXIT_ERROR, "")
        (line,) = done.err.splitlines()
        assert line.startswith(says)
        assert cli.run("query", "key", topic, f"key-{DAMAGED - 1}").code == 0


def test_a_query_by_id_names_a_damaged_body(cli: Cli, damaged: RunningBroker) -> None:
    with Consumer(damaged.address) as consumer:
        message_id = consumer.pull("bills", 0, DAMAGED, 1).messages[0].message_id
    done = cli.run("query", "id", message_id)
    assert (done.code, done.out) == (EXIT_ERROR, "")
    (line,) = done.err.splitlines()
    assert line.startswith(BODY_LINE)


# Dead letters.


def waiting(cli: Cli) -> dict[str, int]:
    listed = cli.run("dlq", "list", "-o", "json")
    assert (listed.code, listed.err) == (0, "")
    return {row["group"]: row["waiting"] for row in listed.rows}


def test_dead_letters_around_holes_are_resent_once(cli: Cli) -> None:
    assert waiting(cli)["goes-on"] == LETTERS
    for _ in range(2):
        assert cli.run("dlq", "resend", "goes-on").code == 0
        assert waiting(cli)["goes-on"] == 0
    sent = [str(number) for number in range(LETTERS) if number not in LOST_LETTERS]
    assert cli.run("pull", "again-goes-on", "-n", "100").lines == sent


def test_a_damaged_dead_letter_is_named_and_blocks_later_ones_until_it_is_skipped(cli: Cli) -> None:
    assert waiting(cli)["stops"] == LETTERS
    shown = cli.run("dlq", "show", "stops", "-o", "json")
    assert shown.code == EXIT_ERROR
    assert [row["body"] for row in shown.rows] == ["0", "1", "3", "4", "5"]
    (line,) = shown.err.splitlines()
    assert "MESSAGE_DAMAGED (1421): message 2 of queue 0 of '%DLQ%stops'" in line
    stopped = cli.run("dlq", "resend", "stops")
    assert stopped.code == EXIT_ERROR
    assert "next: flintmq dlq purge stops --before 3 skips it" in stopped.err
    assert waiting(cli)["stops"] == LETTERS - 2
    assert cli.run("dlq", "purge", "stops", "--before", "3", "--yes").code == 0
    assert cli.run("dlq", "resend", "stops").code == 0
    assert cli.run("pull", "again-stops", "-n", "100").lines == ["0", "1", "3", "4", "5"]
