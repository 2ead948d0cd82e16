"""Connections that have *entered* a short way: a kernel reads and answers them, instead of their transports.

A transport calls Python for each read and each answer, which takes longer than a short request. So the frames of all
connections that send nothing else are read, served and answered together, once in a turn of the event loop. A
connection that sends anything else leaves, and its transport reads on.
"""

from __future__ import annotations

import math
import os
import select
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from ..int_table import IntTable
from ..kernels import short_sends as kernel
from ..store import descriptors_max, store_descriptors

if TYPE_CHECKING:
    import asyncio

    from .connected_client import ResponseQueue


class ShortConnection(Protocol):
    """A connection as a short way needs it."""

    transport: asyncio.Transport
    responses: ResponseQueue
    enter_after: int
    frames_in: int
    bytes_in: int
    reads: int

    def left_short_way(self, data: bytes) -> None:
        """Read again, after these bytes, which arrived before."""


def second_descriptor(transport: asyncio.Transport, descriptors_max: int) -> int:
    """Return another descriptor of a transport's socket, which the caller closes; -1 if it can have none.

    The number stays the connection's until then, whatever its transport does. The upper half of ``descriptors_max`` is
    for more clients.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return -1
    try:
        fd = os.dup(sock.fileno())
    except OSError:
        return -1
    if fd >= descriptors_max // 2:
        os.close(fd)
        return -1
    return fd


class KernelBuffer:
    """A buffer of integers, or of bytes, that a kernel knows by its address."""

    __slots__ = ("address", "array", "values")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.values = array.data
        self.address = array.ctypes.data


class ShortWay(ABC):
    """The connections that have entered one short way. Belongs to the event loop.

    ``connections`` has the row of each connection that may enter, of ``kernel.C_WIDTH`` integers.
    """

    enter_again_after: ClassVar[int] = 64
    """Number of reads with nothing but served frames after which a connection that has left enters again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connections = IntTable(kernel.C_WIDTH)
        self._entered: dict[int, ShortConnection] = {}
        """The connections that the kernel reads, by their place."""
        self._places = KernelBuffer(np.zeros(1024, np.int64))
        """Place of the connection with each descriptor."""
        self._descriptors_max = descriptors_max() - store_descriptors()
        """Number of descriptors that the store leaves for connections."""
        self._epoll = select.epoll()

    def _add_to_ring(self, connection: int, heads: memoryview, place: int) -> None:
        """Add a head to those of a connection, which form a ring: the first column of each is the place of the next."""
        rows = self.connections.values
        heads[place] = place
        if rows[connection + kernel.C_HEADS]:
            before = rows[connection + kernel.C_HEAD]
            heads[place], heads[before] = heads[before], place
        rows[connection + kernel.C_HEAD] = place
        rows[connection + kernel.C_HEADS] += 1

    def enter(self, place: int, connection: ShortConnection) -> bool:
        """Read a connection from now on, whose transport reads no more; return False if that is not possible."""
        pulls = connection.responses.pull_socket
        if pulls is not None and pulls.waiting:
            return False
        if connection.transport.get_write_buffer_size() or connection.responses.unflushed:
            return False
        fd = second_descriptor(connection.transport, self._descriptors_max)
        if fd < 0:
            return False
        if fd >= len(self._places.array):
            places = np.zeros(2 * fd, np.int64)
            places[: len(self._places.array)] = self._places.array
            self._places = KernelBuffer(places)
        self._places.values[fd] = place
        rows = self.connections.values
        rows[place + kernel.C_FD] = fd
        for column in (kernel.C_WAITING, kernel.C_FRAMES, kernel.C_BYTES, kernel.C_READS):
            rows[place + column] = 0
        self._entered[place] = connection
        self._epoll.register(fd, select.EPOLLIN)
        return True

    def leave(self, place: int, connection: ShortConnection, unsent: bytes = b"") -> None:
        """Read a connection no more; its transport sends its answers from now on, ``unsent`` first."""
        fd = self.connections.values[place + kernel.C_FD]
        del self._entered[place]
        connection.responses.leave_short_way = None
        connection.enter_after = self.enter_again_after
        self._epoll.unregister(fd)
        os.close(fd)
        self.settle(place, connection)
        if unsent:
            connection.responses.bytes_out += len(unsent)
            connection.transport.write(unsent)

    def leave_all(self) -> bool:
        """Let all connections leave, because descriptors are short; return whether there was one."""
        entered = list(self._entered.items())
        for place, connection in entered:
            self.leave(place, connection)
            connection.left_short_way(b"")
        return bool(entered)

    def settle(self, place: int, connection: ShortConnection) -> None:
        """Add what the kernel has counted for a connection to the connection's own counters."""
        rows = self.connections.values
        connection.frames_in += rows[place + kernel.C_FRAMES]
        connection.bytes_in += rows[place + kernel.C_BYTES]
        connection.reads += rows[place + kernel.C_READS]
        connection.responses.bytes_out += rows[place + kernel.C_SENT]
        for column in (kernel.C_FRAMES, kernel.C_BYTES, kernel.C_READS, kernel.C_SENT):
            rows[place + column] = 0

    def waits_since(self, place: int) -> float:
        """Return when the oldest waiting answer arrived, perhaps another connection's; infinity if none of this one
        waits."""
        return math.inf

    def _read(self) -> None:
        """Have ``_turn`` called whenever a connection is ready."""
        if not self._epoll.closed:
            self._loop.add_reader(self._epoll.fileno(), self._turn)

    @abstractmethod
    def _turn(self) -> None:
        """Serve the connections that are ready."""

    def close(self) -> None:
        """Stop reading; all connections have left."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
