"""The console's pages of one topic: queues, settings, sending, and the live view."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from tests.conftest import RunningBroker
from tests.console_tools import SAME_SITE, console_of, console_process
from tests.group_tools import until

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def running(own_broker: RunningBroker) -> RunningBroker:
    return own_broker


@pytest.fixture
def topic(running: RunningBroker) -> str:
    """Return a topic of the test with three queues."""
    name = f"orders-{next(NUMBERS)}"
    with Admin(running.address) as admin:
        admin.create_topic(name, 3)
    return name


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


def test_a_message_is_sent_from_the_form(running: RunningBroker, client: TestClient, topic: str) -> None:
    form = {"body": "line 1\r\nline 2", "keys": "a b", "tag": "eu", "properties": "x=1\r\ny=a=b\r\n", "queue": "2"}
    sent = client.post(f"/topics/{topic}/send", data=form, headers=SAME_SITE)
    assert (sent.status_code, sent.headers["location"]) == (303, f"/topics/{topic}/2/0")
    assert "stored at 2:0" in client.get(f"/topics/{topic}/2/0").text
    with Consumer(running.address) as consumer:
        message = next(iter(consumer.pull(topic, 2)))
        assert message.body == b"line 1\nline 2"
        assert (message.keys, message.tags) == (("a", "b"), "eu")
        assert message.user_properties == {"x": "1", "y": "a=b"}


def test_a_topic_is_changed_and_deleted_by_its_name(running: RunningBroker, client: TestClient, topic: str) -> None:
    form = {"queues": "5", "read": "1", "hours": "48", "bytes": "0"}
    assert client.post(f"/topics/{topic}/config", data=form, headers=SAME_SITE).status_code == 303
    with Admin(running.address) as admin:
        config = admin.topics()[topic]
        assert (config.queues, config.perm, config.retention_hours) == (5, 4, 48)
        assert client.post(f"/topics/{topic}/delete", data={"name": "order"}, headers=SAME_SITE).status_code == 400
        assert topic in admin.topics()
        assert client.post(f"/topics/{topic}/delete", data={"name": topic}, headers=SAME_SITE).status_code == 303
        assert topic not in admin.topics()


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


def test_the_live_view_shows_what_arrives(running: RunningBroker, topic: str) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        producer.send(Message(topic, b"before"))
        stream = Stream(f"{url}/topics/{topic}/live/stream")
        selected = Stream(f"{url}/topics/{topic}/live/stream?tag=eu")
        for number in range(10):
            producer.send(Message(topic, b"%d" % number, tags="eu" if number % 2 else "us"))
        until(lambda: len(stream.shown) == 11)
        assert stream.shown == ["before", *map(str, range(10))]
        until(lambda: len(selected.shown) == 5)
        assert selected.shown == ["1", "3", "5", "7", "9"]
        assert (stream.skipped, selected.skipped) == (0, 0)
    assert stream.ended.wait(60)  # the console ended the stream before it stopped
    assert selected.ended.wait(60)


def test_live_views_of_one_user_that_look_together_show_each_message_once(running: RunningBroker, topic: str) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        streams = [Stream(f"{url}/topics/{topic}/live/stream") for _ in range(3)]
        for number in range(60):
            producer.send(Message(topic, b"%d" % number))
            if number == 30:
                until(lambda: bool(streams[0].shown))
                streams.append(Stream(f"{url}/topics/{topic}/live/stream"))
        for stream in streams:
            until(lambda stream=stream: stream.shown[-1:] == ["59"])  # type: ignore[misc] # binds the loop's stream
        counts = [len(stream.shown) + stream.skipped for stream in streams]
        assert counts[:3] == [60] * 3
        for stream in streams:
            assert stream.shown == sorted(set(stream.shown), key=int)


def test_a_flood_is_counted_and_not_shown(running: RunningBroker, topic: str) -> None:
    with console_process(running) as url, Producer(running.address) as producer:
        stream = Stream(f"{url}/topics/{topic}/live/stream")
        for _ in range(20):
            producer.send_bulk(topic, [b"x" * 50] * 5_000)
        until(lambda: len(stream.shown) + stream.skipped == 100_000)
        assert all(len(event["rows"]) <= 50 for event in stream.events)


def test_streams_are_few(running: RunningBroker, topic: str) -> None:
    with console_process(running) as url:
        streams = [Stream(f"{url}/topics/{topic}/live/stream") for _ in range(4)]
        assert httpx2.get(f"{url}/topics/{topic}/live/stream").status_code == 429
        assert len(streams) == 4


def test_a_stream_that_the_browser_leaves_is_no_longer_counted(running: RunningBroker, topic: str) -> None:
    with console_process(running) as url:
        for _ in range(6):
            with httpx2.stream("GET", f"{url}/topics/{topic}/live/stream", timeout=60) as response:
                assert response.status_code == 200
                next(response.iter_lines())
            # The next one is accepted as soon as the console has noticed.
            until(lambda: httpx2.get(f"{url}/topics/{topic}").status_code == 200)
