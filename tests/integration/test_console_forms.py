"""The console's forms: a mistake is answered in place and loses nothing that was typed, and "send again" keeps all."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer, StoredMessage
from flintmq.protocol.commands import HELLO
from tests.conftest import RawConnection, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in
from tests.dead_letter_tools import bury
from tests.security_tools import PASSWORD, broker_with_users

TYPED = "<b>typed</b>"


class Inputs(HTMLParser):
    """The fields of the form with an action, as a browser would send them."""

    def __init__(self, page: str, action: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._action, self._is_in, self._area, self._select = action, False, "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in = given.get("action", "") == self._action
        if not self._is_in:
            return
        if tag == "textarea":
            self._area = given["name"]
            self.fields[self._area] = ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and "selected" in given:
            self.fields[self._select] = given.get("value", "")
        elif tag == "input" and ("checked" in given or given.get("type") not in ("checkbox", "radio")):
            self.fields[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_in = False
        if tag == "textarea":
            self.fields[self._area] = self.fields[self._area].removeprefix("\n")
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area] += data


@pytest.fixture(scope="module")
def running(own_broker: RunningBroker) -> RunningBroker:
    """Return a broker with a topic, a group, and a dead letter of it."""
    made = own_broker
    with Admin(made.address) as admin, Consumer(made.address) as consumer, Producer(made.address) as producer:
        admin.create_topic("orders", 4)
        producer.send(Message("orders", b"first"), queue=0)
        consumer.commit("billing", "orders", {0: 1})
    with socket.create_connection((made.host, made.port)) as sock:
        peer = RawConnection(sock)
        peer.call(HELLO, {"protocol": 1}).raise_for_error()
        bury(made, peer, "billing", [Message("orders", b"dead")])
    return made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


def newest(running: RunningBroker, topic: str) -> StoredMessage:
    """Return the message of a topic that was stored last."""
    with Consumer(running.address) as consumer:
        (page,) = consumer.browse(topic, count=1, body_bytes=0)
        return consumer.message(page.offset_id)


def shown_again(client: TestClient, path: str, form: dict[str, Any], action: str = "") -> dict[str, str]:
    """Send a form with a mistake, and return the fields of the one that the answer has."""
    answer = client.post(path, data=form, headers=SAME_SITE)
    assert answer.status_code in (400, 502)
    assert 'role="alert"' in answer.text
    assert faults_of(answer.text) == []
    return Inputs(answer.text, action or path).fields


# ---- sending again


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"plain"),
        Message("orders", b"x", keys=["sh-1", "sh-2"], tags="eu", properties={"a": "b=c"}, sharding_key="cust-7"),
        Message("orders", b"ab" * 9000, properties={"text": "two\r\nlines\u202e", ' "odd" = name ': " kept "}),
        Message("orders", b"\xff\x00\r\n", keys="key\u3000with\x1bmore", tags="t\x7f", sharding_key=" around\n"),
        Message("orders", b"large" * 80_000, sharding_key="cust-8"),
    ],
)
def test_a_message_that_is_sent_again_is_the_same(running: RunningBroker, client: TestClient, message: Message) -> None:
    with Producer(running.address) as producer:
        producer.send(message)
    original = newest(running, "orders")
    page = client.get(f"/topics/orders/send?replay={original.queue}:{original.queue_offset}").text
    assert len(page) < 300_000
    form = Inputs(page, "/topics/orders/send").fields
    # A browser sends CRLF for every line end, and none in a field of one line.
    form = {name: value.replace("\n", "\r\n") for name, value in form.items() if name == "body" or "\n" in value} | {
        name: value for name, value in form.items() if "\n" not in value
    }
    assert client.post("/topics/orders/send", data=form, headers=SAME_SITE).status_code == 303
    copy = newest(running, "orders")
    expected = {**message.properties, "REPLAY_OF": original.message_id}
    assert Message.again(copy) == Message.again(original, properties=expected)
    assert copy.message_id != original.message_id
    if message.sharding_key:
        assert copy.queue == original.queue


def test_what_is_changed_in_the_form_is_sent_and_the_rest_is_kept(running: RunningBroker, client: TestClient) -> None:
    with Producer(running.address) as producer:
        producer.send(Message("orders", b"a" * 100_000, keys="k", sharding_key="cust-7", tags="eu"))
    original = newest(running, "orders")
    page = client.get(f"/topics/orders/send?replay={original.queue}:{original.queue_offset}").text
    form = Inputs(page, "/topics/orders/send").fields | {"tag": "us", "sharding_key": ""}
    assert client.post("/topics/orders/send", data=form, headers=SAME_SITE).status_code == 303
    copy = newest(running, "orders")
    assert (copy.tags, copy.sharding_key, copy.keys, copy.body) == ("us", None, ("k",), b"a" * 100_000)
    form = {name: value for name, value in form.items() if name != "keep_body"} | {"body": "short"}
    assert client.post("/topics/orders/send", data=form, headers=SAME_SITE).status_code == 303
    assert newest(running, "orders").body == b"short"


def test_a_new_message_gets_its_sharding_key(running: RunningBroker, client: TestClient) -> None:
    form = {"body": "x", "sharding_key": "cust-7"}
    assert client.post("/topics/orders/send", data=form, headers=SAME_SITE).status_code == 303
    assert newest(running, "orders").sharding_key == "cust-7"


# ---- mistakes


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ({"properties": "KEYS=a"}, "use the field “Keys” of this form"),
        ({"properties": "no separator"}, "is not NAME=VALUE"),
        ({"properties": '"a": 1'}, "is not a string"),
        ({"base64": "1"}, "the body is not base64"),
        ({"base64": "1", "body": "ä" * 8}, "the body is not base64"),
        ({"queue": "²"}, "must be a whole number"),
        ({"queue": "77"}, "77"),
        ({"delay": "soon"}, "must be a whole number"),
        ({"tag": "a||b"}, "a||b"),
    ],
)
def test_a_mistake_in_a_message_keeps_the_message(client: TestClient, mistake: dict[str, str], reason: str) -> None:
    form = {"body": f"{TYPED}\n  two", "keys": "k-1", "tag": "eu", "sharding_key": "s", "properties": "a=b"} | mistake
    answer = client.post("/topics/orders/send", data=form, headers=SAME_SITE)
    assert answer.status_code in (400, 404)
    assert reason in html.unescape(answer.text)
    assert faults_of(answer.text) == []
    kept = Inputs(answer.text, "/topics/orders/send").fields
    assert {name: kept[name] for name in form} == form


@pytest.mark.parametrize("words", ["yesterday-ish", "10:00", "17", "-5", "0=1,1=2"])
def test_a_wrong_position_of_the_list_is_answered_above_its_form(client: TestClient, words: str) -> None:
    page = client.get("/topics/orders", params={"from": words, "tag": "eu", "field": "a.b", "count": "100"})
    assert page.status_code == 400
    assert "from: " in page.text
    kept = Inputs(page.text, "/topics/orders").fields
    assert (kept["from"], kept["tag"], kept["field"]) == (words, "eu", "a.b")
    assert faults_of(page.text) == []
    assert "Copy as" not in page.text


@pytest.mark.parametrize("wrong", [{"queue": "x"}, {"filter": "a >"}])
def test_a_wrong_choice_of_the_live_view_is_answered_above_its_form(client: TestClient, wrong: dict[str, str]) -> None:
    page = client.get("/topics/orders/live", params={"tag": "eu"} | wrong)
    assert page.status_code == 400
    assert Inputs(page.text, "/topics/orders/live").fields.items() >= ({"tag": "eu"} | wrong).items()
    assert "data-stream" not in page.text


def test_a_mistake_in_a_reset_keeps_topic_and_position(running: RunningBroker, client: TestClient) -> None:
    page = client.get("/groups/billing/reset", params={"topic": "orders", "to": "whenever"})
    assert page.status_code == 400
    kept = Inputs(page.text, "/groups/billing/reset").fields
    assert (kept["topic"], kept["to"]) == ("orders", "whenever")
    form = {"topic": "orders", "to": "earliest", "offsets": "0=x", "force": "1"}
    assert shown_again(client, "/groups/billing/reset", form)["force"] == "1"


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/topics", {"topic": f"no {TYPED}", "queues": "7"}),
        ("/topics", {"topic": "fine", "queues": "0"}),
        ("/topics/orders/config", {"queues": "1", "read": "1", "hours": "24", "bytes": "7"}),
        ("/topics/orders/delete", {"name": TYPED}),
        ("/groups/billing/delete", {"name": TYPED}),
        ("/dlq/billing/purge", {"name": TYPED}),
        ("/dlq/billing/resend", {"what": "selected", "where": "group"}),
        ("/dlq/billing/resend", {"what": "all", "where": "topic", "topic": ""}),
        ("/settings/retention.file_reserved_hours", {"before": "72", "value": "many"}),
    ],
)
def test_a_mistake_is_answered_in_place(client: TestClient, path: str, form: dict[str, str]) -> None:
    kept = shown_again(client, path, form)
    assert {name: kept[name] for name in form} == form


def test_mistakes_of_an_administrator_are_answered_in_place_without_the_password(tmp_path: Path) -> None:
    grants: dict[str, list[dict[str, Any]]] = {"ops": [{"actions": ["admin"], "broker": True}], "shop": []}
    with broker_with_users(tmp_path, grants, {}) as running, console_of(running) as client:
        log_in(client, "ops", PASSWORD)
        for path, form in (
            ("/users", {"user": "no name", "admin": "1"}),
            ("/users/shop/grant", {"right": "publish", "name": "", "prefix": ""}),
            ("/users/shop/password", {"name": TYPED}),
            ("/users/shop/delete", {"name": TYPED}),
        ):
            answer = client.post(path, data=form | {"password": "typed secret"}, headers=SAME_SITE)
            assert answer.status_code == 400, path
            assert "typed secret" not in answer.text
            kept = Inputs(answer.text, path).fields
            assert {name: kept.get(name, "") for name in form} == form


# ---- the list of topics


def test_topics_of_groups_and_of_the_broker_come_last(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address) as admin:
        admin.create_topic("zebra", 1)
    for sort in ("name", "messages", "rate", "last"):
        page = client.get("/topics", params={"system": "1", "sort": sort}).text
        names = [html.unescape(name) for name in re.findall(r'<tr id="t-([^"]+)"', page)]
        own = [name.startswith(("%25", "RMQ_SYS")) or "XXXX" in name for name in names]
        assert "zebra" in names
        assert any(own)
        assert own == sorted(own), names
    listed = re.findall(r'<li><a href="/topics/[^"]+">([^<]+)', client.get("/search", params={"q": "b"}).text)
    assert listed.index("zebra") < listed.index("%DLQ%billing")
