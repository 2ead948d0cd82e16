"""The process: settings, refused starts, the banner, signals, and the state after a stop and a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import PRODUCE, PULL
from flintmq.protocol.errors import PULL_NOT_FOUND, SUCCESS
from flintmq.protocol.storage.record import decode_host, decode_record
from tests.forked import FORKS

Broker = Any
Factory = Callable[..., Broker]
Connect = Callable[..., Any]


def serve(*options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``flintmq-broker serve``, which is expected to refuse; ``environment`` is as users start it."""
    if environment is None:
        return FORKS.run(["serve", *options], 60)
    return subprocess.run(
        [sys.executable, "-m", "flintmq.broker.app.daemon", "serve", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def assert_refused(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("flintmq-broker:")]
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0]
    assert "listening" not in result.stdout


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--set", "store.index_slots=3"], ["store.index_slots", "'3'", "--set", "from 500"]),
        (["--set", "store.index_slotz=3"], ["store.index_slotz", "did you mean store.index_slots"]),
        (["--set", "nonsense"], ["nonsense", "SECTION.NAME=VALUE"]),
        (["--flush", "never"], ["flush.policy", "'never'", "--flush", '"sync" or "async"']),
        (["--listen", "127.0.0.1:99999"], ["server.listen", "127.0.0.1:99999"]),
        (["--config", "/nowhere/broker.toml"], ["/nowhere/broker.toml"]),
        (["--store", ""], ["store.path", "--store"]),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, options: list[str], parts: list[str]
) -> None:
    store = tmp_path / "store"
    assert_refused(serve("--store", str(store), "--listen", "127.0.0.1:0", *options), 2, *parts)
    assert not store.exists()


def test_a_variable_that_cannot_be_used_is_refused_by_its_name(tmp_path: Path) -> None:
    environment = {"FLINTMQ_STORE__INDEX_SLOTS": "few"}
    assert_refused(serve("--store", str(tmp_path), environment=environment), 2, "FLINTMQ_STORE__INDEX_SLOTS", "'few'")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"\xef\xbb\xbf[store]\nindex_slots = 3\n", ["store.index_slots", "from 500"]),
        (b"[store]\npath = '\xe9t\xe9'\n", ["line 2 is not UTF-8"]),
        ("[store]\n".encode("utf-16"), ["it is UTF-16; save it as UTF-8"]),
    ],
)
def test_a_settings_file_is_utf_8_with_or_without_a_byte_order_mark(
    tmp_path: Path, content: bytes, parts: list[str]
) -> None:
    (tmp_path / "broker.toml").write_bytes(content)
    refused = serve("--config", str(tmp_path / "broker.toml"))
    assert_refused(refused, 2, str(tmp_path / "broker.toml"), *parts)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "*:0", ":0", "192.0.2.1:0"])
def test_listening_beyond_loopback_is_refused_before_the_store_is_touched(tmp_path: Path, listen: str) -> None:
    store = tmp_path / "store"
    assert_refused(serve("--store", str(store), "--listen", listen), 2, "server.listen", "--insecure")
    assert not store.exists()


def test_insecure_listens_beyond_loopback(broker: Factory, connect: Connect) -> None:
    running = broker("--insecure", "--listen", "0.0.0.0:0")
    connection = connect(running)
    assert connection.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "orders"}).code == SUCCESS
    connection.produce("orders", b"x", queue=0).raise_for_error()
    record = decode_record(connection.pull("orders", wait_ms=5000).body[4:])
    host, port = decode_host(record.store_host)
    assert port == running.port
    assert host != "0.0.0.0"


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        store = tmp_path / "store"
        assert_refused(serve("--store", str(store), "--listen", listen), 2, "server.listen", listen)
        assert not store.exists()


def test_a_second_broker_on_a_store_is_refused(broker: Factory, connect: Connect) -> None:
    running = broker()
    connection = connect(running)
    assert_refused(serve("--store", str(running.store), "--listen", "127.0.0.1:0"), 1, str(running.store))
    assert connection.produce("orders", b"x").code == SUCCESS


def test_file_sizes_that_differ_from_the_settings_are_refused(broker: Factory, connect: Connect) -> None:
    running = broker()
    connect(running).produce("orders", b"x").raise_for_error()
    running.stop()
    options = ["--store", str(running.store), "--listen", "127.0.0.1:0"]
    assert_refused(serve(*options), 1, "store.commitlog_file_bytes", str(running.store))


def test_help_names_every_option() -> None:
    result = serve("--help")
    assert result.returncode == 0
    for option in ("--store", "--listen", "--flush", "--insecure", "--config", "--set"):
        assert option in result.stdout


# ---- start ----


def test_the_banner_shows_address_and_settings(broker: Factory) -> None:
    running = broker("--flush", "async")
    text = "\n".join(running.output)
    assert text.count("listening on ") == 1
    assert running.output[-1] == f"listening on 127.0.0.1:{running.port}"
    assert str(running.store) in text
    assert "async" in text
    assert str(running.process.pid) in text


def test_settings_come_from_everywhere(broker: Factory, connect: Connect, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[server]\nname = 'from the file'\n[topics]\ndefault_queues = 3\n")
    running = broker("--config", str(config), environment={"FLINTMQ_TOPICS__DEFAULT_QUEUES": "2"})
    connection = connect(running)
    connection.produce("orders", b"x").raise_for_error()
    info = connection.runtime_info()
    assert info["name"] == "from the file"
    (topic,) = [
        row for row in msgpack.unpackb(connection.call(commands.GET_ALL_TOPIC_CONFIG).body) if not row["system"]
    ]
    assert topic["write_queues"] == 2


def test_ipv6_works(broker: Factory, connect: Connect) -> None:
    running = broker("--listen", "[::1]:0")
    connection = connect(running)
    connection.produce("orders", b"six", queue=0).raise_for_error()
    record = decode_record(connection.pull("orders", wait_ms=5000).body[4:])
    assert record.body == b"six"
    assert decode_host(record.store_host) == ("::1", running.port)
    assert decode_host(record.born_host)[0] == "::1"


def test_the_advertised_address_is_in_the_records(broker: Factory, connect: Connect) -> None:
    connection = connect(broker(settings={"server.advertise": "192.0.2.7:4711"}))
    connection.produce("orders", b"x", queue=0).raise_for_error()
    record = decode_record(connection.pull("orders", wait_ms=5000).body[4:])
    assert decode_host(record.store_host) == ("192.0.2.7", 4711)


def test_logs_can_be_json(broker: Factory) -> None:
    running = broker(settings={"log.format": "json"})
    running.stop()
    entries = [json.loads(line) for line in running.log.splitlines()]
    assert "stopping" in [entry["message"] for entry in entries]
    assert all(entry["level"] == "info" for entry in entries)


# ---- the end ----

COMPILING = """
import ctypes, sys
from flintmq.broker import kernels
from flintmq.broker.app.daemon import main

libc = ctypes.CDLL(None)

def in_a_callback(modules):
    print("compiling", flush=True)
    ctypes.CFUNCTYPE(None)(lambda: sys.stdin.readline())()  # as llvmlite calls Python, and drops what it raises
    yield "never", 0.0

def in_compiled_code(modules):
    print("compiling", flush=True)
    libc.pause()  # no handler of Python runs before it returns
    libc.sleep(600)
    yield "never", 0.0

kernels.warm = globals()[sys.argv.pop(1)]
main(prog_name="flintmq-broker")
"""
"""A broker whose kernels are compiled where a signal finds it: ``in_a_callback`` or ``in_compiled_code``."""


@pytest.mark.parametrize("place", ["in_a_callback", "in_compiled_code"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_first_start_wherever_the_compiler_is(tmp_path: Path, place: str, number: int) -> None:
    command = [sys.executable, "-c", COMPILING, place, "serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "compiling\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_orderly(broker: Factory, connect: Connect, number: int) -> None:
    running = broker()
    connection, idle = connect(running), connect(running)
    silent = connect(running, hello=False)
    connection.produce("orders", b"x", queue=0).raise_for_error()
    assert connection.pull("orders", wait_ms=5000).code == SUCCESS
    assert (running.store / "abort").exists()
    connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 600_000})
    connection.send(commands.GET_ALL_TOPIC_CONFIG)
    assert connection.receive().code == SUCCESS
    assert running.stop(number) == 0
    assert connection.receive().code == PULL_NOT_FOUND
    assert connection.is_closed()
    assert idle.is_closed()
    assert silent.is_closed()
    assert not (running.store / "abort").exists()
    assert "Traceback" not in running.log


def test_requests_received_before_a_stop_get_responses(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "sync")
    connection = connect(running)
    body = msgpack.packb([b"x", {}])
    sent = [connection.send(PRODUCE, {"topic": "orders", "count": 1, "queue": 0}, body) for _ in range(200)]
    assert connection.receive().request_id == sent[0]
    assert running.stop() == 0
    answered = 1
    with contextlib.suppress(EOFError, ConnectionResetError):
        while connection.receive().code == SUCCESS:
            answered += 1
    again = connect(broker(store=running.store))
    stats = list(
        commands.QUEUE_STATS_STRUCT.iter_unpack(again.call(commands.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body)
    )
    assert stats[0][2] >= answered


def test_a_second_signal_does_not_wait_for_a_client_that_takes_nothing(broker: Factory, connect: Connect) -> None:
    running = broker(settings={"server.stop_timeout_ms": 60_000, "limits.slow_reader_timeout_ms": 600_000})
    connection = connect(running)
    for _ in range(10):
        connection.produce("orders", *[bytes(100_000)] * 10, queue=0).raise_for_error()
    connection.pull("orders", 0, 99, wait_ms=5000)
    for _ in range(40):
        connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 0, "max_bytes": 10_000_000})
    connection.sock.recv(1)
    running.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(1.0)
    assert running.stop() == 0
    assert not (running.store / "abort").exists()


def test_acknowledged_messages_survive_a_kill(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "sync")
    connection = connect(running)
    for number in range(50):
        connection.produce("orders", b"%d" % number, queue=0).raise_for_error()
    running.kill()
    assert (running.store / "abort").exists()
    again = broker(store=running.store)
    assert "unclean" in "\n".join(again.output)
    answer = connect(again).pull("orders", 0, 0, max_count=100)
    assert answer.fields["count"] == 50


FAILING_DISK = """
import errno, os, sys
from flintmq.broker.store import message_store
from flintmq.broker.store.files.file_system import Files

class FailingFiles(Files):
    def sync_data(self, fd):
        if os.path.exists(sys.argv[1]) and "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_data(fd)

message_store.Files = FailingFiles
from flintmq.broker.app.daemon import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_failed_flush_ends_the_broker_at_once(broker: Factory, connect: Connect, tmp_path: Path, flush: str) -> None:
    switch = tmp_path / "the disk fails"
    running = broker("--flush", flush, program=["-c", FAILING_DISK, str(switch)])
    connection, silent = connect(running), connect(running)
    connection.produce("orders", b"before", queue=0, flush="sync").raise_for_error()
    switch.touch()
    body = msgpack.packb([b"after", {}])
    connection.send(PRODUCE, {"topic": "orders", "count": 1, "queue": 0, "flush": "sync"}, body)
    with contextlib.suppress(EOFError, ConnectionResetError):
        assert connection.receive().code != SUCCESS, "nothing is acknowledged after a failed flush"
    assert running.wait() == 70
    assert silent.is_closed()
    assert (running.store / "abort").exists()
    assert "CRITICAL" in running.log
    again = connect(broker("--flush", flush, store=running.store))
    assert again.pull("orders", 0, 0).fields["count"] >= 1


def test_a_store_is_served_again_after_a_stop(broker: Factory, connect: Connect) -> None:
    running = broker()
    connect(running).produce("orders", b"1", queue=0).raise_for_error()
    assert running.stop() == 0
    again = broker(store=running.store)
    assert "after a clean stop" in "\n".join(again.output)
    connection = connect(again)
    assert connection.produce("orders", b"2", queue=0).fields["queue_offset"] == 1
    connection.pull("orders", 0, 1, wait_ms=5000)
    assert connection.pull("orders").fields["count"] == 2


def test_warm_compiles_every_kernel_and_says_so() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "flintmq.broker.app.daemon", "warm"], capture_output=True, text=True, timeout=110
    )
    assert result.returncode == 0, result.stderr
    assert "produce" in result.stdout
    assert "ready" in result.stdout
