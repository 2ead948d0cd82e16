"""Output of the command line: escapes, figures, formats, rows."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client import StoredMessage
from flintmq.client.cli.messages import DIRECTIVES, Format, MessagePrinter, message_row
from flintmq.client.cli.output import Output, TableColumn, number
from flintmq.client.operator.display import plural, show_count, show_moment, show_rate, show_seconds
from flintmq.protocol.display import PLAIN, TABLE, escape, escape_bytes, escape_json, iso, show_bytes
from flintmq.protocol.storage.record import Record, encode_host, encode_properties


def _stored(body: bytes = b"hello", **properties: str) -> StoredMessage:
    record = Record(
        topic=b"orders",
        body=body,
        properties=encode_properties(properties),
        queue_id=2,
        queue_offset=7,
        physical_offset=4096,
        born_timestamp=1_795_275_200_000,
        born_host=encode_host("127.0.0.1", 50_000),
        store_timestamp=1_795_275_200_123,
        store_host=encode_host("127.0.0.1", 10911),
    ).encode()
    return StoredMessage(len(record), 0, record, "orders")


class TestEscaping:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain text, ünïcode 漢字 🙂", "plain text, ünïcode 漢字 🙂"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\x1b[2J\x07", "\\x1b[2J\\x07"),
            ("\x9b31m\x7f", "\\x9b31m\\x7f"),
            ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
            ('{"a": "\\n"}', '{"a": "\\n"}'),
            ("\ud800", "\\ud800"),
        ],
    )
    def test_control_characters_are_spelled_out(self, text: str, shown: str) -> None:
        assert escape(text) == shown

    def test_bytes_that_are_not_text_are_spelled_out(self) -> None:
        assert escape_bytes(b"caf\xc3\xa9 \xff\x00") == "café \\xff\\x00"

    @given(st.text())
    def test_escaped_text_is_one_line_that_cannot_control_a_terminal(self, text: str) -> None:
        shown = escape(text)
        assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)
        assert len(shown.splitlines()) <= 1
        shown.encode()

    @given(st.text())
    def test_json_without_control_characters_means_the_same(self, text: str) -> None:
        line = escape_json(json.dumps({"body": text}, ensure_ascii=False))
        assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in line)
        assert json.loads(line) == {"body": text}


class TestUnits:
    @pytest.mark.parametrize(
        ("count", "shown"),
        [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (12_345, "12.3 kB"),
            (999_600, "1.00 MB"),
            (1.5e12, "1.50 TB"),
            (None, "–"),
        ],
    )
    def test_byte_counts_are_shown_with_units(self, count: float | None, shown: str) -> None:
        assert show_bytes(count) == shown

    @pytest.mark.parametrize(
        ("rate", "shown"),
        [
            (0, "0/s"),
            (0.25, "0.2/s"),
            (12.34, "12.3/s"),
            (1234, "1,234/s"),
            (12_345, "12.3 k/s"),
            (1_234_567, "1.23 M/s"),
            (None, "–"),
        ],
    )
    def test_rates_are_shown_with_units(self, rate: float | None, shown: str) -> None:
        assert show_rate(rate) == shown

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [
            (0, "0 µs"),
            (0.000_12, "120 µs"),
            (0.012_34, "12.3 ms"),
            (1.234, "1.23 s"),
            (59.94, "59.9 s"),
            (59.96, "1 min"),
            (200, "3 min 20 s"),
            (7500, "2 h 5 min"),
            (529_200, "6 d 3 h"),
            (-1, "–"),
            (None, "–"),
        ],
    )
    def test_durations_are_shown_with_units(self, seconds: float | None, shown: str) -> None:
        assert show_seconds(seconds) == shown

    def test_counts_are_shown_with_the_right_plural(self) -> None:
        assert show_count(1_234_567) == "1,234,567"
        assert [plural(1, "message"), plural(2000, "message"), plural(2, "query", "queries")] == [
            "1 message",
            "2,000 messages",
            "2 queries",
        ]

    def test_times_are_in_utc_for_machines_and_local_for_people(self) -> None:
        moment = datetime(2026, 11, 21, 11, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=1)))
        assert iso(moment) == "2026-11-21T10:00:00.123Z"
        assert iso(moment.astimezone(UTC)) == "2026-11-21T10:00:00.123Z"
        assert show_moment(moment) == moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.123")
        assert iso(None) == ""


class TestFormat:
    def test_every_directive_prints_its_part(self) -> None:
        message = _stored(KEYS="o-1 o-2", TAGS="eu", UNIQ_KEY="7F00", __SHARDINGKEY="c", source="web")
        text = "|".join(f"%{letter}" for letter in DIRECTIVES)
        assert dict(zip(DIRECTIVES, Format(text).render(message).decode().split("|"), strict=True)) == {
            "T": "orders",
            "q": "2",
            "o": "7",
            "O": "4096",
            "i": "7F00",
            "k": "o-1 o-2",
            "t": "eu",
            "h": "c",
            "v": "hello",
            "z": "5",
            "p": '{"source": "web"}',
            "P": '{"KEYS": "o-1 o-2", "TAGS": "eu", "UNIQ_KEY": "7F00", "__SHARDINGKEY": "c", "source": "web"}',
            "s": "2026-11-21T15:33:20.123Z",
            "S": "1795275200123",
            "b": "2026-11-21T15:33:20.000Z",
        }

    def test_text_and_escapes_are_printed_unchanged(self) -> None:
        assert Format(r"100%% é\t%k\x1f\\%t\n").render(_stored()) == "100% é\t".encode() + b"\x1f\\\n"

    def test_values_are_escaped_unless_raw_is_asked_for(self) -> None:
        message = _stored(b"\x1b[2J\n", TAGS="a\x1bb")
        assert Format("%v %t").render(message) == b"\\x1b[2J\\n a\\x1bb"
        assert Format("%v %t").render(message, raw=True) == b"\x1b[2J\n a\x1bb"

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("%y", "%y is not a directive; the directives are %T"),
            (r"\q", r"\\q is not an escape"),
            ("50%", "ends with '%'; write %%"),
        ],
    )
    def test_an_unknown_directive_is_named(self, text: str, reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            Format(text)


class _Stream(io.TextIOWrapper):
    """A stream that may be a terminal and records its output."""

    def __init__(self, terminal: bool) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def written(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode()


def _printed(mode: str, message: StoredMessage, *, terminal: bool = False, **options: Any) -> str:
    stream = _Stream(terminal)
    MessagePrinter(Output(mode, stream), follow=True, **options).show(message)
    return stream.written()


class TestMessages:
    def test_a_pipe_gets_bodies_alone_on_a_line_each(self) -> None:
        assert _printed(PLAIN, _stored(b"a\nb\xff")) == "a\\nb\\xff\n"

    def test_raw_bodies_are_printed_as_they_were_sent(self) -> None:
        assert _printed(TABLE, _stored(b"a\nb\x1b"), raw=True) == "a\nb\x1b\n"

    def test_a_terminal_gets_place_tag_keys_and_body(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        shown = _printed(TABLE, _stored(b"\x1b[2J", TAGS="e\x1bu", KEYS="o-1"), terminal=True)
        assert "2:7" in shown
        assert "e\\x1bu" in shown
        assert "o-1" in shown
        assert "\x1b[2J" not in shown
        assert "\x1b[32m" in shown

    def test_every_known_part_of_a_message_is_labelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        for columns, wide in ((80, False), (200, True)):
            monkeypatch.setenv("COLUMNS", str(columns))
            message = _stored(KEYS="o-1 o-2", TAGS="eu", UNIQ_KEY="7F00", __SHARDINGKEY="c", source="web")
            line = _printed(TABLE, message, terminal=True)
            assert line.count("\n") == 1
            assert re.search(r"2:7  .*tag=eu  keys=o-1,o-2  sharding-key=c  .*hello$", line), line
            assert ("id=7F00" in line, "source=web" in line, "2026-" in line) == (wide, wide, wide)
        assert "key=o-1  hello" in _printed(TABLE, _stored(KEYS="o-1"), terminal=True)
        assert "tag=o-1  hello" in _printed(TABLE, _stored(TAGS="o-1"), terminal=True)

    def test_colour_can_be_disabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in _printed(TABLE, _stored(TAGS="eu"), terminal=True)

    def test_a_long_body_is_cut_on_a_terminal_only(self) -> None:
        message = _stored(b"x" * 100_000)
        assert len(_printed(TABLE, message)) < 1200
        assert "… (100,000 bytes)" in _printed(TABLE, message)
        assert len(_printed(PLAIN, message)) == 100_001

    def test_json_has_a_binary_body_as_base64(self) -> None:
        row = message_row(_stored(b"\xff\x00"))
        assert (row["body_base64"], "body" in row) == ("/wA=", False)


COLUMNS = (TableColumn("topic", "TOPIC"), number("messages", "MESSAGES"), TableColumn("last", "LAST", show_moment))
ROWS = [
    {"topic": "orders", "messages": 12_345, "last": datetime(2026, 11, 21, tzinfo=UTC)},
    {"topic": "e\x1bvil", "messages": 0, "last": None},
]


class TestRows:
    def _shown(self, mode: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        stream = _Stream(False)
        Output(mode, stream).rows(COLUMNS, ROWS)
        return stream.written().splitlines()

    def test_a_table_has_headings_and_figures_flush_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = self._shown(TABLE, 80, monkeypatch)
        assert lines[0].split() == ["TOPIC", "MESSAGES", "LAST"]
        assert lines[2].index("12,345") + len("12,345") == lines[0].index("MESSAGES") + len("MESSAGES")
        assert "e\\x1bvil" in lines[3]

    @pytest.mark.parametrize("columns", [20, 30, 40])
    def test_a_narrow_terminal_gets_rows_below_one_another(self, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = self._shown(TABLE, columns, monkeypatch)
        assert max(map(len, lines)) <= columns
        assert [line.split() for line in lines[:2]] == [["TOPIC", "orders"], ["MESSAGES", "12,345"]]

    def test_the_least_important_column_is_left_out_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        stream = _Stream(False)
        columns = (*COLUMNS[:2], TableColumn("last", "LAST", show_moment, spare=True))
        Output(TABLE, stream).rows(columns, ROWS)
        lines = stream.written().splitlines()
        assert [line.split() for line in lines[:2]] == [["TOPIC", "MESSAGES"], ["orders", "12,345"]]
        assert lines[3].startswith("no room for LAST; ")
        assert max(map(len, lines[:3])) <= 40

    @pytest.mark.parametrize("columns", [40, 60])
    def test_a_text_that_is_too_long_is_wrapped(self, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        stream = _Stream(False)
        text = "".join(f"{number:03}" for number in range(40))
        Output(TABLE, stream).rows(
            (number("messages", "MESSAGES"), TableColumn("value", "VALUE", fold=True)), [{"messages": 5, "value": text}]
        )
        lines = stream.written().splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[0].split() == ["MESSAGES", "VALUE"]
        assert "".join(line[10:].strip() for line in lines[1:]) == text
