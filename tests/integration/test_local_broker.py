"""``flintmq.testing.LocalBroker``: settings, stores, ends, and what its errors say."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from flintmq.client import Admin, Message, Producer, PushConsumer, TryLater
from flintmq.testing import BrokerFailed, LagRemains, LocalBroker


def test_a_temporary_store_outlives_restarts_and_is_removed_at_the_end() -> None:
    with LocalBroker() as broker:
        store, address = broker.store, broker.address
        with Producer(address) as producer:
            producer.send(Message("orders", b"1"))
        broker.kill()
        assert store.is_dir()
        broker.start()
        assert broker.address == address
        assert [message.body for message in broker.drain("orders")] == [b"1"]
    assert not store.exists()


def test_a_given_store_stays_and_settings_and_options_are_passed_on(tmp_path: Path) -> None:
    settings = {"flush.policy": "sync", "topics.auto_create": False}
    options = ("--set", "topics.default_queues=7")
    with LocalBroker(tmp_path / "store", *options, settings=settings) as broker, Admin(broker.address) as admin:
        found = {each.name: each.value for each in admin.settings()}
    assert (found["flush.policy"], found["topics.auto_create"]) == ("sync", False)
    assert found["topics.default_queues"] == 7
    assert found["store.commitlog_file_bytes"] == 4 << 20
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_a_broker_that_does_not_start_says_why_and_leaves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(BrokerFailed, match=r"(?s)did not start \(exit \d+\)\. Its output:\n.*flush\.policy"),
        LocalBroker(settings={"flush.policy": "never"}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_was_killed_by_others_fails_at_its_end() -> None:
    said = r"ended with exit -9\. Its output:\n(.*\n)*.*listening on"
    with pytest.raises(BrokerFailed, match=said), LocalBroker() as broker:
        os.kill(broker.pid, signal.SIGKILL)


def test_a_broker_outlives_the_thread_that_started_it() -> None:
    broker = LocalBroker()
    starting = threading.Thread(target=broker.start)
    starting.start()
    starting.join()
    with contextlib.ExitStack() as ending:
        ending.push(broker)
        with Admin(broker.address) as admin:
            assert admin.status()


def test_a_lag_that_remains_is_described() -> None:
    with LocalBroker() as broker:
        with pytest.raises(LagRemains, match=r"group billing does not exist after 0\.1 s: no consumer has joined it"):
            broker.wait_for_lag("billing", timeout=0.1)
        with Producer(broker.address) as producer:
            producer.send_many([Message("orders", b"") for _ in range(3)], queue=1)

        def fail(message: object) -> None:
            raise TryLater(18)

        with PushConsumer(broker.address, "billing", "orders", fail, start="first"):
            broker.wait_for_lag("billing", 3, timeout=60)
            with pytest.raises(
                LagRemains, match=r"group billing has more than 2 messages to handle after .* has 1 memb"
            ):
                broker.wait_for_lag("billing", 2, timeout=0.1)
