"""A TCP proxy in front of a broker; what it does with the bytes is up to its subclass."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from flintmq.protocol.frames import Frame, FrameParser, encode_frame


class Link:
    """One client's connection through a proxy, and the proxy's own to the broker."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self._sending = threading.Lock()

    def send(self, blob: bytes) -> None:
        """Send to the client; the threads of both directions may."""
        with self._sending:
            self.client.sendall(blob)

    def end(self) -> None:
        """End both connections."""
        for sock in (self.client, self.broker):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class TcpProxy:
    """A proxy: two threads for each connection, one for each direction. ``address``: for clients."""

    def __init__(self, host: str, port: int) -> None:
        self._broker = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        """End every connection and all threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for link in self._links:
            link.end()
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *(sock for link in self._links for sock in (link.client, link.broker))):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            link = Link(client, socket.create_connection(self._broker))
            self._links.append(link)
            for work in (self._carry_requests, self._carry_answers):
                self._threads.append(threading.Thread(target=work, args=[link]))
                self._threads[-1].start()

    def _carry_requests(self, link: Link) -> None:
        """Carry what the client sends, until its connection ends."""
        raise NotImplementedError

    def _carry_answers(self, link: Link) -> None:
        """Carry what the broker sends, until its connection ends."""
        raise NotImplementedError


def frames_from(sock: socket.socket) -> Iterator[Frame]:
    """Yield the frames that arrive until the connection ends."""
    parser = FrameParser()
    while True:
        while (frame := parser.next_frame()) is not None:
            yield frame
        if not (count := sock.recv_into(parser.writable())):
            return
        parser.received(count)


def encoded(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    return encode_frame(frame.kind, frame.code, frame.request_id, frame.fields, bytes(frame.body))
