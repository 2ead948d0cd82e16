"""Periodic check of each connection's timeouts: the broker answers or closes a connection that takes too long."""

from __future__ import annotations

import fcntl
import logging
import termios
import time

from ...protocol.errors import AuthenticationRequired, FlushDiskTimeout, FrameIllegal
from ..budgets.receive_buffers import FLOOR_BYTES
from ..config import BUSY_RETRY_AFTER_MS
from .connection import STOP_MEMORY, STOP_SUSPENDED, ClientConnection

log = logging.getLogger(__name__)

SILENT_S = 10.0
"""While memory is short, the broker closes an inactive connection that holds a partial frame, or unsent responses,
after this time."""


def sweep(connection: ClientConnection, now: float) -> None:
    """Check all timeouts of one connection. ``now``: seconds of the loop's clock."""
    limits = connection.broker.limits
    if connection.reads != connection.reads_seen:
        connection.reads_seen = connection.reads
        connection.idle_since = now
    if connection.responses.unflushed:
        _sweep_unflushed(connection)
    # A connection that is being closed has this deadline only.
    if connection.close_by:
        if now > connection.close_by:
            connection.abort()
    elif connection.responses.paused and not connection.peer.follower:  # a primary looks after its followers itself
        _sweep_slow_reader(connection, now)
    elif connection.authenticate_by and now > connection.authenticate_by and not connection.stops & STOP_SUSPENDED:
        # Not while suspended: then the broker itself delays the attempt, after earlier failures (``LoginBackoff``).
        timeout_ms = connection.broker.settings.security.auth_timeout_ms
        connection.turn_away(
            AuthenticationRequired(f"not authenticated within security.auth_timeout_ms, {timeout_ms} ms"), 0
        )
    elif connection.half_since and not connection.stops & ~STOP_MEMORY:
        # For any other stop, the rest of the frame may have arrived, and the broker has not read it.
        _sweep_half_frame(connection, now)
    elif connection.stops or connection.deferred.held_pulls or not connection.is_idle():
        connection.idle_since = now
    elif now - connection.idle_since > limits.idle_timeout_ms / 1000:
        log.debug("connection from %s:%d closed: idle", *connection.peer.address)
        connection.finish()


def _sweep_half_frame(connection: ClientConnection, now: float) -> None:
    """Close a connection that began a frame and sends no more of it; sooner if others wait for the memory it holds."""
    timeout_ms = connection.broker.limits.half_frame_timeout_ms
    crowds = (
        bool(connection.memory) and connection.parser.own_bytes > FLOOR_BYTES and now - connection.idle_since > SILENT_S
    )
    if not crowds and now - connection.half_since <= timeout_ms / 1000:
        return
    if connection.stops and _has_unread(connection):
        return  # the client has sent more; it is the broker that has not read it
    limit = f"limits.half_frame_timeout_ms, {timeout_ms} ms"
    if crowds:
        limit = f"{SILENT_S:.0f} s without a byte, while others wait for memory"
    pending = connection.parser.pending_bytes
    connection.turn_away(FrameIllegal(f"frame incomplete for longer than {limit}: only {pending} bytes arrived"), 0)


def _has_unread(connection: ClientConnection) -> bool:
    """Return whether bytes have arrived that the broker has not read."""
    if connection.transport.get_extra_info("unread_bytes", 0):  # only ``TlsTransport`` knows this name
        return True
    sock = connection.transport.get_extra_info("socket")
    # The kernel's receive buffer, which the broker leaves unread while the connection is stopped.
    unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    return any(unread)


def _sweep_unflushed(connection: ClientConnection) -> None:
    """Answer requests whose flush takes too long; their messages are written."""
    timeout_ms = connection.broker.settings.flush.sync_timeout_ms
    since = time.monotonic() - timeout_ms / 1000
    # In the order of the requests, so the first one has waited longest.
    if connection.responses.unflushed[0][4] < since:
        connection.flushed(
            FlushDiskTimeout(
                f"the messages are written, but were not on disk within flush.sync_timeout_ms, {timeout_ms} ms; they "
                "may not survive a crash. Send them again with the same unique keys: they are stored only once",
                retry_after_ms=BUSY_RETRY_AFTER_MS,
            ),
            since,
        )


def _sweep_slow_reader(connection: ClientConnection, now: float) -> None:
    level = connection.transport.get_write_buffer_size()
    if level < connection.write_level:
        connection.write_level = level
        connection.write_since = now
    elif now - connection.write_since > _patience_s(connection):
        log.warning(
            "connection from %s:%d closed: client did not read %d response bytes", *connection.peer.address, level
        )
        connection.abort()


def _patience_s(connection: ClientConnection) -> float:
    """Return how long a client may read nothing; shorter while response memory is short."""
    seconds = connection.broker.limits.slow_reader_timeout_ms / 1000
    return min(seconds, SILENT_S) if connection.broker.send_memory.is_short() else seconds
