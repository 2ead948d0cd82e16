"""Rows on the wire: what a broker encodes, a client of another release decodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.auth.permissions import PUBLISH, TOPIC, Grant
from flintmq.protocol.commands import AccessKeyInfo, QuarantineEntry, TopicInfo, UserInfo
from flintmq.protocol.rows import (
    LAYOUTS,
    ValueKind,
    column,
    decode_row,
    decode_rows,
    displays_of,
    layout_of,
    pack_rows,
    row,
    shown,
)

ROWS = [cls for cls in LAYOUTS if cls.__module__.startswith("flintmq.protocol.")]
VALUES: dict[str, Any] = {"str": "a", "int": 7, "bool": True, "SettingValue": 3, "Sequence[str]": ["a"]}


def _example(cls: type[Any]) -> Any:
    """Return a row with a value in each column."""
    values = []
    for field in dataclasses.fields(cls):
        inner = layout_of(cls).columns[field.name].of
        value = VALUES.get(str(field.type), ("a",) if "tuple" in str(field.type) else [])
        if cls is commands.GroupMember and field.name == "subscriptions":
            value = [["t", "", ""]]
        if "Grant" in str(field.type):
            value = ()
        values.append([_example(inner)] if inner is not None else value)
    return cls(*values)


@pytest.mark.parametrize("cls", ROWS)
def test_a_row_survives_the_wire(cls: type[Any]) -> None:
    example = _example(cls)
    assert decode_rows(cls, msgpack.unpackb(pack_rows([example]))) == [example]


def test_maps_and_arrays_have_the_forms_that_the_specification_states() -> None:
    assert msgpack.unpackb(pack_rows(AccessKeyInfo("k", 5))) == {"key": "k", "created_ms": 5}
    assert msgpack.unpackb(pack_rows(commands.ChangedSetting("a.b", 1, 2))) == ["a.b", 1, 2]
    user = UserInfo("u", [Grant(frozenset((PUBLISH,)), TOPIC, "t")], [AccessKeyInfo("k", 5)])
    assert msgpack.unpackb(pack_rows(user)) == {
        "user": "u",
        "grants": [{"actions": ["publish"], "topic": "t"}],
        "access_keys": [{"key": "k", "created_ms": 5}],
    }
    assert decode_row(UserInfo, msgpack.unpackb(pack_rows(user))).grants == tuple(user.grants)


def test_what_a_newer_broker_adds_is_ignored() -> None:
    example = _example(QuarantineEntry)
    assert decode_row(QuarantineEntry, [*msgpack.unpackb(pack_rows(example)), "later", 1]) == example
    topic = {"topic": "t", "read_queues": 4, "write_queues": 2, "colour": "green"}
    assert decode_row(TopicInfo, topic) == TopicInfo("t", 4, 2)


def test_what_an_older_broker_does_not_send_takes_its_default() -> None:
    assert decode_row(commands.ConsumeStats, ["g", "t", 0, 1, 0, 9]).known


@pytest.mark.parametrize("value", [None, 3, "t", [], {}, {"topic": "t"}, [["t", 4, 4]], [{"topic": "t"}]])
def test_another_value_than_a_row_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        decode_row(TopicInfo, value)
    if type(value) is not list or value:
        with pytest.raises(TypeError):
            decode_rows(TopicInfo, value)


def test_only_rows_can_be_packed() -> None:
    with pytest.raises(TypeError, match="object is no row"):
        pack_rows([object()])


def test_columns_and_properties_say_how_tables_show_them() -> None:
    @row
    class Example:
        """An example."""

        size: int = column("its size", "size", ValueKind.BYTES, spare=True)
        hidden: int = column("not for people")

        @property
        @shown("twice", ValueKind.COUNT)
        def twice(self) -> int:
            return 2 * self.size

    displays = displays_of(Example, ("twice", "size"))
    assert [(name, each.heading, each.kind, each.spare) for name, each in displays.items()] == [
        ("twice", "twice", ValueKind.COUNT, False),
        ("size", "size", ValueKind.BYTES, True),
    ]
    with pytest.raises(AssertionError, match="hidden has no heading"):
        displays_of(Example, ("hidden",))
    assert "- ``size``: its size" in (Example.__doc__ or "")
