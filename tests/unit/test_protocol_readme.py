"""``protocol/README.md`` matches the code: its tables are the code's tables, its examples the code's bytes."""

from __future__ import annotations

import dataclasses
import functools
import re
import struct
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.broker import filters as parser
from flintmq.protocol import commands, frames
from flintmq.protocol.auth.permissions import ANY
from flintmq.protocol.commands import (
    COMMANDS,
    HELLO,
    LAYOUT_COLUMNS,
    PHYSICAL_OFFSET_STRUCT,
    PRODUCE,
    PULL,
    RECORD_SIZE_STRUCT,
    RUNTIME_INFO,
    HelloAnswer,
    HelloRequest,
    ProduceAnswer,
    ProduceRequest,
    PullRequest,
    RecordsAnswer,
)
from flintmq.protocol.errors import ERRORS_BY_CODE, RESULT_NAMES, TopicNotExist
from flintmq.protocol.fields import I32_MAX, I64_MAX, Rule, encode_fields, fields_of
from flintmq.protocol.frames import REQUEST, RESPONSE, FrameParser, encode_frame
from flintmq.protocol.names import PRODUCE_FORBIDDEN_TOPICS, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from flintmq.protocol.rows import layout_of
from flintmq.protocol.storage import layout
from flintmq.protocol.storage.layout import RECORD, SysFlag
from flintmq.protocol.storage.record import (
    COMMON_ONLY_PROPERTIES,
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    Record,
    encode_host,
)

ROOT = Path(__file__).parents[2]
PATH = ROOT / "protocol" / "README.md"
README = PATH.read_text(encoding="utf-8")


# ---- tables ----


def _table(heads: str, rows: list[tuple[object, ...]]) -> str:
    names = heads.split(" | ")
    lines = [f"| {heads} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _number(value: int) -> str:
    known = {I64_MAX: "2^63 − 1", I32_MAX: "2^31 − 1", 2**48 - 1: "2^48 − 1"}
    return known.get(value) or f"{value:,}".replace("-", "−")


def _values(rule: Rule) -> str:
    if rule.type is bool:
        return "bool"
    if rule.type is int:
        return f"int, {_number(rule.low)} to {_number(rule.high)}"
    return f"str, {rule.low} to {_number(rule.high)} characters"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _number(value)
    return f"`{value}`" if value else "empty"


def _fields(cls: type[Any]) -> str:
    fields = fields_of(cls)
    rows: list[tuple[object, ...]] = [
        (f"`{name}`", _values(rule), _default(fields.defaults[name]) if name in fields.defaults else "–", rule.meaning)
        for name, rule in fields.rules.items()
    ]
    return _table("field | value | default | meaning", rows)


def _said(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").replace("``", "`").split())


def _command(command: commands.Command) -> str:
    parts = []
    for title, cls in (("Request", command.request), ("Answer", command.answer)):
        parts.append(f"{title}: {_said(cls)}")
        if fields_of(cls).rules:
            parts.append(_fields(cls))
    if isinstance(command, commands.RowsCommand):
        parts += _rows("Body: one msgpack array of {form}s", command.rows)
    elif isinstance(command, commands.RowCommand):
        parts += _rows("Body: one msgpack {form}", command.row)
    elif command is commands.GET_PREPARED:
        parts += _rows("`attempts`: {form}s", commands.AttemptInfo)
        parts += _rows("`copying`: {form}s", commands.CopyingInfo)
    return "\n\n".join(parts)


def _rows(what: str, cls: type[Any]) -> list[str]:
    """Return the description of a row class, and of the rows in its columns. ``what``: where it is, and {form}."""
    layout = layout_of(cls)
    annotations = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    what = what.format(form="array" if layout.is_array else "map")
    order = ", with its items in this order" if layout.is_array else ""
    said = " ".join((cls.__doc__ or "").split("\n\n- ")[0].replace("``", "`").split())
    table = _table(
        "column | type | meaning",
        [(f"`{name}`", _type(annotations[name]), each.meaning) for name, each in layout.columns.items()],
    )
    inner = [
        part
        for name, each in layout.columns.items()
        if each.of is not None
        for part in _rows(f"`{name}`: {{form}}s", each.of)
    ]
    return [f"{what} `{cls.__name__}`{order}. {said}", table, *inner]


def _type(annotation: str) -> str:
    """Return the type of a column on the wire."""
    if annotation == "SettingValue":
        return "int, str or bool"
    if re.match("Sequence|list|tuple", annotation):
        return "array of str" if "[str" in annotation else "array"
    return annotation


def _command_list() -> str:
    return _table(
        "code | command | one-way | what it is for",
        [
            (
                command.code,
                f"[{command.name}](#{command.name.lower()})",
                "yes" if command.one_way else "",
                command.purpose,
            )
            for _, command in sorted(COMMANDS.items())
        ],
    )


def _permissions() -> str:
    """Return the table of permissions that a request's fields require; handlers check those for body and log."""
    rows: list[tuple[object, ...]] = []
    for _, command in sorted(COMMANDS.items()):
        if command.from_broker:
            continue
        said = [
            f"{' or '.join(f'`{action}`' for action in need.actions)} on "
            f"{'some' if need.name == ANY else 'the'} {need.kind}"
            for need in command.rule({"topic": "t", "group": "g"})
        ]
        rows.append((f"{command.name}", ", ".join(said) or "–"))
    return _table("command | takes", rows)


def _results() -> str:
    rows: list[tuple[object, ...]] = [(code, f"`{name}`", "", NO_ERRORS[name]) for code, name in RESULT_NAMES.items()]
    rows += [
        (cls.code, f"`{cls.name}`", "yes" if cls.retriable else "no", _said(cls)) for cls in ERRORS_BY_CODE.values()
    ]
    return _table("code | result | retry helps | meaning", sorted(rows, key=lambda row: int(str(row[0]))))


NO_ERRORS = {
    "SUCCESS": "Done; the answer has the fields and the body of its command.",
    "PULL_NOT_FOUND": "PULL only: nothing at this offset yet. Its fields are those of SUCCESS, with count 0.",
    "PULL_RETRY_IMMEDIATELY": "PULL with tags or a filter only: none of the messages that were looked at is wanted; "
    "pull again from next_offset.",
}


def _record_layout() -> str:
    return _table(
        "at | bytes | field | meaning",
        [(RECORD.at[field.name], field.width, f"`{field.name}`", field.meaning) for field in RECORD.fields],
    )


def _header_limits() -> str:
    return _table(
        "what | at most",
        [
            ("`header_length`", f"{frames.HEADER_BYTES_MAX:,} bytes"),
            ("items of one array or map in the header", f"{frames.HEADER_ITEMS_MAX:,}"),
            ("depth of arrays and maps in the value of a field", frames.FIELD_DEPTH_MAX),
            ("`code`, `request_id`", _number(frames.REQUEST_ID_MAX)),
        ],
    )


def _format_limits() -> str:
    return _table(
        "what | at most",
        [
            ("topic name", f"{layout.TOPIC_BYTES_MAX} bytes"),
            ("group name", f"{layout.GROUP_BYTES_MAX} bytes"),
            ("queues of a topic", f"{commands.QUEUES_MAX:,}"),
            ("properties of a stored message, encoded", f"{layout.PROPERTIES_BYTES_MAX:,} bytes"),
            ("properties of a produced message, encoded", f"{layout.PRODUCED_PROPERTIES_BYTES_MAX:,} bytes"),
        ],
    )


def _filter_limits() -> str:
    return _table(
        "what | at most",
        [
            ("a filter", f"{commands.FILTER_CHARS_MAX:,} characters"),
            ("parentheses and NOTs within each other", parser.DEPTH_MAX),
            ("comparisons, IS, IN and the like", parser.TERMS_MAX),
            ("strings behind one IN", parser.LIST_ITEMS_MAX),
        ],
    )


BROKER_LIMITS = {
    "limits.frame_bytes_max": "`frame_length`, in either direction",
    "limits.produce_frame_bytes_max": "`frame_length` of a PRODUCE",
    "store.message_bytes_max": "stored record of a produced message, in bytes",
    "limits.connections_max": "connections",
    "limits.connections_per_address_max": "connections from one address, loopback not counted",
    "limits.connection_in_flight_bytes_max": "bytes of one connection's PRODUCE frames that wait for a flush",
    "limits.in_flight_bytes_max": "bytes of all connections that have arrived and are not done",
    "limits.held_pulls_max": "pulls that wait for messages",
    "limits.held_pulls_per_connection_max": "pulls of one connection that wait",
    "limits.groups_max": "consumer groups",
    "limits.subscription_bytes_max": "memory of the subscriptions of all live group members, in bytes",
    "limits.committed_offsets_max": "offsets that groups, and members of broadcasting ones, have committed",
    "limits.half_frame_timeout_ms": "time from a frame's first byte to its last, in ms",
    "limits.idle_timeout_ms": "time on which nothing happens on a connection, in ms",
    "limits.write_buffer_bytes_max": "answers that a client has not taken, in bytes",
    "limits.slow_reader_timeout_ms": "time in which a client takes nothing of them, in ms",
    "limits.sequence_runs_max": "runs of messages that are remembered; each producer in each topic counts as 4 more",
    "limits.sequence_expiry_ms": "time after its last message for which a producer is remembered, in ms",
}


def _broker_limits() -> str:
    settings = tomllib.loads((ROOT / "conf" / "broker.toml").read_text(encoding="utf-8"))
    rows: list[tuple[object, ...]] = []
    for name, meaning in BROKER_LIMITS.items():
        section, key = name.split(".")
        rows.append((meaning, f"{settings[section][key]:,}", f"`{name}`"))
    return _table("what | default | setting of the broker", rows)


def _names(names: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(f"`{name}`" for name in names), 118))


def _forbidden() -> str:
    return _names([*FORBIDDEN_PROPERTIES, f"{FORBIDDEN_PROPERTY_PREFIX}…"])


def _common_only() -> str:
    return _names(COMMON_ONLY_PROPERTIES)


def _produce_forbidden_topics() -> str:
    return _names([*sorted(PRODUCE_FORBIDDEN_TOPICS), f"{SYSTEM_TOPIC_PREFIX}…"])


def _other_system_topics() -> str:
    return _names(sorted(SYSTEM_TOPICS - PRODUCE_FORBIDDEN_TOPICS))


def _runtime_info() -> str:
    return _table("key | meaning", [(f"`{name}`", meaning) for name, meaning in RUNTIME_INFO.items()])


GENERATED: dict[str, Callable[[], str]] = {
    "header limits": _header_limits,
    "format limits": _format_limits,
    "filter limits": _filter_limits,
    "topics that only the broker writes": _produce_forbidden_topics,
    "other topics of the broker": _other_system_topics,
    "broker limits": _broker_limits,
    "commands": _command_list,
    "permissions": _permissions,
    "results": _results,
    "record": _record_layout,
    "forbidden properties": _forbidden,
    "properties of all messages or none": _common_only,
    "runtime info": _runtime_info,
    **{command.name: functools.partial(_command, command) for command in COMMANDS.values()},
}


def _block(name: str) -> str:
    found = re.findall(rf"<!-- generated: {re.escape(name)} -->\n\n(.*?)\n\n<!-- end -->", README, re.DOTALL)
    assert len(found) == 1, f"protocol/README.md must have the block {name!r} once"
    return str(found[0])


@pytest.mark.parametrize("name", GENERATED)
def test_a_table_equals_the_code(name: str) -> None:
    assert _block(name) == GENERATED[name](), "python -m tests.unit.test_protocol_readme writes the tables"


def write_tables() -> None:
    """Write the tables of ``protocol/README.md``; a new command gets its section after that of the command before."""
    text, previous = README, ""
    for name, make in GENERATED.items():
        begin, end = f"<!-- generated: {name} -->\n\n", "\n\n<!-- end -->"
        if begin not in text:
            following = text.index("\n##", text.index(previous))
            text = f"{text[:following]}\n### {name}\n\n{begin}{end}\n{text[following:]}"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{make()}{end}{rest.partition(end)[2]}"
        previous = begin
    PATH.write_text(text, encoding="utf-8")


def test_there_is_no_block_that_nothing_checks() -> None:
    assert sorted(re.findall(r"<!-- generated: (.*?) -->", README)) == sorted(GENERATED)
    assert sorted(re.findall(r"<!-- example: (.*?) -->", README)) == sorted(EXAMPLES)


def test_every_bit_of_sys_flag_is_explained() -> None:
    bits = re.findall(r"^\| (0x[0-9A-F]+) \| `(\w+)` \|", README, re.MULTILINE)
    described = {name: int(value, 16) for value, name in bits}
    assert described == {
        name: value for name, value in vars(SysFlag).items() if name.isupper() and name != "FROM_PRODUCER"
    }
    assert f"0x{SysFlag.FROM_PRODUCER:X}" in README


# ---- examples ----

BROKER_HOST = encode_host("127.0.0.1", 10911)
PREFIX = "7F00000104D2A1B2C3D4"
FIRST = 0x4C4B40_0000
MESSAGES: list[tuple[bytes, dict[str, str]]] = [(b"hello", {"TAGS": "eu", "KEYS": "o-1"}), (b"again", {})]
STORED = Record(
    topic=b"orders",
    body=b"hello",
    properties=f"TAGS\x01eu\x02KEYS\x01o-1\x02UNIQ_KEY\x01{PREFIX}{FIRST:012X}\x02".encode(),
    queue_id=2,
    queue_offset=7,
    physical_offset=4096,
    born_timestamp=1_795_275_200_000,
    born_host=encode_host("127.0.0.1", 50_000),
    store_timestamp=1_795_275_200_001,
    store_host=BROKER_HOST,
)
HELLO_ANSWER = HelloAnswer(
    protocol=1,
    broker="flintmq",
    version="0.1.0",
    flush="sync",
    frame_bytes_max=16 * 1024 * 1024,
    produce_frame_bytes_max=1024 * 1024,
    message_bytes_max=512 * 1024,
)


def _request(command: commands.Command, request_id: int, fields: Any, body: bytes = b"") -> bytes:
    return encode_frame(REQUEST, command.code, request_id, encode_fields(fields), body)


def _answer(request_id: int, fields: Any, body: bytes = b"") -> bytes:
    return encode_frame(RESPONSE, 0, request_id, encode_fields(fields), body)


def _example_offsets() -> bytes:
    size = len(STORED.encode())
    return PHYSICAL_OFFSET_STRUCT.pack(4096) + PHYSICAL_OFFSET_STRUCT.pack(4096 + size)


def _example_missing_topic() -> bytes:
    error = TopicNotExist("topic nowhere does not exist")
    return encode_frame(RESPONSE, error.code, 4, error.fields())


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "hello request": lambda: _request(HELLO, 1, HelloRequest(protocol=1, client="example")),
    "hello answer": lambda: _answer(1, HELLO_ANSWER),
    "produce rows": lambda: _request(
        PRODUCE,
        2,
        ProduceRequest(topic="orders", count=2, queue=2, unique_prefix=PREFIX, unique_first=FIRST),
        b"".join(msgpack.packb(message) for message in MESSAGES),
    ),
    "produce columns": lambda: _request(
        PRODUCE,
        2,
        ProduceRequest(topic="orders", count=2, queue=2, layout=LAYOUT_COLUMNS, common="TAGS\x01eu\x02"),
        msgpack.packb([body for body, _ in MESSAGES]) + msgpack.packb(["o-1", None]),
    ),
    "produce answer": lambda: _answer(2, ProduceAnswer(2, 7, 1_795_275_200_001), _example_offsets()),
    "pull request": lambda: _request(PULL, 3, PullRequest("orders", 2, 7, wait_ms=5000, tags="eu || us")),
    "pull answer": lambda: _answer(
        3, RecordsAnswer(1, 8, 0, 9), RECORD_SIZE_STRUCT.pack(len(STORED.encode())) + STORED.encode()
    ),
    "error answer": _example_missing_topic,
}


def _printed(name: str) -> bytes:
    (found,) = re.findall(rf"<!-- example: {re.escape(name)} -->\n\n```text\n(.*?)\n```", README, re.DOTALL)
    return bytes.fromhex("".join(re.split(r"\s{2,}", line)[0] for line in str(found).splitlines()))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_equals_the_bytes_that_the_code_sends(name: str) -> None:
    assert _printed(name) == EXAMPLES[name]()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_code_reads_an_example(name: str) -> None:
    data = _printed(name)
    parser = FrameParser()
    parser.writable()[: len(data)] = data
    parser.received(len(data))
    frame = parser.next_frame()
    assert frame is not None
    assert parser.pending_bytes == 0
    # The same computation, following only the text of the specification.
    frame_length, header_length = struct.unpack_from(">II", data)
    assert len(data) == 4 + frame_length
    header = msgpack.unpackb(data[8 : 8 + header_length])
    assert header == [frame.kind, frame.code, frame.request_id, frame.fields]
    assert data[8 + header_length :] == frame.body


def test_the_example_ids_are_those_of_the_example_record() -> None:
    assert f"`{PREFIX}{FIRST:012X}`" in README
    assert f"`{(BROKER_HOST + struct.pack('>q', STORED.physical_offset)).hex().upper()}`" in README


if __name__ == "__main__":
    write_tables()
