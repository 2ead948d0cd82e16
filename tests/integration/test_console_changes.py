"""The overview's list of what changed, as the console notices it by looking again."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.console import sampler
from tests.conftest import BrokerFactory, RunningBroker
from tests.console_tools import console_of, faults_of
from tests.group_tools import until


@pytest.fixture
def running(broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch) -> RunningBroker:
    """Return a broker with a topic and a group; consoles look at it often."""
    monkeypatch.setattr(sampler, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(sampler, "CHANGES_SECONDS", 0.05)
    made = broker()
    with Admin(made.address) as admin, Producer(made.address) as producer, Consumer(made.address) as consumer:
        admin.create_topic("orders", 2)
        producer.send_many([Message("orders", b"x")] * 10, queue=0)
        consumer.commit("billing", "orders", {0: 8})
    return made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        until(lambda: "What changed since 20" in text_of(made.get("/").text))
        until(lambda: "The broker has run since 20" in text_of(made.get("/").text))
        yield made


def text_of(page: str) -> str:
    """Return the text of a page as a person reads it."""
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


def changes(client: TestClient) -> str:
    """Return what the overview says of changes."""
    page = client.get("/").text
    assert faults_of(page) == []
    return text_of(page).partition("What changed")[2]


def test_nothing_has_changed_at_first(client: TestClient) -> None:
    assert "The console has seen no change" in changes(client)


def test_topics_that_are_created_changed_and_deleted_are_named(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address) as admin:
        admin.create_topic("bills", 2)
        until(lambda: "Topic bills was created" in changes(client))
        admin.create_topic("bills", 4, perm=4)
        expected = "queues for reading 2 → 4, queues for writing 2 → 4, permission 6 → 4"
        until(lambda: f"Topic bills was changed: {expected}" in changes(client))
        admin.delete_topic("bills")
        until(lambda: "Topic bills was deleted" in changes(client))
        page = client.get("/").text
        assert faults_of(page) == []
        assert "Topic bills was deleted" in text_of(page)


def test_groups_that_are_created_set_back_and_deleted_are_named(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address) as admin, Consumer(running.address) as consumer:
        consumer.commit("search", "orders", {0: 7})
        until(lambda: "Group search was created" in changes(client))
        assert "set back" not in changes(client)
        admin.reset_offsets("billing", "orders", {0: 3})
        until(lambda: "Group billing was set back by 5 messages in topic orders" in changes(client))
        admin.delete_group("search")
        until(lambda: "Group search was deleted" in changes(client))


def test_settings_and_a_restart_are_named(running: RunningBroker, client: TestClient, broker: BrokerFactory) -> None:
    with Admin(running.address) as admin:
        admin.change_settings({"retention.file_reserved_hours": 5})
    until(lambda: "Setting retention.file_reserved_hours was changed: 72 → 5" in changes(client))
    assert "Changed since its start: retention.file_reserved_hours" in changes(client)
    assert "was started again" not in changes(client)
    assert running.stop() == 0
    broker("--listen", running.address, store=running.store)
    until(lambda: client.get("/").status_code == 200)
    until(lambda: "The broker was started again" in changes(client))
    until(lambda: "Changed since its start" not in changes(client))
