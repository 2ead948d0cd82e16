"""The broker's CPU time for one send, by the way that it takes: what the interpreter costs, hot and cold.

The same requests of clients in C take three ways through brokers that take turns: a kernel that reads all connections
(*turns*), the short way of a connection's repeated headers (*repeated*), and the way of a request that is like no
earlier one (*general*). Requests to the gateway for RocketMQ's clients have the last two.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.replica_servers import free_ports

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC
from ..machine import cpu_seconds
from ..measure import Case, Measure, Sample, Samples, Skipped
from ..raw import RawClient, check_answer, open_socket
from .many import SOURCE, flintmq_input, gateway_input, measure

LOADS = {1: 15_000, 64: 100_000}
"""Messages by the number of connections."""
COLD_A_SECOND = 500
COLD_SECONDS = 8.0
IDLE_SECONDS = 2.0
_NUMBERS = struct.Struct("=7IQ")
_NO_TURNS = {"net.connection": {"ENTER_AFTER": 2**60}}
_NO_REPEATS = {"handlers.repeated_headers": {"TRIES_MAX": 0}, "remoting.repeated_sends": {"TRIES_MAX": 0}}
WAYS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "turns": {},
    "repeated": _NO_TURNS,
    "general": {**_NO_TURNS, **_NO_REPEATS},
}
"""Constants of the broker's modules that keep requests from a shorter way."""


class OtherWay(Broker):
    """A broker with other constants."""

    def __init__(self, store: Path, way: str, *options: str) -> None:
        super().__init__(store, "async", *options)
        self._way = way

    def _program(self) -> Sequence[str]:
        lines = ["from importlib import import_module"]
        for module, constants in WAYS[self._way].items():
            lines += [f"import_module('flintmq.broker.{module}').{name} = {value}" for name, value in constants.items()]
        return ["-c", "\n".join([*lines, "from flintmq.broker.app.daemon import main", "main()"])]


def samples(bench: Bench) -> Samples:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("there is no C compiler (cc) for the clients")
    with bench.store() as folder:
        program = folder / "closed_loop"
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        for _ in range(bench.runs):
            sample: Sample = {}
            for way in WAYS:
                gateway = f"127.0.0.1:{free_ports(1)[0]}"
                options = ("--set", f"remoting.listen={gateway}", "--set", "remoting.vip_channel=false")
                with bench.store() as store, OtherWay(store, way, *options) as broker:
                    sample |= of_broker(bench, program, way, broker, gateway)
            yield sample


def of_broker(bench: Bench, program: Path, way: str, broker: Broker, gateway: str) -> Sample:
    """Return the CPU time of a message in µs: in a tight loop, cold, and through the gateway."""
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC, QUEUES)
    sample: Sample = {}
    targets = {"own": (broker.address, flintmq_input)}
    if way != "turns":
        targets["gateway"] = gateway, gateway_input
    for name, (address, make_input) in targets.items():
        for connections, messages in LOADS.items():
            count = max(bench.count(messages), connections) // connections * connections
            found = measure(program, address, broker.pid, (connections, count), make_input(connections))
            sample[f"{name}_{connections}_{way}"] = found["cpu"]
    sample[f"cold_{way}"] = cold(bench, broker)
    return sample


def cold(bench: Bench, broker: Broker) -> float:
    """Return the CPU time of a message in µs when each is sent some milliseconds after the last one, without what the
    broker takes when it has nothing to do."""
    blob = flintmq_input(1)
    greeting_bytes, request_bytes, id_at, counter_at, _, _, _, counter = _NUMBERS.unpack_from(blob)
    greeting, rest = blob[_NUMBERS.size :][:greeting_bytes], blob[_NUMBERS.size + greeting_bytes :]
    request = bytearray(rest[:request_bytes])
    count = bench.count(int(COLD_A_SECOND * COLD_SECONDS))

    def send(sock: socket.socket, number: int) -> None:
        struct.pack_into(">I", request, id_at, number + 1)
        struct.pack_into(">Q", request, counter_at, counter + number)
        sock.sendall(request)
        check_answer(sock.recv(4096))

    with open_socket(broker.address) as sock:
        sock.sendall(greeting)
        sock.recv(4096)
        for number in range(100):
            send(sock, number)
        before = cpu_seconds(broker.pid)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(broker.pid) - before) / IDLE_SECONDS
        before, began = cpu_seconds(broker.pid), time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / COLD_A_SECOND - time.monotonic()))
            send(sock, 100 + number)
        used = cpu_seconds(broker.pid) - before - idle * (time.monotonic() - began)
    return max(0.0, used) * 1e6 / count


ROWS = (
    ("own_1", "one connection"),
    ("own_64", "64 connections"),
    ("cold", f"one connection, {COLD_A_SECOND} a second"),
    ("gateway_1", "gateway, one connection"),
    ("gateway_64", "gateway, 64 connections"),
)
CASE = Case(
    "ways",
    "the broker's CPU time for one send, async, by its way through the broker, clients in C",
    tuple(
        Measure(f"{key}_{way}", f"{title}: {way}", "µs")
        for key, title in ROWS
        for way in WAYS
        if way != "turns" or not key.startswith("gateway")
    ),
    samples,
)
