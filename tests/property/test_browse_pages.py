"""BROWSE_MESSAGES compared with a list: random messages in random queues, and random pages of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.client import Admin, Consumer, Message, Producer, TopicPage
from tests.conftest import Brokers, RunningBroker

QUEUES = 5
TAGS = ("red", "green", None)
NUMBERS = count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    brokers = Brokers(tmp_path_factory.mktemp("pages"))
    yield brokers.start("--flush", "async")
    brokers.stop_all()


@pytest.fixture(scope="module")
def clients(running: RunningBroker) -> Iterator[tuple[Admin, Producer, Consumer]]:
    with Admin(running.address) as admin, Producer(running.address) as producer, Consumer(running.address) as consumer:
        yield admin, producer, consumer


def numbers(page: TopicPage) -> list[int]:
    return [int(row.properties["n"]) for row in page]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.lists(st.tuples(st.integers(0, QUEUES - 1), st.sampled_from(TAGS), st.integers(0, 600)), max_size=120),
    requests=st.lists(
        st.fixed_dictionaries(
            {
                "newest_first": st.booleans(),
                "count": st.sampled_from([1, 3, 50, 200]),
                "queue": st.none() | st.integers(0, QUEUES - 1),
                "tags": st.sampled_from([None, "red", "red || green"]),
                "filter": st.sampled_from([None, "n > 40"]),
                "scan_max": st.sampled_from([1, 70, 20_000]),
                "body_bytes": st.sampled_from([0, 10, 65_536]),
                "at": st.none() | st.integers(0, 130),
            }
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_pages_are_those_of_a_list(
    clients: tuple[Admin, Producer, Consumer], sent: list[tuple[int, str | None, int]], requests: list[dict[str, Any]]
) -> None:
    admin, producer, consumer = clients
    topic = f"pages-{next(NUMBERS)}"
    admin.create_topic(topic, QUEUES)
    places = []
    for number, (queue, tag, size) in enumerate(sent):
        message = Message(topic, b"x" * size, tags=tag, properties={"n": str(number)})
        places.append(producer.send(message, queue=queue).physical_offset)
    for request in requests:
        at = request.pop("at")
        physical = None if at is None else places[at] if at < len(places) else (places[-1] + 1 if places else 0)
        wanted = [
            number
            for number, (queue, tag, _) in enumerate(sent)
            if request["queue"] in (None, queue)
            and (request["tags"] is None or (tag is not None and tag in request["tags"]))
            and (request["filter"] is None or number > 40)
            and (physical is None or (places[number] < physical) == request["newest_first"])
        ]
        if request["newest_first"]:
            wanted.reverse()
        found: list[int] = []
        while True:
            page = consumer.browse(topic, physical=physical, **request)
            assert len(page) <= request["count"]
            assert all(len(row.body) == min(row.body_bytes, request["body_bytes"]) for row in page)
            assert all(row.body_bytes == sent[int(row.properties["n"])][2] for row in page)
            assert page.messages == sum(1 for queue, _, _ in sent if request["queue"] in (None, queue))
            found += numbers(page)
            if page.next_physical is None:
                break
            assert page.next_physical != physical
            physical = page.next_physical
        assert found == wanted
