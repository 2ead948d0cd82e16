"""A closed loop: connections of one thread that each send their next frame after the response to the last one."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from .measure import BenchFailed
from .raw import TIMEOUT_SECONDS, RawClient

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
        """Responses per second."""
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
