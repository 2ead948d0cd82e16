"""A TLS socket that is used like a plain one that does not block."""

from __future__ import annotations

import socket
import ssl
import time

from ..core.address import Address
from ..core.tls import handshake_failed

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsSocket:
    """``send`` and ``recv_into`` of a socket that does not block, over TLS: they raise ``BlockingIOError`` as it does.

    What was refused must be sent again as it was, not in other pieces.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.getsockname = sock.getsockname
        self.close = sock.close
        self.pending = sock.pending
        """Bytes that are decrypted and not received: nothing shows them at the descriptor."""

    @classmethod
    def connect(cls, sock: socket.socket, address: Address, context: ssl.SSLContext, deadline: float) -> TlsSocket:
        """Make the handshake, until ``deadline`` (monotonic); nothing blocks from then on.

        Closes ``sock`` where it fails, and raises ``ConnectionFailed``.
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
        """How many bytes went out."""
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
        """How many bytes came; 0 at the end."""
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
        """From any thread: end the connection under TLS, so that whoever waits on it wakes."""
        socket.socket.shutdown(self._sock, how)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As of a socket."""
        self._sock.setsockopt(level, option, value)
