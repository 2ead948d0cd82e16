"""Members of a PushConsumer's group: queues are shared, and a killed member loses nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from flintmq.client import (
    ConnectionFailed,
    FilterIllegal,
    FlintError,
    MemberNameTaken,
    Subscription,
    SubscriptionIllegal,
)
from flintmq.testing.started_broker import broker_environment
from tests.client_drivers import Clients
from tests.group_tools import Seen, numbered, until


class TestMembers:
    def test_queues_are_shared_and_come_back(self, clients: Clients, address: str, topic: str) -> None:
        seen = [Seen(), Seen()]
        with clients.Admin(address) as admin, clients.Producer(address) as producer:
            admin.create_topic(topic, 8)
            first = clients.PushConsumer(address, topic, topic, seen[0], start="first").start()
            second = clients.PushConsumer(address, topic, topic, seen[1], start="first").start()
            until(lambda: len(first.health().queues) == len(second.health().queues) == 4, "an even share")
            for queue in range(8):
                producer.send_many(numbered(topic, 10), queue=queue)
            until(lambda: len(seen[0].messages) + len(seen[1].messages) == 80)
            assert len(seen[0].messages) == len(seen[1].messages) == 40
            second.close()
            until(lambda: len(first.health().queues) == 8)
            first.close()

    def test_a_member_that_is_killed_loses_nothing(self, clients: Clients, address: str, topic: str) -> None:
        script = (
            "import sys, threading\n"
            "from flintmq.client import PushConsumer\n"
            "def listen(message):\n"
            "    print(message.body.decode(), flush=True)\n"
            "    threading.Event().wait()\n"
            "PushConsumer(sys.argv[1], sys.argv[2], sys.argv[2], listen, start='first', session_timeout=1.5).start()\n"
            "threading.Event().wait()\n"
        )
        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 40))
            process = subprocess.Popen(
                [sys.executable, "-c", script, address, topic], stdout=subprocess.PIPE, env=broker_environment()
            )
            assert process.stdout is not None
            process.stdout.readline()  # it has received messages
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            seen = Seen()
            with clients.PushConsumer(address, topic, topic, seen, start="first"):
                seen.wait(40)
        assert Counter(seen.bodies) == Counter(b"%d" % n for n in range(40))

    def test_a_refused_member_gets_the_reason(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()
        with clients.PushConsumer(address, topic, topic, seen, member="me"):
            with pytest.raises(MemberNameTaken, match="live member 'me'"):
                clients.PushConsumer(address, topic, topic, seen, member="me").start()
            with pytest.raises(SubscriptionIllegal, match="all members of a group"):
                clients.PushConsumer(address, topic, topic, seen, mode="broadcasting").start()
            with pytest.raises(FilterIllegal):
                clients.PushConsumer(address, f"{topic}-2", {topic: Subscription(filter="a >")}, seen).start()
        with pytest.raises(ConnectionFailed):
            clients.PushConsumer("127.0.0.1:1", topic, topic, seen, timeout=0.5).start()

    def test_the_start_reports_a_broker_that_does_not_answer(self, clients: Clients, topic: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises((FlintError, TimeoutError)) as raised:
                clients.PushConsumer(address, topic, topic, Seen(), timeout=0.3).start()
        assert "did not return within" not in str(raised.value)
        assert "127.0.0.1" in str(raised.value) or "could not join" in str(raised.value)


def test_a_new_member_does_not_wait_for_messages_prefetched_by_a_busy_one(
    clients: Clients, address: str, topic: str
) -> None:
    let_go = threading.Event()
    first, second = Seen(lambda message: let_go.wait()), Seen()
    with clients.Admin(address) as admin, clients.Producer(address) as producer:
        admin.create_topic(topic, queues=4)
        for number in range(4):
            producer.send_many(numbered(topic, 50), queue=number)
    options: dict[str, Any] = {"group": topic, "topics": topic, "start": "first", "workers": 1}
    try:
        with clients.PushConsumer(address, listener=first, **options) as busy:
            until(lambda: busy.health().pending_messages == 200, "pulling ahead")
            first.wait(1)
            with clients.PushConsumer(address, listener=second, **options):
                second.wait(50)  # while the busy member still has its first message
                assert len(first.messages) == 1
                let_go.set()
                until(lambda: len({(m.queue, m.body) for m in first.messages + second.messages}) == 200)
        assert len(first.messages) + len(second.messages) == 200
    finally:
        let_go.set()
