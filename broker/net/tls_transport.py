"""TLS between a socket and a connection, within the memory limits of the connection.

uvloop's own TLS reads up to 512 KiB ahead for each connection, and encrypts a whole response at once; no limit counts
the encrypted bytes. asyncio's (``asyncio.sslproto.SSLProtocol``) does too, even with small buffers, because it encrypts
everything written to it although the socket is full. In the test of a hundred clients that read no responses
(``tests/fault/test_memory_bound.py``) the broker took 800 MiB with uvloop's TLS, 897 MiB with asyncio's and buffers of
32 KiB, and 321 MiB with this transport; the promise is 512. Here all connections read into one buffer, the transport
reads little ahead, and it encrypts a response only as it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

log = logging.getLogger(__name__)

RECORD_BYTES = 16 * 1024
"""Maximum payload of one TLS record."""
READ_BYTES = 32 * 1024
"""Size of one read. A connection that stops reading keeps at most this, after a partial record."""
BATCH_BYTES = 8 * RECORD_BYTES
"""Number of bytes that are encrypted at a time; the next batch waits until the kernel has taken this one."""
CONTROL_BYTES_MAX = 16 * 1024
"""Limit for unsent handshake and key-update messages. A client that keeps asking for new keys and reads nothing
exceeds it, and the broker closes the connection."""
SHUTDOWN_S = 1.0
"""Time for a client to confirm the end of the connection and close its side."""

_READ = memoryview(bytearray(READ_BYTES))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport and, at the same time, the transport of ``application``.

    Belongs to the event loop. ``handshake`` must be awaited once the socket is connected.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, application: asyncio.BufferedProtocol
    ) -> None:
        super().__init__()
        self._loop = loop
        self._application = application
        self._raw = cast(asyncio.Transport, None)  # set before anything can happen
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshaken: asyncio.Future[None] = loop.create_future()
        self._made = False
        """True after ``connection_made`` of the application was called."""
        self._reading = True
        """True while the application accepts bytes."""
        self._decrypting = False
        self._backlog: deque[memoryview] = deque()
        """Bytes that the application has sent and that are not encrypted yet."""
        self._backlog_bytes = 0
        self._raw_paused = False
        """True while encrypted bytes wait for the client to read."""
        self._writing_paused = False
        self._high = self._low = 0
        self._closing = False
        self._said_goodbye = False
        self._shutdown_timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    async def handshake(self, timeout_s: float) -> None:
        """Wait until the handshake is done. Raises ``OSError`` and closes if it fails or does not finish in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._handshaken
        except TimeoutError:
            self._raw.abort()
            raise ConnectionAbortedError(f"the client did not finish its handshake within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._raw.abort()
            raise

    # ---- what the socket's transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._raw.set_write_buffer_limits(high=0)  # pause on the first byte that waits, resume when none is left

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        if self._said_goodbye:
            return
        self._incoming.write(_READ[:nbytes])
        if self._made:
            self._decrypt()
        elif not self._handshaken.done():
            self._shake_hands()

    def eof_received(self) -> bool:
        """Handle the end of the client's input, with or without a TLS close alert."""
        if not self._made:
            self._fail_handshake(
                ConnectionResetError("the client closed the connection in the middle of the handshake")
            )
        elif self._said_goodbye:
            self._raw.close()
        else:
            self._end_of_input()
        # The socket stays open for what the client is still to get; ``close`` ends it.
        return True

    def pause_writing(self) -> None:
        """Stop encrypting: the client does not read fast enough."""
        self._raw_paused = True

    def resume_writing(self) -> None:
        """Continue encrypting: the client has read everything that was sent."""
        self._raw_paused = False
        self._encrypt()
        self._tell_application()
        self._shut_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything and tell the application that the socket is closed."""
        self._closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._shutdown_timer is not None:
            self._shutdown_timer.cancel()
        if self._made:
            self._application.connection_lost(self._error or exc)
        elif not self._handshaken.done():
            self._handshaken.set_exception(exc or ConnectionResetError("the connection was closed"))

    # ---- the handshake ----

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_control()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush_control()  # sends the alert that tells the client the reason
            self._fail_handshake(error)
            return
        self._flush_control()
        self._handshaken.set_result(None)
        self._made = True
        self._application.connection_made(self)

        # The client's first request may have come with the end of its handshake.
        self._decrypt()

    def _fail_handshake(self, error: Exception) -> None:
        if not self._handshaken.done():
            self._handshaken.set_exception(error)
        self._raw.close()

    # ---- from the client ----

    def _decrypt(self) -> None:
        """Decrypt and pass on what has arrived, until the application pauses reading."""
        if self._decrypting:
            return  # the application called ``resume_reading`` from ``buffer_updated``; the outer call continues
        self._decrypting = True
        try:
            while self._reading and not self._closing and self._decrypt_some():
                pass
        except ssl.SSLError as error:
            self._break(error)
            return
        finally:
            self._decrypting = False

        # Reading may have made an answer of TLS's own necessary, and may have brought what ``_encrypt`` waited for.
        self._flush_control()
        if self._backlog:
            self._encrypt()
        # Only now, because bytes that had arrived before a pause come first.
        if self._reading and not self._raw.is_closing():
            self._raw.resume_reading()

    def _decrypt_some(self) -> bool:
        """Fill the application's buffer with decrypted bytes; return whether there may be more."""
        buffer = cast(memoryview, self._application.get_buffer(-1))
        filled = 0
        ended = False
        while filled < len(buffer) and (self._incoming.pending or self._tls.pending()):
            try:
                count = cast(int, self._tls.read(len(buffer) - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                count = 0
            if not count:
                ended = True
                break
            filled += count
        full = filled == len(buffer)
        del buffer  # a memoryview would prevent the application from resizing its bytearray
        if filled:
            self._application.buffer_updated(filled)
        if ended:
            self._end_of_input()
        return full and not ended

    def _end_of_input(self) -> None:
        if not self._closing and not self._application.eof_received():
            self.close()

    def _break(self, error: Exception) -> None:
        log.debug("TLS failed: %s", error)
        self._error = error
        self.abort()

    # ---- to the client ----

    def _flush_control(self) -> None:
        """Send the messages of TLS itself: handshake, alerts, key updates."""
        if not self._outgoing.pending or self._raw.is_closing():
            return
        if not self._raw_paused:
            self._raw.write(self._outgoing.read())
        elif self._outgoing.pending > CONTROL_BYTES_MAX:
            self._break(ConnectionAbortedError("the client reads nothing, but keeps asking for new keys"))

    def _encrypt(self) -> None:
        """Encrypt and send until the client no longer reads fast enough."""
        while (self._backlog or self._outgoing.pending) and not self._raw_paused and not self._raw.is_closing():
            batch = [self._outgoing.read()] if self._outgoing.pending else []
            batch_bytes = 0
            while self._backlog and batch_bytes < BATCH_BYTES:
                data = self._backlog[0]
                try:
                    count = self._tls.write(data[:RECORD_BYTES])
                except ssl.SSLWantReadError:  # TLS needs a message from the client first
                    break
                except ssl.SSLError as error:
                    self._break(error)
                    return
                if count < len(data):
                    self._backlog[0] = data[count:]
                else:
                    self._backlog.popleft()
                self._backlog_bytes -= count
                batch_bytes += count
                # Read after each record: a MemoryBIO never gives back the memory of the most it has held.
                batch.append(self._outgoing.read())
            if not batch:
                return
            self._raw.write(batch[0] if len(batch) == 1 else b"".join(batch))

    def _tell_application(self) -> None:
        if self._closing:
            return
        size = self.get_write_buffer_size()
        if size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._application.pause_writing()
        elif size <= self._low and self._writing_paused:
            self._writing_paused = False
            self._application.resume_writing()

    # ---- what the application calls ----

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket transport's extra info; ``unread_bytes``: number of bytes not decrypted yet."""
        if name == "unread_bytes":
            return self._incoming.pending + self._tls.pending()
        return self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        if not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Pass bytes to the application again, first those that have already arrived."""
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._reading and not self._closing:
            self._decrypt()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pause the application's writing above ``high`` unsent bytes; resume at ``low`` (by default a quarter)."""
        assert high is not None
        self._high = high
        self._low = high // 4 if low is None else low
        self._tell_application()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read, encrypted or not."""
        return self._backlog_bytes + self._outgoing.pending + self._raw.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``. The transport does not copy it, so the caller must not change it afterwards."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self.is_closing():
            return
        for data in list_of_data:
            if data:
                self._backlog.append(memoryview(data))
                self._backlog_bytes += len(data)
        self._encrypt()
        self._tell_application()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half-closed connections."""
        return False

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    def close(self) -> None:
        """Close after the client has read what was sent; discard what it sends meanwhile."""
        if self._closing:
            return
        self._closing = True
        # For the client's close alert, even if the application has paused reading.
        self._raw.resume_reading()
        self._shut_down()

    def _shut_down(self) -> None:
        """Send the close alert after the last byte, and give the client ``SHUTDOWN_S`` to close.

        Closing at once could reset the connection before the client has read the last bytes.
        """
        if not self._closing or self._said_goodbye or self._raw.is_closing() or self._raw_paused or self._backlog:
            return
        self._said_goodbye = True
        try:
            self._tls.unwrap()
        except ssl.SSLError as error:  # usually: the client has not sent its close alert yet
            log.debug("TLS shutdown: %s", error)
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())
        self._raw.write_eof()
        self._shutdown_timer = self._loop.call_later(SHUTDOWN_S, self._raw.abort)
