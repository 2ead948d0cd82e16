"""The operations of the mixed load with redis-py: see ``mixed.py``. Redis cannot find a message by its key."""

from __future__ import annotations

import random
import time

import figures
import mixed
import redis


def connect(address: str) -> redis.Redis:
    host, port = address.split(":")
    return redis.Redis(host, int(port))


def send(address: str) -> mixed.Operation:
    client = connect(address)

    def one(number: int) -> None:
        message = {"key": mixed.key_of(number), "body": figures.stamped_body()}
        client.xadd(figures.SINGLE_TOPIC, message, maxlen=figures.KEPT_MESSAGES, approximate=True)

    return one


def bulk(address: str) -> mixed.Operation:
    client, bodies = connect(address), mixed.bulk_bodies()

    def one(number: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for body, key in zip(bodies, mixed.bulk_keys(number), strict=True):
            message = {"key": key, "body": body}
            pipeline.xadd(figures.BULK_TOPIC, message, maxlen=figures.KEPT_MESSAGES, approximate=True)
        pipeline.execute()

    return one


def read(address: str) -> mixed.Operation:
    """Read from a time on; the newest ``READ_BEHIND`` messages are those of a few seconds."""
    client, choose = connect(address), random.Random(1)
    behind_ms = 1000 * mixed.READ_BEHIND // (mixed.BULK_MESSAGES * mixed.RATES["bulk"])

    def one(number: int) -> None:
        since_ms = time.time_ns() // 1_000_000 - choose.randint(0, behind_ms)
        client.xrange(figures.BULK_TOPIC, min=str(since_ms), count=mixed.READ_MESSAGES)

    return one


def arrive(address: str) -> object:
    client, last = connect(address), b"$"

    def some() -> mixed.Received:
        nonlocal last
        bodies = []
        for _, entries in client.xread({figures.SINGLE_TOPIC: last}, block=mixed.WAIT_MS):
            bodies += [fields[b"body"] for _, fields in entries]
            last = entries[-1][0]
        return bodies

    return some


def group(address: str) -> object:
    client = connect(address)
    client.xgroup_create(figures.SINGLE_TOPIC, mixed.GROUP, mkstream=True)
    wanted = {figures.SINGLE_TOPIC: ">"}

    def some() -> mixed.Received:
        bodies = []
        for _, entries in client.xreadgroup(mixed.GROUP, "one", wanted, block=mixed.WAIT_MS):
            bodies += [fields[b"body"] for _, fields in entries]
            client.xack(figures.SINGLE_TOPIC, mixed.GROUP, *[identity for identity, _ in entries])
        return bodies

    return some


if __name__ == "__main__":
    mixed.main({"send": send, "bulk": bulk, "read": read}, {"arrive": arrive, "group": group})
