"""A broker that tries to control the terminal: whatever it sends, the command line prints only text."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import COMMANDS, RUNTIME_INFO, Command, GroupInfo, Setting, TopicInfo
from flintmq.protocol.commands.common import RowCommand, RowsCommand
from flintmq.protocol.frames import RESPONSE, Frame, FrameParser, encode_frame
from flintmq.protocol.rows import layout_of
from flintmq.protocol.storage.record import Record, encode_host, encode_properties
from tests.cli_tools import Cli, Done
from tests.conftest import RunningBroker

EVIL = "e\x1b]0;owned\x07\x1b[2J\r\x08\x9b31m\u202evil\u2028\x00"
"""Sets a terminal's title, clears it, goes back on the line, colours, and turns text round."""
HOST = encode_host("127.0.0.1", 1)
DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

Answerer = Callable[[Command, dict[str, Any]], tuple[int, dict[str, Any], bytes]]


class HostileBroker:
    """A server of frames; ``answer`` makes code, fields and body of every response except that to HELLO."""

    def __init__(self, answer: Answerer) -> None:
        self.answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60.0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        parser = FrameParser()
        with sock, contextlib.suppress(OSError):
            while True:
                while (frame := parser.next_frame()) is None:
                    if not (count := sock.recv_into(parser.writable())):
                        return
                    parser.received(count)
                sock.sendall(self._frame(frame))

    def _frame(self, frame: Frame) -> bytes:
        code, fields, body = self.answer(COMMANDS[frame.code], frame.fields)
        if frame.code == commands.HELLO.code:
            code, body = 0, b""
            fields = {
                "protocol": 1,
                "broker": EVIL,
                "version": EVIL,
                "flush": "sync\x1b[m",
                "frame_bytes_max": 2**24,
                "produce_frame_bytes_max": 2**20,
                "message_bytes_max": 2**19,
            }
        return encode_frame(RESPONSE, code, frame.request_id, fields, body)


@pytest.fixture
def hostile() -> Iterator[HostileBroker]:
    broker = HostileBroker(content)
    yield broker
    broker.close()


LINES: list[list[str]] = [
    ["topic", "list"],
    ["topic", "list", "-m", "--system"],
    ["topic", "status", "t"],
    ["topic", "create", "t"],
    ["topic", "update", "t", "--queues", "9"],
    ["topic", "delete", "t", "-y"],
    ["group", "list"],
    ["group", "status", "g"],
    ["group", "reset", "g", "t", "--to", "earliest"],
    ["group", "delete", "g", "-y"],
    ["group", "moved"],
    ["offset", "show", "g"],
    ["dlq", "list"],
    ["dlq", "show", "g"],
    ["tx", "list"],
    ["tx", "list", "--parked"],
    ["delay", "list"],
    ["connections"],
    ["quarantine"],
    ["status"],
    ["check"],
    ["config", "list"],
    ["config", "get", "log.level"],
    ["config", "set", "log.level=info"],
    ["pull", "t"],
    ["query", "key", "t", "k"],
    ["query", "id", "A" * 32],
    ["send", "t", "x"],
    ["query", "time", "t", "@-1h"],
    ["whoami"],
    ["user", "list"],
    ["tx", "prepared"],
    ["replica", "status"],
    ["topic", "show", "t", "--seconds", "0.1"],
]


def check_harmless(line: list[str], done: Done) -> None:
    for stream in (done.out, done.err):
        assert not (found := DRIVES.search(stream)), (line, found, stream)


def run_all(broker: HostileBroker, folder: Path, mode: str) -> list[str]:
    """Run every command and return all that was printed."""
    printed = []
    with Cli(folder, broker.address) as cli:
        for line in LINES:
            done = cli.run("-o", mode, "--timeout", "1", *line)
            check_harmless(line, done)
            printed.append(done.out + done.err)
    return printed


VALUES: dict[str, Any] = {
    "int": 1,
    "bool": False,
    "str": EVIL,
    "SettingValue": EVIL,
    "Sequence[str]": [EVIL],
    "tuple[str, ...]": [EVIL],
    "Sequence[Sequence[str]]": [[EVIL] * 3],
    "Sequence[Grant]": [],
}
"""The value of a hostile row, by the annotation of its column."""


def hostile_row(cls: type[Any], asked: list[str]) -> Any:
    """Return a row for the wire with hostile text in every place for text. ``asked``: names that a command asks for,
    which have to be there."""
    layout = layout_of(cls)
    kinds = {each.name: str(each.type) for each in dataclasses.fields(cls)}
    values = {
        name: VALUES[kinds[name]] if column.of is None else [hostile_row(column.of, [])]
        for name, column in layout.columns.items()
    }
    if asked:
        values[layout.names[0]] = asked[0]
    return list(values.values()) if layout.is_array else values


ASKED = {TopicInfo: ["t", "%DLQ%g"], GroupInfo: ["g"], Setting: ["log.level"]}
"""Names that the commands ask for, by row class."""


def record() -> bytes:
    properties = {"TAGS": EVIL.replace("\x01", "").replace("\x02", ""), "KEYS": "k\x1b[2J", "a\x1b": "b\x9b"}
    return Record(
        topic=b"t",
        body=EVIL.encode(),
        properties=encode_properties(properties),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp=1,
        born_timestamp=1,
        store_host=HOST,
        born_host=HOST,
    ).encode()


def content(command: Command, fields: dict[str, Any]) -> tuple[int, dict[str, Any], bytes]:
    """Return well-formed responses, with hostile text in every place for text."""
    if isinstance(command, RowsCommand):
        rows = [hostile_row(command.rows, [name] if name else []) for name in ("", *ASKED.get(command.rows, []))]
        return 0, {"count": len(rows), "open": 1, "parked": 1}, msgpack.packb(rows)
    if isinstance(command, RowCommand):
        return 0, {"group": EVIL}, msgpack.packb(hostile_row(command.row, []))
    if command is commands.GET_TOPIC_STATS_INFO:
        return 0, {"count": 1}, struct.pack(">iqqq", 0, 0, 1, 1_000)
    if command is commands.GET_BROKER_RUNTIME_INFO:
        info: dict[str, Any] = dict.fromkeys(RUNTIME_INFO, 1)
        names = "name version store_path flush write_refusal metrics_address expiry_next_file expiry_next_reason"
        texts = dict.fromkeys(names.split(), EVIL)
        return 0, {}, msgpack.packb({**info, **texts, f"errors_{EVIL}": 3, EVIL: EVIL})
    if command in (commands.PULL, commands.QUERY_BY_KEY, commands.VIEW_MESSAGE_BY_ID):
        blob = record()
        body = len(blob).to_bytes(4, "big") + blob
        return 0, {"count": 1, "next_offset": 1, "min_offset": 0, "max_offset": 1, "cursor": ""}, body
    if command in (commands.GET_MAX_OFFSET, commands.SEARCH_OFFSET_BY_TIMESTAMP):
        return 0, {"offset": 1}, b""
    if command is commands.GET_MIN_OFFSET:
        return 0, {"offset": 0}, b""
    return 17, {"message": EVIL, EVIL: EVIL}, b""


@pytest.mark.parametrize("mode", ["table", "json", "plain"])
def test_what_a_hostile_broker_says_is_printed_as_text(hostile: HostileBroker, tmp_path: Path, mode: str) -> None:
    printed = run_all(hostile, tmp_path, mode)
    assert sum("\\u001b" in text or "\\x1b" in text for text in printed) > len(LINES) * 2 // 3


def test_errors_of_a_hostile_broker_are_printed_as_text(hostile: HostileBroker, tmp_path: Path) -> None:
    hostile.answer = lambda command, fields: (17, {"message": EVIL, EVIL: EVIL, "queues": 3}, b"")
    printed = run_all(hostile, tmp_path, "table")
    assert sum("e\\x1b]0;owned\\x07" in text for text in printed) > len(LINES) * 3 // 4


def test_answers_that_cannot_be_read_are_errors_in_text(hostile: HostileBroker, tmp_path: Path) -> None:
    body = msgpack.packb([{EVIL: EVIL}])
    hostile.answer = lambda command, fields: (0, {"count": 1, EVIL: EVIL, "group": EVIL}, body)
    assert all(text.strip() for text in run_all(hostile, tmp_path, "table"))


TYPED = EVIL.replace("\x00", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "key", "t", TYPED],
        ["tx", "commit", TYPED],
        ["topic", TYPED],
        ["topic", "list", f"--{TYPED}"],
        ["pull", "t", "--filter", TYPED],
    ],
)
def test_what_a_script_passes_on_is_text(shared_broker: RunningBroker, tmp_path: Path, arguments: list[str]) -> None:
    with Cli(tmp_path, shared_broker.address) as cli:
        cli.run("topic", "create", "t", "--queues", "1")
        done = cli.run(*arguments)
    check_harmless(arguments, done)
    assert "\\x1b" in done.err
