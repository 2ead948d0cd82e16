"""Connections that each send one message at a time, or at a pace to a waiting pull, beside Redis in turns, with clients
in C; and single messages through the gateway for RocketMQ's clients.

Clients in Python take as much CPU time as the broker, and hide what many machines would see.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack

from flintmq.protocol.commands import HELLO, LAYOUT_ROWS, PROTOCOL_VERSION
from flintmq.protocol.frames import BEFORE_BORN, REQUEST, ProduceHead, PullHead, encode_frame
from flintmq.protocol.remoting.codes import SEND_MESSAGE_V2
from flintmq.protocol.remoting.command import LENGTHS, VERSION
from lib.replica_servers import free_ports

from ..bench import Bench
from ..load import QUEUES, TOPIC
from ..machine import cpu_seconds, many_files
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped
from ..peers import servers
from ..raw import RawClient

CONNECTIONS = (1, 64, 500, 1_000)
MESSAGES = {"async": 100_000, "sync": 50_000}
ONE_AT_A_TIME = {"async": 20_000, "sync": 5_000}
PACED = 3_000
PERIOD_US = 2_000
BODY_BYTES = 100
KEY = "order-00000001"
FLUSHES = ("async", "sync")
PROGRAM_SECONDS_MAX = 120.0
SOURCE = Path(__file__).parents[1] / "peers" / "closed_loop.c"
_COUNTER_MAX = 2**40
_U64_BYTES = 8
_OPAQUE, _COUNTER, _TIME = "87654321", "ABCDEF01", "1712345678901"
"""What the program changes in each request to the gateway, by length."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run. Redis is left out if it is not installed, and the reason ends the case."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("there is no C compiler (cc) for the clients")
    left_out = ""
    with bench.store() as folder, many_files(CONNECTIONS[-1] + 100):
        program = folder / "closed_loop"
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        for _ in range(bench.runs):
            sample: Sample = {}
            for flush in FLUSHES:
                with bench.broker(flush) as broker:
                    sample |= of_server(bench, program, flush, "flintmq", broker.address, broker.pid)
                gateway = f"127.0.0.1:{free_ports(1)[0]}"
                options = ("--set", f"remoting.listen={gateway}", "--set", "remoting.vip_channel=false")
                with bench.broker(flush, *options) as broker:
                    sample |= of_server(bench, program, flush, "gateway", gateway, broker.pid)
                try:
                    if bench.alone:
                        raise Skipped("the comparison with Redis is off (--alone)")
                    with bench.store() as files, servers.redis(files, flush) as server:
                        sample |= of_server(bench, program, flush, "redis", server.address, server.pid)
                except Skipped as reason:
                    left_out = str(reason)
            yield sample
    if left_out:
        raise Skipped(left_out)


def of_server(bench: Bench, program: Path, flush: str, name: str, address: str, pid: int) -> Sample:
    """Return a server's figures of one run."""
    sample: Sample = {}
    for connections in CONNECTIONS:
        count = bench.count((MESSAGES if connections > 1 else ONE_AT_A_TIME)[flush])
        found = measure(program, address, pid, (connections, max(count, connections)), INPUTS[name](connections))
        sample |= {f"{flush}_{connections}_{key}_{name}": found[key] for key, _, _ in ROWS}
    if name == "gateway":
        return sample
    load_input = INPUTS[name](1)
    if name == "flintmq":
        with RawClient(address) as client:
            load_input = flintmq_input(1, client.queue_lengths(TOPIC).get(0, 0))
    found = measure(program, address, pid, (1, bench.count(PACED), PERIOD_US), load_input)
    return sample | {f"{flush}_paced_{key}_{name}": found[key] for key, _, _ in PACED_ROWS}


def measure(program: Path, address: str, pid: int, numbers: tuple[int, ...], load_input: bytes) -> dict[str, float]:
    """Return the figures of one run of the load program, whose arguments after the port are ``numbers``."""
    with loaded(program, address, numbers, load_input) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        before = cpu_seconds(pid)
        load.stdin.write(b"\n")
        load.stdin.flush()
        found: dict[str, float] = json.loads(load.stdout.readline() or "{}")
        cpu = cpu_seconds(pid) - before
    if not found:
        raise BenchFailed("the load program failed; its error is above")
    connections, count = numbers[:2]
    found["cpu"] = cpu * 1e6 / (count // connections * connections)
    return found


@contextmanager
def loaded(
    program: Path, address: str, numbers: tuple[int, ...], load_input: bytes
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the load program until the block ends; its connections are open and warm."""
    command = [str(program), address.rpartition(":")[2], *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(load_input)
            process.stdin.flush()
            if process.stdout.readline() != b"ready\n":
                raise BenchFailed("the load program failed; its error is above")
            yield process
            process.wait(PROGRAM_SECONDS_MAX)
        finally:
            process.kill()


def flintmq_input(connections: int, end: int = 0) -> bytes:
    """Return the program's input for a broker: each connection is a producer of its own, to one of the queues.
    ``end``: that of queue 0, which is pulled from."""
    body: bytes = msgpack.packb([random.randbytes(BODY_BYTES), {"KEYS": KEY}])
    requests = []
    for number in range(connections):
        head = ProduceHead(TOPIC, number % QUEUES, LAYOUT_ROWS, "", "", random.randbytes(10).hex().upper())
        requests.append(head.encode(1, 1, 0, 0, len(body)) + body)
    time_at = len(requests[0]) - len(body) - _U64_BYTES
    counter_at = time_at - len(BEFORE_BORN) - _U64_BYTES
    greeting = encode_frame(REQUEST, HELLO.code, 1, {"protocol": PROTOCOL_VERSION, "client": "load"}, b"")
    waiting = {"topic": TOPIC, "queue": 0, "max_count": 32, "max_bytes": 1 << 20, "wait_ms": 30_000}
    pull = PullHead(waiting).encode(1, end)
    numbers = (len(greeting), len(requests[0]), 12, counter_at, time_at, 1, len(pull), random.randrange(_COUNTER_MAX))
    return struct.pack("=7IQ", *numbers) + greeting + b"".join(requests) + pull


def gateway_input(connections: int) -> bytes:
    """Return the program's input for the gateway: headers as the client for Java writes them."""
    requests = []
    for number in range(connections):
        unique = random.randbytes(12).hex().upper()
        properties = f"KEYS\\u0001{KEY}\\u0002UNIQ_KEY\\u0001{unique}{_COUNTER}\\u0002WAIT\\u0001true"
        fields = {"a": "load", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": number % QUEUES, "f": 0, "g": _TIME}
        fields |= {"h": 0, "i": properties, "j": 0, "k": "false", "m": "false", "n": "broker"}
        pairs = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
        header = (
            f'{{"code":{SEND_MESSAGE_V2},"extFields":{{{pairs}}},"flag":0,"language":"JAVA","opaque":{_OPAQUE},'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode()
        requests.append(LENGTHS.pack(4 + len(header) + BODY_BYTES, len(header)) + header + random.randbytes(BODY_BYTES))
    places = (requests[0].index(text.encode()) for text in (_OPAQUE, _COUNTER, _TIME))
    return struct.pack("=7IQ", 0, len(requests[0]), *places, 2, 0, random.randrange(2**16)) + b"".join(requests)


def redis_input(connections: int) -> bytes:
    """Return the program's input for Redis: XADD with the same body and key."""
    words = [b"XADD", servers.TOPIC.encode(), b"*", b"b", random.randbytes(BODY_BYTES), b"k", KEY.encode()]
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return struct.pack("=7IQ", 0, len(request), 0, 0, 0, 0, 0, 0) + request * connections


def shown(connections: int) -> str:
    """Return the number with its noun."""
    return f"{connections:,} connection{'s' if connections > 1 else ''}"


INPUTS = {"flintmq": flintmq_input, "gateway": gateway_input, "redis": redis_input}
ROWS = (("rate", "rate", "msg/s"), ("p50", "p50", "µs"), ("p99", "p99", "µs"), ("cpu", "broker's CPU", "µs/msg"))
PACED_ROWS = (
    ("p50", "p50 of the answer", "µs"),
    ("p99", "p99 of the answer", "µs"),
    ("arrival_p50", "p50 of the arrival", "µs"),
    ("arrival_p99", "p99 of the arrival", "µs"),
    ("cpu", "broker's CPU", "µs/msg"),
)
_LOADS = [(str(connections), shown(connections), ROWS, tuple(INPUTS)) for connections in CONNECTIONS]
_LOADS.append(("paced", f"{1_000_000 // PERIOD_US}/s to a waiting pull", PACED_ROWS, ("flintmq", "redis")))

CASE = Case(
    "many",
    "connections in C that send one message at a time, or at a pace to a waiting pull; FlintMQ and Redis in turns",
    tuple(
        Measure(f"{flush}_{load}_{key}_{name}", f"{flush}, {what}: {title}: {name}", unit)
        for flush in FLUSHES
        for load, what, rows, names in _LOADS
        for key, title, unit in rows
        for name in names
    ),
    samples,
)
