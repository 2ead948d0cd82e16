"""Every page of the console × the states that a broker can be in: never an error of the console itself, a sound page,
and at most three requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.console.pages import PAGES
from flintmq.protocol import commands
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in, make_topics, requests_of, text_of
from tests.dead_letter_tools import bury
from tests.group_tools import until
from tests.security_tools import PASSWORD, broker_with_users

PARTS = {
    "{topic}": "orders",
    "{group}": "billing",
    "{queue:number}": "0",
    "{offset:number}": "0",
    "{connection:number}": "999999",
    "{name}": "limits.connections_max",
    "{user}": "ops",
}
STREAMS = ("/live/stream",)
FILES = ("/body", "/export")


def _path(pattern: str) -> str:
    for part, value in PARTS.items():
        pattern = pattern.replace(part, value)
    return pattern + {"/groups/billing/reset": "?topic=orders&to=earliest"}.get(pattern, "")


PATHS = [_path(pattern) for method, pattern, *_ in PAGES if method == "GET" and not pattern.endswith(STREAMS)]
PATHS += ["/topics/orders?key=k", "/topics/orders?from=-1h&filter=n+%3E+5", "/clients?q=console", "/groups?sort=time"]
MESSAGE = "/topics/orders/0/0"


def check(client: TestClient, running: RunningBroker, allowed: Callable[[str], set[int]], **access: Any) -> None:
    """Get every page, check its status and structure, and count the requests that it takes."""
    wrong = []
    client.get("/topics")  # opens the connections
    for path in PATHS:
        found: list[Any] = []
        count = requests_of(running, lambda path=path, found=found: found.append(client.get(path)), **access)  # type: ignore[misc] # binds the loop's path
        response = found[0]
        if response.status_code not in allowed(path):
            wrong.append(f"{path}: {response.status_code}")
        elif not path.endswith(FILES) and response.status_code != 303 and (faults := faults_of(response.text)):
            wrong.append(f"{path}: {faults}")
        if count > 3:  # the sampler of the rates may have asked at the same time
            count = requests_of(running, lambda path=path: client.get(path), **access)  # type: ignore[misc] # as above
        if count > 3:
            wrong.append(f"{path}: {count} requests")
    assert wrong == []


def fill(running: RunningBroker, connect: ConnectionFactory, messages: int = 40) -> None:
    """Send messages to ``orders``, of which ``billing`` has committed some and one is a dead letter."""
    with Admin(running.address) as admin, Producer(running.address) as producer, Consumer(running.address) as consumer:
        admin.create_topic("orders", 8)
        for queue in range(8):
            producer.send_bulk("orders", [b'{"n": 1}'] * (messages // 8), queue=queue)
        consumer.commit("billing", "orders", {0: 1, 1: 2})
    bury(running, connect(running), "billing", [Message("orders", b"dead")], reason="ValueError: x")


def of_filled(path: str) -> set[int]:
    """Return the statuses that a page of a filled broker may have that has neither users nor so many connections."""
    return {303} if path == "/search" else {404} if path.startswith(("/users", "/clients/")) else {200}


def test_an_empty_broker(broker: BrokerFactory) -> None:
    running = broker()
    with console_of(running) as client:
        check(
            client,
            running,
            lambda path: {200, 303, 404} if "/orders" in path or "/billing" in path else of_filled(path),
        )
        for path, words in (
            ("/groups", "There is no group yet"),
            ("/dlq", "There are no dead letters"),
            ("/dlq/nobody", "No dead letter"),
        ):
            assert words in client.get(path).text


def test_a_read_only_console_refuses_every_change(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    fill(running, connect)
    peer = connect(running)
    with console_of(running, read_only=True) as client:
        before = peer.runtime_info()["write_offset"], peer.call(commands.GET_BROKER_CONFIG).body
        for method, pattern, *_ in PAGES:
            if method == "POST" and pattern != "/me/end":
                data = {"name": "billing", "what": "all", "confirmed": "1", "topic": "orders", "offsets": "0=1"}
                assert client.post(_path(pattern), data=data, headers=SAME_SITE).status_code == 403, pattern
        assert client.get("/topics/orders/send").status_code == 403
        assert "Create a topic" not in client.get("/topics").text
        assert (peer.runtime_info()["write_offset"], peer.call(commands.GET_BROKER_CONFIG).body) == before


def test_a_filled_broker(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    fill(running, connect)
    with console_of(running) as client:
        check(client, running, of_filled)


@pytest.mark.long(seconds=20)
def test_a_million_messages_and_a_thousand_topics(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker("--flush", "async", settings={"store.commitlog_file_bytes": 256 << 20})
    fill(running, connect, 1_000_000)
    make_topics(connect(running), 1000)
    with console_of(running) as client:
        check(client, running, of_filled)


def test_a_user_without_rights(tmp_path: Path) -> None:
    grants: dict[str, list[dict[str, Any]]] = {"ops": [{"actions": ["admin"], "broker": True}], "nobody": []}
    with broker_with_users(tmp_path, grants, {}) as running:
        ops: dict[str, Any] = {"user": "ops", "password": PASSWORD}
        with Admin(running.address, **ops) as admin:
            admin.create_topic("orders")
        with console_of(running) as client:
            log_in(client, "nobody", PASSWORD)
            check(client, running, lambda path: {200, 303, 403, 404}, **ops)
            assert "orders" not in client.get("/topics").text.partition("<tbody>")[2]


def test_a_broker_that_is_gone_and_back(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    fill(running, connect)
    with console_of(running) as client:
        for path in PATHS:
            client.get(path)
        assert running.stop() == 0
        for path in PATHS:
            response = client.get(path)
            assert response.status_code == 503, path
            assert faults_of(response.text) == [], path
        again = broker("--listen", running.address, store=running.store)
        until(lambda: client.get("/topics").status_code == 200)
        check(client, again, of_filled)


def test_a_damaged_message_is_named(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"store.record_checksum": True})
    with Producer(running.address) as producer:
        receipts = [producer.send(Message("orders", b"body %d" % number, keys="k"), queue=0) for number in range(5)]
    assert running.stop() == 0
    log = next((running.store / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(receipts[2].physical_offset + 90)
        file.write(b"\xff\xff")
    again = broker("--listen", running.address, store=running.store, settings={"store.record_checksum": True})
    with console_of(again) as client:
        check(client, again, lambda path: {200, 303, 404})
        page = text_of(client.get("/topics/orders").text)
        assert "✕ 1 message here is damaged or in the quarantine" in page
        assert re.findall(r"\b0:\d\b", page) == ["0:4", "0:3", "0:1", "0:0"]
        missing = client.get("/topics/orders/0/2")
        assert missing.status_code == 404
        assert "has no message at offset 2" in text_of(missing.text)
        assert re.findall(r"\b0:\d\b", text_of(client.get("/topics/orders?key=k").text)) == ["0:4", "0:3", "0:1", "0:0"]
        with Admin(again.address) as admin:
            (entry,) = admin.quarantine()
        assert entry.physical_offset == receipts[2].physical_offset
        quarantine = text_of(client.get("/store").text).partition("Quarantine")[2]
        assert quarantine.startswith(" 1 damaged range, 1 lost message ")
        assert f" {entry.physical_offset:,} " in quarantine
        assert " orders 0:2 " in quarantine
        assert f" {entry.reason} {entry.file} " in quarantine
        assert "checksum" in entry.reason
