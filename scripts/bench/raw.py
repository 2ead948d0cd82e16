"""Minimal connections: the protocol's frames over plain sockets, one at a time or many in a closed loop."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgpack

from flintmq.protocol.commands import (
    GET_BROKER_RUNTIME_INFO,
    GET_TOPIC_STATS_INFO,
    HELLO,
    QUEUE_STATS_STRUCT,
    UPDATE_AND_CREATE_TOPIC,
    Command,
)
from flintmq.protocol.errors import SUCCESS, error_from_answer
from flintmq.protocol.frames import REQUEST, FrameParser, encode_frame

from .measure import BenchFailed

TIMEOUT_SECONDS = 60.0


def open_socket(address: str) -> socket.socket:
    """Return a connected socket that has not sent HELLO; every wait on it has a timeout."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class RawClient:
    """A connection after HELLO; a context manager. ``sock`` and ``parser`` are for direct use."""

    def __init__(self, address: str) -> None:
        self.sock = open_socket(address)
        self.parser = FrameParser()
        self.call(HELLO, {"protocol": 1, "client": "bench"})

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sock.close()

    def call(self, command: Command, fields: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a request; return the fields and the body of the response. Raises the broker's error."""
        self.sock.sendall(encode_frame(REQUEST, command.code, 1, fields, body))
        while (frame := self.parser.next_frame()) is None:
            self._receive()
        if frame.code != SUCCESS:
            raise error_from_answer(frame.code, frame.fields)
        return frame.fields, bytes(frame.body)

    def runtime_info(self) -> dict[str, Any]:
        info: dict[str, Any] = msgpack.unpackb(self.call(GET_BROKER_RUNTIME_INFO, {})[1])
        return info

    def create_topic(self, topic: str, queues: int) -> None:
        self.call(UPDATE_AND_CREATE_TOPIC, {"topic": topic, "read_queues": queues, "write_queues": queues})

    def queue_lengths(self, topic: str) -> dict[int, int]:
        body = self.call(GET_TOPIC_STATS_INFO, {"topic": topic})[1]
        return {queue: top - bottom for queue, bottom, top, _ in QUEUE_STATS_STRUCT.iter_unpack(body)}

    def stream(self, frames: Sequence[bytes]) -> None:
        """Send PRODUCE frames as fast as the broker accepts them, and return when all are acknowledged."""
        unsent = deque(memoryview(frame) for frame in frames)
        unanswered = len(frames)
        self.sock.setblocking(False)
        poller = select.poll()
        while unanswered:
            poller.register(self.sock, select.POLLIN | (select.POLLOUT if unsent else 0))
            events = poller.poll(TIMEOUT_SECONDS * 1000)
            if not events:
                raise BenchFailed(f"no answer to a PRODUCE within {TIMEOUT_SECONDS:.0f} s")
            if events[0][1] & ~select.POLLOUT:
                self._receive()
                unanswered -= self._count_answers()
            if events[0][1] & select.POLLOUT:
                self._send(unsent)
        self.sock.settimeout(TIMEOUT_SECONDS)

    def _send(self, unsent: deque[memoryview]) -> None:
        piece = unsent.popleft()
        try:
            sent = self.sock.send(piece)
        except BlockingIOError:
            sent = 0
        if sent < len(piece):
            unsent.appendleft(piece[sent:])

    def _receive(self) -> None:
        count = self.sock.recv_into(self.parser.writable())
        if not count:
            raise BenchFailed("the broker closed the connection")
        self.parser.received(count)

    def _count_answers(self) -> int:
        count = 0
        while (frame := self.parser.next_frame()) is not None:
            if frame.code != SUCCESS:
                raise error_from_answer(frame.code, frame.fields)
            count += 1
        return count


# ---- A closed loop: connections of one thread that each send their next frame after the response to the last one.

_ANSWER_BYTES_MAX = 4096
_SUCCESS = b"\x94\x01\x00"
"""First bytes of the header of a successful response: an array of 4, kind 1, code 0."""


@dataclass(frozen=True, slots=True)
class LoopResult:
    """The result of a closed loop: its duration, and the seconds that each response took."""

    seconds: float
    taken: list[float]

    @property
    def rate(self) -> float:
        return len(self.taken) / self.seconds


@contextmanager
def connected(address: str, count: int) -> Iterator[list[RawClient]]:
    """Yield ``count`` open connections, and close them afterwards."""
    with ExitStack() as stack:
        yield [stack.enter_context(RawClient(address)) for _ in range(count)]


def closed_loop(clients: Sequence[RawClient], frames: Sequence[Sequence[bytes]]) -> LoopResult:
    """Send to each connection its frames, the next one after the successful response to the last.

    It uses one thread, one ``epoll`` and two system calls per frame, because the client competes with the broker for
    the machine's cores.
    """
    taken: list[float] = []
    now = time.perf_counter
    with select.epoll() as poller:
        waiting: dict[int, tuple[socket.socket, deque[bytes]]] = {}
        for client, own_frames in zip(clients, frames, strict=True):
            if own_frames:
                waiting[client.sock.fileno()] = client.sock, deque(own_frames)
                poller.register(client.sock, select.EPOLLIN)
        began = now()
        sent_at = {}
        for descriptor, (sock, own_frames) in waiting.items():
            sent_at[descriptor] = now()
            sock.send(own_frames.popleft())
        while waiting:
            events = poller.poll(TIMEOUT_SECONDS)
            if not events:
                raise BenchFailed(f"no answer to a request within {TIMEOUT_SECONDS:.0f} s")
            for descriptor, _ in events:
                sock, own_frames = waiting[descriptor]
                check_answer(sock.recv(_ANSWER_BYTES_MAX))
                answered = now()
                taken.append(answered - sent_at[descriptor])
                if own_frames:
                    sent_at[descriptor] = answered
                    sock.send(own_frames.popleft())
                else:
                    poller.unregister(descriptor)
                    del waiting[descriptor]
        seconds = now() - began
    return LoopResult(seconds, taken)


def check_answer(answer: bytes) -> None:
    """Raise ``BenchFailed`` unless the bytes are one complete successful response."""
    if len(answer) != 4 + int.from_bytes(answer[:4], "big") or answer[8:11] != _SUCCESS:
        raise BenchFailed(f"a request was not answered with success: {answer[:200]!r}")
