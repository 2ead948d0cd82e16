"""RocketMQ continues with a store that FlintMQ wrote, and FlintMQ with what RocketMQ made of it; after stops and kills.

``docs/leaving.md`` promises it for these releases. Optional, see ``test_rocketmq_accepts``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.storage.record import Record, parse_offset_id
from tests.conftest import BrokerFactory
from tests.integration.rocketmq.harness import RocketMQ, class_path
from tests.integration.test_rocketmq_delays import SIZES
from tests.pop_tools import Popped, committed, messages, pop, settle
from tests.remoting_tools import RemotingBroker, RemotingSocket, decode_records, json_blob

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

RELEASES = ("5.4.0", "5.5.0")
ORDERS, JOBS = "orders", "jobs"
READERS, WORKERS, PAYERS = "billing", "workers", "payers"
FLINTMQ_SETTINGS = {**SIZES, "server.name": "broker", "background.services:CHECKPOINT_S": 0.1}
ROCKETMQ_SETTINGS = {"enableRetryTopicV2": "true", "flushConsumerOffsetInterval": 200, "reviveInterval": 200}
COMMIT, ROLLBACK = 8, 12
HELD_MS, SHORT_MS = 600_000, 500
PATIENCE_S = 120
_numbers = itertools.count()


def until(look: Callable[[], bool], what: str) -> None:
    """Wait until ``look`` returns true."""
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


class Broker:
    """A broker of either kind, asked as RocketMQ's clients ask."""

    def __init__(self, remote: RemotingSocket, store: Path) -> None:
        self.remote = remote
        self._store = store

    def create(self, topic: str) -> None:
        """Create a topic of one queue."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        self._ask(codes.UPDATE_AND_CREATE_TOPIC, fields)

    def create_group(self, group: str) -> None:
        """Create a group that tries each message 16 times."""
        body = {"groupName": group, "retryQueueNums": 1, "retryMaxTimes": 16}
        self._ask(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_blob(body))

    def send(self, topic: str, *bodies: str, **properties: str) -> None:
        """Send messages, each with its body as its key."""
        for body in bodies:
            unique = f"7F00000104D2A1B2C3D4{next(_numbers):012X}"
            named = {"KEYS": body, "TAGS": "t", "UNIQ_KEY": unique, **properties}
            answer = self.remote.produce(topic, body.encode(), named)
            assert answer.code == codes.SUCCESS, answer.remark

    def transaction(self, body: str, decision: int | None) -> None:
        """Send a half message, and end its transaction unless ``decision`` is None."""
        unique = f"7F00000104D2A1B2C3D4{next(_numbers):012X}"
        named = {"KEYS": body, "UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": PAYERS}
        half = self.remote.produce(ORDERS, body.encode(), named, a=PAYERS, f=4)
        assert half.code == codes.SUCCESS, half.remark
        parsed = parse_offset_id(half.fields["msgId"])
        assert parsed is not None
        if decision is None:
            return
        fields = {
            "producerGroup": PAYERS,
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": parsed[1],
            "commitOrRollback": decision,
            "fromTransactionCheck": False,
            "msgId": unique,
            "transactionId": unique,
        }
        self._ask(codes.END_TRANSACTION, fields)

    def bodies(self, topic: str) -> Counter[str]:
        """Return how often each message is in queue 0 of a topic."""
        return Counter(record.body.decode() for record in self._records(topic))

    def wait_for(self, topic: str, *expected: str) -> Counter[str]:
        """Wait until these messages are in a topic; return how often each of its messages is."""
        until(lambda: set(expected) <= set(self.bodies(topic)), f"{expected} in {topic}: {self.bodies(topic)}")
        return self.bodies(topic)

    def find(self, key: str) -> Counter[str]:
        """Return the messages of the topic of orders that have a key."""
        fields = {"topic": ORDERS, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62}
        answer = self.remote.call(codes.QUERY_MESSAGE, fields)
        if answer.code == codes.QUERY_NOT_FOUND:
            return Counter()
        assert answer.code == codes.SUCCESS, answer.remark
        return Counter(record.body.decode() for record in decode_records(bytes(answer.body)))

    def commit(self, offset: int) -> None:
        """Commit a group's progress in the topic of orders."""
        fields = {"consumerGroup": READERS, "topic": ORDERS, "queueId": 0, "commitOffset": offset}
        self._ask(codes.UPDATE_CONSUMER_OFFSET, fields)

    def progress(self) -> int:
        """Return what the group has committed in the topic of orders."""
        return committed(self.remote, ORDERS, READERS)

    def pop(self, *expected: str, invisible_ms: int = HELD_MS, count: int = 32) -> dict[str, Popped]:
        """Pop jobs until these have come; return all that came."""
        found: dict[str, Popped] = {}

        def ask() -> bool:
            fields = {"invisibleTime": invisible_ms, "maxMsgNums": count, "bornTime": int(time.time() * 1000)}
            answer = pop(self.remote, JOBS, WORKERS, **fields)
            if answer.code == codes.SUCCESS:
                found.update({each.body.decode(): each for each in messages(answer, JOBS, "broker")})
            return set(expected) <= set(found)

        until(ask, f"{expected} popped")
        return found

    def acknowledge(self, *popped: Popped) -> None:
        """Acknowledge jobs."""
        for each in popped:
            answer = settle(self.remote, each, WORKERS)
            assert answer.code == codes.SUCCESS, answer.remark

    def give_back(self, popped: Popped) -> None:
        """End the time of a popped job soon."""
        answer = settle(self.remote, popped, WORKERS, codes.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=SHORT_MS)
        assert answer.code == codes.SUCCESS, answer.remark

    def retry_topic(self) -> str:
        """Wait for the topic of the jobs that were not acknowledged in time; return its name."""

        def found() -> list[str]:
            answer = self.remote.call(codes.GET_ALL_TOPIC_CONFIG)
            names = json.loads(bytes(answer.body))["topicConfigTable"]
            return [name for name in names if name.startswith(f"%RETRY%{WORKERS}") and name.endswith(JOBS)]

        until(lambda: bool(found()), "a retry topic")
        (name,) = found()
        return name

    def wait_on_disk(self, retries: str, *expected: tuple[str, str, int]) -> None:
        """Wait until the tables have the retry topic, and these offsets of queue 0, by topic and group.

        A kill takes what is later.
        """
        config = self._store / "config"

        def written() -> bool:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                # RocketMQ writes the numbers of queues without quotes.
                text = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', (config / "consumerOffset.json").read_text())
                table = json.loads(text)["offsetTable"]
                return retries in (config / "topics.json").read_text() and all(
                    int(table.get(f"{topic}@{group}", {}).get("0", -1)) == offset for topic, group, offset in expected
                )
            return False

        until(written, f"{expected} in {config}")

    def _records(self, topic: str) -> Iterator[Record]:
        at = 0
        while found := self.remote.pull(topic, 0, at):
            yield from found
            at = found[-1].queue_offset + 1

    def _ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> None:
        answer = self.remote.call(code, fields, body)
        assert answer.code == codes.SUCCESS, answer.remark


class Turns:
    """A store that brokers of both kinds open in turn, and that is left to the next by a stop or by a kill."""

    def __init__(self, classes: str, folder: Path, start: BrokerFactory, kill: bool) -> None:
        self._classes = classes
        self._folder = folder
        self._start = start
        self._kill = kill
        self._turns = itertools.count()

    @contextlib.contextmanager
    def flintmq(self) -> Iterator[Broker]:
        """Serve the store with FlintMQ."""
        started = RemotingBroker(self._start, FLINTMQ_SETTINGS, store=self._folder / "store")
        with started.connect() as remote:
            yield Broker(remote, self._folder / "store")
        if self._kill:
            started.running.kill()
        else:
            assert started.running.stop() == 0

    @contextlib.contextmanager
    def rocketmq(self) -> Iterator[Broker]:
        """Serve the store with RocketMQ."""
        home = self._folder / f"rocketmq-{next(self._turns)}"
        running = RocketMQ(self._classes, home, "BrokerDriver", self._folder / "store", ROCKETMQ_SETTINGS)
        try:
            running.wait_opened()
            host, _, port = running.opened["address"].rpartition(":")
            with RemotingSocket((host, int(port))) as remote:
                yield Broker(remote, self._folder / "store")
            if not self._kill:
                running.close()
        finally:
            running.kill()


@pytest.mark.long(seconds=60)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("release", RELEASES)
def test_each_broker_continues_where_the_other_was(
    broker: BrokerFactory, tmp_path: Path, release: str, kill: bool
) -> None:
    turns = Turns(class_path(release=release), tmp_path, broker, kill)
    with turns.flintmq() as flint:
        flint.create(ORDERS)
        flint.create(JOBS)
        flint.create_group(READERS)
        flint.create_group(WORKERS)
        flint.send(ORDERS, "first", "second", "third")
        flint.commit(2)
        flint.transaction("committed", COMMIT)
        flint.transaction("rolled-back", ROLLBACK)
        flint.transaction("open", None)
        flint.wait_for(ORDERS, "committed")
        flint.send(JOBS, "done", "failed", "held", "untouched")
        flint.acknowledge(flint.pop("done", count=1)["done"])
        flint.give_back(flint.pop("failed", "held", count=2)["failed"])
        retries = flint.retry_topic()
        flint.wait_for(retries, "failed")
        flint.send(ORDERS, "at-a-level", DELAY="2")
        flint.send(ORDERS, "at-a-time", TIMER_DELIVER_MS=str(int(time.time() * 1000) + 4_000))
        flint.send(ORDERS, "in-an-hour", TIMER_DELIVER_MS=str(int(time.time() * 1000) + 3_600_000))
        flint.wait_on_disk(retries, (ORDERS, READERS, 2), (JOBS, WORKERS, 2))
    with turns.rocketmq() as rocket:
        expected = {"first", "second", "third", "committed", "at-a-level", "at-a-time"}
        assert rocket.wait_for(ORDERS, *expected) == Counter(expected)
        for key in ("first", "committed", "at-a-time"):
            assert set(rocket.find(key)) == {key}
        assert rocket.progress() == 2
        jobs = rocket.pop("failed", "held", "untouched")
        assert set(jobs) == {"failed", "held", "untouched"}
        rocket.acknowledge(*jobs.values())

        rocket.send(ORDERS, "fourth")
        rocket.commit(5)
        rocket.transaction("committed-there", COMMIT)
        rocket.transaction("rolled-back-there", ROLLBACK)
        rocket.send(JOBS, "done-there", "failed-there", "untouched-there")
        rocket.acknowledge(rocket.pop("done-there", count=1)["done-there"])
        rocket.pop("failed-there", invisible_ms=SHORT_MS, count=1)
        rocket.wait_for(retries, "failed-there")
        rocket.send(ORDERS, "at-a-level-there", DELAY="2")
        rocket.send(ORDERS, "at-a-time-there", TIMER_DELIVER_MS=str(int(time.time() * 1000) + 4_000))
        rocket.wait_on_disk(retries, (ORDERS, READERS, 5))

    with turns.flintmq() as flint:
        expected |= {"fourth", "committed-there", "at-a-level-there", "at-a-time-there"}
        assert flint.wait_for(ORDERS, *expected) == Counter(expected)
        for key in ("first", "fourth", "committed-there"):
            assert set(flint.find(key)) == {key}
        assert flint.progress() == 5
        jobs = flint.pop("failed-there", "untouched-there")
        assert set(jobs) == {"failed-there", "untouched-there"}
        flint.acknowledge(*jobs.values())
