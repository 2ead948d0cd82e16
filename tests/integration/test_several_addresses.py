"""Clients with several addresses: of brokers that are there or not, and of the members of a replica set."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from flintmq.client import (
    Admin,
    ConfigurationError,
    ConnectionFailed,
    Message,
    Outcome,
    Producer,
    Receipt,
    StoredMessage,
    TransactionProducer,
)
from flintmq.client.core.consume.requests import max_offset
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.client.spark.brokers import caller_of, parse_bootstrap
from flintmq.client.sync.arrow import Asker
from tests.cli_tools import Cli, Done
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import SOON_S, WAIT_SECONDS, Seen, until
from tests.proxied_set import ProxiedSet
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tls_tools import Authority


@pytest.fixture
def nobody() -> Iterator[str]:
    """Return an address that refuses connections: its port is taken, and nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


class TestBrokers:
    def test_if_the_first_address_refuses_the_second_serves_every_client(
        self, clients: Clients, shared_broker: RunningBroker, topic: str, nobody: str
    ) -> None:
        addresses = f"{nobody},{shared_broker.address}"
        seen = Seen()
        with (
            clients.Producer(addresses) as producer,
            clients.Consumer(addresses) as consumer,
            clients.Admin(addresses) as admin,
            TransactionProducer(addresses, f"p-{topic}", lambda message: Outcome.COMMIT) as transactions,
        ):
            producer.send(Message(topic, b"1"))
            transactions.send_half(Message(topic, b"2")).commit()
            assert {message.body for message in consumer.iter(topic, until="latest")} == {b"1", b"2"}
            assert topic in admin.topics()
            with clients.PushConsumer(addresses, f"g-{topic}", topic, seen, start="first"):
                assert {message.body for message in seen.wait(2)} == {b"1", b"2"}

    def test_after_the_death_of_the_broker_in_use_clients_go_to_the_other(
        self, clients: Clients, broker: BrokerFactory
    ) -> None:
        """Both brokers have the same first message, so that a consumer's offset means the same in both."""
        first, second = broker(), broker()
        for running in (first, second):
            with Admin(running.address) as admin, Producer(running.address) as producer:
                admin.create_topic("t", queues=1)
                producer.send(Message("t", b"in both"))
        addresses = f"{first.address},{second.address}"
        seen = Seen()
        with (
            clients.Producer(addresses, delivery_timeout=WAIT_SECONDS) as sending,
            clients.Consumer(addresses, timeout=WAIT_SECONDS) as consumer,
            clients.PushConsumer(addresses, "g", "t", seen, start="first"),
        ):
            seen.wait(1)
            assert consumer.max_offset("t", 0) == 1
            first.kill()
            for number in range(3):
                sending.send(Message("t", b"%d" % number))
            assert consumer.max_offset("t", 0) == 4
            assert consumer.pull("t", 0, 0).bodies() == [b"in both", b"0", b"1", b"2"]
            seen.wait(4)
        assert seen.bodies == [b"in both", b"0", b"1", b"2"]

    def test_an_address_that_accepts_connections_and_is_silent_leaves_time_for_the_next(
        self, clients: Clients, shared_broker: RunningBroker, topic: str
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            addresses = f"127.0.0.1:{silent.getsockname()[1]},{shared_broker.address}"
            with clients.Producer(addresses, delivery_timeout=4) as producer:
                producer.send(Message(topic, b"x"))
            with clients.Admin(addresses, timeout=4) as admin:
                assert topic in admin.topics()

    def test_if_no_address_serves_the_error_names_each(self, clients: Clients, nobody: str) -> None:
        with (
            clients.Admin(f"{nobody},[::1]:1", timeout=0.3) as admin,
            pytest.raises(ConnectionFailed, match=rf"at {nobody}: .*; .*at \[::1\]:1: "),
        ):
            admin.topics()

    @pytest.mark.parametrize("addresses", ["a:1,,b:1", "a:1,a:1", "a:1,b:0", ",".join(f"a{n}" for n in range(17))])
    def test_an_invalid_list_is_refused_before_anything_connects(self, clients: Clients, addresses: str) -> None:
        for make in (clients.Producer, clients.Consumer, clients.Admin):
            with pytest.raises(ConfigurationError):
                make(addresses)

    def test_the_command_line_takes_several_addresses(
        self, shared_broker: RunningBroker, topic: str, nobody: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        with Cli(tmp_path_factory.mktemp("cli"), f"{nobody},{shared_broker.address}") as cli:
            assert cli.run("send", topic, "hello").code == 0
            assert "hello" in cli.run("tail", topic, "-n", "1", "--from", "earliest").out
        with Cli(tmp_path_factory.mktemp("cli"), f"{nobody},{nobody}") as cli:
            ended = cli.run("status")
            assert ended.code == 2
            assert "is given twice" in ended.err

    def test_tls_and_the_password_hold_for_each_address_on_its_own(
        self, clients: Clients, broker: BrokerFactory, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """The first broker's certificate is for another host; the second one's is for its address."""
        folder = tmp_path_factory.mktemp("tls")
        authority = Authority(folder)
        brokers = []
        for host in ("elsewhere.example", "127.0.0.1"):
            store = folder / host
            set_user(store, "ann")
            brokers.append(broker(store=store, settings=authority.issue(host, host).broker_settings | SCRAM))
        access: AccessOptions = {"tls": authority.path, "user": "ann", "password": PASSWORD}
        with clients.Admin(",".join(running.address for running in brokers), **access) as admin:
            assert admin.whoami().user == "ann"
            assert [row.user for row in admin.connections()] == ["ann"]


@pytest.fixture
def replicas(broker: BrokerFactory) -> Iterator[ProxiedSet]:
    """A replica set whose first member leads."""
    replicas = ProxiedSet(broker(settings={"topics.default_queues": 2}))
    replicas.lead(0)
    yield replicas
    replicas.close()


SWITCHES = pytest.mark.parametrize("saying_so", [True, False], ids=["closing", "refusing"])
"""How an earlier primary stops to lead: it says so and closes its connections, or it refuses further requests."""


class TestReplicaSet:
    def test_any_member_leads_to_the_primary(self, clients: Clients, replicas: ProxiedSet) -> None:
        for number in (2, 1, 0):
            replicas.lead(number)
            for member in replicas.members:
                with clients.Producer(member.address) as producer:
                    producer.send(Message("t", b"x"))
        assert [member.refusals for member in replicas.members] == [0, 0, 0]

    @SWITCHES
    def test_messages_sent_during_switches_are_stored_once_and_in_order(
        self, clients: Clients, replicas: ProxiedSet, saying_so: bool
    ) -> None:
        acknowledged: dict[bytes, Receipt] = {}
        progress = threading.Semaphore(0)
        stop = threading.Event()

        def send(worker: int) -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                bodies = [b"%d-%d-%d" % (worker, number, place) for place in range(1 + 2 * (worker % 2))]
                receipts = producer.send_many([Message("t", body) for body in bodies], queue=worker % 2)
                acknowledged.update(zip(bodies, receipts, strict=True))
                progress.release()

        with clients.Producer(replicas.addresses, delivery_timeout=WAIT_SECONDS) as producer:
            threads = [threading.Thread(target=send, args=[worker]) for worker in range(4)]
            for thread in threads:
                thread.start()
            for number in (1, 2, 0):
                for _ in range(100):
                    progress.acquire()
                replicas.lead(number, saying_so=saying_so)
            for _ in range(100):
                progress.acquire()
            stop.set()
            for thread in threads:
                thread.join()
        with clients.Consumer(replicas.members[1].address) as consumer:
            messages = list(consumer.iter("t", until="latest"))
        assert Counter(message.body for message in messages) == Counter(list(acknowledged))
        for message in messages:
            receipt = acknowledged[message.body]
            assert (receipt.queue, receipt.queue_offset) == (message.queue, message.queue_offset)
        assert saying_so or sum(member.refusals for member in replicas.members) > 0

    @SWITCHES
    def test_calls_and_iterations_continue_at_the_new_primary(
        self, clients: Clients, replicas: ProxiedSet, saying_so: bool
    ) -> None:
        with (
            clients.Producer(replicas.addresses) as producer,
            clients.Consumer(replicas.addresses) as consumer,
            clients.Admin(replicas.addresses) as admin,
        ):
            producer.send(Message("t", b"0"))
            messages = consumer.iter("t")
            assert next(messages).body == b"0"
            for number in (1, 2):
                assert len(admin.topics()) == 1
                assert len(consumer.topic_stats("t")) == 2
                replicas.lead(number, saying_so=saying_so)
                assert len(admin.topics()) == 1
                assert len(consumer.topic_stats("t")) == 2
                producer.send(Message("t", b"%d" % number))
                assert next(messages).body == b"%d" % number

    @SWITCHES
    def test_sparks_reader_continues_at_the_new_primary(self, replicas: ProxiedSet, saying_so: bool) -> None:
        with Producer(replicas.addresses) as producer:
            producer.send(Message("t", b"x"), queue=1)
        (broker,) = parse_bootstrap("set=" + replicas.addresses.replace(",", ";"))
        asker: Asker[int] = Asker(caller_of(broker, WAIT_SECONDS), WAIT_SECONDS)
        with contextlib.closing(asker):
            for number in (1, 2):
                asker.ask(max_offset("t", 1))
                assert asker.answer() == 1
                replicas.lead(number, saying_so=saying_so)
                asker.ask(max_offset("t", 1))
                assert asker.answer() == 1

    @SWITCHES
    def test_groups_and_transactional_producers_rejoin_at_the_new_primary(
        self, clients: Clients, replicas: ProxiedSet, saying_so: bool
    ) -> None:
        seen = Seen()
        checked: list[str] = []

        def check(message: StoredMessage) -> Outcome:
            checked.append(message.message_id)
            return Outcome.COMMIT

        with (
            clients.PushConsumer(replicas.addresses, "g", "t", seen, start="first", commit_interval=0.05) as consumer,
            TransactionProducer(replicas.addresses, "p", check, session_timeout=3.0) as producer,
        ):
            producer.send_half(Message("t", b"0")).commit()
            seen.wait(1)
            for number in (1, 2):
                replicas.lead(number, saying_so=saying_so)
                producer.send_half(Message("t", b"%d" % number)).commit()
                seen.wait(1 + number)
                until(lambda: producer.health().registered and producer.health().trouble is None, "registering again")
            health = consumer.health()
            assert (health.alive, health.error) == (True, None)
            with Admin(replicas.addresses) as admin:
                until(lambda: not any(queue.lag for queue in admin.group("g").queues), "the commit")
        assert seen.bodies == [b"0", b"1", b"2"]

    def test_requests_wait_for_the_election_of_a_primary(self, clients: Clients, replicas: ProxiedSet) -> None:
        with clients.Producer(replicas.addresses) as producer, clients.Consumer(replicas.addresses) as consumer:
            producer.send(Message("t", b"0"))
            assert consumer.max_offset("t", 0) + consumer.max_offset("t", 1) == 1
            replicas.lead(None)
            asked = {member: member.greetings for member in replicas.members}
            sending = threading.Thread(target=producer.send, args=[Message("t", b"1")])
            reading = threading.Thread(target=consumer.topic_stats, args=["t"])
            for thread in (sending, reading):
                thread.start()
            until(lambda: all(member.greetings >= 4 + asked[member] for member in asked), "asking each member again")
            replicas.lead(2)
            for thread in (sending, reading):
                thread.join()
            assert sum(stats.count for stats in consumer.topic_stats("t")) == 2

    def test_a_command_waits_for_the_election_of_a_primary(
        self, replicas: ProxiedSet, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        replicas.lead(None)
        with Cli(tmp_path_factory.mktemp("cli"), replicas.addresses) as cli:
            ended = cli.run("--timeout", "0.3", "topic", "list")
            assert ended.code == 3
            assert "the set has no primary now" in ended.err
            commands: list[Done] = []
            waiting = threading.Thread(target=lambda: commands.append(cli.run("topic", "list")))
            asked = {member: member.greetings for member in replicas.members}
            waiting.start()
            until(lambda: all(member.greetings >= 2 + asked[member] for member in asked), "asking each member again")
            replicas.lead(1)
            waiting.join()
        assert [command.code for command in commands] == [0]

    def test_without_a_primary_a_request_fails_when_its_time_is_over(
        self, clients: Clients, replicas: ProxiedSet
    ) -> None:
        replicas.lead(None)
        with (
            clients.Producer(replicas.addresses, delivery_timeout=0.5) as producer,
            clients.Admin(replicas.addresses) as admin,
        ):
            for call in (lambda: producer.send(Message("t", b"x")), lambda: admin.topics(timeout=0.5)):
                began = time.monotonic()
                with pytest.raises(ConnectionFailed, match="no primary now"):
                    call()
                assert 0.2 < time.monotonic() - began < SOON_S

    def test_a_member_that_claims_to_lead_and_refuses_is_asked_with_pauses(
        self, clients: Clients, replicas: ProxiedSet
    ) -> None:
        replicas.lead(None)
        for member in replicas.members:
            member.claims_to_lead = True
        with (
            clients.Producer(replicas.addresses, delivery_timeout=1) as producer,
            clients.Admin(replicas.addresses, timeout=1) as admin,
        ):
            for call in (lambda: producer.send(Message("t", b"x")), admin.topics):
                with pytest.raises(ConnectionFailed, match="does not lead"):
                    call()
        assert 4 <= sum(member.refusals for member in replicas.members) < 30

    def test_the_dead_primary_that_followers_still_name_does_not_keep_clients_from_the_new_one(
        self, clients: Clients, replicas: ProxiedSet
    ) -> None:
        with clients.Producer(replicas.addresses, delivery_timeout=WAIT_SECONDS) as producer:
            producer.send(Message("t", b"0"))
            dead = replicas.members.pop(0)
            dead.close()
            sending = threading.Thread(target=producer.send, args=[Message("t", b"1")])
            sending.start()
            replicas.lead(1)
            sending.join()
        with Producer(dead.address + "," + replicas.addresses) as producer:
            producer.send(Message("t", b"2"))
        with clients.Consumer(replicas.addresses) as consumer:
            assert [message.body for message in islice(consumer.iter("t"), 3)]
