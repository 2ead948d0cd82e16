"""TLS over a pair of sockets: all bytes arrive, memory is bounded by what the application takes, and the end is
orderly.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from flintmq.broker.net.tls_transport import READ_BYTES, RECORD_BYTES, TlsTransport
from tests.tls_tools import HOST, Authority

MIB = 1024 * 1024
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Return the broker's and the client's TLS contexts."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    files = authority.issue()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cafile=authority.path)


class Application(asyncio.BufferedProtocol):
    """An application that records its callbacks and receives into a buffer of ``buffer_bytes``."""

    def __init__(self, buffer_bytes: int = 100_000, keeps_open: bool = False) -> None:
        self.received = bytearray()
        self.said: list[str] = []
        self.transport: TlsTransport
        self.on_bytes: Callable[[], None] = lambda: None
        self.gone = asyncio.Event()
        self._buffer = bytearray(buffer_bytes)
        self._keeps_open = keeps_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport
        transport.set_write_buffer_limits(high=65_536)

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")
        self.gone.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.on_bytes()

    def eof_received(self) -> bool:
        self.said.append("eof")
        return self._keeps_open

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")


Talk = Callable[[ssl.SSLSocket], object]
Broker = Callable[[Application], Awaitable[None]]


def talk(contexts: Contexts, application: Callable[[], Application], client: Talk, broker: Broker) -> None:
    """Connect the two; ``client`` runs in a thread with its end, ``broker`` (async) with the application."""

    async def both() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        app = application()
        transport = TlsTransport(loop, contexts[0], app)
        await loop.connect_accepted_socket(lambda: transport, ours)
        theirs.settimeout(60)
        wrapped = loop.run_in_executor(
            None, lambda: contexts[1].wrap_socket(theirs, server_hostname=HOST, suppress_ragged_eofs=False)
        )
        await transport.handshake(60)
        sock = await wrapped

        def run_client() -> None:
            with sock:
                client(sock)

        running = loop.run_in_executor(None, run_client)
        await broker(app)
        await running
        app.transport.abort()
        await app.gone.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(both())


def read_all(sock: ssl.SSLSocket) -> bytes:
    """Read up to the end, which must be a TLS close."""
    return b"".join(iter(lambda: sock.recv(65_536), b""))


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until ``holds()`` is true."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - no event signals the condition
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("buffer_bytes", [1_000, 16 * 1024, 300_000])
def test_all_bytes_are_transferred_with_any_buffers(contexts: Contexts, buffer_bytes: int) -> None:
    sent = bytes(range(256)) * (3 * MIB // 256) + b"end"
    echoed: list[bytes] = []

    def client(sock: ssl.SSLSocket) -> None:
        sock.sendall(sent)
        echoed.append(read_all(sock))

    async def broker(app: Application) -> None:
        await until(lambda: len(app.received) == len(sent))
        app.transport.writelines([app.received[:10], b"", bytes(app.received[10:])])
        app.transport.close()
        await app.gone.wait()

    talk(contexts, lambda: Application(buffer_bytes), client, broker)
    assert echoed == [sent]


def test_nothing_is_read_before_the_application_needs_it(contexts: Contexts) -> None:
    def client(sock: ssl.SSLSocket) -> None:
        sock.sendall(bytes(2 * MIB))

    async def broker(app: Application) -> None:
        app.on_bytes = app.transport.pause_reading
        ahead = []
        while len(app.received) < 2 * MIB:
            taken = len(app.received)
            await until(lambda: len(app.received) > taken)  # noqa: B023 - waited for within the turn
            ahead.append(app.transport.get_extra_info("unread_bytes"))
            app.transport.resume_reading()
        assert max(ahead) <= READ_BYTES + RECORD_BYTES + 256, "one read, behind a record that had come in part"

    talk(contexts, lambda: Application(15_000), client, broker)


def test_bytes_unread_by_the_client_are_counted_and_reported(contexts: Contexts) -> None:
    measured = threading.Event()

    def client(sock: ssl.SSLSocket) -> None:
        sock.recv(1)
        assert measured.wait(30), "the broker's side has failed"
        assert len(read_all(sock)) == 8 * MIB - 1

    async def broker(app: Application) -> None:
        transport = app.transport
        transport.write(bytes(8 * MIB))
        assert app.said == ["pause"]
        assert transport.get_write_buffer_size() > 7 * MIB, "the system has little of it"
        measured.set()  # not earlier: the client reads on another thread while bytes are counted
        await until(lambda: app.said == ["pause", "resume"])
        assert transport.get_write_buffer_size() <= 65_536 // 4
        transport.close()
        await app.gone.wait()

    talk(contexts, Application, client, broker)


def test_a_client_that_sends_no_more_still_gets_responses(contexts: Contexts) -> None:
    got: list[bytes] = []

    def client(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"the last")
        socket.socket.shutdown(sock, socket.SHUT_WR)
        got.append(read_all(sock))

    async def broker(app: Application) -> None:
        await until(lambda: "eof" in app.said)
        assert app.received == b"the last"
        app.transport.write(b"answer")
        app.transport.close()
        await app.gone.wait()

    talk(contexts, lambda: Application(keeps_open=True), client, broker)
    assert got == [b"answer"]


def test_bytes_that_are_not_encrypted_end_the_connection(contexts: Contexts) -> None:
    async def broker(app: Application) -> None:
        await app.gone.wait()
        assert app.received == b""

    talk(contexts, Application, lambda sock: socket.socket.send(sock, b"GET / HTTP/1.1\r\n\r\n"), broker)


async def _no_handshake(context: ssl.SSLContext, client: Callable[[socket.socket], None], timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        transport = TlsTransport(loop, context, Application())
        await loop.connect_accepted_socket(lambda: transport, ours)
        client(theirs)
        await transport.handshake(timeout_s)


@pytest.mark.parametrize(
    ("client", "timeout_s", "error", "says"),
    [
        (lambda sock: None, 0.01, ConnectionAbortedError, "did not finish its handshake within 0.01 s"),
        (lambda sock: sock.close(), 60, ConnectionResetError, "in the middle of the handshake"),
        (lambda sock: sock.send(bytes(100)), 60, ssl.SSLError, "SSL"),
    ],
    ids=["says nothing", "goes", "speaks no TLS"],
)
def test_a_failed_handshake_logs_its_reason(
    contexts: Contexts, client: Callable[[socket.socket], None], timeout_s: float, error: type[OSError], says: str
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(error, match=says):
        runner.run(_no_handshake(contexts[0], client, timeout_s))
