"""Authentication over TCP: successful and failed logins, and changes of the users. With both drivers."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flintmq.broker.security.backoff import FREE_NAMES
from flintmq.client import (
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionFailed,
    Message,
    Outcome,
    TransactionProducer,
)
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.protocol.auth.scram import MECHANISM, ClientExchange
from flintmq.protocol.commands import AUTH, GET_ALL_TOPIC_CONFIG, HELLO
from flintmq.protocol.errors import BrokerError, FrameIllegal, InvalidParameter, SystemBusy
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import until
from tests.security_tools import PASSWORD, SCRAM, authenticate, set_user


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with the user `billing`, for tests that do not change its users."""
    folder = tmp_path_factory.mktemp("guarded")
    set_user(folder / "store", "billing")
    brokers = Brokers(folder)
    yield brokers.start(store=folder / "store", settings=SCRAM)
    brokers.stop_all()


def refused(connection: RawConnection, error: type[BrokerError], match: str) -> None:
    """Check that the next response is an error, and that the broker then closes the connection."""
    with pytest.raises(error, match=match):
        connection.receive().raise_for_error()
    assert connection.is_closed()


class TestTheCommand:
    def test_hello_says_that_auth_is_required(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        answer = connect(guarded, hello=False).call(HELLO, {"protocol": 1})
        assert answer.fields["auth_required"]
        assert answer.fields["auth"] == "SCRAM-SHA-256"

    def test_all_commands_are_allowed_after_auth(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        connection = connect(guarded)
        authenticate(connection)
        connection.call(GET_ALL_TOPIC_CONFIG).raise_for_error()
        connection.call(HELLO, {"protocol": 1}).raise_for_error()  # a second HELLO does not undo the authentication
        connection.call(GET_ALL_TOPIC_CONFIG).raise_for_error()
        with pytest.raises(InvalidParameter, match="already authenticated as user 'billing'"):
            connection.call(AUTH, {"message": "n,,n=x,r=y", "mechanism": MECHANISM}).raise_for_error()

    def test_no_command_is_allowed_before_auth(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        connection = connect(guarded)
        connection.send(GET_ALL_TOPIC_CONFIG)
        refused(connection, AuthenticationRequired, "send AUTH with SCRAM-SHA-256 after HELLO")

    def test_no_command_is_allowed_after_the_first_step_even_with_a_second_hello(
        self, guarded: RunningBroker, connect: ConnectionFactory
    ) -> None:
        connection = connect(guarded)
        first = ClientExchange("billing", PASSWORD).first()
        connection.call(AUTH, {"message": first, "mechanism": MECHANISM}).raise_for_error()
        connection.call(HELLO, {"protocol": 1}).raise_for_error()
        connection.send(GET_ALL_TOPIC_CONFIG)
        refused(connection, AuthenticationRequired, "after HELLO")

    def test_auth_before_hello_is_refused(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        connection = connect(guarded, hello=False)
        connection.send(AUTH, {"message": "n,,n=x,r=y", "mechanism": MECHANISM})
        refused(connection, BrokerError, "must be HELLO")

    def test_another_mechanism_is_refused(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        connection = connect(guarded)
        connection.send(AUTH, {"message": "\0billing\0x", "mechanism": "PLAIN"})
        refused(connection, AuthenticationFailed, "unknown mechanism 'PLAIN'; use SCRAM-SHA-256")

    def test_an_invalid_first_message_is_refused(self, guarded: RunningBroker, connect: ConnectionFactory) -> None:
        connection = connect(guarded)
        connection.send(AUTH, {"message": "n,,x", "mechanism": MECHANISM})
        refused(connection, AuthenticationFailed, "not a message of SCRAM-SHA-256")

    def test_an_unauthenticated_client_may_send_only_small_frames(
        self, guarded: RunningBroker, connect: ConnectionFactory
    ) -> None:
        connection = connect(guarded)
        connection.send(AUTH, {"message": "n,,n=x,r=y", "mechanism": MECHANISM}, b"x" * 5000)
        refused(connection, FrameIllegal, "4096")

    def test_a_user_may_send_large_frames(self, guarded: RunningBroker, connect: ConnectionFactory, topic: str) -> None:
        connection = connect(guarded)
        authenticate(connection)
        connection.produce(topic, b"x" * 50_000).raise_for_error()

    def test_a_broker_without_authentication_refuses_auth(
        self, shared_broker: RunningBroker, connect: ConnectionFactory
    ) -> None:
        connection = connect(shared_broker)
        with pytest.raises(InvalidParameter, match="does not use authentication"):
            connection.call(AUTH, {"message": "n,,n=x,r=y", "mechanism": MECHANISM}).raise_for_error()

    def test_a_replayed_proof_is_refused(self, own: Own, connect: ConnectionFactory) -> None:
        running = own.running
        exchange = ClientExchange(own.name, PASSWORD, nonce="seen")
        connection = connect(running)
        answer = connection.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM})
        proof = exchange.final(answer.fields["message"])
        connection.call(AUTH, {"message": proof}).raise_for_error()
        replay = connect(running)
        replay.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM}).raise_for_error()
        replay.send(AUTH, {"message": proof})
        refused(replay, AuthenticationFailed, "nonce")


@dataclass
class Own:
    """A broker of one test, with a user that has the usual password."""

    running: RunningBroker
    name: str

    @property
    def log(self) -> str:
        """Return the broker's log."""
        return self.running.log

    def set(self, password: str | None) -> None:
        """Set another password, or remove the user (None)."""
        set_user(self.running.store, self.name, password)


@pytest.fixture
def own(broker: BrokerFactory, tmp_path: Path) -> Own:
    set_user(tmp_path / "store", "billing")
    set_user(tmp_path / "store", "shop")
    return Own(broker(store=tmp_path / "store", settings=SCRAM), "shop")


class TestWrongOnes:
    def test_a_wrong_password_and_an_unknown_user_look_the_same(self, own: Own, connect: ConnectionFactory) -> None:
        seen = []
        for name in (own.name, "stranger"):
            connection = connect(own.running)
            exchange = ClientExchange(name, "wrong", nonce="n")
            answer = connection.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM}).raise_for_error()
            challenge = answer.fields["message"]
            failure = connection.call(AUTH, {"message": exchange.final(challenge)})
            assert connection.is_closed()
            iterations = challenge.rpartition("i=")[2]
            seen.append((failure.code, failure.fields, len(challenge), iterations, sorted(answer.fields)))
        assert seen[0] == seen[1]
        assert "password is wrong" in str(seen[0][1])
        assert "failed to authenticate as 'stranger'" in own.log
        assert '"AUTHENTICATION_FAILED"' in own.log  # in the audit log too

    def test_an_address_waits_after_failures_until_a_correct_password(
        self, own: Own, connect: ConnectionFactory
    ) -> None:
        running = own.running
        began = time.monotonic()
        for _ in range(4):
            with pytest.raises(AuthenticationFailed):
                authenticate(connect(running), own.name, "wrong")
        assert time.monotonic() - began >= 0.1 + 0.2 + 0.4  # the minimum of the pauses
        authenticate(connect(running), own.name)
        assert "waits 0.8 s" in own.log
        with pytest.raises(AuthenticationFailed):
            authenticate(connect(running), own.name, "wrong")
        assert own.log.count("waits 0.1 s") == 2

    def test_one_users_failures_delay_no_one_else_behind_the_address(
        self, own: Own, connect: ConnectionFactory
    ) -> None:
        """The other user's login is answered while the one that has failed still waits for its turn."""
        running = own.running
        other = f"{own.name}-beside"
        set_user(running.store, other)
        waiting, exchange = connect(running), ClientExchange(own.name, PASSWORD)
        answer = waiting.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM}).raise_for_error()
        for _ in range(5):
            with pytest.raises(AuthenticationFailed):
                authenticate(connect(running), own.name, "wrong")
        request_id = waiting.send(AUTH, {"message": exchange.final(answer.fields["message"])})
        authenticate(connect(running), other)
        poller = select.poll()
        poller.register(waiting.sock, select.POLLIN)
        assert not poller.poll(0)
        waiting.receive_for(request_id).raise_for_error()

    def test_guesses_with_many_names_delay_the_whole_address(self, own: Own, connect: ConnectionFactory) -> None:
        names = [f"guessed-{own.name}-{number}" for number in range(FREE_NAMES + 2)]
        for name in names:
            with pytest.raises(AuthenticationFailed):
                authenticate(connect(own.running), name, "wrong")
        for name, pause in zip(names, ["0.1"] * (FREE_NAMES + 1) + ["0.2"], strict=True):
            [line] = [line for line in own.log.splitlines() if f"authenticate as '{name}'" in line]
            assert line.endswith(f"waits {pause} s")

    def test_an_attempt_that_would_wait_too_long_gets_system_busy(self, own: Own, connect: ConnectionFactory) -> None:
        running = own.running
        attempts = []
        for _ in range(7):  # all but the last step, so that all seven can take it before the pause ends
            connection = connect(running)
            exchange = ClientExchange(own.name, PASSWORD)
            answer = connection.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM}).raise_for_error()
            attempts.append((connection, exchange.final(answer.fields["message"])))
        for _ in range(4):
            with pytest.raises(AuthenticationFailed):
                authenticate(connect(running), own.name, "wrong")
        sent = [(connection, connection.send(AUTH, {"message": final})) for connection, final in attempts]
        with pytest.raises(SystemBusy, match="attempts to authenticate from") as raised:
            sent[-1][0].receive_for(sent[-1][1]).raise_for_error()
        assert raised.value.retry_after_ms > 0
        for connection, request_id in sent[:2]:  # the first correct one ends the pause for the others
            connection.receive_for(request_id).raise_for_error()

    def test_a_connection_that_never_authenticates_is_closed(
        self, broker: BrokerFactory, connect: ConnectionFactory
    ) -> None:
        running = broker(settings={**SCRAM, "security.auth_timeout_ms": 300})
        silent, half = connect(running, hello=False), connect(running)
        half.call(AUTH, {"message": ClientExchange("billing", PASSWORD).first(), "mechanism": MECHANISM})
        refused(half, AuthenticationRequired, "security.auth_timeout_ms, 300 ms")
        refused(silent, AuthenticationRequired, "security.auth_timeout_ms, 300 ms")


class TestClients:
    def test_producer_consumer_and_admin_authenticate(
        self, guarded: RunningBroker, clients: Clients, topic: str
    ) -> None:
        login: AccessOptions = {"user": "billing", "password": PASSWORD}
        with clients.Producer(guarded.address, **login) as producer:
            producer.send(Message(topic, b"x" * 10_000))
        with clients.Consumer(guarded.address, **login) as consumer:
            assert len(list(consumer.iter(topic, until="latest"))) == 1
        with clients.Admin(guarded.address, **login) as admin:
            assert topic in admin.topics()

    def test_push_consumers_and_transaction_producers_authenticate(
        self, guarded: RunningBroker, clients: Clients, topic: str
    ) -> None:
        login: AccessOptions = {"user": "billing", "password": PASSWORD}
        with TransactionProducer(guarded.address, "shop", lambda _: Outcome.UNKNOWN, **login) as producer:
            producer.send_half(Message(topic, b"paid")).commit()
        seen: list[bytes] = []
        with clients.PushConsumer(
            guarded.address, "g", topic, lambda message: seen.append(message.body), start="first", **login
        ):
            until(lambda: seen == [b"paid"])

    def test_the_password_can_come_from_a_function(self, guarded: RunningBroker, clients: Clients) -> None:
        with clients.Admin(guarded.address, user="billing", password=lambda: PASSWORD) as admin:
            admin.topics()

        def fails() -> str:
            raise RuntimeError("no vault")

        with (
            clients.Admin(guarded.address, user="billing", password=fails) as admin,
            pytest.raises(AuthenticationFailed, match=r"password function of user .* failed: RuntimeError"),
        ):
            admin.topics()

    def test_a_wrong_password_fails_at_once_and_is_not_said(self, own: Own, clients: Clients) -> None:
        address = own.running.address
        with clients.Producer(address, user=own.name, password="mistyped", delivery_timeout=600) as producer:
            with pytest.raises(
                AuthenticationFailed, match=rf"user '{own.name}' at broker 'flintmq': .* wrong"
            ) as raised:
                producer.send(Message("orders", b"x"))
            assert "mistyped" not in repr(raised.value) + repr(producer) + repr(vars(producer))
        assert own.log.count("failed to authenticate") == 1

    def test_members_of_groups_and_transactions_fail_at_once_too(self, own: Own, clients: Clients) -> None:
        address = own.running.address
        consumer = clients.PushConsumer(
            address, "g", "orders", lambda message: None, user=own.name, password="mistyped", timeout=60
        )
        with pytest.raises(AuthenticationFailed, match="wrong"), consumer:
            pass
        check = lambda _: Outcome.UNKNOWN  # noqa: E731
        with (
            TransactionProducer(
                address, "shop", check, user=own.name, password="mistyped", delivery_timeout=60
            ) as producer,
            pytest.raises(AuthenticationFailed, match="wrong"),
        ):
            producer.send_half(Message("orders", b"x"))

    def test_no_user_fails_at_once(self, guarded: RunningBroker, clients: Clients) -> None:
        with (
            clients.Admin(guarded.address, timeout=600) as admin,
            pytest.raises(AuthenticationRequired, match="pass user and password"),
        ):
            admin.topics()

    def test_a_broker_that_does_not_ask_is_not_believed(self, shared_broker: RunningBroker, clients: Clients) -> None:
        with (
            clients.Admin(shared_broker.address, user="billing", password=PASSWORD, timeout=600) as admin,
            pytest.raises(AuthenticationFailed, match="does not authenticate clients"),
        ):
            admin.topics()

    def test_a_producer_continues_after_a_restart(self, broker: BrokerFactory, clients: Clients) -> None:
        running = broker(settings=SCRAM)
        set_user(running.store, "billing")
        with clients.Producer(running.address, user="billing", password=PASSWORD, delivery_timeout=60) as producer:
            first = producer.send(Message("orders", b"1"))
            assert running.stop() == 0
            broker("--listen", running.address, store=running.store, settings=SCRAM)
            second = producer.send(Message("orders", b"2"))
        assert second.physical_offset > first.physical_offset


class TestChanges:
    def test_a_user_that_is_added_can_connect(self, own: Own, clients: Clients) -> None:
        own.set(None)
        with clients.Admin(own.running.address, user=own.name, password="p4ssword") as admin:
            with pytest.raises(AuthenticationFailed):
                admin.topics()
            own.set("p4ssword")
            admin.topics()

    @pytest.mark.parametrize(("password", "why"), [(None, "was removed"), ("another one", "got another password")])
    def test_connections_of_a_removed_or_changed_user_are_closed(
        self, own: Own, connect: ConnectionFactory, password: str | None, why: str
    ) -> None:
        gone, stays = connect(own.running), connect(own.running)
        authenticate(gone, own.name)
        authenticate(stays)
        own.set(password)
        refused(gone, AuthenticationRequired, f"user '{own.name}' {why}")
        stays.call(GET_ALL_TOPIC_CONFIG).raise_for_error()

    def test_a_producer_whose_user_was_removed_fails(self, own: Own, clients: Clients) -> None:
        address = own.running.address
        with clients.Producer(address, user=own.name, password=PASSWORD, delivery_timeout=60) as producer:
            producer.send(Message("orders", b"1"))
            own.set(None)

            def send_until_refused() -> None:
                while True:
                    producer.send(Message("orders", b"2"))

            with pytest.raises((AuthenticationFailed, ConnectionFailed)):
                send_until_refused()

    def test_a_damaged_users_file_prevents_the_start(self, broker: BrokerFactory, tmp_path: Path) -> None:
        store = tmp_path / "damaged"
        set_user(store, "billing")
        for name in ("users.json", "users.json.bak"):
            (store / "flintmq" / name).write_text("{")
        with pytest.raises(AssertionError, match=r"exit 2(.|\n)*users\.json is not JSON"):
            broker(store=store, settings=SCRAM)


class TestBeyondLoopback:
    def test_it_is_refused_with_a_remedy(self, broker: BrokerFactory) -> None:
        with pytest.raises(AssertionError, match=r"exit 2(.|\n)*--set security.auth=scram(.|\n)*flintmq user add"):
            broker("--listen", "0.0.0.0:0")

    def test_it_is_allowed_with_users_and_without_tls_the_broker_warns(self, broker: BrokerFactory) -> None:
        running = broker("--listen", "0.0.0.0:0", settings=SCRAM)
        assert "there are no users yet" in running.log
        assert "`flintmq user add NAME --admin --generate --store " in running.log
        assert "without TLS: passwords are safe, but" in running.log
