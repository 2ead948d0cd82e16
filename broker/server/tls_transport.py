"""TLS between a socket and a connection, with no more memory than the connection's own limits allow.

uvloop's own TLS reads up to 512 KiB ahead of each connection, and encrypts a whole answer at once, which nobody counts
from then on: a hundred clients that took no answers had 800 MiB. Here all connections read into one buffer, little is
read ahead of what the connection takes, and an answer is encrypted as it leaves.
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
"""The most that one TLS record holds."""
READ_BYTES = 32 * 1024
"""So much is read at a time. A connection that stops in the middle of it keeps it, behind a record in part."""
BATCH_BYTES = 8 * RECORD_BYTES
"""So much is encrypted at a time, and waits until the system has all of it."""
CONTROL_BYTES_MAX = 16 * 1024
"""What TLS itself may have to say to a client that takes nothing. One that asks for new keys on and on is closed."""
SHUTDOWN_S = 1.0
"""How long a client may take to say that it has the last bytes, and closes too."""

_READ = memoryview(bytearray(READ_BYTES))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of ``application``. Belongs to the event loop.

    ``handshake`` has to be awaited once the socket is connected.
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
        """The application was told that it is connected."""
        self._reading = True
        """The application wants bytes."""
        self._decrypting = False
        self._backlog: deque[memoryview] = deque()
        """What the application has sent and is not encrypted."""
        self._backlog_bytes = 0
        self._raw_paused = False
        """Something that is encrypted waits for the client."""
        self._writing_paused = False
        self._high = self._low = 0
        self._closing = False
        self._said_goodbye = False
        self._shutdown_timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    async def handshake(self, timeout_s: float) -> None:
        """Wait until it is done. Raises ``OSError`` saying why it was not, or not in time, and closes."""
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
        """The socket is connected."""
        self._raw = cast(asyncio.Transport, transport)
        self._raw.set_write_buffer_limits(high=0)  # told of every byte that waits, and again when none does

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        """So many came."""
        if self._said_goodbye:
            return
        self._incoming.write(_READ[:nbytes])
        if self._made:
            self._decrypt()
        elif not self._handshaken.done():
            self._shake_hands()

    def eof_received(self) -> bool:
        """The client sends no more, whether or not it has said so in TLS."""
        if not self._made:
            self._fail_handshake(
                ConnectionResetError("the client closed the connection in the middle of the handshake")
            )
        elif self._said_goodbye:
            self._raw.close()
        else:
            self._end_of_input()
        return True

    def pause_writing(self) -> None:
        """The client does not take at once what was sent."""
        self._raw_paused = True

    def resume_writing(self) -> None:
        """The client has taken all that was sent."""
        self._raw_paused = False
        self._encrypt()
        self._tell_application()
        self._shut_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
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
            self._flush_control()  # tells the client why
            self._fail_handshake(error)
            return
        self._flush_control()
        self._handshaken.set_result(None)
        self._made = True
        self._application.connection_made(self)
        self._decrypt()

    def _fail_handshake(self, error: Exception) -> None:
        if not self._handshaken.done():
            self._handshaken.set_exception(error)
        self._raw.close()

    # ---- from the client ----

    def _decrypt(self) -> None:
        """Hand on what has come, until the application wants no more."""
        if self._decrypting:
            return  # the application was stopped and wants more within ``buffer_updated``
        self._decrypting = True
        try:
            while self._reading and not self._closing and self._decrypt_some():
                pass
        except ssl.SSLError as error:
            self._break(error)
            return
        finally:
            self._decrypting = False
        self._flush_control()
        if self._backlog:
            self._encrypt()
        if self._reading and not self._raw.is_closing():
            self._raw.resume_reading()

    def _decrypt_some(self) -> bool:
        """Fill the application's buffer as far as there is something; whether there may be more."""
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
        del buffer  # the application may want to change the size of what it belongs to
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
        """Send what TLS itself has to say."""
        if not self._outgoing.pending or self._raw.is_closing():
            return
        if not self._raw_paused:
            self._raw.write(self._outgoing.read())
        elif self._outgoing.pending > CONTROL_BYTES_MAX:
            self._break(ConnectionAbortedError("the client takes nothing, and asks for new keys on and on"))

    def _encrypt(self) -> None:
        """Encrypt and send until the client does not take it at once."""
        while (self._backlog or self._outgoing.pending) and not self._raw_paused and not self._raw.is_closing():
            batch = [self._outgoing.read()] if self._outgoing.pending else []
            batch_bytes = 0
            while self._backlog and batch_bytes < BATCH_BYTES:
                data = self._backlog[0]
                try:
                    count = self._tls.write(data[:RECORD_BYTES])
                except ssl.SSLWantReadError:  # it has to hear something of the client first
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
                batch.append(self._outgoing.read())  # at once: what it holds at a time is memory that it keeps
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
        """As of the socket's transport; ``unread_bytes``: what has come and was not decrypted."""
        if name == "unread_bytes":
            return self._incoming.pending + self._tls.pending()
        return self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closing or self._raw.is_closing()

    def is_reading(self) -> bool:
        """Whether the application wants bytes."""
        return self._reading

    def pause_reading(self) -> None:
        """The application wants no more bytes."""
        self._reading = False
        if not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """The application wants bytes again: first those that are here."""
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._reading and not self._closing:
            self._decrypt()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The application is told when more than ``high`` bytes wait, and then when only ``low`` do (a quarter)."""
        assert high is not None
        self._high = high
        self._low = high // 4 if low is None else low
        self._tell_application()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Least and most bytes."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """All that the client has not taken, encrypted or not."""
        return self._backlog_bytes + self._outgoing.pending + self._raw.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; what is changed later is sent as it is then."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send one behind the other."""
        if self.is_closing():
            return
        for data in list_of_data:
            if data:
                self._backlog.append(memoryview(data))
                self._backlog_bytes += len(data)
        self._encrypt()
        self._tell_application()

    def can_write_eof(self) -> bool:
        """TLS knows no half-closed connection."""
        return False

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._raw.abort()

    def close(self) -> None:
        """Close once the client has taken what was sent; what it sends meanwhile is thrown away."""
        if self._closing:
            return
        self._closing = True
        self._raw.resume_reading()
        self._shut_down()

    def _shut_down(self) -> None:
        """Say goodbye once all is sent, and wait a little for the client to close: it might miss the last bytes."""
        if not self._closing or self._said_goodbye or self._raw.is_closing() or self._raw_paused or self._backlog:
            return
        self._said_goodbye = True
        try:
            self._tls.unwrap()
        except ssl.SSLError as error:  # mostly, that the client has not said goodbye yet
            log.debug("at the end of TLS: %s", error)
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())
        self._raw.write_eof()
        self._shutdown_timer = self._loop.call_later(SHUTDOWN_S, self._raw.abort)
