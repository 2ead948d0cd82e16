"""Messages at a steady pace, each with the time when it was sent: from a thread, or from a process of its own."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flintmq.client import Message, Producer

from .load import BODY_BYTES, TOPIC
from .measure import BenchFailed

MESSAGES_A_SECOND = 500
FINISH_SECONDS_MAX = 30.0

STAMP = struct.Struct(">d")
"""What a body begins with: seconds of the clock that all processes of the machine share."""


def now() -> float:
    """What a stamp is compared with."""
    return time.monotonic()


def sent_at(body: bytes) -> float:
    """When the message with this body was sent."""
    seconds: float = STAMP.unpack_from(body)[0]
    return seconds


def send_paced(address: str, count: int | None, queue: int | None = None) -> None:
    """One message after the other, each acknowledged, into one queue or (None) into all in turns; None: without end."""
    filler = bytes(BODY_BYTES - STAMP.size)
    with Producer(address) as producer:
        begin = now()
        for number in itertools.count() if count is None else range(count):
            time.sleep(max(0.0, begin + number / MESSAGES_A_SECOND - now()))
            body = STAMP.pack(now()) + filler
            producer.send(Message(TOPIC, body, keys=(f"order-{number:08}",)), queue=queue)


@contextmanager
def sender(address: str, count: int | None = None) -> Iterator[None]:
    """A process that sends ``count`` messages, for which the end of the block waits; None: it sends for as long."""
    command = [sys.executable, "-m", "bench.pacing", address, str(count or "")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
        code = process.wait(FINISH_SECONDS_MAX) if count is not None else process.poll()
        if code:
            raise BenchFailed(f"the process that sends ended with exit {code}; its error is above")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    send_paced(sys.argv[1], int(sys.argv[2]) if sys.argv[2] else None)
