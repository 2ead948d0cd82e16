"""TLS over TCP: valid and invalid certificates, client certificates, and replaced certificates. With both drivers."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import (
    Admin,
    AuthenticationRequired,
    ConnectionFailed,
    InvalidArgument,
    InvalidArgumentType,
    Message,
    Outcome,
    Producer,
    TlsFailed,
    TransactionProducer,
)
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.protocol.commands import HELLO, PULL
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, Brokers, RawConnection, RunningBroker
from tests.group_tools import until
from tests.overload_tools import soon
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tls_tools import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA that all brokers and clients here trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RunningBroker]:
    """A broker with TLS, for tests that do not change it."""
    brokers = Brokers(tmp_path_factory.mktemp("encrypted"))
    yield brokers.start(settings=authority.issue().broker_settings)
    brokers.stop_all()


class TestClients:
    def test_all_of_them_work(
        self, encrypted: RunningBroker, authority: Authority, clients: Clients, topic: str
    ) -> None:
        access: AccessOptions = {"tls": authority.path}
        bodies = [bytes([number % 251]) * 1_000 for number in range(20_000)]  # more than any buffer holds
        with clients.Producer(encrypted.address, compress_over=None, **access) as producer:
            receipts = producer.send_bulk(topic, bodies, queue=0)
            producer.send(Message(topic, b"small"), queue=0)
        assert len(receipts) == len(bodies)
        with clients.Consumer(encrypted.address, **access) as consumer:
            # Fewer come until the producer's last turn is a moment ago.
            soon(lambda: len(consumer.pull(topic, 0, 0, max_count=5_000, max_bytes=8 << 20)) == 5_000)
            read = [message.body for message in consumer.iter(topic, until="latest")]
        assert read == [*bodies, b"small"]
        with clients.Admin(encrypted.address, **access) as admin:
            assert topic in admin.topics()

    def test_push_consumers_and_transactions_work(
        self, encrypted: RunningBroker, authority: Authority, clients: Clients, topic: str
    ) -> None:
        access: AccessOptions = {"tls": authority.path}
        with TransactionProducer(encrypted.address, "shop", lambda _: Outcome.UNKNOWN, **access) as producer:
            producer.send_half(Message(topic, b"x" * 100_000)).commit()
        seen: list[bytes] = []
        with clients.PushConsumer(
            encrypted.address, "g", topic, lambda message: seen.append(message.body), start="first", **access
        ) as consumer:
            until(lambda: seen == [b"x" * 100_000])
            assert consumer.health().alive

    def test_calls_from_other_threads_end_when_it_is_closed(
        self, encrypted: RunningBroker, authority: Authority, clients: Clients, topic: str
    ) -> None:
        with clients.Admin(encrypted.address, tls=authority.path) as admin:
            admin.create_topic(topic, 1)
        consumer = clients.Consumer(encrypted.address, tls=authority.path)
        with consumer:
            assert len(consumer.pull(topic, 0, 0, wait_ms=300)) == 0
        consumer.close()

    def test_a_custom_context_is_used(self, encrypted: RunningBroker, authority: Authority, clients: Clients) -> None:
        context = ssl.create_default_context(cafile=authority.path)
        with clients.Admin(encrypted.address, tls=context) as admin:
            admin.topics()

    def test_users_authenticate_over_it(
        self, broker: BrokerFactory, authority: Authority, clients: Clients, tmp_path: Path
    ) -> None:
        set_user(tmp_path / "users", "billing")
        running = broker(store=tmp_path / "users", settings={**SCRAM, **authority.issue("users").broker_settings})
        login: AccessOptions = {"user": "billing", "password": PASSWORD, "tls": authority.path}
        with clients.Producer(running.address, **login) as producer:
            producer.send(Message("orders", b"x" * 50_000))
        with (
            clients.Admin(running.address, tls=authority.path) as admin,
            pytest.raises(AuthenticationRequired, match="pass user and password"),
        ):
            admin.topics()


@pytest.fixture(
    scope="module",
    params=[("other.example", False, "is for another host"), ("127.0.0.1", True, "has expired")],
    ids=["another host", "expired"],
)
def unfit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[tuple[RunningBroker, str]]:
    """A broker with an unsuitable certificate, and the reason."""
    host, expired, why = request.param
    brokers = Brokers(tmp_path_factory.mktemp("unfit"))
    yield brokers.start(settings=authority.issue("unfit", host, expired=expired).broker_settings), why
    brokers.stop_all()


class TestWhatDoesNotFit:
    """Each error names the reason, and the client does not try again."""

    def refusal(self, clients: Clients, address: str, error: type[ConnectionFailed], tls: bool | str) -> str:
        with clients.Admin(address, timeout=600, tls=tls) as admin, pytest.raises(error) as raised:
            admin.topics()
        assert raised.type is error
        return str(raised.value)

    def test_a_ca_that_is_not_known(self, encrypted: RunningBroker, clients: Clients) -> None:
        said = self.refusal(clients, encrypted.address, TlsFailed, tls=True)
        assert "its certificate is not trusted" in said
        assert "tls='ca.pem'" in said

    def test_another_ca_that_has_the_same_name(
        self, encrypted: RunningBroker, clients: Clients, tmp_path: Path
    ) -> None:
        said = self.refusal(clients, encrypted.address, TlsFailed, tls=Authority(tmp_path).path)
        assert "its certificate is not trusted" in said

    def test_a_certificate_that_is_not_good(
        self, unfit: tuple[RunningBroker, str], authority: Authority, clients: Clients
    ) -> None:
        running, why = unfit
        assert f"its certificate {why}" in self.refusal(clients, running.address, TlsFailed, tls=authority.path)
        until(lambda: "TLS handshake failed" in running.log)

    def test_a_broker_without_tls(self, shared_broker: RunningBroker, authority: Authority, clients: Clients) -> None:
        said = self.refusal(clients, shared_broker.address, TlsFailed, tls=authority.path)
        assert "the server does not speak TLS" in said

    def test_a_client_without_tls(self, encrypted: RunningBroker, clients: Clients) -> None:
        # The broker logs one attempt a second, and others came before this one.
        def is_said_after_another_try() -> bool:
            with clients.Admin(encrypted.address, timeout=0.2) as admin, pytest.raises(ConnectionFailed) as raised:
                admin.topics()
            assert "the broker may require TLS (tls=True)" in str(raised.value)
            return "the client did not use TLS" in encrypted.log

        until(is_said_after_another_try)

    def test_an_absent_broker_gives_the_same_error_as_without_tls(self, authority: Authority, clients: Clients) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            clients.Admin(address, tls=authority.path, timeout=0.2) as admin,
            pytest.raises(ConnectionFailed, match="cannot reach a broker at"),
        ):
            admin.topics()

    def test_arguments_that_cannot_be(self, clients: Clients, authority: Authority, tmp_path: Path) -> None:
        mine = authority.issue("mine")
        for arguments, why in (
            ({"tls": str(tmp_path / "none.pem")}, "cannot be used as a CA file: No such file"),
            ({"tls": mine.key}, "cannot be used as a CA file"),
            ({"tls": ""}, "tls is empty"),
            ({"tls_key": mine.key}, "tls_key was given without tls_certificate"),
            ({"tls": False, "tls_certificate": mine.certificate}, "given with tls=False"),
            ({"tls_certificate": mine.certificate, "tls_key": authority.issue("other").key}, "belong together"),
            ({"tls": ssl.create_default_context(), "tls_certificate": mine.certificate}, "belong in the SSLContext"),
            ({"user": "billing"}, "without password"),
            ({"password": "x"}, "without user"),
            ({"user": "billing", "password": "a\x00b"}, "password is not valid"),
        ):
            with pytest.raises(InvalidArgument, match=why):
                clients.Admin("127.0.0.1:1", **arguments)
        for wrong in ({"tls": 1.5}, {"user": 5, "password": "x"}, {"user": "a", "password": 5}):
            with pytest.raises(InvalidArgumentType):
                clients.Admin("127.0.0.1:1", **wrong)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RunningBroker]:
    """A broker that requires client certificates; it may listen on any address."""
    settings = authority.issue("strict").broker_settings | {"security.tls_client_ca": authority.path}
    brokers = Brokers(tmp_path_factory.mktemp("strict"))
    yield brokers.start("--listen", "0.0.0.0:0", settings=settings)
    brokers.stop_all()


class TestMutual:
    def address(self, running: RunningBroker) -> str:
        return f"127.0.0.1:{running.port}"

    def test_a_client_with_a_certificate_gets_in(
        self, strict: RunningBroker, authority: Authority, clients: Clients
    ) -> None:
        mine = authority.issue("client", "client.example")
        access: AccessOptions = {"tls": authority.path, "tls_certificate": mine.certificate, "tls_key": mine.key}
        with clients.Admin(self.address(strict), **access) as admin:
            admin.topics()

    def test_a_client_without_tls_learns_that_it_is_required(
        self, strict: RunningBroker, authority: Authority, clients: Clients
    ) -> None:
        def is_refused_and_logged() -> bool:
            with (
                clients.Admin(self.address(strict), tls=authority.path, timeout=0.3) as admin,
                pytest.raises(ConnectionFailed, match="certificate"),
            ):
                admin.topics()
            return "the client sent no certificate" in strict.log

        until(is_refused_and_logged)  # the broker logs failures at most once a second

    def test_one_of_another_ca_does_not_help(
        self, strict: RunningBroker, authority: Authority, clients: Clients, tmp_path: Path
    ) -> None:
        theirs = Authority(tmp_path, "strangers").issue("client", "client.example")
        access: AccessOptions = {"tls": authority.path, "tls_certificate": theirs.certificate, "tls_key": theirs.key}

        def is_refused_and_logged() -> bool:
            with clients.Admin(self.address(strict), timeout=0.3, **access) as admin, pytest.raises(ConnectionFailed):
                admin.topics()
            return "is not signed by security.tls_client_ca" in strict.log

        until(is_refused_and_logged)  # the broker logs failures at most once a second

    def test_a_certificate_that_was_replaced_is_taken(
        self, strict: RunningBroker, authority: Authority, tmp_path: Path
    ) -> None:
        theirs = Authority(tmp_path, "strangers").issue("client", "client.example")
        with Admin(
            self.address(strict),
            tls=authority.path,
            tls_certificate=theirs.certificate,
            tls_key=theirs.key,
            timeout=0.3,
        ) as admin:
            with pytest.raises(ConnectionFailed):
                admin.topics()
            mine = authority.issue("client", "client.example")
            shutil.copy(mine.key, theirs.key)
            shutil.copy(mine.certificate, theirs.certificate)
            admin.topics(timeout=60)


class TestNewCertificates:
    def test_new_connections_use_new_files_unless_they_are_broken(
        self, broker: BrokerFactory, authority: Authority, tmp_path: Path
    ) -> None:
        files = authority.issue("renewed")
        running = broker(settings=files.broker_settings)
        other = Authority(tmp_path)
        new = other.issue()
        with Admin(running.address, tls=authority.path) as before:
            before.topics()
            shutil.copy(new.key, files.key)  # its certificate is still the old one
            until(lambda: "keeping the previous certificate" in running.log)
            with Admin(running.address, tls=authority.path) as meanwhile:
                meanwhile.topics()
            shutil.copy(new.certificate, files.certificate)
            until(lambda: "reloaded the certificate" in running.log)
            with Admin(running.address, tls=other.path) as after:
                after.topics()
            before.topics()  # existing connections continue

    def test_sighup_reads_them_again(self, broker: BrokerFactory, authority: Authority) -> None:
        running = broker(settings=authority.issue("hup").broker_settings)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded the certificate" in running.log)
        with Admin(running.address, tls=authority.path) as admin:
            admin.topics()

    def test_sighup_without_any_of_it_ends_nothing(self, broker: BrokerFactory) -> None:
        running = broker()
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "SIGHUP" in running.log)
        with Admin(running.address) as admin:
            admin.topics()


class TestHandshakes:
    def test_a_client_that_never_begins_is_closed_and_delays_no_other(
        self, broker: BrokerFactory, authority: Authority
    ) -> None:
        running = broker(settings={**authority.issue("slow").broker_settings, "security.auth_timeout_ms": 400})
        with socket.create_connection((running.host, running.port), timeout=60) as silent:
            with Admin(running.address, tls=authority.path) as admin:
                admin.topics()
            with contextlib.suppress(ConnectionResetError):
                assert not silent.recv(1)

    def test_a_stop_does_not_wait_for_them(self, broker: BrokerFactory, authority: Authority) -> None:
        running = broker(settings={**authority.issue("stop").broker_settings, "server.stop_timeout_ms": 60_000})
        with (
            socket.create_connection((running.host, running.port), timeout=60),
            Admin(running.address, tls=authority.path) as admin,
        ):
            admin.topics()
            assert running.stop() == 0

    def test_a_client_that_does_not_take_its_responses_is_not_served_and_then_closed(
        self, broker: BrokerFactory, authority: Authority
    ) -> None:
        limits = {"net.connection:WRITE_BUFFER_BYTES_MAX": 65_536, "limits.slow_reader_timeout_ms": 500}
        running = broker(settings={**authority.issue("lazy").broker_settings, **limits})
        with Producer(running.address, tls=authority.path, compress_over=None) as producer:
            producer.send_bulk("orders", [b"x" * 10_000] * 200, queue=0)
        context = ssl.create_default_context(cafile=authority.path)
        plain = socket.create_connection((running.host, running.port), timeout=60)
        lazy = RawConnection(context.wrap_socket(plain, server_hostname=running.host))
        lazy.call(HELLO, {"protocol": 1}).raise_for_error()
        for _ in range(100):  # of a megabyte each
            lazy.send(PULL, {"topic": "orders", "queue": 0, "offset": 0, "max_count": 100})
        until(lambda: "client did not read" in running.log)
        lazy.close()

    def test_old_versions_are_not_spoken(self, broker: BrokerFactory, authority: Authority) -> None:
        running = broker(settings={**authority.issue("new").broker_settings, "security.tls_min": "1.3"})
        context = ssl.create_default_context(cafile=authority.path)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            Admin(running.address, tls=context, timeout=0.3) as admin,
            pytest.raises(
                ConnectionFailed, match=r"broker at .* failed: client and broker have no TLS version in common"
            ),
        ):
            admin.topics()
        until(lambda: "versions of TLS that are too old" in running.log)
