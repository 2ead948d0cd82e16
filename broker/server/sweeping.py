"""A look at each connection every now and then: who takes too long is told so, or closed."""

from __future__ import annotations

import fcntl
import logging
import termios
import time

from ...protocol.errors import AuthenticationRequired, FlushDiskTimeout, FrameIllegal
from .connection import STOP_MEMORY, STOP_SUSPENDED, Connection
from .receiving import FLOOR_BYTES

log = logging.getLogger(__name__)

SILENT_S = 10.0
"""Who holds memory with half a frame, or with answers, and does nothing, is closed after this where it is short."""


def sweep(connection: Connection, now: float) -> None:
    """Called every now and then. ``now``: seconds of the loop's clock."""
    limits = connection.broker.limits
    if connection.reads != connection.reads_seen:
        connection.reads_seen = connection.reads
        connection.idle_since = now
    if connection.unflushed:
        _sweep_unflushed(connection)
    if connection.close_by:
        if now > connection.close_by:
            connection.abort()
    elif connection.write_paused:
        _sweep_slow_reader(connection, now)
    elif connection.authenticate_by and now > connection.authenticate_by and not connection.stops & STOP_SUSPENDED:
        timeout_ms = connection.broker.settings.security.auth_timeout_ms
        connection.turn_away(
            AuthenticationRequired(f"not authenticated within security.auth_timeout_ms, {timeout_ms} ms"), 0
        )
    elif connection.half_since and not connection.stops & ~STOP_MEMORY:
        _sweep_half_frame(connection, now)
    elif connection.stops or connection.held_pulls or not connection.is_idle():
        connection.idle_since = now
    elif now - connection.idle_since > limits.idle_timeout_ms / 1000:
        log.debug("connection from %s:%d closed: idle", *connection.address)
        connection.finish()


def _sweep_half_frame(connection: Connection, now: float) -> None:
    """Close who has begun a frame and does not go on; sooner where others wait for the memory that it takes."""
    timeout_ms = connection.broker.limits.half_frame_timeout_ms
    crowds = (
        bool(connection.memory) and connection.parser.own_bytes > FLOOR_BYTES and now - connection.idle_since > SILENT_S
    )
    if not crowds and now - connection.half_since <= timeout_ms / 1000:
        return
    if connection.stops and _has_unread(connection):
        return  # it is the broker that does not go on
    than = f"limits.half_frame_timeout_ms, {timeout_ms} ms"
    if crowds:
        than = f"{SILENT_S:.0f} s without a byte, while others wait for memory"
    pending = connection.parser.pending_bytes
    connection.turn_away(FrameIllegal(f"half a frame for longer than {than}: {pending} bytes of it came"), 0)


def _has_unread(connection: Connection) -> bool:
    """Whether something has arrived that was not read."""
    if connection.transport.get_extra_info("unread_bytes", 0):  # see ``TlsTransport``
        return True
    sock = connection.transport.get_extra_info("socket")
    unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    return any(unread)


def _sweep_unflushed(connection: Connection) -> None:
    """Tell those that the flush did not finish in time; what they sent is written."""
    timeout_ms = connection.broker.settings.flush.sync_timeout_ms
    since = time.monotonic() - timeout_ms / 1000
    if connection.unflushed[0][4] < since:
        connection.flushed(
            FlushDiskTimeout(
                f"the messages are written, but were not on disk within flush.sync_timeout_ms, {timeout_ms} ms; "
                "whether they survive a crash is not known. Sent again with the same unique keys they are "
                "stored once",
                retry_after_ms=connection.broker.limits.busy_retry_after_ms,
            ),
            since,
        )


def _sweep_slow_reader(connection: Connection, now: float) -> None:
    level = connection.transport.get_write_buffer_size()
    if level < connection.write_level:
        connection.write_level = level
        connection.write_since = now
    elif now - connection.write_since > _patience_s(connection):
        log.warning("connection from %s:%d closed: it did not take %d bytes of answers", *connection.address, level)
        connection.abort()


def _patience_s(connection: Connection) -> float:
    """How long a client may take nothing; less where its answers are in the way of others."""
    seconds = connection.broker.limits.slow_reader_timeout_ms / 1000
    return min(seconds, SILENT_S) if connection.broker.send_memory.is_short() else seconds
