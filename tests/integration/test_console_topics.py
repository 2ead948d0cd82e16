"""The console's pages of one topic: queues, settings, sending, and the live view."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, console_process, faults_of, requests_of
from tests.group_tools import until


@pytest.fixture
def running(broker: BrokerFactory) -> RunningBroker:
    made = broker()
    with Admin(made.address) as admin:
        admin.create_topic("orders", 3)
    return made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


@pytest.mark.parametrize("page", ["queues", "config", "send", "live"])
def test_each_part_is_a_sound_page_of_few_requests(running: RunningBroker, client: TestClient, page: str) -> None:
    path = f"/topics/orders/{page}"
    assert faults_of(client.get(path).text) == []
    assert requests_of(running, lambda: client.get(path)) <= 3
    assert client.get(f"/topics/nowhere/{page}").status_code in (404, 200 if page == "send" else 404)


def test_a_message_is_sent_from_the_form(running: RunningBroker, client: TestClient) -> None:
    form = {"body": "line 1\r\nline 2", "keys": "a b", "tag": "eu", "properties": "x=1\r\ny=a=b\r\n", "queue": "2"}
    sent = client.post("/topics/orders/send", data=form, headers=SAME_SITE)
    assert (sent.status_code, sent.headers["location"]) == (303, "/topics/orders/2/0")
    assert "stored at 2:0" in client.get("/topics/orders/2/0").text
    with Consumer(running.address) as consumer:
        message = next(iter(consumer.pull("orders", 2)))
        assert message.body == b"line 1\nline 2"
        assert (message.keys, message.tags) == (("a", "b"), "eu")
        assert message.user_properties == {"x": "1", "y": "a=b"}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"body": "x", "base64": "1"}, "not base64"),
        ({"body": "x", "properties": "nothing"}, "is not NAME=VALUE"),
        ({"body": "x", "delay": "soon"}, "delay is"),
        ({"body": "x", "queue": "7"}, "QUEUE_NOT_EXIST"),
        ({"body": "x", "properties": "KEYS=a"}, "KEYS"),
    ],
)
def test_a_form_that_cannot_be_sent_says_why(client: TestClient, form: dict[str, str], words: str) -> None:
    refused = client.post("/topics/orders/send", data=form, headers=SAME_SITE)
    assert refused.status_code in (400, 404)
    assert words in refused.text


@pytest.mark.parametrize("body", [b"text \xc3\xbc\nand more", b"\x00\xff", b"crlf\r\n", b""])
def test_a_replayed_message_is_the_same_and_says_what_it_repeats(
    running: RunningBroker, client: TestClient, body: bytes
) -> None:
    with Producer(running.address) as producer, Consumer(running.address) as consumer:
        original = producer.send(Message("orders", body, keys=["k"], tags="t", properties={"x": "<1>"}), queue=1)
        page = client.get("/topics/orders/send?replay=1:0").text
        assert faults_of(page) == []
        form = _form(page)
        assert client.post("/topics/orders/send", data=form | {"queue": "0"}, headers=SAME_SITE).status_code == 303
        copy = next(iter(consumer.pull("orders", 0)))
        assert (copy.body, copy.keys, copy.tags) == (body, ("k",), "t")
        assert copy.user_properties == {"x": "<1>", "REPLAY_OF": original.message_id}


def _form(page: str) -> dict[str, str]:
    """Return the fields of the send form as a browser would submit them."""
    import html

    fields = {
        name: html.unescape(value).replace("\n", "\r\n")
        for name, value in re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    }
    for tag in re.findall(r"<input [^>]*>", page.partition('class="stack"')[2]):
        name, value = re.search(r'name="(\w+)"', tag), re.search(r'value="([^"]*)"', tag)
        if name and ("checkbox" not in tag or "checked" in tag):
            fields[name[1]] = html.unescape(value[1]) if value else ""
    return fields


def test_a_topic_is_changed_and_deleted_by_its_name(running: RunningBroker, client: TestClient) -> None:
    form = {"queues": "5", "read": "1", "hours": "48", "bytes": "0"}
    assert client.post("/topics/orders/config", data=form, headers=SAME_SITE).status_code == 303
    with Admin(running.address) as admin:
        config = admin.topics()["orders"]
        assert (config.queues, config.perm, config.retention_hours) == (5, 4, 48)
        assert client.post("/topics/orders/delete", data={"name": "order"}, headers=SAME_SITE).status_code == 400
        assert "orders" in admin.topics()
        assert client.post("/topics/orders/delete", data={"name": "orders"}, headers=SAME_SITE).status_code == 303
        assert "orders" not in admin.topics()


def test_a_read_only_console_sends_changes_and_deletes_nothing(running: RunningBroker) -> None:
    with console_of(running, read_only=True) as client, Consumer(running.address) as consumer:
        assert client.get("/topics/orders/send").status_code == 403
        for path, form in (("send", {"body": "x"}), ("config", {"queues": "9"}), ("delete", {"name": "orders"})):
            assert client.post(f"/topics/orders/{path}", data=form, headers=SAME_SITE).status_code == 403
        assert sum(row.count for row in consumer.topic_stats("orders")) == 0


class Stream:
    """The events of a live view, read in a thread."""

    def __init__(self, url: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()
        until(lambda: bool(self.events))

    def _read(self, url: str) -> None:
        with httpx2.stream("GET", url, timeout=60) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
        self.ended.set()

    @property
    def shown(self) -> list[str]:
        return [row["text"] for event in self.events for row in event["rows"]]

    @property
    def skipped(self) -> int:
        return sum(event["skipped"] for event in self.events)


def test_the_live_view_shows_what_arrives(running: RunningBroker) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        producer.send(Message("orders", b"before"))
        stream = Stream(f"{url}/topics/orders/live/stream")
        selected = Stream(f"{url}/topics/orders/live/stream?tag=eu")
        for number in range(10):
            producer.send(Message("orders", b"%d" % number, tags="eu" if number % 2 else "us"))
        until(lambda: len(stream.shown) == 11)
        assert stream.shown == ["before", *map(str, range(10))]
        until(lambda: len(selected.shown) == 5)
        assert selected.shown == ["1", "3", "5", "7", "9"]
        assert (stream.skipped, selected.skipped) == (0, 0)
    assert stream.ended.wait(60)  # the console ended the stream before it stopped
    assert selected.ended.wait(60)


def test_live_views_of_one_user_that_look_together_show_each_message_once(running: RunningBroker) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        streams = [Stream(f"{url}/topics/orders/live/stream") for _ in range(3)]
        for number in range(60):
            producer.send(Message("orders", b"%d" % number))
            if number == 30:
                until(lambda: bool(streams[0].shown))
                streams.append(Stream(f"{url}/topics/orders/live/stream"))
        for stream in streams:
            until(lambda stream=stream: stream.shown[-1:] == ["59"])  # type: ignore[misc] # binds the loop's stream
        counts = [len(stream.shown) + stream.skipped for stream in streams]
        assert counts[:3] == [60] * 3
        for stream in streams:
            assert stream.shown == sorted(set(stream.shown), key=int)


def test_a_flood_is_counted_and_not_shown(running: RunningBroker) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        stream = Stream(f"{url}/topics/orders/live/stream")
        for _ in range(20):
            producer.send_bulk("orders", [b"x" * 50] * 5_000)
        until(lambda: len(stream.shown) + stream.skipped == 100_000)
        assert all(len(event["rows"]) <= 50 for event in stream.events)


def test_streams_are_few(running: RunningBroker) -> None:
    with console_process(running) as url:
        streams = [Stream(f"{url}/topics/orders/live/stream") for _ in range(4)]
        assert httpx2.get(f"{url}/topics/orders/live/stream").status_code == 429
        assert len(streams) == 4


def test_a_stream_that_the_browser_leaves_is_no_longer_counted(running: RunningBroker) -> None:
    with console_process(running) as url:
        for _ in range(6):
            with httpx2.stream("GET", f"{url}/topics/orders/live/stream", timeout=60) as response:
                assert response.status_code == 200
                next(response.iter_lines())
            # The next one is accepted as soon as the console has noticed.
            until(lambda: httpx2.get(f"{url}/topics/orders").status_code == 200)


def test_base64_is_how_binary_bodies_are_sent(running: RunningBroker, client: TestClient) -> None:
    form = {"body": base64.b64encode(b"\x00\x01").decode(), "base64": "1", "queue": "0"}
    assert client.post("/topics/orders/send", data=form, headers=SAME_SITE).status_code == 303
    with Consumer(running.address) as consumer:
        assert next(iter(consumer.pull("orders", 0))).body == b"\x00\x01"
