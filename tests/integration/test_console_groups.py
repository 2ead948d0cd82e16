"""The console's pages of groups and of dead letters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, GroupConsumer, Message, Producer, PushConsumer
from flintmq.client.console import sampler
from flintmq.client.console.sessions import BrokerClients, ConsoleSession
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, requests_of
from tests.dead_letter_tools import bury
from tests.group_tools import Seen, joined, until


@pytest.fixture
def running(broker: BrokerFactory) -> RunningBroker:
    """Return a broker with 20 messages, of which the group ``billing`` has committed 3 in queue 1."""
    made = broker()
    with Admin(made.address) as admin, Producer(made.address) as producer, Consumer(made.address) as consumer:
        admin.create_topic("orders", 2)
        for number in range(20):
            producer.send(Message("orders", b"%d" % number), queue=number % 2)
        consumer.commit("billing", "orders", {0: 0, 1: 3})
    return made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


def test_groups_are_listed_with_their_lag(running: RunningBroker, client: TestClient) -> None:
    page = client.get("/groups").text
    assert faults_of(page) == []
    assert "billing" in page
    assert ">17</td>" in page
    assert "○ no members" in page
    assert 'data-label="Lag in time">0 s' not in page
    assert "No group has" in client.get("/groups?q=nothing").text


def test_a_group_shows_who_has_which_queue_and_the_lag_in_time(running: RunningBroker, client: TestClient) -> None:
    seen = Seen()
    with PushConsumer(running.address, "billing", "orders", seen):
        seen.wait(17)
        until(lambda: "Lag in time</dt><dd>0 s" in client.get("/groups/billing").text)
        page = client.get("/groups/billing").text
    assert faults_of(page) == []
    assert "✓ stable" in page
    assert page.count('<td data-label="Member">#1</td>') >= 2


def test_the_lag_in_time_is_the_age_of_the_next_message(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address) as admin, Consumer(running.address) as consumer:
        rows = {row.queue: row for row in admin.group("billing").queues}
        assert rows[1].next_stored_at == next(iter(consumer.pull("orders", 1, 3))).stored_at
        consumer.commit("billing", "orders", {0: 10})
        assert {row.queue: row.next_stored_at for row in admin.group("billing").queues}[0] is None
        assert "Lag in time</dt><dd>0 s" not in client.get("/groups/billing").text
        lagging = ("/groups", "/topics/orders/readers")
        assert all('data-label="Lag in time">0 s' not in client.get(path).text for path in lagging)
        consumer.commit("billing", "orders", {1: 10})
        assert all('data-label="Lag in time">0 s' in client.get(path).text for path in lagging)


def test_the_group_that_is_furthest_behind_in_time_can_come_first(running: RunningBroker, client: TestClient) -> None:
    with Consumer(running.address) as consumer, Producer(running.address) as producer:
        stored_at = next(iter(consumer.pull("orders", 0, 9))).stored_at
        until(lambda: datetime.now(UTC) - stored_at > timedelta(milliseconds=2))
        producer.send(Message("orders", b"20"), queue=0)
        for group, offset in (("few-but-old", 9), ("recent", 10), ("all-read", 11)):
            consumer.commit(group, "orders", {0: offset, 1: 10})
    page = client.get("/groups?sort=time").text
    places = [page.index(f'href="/groups/{name}"') for name in ("billing", "few-but-old", "recent", "all-read")]
    assert places == sorted(places)
    assert 'aria-sort="descending"' in page


def test_a_reset_shows_the_outcome_before_it_happens(running: RunningBroker, client: TestClient) -> None:
    shown = client.get("/groups/billing/reset", params={"topic": "orders", "to": "latest"})
    assert faults_of(shown.text) == []
    assert "Nothing is changed yet" in shown.text
    assert "7 skipped" in shown.text
    with Consumer(running.address) as consumer:
        assert consumer.committed("billing", "orders") == {0: 0, 1: 3}
        form = {"topic": "orders", "offsets": "0=10 1=10 "}
        assert client.post("/groups/billing/reset", data=form, headers=SAME_SITE).status_code == 303
        assert consumer.committed("billing", "orders") == {0: 10, 1: 10}
    for words in ("-5", "nonsense", "0=99", "9=0"):
        assert client.get("/groups/billing/reset", params={"topic": "orders", "to": words}).status_code in (400, 502)
    by_time = client.get("/groups/billing/reset", params={"topic": "orders", "to": "-1h"}).text
    assert "10 again" in by_time


def test_a_group_is_deleted_by_its_name(running: RunningBroker, client: TestClient) -> None:
    assert client.post("/groups/billing/delete", data={"name": "x"}, headers=SAME_SITE).status_code == 400
    assert client.post("/groups/billing/delete", data={"name": "billing"}, headers=SAME_SITE).status_code == 303
    assert client.get("/groups/billing").status_code == 404


# ---- dead letters


def test_messages_that_retention_deleted_before_the_group_read_them_are_counted(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker(
        settings={
            "retention.file_reserved_hours": 0,
            "background.services:RETENTION_CHECK_S": 0.05,
            "retention.delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
        }
    )
    peer = connect(running)
    with Consumer(running.address) as consumer, Admin(running.address) as admin, console_of(running) as client:
        peer.produce("orders", bytes(400_000), queue=0).raise_for_error()
        consumer.commit("billing", "orders", {0: 1})
        assert "deleted before" not in client.get("/groups/billing").text

        def kept() -> int:
            return admin.topic_stats("orders")[0].min_offset

        while kept() < 2:
            peer.produce("orders", bytes(400_000), queue=0).raise_for_error()
        first, page, last = kept(), client.get("/groups/billing").text, kept()
        assert faults_of(page) == []
        counts = [int(count.replace(",", "")) for count in re.findall(r"✕ ([\d,]+) messages?<?/?", page)]
        assert len(counts) == 2  # above the table, and in the queue's row
        assert first - 1 <= counts[0] == counts[1] <= last - 1
        assert "deleted before the group read" in page


def test_a_work_group_shows_what_is_leased_and_misses_no_member(running: RunningBroker, client: TestClient) -> None:
    with GroupConsumer(running.address, "mailers", "orders", mode="work", start="first") as consumer:
        held = consumer.receive(4, 20) + consumer.receive(1, 20)
        page, listed = client.get("/groups/mailers").text, client.get("/groups").text
        for delivery in held:
            delivery.ack()
    assert faults_of(page) == faults_of(listed) == []
    assert f"<dt>In flight</dt><dd>{len(held)} " in page
    assert "A work group has no members: its consumers lease messages." in page
    assert not re.search(r"○ no member|epoch|clustering", page)
    assert re.search(r'"/groups/mailers">mailers</a> <span class="soft">work group</span>', listed)


@pytest.fixture
def dead(running: RunningBroker, connect: ConnectionFactory) -> RunningBroker:
    """Return the broker with three dead letters of ``billing``."""
    messages = [Message("orders", b'{"n": %d}' % number, keys=f"b-{number}") for number in range(3)]
    bury(running, connect(running), "billing", messages, reason="ValueError: <b>no account</b>")
    return running


async def test_that_no_dead_letter_came_in_a_minute_is_known_after_a_minute(
    dead: RunningBroker, connect: ConnectionFactory
) -> None:
    now = 0.0
    watching = sampler.Sampler(lambda: now)
    clients = BrokerClients(dead.address, {})
    session = ConsoleSession("", "", "127.0.0.1", clients, now, now)
    async with clients.admin:

        async def growth_at(seconds: float) -> int | None:
            nonlocal now
            now = seconds
            await watching.dead_letters(session)
            return watching.growth("%DLQ%billing")

        assert [await growth_at(seconds) for seconds in (0.0, 5.0, 30.0)] == [None] * 3
        assert await growth_at(60.0) == 0
        bury(dead, connect(dead), "billing", [Message("orders", b"one more")])
        assert await growth_at(63.0) == 1
        assert await growth_at(200.0) is None


def test_a_listener_that_fails_tells_why_and_the_message_is_sent_again(
    running: RunningBroker, client: TestClient
) -> None:
    healthy = False

    def listen(message: object) -> None:
        if not healthy:
            raise ValueError("no such account")

    seen = Seen(listen)
    with Producer(running.address) as producer:
        producer.send(Message("sales", b"one", keys="s-1"))
    with PushConsumer(running.address, "till", "sales", seen, start="first", retry_times_max=0):
        until(lambda: "ValueError: no such account" in client.get("/dlq/till").text)
        healthy = True
        form = {"what": "all", "where": "group", "confirmed": "1"}
        assert client.post("/dlq/till/resend", data=form, headers=SAME_SITE).status_code == 303
        assert len(seen.wait(2)) == 2
    until(lambda: "No dead letter of this group waits" in client.get("/dlq/till").text)


def test_dead_letters_say_why(dead: RunningBroker, client: TestClient) -> None:
    page = client.get("/dlq").text
    assert faults_of(page) == []
    assert "! 3" in page
    group = client.get("/dlq/billing").text
    assert faults_of(group) == []
    assert group.count("ValueError: &lt;b&gt;no account&lt;/b&gt;") == 3
    assert group.index("b-2") < group.index("b-0")
    assert 'href="/topics/orders"' in group


def test_the_overview_has_the_dead_letters_of_all_groups_in_few_requests(
    running: RunningBroker, connect: ConnectionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(running)
    for number in range(70):
        connection.produce(f"%DLQ%group-{number}", b"dead", queue=0).raise_for_error()
    with console_of(running) as client:
        assert "All 70 groups" in client.get("/").text
        # The sampler asks every two seconds besides: one of three measurements is without it.
        assert min(requests_of(running, lambda: client.get("/")) for _ in range(3)) <= 3
    monkeypatch.setattr(sampler, "TOPICS_STATS_MAX", 8)
    with console_of(running) as client:
        assert "All 70 groups" in client.get("/").text


def test_a_plan_sends_nothing_and_the_confirmed_one_does(dead: RunningBroker, client: TestClient) -> None:
    form = {"place": "0:0", "what": "selected", "where": ""}
    plan = client.post("/dlq/billing/resend", data=form, headers=SAME_SITE)
    assert faults_of(plan.text) == []
    assert "Nothing is sent yet" in plan.text
    with Consumer(dead.address) as consumer:
        before = consumer.browse("orders").messages
        confirmed = client.post("/dlq/billing/resend", data=form | {"confirmed": "1"}, headers=SAME_SITE)
        assert confirmed.status_code == 303
        until(lambda: consumer.browse("orders").messages == before + 1)
        until(lambda: "2 waiting" in client.get("/dlq/billing").text)
        assert "1 message sent again" in client.get("/dlq/billing").text
        assert "✓ settled" in client.get("/dlq/billing?all=1").text


def test_a_dead_letter_that_cannot_be_sent_is_named(dead: RunningBroker, client: TestClient) -> None:
    with Admin(dead.address) as admin:
        admin.delete_topic("orders")
    plan = client.post("/dlq/billing/resend", data={"what": "all"}, headers=SAME_SITE).text
    assert "cannot be sent again: its topic orders does not exist" in plan
    assert "“to the topic” of your choice" in plan
    client.post("/dlq/billing/resend", data={"what": "all", "confirmed": "1"}, headers=SAME_SITE)
    until(lambda: "cannot be sent again" in client.get("/dlq/billing").text)
    assert "“to the topic” of your choice" in client.get("/dlq/billing").text
    nothing = client.post("/dlq/billing/resend", data={"what": "selected"}, headers=SAME_SITE)
    assert nothing.status_code == 400
    for place in ("0:99", "7:0"):
        form = {"what": "selected", "place": place}
        assert client.post("/dlq/billing/resend", data=form, headers=SAME_SITE).status_code == 404


def test_one_whose_topic_its_group_never_read_is_named_without_options_of_the_command_line(
    dead: RunningBroker, client: TestClient, connect: ConnectionFactory
) -> None:
    connection = connect(dead)
    joined(connection, "billing", "m", "orders").leave()
    with Admin(dead.address) as admin:
        admin.create_topic("payments", 1)
    connection.produce("%DLQ%billing", b"kept", queue=0, common="RETRY_TOPIC\x01payments\x02").raise_for_error()
    form = {"what": "selected", "place": "0:3", "where": ""}
    plan = client.post("/dlq/billing/resend", data=form, headers=SAME_SITE).text
    assert "its recorded topic is payments, which group billing has never read" in plan
    assert "--to-topic" not in plan
    changed = client.post("/dlq/billing/resend", data=form | {"where": "topic", "topic": "payments"}, headers=SAME_SITE)
    assert "It would stop there" not in changed.text


def test_dead_letters_are_purged_by_the_groups_name(dead: RunningBroker, client: TestClient) -> None:
    assert client.post("/dlq/billing/purge", data={"name": ""}, headers=SAME_SITE).status_code == 400
    assert client.post("/dlq/billing/purge", data={"name": "billing"}, headers=SAME_SITE).status_code == 303
    assert "No dead letter of this group waits" in client.get("/dlq/billing").text
    assert "✓ 0" in client.get("/dlq").text


def test_waiting_dead_letters_are_exported(dead: RunningBroker, client: TestClient) -> None:
    response = client.get("/dlq/billing/export")
    assert response.headers["content-disposition"].startswith("attachment")
    rows = [json.loads(line) for line in response.text.splitlines()]
    assert [row["body"] for row in rows] == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    assert {row["reason"] for row in rows} == {"ValueError: <b>no account</b>"}
    assert {row["topic"] for row in rows} == {"orders"}
