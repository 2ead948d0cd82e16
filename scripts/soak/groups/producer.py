"""A producer: numbered messages for each of its sharding keys, until a line on standard input tells it to finish.

Several messages of a key are in flight at a time. The broker must acknowledge every one in the end, although it is
stopped and killed in between.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flintmq.client import Message, Producer

from .ledger import Ledger, body_of

DELIVERY_SECONDS = 180.0
IN_FLIGHT_MAX = 200


def produce(address: str, topic: str, name: str, keys: int, rate: float, seed: int, ledger: Ledger) -> int:
    """Send about ``rate`` messages per second until told to finish; return their number."""
    source = random.Random(seed)
    numbers = [0] * keys
    room = threading.Semaphore(IN_FLIGHT_MAX)
    failures: list[BaseException] = []
    finish = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), finish.set()), daemon=True).start()
    with Producer(address, delivery_timeout=DELIVERY_SECONDS) as producer:
        while not finish.is_set() and not failures:
            place = source.randrange(keys)
            key, number = f"{name}-{place}", numbers[place]
            numbers[place] += 1
            room.acquire()

            def settled(future: Any, key: str = key, number: int = number) -> None:
                room.release()
                error = future.exception()
                if error is not None:
                    failures.append(error)
                else:
                    receipt = future.result()
                    ledger.write(key, number, receipt.queue, receipt.queue_offset)

            message = Message(topic, body_of(key, number), keys=(f"{key}-{number}",), sharding_key=key)
            producer.send_async(message).add_done_callback(settled)
            time.sleep(source.expovariate(rate))
    if failures:
        raise failures[0]
    return sum(numbers)


def main() -> None:
    """Run the producer that the argument, a JSON object, describes; print the number of messages."""
    arguments = json.loads(sys.argv[1])
    ledger = Ledger(Path(arguments.pop("ledger")))
    print(produce(ledger=ledger, **arguments), flush=True)


if __name__ == "__main__":
    main()
