"""Tables that documents have between marks and that the code makes: ``python -m tests.generated_tables`` writes them.

A mark is ``<!-- generated: NAME -->``, and ``<!-- end -->`` ends the block.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flintmq.broker import filters as parser
from flintmq.broker.metrics.catalog import METRICS
from flintmq.broker.remoting.registry import ROWS, UNSUPPORTED
from flintmq.client.arrow.decoder import COLUMNS, HEADERS, PROPERTIES
from flintmq.client.spark.columns import DDL
from flintmq.client.spark.options import READ_OPTIONS
from flintmq.client.spark.sink_options import WRITE_COLUMNS, WRITE_OPTIONS
from flintmq.protocol import commands, frames
from flintmq.protocol.auth.permissions import ANY
from flintmq.protocol.commands import COMMANDS, RUNTIME_INFO
from flintmq.protocol.errors import ERRORS_BY_CODE, RESULT_NAMES
from flintmq.protocol.fields import I32_MAX, I64_MAX, Rule, fields_of
from flintmq.protocol.names import PRODUCE_FORBIDDEN_TOPICS, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from flintmq.protocol.remoting import codes
from flintmq.protocol.rows import layout_of
from flintmq.protocol.storage import layout
from flintmq.protocol.storage.layout import RECORD
from flintmq.protocol.storage.record import COMMON_ONLY_PROPERTIES, FORBIDDEN_PROPERTIES, FORBIDDEN_PROPERTY_PREFIX

ROOT = Path(__file__).parents[1]


# ---- protocol/README.md ----


def _table(heads: str, rows: Iterable[Sequence[object]]) -> str:
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
    rows = [
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
    rows = []
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
    rows = [(code, f"`{name}`", "", NO_ERRORS[name]) for code, name in RESULT_NAMES.items()]
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
    "limits.idle_timeout_ms": "time on which nothing happens on a connection, in ms",
    "limits.slow_reader_timeout_ms": "time in which a client takes nothing of its answers, in ms",
    "limits.sequence_runs_max": "runs of messages that are remembered; each producer in each topic counts as 4 more",
    "limits.sequence_expiry_ms": "time after its last message for which a producer is remembered, in ms",
}


def _broker_limits() -> str:
    settings = tomllib.loads((ROOT / "conf" / "broker.toml").read_text(encoding="utf-8"))
    rows = []
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


PROTOCOL: dict[str, Callable[[], str]] = {
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


# ---- the other documents ----


def _layout(name: str) -> str:
    shown: layout.Layout[Any] = getattr(layout, name)
    rows = [(shown.at[field.name], field.name, field.width, field.meaning) for field in shown.fields]
    return _table("at | field | bytes | meaning", rows)


def _metrics() -> str:
    rows = [(f"`{metric.name}`", metric.kind, ", ".join(metric.labels) or "–", metric.meaning) for metric in METRICS]
    return _table("metric | kind | labels | meaning", rows)


_RESULTS = Path(codes.__file__).read_text(encoding="utf-8").partition("# ---- requests of clients ----")[2]
REQUEST_NAMES = {int(code): name for name, code in re.findall(r"^([A-Z_0-9]+) = (\d+)$", _RESULTS, re.M)}
"""Names of RocketMQ's requests by code: the results before them have the same numbers."""


def _requests_of_rocketmq() -> str:
    served = {code: (REQUEST_NAMES[code], "served") for code, _, _ in ROWS}
    refused = {code: (name, f"refused: {why}") for code, (name, why) in UNSUPPORTED.items()}
    rows = [(code, name, state) for code, (name, state) in sorted({**refused, **served}.items())]
    return _table("code | request | state", rows)


def _spark_columns() -> str:
    rows = [(f"`{each.name}`", DDL[each.name], each.meaning) for each in COLUMNS]
    rows.append((f"`{PROPERTIES.name}`", DDL[PROPERTIES.name], f"{PROPERTIES.meaning}; with `includeProperties`"))
    rows.append((f"`{HEADERS.name}`", DDL[HEADERS.name], f"{HEADERS.meaning}; with `includeHeaders`"))
    return _table("column | type | holds", rows)


def _spark_options(options: Iterable[Any]) -> str:
    return _table("option | meaning", [(f"`{each.name}`", each.meaning) for each in options])


def _spark_write_columns() -> str:
    rows = [(f"`{each.name}`", " or ".join(each.types), each.meaning) for each in WRITE_COLUMNS]
    return _table("column | type | meaning", rows)


DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "protocol/README.md": PROTOCOL,
    "broker/store/README.md": {
        name: functools.partial(_layout, name)
        for name in ("RECORD", "UNIT", "INDEX_HEADER", "INDEX_ENTRY", "CHECKPOINT", "CHECKPOINT_MARK")
    },
    "broker/net/README.md": {"metrics": _metrics},
    "docs/rocketmq.md": {"requests": _requests_of_rocketmq},
    "client/spark/README.md": {
        "columns": _spark_columns,
        "read options": functools.partial(_spark_options, READ_OPTIONS),
        "write columns": _spark_write_columns,
        "write options": functools.partial(_spark_options, WRITE_OPTIONS),
    },
}


def with_tables(document: str) -> str:
    """Return the text of a document with the tables of the code; a new command of the protocol gets its section after
    that of the command before."""
    text, previous = (ROOT / document).read_text(encoding="utf-8"), ""
    for name, make in DOCUMENTS[document].items():
        begin, end = f"<!-- generated: {name} -->\n\n", "\n\n<!-- end -->"
        if begin not in text:
            following = text.index("\n##", text.index(previous))
            text = f"{text[:following]}\n### {name}\n\n{begin}{end}\n{text[following:]}"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{make()}{end}{rest.partition(end)[2]}"
        previous = begin
    return text


if __name__ == "__main__":
    for document in DOCUMENTS:
        (ROOT / document).write_text(with_tables(document), encoding="utf-8")
