"""Access to a real etcd: users, passwords, tokens and certificates."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from flintmq.broker.replication.core.configuration import Proposal, ProposalOutcome, SetConfig
from flintmq.broker.replication.registry.etcd import EtcdRegistry, EtcdSettings
from flintmq.broker.replication.registry.interface import (
    LeaseAnswer,
    NotARegistry,
    RegistryCredentialsRejected,
    RegistryError,
    RegistryPermissionDenied,
    RegistryUnreachable,
    UnsafeRegistry,
)
from tests.etcd_server import EtcdServer, etcd_cluster
from tests.tls_tools import Authority

LED_BY_A = SetConfig("id", 1, "a", frozenset("a"), frozenset("a"), 1)
FIRST = Proposal(1, LED_BY_A, 0, True)
ADDRESSES = {"a": "127.0.0.1:10911"}


def add_users(etcd: EtcdServer) -> None:
    """Add root, and a user ``broker`` that may use the keys of ``/flintmq/tests/`` only, then require logins."""
    key, end = (b64encode(text).decode() for text in (b"/flintmq/tests/", b"/flintmq/tests0"))
    for name, password in (("root", "top"), ("broker", "secret")):
        etcd.post("/v3/auth/user/add", {"name": name, "password": password})
    for role in ("root", "tests"):
        etcd.post("/v3/auth/role/add", {"name": role})
    permission = {"permType": "READWRITE", "key": key, "range_end": end}
    etcd.post("/v3/auth/role/grant", {"name": "tests", "perm": permission})
    etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    etcd.post("/v3/auth/user/grant", {"user": "broker", "role": "tests"})
    etcd.post("/v3/auth/enable", {})


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Yield an etcd that requires logins."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as (server,):
        add_users(server)
        yield server


@pytest.fixture
def settings(etcd: EtcdServer, tmp_path: Path, request: pytest.FixtureRequest) -> EtcdSettings:
    """Return the settings of the user ``broker`` and a set of this test's."""
    (tmp_path / "password").write_text("secret\n")
    return EtcdSettings(
        (etcd.url,), "tests", request.node.name, user="broker", password_file=str(tmp_path / "password")
    )


async def use_everything(registry: EtcdRegistry) -> None:
    """Call each verb once."""
    answer = await registry.propose(FIRST, ADDRESSES)
    assert answer.outcome is ProposalOutcome.DONE
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    async with aclosing(registry.watch()) as watch:
        assert (await anext(watch)).state.holder == "a"
        following = asyncio.ensure_future(anext(watch))
        await registry.release_lease()
        assert (await asyncio.wait_for(following, 60)).state.holder is None


async def test_a_user_of_the_prefix_may_do_everything_there(settings: EtcdSettings) -> None:
    await use_everything(EtcdRegistry(settings))


async def test_a_user_may_not_use_another_prefix(settings: EtcdSettings) -> None:
    registry = EtcdRegistry(replace(settings, cluster="others"))
    with pytest.raises(RegistryPermissionDenied, match="Grant the user readwrite"):
        await registry.read()
    with pytest.raises(RegistryPermissionDenied):
        await registry.propose(FIRST, ADDRESSES)
    with pytest.raises(RegistryPermissionDenied):
        await registry.hold_lease("a", 1)


async def test_wrong_and_missing_credentials_are_rejected(settings: EtcdSettings, tmp_path: Path) -> None:
    with pytest.raises(RegistryCredentialsRejected, match="user"):
        await EtcdRegistry(replace(settings, user=None)).read()
    (tmp_path / "password").write_text("guess")
    for user in ("broker", "stranger"):
        with pytest.raises(RegistryCredentialsRejected, match="Check user and password") as caught:
            await EtcdRegistry(replace(settings, user=user)).propose(FIRST, ADDRESSES)
        assert "guess" not in str(caught.value)


async def test_a_lost_token_is_replaced(etcd: EtcdServer, settings: EtcdSettings) -> None:
    registry = EtcdRegistry(settings)
    await registry.read()
    etcd.kill()
    etcd.start()  # etcd keeps tokens in memory
    assert (await registry.propose(FIRST, ADDRESSES)).outcome is ProposalOutcome.DONE
    # A change of users ends every token: "revision of auth store is old".
    token = etcd.post("/v3/auth/authenticate", {"name": "root", "password": "top"})["token"]
    etcd.post("/v3/auth/user/add", {"name": "another", "password": "one"}, token)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA for etcd and its clients."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def etcd_with_tls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdServer]:
    """Yield an etcd that requires client certificates."""
    tls = authority.issue("etcd"), authority.path
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), tls=tls) as (server,):
        yield server


async def test_certificates(etcd_with_tls: EtcdServer, authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("member")
    settings = EtcdSettings(
        (etcd_with_tls.url,), "tests", "set", ca_file=authority.path, certificate_file=own.certificate, key_file=own.key
    )
    await use_everything(EtcdRegistry(settings))
    other = Authority(tmp_path)
    strange = other.issue("member")
    wrong: list[tuple[EtcdSettings, type[RegistryError], str]] = [
        (replace(settings, certificate_file=None), RegistryCredentialsRejected, "certificate"),
        (
            replace(settings, certificate_file=strange.certificate, key_file=strange.key),
            RegistryCredentialsRejected,
            "certificate",
        ),
        (replace(settings, ca_file=other.path), RegistryUnreachable, "cannot be trusted"),
        (replace(settings, endpoints=(etcd_with_tls.url.replace("https", "http"),)), RegistryUnreachable, "closed"),
    ]
    for each, error, text in wrong:
        with pytest.raises(error, match=text):
            await EtcdRegistry(each).read()


async def test_https_to_an_etcd_without_tls_says_so(settings: EtcdSettings) -> None:
    url = settings.endpoints[0].replace("http", "https")
    with pytest.raises(RegistryUnreachable, match=r"does not speak TLS|ConnectionResetError|Connection reset by peer"):
        await EtcdRegistry(replace(settings, endpoints=(url,))).read()


@pytest.mark.parametrize(
    ("path", "forged", "error"),
    [
        ("/version", {"etcdserver": "9" * 5_000 + ".1.1"}, UnsafeRegistry),
        ("/version", {"etcdserver": "3.5." + "9" * 5_000}, UnsafeRegistry),
        ("/v3/auth/authenticate", {"token": "a\r\nHost: b"}, NotARegistry),
        ("/v3/auth/authenticate", {"token": ["a"]}, NotARegistry),
        ("/v3/auth/authenticate", {}, NotARegistry),
    ],
    ids=["major", "patch", "line-break", "list", "missing"],
)
async def test_a_forged_answer_before_a_real_etcd_is_a_typed_error(
    etcd: EtcdServer, settings: EtcdSettings, path: str, forged: dict[str, object], error: type[RegistryError]
) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split()[1].decode() == path:
            body = json.dumps(forged).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()
            return
        host, port = etcd.url.removeprefix("http://").split(":")
        answers, requests = await asyncio.open_connection(host, int(port))
        length = next((line.split()[1] for line in head.splitlines() if line.lower().startswith(b"content-length")), 0)
        requests.write(head + await reader.readexactly(int(length)))
        writer.write(await answers.read())
        writer.close()
        requests.close()

    async with asyncio.timeout(30), await asyncio.start_server(pass_on, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        registry = EtcdRegistry(replace(settings, endpoints=(f"http://127.0.0.1:{port}",)))
        with pytest.raises(error):
            await registry.read()
