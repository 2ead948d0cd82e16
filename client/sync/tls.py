"""A TLS socket with the interface of a plain non-blocking one."""

from __future__ import annotations

import socket
import ssl
import time

from ..core.rpc.address import Address
from ..core.rpc.tls import handshake_failed

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsSocket:
    """``send`` and ``recv_into`` of a non-blocking socket, over TLS: they raise ``BlockingIOError`` as it does.

    After ``BlockingIOError`` the caller must resend the same bytes, not split differently.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.getsockname = sock.getsockname
        self.close = sock.close
        self.pending = sock.pending
        """Count of bytes that are decrypted but not received: polling the descriptor does not show them."""

    @classmethod
    def connect(cls, sock: socket.socket, address: Address, context: ssl.SSLContext, deadline: float) -> TlsSocket:
        """Do the handshake, until ``deadline`` (monotonic); the socket does not block afterwards.

        Closes ``sock`` and raises ``ConnectionFailed`` if the handshake fails.
        """
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            wrapped = context.wrap_socket(sock, server_hostname=address.host)
        except (OSError, ValueError) as error:
            sock.close()
            raise handshake_failed(address, error if isinstance(error, OSError) else OSError(str(error))) from error
        wrapped.setblocking(False)
        return cls(wrapped)

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as possible; returns the number of bytes sent."""
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += self._sock.send(view[sent:])
            except _WAITS:
                if not sent:
                    raise BlockingIOError from None
                break
        return sent

    def recv_into(self, buffer: memoryview) -> int:
        """Fill ``buffer``; returns the number of bytes received, 0 at the end of the stream."""
        received = 0
        while received < len(buffer):
            try:
                count = self._sock.recv_into(buffer[received:])
            except _WAITS:
                if not received:
                    raise BlockingIOError from None
                break
            if not count:
                break
            received += count
        return received

    def shutdown(self, how: int) -> None:
        """Shut down the connection below TLS, which wakes a thread that waits on it. Callable from any thread."""
        # Not SSLSocket.shutdown, which drops the TLS state that another thread may be using.
        socket.socket.shutdown(self._sock, how)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)
