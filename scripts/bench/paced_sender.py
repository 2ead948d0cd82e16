"""Messages at a steady rate, each with its send time, from a thread or from a separate process."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flintmq.client import Message, Producer

from .load import BODY_BYTES, TOPIC
from .measure import BenchFailed

MESSAGES_A_SECOND = 500
FINISH_SECONDS_MAX = 30.0

STAMP = struct.Struct(">d")
"""Start of a body: seconds of the clock that all processes of the machine share."""


def now() -> float:
    """Return the current time for comparison with a stamp."""
    return time.monotonic()


def sent_at(body: bytes) -> float:
    seconds: float = STAMP.unpack_from(body)[0]
    return seconds


def stamp() -> bytes:
    """Return the present time as the start of a body."""
    return STAMP.pack(now())


def send_paced(address: str, count: int | None, queue: int | None = None, stamp: Callable[[], bytes] = stamp) -> None:
    """Send one message after another, each acknowledged, to one queue or (None) to all in turn; None: without end."""
    with Producer(address) as producer:
        begin = now()
        for number in itertools.count() if count is None else range(count):
            time.sleep(max(0.0, begin + number / MESSAGES_A_SECOND - now()))
            body = stamp().ljust(BODY_BYTES, b"\0")
            producer.send(Message(TOPIC, body, keys=(f"order-{number:08}",)), queue=queue)


@contextmanager
def sender(address: str, count: int | None = None) -> Iterator[None]:
    """Run a process that sends ``count`` messages; the context waits for it. None: send until the context ends."""
    command = [sys.executable, "-m", "bench.paced_sender", address, str(count or "")]
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
