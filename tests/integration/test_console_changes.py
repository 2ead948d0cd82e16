"""The overview's list of what changed, as the console notices it by looking again."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.console import sampler
from tests.conftest import BrokerFactory
from tests.console_tools import console_of, faults_of, text_of
from tests.group_tools import until


def changes(client: TestClient) -> str:
    """Return what the overview says of changes."""
    page = client.get("/").text
    assert faults_of(page) == []
    return text_of(page).partition("What changed")[2]


def test_the_overview_names_what_changed_since_the_console_looks(
    broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of changes are tested without a broker, in ``test_console_change_log.py``."""
    monkeypatch.setattr(sampler, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(sampler, "CHANGES_SECONDS", 0.05)
    running = broker()

    def named(text: str) -> None:
        until(lambda: text in changes(client), text)

    with console_of(running) as client:
        address = running.address
        with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
            admin.create_topic("orders", 2)
            producer.send_many([Message("orders", b"x")] * 10, queue=0)
            consumer.commit("billing", "orders", {0: 8})
            until(lambda: "What changed since 20" in text_of(client.get("/").text))
            until(lambda: "The broker has run since 20" in text_of(client.get("/").text))
            admin.create_topic("bills", 2)
            named("Topic bills was created")
            admin.create_topic("bills", 4, perm=4)
            named("Topic bills was changed: queues for reading 2 → 4, queues for writing 2 → 4, permission 6 → 4")
            admin.delete_topic("bills")
            named("Topic bills was deleted")
            consumer.commit("search", "orders", {0: 7})
            named("Group search was created")
            assert "set back" not in changes(client)
            admin.reset_offsets("billing", "orders", {0: 3})
            named("Group billing was set back by 5 messages in topic orders")
            admin.delete_group("search")
            named("Group search was deleted")
            admin.change_settings({"retention.file_reserved_hours": 5})
            named("Setting retention.file_reserved_hours was changed: 72 → 5")
            assert "Changed since its start: retention.file_reserved_hours" in changes(client)
            assert "was started again" not in changes(client)
        assert running.stop() == 0
        broker("--listen", running.address, store=running.store)
        until(lambda: client.get("/").status_code == 200)
        named("The broker was started again")
        until(lambda: "Changed since its start" not in changes(client))
