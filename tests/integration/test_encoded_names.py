"""Encoded names from end to end: clients use them, the command line and the console show and accept them decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from flintmq.client import (
    Admin,
    Consumer,
    GiveUp,
    InvalidMessage,
    Message,
    Producer,
    PushConsumer,
    TopicNotExist,
    encode_name,
)
from flintmq.client.cli.failures import EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from tests.cli_tools import Cli
from tests.conftest import RunningBroker
from tests.console_tools import SAME_SITE, console_process, faults_of
from tests.group_tools import until

TOPIC, GROUP = "orders.v1", "celery@host"
REAL_TOPIC, REAL_GROUP = "orders%2Ev1", "celery%40host"


def refuse(message: object) -> None:
    raise GiveUp("no account")


@pytest.fixture(scope="module")
def running(shared_broker: RunningBroker) -> RunningBroker:
    """The shared broker with a topic and a group of forbidden names, and one dead letter of the group."""
    with Producer(shared_broker.address) as producer:
        producer.send(Message(encode_name(TOPIC), b"first", keys="o-1"))
    with (
        PushConsumer(shared_broker.address, encode_name(GROUP, "group"), encode_name(TOPIC), refuse, start="first"),
        Admin(shared_broker.address) as admin,
    ):
        until(lambda: any(totals.topic == f"%DLQ%{REAL_GROUP}" and totals.messages for totals in admin.topics_stats()))
    return shared_broker


@pytest.fixture
def cli(tmp_path: Path, running: RunningBroker) -> Iterator[Cli]:
    with Cli(tmp_path, running.address) as cli:
        yield cli


def test_an_illegal_name_is_refused_with_a_hint_and_its_code_is_accepted(running: RunningBroker) -> None:
    with pytest.raises(InvalidMessage, match=r"'orders\.v1' has characters that are not allowed.*encode_name"):
        Message(TOPIC, b"")
    with Consumer(running.address) as consumer:
        assert [message.body for message in consumer.query(encode_name(TOPIC), "o-1")] == [b"first"]


@pytest.mark.parametrize(
    "read",
    [
        lambda consumer, _: consumer.pull(TOPIC, 0, 0),
        lambda consumer, _: consumer.query(TOPIC, "o-1"),
        lambda consumer, _: consumer.browse(TOPIC),
        lambda consumer, _: list(consumer.iter(TOPIC)),
        lambda consumer, _: consumer.offset_at(TOPIC, 0, datetime.now(UTC)),
        lambda _, admin: admin.delete_topic(TOPIC),
    ],
    ids=["pull", "query", "browse", "iter", "offset_at", "delete"],
)
def test_a_reader_of_an_illegal_name_learns_that_no_topic_can_have_it(
    running: RunningBroker, read: Callable[[Consumer, Admin], object]
) -> None:
    with (
        Consumer(running.address) as consumer,
        Admin(running.address) as admin,
        pytest.raises(TopicNotExist, match=r"topic orders\.v1 does not exist; its name has characters .* encode_name"),
    ):
        read(consumer, admin)


def test_tables_show_the_decoded_form_and_programs_get_the_real_one(cli: Cli) -> None:
    assert [row["topic"] for row in cli.run("topic", "list", "orders.*", "-o", "json").rows] == [REAL_TOPIC]
    assert [line.split("\t")[0] for line in cli.run("topic", "list", "orders%*", "-o", "plain").lines] == [REAL_TOPIC]
    table = cli.run("topic", "list", "orders.*", "-o", "table").out
    assert TOPIC in table
    assert REAL_TOPIC not in table
    listed = cli.run("topic", "list", "%DLQ%celery@*", "-o", "table").out
    assert f"%DLQ%{GROUP}" in listed
    groups = cli.run("group", "list", "celery@*", "-o", "table").out
    assert GROUP in groups
    assert TOPIC in groups
    (row,) = cli.run("group", "list", "celery@*", "-o", "json").rows
    assert row["group"] == REAL_GROUP
    assert REAL_TOPIC in row["topics"]


@pytest.mark.parametrize(("topic", "group"), [(TOPIC, GROUP), (REAL_TOPIC, REAL_GROUP)])
def test_commands_take_either_form(cli: Cli, topic: str, group: str) -> None:
    assert "first" in cli.run("pull", topic, "-o", "json").out
    assert {row["topic"] for row in cli.run("topic", "status", topic, "-o", "json").rows} == {REAL_TOPIC}
    assert {row["group"] for row in cli.run("offset", "show", group, "--topic", topic, "-o", "json").rows} == {
        REAL_GROUP
    }
    status = cli.run("group", "status", group, "-o", "table").out
    assert GROUP in status
    assert REAL_GROUP not in status
    (dead,) = cli.run("dlq", "show", group, "-o", "json").rows
    assert (dead["group"], dead["original_topic"]) == (REAL_GROUP, REAL_TOPIC)
    assert TOPIC in cli.run("dlq", "show", group, "-o", "table").out
    assert cli.run("dlq", "resend", group, "--to-topic", topic, "--dry-run", "-o", "json").rows == [
        {"group": REAL_GROUP, "topic": REAL_TOPIC, "messages": 1}
    ]
    assert cli.run("pull", f"%DLQ%{group}", "-o", "json").code == EXIT_OK


def test_a_topic_of_a_forbidden_name_is_created_and_deleted_by_it(cli: Cli, running: RunningBroker) -> None:
    made = cli.run("topic", "create", "a.b", "-o", "table")
    assert "a.b" in made.out
    assert "real name is a%2Eb" in made.err
    assert "sent to a.b" in cli.run("send", "a.b", "hello", "-o", "table").out
    again = cli.run("topic", "create", "a.b", "--if-not-exists")
    assert "topic a.b already exists" in again.err
    assert "deleted topic a.b with 1 message" in cli.run("topic", "delete", "a.b", "--yes").err
    with Admin(running.address) as admin:
        assert "a%2Eb" not in admin.topics()
    assert cli.run("topic", "status", "a.b").code == EXIT_NOT_FOUND


def test_a_mistyped_name_is_answered_with_the_decoded_form(cli: Cli) -> None:
    assert f"did you mean '{TOPIC}'" in cli.run("pull", TOPIC.replace("v1", "v2")).err


def test_a_name_that_nobody_means_is_refused_and_creates_nothing(cli: Cli, running: RunningBroker) -> None:
    done = cli.run("topic", "create", "a b")
    assert (done.code, "has characters that are not allowed" in done.err) == (1, True)
    long = cli.run("topic", "create", "." * 50)
    assert (long.code, "has 150 characters once encoded; at most 127" in long.err) == (EXIT_USAGE, True)
    with Admin(running.address) as admin:
        assert not [name for name in admin.topics() if name.startswith(("a b", "a%20b", "%2E"))]


@pytest.mark.parametrize(("typed", "offered"), [("orders%", REAL_TOPIC), ("orders.", TOPIC)])
def test_completion_continues_the_form_that_was_typed(cli: Cli, typed: str, offered: str) -> None:
    words = {"_FLINTMQ_COMPLETE": "bash_complete", "COMP_WORDS": f"flintmq tail {typed}", "COMP_CWORD": "2"}
    cli.variables |= words
    assert cli.spawn().lines == [f"plain,{offered}"]


@pytest.fixture
def page(running: RunningBroker) -> Iterator[httpx2.Client]:
    """A browser of a console of its own process: the test client of the web framework would decode a path twice."""
    with console_process(running) as url, httpx2.Client(base_url=url, follow_redirects=False) as client:
        yield client


def test_the_console_shows_and_finds_the_decoded_form(page: httpx2.Client) -> None:
    def found(words: str) -> str:
        return page.get("/search", params={"q": words}).headers["location"]

    listed = page.get("/topics?q=orders.v").text
    assert f'<a href="/topics/orders%252Ev1">{TOPIC}</a>' in listed
    assert f"<h1>{TOPIC}" in page.get("/topics/orders%252Ev1").text
    assert found(TOPIC) == "/topics/orders%252Ev1"
    assert found(f"{TOPIC} o-1") == "/topics/orders%252Ev1?key=o-1"
    assert found(GROUP) == "/groups/celery%2540host"
    group = page.get("/groups/celery%2540host").text
    assert f"<h1>{GROUP}" in group
    assert f'<option value="{REAL_TOPIC}">{TOPIC}</option>' in group
    assert f">{GROUP}</a>" in page.get("/groups?q=celery@").text
    dead = page.get("/dlq/celery%2540host").text
    assert f">{TOPIC}</a>" in dead
    assert [faults_of(text) for text in (listed, group, dead)] == [[], [], []]


def test_a_form_of_the_console_takes_either_form(page: httpx2.Client, running: RunningBroker) -> None:
    def post(path: str, **form: str) -> None:
        assert page.post(path, data=form, headers=SAME_SITE | {"origin": str(page.base_url)}).status_code == 303

    with Admin(running.address) as admin:
        post("/topics", topic="c.d", queues="1")
        post("/topics", topic="c%2Ee", queues="1")
        assert {"c%2Ed", "c%2Ee"} <= set(admin.topics())
        assert "topic c.d exists" in page.get("/topics").text
        post("/topics/c%252Ed/delete", name="c.d")
        post("/topics/c%252Ee/delete", name="c%2Ee")
        assert not {"c%2Ed", "c%2Ee"} & set(admin.topics())
