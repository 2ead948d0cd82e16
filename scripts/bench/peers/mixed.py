"""One operation of a mixed load, at a steady rate, in a process of its own: what the programs of all peers share.

*_mixed.py OPERATION ADDRESS SECONDS    {"count": …, "p50": ms, "p99": ms, "p99.9": ms, "p99.99": ms, "max": ms}
mixed.py clock ADDRESS SECONDS          the same for a process that only keeps time: what the machine adds to each

A time counts from when the operation was due, not from when it began: what a stall delays is late, too. The collector
of these programs is off, so that a pause is never theirs. It needs only the standard library.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import figures

RATES = {"send": 200, "bulk": 8, "read": 50, "query": 50, "clock": 200}
"""Operations a second of a process."""
BULK_MESSAGES = 1_000
READ_MESSAGES = 32
READ_BEHIND = 20_000
"""A read begins at most this many messages before the end of its queue, so that each peer still has them."""
QUERY_BEHIND_S = 2.0
"""Age of the messages that are found by their key."""
GROUP = "readers"
WARM_UP_S = 5.0
WAIT_MS = 500
"""A reader that waits for messages looks at the clock after this time."""

Operation = Callable[[int], object]
"""Does the operation with a number, once."""
Received = Iterable[bytes]
"""Bodies of the messages that arrived together; none if there was none for ``WAIT_MS``."""


def key_of(number: int) -> str:
    """Return the key of a sender's message."""
    return f"order-{number:010}"


def bulk_bodies() -> list[bytes]:
    """Return the bodies of one bulk, each different."""
    content = random.randbytes(BULK_MESSAGES * figures.BODY_BYTES)
    return [content[at : at + figures.BODY_BYTES] for at in range(0, len(content), figures.BODY_BYTES)]


def bulk_keys(number: int) -> list[str]:
    """Return the keys of the bulk with a number."""
    return [f"bulk-{number * BULK_MESSAGES + each:012}" for each in range(BULK_MESSAGES)]


def paced(operation: Operation, per_second: int, seconds: float) -> list[float]:
    """Do the operation at a rate; return the seconds from when each was due until it was done, after the warm-up.

    An operation that cannot keep up ends with the time, too."""
    taken = []
    begin = time.monotonic()
    end = begin + WARM_UP_S + seconds
    for number in range(int((WARM_UP_S + seconds) * per_second)):
        due = begin + number / per_second
        time.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() > end:
            break
        operation(number)
        if due >= begin + WARM_UP_S:
            taken.append(time.monotonic() - due)
    return taken


def arrivals(receive: Callable[[], Received], seconds: float) -> list[float]:
    """Return the seconds from the send of each message until it arrived, after the warm-up."""
    taken: list[float] = []
    end = time.monotonic() + WARM_UP_S + seconds
    counted_from = 0.0
    while time.monotonic() < end:
        for body in receive():
            now, late = time.monotonic(), figures.seconds_since(body)
            # A group may need seconds until it gets its first message.
            counted_from = counted_from or now + WARM_UP_S
            if now - late >= counted_from:
                taken.append(late)
    return taken


def tails(taken: Sequence[float]) -> dict[str, float]:
    """Return the percentiles in ms; ``count`` alone if there are none."""
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}
    found = {name: figures.percentile(taken, share) * 1e3 for name, share in shares.items()} if taken else {}
    return {"count": len(taken), **found}


def main(operations: Mapping[str, Callable[[str], Operation]], readers: Mapping[str, Callable[[str], object]]) -> None:
    """Run the operation of the command line and print its percentiles. ``operations`` and ``readers`` connect to an
    address; the latter return a function that waits for messages."""
    name, address, seconds = sys.argv[1:]
    found = readers[name](address) if name in readers else operations[name](address)
    gc.collect()
    gc.disable()
    assert callable(found)
    if name in readers:
        taken = arrivals(found, float(seconds))
    else:
        taken = paced(found, RATES[name], float(seconds))
    print(json.dumps(tails(taken)))


if __name__ == "__main__":
    main({"clock": lambda address: lambda number: None}, {})
