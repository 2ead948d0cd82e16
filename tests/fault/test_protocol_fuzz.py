"""A broker with clients that violate the protocol in any order, and one good client that must never be disturbed.

Everything random comes from a seed: ``FLINTMQ_FUZZ_SEED`` selects another, ``FLINTMQ_FUZZ_ROUNDS`` sets how long.
"""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import msgpack
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from flintmq.protocol.commands import CLOSE_CONNECTION, COMMANDS, HELLO, PRODUCE, PULL, Command
from flintmq.protocol.errors import ERRORS_BY_CODE, BrokerFailure, FrameIllegal
from flintmq.protocol.frames import ONE_WAY, REQUEST, RESPONSE, encode_frame
from tests.conftest import RawConnection, RunningBroker
from tests.fault.test_memory_bound import BOUND_BYTES, MIB, Peak
from tests.overload_tools import anonymous_bytes, soon

Factory: TypeAlias = Callable[..., RunningBroker]
Connect: TypeAlias = Callable[..., RawConnection]

SEED = int(os.environ.get("FLINTMQ_FUZZ_SEED", "1"))
ROUNDS = int(os.environ.get("FLINTMQ_FUZZ_ROUNDS", "300"))
IDLE_CONNECTIONS = 10_000
REQUESTS = tuple(command for command in COMMANDS.values() if not command.from_broker)


def say(what: str) -> None:
    """Print a line for a run with ``-s``, or for the report of a failure."""
    sys.stdout.write(f"\n{what}\n")


class Witness:
    """A well-behaved client: sends, pulls what it sent, and compares, until it is stopped."""

    def __init__(self, running: RunningBroker) -> None:
        self.connection = RawConnection(socket.create_connection((running.host, running.port), timeout=60))
        self.connection.call(HELLO, {"protocol": 1, "client": "witness"}).raise_for_error()
        self.seconds: list[float] = []
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.connection.close()
        if self.failure is not None:
            raise self.failure
        assert self.seconds, "the witness sent nothing"
        taken = sorted(self.seconds)
        say(
            f"witness: {len(taken)} messages sent and pulled, p50 {taken[len(taken) // 2] * 1e3:.2f} ms, "
            f"p99 {taken[len(taken) * 99 // 100] * 1e3:.2f} ms, longest {taken[-1] * 1e3:.2f} ms; seed {SEED}"
        )

    def _run(self) -> None:
        try:
            number = 0
            while not self._over.wait(0.002):
                began = time.monotonic()
                body = b"message %d of the witness" % number
                sent = self.connection.produce("witness", body, queue=0).raise_for_error()
                assert sent.fields["queue_offset"] == number
                pulled = self.connection.pull("witness", 0, number, wait_ms=10_000).raise_for_error()
                assert pulled.fields["count"] == 1
                assert body in pulled.body
                self.seconds.append(time.monotonic() - began)
                number += 1
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that stops it
            self.failure = failure


@pytest.fixture
def under_fire(broker: Factory) -> Iterator[RunningBroker]:
    """A broker that a witness uses during the whole test, and that must work afterwards as before."""
    running = broker("--flush", "async", settings={"net.server:HALF_FRAME_S": 2})
    with Peak(running.process.pid) as peak, Witness(running):
        yield running
    assert running.process.poll() is None, running.log
    assert peak.bytes < BOUND_BYTES
    assert "Traceback" not in running.log
    assert " ERROR " not in running.log
    assert " CRITICAL " not in running.log


# ---- requests ----

STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    "",
    "x",
    "x" * 200,
    "\x00",
    "\ud7ff",
    "../../etc",
    b"",
    b"\xff" * 100,
    [],
    [1, [2, [3, [4]]]],
    {},
    {"a": {"b": {}}},
    [None] * 256,
)
NAMES = ("witness-not", "fuzz", "%RETRY%fuzz", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102")
BODIES = (
    b"",
    b"\x00" * 12,
    b"\xc1",
    b"\x91" * 5000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    struct.pack(">iq", 0, 2**62) * 3,
    msgpack.packb([b"body", {}]),
    msgpack.packb([b"b", {"KEYS": "k"}]) * 3,
    msgpack.packb({"groups": [{"group": "fuzz"}]}),
    msgpack.packb([["fuzz", {"fuzz": [0, 1]}]]),
)


def plausible(source: random.Random, field: dataclasses.Field[Any]) -> Any:
    """Return a value, usually of the type that the field needs."""
    if source.random() < 0.15:
        return source.choice(STRANGE_VALUES)
    kind = str(field.type)
    if kind == "int":
        return source.choice((0, 1, 1, 2, 3, 32, 1000, 2**31 - 1, 2**40))
    if kind == "bool":
        return source.random() < 0.5
    if "topic" in field.name or "group" in field.name:
        return source.choice(NAMES)
    return source.choice(("", "fuzz", "a || b", "a > 5 AND", "sync", "commit", "rollback", "0A" * 10, "k"))


def random_fields(source: random.Random, command: Command) -> dict[str, Any]:
    """Return fields for a command: some missing, some invalid, some unknown."""
    fields = {
        field.name: plausible(source, field) for field in dataclasses.fields(command.request) if source.random() < 0.9
    }
    if "wait_ms" in fields:
        fields["wait_ms"] = source.choice((0, 0, 1, 50))
    for name in ("topic", "group"):
        if fields.get(name) == "witness":
            del fields[name]
    if command is CLOSE_CONNECTION and type(number := fields.get("connection")) is int and 0 <= number < 2**31:
        fields["connection"] = number + 2**40  # none of the test's own, the witness among them
    if source.random() < 0.1:
        fields[source.choice(("x", "count", "message", ""))] = source.choice(STRANGE_VALUES)
    return fields


def random_frame(source: random.Random, command: Command) -> bytes:
    """Return a frame of a command with a valid layout and arbitrary content."""
    kind = source.choice((REQUEST, REQUEST, REQUEST, ONE_WAY, RESPONSE))
    body = source.choice(BODIES) if source.random() < 0.8 else source.randbytes(source.randrange(200))
    return encode_frame(kind, command.code, source.randrange(2**31), random_fields(source, command), body)


def mutated(source: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    how = source.randrange(6)
    if how == 0:
        for _ in range(source.randrange(1, 4)):
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    elif how == 1:
        del changed[source.randrange(len(changed)) :]
    elif how == 2:
        struct.pack_into(">I", changed, source.choice((0, 4)), source.choice((0, 3, 4, 2**16, 2**24, 2**32 - 1)))
    elif how == 3:
        changed[source.randrange(len(changed))] = source.choice((0xC1, 0xC7, 0xD9, 0xDD, 0xDF, 0xFF))
    elif how == 4:
        at = source.randrange(8, len(changed))
        changed[at:at] = source.randbytes(source.randrange(1, 50))
    return bytes(changed)


def is_sound(connection: RawConnection) -> bool:
    """Read responses as long as there are any; return whether the broker left the connection open."""
    connection.sock.settimeout(0.02)
    try:
        while True:
            connection.receive()
    except TimeoutError:
        return True
    except (EOFError, ConnectionError):
        return False
    finally:
        connection.sock.settimeout(60)


# ---- the tests ----


def test_frames_of_every_command_with_any_content_and_damaged_ones(under_fire: RunningBroker, connect: Connect) -> None:
    source = random.Random(SEED)
    connection = connect(under_fire)
    for number in range(ROUNDS):
        command = REQUESTS[number % len(REQUESTS)]
        frames = b"".join(random_frame(source, source.choice((command, command, *REQUESTS))) for _ in range(8))
        with suppress(ConnectionError):
            connection.send_bytes(frames if number % 2 else mutated(source, frames))
            if not is_sound(connection):
                raise ConnectionResetError
            continue
        connection.close()
        connection = connect(under_fire, hello=source.random() < 0.9)


def test_every_command_one_byte_at_a_time(under_fire: RunningBroker, connect: Connect) -> None:
    connection = connect(under_fire)
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for command in REQUESTS:
        frame = encode_frame(REQUEST, command.code, 77, {"topic": "fuzz"}, b"\x00" * 5)
        for at in range(len(frame)):
            connection.send_bytes(frame[at : at + 1])
        assert connection.receive().request_id == 77, command.name


def test_half_frames_slow_readers_and_bombs_at_once(under_fire: RunningBroker, connect: Connect) -> None:
    source = random.Random(SEED)
    feeder = connect(under_fire)
    for _ in range(40):
        feeder.produce("fuzz", source.randbytes(400_000), queue=0).raise_for_error()
    slow = [connect(under_fire) for _ in range(40)]
    for reader in slow:
        for _ in range(4):
            reader.send(PULL, {"topic": "fuzz", "queue": 0, "offset": 0, "max_bytes": 16 * MIB, "max_count": 1000})
    whole = encode_frame(REQUEST, PRODUCE.code, 1, {"topic": "fuzz", "count": 1}, bytes(900_000))
    halves = [connect(under_fire) for _ in range(150)]
    for half in halves:
        half.sock.settimeout(0.5)
        with suppress(TimeoutError, ConnectionError):  # a frame without memory waits
            half.send_bytes(whole[: source.randrange(1, len(whole))])
    for depth in (10, 1000, 60_000):
        for opening in (b"\x91", b"\x81\xa1a"):
            header = b"\x94\x00\x0a\x01\x81\xa1x" + opening * (depth // len(opening))
            bomb = connect(under_fire)
            bomb.send_bytes(struct.pack(">II", 4 + len(header), len(header)) + header)
            assert bomb.receive().code == FrameIllegal.code
    for half in halves:  # after the timeout for half frames
        half.sock.settimeout(60)
        with suppress(ConnectionError, EOFError):
            half.receive()
    for reader in slow[:5]:
        assert reader.receive().raise_for_error().fields["count"] >= 1


def test_ten_thousand_connections_that_do_nothing(under_fire: RunningBroker, connect: Connect) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < IDLE_CONNECTIONS + 5000:
        pytest.skip(f"a process may have {most} descriptors here; this needs {IDLE_CONNECTIONS + 5000} (ulimit -Hn)")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bystander = connect(under_fire)
    idle: list[socket.socket] = []
    memory = anonymous_bytes(under_fire.process.pid)
    try:
        greeting = encode_frame(REQUEST, HELLO.code, 1, {"protocol": 1})
        for _ in range(IDLE_CONNECTIONS):
            sock = socket.create_connection((under_fire.host, under_fire.port), timeout=60)
            idle.append(sock)
            sock.sendall(greeting)
        for sock in idle:
            assert sock.recv(1)
        assert bystander.runtime_info()["connections"] >= IDLE_CONNECTIONS
        each = (anonymous_bytes(under_fire.process.pid) - memory) / IDLE_CONNECTIONS
        say(f"an idle connection takes {each / 1024:.1f} KiB")
        assert each < 16 * 1024
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    soon(lambda: bystander.runtime_info()["connections"] < 100)


# ---- any order ----


class Client(RuleBasedStateMachine):
    """Legal and illegal steps in any order; the legal ones must succeed, on a connection that does nothing else."""

    running: RunningBroker

    @initialize()
    def begin(self) -> None:
        self.connection = self._open()
        self.sent = 0
        self.topic = f"fuzz-{os.urandom(6).hex()}"
        self.trusted = True

    def _open(self) -> RawConnection:
        connection = RawConnection(socket.create_connection((self.running.host, self.running.port), timeout=60))
        connection.call(HELLO, {"protocol": 1, "client": "fuzz"}).raise_for_error()
        return connection

    def _again(self) -> None:
        self.connection.close()
        self.connection = self._open()

    @rule(body=st.binary(max_size=300))
    def send(self, body: bytes) -> None:
        """Send a message, which must get the next offset whatever happened in between."""
        answer = self.connection.produce(self.topic, body, queue=0).raise_for_error()
        assert answer.fields["queue_offset"] == self.sent
        self.sent += 1

    @rule()
    def read(self) -> None:
        """Check that all acknowledged messages are there."""
        if self.sent:
            answer = self.connection.pull(self.topic, 0, 0, max_count=1000).raise_for_error()
            assert answer.fields["count"] == self.sent

    @rule(number=st.integers(0, len(REQUESTS) - 1), chance=st.integers(0, 2**32))
    def ask_anything(self, number: int, chance: int) -> None:
        """Send a request with invalid fields, which must get a named error or a result."""
        command = REQUESTS[number]
        if command is HELLO:
            return
        fields = random_fields(random.Random(chance), command)
        for name in ("prepare", "unique_prefix"):
            fields.pop(name, None)
        answer = self.connection.call(command, {**fields, "topic": "fuzz"} if "topic" in fields else fields)
        assert answer.code != BrokerFailure.code, (command.name, fields, answer.fields)
        if answer.code in ERRORS_BY_CODE:
            assert len(answer.fields["message"]) > 10

    @rule(chance=st.integers(0, 2**32))
    def damage(self, chance: int) -> None:
        """Send a damaged frame, which may end only its own connection."""
        source = random.Random(chance)
        with suppress(ConnectionError):
            self.connection.send_bytes(mutated(source, random_frame(source, source.choice(REQUESTS))))
        self._again()

    @rule(size=st.integers(1, 100_000))
    def leave_in_a_frame(self, size: int) -> None:
        """Begin a frame that is never completed."""
        with suppress(ConnectionError):
            self.connection.send_bytes(struct.pack(">II", 200_000, 16) + bytes(size))
        self._again()

    @invariant()
    def lives(self) -> None:
        assert self.running.process.poll() is None

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


def test_legal_and_illegal_steps_in_any_order(under_fire: RunningBroker) -> None:
    machine: Any = type("Machine", (Client,), {"running": under_fire})
    rules = settings(
        max_examples=max(20, ROUNDS // 5),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(seed(SEED)(machine), settings=rules)
