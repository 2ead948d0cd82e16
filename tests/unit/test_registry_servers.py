"""The registry in etcd before servers that are not etcd, too old, silent, or lie: each is a typed error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from flintmq.broker.replication.core.configuration import Proposal, ProposalOutcome, SetConfig
from flintmq.broker.replication.registry import etcd as etcd_module
from flintmq.broker.replication.registry.etcd import RESPONSE_BYTES_MAX, EtcdRegistry, EtcdSettings, is_safe_version
from flintmq.broker.replication.registry.interface import (
    ConfigTooLong,
    LeaseAnswer,
    NotARegistry,
    RegistryError,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsafeRegistry,
)
from tests.processes import free_port

CONFIG = SetConfig("id", 1, "a", frozenset("a"), frozenset("a"), 1)
ADDRESSES = {"a": "127.0.0.1:10911"}


def response(body: bytes, status: int = 200) -> bytes:
    """Return an HTTP response."""
    return f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def version(name: str) -> bytes:
    """Return etcd's response to a request for its version."""
    return response(json.dumps({"etcdserver": name}).encode())


SILENT = b""
CLOSED = b"closed"


@asynccontextmanager
async def server(answer: Callable[[bytes], bytes]) -> AsyncIterator[EtcdSettings]:
    """Run a server that answers each request by its target; yield the settings of a registry there."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            target = (await reader.readline()).split()[1]
            content = answer(target)
            if content != CLOSED:
                writer.write(content)
                await writer.drain()
                await reader.read()  # until the client closes
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = running.sockets[0].getsockname()[1]
    try:
        yield EtcdSettings((f"http://127.0.0.1:{port}",), "tests", "set")
    finally:
        running.close()
        for writer in writers:
            writer.transport.abort()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less long for silent servers."""
    monkeypatch.setattr(etcd_module, "READ_LIMIT_S", 0.3)
    monkeypatch.setattr(etcd_module, "CHANGE_LIMIT_S", 0.3)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (response(b"<html>Welcome</html>"), NotARegistry),
        (response(b"<html>Bad gateway</html>", 502), NotARegistry),
        (response(b"[]"), NotARegistry),
        (response(b"{}"), NotARegistry),
        (response(b"[" * 100_000), NotARegistry),
        (response(b" " * (RESPONSE_BYTES_MAX + 1)), NotARegistry),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", NotARegistry),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, NotARegistry),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", RegistryUnreachable),
        (CLOSED, RegistryUnreachable),
        (SILENT, RegistryUnreachable),
        (version("3.5.3"), UnsafeRegistry),
        (version("2.3.8"), UnsafeRegistry),
        (version("next"), UnsafeRegistry),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_server_that_is_no_safe_etcd_is_a_typed_error(content: bytes, error: type[RegistryError]) -> None:
    async with server(lambda _: content) as settings:
        registry = EtcdRegistry(settings)
        with pytest.raises(error):
            await registry.read()
        with pytest.raises(error):  # nothing was proposed: the outcome is certain
            await registry.propose(Proposal(1, CONFIG, 0, True), ADDRESSES)
        assert await registry.hold_lease("a", 1) is LeaseAnswer.UNKNOWN
        await registry.release_lease()


async def test_nothing_listens_is_unreachable() -> None:
    registry = EtcdRegistry(EtcdSettings((f"http://127.0.0.1:{free_port()}",), "tests", "set"))
    with pytest.raises(RegistryUnreachable, match="cannot be reached"):
        await registry.read()


async def test_an_unsafe_member_is_passed_over() -> None:
    found = {"header": {"revision": "5"}, "responses": [{"response_range": {}}, {"response_range": {}}]}
    safe = {b"/version": version("3.6.5"), b"/v3/kv/txn": response(json.dumps(found).encode())}
    async with server(lambda _: version("3.5.1")) as old, server(lambda target: safe[target]) as new:
        registry = EtcdRegistry(replace(old, endpoints=old.endpoints + new.endpoints))
        assert (await registry.read()).state.config is None


@pytest.mark.parametrize(
    "content",
    [
        CLOSED,
        SILENT,
        response(b"<html>Bad gateway</html>", 502),
        response(b'{"message":"etcdserver: request timed out","code":14}', 503),
        response(b"<html>Log in to the hotel's network</html>"),
        response(b"{}"),
        response(b'{"header":{"revision":"many"}}'),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_proposal_that_was_sent_without_a_clear_response_is_unknown_and_not_repeated(content: bytes) -> None:
    sent = []

    def answer(target: bytes) -> bytes:
        if target == b"/version":
            return version("3.6.5")
        sent.append(target)
        return content

    async with server(answer) as first, server(answer) as second:
        registry = EtcdRegistry(replace(first, endpoints=first.endpoints + second.endpoints))
        outcome = (await registry.propose(Proposal(1, CONFIG, 0, True), ADDRESSES)).outcome
    assert outcome is ProposalOutcome.UNKNOWN
    assert sent == [b"/v3/kv/txn"]


async def test_a_refusal_is_certain() -> None:
    full = response(b'{"message":"etcdserver: mvcc: database space exceeded","code":8}', 429)
    async with server(lambda target: version("3.6.5") if target == b"/version" else full) as settings:
        with pytest.raises(RegistryRefused, match="space exceeded"):
            await EtcdRegistry(settings).propose(Proposal(1, CONFIG, 0, True), ADDRESSES)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"result":{"canceled":true,"cancel_reason":"no"}}\n', RegistryRefused),
        (b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}\n', RegistryUnavailable),
        (b"<html>\n", NotARegistry),
        (b"x" * (RESPONSE_BYTES_MAX + 1), NotARegistry),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_watch_that_fails_is_a_typed_error(line: bytes, error: type[RegistryError]) -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"  # it ends with the connection
    async with server(lambda target: version("3.6.5") if target == b"/version" else head + line) as settings:
        with pytest.raises(error):
            await EtcdRegistry(settings)._wait_for_change(1)


def etcd_of_cluster(cluster: str) -> Callable[[bytes], bytes]:
    """Return the answers of an etcd without keys."""
    header = {"revision": "5", "cluster_id": cluster}
    found = {"header": header, "responses": [{"response_range": {}}, {"response_range": {}}]}
    return lambda target: version("3.6.5") if target == b"/version" else response(json.dumps(found).encode())


async def test_an_endpoint_of_another_cluster_is_no_part_of_the_registry() -> None:
    first_answers = [etcd_of_cluster("1")]
    async with server(lambda target: first_answers[0](target)) as first, server(etcd_of_cluster("2")) as second:
        registry = EtcdRegistry(replace(first, endpoints=first.endpoints + second.endpoints))
        await registry.read()
        first_answers[0] = lambda _: CLOSED
        with pytest.raises(NotARegistry, match="another etcd cluster"):
            await registry.read()
        first_answers[0] = etcd_of_cluster("1")
        await registry.read()


async def test_a_watch_whose_connection_ends_is_unreachable() -> None:
    ended = response(b'{"result":{"created":true}}\n')
    async with server(lambda target: version("3.6.5") if target == b"/version" else ended) as settings:
        with pytest.raises(RegistryUnreachable, match="ended the watch"):
            await EtcdRegistry(settings)._wait_for_change(1)


@pytest.mark.parametrize("content", [b"{}", b'{"result":{"TTL":"long"}}', b'{"result":{"TTL":[]}}', b'{"result":7}'])
async def test_a_renewal_with_a_strange_response_is_no_lease(content: bytes) -> None:
    async with server(lambda target: version("3.6.5") if target == b"/version" else response(content)) as settings:
        registry = EtcdRegistry(settings)
        registry._lease = etcd_module._Lease(7, "a", 1)
        assert await registry.hold_lease("a", 1) is LeaseAnswer.UNKNOWN


async def test_a_configuration_that_is_too_long_is_not_sent() -> None:
    registry = EtcdRegistry(EtcdSettings(("http://127.0.0.1:1",), "tests", "set"))
    with pytest.raises(ConfigTooLong, match="the maximum is 65,536"):
        await registry.propose(Proposal(1, replace(CONFIG, cluster_id="x" * 70_000), 0, True), ADDRESSES)


def test_versions_that_lose_data_are_not_safe() -> None:
    assert [is_safe_version(name) for name in ("3.4.22", "3.4.23", "3.5.6", "3.5.21", "3.6.0", "4.0.0")] == [True] * 6
    assert not any(map(is_safe_version, ("3.3.9", "3.4.21", "3.5.0", "3.5.5", "2.3.8", "", "3.6")))
