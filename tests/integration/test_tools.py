"""The offline tools as commands: beside a real broker, in a pipe, interrupted, and with invalid arguments."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.protocol.standard_output import EXIT_CLOSED_PIPE, EXIT_OUTPUT
from flintmq.protocol.storage.layout import RECORD_HEAD_BYTES
from flintmq.testing.started_broker import broker_environment
from tests.conftest import BrokerFactory, ConnectionFactory
from tests.store_tools import open_store, overwrite, plain, put
from tests.tools_runs import TIMEOUT_S, command, everything, tool


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    opened = open_store(path)
    put(opened, "orders", 0, plain(300))
    opened.close()
    return path


def test_tools_read_flushed_data_beside_a_running_broker_and_refuse_the_rest(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    with_connection = connect(running)
    with_connection.produce("orders", b"one", b"two", queue=0).raise_for_error()  # acknowledged: on disk
    for name in ("verify", "dump", "stat", "rebuild"):
        refused = tool(name, running.store)
        assert refused.code == 2
        assert "is open in" in refused.errors
    shown = tool("dump", running.store, "--running")
    assert shown.code == 0, shown.errors
    assert [json.loads(line)["body"] for line in shown.output] == ["one", "two"]
    rows = [json.loads(line) for line in tool("stat", running.store, "--running", "-o", "json").output]
    assert sum(row["messages"] for row in rows if row["kind"] == "queue") == 2
    with_connection.produce("orders", b"three").raise_for_error()
    assert running.stop() == 0
    ended = tool("verify", running.store)
    assert ended.code == 0, ended.output
    assert "3 records" in ended.output[1]


def test_verify_prints_its_findings_and_exits_with_1(store: Path) -> None:
    overwrite(store / "commitlog" / f"{0:020d}", RECORD_HEAD_BYTES, b"!")
    before = everything(store)
    text, rows = tool("verify", store), tool("verify", store, "-o", "json")
    assert everything(store) == before
    assert (text.code, rows.code) == (1, 1)
    assert any("byte 0, physical offset 0: message 0 of orders, queue 0" in line for line in text.output)
    assert any("what helps" in line for line in text.output)
    finding, summary = map(json.loads, rows.output)
    assert (finding["kind"], finding["position"], finding["physical_offset"]) == ("body-crc", 0, 0)
    assert summary["kind"] == "summary"
    assert summary["findings"] == {"body-crc": 1}


def test_rebuild_prints_the_rebuilt_files(store: Path) -> None:
    ended = tool("rebuild", store)
    assert ended.code == 0, ended.errors
    assert "300 records" in ended.output[0]
    assert tool("verify", store).code == 0


def test_dump_ends_silently_when_its_reader_closes_the_pipe(store: Path) -> None:
    with subprocess.Popen(
        command("dump", store), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=broker_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT_S) in (0, 141)


@pytest.fixture
def blocked_dump(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A dump that waits for a reader of its output, because it has more to print than a pipe holds."""
    path = tmp_path / "large"
    opened = open_store(path)
    put(opened, "orders", 0, plain(100, size=30_000))
    opened.close()
    with subprocess.Popen(
        command("dump", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=broker_environment()
    ) as process:
        yield process


def test_ctrl_c_ends_a_tool_with_130(blocked_dump: subprocess.Popen[str]) -> None:
    assert blocked_dump.stdout is not None
    blocked_dump.stdout.readline()  # it has printed a part
    os.kill(blocked_dump.pid, signal.SIGINT)
    _, errors = blocked_dump.communicate(timeout=TIMEOUT_S)
    assert blocked_dump.returncode == 130
    assert errors == "flintmq-broker: interrupted\n"


@pytest.mark.parametrize("arguments", [["serve", "\x1b[31mred"], ["\x1b[31mred"], ["warm", "--\x1b[31mred"]])
def test_a_mistyped_command_is_shown_without_its_control_characters(arguments: list[str]) -> None:
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 2
    assert "\\x1b[31mred" in ended.stderr
    assert "\x1b" not in ended.stderr


OUTPUTS = [
    "--help",
    "example settings",
    "dump {store}",
    "verify {store}",
    "serve --store {store}-served --listen 127.0.0.1:0 --set store.commitlog_file_bytes=4194304",
]


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_output_that_cannot_be_written_is_said_in_a_line(store: Path, arguments: str) -> None:
    line = command(*arguments.format(store=store).split())
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    said = [line for line in ended.stderr.splitlines() if line.startswith(("flintmq-broker", "Traceback", "Exception"))]
    assert said == [f"flintmq-broker: cannot write the output: {os.strerror(errno.ENOSPC)}"]
    assert ended.returncode == EXIT_OUTPUT
    assert not store.with_name("store-served").joinpath("abort").exists(), "the broker has closed its store"


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_a_reader_that_is_gone_ends_a_command_in_silence(store: Path, arguments: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    line = command(*arguments.format(store=store).split())
    ended = subprocess.run(line, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    os.close(writes)
    assert "Traceback" not in ended.stderr
    assert "flintmq-broker:" not in ended.stderr
    assert ended.returncode == EXIT_CLOSED_PIPE


def test_nonsense_is_refused_with_2(store: Path, tmp_path: Path) -> None:
    for arguments, expected in (
        (("verify", tmp_path / "nowhere"), "is not a store"),
        (("dump", store, "--since", "yesterday"), "is not a time"),
        (("dump", store, "--limit", "0"), "--limit"),
        (("verify", store, "--index-slots", "7"), "does not fit"),
    ):
        ended = tool(*arguments)
        assert ended.code == 2, ended
        assert expected in ended.errors
        assert "Traceback" not in ended.errors


def test_help_needs_no_kernels() -> None:
    script = (
        "import sys; from flintmq.broker.app.daemon import main; main(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('numba', 'numpy', 'rich', 'pydantic')))"
    )
    done = subprocess.run([*command()[:1], "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0
    for name in ("verify", "rebuild", "dump", "stat", "serve"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("arguments", [("init", "a=127.0.0.1:1"), ("force", "--yes")])
def test_a_registry_that_gives_no_answer_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    settings = ("replication.set=s", "replication.member=a", "replication.etcd=http://127.0.0.1:1")
    given = [option for each in (*settings, f"store.path={tmp_path / 'store'}") for option in ("--set", each)]
    ended = tool("replica", *arguments, *given)
    assert ended.code == 2
    (said,) = ended.errors.splitlines()
    assert "replication.etcd, gives no answer: http://127.0.0.1:1 cannot be reached" in said
